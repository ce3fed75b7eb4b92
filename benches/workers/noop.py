"""Handlers that do nothing: as a worker; with DB and PROGRAM as arguments, as an application that starts duly.

It prints the milliseconds from the call of `start` to the first handler.
"""

import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "clients/python/src"))

import duly  # noqa: E402

if len(sys.argv) == 1:
    duly.run_worker({"noop": lambda run: None}, concurrency=500)
else:
    file, program = sys.argv[1:]
    began = time.perf_counter()
    first = True

    def noop(run):
        global first
        if first:
            first = False
            print((time.perf_counter() - began) * 1000, flush=True)

    with duly.start(file, {"noop": noop}, concurrency=500, program=program):
        threading.Event().wait()
