"""The protocol: messages, order, concurrency, cancellation, errors and the end of a worker."""

import json
import signal
import subprocess
import sys

from fake import HEAD, FakeDuly, WorkerTest, environment


class Messages(WorkerTest):
    def test_an_attempt_begins_and_succeeds(self):
        duly = self.simple(
            """
            assert run.scheduled_for.isoformat() == "2027-03-14T06:00:00.250000+00:00", run.scheduled_for
            assert run.deadline.isoformat() == "2027-03-14T07:00:00+00:00", run.deadline
            assert not run.cancelled.is_set() and run.cancelled.reason is None
            return [run.run_id, run.attempt, run.task, run.handler, run.payload, run.origin, run.idempotency_key,
                    run.database]
            """,
            concurrency=3,
        )
        self.assertEqual(duly.hello, {"type": "hello", "protocol": 1, "handlers": ["work"], "concurrency": 3})
        duly.start(81, attempt=2, payload={"to": "anna"}, deadline="2027-03-14T07:00:00.000Z", unknown=[1])
        self.assertEqual(duly.next(), {"type": "begin", "run": 81, "attempt": 2})
        result = [81, 2, "task", "work", {"to": "anna"}, "schedule", "task/2027-03-14T06:00:00Z", "/srv/agent.db"]
        self.assertEqual(duly.next(), {"type": "done", "run": 81, "attempt": 2, "result": result})
        duly.stop()

    def test_a_handler_that_returns_nothing_has_no_result(self):
        duly = self.simple("pass")
        duly.start(1)
        duly.expect("begin")
        self.assertEqual(duly.next(), {"type": "done", "run": 1, "attempt": 1})

    def test_progress_and_log(self):
        duly = self.simple("run.progress('half ü\\ud800'); run.log('warn', 'line\\n2')")
        duly.start(1)
        duly.expect("begin")
        self.assertEqual(duly.next(), {"type": "progress", "run": 1, "attempt": 1, "text": "half ü?"})
        self.assertEqual(duly.next(), {"type": "log", "level": "warn", "run": 1, "text": "line\n2"})
        duly.expect("done")

    def test_a_forked_child_is_not_the_worker(self):
        duly = self.simple(
            """
            child = os.fork()
            if child == 0:
                run.progress("of the child")
                return "of the child"
            os.waitpid(child, 0)
            return "of the worker"
            """
        )
        duly.start(1)
        duly.expect("begin")
        self.assertEqual(duly.next(), {"type": "done", "run": 1, "attempt": 1, "result": "of the worker"})
        duly.start(2)
        duly.expect("begin")
        self.assertEqual(duly.next(), {"type": "done", "run": 2, "attempt": 1, "result": "of the worker"})
        duly.stop()

    def test_nothing_about_an_attempt_follows_its_end(self):
        duly = self.worker(
            """
            worker = Worker()
            @worker.handler("work")
            def work(run):
                kept.append(run)
            kept = []
            @worker.handler("late")
            def late(run):
                kept[0].progress("late")
                kept[0].log("info", "late")
                try:
                    kept[0].effect("late", lambda: 1)
                except duly.EffectRefused as error:
                    return str(error)
            worker.run()
            """
        )
        duly.start(1)
        duly.expect("begin")
        duly.expect("done")
        duly.start(2, "late")
        duly.expect("begin")
        duly.expect("done", result="cannot begin effect 'late': its attempt has ended")

    def test_ping_is_answered_while_a_handler_runs(self):
        duly = self.simple("run.cancelled.wait()")
        duly.start(1)
        duly.expect("begin")
        for _ in range(3):
            duly.send(type="ping")
            duly.expect("pong")
        duly.send(type="pong")
        duly.send(type="cancel", run=1, attempt=1, reason="asked")
        duly.expect("done")
        duly.stop()

    def test_characters_that_are_split_between_reads(self):
        duly = self.simple("return run.payload")
        payload = "ü€😀\u2028 end"
        raw = duly.run_line(1, payload=payload)
        for at in range(len(raw)):
            duly.send_bytes(raw[at : at + 1])
        duly.expect("begin")
        duly.expect("done", result=payload)
        duly.send_bytes(b"\n  \n" + duly.run_line(2, payload=payload)[:-1] + b"\r\n")
        duly.expect("begin", run=2)
        duly.expect("done", result=payload)

    def test_stdin_is_empty_and_stdout_is_the_log(self):
        duly = self.simple(
            """
            print("printed")
            sys.__stdout__.write("written\\n"); sys.__stdout__.flush()
            os.system("echo by a child; cat")
            return sys.stdin.read()
            """
        )
        duly.start(1)
        duly.expect("begin")
        duly.expect("done", result="")
        for text in ("printed", "written", "by a child"):
            duly.said(text)
        duly.stop()

    def test_payloads_that_python_reads_only_on_request(self):
        duly = self.simple("return [type(run.payload).__name__, len(json.dumps(run.payload))]")
        deep = "[" * 1900 + "]" * 1900
        raw = duly.run_line(1, payload="here").replace(b'"here"', deep.encode())
        duly.send_bytes(raw)
        duly.expect("begin")
        self.assertIn(duly.next()["type"], ("done", "failed"))  # the handler itself may exceed the limit
        duly.send_bytes(duly.run_line(2, payload="here").replace(b'"here"', b"1" * 5000))
        duly.expect("begin", run=2)
        duly.expect("done", run=2)


