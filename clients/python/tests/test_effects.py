"""Effects, in threads and on the asyncio loop."""

from fake import WorkerTest


class Effects(WorkerTest):
    def effect(self, f="f", look_up=None, kind="def"):
        """Starts a run whose handler performs one effect. Returns the scheduler and the question."""
        call = f"('send', {f}, {look_up})"
        call = "run.effect" + call if kind == "def" else "await run.effect_async" + call
        body = f"""
            {kind} f():
                run.log("info", "performed")
                return {{"id": 7}}
            {kind} broken():
                run.log("info", "performed")
                raise OSError("no network")
            {kind} absent():
                return None
            {kind} found():
                return Performed("message 9")
            {kind} wrong():
                return "message 9"
            {kind} exits():
                raise KeyboardInterrupt
            return {call}
            """
        duly = self.simple(body, kind="async def" if kind != "def" else "def")
        duly.start(1)
        duly.expect("begin")
        return duly, duly.expect("effect_begin", run=1, attempt=1, key="send")

    def variants(self):
        for kind in ("def", "async def"):
            with self.subTest(kind):
                yield kind

    def test_an_effect_is_performed_between_two_messages(self):
        for kind in self.variants():
            duly, asked = self.effect(kind=kind)
            duly.answer(asked, "begin")
            duly.expect("log", text="performed")
            duly.answer(duly.expect("effect_done", key="send", value={"id": 7}), "stored")
            duly.expect("done", result={"id": 7})
            duly.stop()

    def test_an_effect_that_was_performed_is_not_repeated(self):
        for kind in self.variants():
            duly, asked = self.effect(kind=kind)
            duly.answer(asked, "done", value=[1])
            duly.expect("done", result=[1])

    def test_a_failed_effect_was_not_performed(self):
        for kind in self.variants():
            duly, asked = self.effect("broken", kind=kind)
            duly.answer(asked, "begin")
            duly.expect("log", text="performed")
            duly.answer(duly.expect("effect_failed", key="send"), "undone")
            self.assertIn("OSError: no network", duly.failed(retry=None))

    def test_an_intent_that_cannot_be_removed_is_reported(self):
        for kind in self.variants():
            duly, asked = self.effect("broken", kind=kind)
            duly.answer(asked, "begin")
            duly.expect("log", text="performed")
            duly.answer(duly.expect("effect_failed", key="send"), "refused", error="disk full")
            text = "effect 'send' has failed, and is in doubt all the same: disk full"
            duly.expect("log", level="warn", text=text)
            self.assertIn("OSError: no network", duly.failed(retry=None))

    def test_a_refusal_fails_the_attempt(self):
        for kind in self.variants():
            duly, asked = self.effect(kind=kind)
            duly.answer(asked, "refused", error="the attempt was taken")
            self.assertIn("cannot begin effect 'send': the attempt was taken", duly.failed(retry=None))

            duly, asked = self.effect(kind=kind)
            duly.answer(asked, "begin")
            duly.expect("log", text="performed")
            duly.answer(duly.expect("effect_done"), "refused", error="disk full")
            self.assertIn("was performed, and its value is not stored: disk full", duly.failed(retry=None))

    def test_an_unknown_state_fails_the_attempt(self):
        duly, asked = self.effect()
        duly.answer(asked, "maybe")
        self.assertIn("found the state 'maybe'", duly.failed())

    def test_in_doubt_without_look_up_gives_up(self):
        for kind in self.variants():
            duly, asked = self.effect(kind=kind)
            duly.answer(asked, "in_doubt")
            self.assertIn("effect 'send' is in doubt", duly.failed(retry=False))

    def test_look_up_finds_the_value(self):
        for kind in self.variants():
            duly, asked = self.effect(look_up="found", kind=kind)
            duly.answer(asked, "in_doubt")
            duly.answer(duly.expect("effect_done", value="message 9"), "stored")
            duly.expect("done", result="message 9")

    def test_look_up_finds_that_it_was_not_performed(self):
        for kind in self.variants():
            duly, asked = self.effect(look_up="absent", kind=kind)
            duly.answer(asked, "in_doubt")
            duly.expect("log", text="performed")
            duly.answer(duly.expect("effect_done", value={"id": 7}), "stored")
            duly.expect("done", result={"id": 7})

    def test_look_up_is_not_called_without_a_doubt(self):
        for kind in self.variants():
            duly, asked = self.effect(look_up="broken", kind=kind)
            duly.answer(asked, "done", value=1)
            duly.expect("done", result=1)

    def test_a_broken_look_up_leaves_the_effect_in_doubt(self):
        for kind in self.variants():
            duly, asked = self.effect(look_up="broken", kind=kind)
            duly.answer(asked, "in_doubt")
            duly.expect("log", text="performed")
            self.assertIn("OSError: no network", duly.failed(retry=None))

            duly, asked = self.effect(look_up="wrong", kind=kind)
            duly.answer(asked, "in_doubt")
            self.assertIn("expected Performed(value) or None from look_up, found str", duly.failed(retry=False))

    def test_an_interruption_leaves_the_effect_in_doubt(self):
        for kind in self.variants():
            duly, asked = self.effect("exits", kind=kind)
            duly.answer(asked, "begin")
            self.assertIn("KeyboardInterrupt", duly.failed(retry=None))

    def test_values_that_cannot_be_stored(self):
        for value, reason in (("object()", "its value is not JSON"), ("'x' * 2_000_000", "longer than 1 MiB")):
            duly, asked = self.effect(f"lambda: {value}")
            duly.answer(asked, "begin")
            self.assertIn(reason, duly.failed(retry=None))

    def test_keys_that_are_refused(self):
        for key in ("''", "'ü' * 101", "7"):
            duly = self.simple(f"run.effect({key}, print)")
            duly.start(1)
            duly.expect("begin")
            self.assertIn("expected a", duly.failed(retry=None))

    def test_several_effects_at_once_in_an_attempt(self):
        duly = self.simple(
            """
            async def one(key):
                return await run.effect_async(key, lambda: key)
            return await asyncio.gather(one("a"), one("b"), one("a"))
            """,
            kind="async def",
        )
        duly.start(1)
        duly.expect("begin")
        asked = duly.expect_all(3)
        self.assertEqual([message["key"] for message in asked], ["a", "b", "a"])
        for message, value in zip(asked, (1, 2, 3)):
            duly.answer(message, "done", value=value)
        duly.expect("done", result=[1, 2, 3])

    def test_an_answer_after_the_end_is_ignored(self):
        duly = self.simple(
            """
            def perform():
                try:
                    run.effect("send", print)
                except duly.EffectRefused as error:
                    print(error)
                    sys.stdout.flush()
            thread = threading.Thread(target=perform, daemon=True)
            thread.start()
            run.cancelled.wait()
            """
        )
        duly.start(1)
        duly.expect("begin")
        asked = duly.expect("effect_begin")
        duly.send(type="cancel", run=1, attempt=1, reason="asked")
        duly.expect("done")
        duly.said("cannot begin effect 'send': its attempt has ended")
        duly.answer(asked, "begin")
        duly.stop()

    def test_a_cancelled_task_waits_for_the_answer_and_undoes_the_intent(self):
        duly, asked = self.effect(kind="async def")
        duly.send(type="cancel", run=1, attempt=1, reason="timeout")
        duly.answer(asked, "begin")
        duly.answer(duly.expect("effect_failed", key="send"), "undone")
        duly.expect("failed", error="cancelled: timeout")

    def test_a_task_cancelled_in_its_effect_leaves_it_in_doubt(self):
        duly, asked = self.effect("lambda: asyncio.sleep(1000)", kind="async def")
        duly.answer(asked, "begin")
        duly.send(type="ping")
        duly.expect("pong")
        duly.send(type="cancel", run=1, attempt=1, reason="timeout")
        last = duly.next()
        # The cancel may come before the effect was called.
        if last["type"] == "effect_failed":
            duly.answer(last, "undone")
            last = duly.next()
        self.assertEqual((last["type"], last["error"]), ("failed", "cancelled: timeout"))

    def test_a_cancelled_task_stores_what_it_has_performed(self):
        duly, asked = self.effect(kind="async def")
        duly.answer(asked, "begin")
        duly.expect("log", text="performed")
        done = duly.expect("effect_done")
        duly.send(type="cancel", run=1, attempt=1, reason="timeout")
        duly.send(type="ping")
        duly.expect("pong")
        duly.answer(done, "stored")
        duly.expect("failed", error="cancelled: timeout")


