#!/usr/bin/env python3
"""Stands for `duly run --worker -`: hands on what the conformance kit, whose pipes its application has, says and reads.

It ends as duly does: after `stop`, when no attempt is left; and when the kit is gone.
"""

import json
import os
import sys
import threading

if sys.argv[1] == "duly-lock-input":
    sys.exit(0)
application = os.getppid()
kit_in = os.open(f"/proc/{application}/fd/0", os.O_RDONLY)
kit_out = os.open(f"/proc/{application}/fd/1", os.O_WRONLY)
guard = threading.Lock()
attempts = set()
stopping = False


def lines(descriptor, other):
    """Yields the messages, and passes the bytes on."""
    rest = b""
    while chunk := os.read(descriptor, 65536):
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            yield parsed(line)
            write(other, line + b"\n")
            yield None
    write(other, rest)


def parsed(line):
    """What the kit says may be no message."""
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    return message if isinstance(message, dict) else {}


def write(descriptor, data):
    while data:
        data = data[os.write(descriptor, data) :]


def end_if_idle():
    with guard:
        if stopping and not attempts:
            os._exit(0)


def from_kit():
    global stopping
    try:
        for message in lines(kit_in, 1):
            if message is None:
                end_if_idle()
            elif message.get("type") == "run":
                attempts.add((message["run"], message["attempt"]))
            elif message.get("type") == "stop":
                stopping = True
    finally:
        os._exit(3)


threading.Thread(target=from_kit, daemon=True).start()
try:
    ended = None
    for message in lines(0, kit_out):
        if message is None:
            attempts.discard(ended)
            end_if_idle()
        else:
            is_end = message.get("type") in ("done", "failed")
            ended = (message["run"], message["attempt"]) if is_end else None
finally:
    os._exit(3)