class Order(WorkerTest):
    def test_runs_end_in_any_order_up_to_the_concurrency(self):
        duly = self.simple("run.cancelled.wait(); return run.run_id", concurrency=3)
        for run in (1, 2, 3):
            duly.start(run)
        self.assertEqual({duly.expect("begin")["run"] for _ in range(3)}, {1, 2, 3})
        for run in (2, 3, 1):
            duly.send(type="cancel", run=run, attempt=1, reason="asked")
            duly.expect("done", run=run, result=run)
        duly.start(1, attempt=2)
        duly.expect("begin", run=1, attempt=2)

    def test_a_run_beyond_the_concurrency_ends_the_worker(self):
        duly = self.simple("run.cancelled.wait()")
        duly.start(1)
        duly.start(2)
        self.assertEqual(duly.code(), 1)
        self.assertIn("expected at most 1 runs at once", duly.stderr())

    def test_a_slot_is_free_as_soon_as_done_is_sent(self):
        duly = self.simple("pass", concurrency=2)
        duly.start(1)
        for run in range(2, 2000):
            duly.start(run)
            while duly.next()["type"] != "done":
                pass
        while duly.next()["type"] != "done":
            pass
        duly.stop()

    def test_many_runs_in_one_chunk(self):
        duly = self.simple("return run.run_id", concurrency=1000)
        duly.send_bytes(b"".join(duly.run_line(run) for run in range(1000)))
        found = duly.expect_all(2000)
        self.assertEqual({m["result"] for m in found if m["type"] == "done"}, set(range(1000)))
        for run in range(1000):
            kinds = [m["type"] for m in found if m["run"] == run]
            self.assertEqual(kinds, ["begin", "done"])


    def test_begin_is_written_before_the_handler_is_called(self):
        for kind in ("def", "async def"):
            for _ in range(5):
                duly = self.simple("os._exit(9)", kind=kind)
                duly.start(1)
                duly.expect("begin", run=1)
                self.assertEqual(duly.code(), 9)

    def test_the_worker_waits_for_a_full_pipe_and_reads_on(self):
        source = """
def flood(run):
    for number in range(300):
        run.log("info", f"{number} " + "x" * 10_000)
def patient(run):
    run.cancelled.wait()
    print("has read the cancel")
duly.run_worker({"flood": flood, "patient": patient}, concurrency=2)
"""
        program, pipe = [sys.executable, "-c", HEAD + source], subprocess.PIPE
        with subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, env=environment()) as worker:
            self.addCleanup(worker.kill)
            worker.stdin.write(b'{"type":"welcome","protocol":1,"worker":"w","copy":1,"database":"/srv/agent.db"}\n')
            worker.stdin.write(FakeDuly.run_line(1, "patient"))
            worker.stdin.flush()
            self.assertEqual([json.loads(worker.stdout.readline())["type"] for _ in range(2)], ["hello", "begin"])
            worker.stdin.write(FakeDuly.run_line(2, "flood"))
            worker.stdin.write(b'{"type":"ping"}\n{"type":"cancel","run":1,"attempt":1,"reason":"asked"}\n')
            worker.stdin.write(b'{"type":"stop","deadline":"2027-03-14T18:00:30.000Z"}\n')
            worker.stdin.flush()
            self.assertEqual(worker.stderr.readline(), b"has read the cancel\n")
            kinds = [json.loads(line)["type"] for line in worker.stdout]
            self.assertEqual(worker.wait(30), 0)
        self.assertEqual({kind: kinds.count(kind) for kind in kinds}, {"begin": 1, "pong": 1, "log": 300, "done": 2})


