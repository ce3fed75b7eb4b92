// Bytes: limits, chunks, a pipe that is full, and the standard output of the application.

import assert from "node:assert/strict";
import test from "node:test";

import { Lines } from "../src/lines.js";
import { FakeDuly, runMessage } from "./support/fake_duly.js";

test("what the application prints goes to stderr", async () => {
  const duly = await FakeDuly.handling(`() => { console.log("hello"); process.stdout.write("world\\n"); console.error("log") }`);
  duly.run(1);
  await duly.all("begin", "done");
  await duly.stop();
  assert.equal(duly.stderr, "hello\nworld\nlog\n");
});

test("texts and payloads keep every character, wherever a chunk ends", async () => {
  const text = "é€😀\u0000\u2028\"\\\n end";
  const duly = await FakeDuly.handling(`(run) => { run.progress(run.payload); return run.payload }`);
  const bytes = Buffer.from(`${JSON.stringify(runMessage(1, text))}\n`);
  for (let at = 0; at < bytes.length; at += 1) {
    duly.write(bytes.subarray(at, at + 1));
    if (at % 16 === 0) await new Promise((resolve) => setImmediate(resolve));
  }
  const [, progress, done] = await duly.all("begin", "progress", "done");
  assert.equal(progress.text, text);
  assert.equal(done.result, text);
  await duly.stop();

  const whole = Buffer.from(`${text.replace("\n", "")}\n\nnext\nrest`);
  for (let cut = 0; cut <= whole.length; cut += 1) {
    for (let other = cut; other <= whole.length; other += 1) {
      const lines = new Lines();
      const found = [whole.subarray(0, cut), whole.subarray(cut, other), whole.subarray(other)].flatMap((part) => lines.push(part));
      assert.deepEqual(found, [text.replace("\n", ""), "", "next"]);
      assert.ok(lines.unfinished);
    }
  }
});

test("the longest message is read, in time that grows with its length", () => {
  const line = Buffer.alloc(1024 * 1024, "x");
  line[line.length - 1] = 10;
  const lines = new Lines();
  const found = [];
  for (let at = 0; at < line.length; at += 16) found.push(...lines.push(line.subarray(at, at + 16)));
  assert.deepEqual(found.map((text) => text.length), [1024 * 1024 - 1]);
  assert.throws(() => new Lines().push(Buffer.alloc(1024 * 1024, "x")), /more than 1048576 bytes/);
});

test("a result that no message can hold fails the attempt, the longest that one can is sent", async () => {
  const duly = await FakeDuly.handling(`(run) => run.payload.repeat(run.attempt)`);
  const most = 1024 * 1024 - '{"type":"done","run":1,"attempt":1048539,"result":""}\n'.length;
  duly.run(1, "x", { attempt: most });
  const [, done] = await duly.all("begin", "done");
  assert.equal(done.result.length, most);
  for (const payload of ["x", "é"]) {
    duly.run(1, payload, { attempt: most + 1 });
    const [, failed] = await duly.all("begin", "failed");
    assert.match(failed.error, /its result has \d+ bytes: return less/);
    assert.equal(failed.retry, false);
  }
  await duly.stop();
});

test("long texts are shortened", async () => {
  const duly = await FakeDuly.handling(`(run) => {
    const text = "\\u0001".repeat(1 << 20);
    run.progress(text);
    run.log.info(text);
    throw new GiveUp(text);
  }`);
  duly.run(1);
  const [, progress, log, failed] = await duly.all("begin", "progress", "log", "failed");
  for (const text of [progress.text, log.text, failed.error]) assert.match(text, /^\u0001{65536} \[shortened\]$/);
  await duly.stop();
});

test("lone surrogates in results become U+FFFD, and backslashes stay", async () => {
  const duly = await FakeDuly.handling(`() => ["\\ud83d", "\\ude00x", "😀", "\\\\ud83d", { "\\udc00": 1 }]`);
  duly.run(1);
  const [, done] = await duly.all("begin", "done");
  assert.deepEqual(done.result, ["\ufffd", "\ufffdx", "😀", "\\ud83d", { "\ufffd": 1 }]);
  await duly.stop();
});

test("progress of one turn of the loop is one message with the newest text, before the end", async () => {
  const duly = await FakeDuly.handling(`(run) => { for (let at = 0; at < 1000; at += 1) run.progress(at); return 1 }`);
  duly.run(1);
  const [, progress] = await duly.all("begin", "progress", "done");
  assert.equal(progress.text, "999");
  await duly.stop();
});

test("while duly does not read, input is read, progress replaces progress, log is dropped and ends are kept", async () => {
  const duly = await FakeDuly.handling(
    `async (run) => {
      if (run.payload === "end") return "ended";
      for (let at = 0; at < 2000; at += 1) {
        run.progress("p".repeat(1000) + at);
        run.log.info("l".repeat(1000));
        await new Promise((resolve) => setImmediate(resolve));
      }
      console.error("written", run.run);
      await new Promise((resolve) => run.signal.addEventListener("abort", resolve));
      console.error("aborted", run.run);
    }`,
    100,
  );
  duly.process.stdout.pause();
  duly.run(1);
  duly.run(2);
  for (let run = 3; run <= 50; run += 1) duly.run(run, "end");
  await duly.until(() => duly.stderr.match(/written/g)?.length === 2, "two handlers that go on");
  for (const run of [1, 2]) duly.send({ type: "cancel", run, attempt: 1, reason: "asked" });
  await duly.until(() => duly.stderr.match(/aborted/g)?.length === 2, "two cancels that are seen");
  duly.process.stdout.resume();
  await duly.until(() => duly.messages.filter(({ type }) => type === "done").length === 50, "50 ends");
  const count = (type) => duly.messages.filter((message) => message.type === type).length;
  assert.equal(count("begin"), 50);
  assert.ok(count("progress") < 1000, `${count("progress")} messages of progress`);
  for (const run of [1, 2]) {
    const newest = duly.messages.filter((message) => message.type === "progress" && message.run === run).at(-1);
    assert.ok(newest.text.endsWith("p1999"), newest.text.slice(-10));
  }
  const dropped = duly.messages.filter(({ text }) => /lines of log were dropped/.test(text));
  assert.ok(dropped.length > 0 && count("log") < 3000, `${count("log")} lines of log`);
  duly.messages = [];
  await duly.stop();
});

test("a worker whose reader is gone ends", async () => {
  const duly = await FakeDuly.handling(`() => {}`);
  duly.process.stdout.destroy();
  duly.run(1);
  duly.run(2);
  assert.equal(await duly.end(), 1);
  assert.match(duly.stderr, /cannot write to duly/);
});
