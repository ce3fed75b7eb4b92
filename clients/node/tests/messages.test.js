// The messages of docs/workers.md: what a handler sees, how its end is reported, and how a worker ends.

import assert from "node:assert/strict";
import test from "node:test";

import { FakeDuly, runMessage } from "./support/fake_duly.js";

test("a worker says hello, carries out a run and stops", async () => {
  const duly = await FakeDuly.start(`worker({ handlers: { mail: () => ({ sent: 1 }), report: async () => {} }, concurrency: 2 })`);
  assert.deepEqual(duly.hello, { type: "hello", protocol: 1, handlers: ["mail", "report"], concurrency: 2 });
  duly.run(81, { to: "anna" }, { handler: "mail" });
  assert.deepEqual(await duly.all("begin", "done"), [
    { type: "begin", run: 81, attempt: 1 },
    { type: "done", run: 81, attempt: 1, result: { sent: 1 } },
  ]);
  duly.run(82, null, { handler: "report" });
  await duly.next("begin");
  assert.deepEqual(await duly.next("done"), { type: "done", run: 82, attempt: 1 });
  await duly.stop();
});

test("a handler sees its run", async () => {
  const duly = await FakeDuly.handling(`(run) => [run.run, run.attempt, run.task, run.handler, run.payload,
    run.scheduledFor.getTime(), run.origin, run.idempotencyKey, run.deadline === null ? null : run.deadline.toISOString(),
    run.signal.aborted]`);
  duly.run(81, { to: "anna" }, { attempt: 3, deadline: "2027-03-14T06:01:00.000Z", origin: "manual", unknown: [1] });
  const [, done] = await duly.all("begin", "done");
  const time = Date.UTC(2027, 2, 14, 6);
  assert.deepEqual(done.result, [
    81, 3, "digest", "work", { to: "anna" }, time, "manual", "digest/2027-03-14T06:00:00Z", "2027-03-14T06:01:00.000Z", false,
  ]);
  assert.equal(done.attempt, 3);
  await duly.stop();
});

test("what a handler throws is reported, synchronous or not", async () => {
  const cases = [
    [`throw new Error("no paper")`, "no paper", true],
    [`throw new TypeError("not a date", { cause: new Error("it is a tree") })`, "TypeError: not a date: it is a tree", true],
    [`throw "a text"`, "a text", true],
    [`throw undefined`, "the handler threw undefined", true],
    [`throw { code: 7 }`, '{"code":7}', true],
    [`throw new GiveUp("no such user")`, "no such user", false],
    [`throw new Skip("no new mail")`, "no new mail", "skip"],
    [`throw new RetryAfter("1m 30s", "busy")`, "busy", "90000ms"],
    [`throw new RetryAfter(1500)`, "the handler asked for a later attempt", "1500ms"],
    [`throw new Error("half \\ud800 of a pair")`, "half \ufffd of a pair", true],
    [`return 10n`, "the handler returned, but its result cannot be written as JSON: TypeError: Do not know how to serialize a BigInt", false],
  ];
  for (const form of ["", "async "]) {
    for (const [body, error, retry] of cases) {
      const duly = await FakeDuly.handling(`${form}() => { ${body} }`);
      duly.run(7);
      await duly.next("begin");
      let failed = await duly.next(duly.messages[0]?.type ?? (await peek(duly)));
      if (failed.type === "log") {
        assert.deepEqual([failed.level, failed.run], ["debug", 7]);
        failed = await duly.next("failed");
      }
      assert.deepEqual(failed, { type: "failed", run: 7, attempt: 1, error, retry });
      await duly.stop();
    }
  }
});

async function peek(duly) {
  await duly.until(() => duly.messages.length > 0, "a message");
  return duly.messages[0].type;
}

test("a duration that duly would refuse is an ordinary error", async () => {
  for (const delay of [`"soon"`, `0`, `-1`, `1.5`, `NaN`, `"11years"`, `"0s"`, `"30"`, `1e15`, `undefined`]) {
    const duly = await FakeDuly.handling(`() => { throw new RetryAfter(${delay}, "busy") }`);
    duly.run(7);
    await duly.all("begin", "log");
    const failed = await duly.next("failed");
    assert.match(failed.error, /^TypeError: expected a duration/);
    assert.equal(failed.retry, true);
    await duly.stop();
  }
});