class Cancel(WorkerTest):
    def test_a_cancel_sets_the_token_with_its_reason(self):
        duly = self.simple(
            """
            assert run.cancelled.wait()
            run.log("info", run.cancelled.reason)
            run.cancelled.raise_if_set()
            """
        )
        for run, reason in enumerate(("asked", "timeout", "shutdown")):
            duly.start(run)
            duly.expect("begin")
            duly.send(type="cancel", run=run, attempt=1, reason=reason)
            duly.expect("log", text=reason)
            self.assertNotIn("retry", duly.expect("failed", run=run, error=f"cancelled: {reason}"))

    def test_a_cancel_for_an_unknown_attempt_is_ignored(self):
        duly = self.simple("return run.cancelled.wait(0)")
        duly.send(type="cancel", run=1, attempt=1, reason="asked")
        duly.start(1)
        duly.expect("begin")
        duly.expect("done", result=False)
        duly.send(type="cancel", run=1, attempt=1, reason="asked")
        duly.start(1, attempt=2)
        duly.expect("begin")
        duly.expect("done", attempt=2, result=False)
        duly.stop()

    def test_a_cancel_with_the_run_itself(self):
        duly = self.simple("return run.cancelled.wait()")
        cancel = json.dumps({"type": "cancel", "run": 1, "attempt": 1, "reason": "asked"}).encode() + b"\n"
        duly.send_bytes(duly.run_line(1) + cancel)
        last = duly.next()
        if last["type"] == "begin":
            duly.expect("done", result=True)
        else:
            self.assertEqual((last["type"], last["error"]), ("failed", "cancelled: asked"))
        duly.stop()


class Errors(WorkerTest):
    def error(self, body, **keys):
        duly = self.simple(body)
        duly.start(1)
        duly.expect("begin")
        return duly.failed(**keys)

    def test_an_exception_has_type_message_and_place(self):
        error = self.error("raise ValueError('no paper')", retry=None)
        self.assertRegex(error, r"^ValueError: no paper \(.*\.py:\d+ in work\)$")
        error = self.error("raise KeyError('x') from OSError('disk')")
        self.assertRegex(error, r"^KeyError: 'x' \(.* in work\), caused by OSError: disk$")

    def test_the_stack_is_a_log_line_of_the_level_debug(self):
        duly = self.simple("raise ValueError('no paper')")
        duly.start(1)
        lines = [json.loads(duly.lines.get(timeout=30)) for _ in range(3)]
        self.assertEqual([line["type"] for line in lines], ["begin", "log", "failed"])
        self.assertIn("Traceback", lines[1]["text"])

    def test_give_up_skip_and_retry_after(self):
        self.assertEqual(self.error("raise GiveUp('no such user')", retry=False), "no such user")
        self.assertEqual(self.error("raise RetryAfter('90s', 'busy')", retry="1m 30s"), "busy")
        self.assertEqual(self.error("raise Skip('no new mail')", retry="skip"), "no new mail")
        delay = "import datetime; raise RetryAfter(datetime.timedelta(hours=25, milliseconds=7))"
        self.assertEqual(self.error(delay, retry="1d 1h 7ms"), "to be retried after 1d 1h 7ms")
        for wrong in ("'soon'", "''", "'30'", "'0s'", "'11000d'", "'1s,'"):
            self.assertIn("ValueError: expected a duration", self.error(f"raise RetryAfter({wrong})", retry=None))

    def test_results_that_are_not_json(self):
        for value, reason in {
            "object()": "not JSON serializable",
            "float('nan')": "not JSON compliant",
            "'\\ud800'": "surrogates",
            "{1, 2}": "a set that is not JSON",
        }.items():
            self.assertIn(reason, self.error(f"return {value}", retry=False))

    def test_a_result_over_the_limit_of_a_line(self):
        error = self.error("return 'ü' * 600_000", retry=False)
        self.assertIn("longer than 1 MiB", error)

    def test_a_result_that_just_fits(self):
        duly = self.simple("return 'x' * run.payload")
        empty = len('{"type":"done","run":1,"attempt":1,"result":""}\n')
        duly.start(1, payload=1_048_576 - empty)
        duly.expect("begin")
        self.assertEqual(len(duly.expect("done")["result"]), 1_048_576 - empty)
        duly.start(1, payload=1_048_577 - empty)
        duly.expect("begin")
        duly.failed(retry=False)

    def test_long_texts_are_cut(self):
        duly = self.simple("run.progress('\\0' * 2_000_000); raise ValueError('\\1' * 2_000_000)")
        duly.start(1)
        duly.expect("begin")
        self.assertTrue(duly.expect("progress")["text"].endswith(".. (1934464 more characters)"))
        self.assertLess(len(duly.failed()), 70_000)

    def test_sys_exit_and_unreadable_exceptions_fail_the_attempt(self):
        self.assertIn("SystemExit: 3", self.error("sys.exit(3)"))
        source = "class Odd(Exception):\n    def __str__(self): raise KeyError\nraise Odd()"
        self.assertIn("its text cannot be read", self.error(source))


