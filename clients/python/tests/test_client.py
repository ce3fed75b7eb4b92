"""What only the program can show: the faults of workers that it starts, and the clients that ask it."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
from datetime import datetime, timedelta, timezone

from fake import SECONDS, environment
from program import DULY, Scheduler, duly_program, eventually, needs_program, worker_option

import duly
from duly._zones import ZONES


class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.file = os.path.join(self.folder, "agent.db")
        self.client = duly.Client(self.file, program=DULY)

    def worker(self, source):
        script = os.path.join(self.folder, "worker.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(source))
        return worker_option("work", script)

    def serve(self, source, *options):
        """Runs duly with a worker until it is idle, and returns what it has logged."""
        scheduler = Scheduler(self.file, self.worker(source), *(options or ["--until-idle"]))
        self.addCleanup(scheduler.close)
        scheduler.process.wait(SECONDS)
        scheduler.close()
        return "".join(scheduler.lines)


@needs_program
class Faults(ProgramTest):
    def test_what_is_printed_before_the_worker_runs_is_a_line_of_the_log(self):
        self.client.add(name="t", handler="work", now=True, max_attempts=1)
        log = self.serve("""
            print("a banner", flush=True)
            import duly, os, subprocess
            print("starting ..")
            os.write(1, b"half a line")
            subprocess.run(["echo", "from a child"])
            duly.run_worker({"work": lambda run: print("in a run")})
        """)
        self.assertEqual(self.client.history("t")[0]["status"], "succeeded", log)
        for text in ("a banner", "starting ..", "half a line", "from a child", "in a run"):
            self.assertIn(text, log)
        self.assertNotIn("was ended", log)

    def test_a_process_that_a_worker_starts_keeps_its_streams(self):
        self.client.add(name="t", handler="work", now=True, max_attempts=1)
        self.serve("""
            import duly, subprocess, sys
            own = [sys.executable, "-c", "import duly; print(input())"]
            work = lambda run: subprocess.run(own, input="read", capture_output=True, text=True).stdout
            duly.run_worker({"work": work})
        """)
        self.assertEqual(self.client.history("t")[0]["result"], "read\n")

    def test_a_crash_is_the_error_of_its_runs(self):
        for raised, error in (
            ("TypeError('no date')", "exit code 1: TypeError: no date"),
            ("ValueError('two\\nlines')", "ValueError: two lines"),
            ("GROUP('both', [KeyError('a'), ValueError('b')])", "both (2 sub-exceptions) (KeyError: 'a'; ValueError: b)"),
        ):
            if raised.startswith("GROUP") and sys.version_info < (3, 11):
                continue
            with self.subTest(raised):
                name = f"t{len(raised)}"
                self.client.add(name=name, handler="work", now=True, max_attempts=1)
                log = self.serve(f"""
                    import builtins, duly, os, sys, threading
                    GROUP = getattr(builtins, "ExceptionGroup", None)
                    def work(run):
                        try:
                            raise {raised}
                        except Exception as error:
                            sys.excepthook(type(error), error, error.__traceback__)
                            os._exit(1)
                    duly.run_worker({{"work": work}})
                """)
                run = self.client.history(name)[0]
                self.assertEqual(run["status"], "dead", log)
                self.assertTrue(run["error"].endswith(error), run["error"])

    def test_the_error_of_a_group_names_its_exceptions(self):
        if sys.version_info < (3, 11):
            self.skipTest("no ExceptionGroup")
        self.client.add(name="t", handler="work", now=True, max_attempts=1)
        self.serve("""
            import duly
            def work(run):
                raise ExceptionGroup("both", [KeyError("a"), ExceptionGroup("c", [ValueError("b")])])
            duly.run_worker({"work": work})
        """)
        said = self.client.history("t")[0]["error"]
        self.assertIn("(KeyError: 'a'; ExceptionGroup: c (1 sub-exception) (ValueError: b))", said)

    def test_a_worker_whose_input_is_no_pipe_says_so(self):
        worker = [sys.executable, "-c", "import duly; duly.run_worker({'work': print})"]
        done = subprocess.run(worker, stdin=subprocess.DEVNULL, capture_output=True, env=environment(), timeout=SECONDS)
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertIn(b"start it with duly run --worker", done.stderr)


@needs_program
class TheClient(ProgramTest):
    def test_tasks_and_runs(self):
        at = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
        for name, schedule in {
            "cron": {"cron": "0 7 * * mon-fri", "time_zone": "Europe/Rome"}, "every": {"every": timedelta(minutes=15)},
            "seconds": {"every_seconds": 90}, "delay": {"delay": "1h 30m"}, "at": {"at": at},
            "text": {"at": "2030-01-01 12:00", "time_zone": "Europe/Rome"}, "in": {"in_": "2h"},
            "delta": {"in_": timedelta(hours=1)}, "in_seconds": {"in_seconds": 60}, "manual": {"manual": True},
        }.items():  # fmt: skip
            task = {"name": name, "handler": "work", "payload": {"to": ["änna"]}, **schedule}
            self.assertEqual(self.client.add(**task)["change"], "created", name)
            self.assertEqual(self.client.add(**task)["change"], "unchanged", name)
        self.client.add(
            name="all", handler="work", cron="@daily", starts_at=at, ends_at=at + timedelta(days=9),
            overlap="buffer_all", misfire="run_all", misfire_grace_ms=1, catch_up_limit=2, expires_ms="1m",
            max_attempts=4, backoff_ms=5, backoff_cap_ms=timedelta(seconds=6), timeout_ms=0, jitter_ms=8, priority=3,
            concurrency_key="chat:7", on_dead="manual", pause_after_failures=9,
        )  # fmt: skip
        row = self.client.show("all")
        columns = ("starts_at", "misfire_grace_ms", "expires_ms", "backoff_cap_ms", "timeout_ms", "concurrency_key")
        found = [row[column] for column in columns]
        self.assertEqual(found, ["2030-01-01T12:00:00.000Z", 1, 60_000, 6_000, 0, "chat:7"])
        self.assertEqual(len(self.client.list()), 11)
        self.assertEqual(self.client.pause("every")["status"], "paused")
        self.assertEqual(self.client.resume("every")["status"], "active")
        large = {"text": "x" * 200_000}
        run = self.client.trigger("manual", large, "march")
        self.assertEqual((run["task"], run["status"], run["payload"]), ("manual", "queued", large))
        self.assertEqual(self.client.trigger("manual", large, "march")["id"], run["id"])
        with self.assertRaisesRegex(duly.TaskExists, "another payload"):
            self.client.trigger("manual", 2, "march")
        self.client.cancel(run["id"])
        since = datetime.now(timezone.utc) - timedelta(hours=1)
        self.assertEqual(self.client.history("manual", status="cancelled", since=since, limit=1)[0]["id"], run["id"])
        self.assertEqual(self.client.remove("manual"), {"name": "manual", "removed": True})
        for call in (self.client.show, self.client.trigger, self.client.pause, self.client.resume):
            with self.assertRaises(duly.UnknownTask):
                call("manual")
        with self.assertRaises(duly.UnknownRun):
            self.client.cancel(999)

    def test_errors(self):
        self.client.add(name="t", handler="work", every="15m")
        for kind, more in (
            (duly.TaskExists, {"every": "16m"}),
            (duly.InvalidTask, {"cron": "0 0 31 2 *"}),
            (duly.InvalidTask, {"every": 60}),
            (duly.InvalidTask, {"every": "1h", "time_zone": "Rome"}),
            (duly.InvalidTask, {"manual": True, "payload": float("inf")}),
            (TypeError, {"manual": True, "timeout": 7}),
        ):
            with self.subTest(more), self.assertRaises(kind):
                self.client.add(**{"name": "t", "handler": "work", **more})
        with self.assertRaises(duly.UnusableDatabase):
            duly.Client(self.file + "x", program=DULY).list()
        with self.assertRaises(duly.ProgramError):
            duly.Client(self.file, program="/nonexistent/duly").list()
        with self.assertRaises(TypeError):
            self.client.show(b"t")

    def test_a_trigger_waits_with_threads_and_with_asyncio(self):
        for name in ("good", "bad", "slow"):
            self.client.add(name=name, handler=name, manual=True, max_attempts=1)
        scheduler = Scheduler(self.file, self.worker("""
            import duly
            def bad(run):
                raise duly.GiveUp("no")
            def slow(run):
                run.cancelled.wait()
                run.cancelled.raise_if_set()
            duly.run_worker({"good": lambda run: {"sent": 1}, "bad": bad, "slow": slow}, concurrency=3)
        """))
        self.addCleanup(scheduler.close)
        found = []
        wait = lambda: found.append(self.client.trigger("good", wait=True)["result"])  # noqa: E731
        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        self.assertEqual(found, [{"sent": 1}] * 3)
        bad = self.client.trigger("bad", wait=True)
        self.assertEqual((bad["status"], bad["error"]), ("dead", "no"))
        with self.assertRaises(TimeoutError):
            self.client.trigger("slow", wait=True, timeout=0.1)
        self.client.cancel("slow")

        async def with_asyncio():
            client = duly.AsyncClient(self.file, program=DULY)
            runs = await asyncio.gather(*(client.trigger("good", wait=True) for _ in range(3)))
            self.assertEqual([run["status"] for run in runs], ["succeeded"] * 3)
            with self.assertRaises(TimeoutError):
                await client.trigger("slow", wait=True, timeout=0.1)
            await client.cancel("slow")
            waiting = asyncio.ensure_future(client.trigger("slow", wait=True))
            while not await client.history("slow", status="running"):
                pass
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            await client.cancel("slow")
            self.assertEqual({run["status"] for run in await client.history("good")}, {"succeeded"})
            await client.add(name="other", handler="good", in_="2h")
            self.assertEqual(len(await client.list()), 4)
            await client.pause("other")
            await client.resume("other")
            self.assertEqual((await client.show("other"))["status"], "active")
            await client.remove("other")

        asyncio.run(with_asyncio())
        eventually("slow is cancelled", lambda: not self.client.history("slow", status="running"))
        self.assertEqual(scheduler.terminate(), 0)

    def test_the_zones_are_those_of_the_program_and_no_expression_of_it_is_refused(self):
        manifest = os.path.join(self.folder, "zones.toml")
        with open(manifest, "w", encoding="utf-8") as file:
            for number, zone in enumerate(sorted(ZONES)):
                command = json.dumps(["true"])
                file.write(f'[[task]]\nname="t{number}"\ncron="@daily"\ntime_zone="{zone}"\ncommand={command}\n')
        duly_program("--db", self.file, "apply", manifest)
        self.assertTrue(len(ZONES) > 590 and "America/Argentina/ComodRivadavia" in ZONES)
        for cron in (
            "@daily", "@DAILY", "* * * * *", "*/5 0-23/2 1,15 * mon-fri", "0 0 L * *", "0 0 LW * *", "0 0 15W * *",
            "0 0 * * 5#2", "0 0 * * 5L", "0 0 * jan,MAR *", "0 0 7 * 7", "30 0 7 * * SUN", "  0  7 * *\t* ",
        ):  # fmt: skip
            with self.subTest(cron):
                self.client.add(name="c", handler="work", cron=cron, replace=True)
