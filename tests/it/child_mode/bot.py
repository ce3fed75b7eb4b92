"""An application of the kills: its handler notes each begin, and each begin beside a living attempt of the same run."""

import os
import random
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../clients/python/src"))

import duly  # noqa: E402

home, file, program = sys.argv[1:]
log = os.open(f"{home}/journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def identity(pid):
    """A process by its pid and its start: another process or thread may get the number of one that was killed."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        state, *fields = stat.read().rpartition(") ")[2].split(" ")
    return "ended" if state == "Z" else f"{pid} {fields[18]}"


def is_alive(owner):
    try:
        with open(owner, encoding="utf-8") as file:
            recorded = file.read()
        return identity(recorded.split(" ")[0]) == recorded
    except OSError:
        return False


def work(run):
    owner = f"{home}/owner-{run.run_id}"
    os.write(log, f"{'twice' if is_alive(owner) else 'begin'} {run.task} {run.attempt}\n".encode())
    with open(owner, "w", encoding="utf-8") as file_of_owner:
        file_of_owner.write(identity(os.getpid()))
    # Also after a cancel: it may outlive duly.
    time.sleep(random.random() * 0.05)
    os.unlink(owner)


with duly.start(file, {"work": work}, concurrency=4, program=program):
    threading.Event().wait()
