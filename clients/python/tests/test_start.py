"""Child mode: this process starts duly, and serves its handlers."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest

from fake import SECONDS, environment
from program import DULY, eventually, needs_program

import duly
from duly._output import Output


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return ") Z " not in stat.read()
    except OSError:
        return False


class BrokenPipe(unittest.TestCase):
    def test_whoever_writes_may_close_the_output(self):
        read, write = os.pipe()
        os.close(read)
        self.addCleanup(os.close, write)
        broken = []
        output = Output(write, lambda error: (output.close(), broken.append(error)))
        with output.lock:
            output.add(b"{}\n")
        writer = threading.Thread(target=output.flush, daemon=True)
        writer.start()
        writer.join(SECONDS)
        self.assertEqual((writer.is_alive(), len(broken)), (False, 1))


@needs_program
class Start(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.file = os.path.join(self.folder, "bot.db")
        self.log = open(os.path.join(self.folder, "log"), "w", encoding="utf-8")
        self.addCleanup(self.log.close)

    def start(self, handlers, **more):
        return duly.start(self.file, handlers, program=DULY, log=self.log, **more)

    def test_plain_functions_are_served_in_threads(self):
        gate = threading.Event()

        def slow(run):
            gate.wait()
            return "slow"

        with self.start({"echo": lambda run: [os.getpid(), run.payload], "slow": slow}) as d:
            pid = d.pid
            for name in ("echo", "slow"):
                d.add(name=name, handler=name, payload=7, manual=True)
            run = d.trigger("echo", wait=True)
            self.assertEqual((run["status"], run["result"]), ("succeeded", [os.getpid(), 7]))
            d.trigger("slow")
            eventually("slow runs", lambda: d.history("slow", status="running"))
            threading.Timer(0.1, gate.set).start()
        self.assertEqual(d.history("slow")[0]["result"], "slow")
        self.assertFalse(is_alive(pid))
        self.assertIsNone(d.pid)
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith(".duly")], [])

    def test_coroutine_functions_are_served_on_the_loop_of_the_application(self):
        async def main():
            loop = asyncio.get_running_loop()

            async def work(run):
                await asyncio.sleep(0)
                return await run.effect_async("send", lambda: asyncio.get_running_loop() is loop)

            async with self.start({"work": work, "plain": lambda run: threading.current_thread().name}) as d:
                for name in ("work", "plain"):
                    await d.add(name=name, handler=name, manual=True)
                found = await asyncio.gather(*(d.trigger(name, wait=True) for name in ("work", "plain")))
                return [run["result"] for run in found], d.pid

        (work, plain), pid = asyncio.run(main())
        self.assertIs(work, True)
        self.assertIn("duly-", plain)
        self.assertFalse(is_alive(pid))

    def test_a_handler_that_stops_its_own_application_does_not_wait_for_itself(self):
        stopped = threading.Event()

        def quit(run):
            d.stop()
            stopped.set()
            return d.pid

        with self.start({"quit": quit}) as d:
            pid = d.pid
            d.add(name="quit", handler="quit", now=True)
            # Before its drain would have ended the attempt.
            self.assertTrue(stopped.wait(SECONDS / 2))
        self.assertFalse(is_alive(pid))
        run = d.history("quit")[0]
        self.assertEqual((run["status"], run["result"]), ("succeeded", pid))

    def test_a_coroutine_and_what_it_starts_do_not_wait_for_themselves(self):
        async def main(quit):
            ended = asyncio.Event()

            async def stop(run):
                await quit(d, asyncio.get_running_loop())
                ended.set()

            async with self.start({"stop": stop}, args=["--drain", f"{SECONDS * 10:g}s"]) as d:
                await d.add(name=f"stop-{quit.__name__}", handler="stop", now=True)
                await asyncio.wait_for(ended.wait(), SECONDS)
                return d, d.pid

        async def awaited(d, loop):
            await d.stop()

        async def of_a_task(d, loop):
            await asyncio.create_task(d.stop())

        async def of_a_thread(d, loop):
            call = asyncio.run_coroutine_threadsafe
            await asyncio.to_thread(lambda: call(d.stop(), loop).result())

        for way in (awaited, of_a_task, of_a_thread):
            with self.subTest(way.__name__):
                d, _ = asyncio.run(main(way))
                run = asyncio.run(d.history(f"stop-{way.__name__}"))[0]
                self.assertEqual(run["status"], "succeeded")

    def test_a_stop_after_the_end_of_the_handler_that_asks_for_it_waits(self):
        async def main():
            tasks = []

            async def later(gate):
                await gate.wait()
                await d.stop()
                return d.pid

            async def work(run):
                tasks.append(asyncio.create_task(later(gate)))

            gate = asyncio.Event()
            async with self.start({"work": work}) as d:
                await d.add(name="work", handler="work", manual=True)
                await d.trigger("work", wait=True)
                gate.set()
                return await tasks[0]

        self.assertIsNone(asyncio.run(main()))

    def test_a_killed_duly_is_started_again_and_a_handler_ends_before_its_run_starts_again(self):
        exits, seen, gate, performing = [], [], threading.Event(), threading.Event()

        def perform():
            performing.set()
            gate.wait()

        def work(run):
            seen.append(f"begin {run.attempt}")
            try:
                run.effect("sent", perform)
            except duly.EffectRefused:
                seen.append(f"refused, {run.cancelled.reason}")
            return run.attempt

        with self.start({"work": work, "other": lambda run: "other"}, on_exit=exits.append) as d:
            d.add(name="work", handler="work", now=True, backoff_ms=1)
            d.add(name="other", handler="other", manual=True)
            self.assertTrue(performing.wait(SECONDS))
            first = d.pid
            os.kill(first, signal.SIGKILL)
            eventually("another duly", lambda: d.pid not in (None, first))
            self.assertEqual(exits, [duly.Exit("killed by SIGKILL", 1.0)])
            self.assertEqual(d.trigger("other", wait=True)["result"], "other")
            self.assertEqual((seen, d.history("work")[0]["status"]), (["begin 1"], "running"))
            gate.set()
            eventually("the run is dead", lambda: d.history("work")[0]["status"] == "dead")
            # Its effect is in doubt: it is performed no second time.
            self.assertEqual(seen, ["begin 1", "refused, shutdown", "begin 2"])
            self.assertIn("is in doubt", d.history("work")[0]["error"])

    def test_a_removed_database_is_not_made_anew_and_an_on_exit_that_raises_holds_nothing_up(self):
        exits, before = [], os.getcwd()

        def on_exit(end):
            exits.append(end.reason)
            raise ValueError("on_exit")

        os.chdir(self.folder)
        try:
            starter = duly.start("bot.db", {"work": lambda run: 1}, program=DULY, log=self.log, on_exit=on_exit)
        finally:
            os.chdir(before)
        with starter as d:
            d.add(name="work", handler="work", manual=True)
            os.kill(d.pid, signal.SIGKILL)
            eventually("its end", lambda: exits)
            for end in ("", "-wal", "-shm"):
                if os.path.exists(self.file + end):
                    os.unlink(self.file + end)
            eventually("a start that fails", lambda: len(exits) > 1)
            self.assertEqual(exits[:2], ["killed by SIGKILL", "exit code 4"])
            self.assertFalse(os.path.exists(self.file) or os.path.exists(os.path.join(before, "bot.db")))

    def test_what_cannot_be_started_is_an_error_of_with(self):
        with self.assertRaisesRegex(duly.ProgramError, "did not start"):
            with duly.start(self.file, {"work": lambda run: 1}, program=DULY, log=object()):
                self.fail("it has not started")

    def test_a_coroutine_function_is_told_of_an_end(self):
        async def main():
            told = asyncio.Event()

            async def on_exit(end):
                told.set()

            async with self.start({"work": lambda run: 1}, on_exit=on_exit) as d:
                os.kill(d.pid, signal.SIGKILL)
                await asyncio.wait_for(told.wait(), SECONDS)

        asyncio.run(main())

    def test_an_application_that_ends_leaves_no_process(self):
        for end, code in (
            ("sys.exit(0)", 0), ("os._exit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
            ("raise ValueError('crash')", 1),
            # A process that it has forked lives on.
            ("os.fork() or (os.close(1), os.close(2), signal.alarm(60), signal.pause()); os.kill(os.getpid(), signal.SIGKILL)",
             -signal.SIGKILL),
        ):  # fmt: skip
            with self.subTest(end):
                script = os.path.join(self.folder, "bot.py")
                with open(script, "w", encoding="utf-8") as file:
                    file.write(textwrap.dedent(f"""
                        import duly, os, signal, sys
                        starter = duly.start({self.file!r}, {{"work": print}}, program={DULY!r})
                        print(starter.__enter__().pid, flush=True)
                        {end}
                    """))
                done = subprocess.run([sys.executable, script], env=environment(), capture_output=True, timeout=SECONDS)
                self.assertEqual(done.returncode, code, done.stderr)
                eventually("the end of duly", lambda: not is_alive(int(done.stdout)))

    def test_what_cannot_be_started(self):
        with open(self.file, "w", encoding="utf-8") as file:
            file.write("no database, and long enough to be read as one" * 100)
        with self.assertRaisesRegex(duly.ProgramError, "duly did not start: exit code 4"):
            with self.start({"work": print}):
                self.fail("it has started")
        os.unlink(self.file)
        with self.assertRaisesRegex(duly.ProgramError, "cannot be started"):
            with duly.start(self.file, {"work": print}, program="/nonexistent/duly"):
                self.fail("it has started")
        with self.assertRaises(ValueError):
            self.start({"work": print}, concurrency=0)

    def test_a_stop_ends_the_wait_for_the_next_start(self):
        exits = []
        with self.start({"work": print}, on_exit=exits.append) as d:
            os.kill(d.pid, signal.SIGKILL)
            eventually("its end", lambda: exits)
        self.assertIsNone(d.pid)
