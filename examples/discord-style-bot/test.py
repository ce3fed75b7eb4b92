"""Runs the bot in Python and, with `node BOT` as arguments, any other: kills it and duly, and counts its posts. DULY_BIN: the program."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = 60
CLIENT = os.path.join(HERE, "../../clients/python/src")


class Bot:
    def __init__(self, command, file):
        environment = {**os.environ, "PYTHONPATH": CLIENT}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*command, file], stdin=pipe, stdout=pipe, text=True, bufsize=1, env=environment)
        self.posts = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.posts.put(line.rstrip("\n"))
        self.posts.put(None)

    def say(self, text):
        self.process.stdin.write(f"{text}\n")

    def expect(self, part):
        """Returns the next post, which must contain a text."""
        post = self.posts.get(timeout=SECONDS)
        assert post is not None and part in post, f"expected {part!r}, found {post!r}"
        return post

    def kill(self):
        self.process.kill()
        self.process.wait(SECONDS)

    def end(self):
        """The connection ends: the bot does."""
        self.process.stdin.close()
        assert self.process.wait(SECONDS) == 0


def duly(file, *arguments):
    program = [os.environ["DULY_BIN"], "--db", file, "--json", *arguments]
    return json.loads(subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout)


def pids(file):
    """The pids of the schedulers that have not stopped."""
    return [one["pid"] for one in duly(file, "status")["schedulers"]]


def results(file, count):
    """Waits until a number of runs have succeeded, and returns their results: a post is not yet the end of its run."""
    until = time.monotonic() + SECONDS
    while True:
        found = [run["result"] for run in duly(file, "history", "-n", "100") if run["status"] == "succeeded"]
        if len(found) == count:
            return found
        assert time.monotonic() < until, duly(file, "history", "-n", "100")


def check(command):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "bot.db")
        bot = Bot(command, file)
        bot.say("remind anna soon tea")
        bot.expect("no: ")
        bot.say("remind anna 200ms tea")
        bot.expect("I will remind you at")
        bot.expect("#anna: tea")
        # Killed with its reminders: the next bot posts what is due.
        bot.say("remind anna 1500ms cake")
        bot.expect("I will remind you at")
        results(file, 1)
        bot.kill()
        bot = Bot(command, file)
        bot.expect("#anna: cake")
        # duly is killed: the bot starts it again.
        bot.say("remind anna 2s coffee")
        bot.expect("I will remind you at")
        results(file, 2)
        for pid in pids(file):
            os.kill(pid, signal.SIGKILL)
        bot.expect("#anna: coffee")
        bot.say("list")
        for name in ("cake", "coffee", "tea"):
            bot.expect(f"remind/anna/{name} completed -")
        bot.say("forget remind/anna/milk")
        bot.expect("no: ")
        bot.end()
        assert bot.posts.get(timeout=SECONDS) is None and not pids(file)
        assert all(results(file, 3))
    print(f"{os.path.basename(command[-1])}: each reminder was posted once")


if __name__ == "__main__":
    check(sys.argv[1:] or [sys.executable, os.path.join(HERE, "bot.py")])