test("a ping is answered, also while a handler waits", async () => {
  const duly = await FakeDuly.handling(`() => new Promise(() => {})`);
  duly.run(1);
  await duly.next("begin");
  duly.send({ type: "ping" });
  duly.send({ type: "pong" });
  await duly.next("pong");
  duly.process.stdin.end();
  assert.equal(await duly.end(), 1);
});

test("attempts end in any order, and none begins beyond its predecessors' room", async () => {
  const duly = await FakeDuly.handling(`(run) => new Promise((resolve) => setTimeout(resolve, run.payload, run.payload))`, 3);
  [300, 150, 0].forEach((time, at) => duly.run(at, time));
  await duly.all("begin", "begin", "begin");
  assert.deepEqual((await duly.all("done", "done", "done")).map(({ run }) => run), [2, 1, 0]);
  // Room again, also for a later attempt of the same run.
  duly.run(0, 0, { attempt: 2 });
  assert.deepEqual((await duly.all("begin", "done")).map(({ attempt }) => attempt), [2, 2]);
  await duly.stop();
});

test("a stop lets runs finish, and waits for no timer of the application", async () => {
  const duly = await FakeDuly.handling(`(run) => new Promise((resolve) => { setInterval(() => {}, 1e6); setTimeout(resolve, 100) })`);
  duly.run(1);
  duly.run(2);
  await duly.all("begin", "begin");
  duly.send({ type: "stop", deadline: "2027-03-14T18:00:30.000Z" });
  await duly.all("done", "done");
  assert.equal(await duly.end(), 0);
});

test("after a stop the application can clean up", async () => {
  const duly = await FakeDuly.start(`await worker({ handlers: { work: () => {} } }); console.error("cleaned up")`);
  await duly.stop();
  assert.equal(duly.stderr, "cleaned up\n");
});

test("at the end of its input a worker ends at once", async () => {
  const duly = await FakeDuly.handling(`(run) => new Promise(() => {
    run.signal.addEventListener("abort", () => { console.error("reason:", run.signal.reason); });
    setInterval(() => {}, 1e6);
  })`);
  duly.run(1);
  await duly.next("begin");
  duly.process.stdin.end();
  assert.equal(await duly.end(), 1);
  assert.equal(duly.stderr, "reason: shutdown\n");

  const idle = await FakeDuly.handling(`() => {}`);
  idle.process.stdin.end();
  assert.equal(await idle.end(), 0);
});

test("an error of duly ends the worker with a message", async () => {
  const run = JSON.stringify(runMessage(1));
  const cases = [
    ["garbage", /a line that is no JSON: "garbage"/],
    ["[1]", /no JSON object/],
    ["null", /no JSON object/],
    ['{"type":"dance"}', /unknown type/],
    ['{"type":"constructor"}', /unknown type/],
    ["{}", /unknown type/],
    ['{"type":"cancel","run":1,"attempt":1,"reason":"why not"}', /"cancel" whose "reason" is missing or wrong/],
    ['{"type":"run","run":1}', /"run" whose "attempt" is missing/],
    ['{"type":"error","error":"a second hello"}', /duly ends this worker: a second hello/],
    ['{"type":"welcome","protocol":1,"worker":"m","copy":1,"database":"/d"}', /a second welcome/],
    ['{"type":"effect","run":1,"attempt":1,"key":"k","state":"done"}', /effect that was not asked for/],
    [run.replace('"work"', '"other"'), /has not named: "other"/],
    [`${run}\n${run}`, /has already/],
    [`${run}\n${run.replace('"run":1', '"run":2')}`, /beyond the concurrency of 1/],
    [Buffer.from([0x7b, 0xff, 0x7d]), /not UTF-8/],
    ["x".repeat(1024 * 1024), /more than 1048576 bytes/],
    [`${" ".repeat(1024 * 1024)}{"type":"ping"}`, /more than 1048576 bytes/],
  ];
  for (const [bytes, expected] of cases) {
    const duly = await FakeDuly.handling(`() => new Promise(() => {})`, 1);
    duly.write(bytes);
    duly.write("\n");
    assert.equal(await duly.end(), 1, String(bytes).slice(0, 100));
    assert.match(duly.stderr, expected);
    assert.match(duly.stderr, /^duly: .*\n$/);
  }
});