class Ends(WorkerTest):
    def test_stop_waits_for_the_runs(self):
        duly = self.simple("run.cancelled.wait(); return 1", concurrency=2)
        duly.start(1)
        duly.expect("begin")
        duly.send(type="stop", deadline="2027-03-14T18:00:30.000Z")
        duly.send(type="cancel", run=1, attempt=1, reason="shutdown")
        duly.expect("done", result=1)
        self.assertEqual(duly.code(), 0)

    def test_the_end_of_input_ends_the_worker_at_once(self):
        duly = self.simple("threading.Event().wait()", concurrency=2)
        duly.start(1)
        duly.expect("begin")
        duly.process.stdin.close()
        self.assertEqual(duly.code(), 1)
        self.assertIn("the scheduler has gone, and 1 runs are cut short", duly.stderr())

    def test_the_end_of_input_without_a_run(self):
        duly = self.simple("pass")
        duly.process.stdin.close()
        self.assertEqual((duly.code(), duly.stderr()), (0, ""))

    def test_a_closed_output_ends_the_worker(self):
        source = HEAD + "duly.run_worker({'work': lambda run: None})"
        program = [sys.executable, "-c", source]
        pipe = subprocess.PIPE
        with subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, env=environment()) as worker:
            worker.stdout.readline()
            worker.stdout.close()
            worker.stdin.write(b'{"type":"ping"}\n')
            worker.stdin.flush()
            self.assertIn(b"the scheduler does not read any more", worker.stderr.read())
            self.assertEqual(worker.wait(30), 1)

    def test_sigterm_ends_the_worker(self):
        duly = self.simple("threading.Event().wait()")
        duly.start(1)
        duly.expect("begin")
        duly.process.send_signal(signal.SIGTERM)
        self.assertEqual(duly.code(), -signal.SIGTERM)

    def test_an_interrupt_ends_the_worker(self):
        duly = self.simple("threading.Event().wait()")
        duly.start(1)
        duly.expect("begin")
        duly.process.send_signal(signal.SIGINT)
        self.assertEqual(duly.code(), -signal.SIGINT)

    def test_the_program_may_clean_up_after_the_end_of_input(self):
        duly = self.worker(
            """
            duly.run_worker({"work": lambda run: None})
            print("returned", file=sys.stderr)
            for thread in threading.enumerate():
                if thread.name == "duly-reader":
                    thread.join()
            print("cleaned up", file=sys.stderr)
            """
        )
        duly.send(type="stop", deadline="2027-03-14T18:00:30.000Z")
        duly.said("returned")
        duly.process.stdin.close()
        duly.said("cleaned up")
        self.assertEqual(duly.code(), 0)

    def test_tasks_that_a_handler_leaves_end_with_the_loop(self):
        duly = self.simple("duly.left = asyncio.ensure_future(asyncio.sleep(1000))", kind="async def")
        duly.start(1)
        duly.expect("begin")
        duly.expect("done")
        duly.stop()
        self.assertEqual(duly.stderr(), "")

    def test_the_worker_returns_after_stop(self):
        duly = self.worker(
            """
            duly.run_worker({"work": lambda run: None})
            print("after"); sys.stdout.flush()
            """
        )
        duly.send(type="stop", deadline="2027-03-14T18:00:30.000Z")
        self.assertEqual(duly.code(), 0)
        self.assertIn("after", duly.stderr())

    def test_garbage_ends_the_worker_with_a_reason(self):
        for raw, reason in {
            b"hello\n": "expected a JSON object, found 'hello'",
            b"[1]\n": "expected a JSON object with a type",
            b'{"type":7}\n': "expected a JSON object with a type",
            b'{"type":"\xff"}\n': "expected a JSON object",
            b'{"type":"ping","x":NaN}\n': "NaN is not JSON",
            b'{"type":"dance"}\n': "found 'dance'",
            b'{"type":"welcome","protocol":1,"worker":"w","copy":1,"database":"x"}\n': "found 'welcome'",
            b'{"type":"run","run":"1"}\n': "expected an integer run in 'run', found '1'",
            b'{"type":"run","run":true}\n': "expected an integer run in 'run', found 'True'",
            b'{"type":"cancel","run":1,"attempt":1}\n': "expected a text reason",
            b"x" * 1_048_576: "at most 1048576 bytes",
            b"[" * 1_000_000 + b"\n": "expected a JSON object",
        }.items():
            with self.subTest(raw=raw[:60]):
                duly = self.simple("pass")
                try:
                    duly.send_bytes(raw)
                except BrokenPipeError:
                    pass
                self.assertEqual(duly.code(), 1)
                self.assertIn(reason, duly.stderr())

    def test_wrong_runs_end_the_worker_with_a_reason(self):
        duly = self.simple("run.cancelled.wait()", concurrency=2)
        duly.start(1)
        duly.start(1)
        self.assertEqual(duly.code(), 1)
        self.assertIn("found attempt 1 of run 1 twice", duly.stderr())
        for more, reason in (
            ({"handler": "other"}, "one of the handlers, found 'other'"),
            ({"scheduled_for": "today"}, "expected a time scheduled_for"),
            ({"scheduled_for": "2027-03-14T06:00:00"}, "with an offset"),
        ):
            duly = self.simple("pass")
            duly.start(1, **more)
            self.assertEqual(duly.code(), 1)
            self.assertIn(reason, duly.stderr())

    def test_an_error_of_the_scheduler_and_another_protocol(self):
        duly = self.simple("pass")
        duly.send(type="error", error="a second hello")
        self.assertEqual(duly.code(), 1)
        self.assertIn("the scheduler ends this worker: a second hello", duly.stderr())
        for first, reason in (
            ({"type": "welcome", "protocol": 2, "database": "x"}, "expected protocol 1, found 2"),
            ({"type": "run", "run": 1}, "found 'run'"),
        ):
            duly = self.worker("duly.run_worker({'work': print})", hello=False)
            duly.expect("hello")
            duly.send(**first)
            self.assertEqual(duly.code(), 1)
            self.assertIn(reason, duly.stderr())

    def test_a_worker_that_cannot_start(self):
        for source, reason in (
            ("Worker(0)", "expected a concurrency of 1 to 1000, found 0"),
            ("Worker('4')", "expected a whole number"),
            ("Worker().run()", "expected 1 to 1000 handlers, found 0"),
            ("duly.run_worker({'': print})", "expected a text as the name"),
            ("duly.run_worker({'a': 7})", "expected a function as handler 'a'"),
            ("w = Worker(); w.add_handler('a', print); w.add_handler('a', print)", "has a handler with this name"),
            ("Worker().add_handler('\u00e9' * 101, print)", "expected 1 to 200 bytes"),
            ("Worker().add_handler('a\\nb', print)", "without control characters or U+FFFD as the name of a handler, found 'a\\nb'"),
        ):
            duly = self.worker(source, hello=False)
            self.assertEqual(duly.code(), 1)
            self.assertIn(reason, duly.stderr())