class AsyncHandlers(WorkerTest):
    def test_many_at_once(self):
        duly = self.simple("await asyncio.sleep(0); return run.run_id", concurrency=500, kind="async def")
        duly.send_bytes(b"".join(duly.run_line(run) for run in range(500)))
        found = duly.expect_all(1000)
        self.assertEqual([m["run"] for m in found if m["type"] == "begin"], list(range(500)))
        self.assertEqual({m["result"] for m in found if m["type"] == "done"}, set(range(500)))
        duly.stop()

    def test_a_cancel_cancels_the_task(self):
        duly = self.simple("await asyncio.Event().wait()", kind="async def")
        duly.start(1)
        duly.expect("begin")
        duly.send(type="cancel", run=1, attempt=1, reason="timeout")
        self.assertNotIn("retry", duly.expect("failed", run=1, error="cancelled: timeout"))

    def test_a_task_that_is_cancelled_may_succeed(self):
        duly = self.simple(
            """
            try:
                run.progress("waits")
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return run.cancelled.reason
            """,
            kind="async def",
        )
        duly.start(1)
        duly.expect("begin")
        # Cancelled before its first step, a task of asyncio never enters `try`.
        duly.expect("progress", text="waits")
        duly.send(type="cancel", run=1, attempt=1, reason="shutdown")
        duly.expect("done", result="shutdown")
        duly.stop()

    def test_a_cancel_with_the_run_itself(self):
        duly = self.simple("await asyncio.Event().wait()", kind="async def")
        duly.send_bytes(duly.run_line(1) + b'{"type":"cancel","run":1,"attempt":1,"reason":"asked"}\n')
        last = duly.next()
        if last["type"] == "begin":
            last = duly.next()
        self.assertEqual((last["type"], last["error"]), ("failed", "cancelled: asked"))
        duly.stop()

    def test_errors(self):
        for body, error in (
            ("raise ValueError('no')", "ValueError: no"),
            ("sys.exit(3)", "the handler has raised SystemExit, caused by SystemExit: 3"),
            ("raise asyncio.CancelledError()", "the task of the handler was cancelled"),
            ("return object()", "not JSON serializable"),
            ("run.effect('a', print)", "would block the event loop: use effect_async"),
        ):
            duly = self.simple(body, kind="async def")
            duly.start(1)
            duly.expect("begin")
            self.assertIn(error, duly.failed())
            duly.start(2)
            duly.expect("begin", run=2)

    def test_threads_and_tasks_in_one_worker(self):
        duly = self.worker(
            """
            import functools
            worker = Worker(concurrency=2)
            @worker.handler("thread")
            def thread(run):
                return threading.current_thread().name
            @worker.handler("task")
            async def task(run):
                return threading.current_thread().name
            class Callable:
                async def __call__(self, run):
                    return threading.current_thread().name
            worker.add_handler("object", Callable())
            worker.add_handler("partial", functools.partial(task))
            worker.run()
            """
        )
        self.assertEqual(duly.hello["handlers"], ["thread", "task", "object", "partial"])
        loop = "duly-loop"
        for handler, name in (("thread", "duly-1"), ("task", loop), ("object", loop), ("partial", loop)):
            duly.start(1, handler)
            duly.expect("begin")
            duly.expect("done", result=name)
        duly.stop()