test("a worker that was not welcomed takes no run, and speaks protocol 1 alone", async () => {
  const early = new FakeDuly(`worker({ handlers: { work: () => {} } })`);
  await early.next("hello");
  early.run(1);
  assert.equal(await early.end(), 1);
  assert.match(early.stderr, /before its welcome/);

  const newer = new FakeDuly(`worker({ handlers: { work: () => {} } })`);
  await newer.next("hello");
  newer.send({ type: "welcome", protocol: 2, worker: "m", copy: 1, database: "/d" });
  assert.equal(await newer.end(), 1);
  assert.match(newer.stderr, /speaks protocol 2/);
});

test("empty lines and line ends of Windows are no messages", async () => {
  const duly = await FakeDuly.handling(`() => 1`);
  duly.write(`\n\r\n  \n${JSON.stringify(runMessage(1))}\r\n\n`);
  await duly.all("begin", "done");
  await duly.stop();
});

test("wrong options are errors of the application", async () => {
  const cases = [
    [`worker()`, /expected 1 to 1000 handlers/],
    [`worker({ handlers: {} })`, /expected 1 to 1000 handlers/],
    [`worker({ handlers: { work: 7 } })`, /handler "work" is no function/],
    [`worker({ handlers: { ["é".repeat(101)]: () => 1 } })`, /the name of a handler has 1 to 200 bytes/],
    [`worker({ handlers: { "a\\nb": () => 1 } })`, /without control characters or U\+FFFD, found "a\\nb"/],
    [`worker({ handlers: { work() {} }, concurrency: 0 })`, /concurrency of 1 to 1000, found 0/],
    [`worker({ handlers: { work() {} } }); worker({ handlers: { work() {} } })`, /was called before/],
  ];
  for (const [source, expected] of cases) {
    const duly = new FakeDuly(source);
    assert.equal(await duly.end(), 1);
    assert.match(duly.stderr, expected);
  }
});

test("a rejection that no handler waits for ends the process", async () => {
  const duly = await FakeDuly.handling(`() => { Promise.reject(new Error("lost")); return new Promise(() => {}) }`);
  duly.run(1);
  assert.equal(await duly.end(), 1);
  assert.match(duly.stderr, /lost/);
  await duly.next("begin");
});

test("a handler that kills the process has begun, its neighbours that were only handed over have not", async () => {
  const duly = await FakeDuly.handling(`(run) => { if (run.payload) process.exit(9) }`);
  duly.write([runMessage(1, true), runMessage(2), runMessage(3)].map((message) => `${JSON.stringify(message)}\n`).join(""));
  assert.equal(await duly.end(), 9);
  assert.deepEqual(duly.messages, [{ type: "begin", run: 1, attempt: 1 }]);
});

test("the id of a run beyond 2^53 is a text, and stays exact", async () => {
  const id = "9007199254740993";
  const duly = await FakeDuly.start(`worker({ handlers: { work: (run) => {
    run.progress("p");
    run.log.info("l");
    return run.payload === "wait" ? new Promise((_, no) => run.signal.addEventListener("abort", () => no(run.signal.reason))) : [run.run, typeof run.run];
  } } });`);
  const exact = (message) => JSON.stringify(message).replace('"ID"', id);
  const lines = [];
  duly.process.stdout.on("data", (text) => lines.push(text));
  // A payload may hold the key as well.
  duly.write(`${exact(runMessage("ID", { run: 9007199254740992 }))}\n`);
  const messages = await duly.all("begin", "progress", "log", "done");
  assert.deepEqual(messages.at(-1).result, [id, "string"]);
  duly.write(`${exact({ ...runMessage("ID", "wait"), attempt: 2 })}\n`);
  await duly.until(() => duly.messages.length === 3, "a running attempt");
  duly.write(`${exact({ type: "cancel", run: "ID", attempt: 2, reason: "asked" })}\n`);
  await duly.until(() => duly.messages.length === 4, "its end");
  assert.equal(duly.messages.splice(0).at(-1).type, "failed");
  const digits = lines.join("").match(/"run":\d+/g);
  assert.ok(digits.length >= 8 && digits.every((found) => found === `"run":${id}`), String(digits));
  await duly.stop();
});
