"""The program duly, if the environment variable DULY_BIN names it."""

import os
import subprocess
import sys
import threading
import time
import unittest

from fake import SECONDS, environment

DULY = os.environ.get("DULY_BIN")


def needs_program(test):
    return unittest.skipUnless(DULY, "no DULY_BIN")(test)


def duly_program(*arguments, **more):
    """Runs the program to its end and returns what it prints."""
    pipe = subprocess.PIPE
    program = [DULY, *arguments]
    done = subprocess.run(program, env=environment(**more), stdout=pipe, stderr=pipe, timeout=SECONDS, text=True)
    if done.returncode != 0:
        raise AssertionError(f"duly {' '.join(arguments)} has failed ({done.returncode}): {done.stdout}{done.stderr}")
    return done.stdout


def knows_workers():
    """Returns whether the program starts workers: older ones do not."""
    return "--worker <" in duly_program("run", "--help")


def worker_option(name, *command):
    """Returns the option that starts a Python program as a worker."""
    quoted = " ".join("'" + part.replace("'", "'\\''") + "'" for part in (sys.executable, *command))
    return f"--worker={name}={quoted}"


def eventually(what, holds):
    """Waits until a condition holds that only another process can report."""
    deadline = time.monotonic() + SECONDS
    pause = threading.Event()
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(f"expected within {SECONDS} s: {what}")
        pause.wait(0.02)
    return found


class Scheduler:
    """`duly run` as a process."""

    def __init__(self, file, *options, **more):
        self.process = subprocess.Popen(
            [DULY, "--db", file, "run", "--create", "--poll", "50ms", *options],
            env=environment(**more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        self.lines = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)
        self._reader.start()

    def terminate(self):
        """Asks it to end and returns its exit code."""
        self.process.terminate()
        return self.process.wait(SECONDS)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        self.process.stdout.close()
