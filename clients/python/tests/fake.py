"""A scheduler for tests: starts a worker program and exchanges messages with it over pipes."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest

SOURCES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src")
SECONDS = 30
sys.path.insert(0, SOURCES)
HEAD = "import asyncio, json, os, sys, threading\nimport duly\nfrom duly import GiveUp, Performed, RetryAfter, Skip, Worker\n"


def environment(**more):
    """Returns the environment of a program that uses the package."""
    return {**os.environ, "PYTHONPATH": SOURCES, "PYTHONWARNINGS": "error", **more}


class FakeDuly:
    """A worker process and the other ends of its pipes."""

    def __init__(self, source, hello=True):
        with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False, encoding="utf-8") as script:
            script.write(HEAD + textwrap.dedent(source))
        self.script = script.name
        self.process = subprocess.Popen(
            [sys.executable, self.script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(), start_new_session=True,
            # A shell that runs the tests in the background ignores it, and Python keeps that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        self.lines = queue.Queue()
        self.errors = queue.Queue()
        self._said = []
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        if hello:
            self.hello = self.expect("hello")
            self.send(type="welcome", protocol=1, worker="w", copy=1, database="/srv/agent.db")

    @staticmethod
    def _read(pipe, lines):
        for line in pipe:
            lines.put(line)
        lines.put(None)

    def send_bytes(self, raw):
        self.process.stdin.write(raw)
        self.process.stdin.flush()

    def send(self, **message):
        self.send_bytes(json.dumps(message, ensure_ascii=False).encode() + b"\n")

    def start(self, run, handler="work", attempt=1, payload=None, **more):
        self.send_bytes(self.run_line(run, handler, attempt, payload, **more))

    @staticmethod
    def run_line(run, handler="work", attempt=1, payload=None, **more):
        message = {
            "type": "run", "run": run, "attempt": attempt, "task": "task", "handler": handler, "payload": payload,
            "scheduled_for": "2027-03-14T06:00:00.250Z", "origin": "schedule",
            "idempotency_key": "task/2027-03-14T06:00:00Z", "deadline": None, **more,
        }  # fmt: skip
        return json.dumps(message, ensure_ascii=False).encode() + b"\n"

    def answer(self, asked, state, **more):
        self.send(type="effect", run=asked["run"], attempt=asked["attempt"], key=asked["key"], state=state, **more)

    def next(self):
        """Returns the next message, except logs of the level debug."""
        while True:
            line = self.lines.get(timeout=SECONDS)
            if line is None:
                raise AssertionError(f"the worker has closed its output; stderr: {self.stderr()}")
            assert len(line) <= 1_048_576, len(line)
            message = json.loads(line)
            if message.get("level") != "debug":
                return message

    def expect(self, kind, **keys):
        """Returns the next message, which must have this type and these keys."""
        message = self.next()
        found = {key: message.get(key) for key in keys}
        assert (message["type"], found) == (kind, keys), f"expected {kind} {keys}, found {message}"
        return message

    def expect_all(self, count):
        return [self.next() for _ in range(count)]

    def failed(self, run=1, **keys):
        """Returns the text of the next message, which must be the failure of this run."""
        return self.expect("failed", run=run, **keys)["error"]

    def said(self, text):
        """Waits for a line of stderr that contains this text."""
        while True:
            line = self.errors.get(timeout=SECONDS)
            if line is None:
                raise AssertionError(f"expected {text!r} in stderr, found {self._said}")
            self._said.append(line.decode())
            if text in self._said[-1]:
                return

    def stderr(self):
        """Returns the whole of stderr. Waits for its end."""
        while (line := self.errors.get(timeout=SECONDS)) is not None:
            self._said.append(line.decode())
        self.errors.put(None)
        return "".join(self._said)

    def code(self):
        """Waits for the end of the worker and returns its exit code."""
        return self.process.wait(SECONDS)

    def stop(self):
        """Asks the worker to end, which it must do without a further message."""
        self.send(type="stop", deadline="2027-03-14T18:00:30.000Z")
        code = self.code()
        last = self.lines.get(timeout=SECONDS)
        assert (code, last) == (0, None), (code, last, self.stderr())

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SECONDS)
        for thread in self._threads:
            thread.join(SECONDS)
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        os.unlink(self.script)


class WorkerTest(unittest.TestCase):
    """A test with workers, which it ends."""

    maxDiff = None

    def worker(self, source, hello=True):
        duly = FakeDuly(source, hello)
        self.addCleanup(duly.close)
        return duly

    def simple(self, body, concurrency=1, kind="def"):
        """Starts a worker with one handler, `work`, that has this body."""
        function = f"{kind} work(run):\n" + textwrap.indent(textwrap.dedent(body), "    ")
        return self.worker(f"{function}\nduly.run_worker({{'work': work}}, concurrency={concurrency})\n")
