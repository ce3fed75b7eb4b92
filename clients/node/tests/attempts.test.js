// Cancels and effects.

import assert from "node:assert/strict";
import test from "node:test";

import { FakeDuly } from "./support/fake_duly.js";

function cancel(duly, run, reason = "asked", attempt = 1) {
  duly.send({ type: "cancel", run, attempt, reason });
}

test("a cancel aborts the signal of its attempt alone", async () => {
  for (const reason of ["asked", "timeout", "shutdown"]) {
    const duly = await FakeDuly.handling(`(run) => new Promise((_, reject) => {
      run.signal.addEventListener("abort", () => reject(run.signal.reason));
    })`);
    duly.run(1);
    duly.run(2);
    await duly.all("begin", "begin");
    cancel(duly, 2, reason);
    assert.deepEqual(await duly.next("failed"), {
      type: "failed", run: 2, attempt: 1, error: `stopped after a cancel: ${reason}`, retry: true,
    });
    cancel(duly, 1);
    await duly.next("failed");
    await duly.stop();
  }
});

test("a signal that is read after the cancel is aborted", async () => {
  const duly = await FakeDuly.handling(`async (run) => {
    await new Promise((resolve) => setTimeout(resolve, 100));
    return [run.signal.aborted, run.signal.reason];
  }`);
  duly.run(1);
  await duly.next("begin");
  cancel(duly, 1, "timeout");
  assert.deepEqual((await duly.next("done")).result, [true, "timeout"]);
  await duly.stop();
});

test("an attempt that is cancelled before its handler was called does not call it", async () => {
  // The first handler keeps the loop busy, so that the second attempt and its cancel are read together.
  const duly = await FakeDuly.handling(`(run) => {
    console.error("called", run.run);
    const until = Date.now() + 200;
    while (Date.now() < until);
  }`);
  duly.run(1);
  await duly.next("begin");
  duly.run(2);
  cancel(duly, 2);
  await duly.next("done");
  assert.deepEqual(await duly.next("failed"), {
    type: "failed", run: 2, attempt: 1, error: "cancelled before it began: asked", retry: true,
  });
  await duly.stop();
  assert.equal(duly.stderr, "called 1\n");
});

test("a cancel for an attempt that has ended or never was is ignored", async () => {
  const duly = await FakeDuly.handling(`() => {}`);
  duly.run(1);
  await duly.all("begin", "done");
  cancel(duly, 1);
  cancel(duly, 1, "timeout", 2);
  cancel(duly, 99);
  duly.run(2);
  await duly.all("begin", "done");
  await duly.stop();
});

test("an effect is performed between its two messages", async () => {
  const duly = await FakeDuly.handling(`async (run) => {
    const value = await run.effect("send", async () => { console.error("sent"); return { id: 7 } });
    return [value, await run.effect("empty", () => {})];
  }`);
  duly.run(1);
  await duly.next("begin");
  assert.deepEqual(await duly.next("effect_begin"), { type: "effect_begin", run: 1, attempt: 1, key: "send" });
  assert.equal(duly.stderr, "");
  duly.answer(1, "send", "begin");
  assert.deepEqual(await duly.next("effect_done"), { type: "effect_done", run: 1, attempt: 1, key: "send", value: { id: 7 } });
  duly.answer(1, "send", "stored");
  await duly.next("effect_begin");
  duly.answer(1, "empty", "begin");
  assert.equal((await duly.next("effect_done")).value, null);
  duly.answer(1, "empty", "stored");
  assert.deepEqual((await duly.next("done")).result, [{ id: 7 }, null]);
  assert.equal(duly.stderr, "sent\n");
  await duly.stop();
});

test("an effect that is done is not performed", async () => {
  const duly = await FakeDuly.handling(`(run) => run.effect("send", () => { console.error("sent again") })`);
  duly.run(1);
  await duly.all("begin", "effect_begin");
  duly.answer(1, "send", "done", { value: "message 7" });
  assert.equal((await duly.next("done")).result, "message 7");
  await duly.stop();
  assert.equal(duly.stderr, "");
});

test("an effect that fails is undone, and its error is that of the attempt", async () => {
  for (const state of ["undone", "refused"]) {
    const duly = await FakeDuly.handling(`(run) => run.effect("send", () => { throw new GiveUp("no such chat") })`);
    duly.run(1);
    await duly.all("begin", "effect_begin");
    duly.answer(1, "send", "begin");
    await duly.next("effect_failed");
    duly.answer(1, "send", state, { error: "the disk is full" });
    if (state === "refused") assert.match((await duly.next("log")).text, /"send" failed, and stays in doubt: the disk is full/);
    const failed = await duly.next("failed");
    assert.deepEqual([failed.error, failed.retry], ["no such chat", false]);
    await duly.stop();
  }
});

