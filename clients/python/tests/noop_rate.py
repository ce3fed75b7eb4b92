"""Measures how many runs a second a worker carries out whose handlers do nothing: `python3 tests/noop_rate.py`."""

import os
import subprocess
import sys
import time

from fake import HEAD, FakeDuly, environment

RUNS = 20_000
PLAIN = "duly.run_worker({'work': lambda run: None}, concurrency=%d)"
ASYNC = "async def work(run): pass\nduly.run_worker({'work': work}, concurrency=%d)"


def rate(source, concurrency):
    """Returns runs a second with a scheduler that keeps `concurrency` runs at the worker."""
    program = [sys.executable, "-c", HEAD + source % concurrency]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, bufsize=0, env=environment()) as worker:
        worker.stdout.readline()
        worker.stdin.write(b'{"type":"welcome","protocol":1,"worker":"w","copy":1,"database":"/srv/agent.db"}\n')
        lines = [FakeDuly.run_line(run, payload={"to": "anna"}) for run in range(RUNS)]
        started = time.monotonic()
        worker.stdin.write(b"".join(lines[:concurrency]))
        sent, done, rest = min(concurrency, RUNS), 0, b""
        while done < RUNS:
            complete, _, rest = (rest + os.read(worker.stdout.fileno(), 1 << 20)).rpartition(b"\n")
            ended = complete.count(b'"type":"done"')
            done += ended
            if sent < RUNS:
                worker.stdin.write(b"".join(lines[sent : sent + ended]))
                sent = min(RUNS, sent + ended)
        taken = time.monotonic() - started
        worker.stdin.close()
    return RUNS / taken


if __name__ == "__main__":
    for name, source in (("threads", PLAIN), ("asyncio", ASYNC)):
        for concurrency in (1, 8, 100):
            print(f"{name}, concurrency {concurrency}: {rate(source, concurrency):.0f} runs a second")
