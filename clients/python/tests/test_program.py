"""The client and the program together: tasks that Python adds are run, also by workers in Python."""

import os
import sqlite3
import tempfile
import unittest

from program import Scheduler, duly_program, eventually, knows_workers, needs_program, worker_option

import duly

WORKER = """
import os, sys
import duly

worker = duly.Worker(concurrency=2)

@worker.handler("mail")
def mail(run):
    print("mail to", run.payload["to"])
    run.progress("sending")
    return run.effect("send", lambda: {"to": run.payload["to"], "attempt": run.attempt})

@worker.handler("slow")
async def slow(run):
    import asyncio
    run.progress("slow has begun")
    await asyncio.Event().wait()

@worker.handler("broken")
def broken(run):
    if run.attempt == 1:
        run.effect("send", lambda: 1)
        os._exit(3)
    if run.attempt == 2:
        raise duly.RetryAfter("1ms", "busy")
    raise duly.GiveUp(f"no such user, and the effect was {run.effect('send', lambda: 2)}")

worker.run()
"""


@needs_program
class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.file = os.path.join(folder.name, "agent.db")
        duly_program("--db", self.file, "add", "seed", "--manual", "--", "true")

    def rows(self, query):
        connection = sqlite3.connect(self.file, timeout=5)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def start(self, *options):
        scheduler = Scheduler(self.file, *options)
        self.addCleanup(scheduler.close)
        return scheduler

    def sound(self):
        duly_program("--db", self.file, "doctor")

    def test_tasks_are_planned_and_run(self):
        command = {"argv": ["echo", "hi"]}
        duly.add(self.file, name="once", handler="command", payload=command, now=True)
        duly.add(self.file, name="later", handler="command", payload=command, cron="0 7 * * *", time_zone="Europe/Rome")
        duly.add(self.file, name="wrong", handler="command", payload=command, cron="0 0 31 2 *")
        duly.add(self.file, name="by-hand", handler="command", payload=command, manual=True)
        duly_program("--db", self.file, "run", "--until-idle")
        states = self.rows("SELECT name, status, next_run IS NULL FROM scheduled_tasks ORDER BY name")
        self.assertEqual(
            states,
            [("by-hand", "active", 1), ("later", "active", 0), ("once", "completed", 1), ("seed", "active", 1),
             ("wrong", "invalid", 1)],
        )  # fmt: skip
        for name in ("by-hand", "once", "later"):
            duly.trigger(self.file, name)
        duly.trigger(self.file, "by-hand", key="march")
        duly_program("--db", self.file, "run", "--until-idle")
        ran = self.rows(
            "SELECT t.name, r.status, count(*) FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id "
            "GROUP BY 1, 2"
        )
        counts = [("by-hand", 1), ("by-hand/march", 1), ("later", 1), ("once", 2)]
        self.assertEqual(ran, [(name, "succeeded", count) for name, count in counts])
        self.assertEqual(duly.add(self.file, name="wrong", handler="command", payload=command, now=True, replace=True),
                         "replaced")  # fmt: skip
        duly_program("--db", self.file, "run", "--until-idle")
        self.assertEqual(self.rows("SELECT status FROM scheduled_tasks WHERE name = 'wrong'"), [("completed",)])
        self.sound()

    def test_a_worker_runs_them(self):
        if not knows_workers():
            self.skipTest("this duly starts no workers")
        script = os.path.join(self.folder, "worker.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(WORKER)
        scheduler = self.start(worker_option("python", script))
        duly.add(self.file, name="mail", handler="mail", payload={"to": "änna"}, now=True)
        run = "FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id WHERE t.name ="
        eventually("the mail is sent", lambda: self.rows(f"SELECT 1 {run} 'mail' AND r.status = 'succeeded'"))
        mail = self.rows(f"SELECT result, progress {run} 'mail'")
        self.assertEqual(mail, [('{"to":"änna","attempt":1}', "sending")])
        # Not beside the mail: it ends the worker that they share.
        duly.add(self.file, name="broken", handler="broken", backoff_ms=1, now=True)
        eventually("broken gives up", lambda: self.rows(f"SELECT 1 {run} 'broken' AND r.status = 'dead'"))
        self.assertEqual(
            self.rows(f"SELECT r.attempt, r.error {run} 'broken'"), [(3, "no such user, and the effect was 1")]
        )
        duly.add(self.file, name="slow", handler="slow", now=True)
        eventually("slow has begun", lambda: self.rows(f"SELECT 1 {run} 'slow' AND r.progress IS NOT NULL"))
        with sqlite3.connect(self.file, timeout=5) as connection:
            connection.execute("UPDATE task_runs SET cancel_requested = 1 WHERE status = 'running'")
        connection.close()
        eventually("slow is cancelled", lambda: self.rows(f"SELECT 1 {run} 'slow' AND r.status = 'cancelled'"))
        self.assertEqual(scheduler.terminate(), 0)
        self.sound()
