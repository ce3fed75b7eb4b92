"""The handlers of soaks.rs: each journals what it does. kill_worker.mjs does the same."""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../clients/python/src"))

import duly  # noqa: E402

home = sys.argv[1]
journal_file = os.open(f"{home}/journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
worker = duly.Worker(concurrency=4)


def journal(what, run, more=""):
    os.write(journal_file, f"{what} {run.run_id} {run.attempt}{more}\n".encode())


def began(run):
    journal("began", run, f" {os.environ['DULY_TEST_SCHEDULER']} {run.scheduled_for:%Y-%m-%dT%H:%M:%SZ} {run.task}")


def identity(pid):
    """Returns the number and the start time of a process that lives and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().split(") ")[1].split(" ")
            return None if fields[0] in "ZX" else f"{pid} {fields[19]}"
    except OSError:
        return None


@worker.handler("work")
def work(run):
    """The file of the run names the process of the attempt that is at work."""
    lock = f"{home}/lock-{run.run_id}"
    try:
        with open(lock) as file:
            holder = file.read()
            # A process that was killed while it wrote has left a part of the text, which names no process.
            if holder and identity(holder.split(" ")[0]) == holder:
                journal("overlap", run)
    except OSError:
        pass
    with open(lock, "w") as file:
        file.write(identity(os.getpid()))
    began(run)
    time.sleep(run.payload / 1000)
    journal("ended", run)
    os.remove(lock)


@worker.handler("pay")
def pay(run):
    began(run)
    run.effect("pay", lambda: journal("paid", run))
    journal("ended", run)


worker.run()