test("an effect in doubt gives up, unless it can be looked up", async () => {
  const blind = await FakeDuly.handling(`(run) => run.effect("send", () => console.error("sent"))`);
  blind.run(1);
  await blind.all("begin", "effect_begin");
  blind.answer(1, "send", "in_doubt");
  const failed = await blind.next("failed");
  assert.match(failed.error, /^effect "send" is in doubt/);
  assert.equal(failed.retry, false);
  await blind.stop();
  assert.equal(blind.stderr, "");

  for (const [found, value, performed] of [["7", 7, ""], ["null", null, ""], ["undefined", 8, "sent\n"]]) {
    const duly = await FakeDuly.handling(
      `(run) => run.effect("send", () => { console.error("sent"); return 8 }, { lookUp: async () => ${found} })`,
    );
    duly.run(1);
    await duly.all("begin", "effect_begin");
    duly.answer(1, "send", "in_doubt");
    assert.equal((await duly.next("effect_done")).value, value);
    duly.answer(1, "send", "stored");
    assert.equal((await duly.next("done")).result, value);
    await duly.stop();
    assert.equal(duly.stderr, performed);
  }

  // A look-up that fails leaves it in doubt: no message about it.
  const unknown = await FakeDuly.handling(`(run) => run.effect("send", () => 8, { lookUp() { throw new Error("no network") } })`);
  unknown.run(1);
  await unknown.all("begin", "effect_begin");
  unknown.answer(1, "send", "in_doubt");
  await unknown.next("log");
  assert.equal((await unknown.next("failed")).error, "no network");
  await unknown.stop();
});

test("a refused effect fails the attempt", async () => {
  const early = await FakeDuly.handling(`(run) => run.effect("send", () => console.error("sent"))`);
  early.run(1);
  await early.all("begin", "effect_begin");
  early.answer(1, "send", "refused", { error: "the attempt was taken" });
  await early.next("log");
  assert.match((await early.next("failed")).error, /effect "send" is refused: the attempt was taken/);
  await early.stop();
  assert.equal(early.stderr, "");

  const late = await FakeDuly.handling(`(run) => run.effect("send", () => 1)`);
  late.run(1);
  await late.all("begin", "effect_begin");
  late.answer(1, "send", "begin");
  await late.next("effect_done");
  late.answer(1, "send", "refused", { error: "the disk is full" });
  await late.next("log");
  assert.match((await late.next("failed")).error, /the disk is full/);
  await late.stop();
});

test("wrong uses of effects are refused without a message", async () => {
  const cases = [
    [`run.effect("", () => 1)`, /1 to 200 bytes/, false],
    [`run.effect("é".repeat(101), () => 1)`, /1 to 200 bytes/, false],
    [`run.effect(7, () => 1)`, /1 to 200 bytes/, false],
    [`run.effect("send")`, /expected a function/, true],
  ];
  for (const [call, expected, retry] of cases) {
    const duly = await FakeDuly.handling(`(run) => ${call}`);
    duly.run(1);
    await duly.next("begin");
    await duly.until(() => duly.messages.some(({ type }) => type === "failed"), "a failure");
    const failed = duly.messages.pop();
    assert.match(failed.error, expected);
    assert.equal(failed.retry, retry);
    duly.messages = [];
    await duly.stop();
  }
});

test("the same effect at once is refused, others are performed at once", async () => {
  const duly = await FakeDuly.handling(`async (run) => {
    const ends = await Promise.allSettled(["a", "b", "a"].map((key) => run.effect(key, () => key)));
    return ends.map((end) => end.value ?? end.reason.message);
  }`);
  duly.run(1);
  const [, one, two] = await duly.all("begin", "effect_begin", "effect_begin");
  assert.deepEqual([one.key, two.key], ["a", "b"]);
  for (const key of ["a", "b"]) duly.answer(1, key, "begin");
  await duly.all("effect_done", "effect_done");
  for (const key of ["a", "b"]) duly.answer(1, key, "stored");
  assert.deepEqual((await duly.next("done")).result, ["a", "b", 'effect "a" is refused: this attempt is performing it already']);
  await duly.stop();
});

test("an attempt ends after the effects that its handler did not wait for", async () => {
  for (const [body, type] of [["return 1", "done"], [`throw new GiveUp("enough")`, "failed"]]) {
    const duly = await FakeDuly.handling(`(run) => { run.effect("send", () => 7); ${body} }`);
    duly.run(1);
    await duly.all("begin", "effect_begin");
    duly.answer(1, "send", "begin");
    await duly.next("effect_done");
    duly.answer(1, "send", "stored");
    await duly.next(type);
    await duly.stop();
  }
});

test("nothing is sent about an attempt that has ended", async () => {
  const duly = await FakeDuly.handling(`(run) => {
    setTimeout(async () => {
      run.progress("late");
      run.log.info("late");
      await run.effect("late", () => 1).catch((error) => run.log.warn(error.message));
    }, 50);
  }`);
  duly.run(1);
  await duly.all("begin", "done");
  assert.deepEqual(await duly.next("log"), { type: "log", level: "info", text: "late" });
  assert.match((await duly.next("log")).text, /its attempt has ended/);
  await duly.stop();
});

test("an effect whose value is no JSON or too long is reported as performed and in doubt", async () => {
  for (const [value, expected, retry] of [["10n", /cannot be written as JSON/, false], [`"x".repeat(1 << 20)`, /longer than a message/, false]]) {
    const duly = await FakeDuly.handling(`(run) => run.effect("send", () => ${value})`);
    duly.run(1);
    await duly.all("begin", "effect_begin");
    duly.answer(1, "send", "begin");
    const failed = await duly.next("failed");
    assert.match(failed.error, expected);
    assert.equal(failed.retry, retry);
    await duly.stop();
  }
});
