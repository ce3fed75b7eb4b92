"""The handlers of kills.rs: each journals what it does. kill_worker.mjs does the same."""

import os
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../clients/python/src"))

import duly  # noqa: E402

home = sys.argv[1]
journal_file = os.open(f"{home}/journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
worker = duly.Worker(concurrency=4)


def journal(what, run):
    os.write(journal_file, f"{what} {run.run_id} {run.attempt} {os.getpid()}\n".encode())


def lives(pid):
    """Returns whether a process lives that is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return not re.search(r"\) [ZX] ", stat.read())
    except OSError:
        return False


@worker.handler("work")
def work(run):
    """The file of the run names the process of the attempt that is at work."""
    lock = f"{home}/lock-{run.run_id}"
    try:
        with open(lock) as file:
            if lives(file.read()):
                journal("overlap", run)
    except OSError:
        pass
    with open(lock, "w") as file:
        file.write(str(os.getpid()))
    journal("start", run)
    time.sleep(run.payload / 1000)
    journal("end", run)
    os.remove(lock)


@worker.handler("pay")
def pay(run):
    run.effect("pay", lambda: journal("paid", run))


worker.run()
