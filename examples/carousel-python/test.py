"""Kills the bot, and then duly, in the middle of a post, and counts the pictures. DULY_BIN names the program duly."""

import os
import signal
import sqlite3
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "clients", "python", "tests"))

from program import Scheduler, duly_program, eventually, knows_workers, needs_program, worker_option  # noqa: E402

import duly  # noqa: E402


@needs_program
class CarouselTest(unittest.TestCase):
    def setUp(self):
        if not knows_workers():
            self.skipTest("this duly starts no workers")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.file = os.path.join(folder.name, "carousel.db")

    def start(self):
        scheduler = Scheduler(self.file, worker_option("carousel", os.path.join(HERE, "agent.py"), "--fast"))
        self.addCleanup(scheduler.close)
        eventually("the bot is ready", lambda: self.bots(scheduler))
        return scheduler

    @staticmethod
    def bots(scheduler):
        """Returns the process ids of the bots that the log names."""
        ready = [line.split() for line in list(scheduler.lines) if "is ready" in line]
        return [int(words[words.index("agent") + 1]) for words in ready]

    def rows(self, query, *values):
        connection = sqlite3.connect(self.file, timeout=5)
        try:
            return connection.execute(query, values).fetchall()
        finally:
            connection.close()

    def post(self, name):
        """Adds a carousel that is due now, and waits until two of its pictures are posted."""
        duly.add(self.file, name=name, handler="carousel", payload={"chat": name}, backoff_ms=10, now=True)
        eventually(f"two pictures of {name}", lambda: self.posts(name) >= 2)

    def posts(self, name):
        return self.rows("SELECT count(*) FROM posts WHERE chat = ?", name)[0][0]

    def wait_for(self, name):
        ended = (
            "SELECT r.attempt FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id "
            "WHERE t.name = ? AND r.status = 'succeeded'"
        )
        return eventually(f"{name} has succeeded", lambda: self.rows(ended, name))[0][0]

    def test_each_picture_is_posted_once(self):
        scheduler = self.start()
        self.post("undisturbed")
        self.assertEqual(self.wait_for("undisturbed"), 1)

        self.post("bot-killed")
        os.kill(self.bots(scheduler)[-1], signal.SIGKILL)
        self.assertGreaterEqual(self.wait_for("bot-killed"), 2)

        self.post("duly-killed")
        scheduler.process.kill()
        scheduler.process.wait()
        scheduler = self.start()
        self.assertGreaterEqual(self.wait_for("duly-killed"), 2)

        self.post("duly-ended")
        self.assertEqual(scheduler.terminate(), 0)
        self.assertEqual(self.wait_for("duly-ended"), 1)

        ended = self.rows("SELECT count(*) FROM task_runs WHERE status = 'succeeded'")[0][0]
        self.assertGreaterEqual(ended, 4)
        twice = self.rows("SELECT key, count(*) FROM posts GROUP BY key HAVING count(*) > 1")
        self.assertEqual(twice, [])
        for name in ("undisturbed", "bot-killed", "duly-killed", "duly-ended"):
            self.assertEqual(self.posts(name), 5, name)
        with open(os.path.join(self.folder, "news.txt"), encoding="utf-8") as news:
            lines = news.readlines()
        self.assertEqual(len(lines), len(set(lines)), lines)
        self.assertEqual(len(lines), ended)
        duly_program("--db", self.file, "doctor")


if __name__ == "__main__":
    unittest.main()
