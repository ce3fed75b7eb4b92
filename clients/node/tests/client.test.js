// What only the program can show: the faults of workers that it starts, and the client that asks it. DULY_BIN names the program.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import process from "node:process";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { DatabaseError, client } from "../src/index.js";
import { isZone, zones } from "../src/zones.js";
import { withFile } from "./support/databases.js";

const CLIENT = new URL("../src/index.js", import.meta.url).href;
const DULY = process.env.DULY_BIN;
const withProgram = (title, work) => test(title, { skip: DULY ? false : "no DULY_BIN" }, () => withFile(work, { schema: false }));

/** Runs duly with a worker until it is idle, and returns what it has logged. */
async function serve(file, source, args = ["--until-idle"], then = async () => {}) {
  const program = join(dirname(file), "worker.mjs");
  writeFileSync(program, source.replaceAll("DULY", JSON.stringify(CLIENT)));
  const worker = `work='${process.execPath}' '${program}'`;
  const child = spawn(DULY, ["--db", file, "run", "--create", "--poll", "50ms", "--worker", worker, ...args], {
    stdio: ["ignore", "ignore", "pipe"],
  });
  let log = "";
  child.stderr.setEncoding("utf8").on("data", (text) => (log += text));
  const timer = setTimeout(() => child.kill("SIGKILL"), 60_000);
  const ended = new Promise((resolve) => child.on("close", resolve));
  try {
    await then(child, () => log);
    const code = await ended;
    return { code, log };
  } finally {
    clearTimeout(timer);
    child.kill("SIGKILL");
  }
}

withProgram("what is printed before worker() is a line of the log, from the first import on", async (file) => {
  const duly = client(file);
  await duly.add({ name: "t", handler: "work", now: true, maxAttempts: 1 });
  const { log } = await serve(file, `
    import { worker } from DULY;
    console.log("starting ..");
    process.stdout.write("half a line");
    await worker({ handlers: { work: () => console.log("in a run") } });`);
  assert.equal((await duly.history("t"))[0].status, "succeeded", log);
  assert.match(log, /: starting \.\./);
  assert.match(log, /half a line/);
  assert.doesNotMatch(log, /was ended/);
});

withProgram("lines that come before the client is imported are lines of the log", async (file) => {
  const duly = client(file);
  await duly.add({ name: "t", handler: "work", now: true, maxAttempts: 1 });
  const { log } = await serve(file, `
    console.log("a banner");
    console.log("{ not: 'JSON' }");
    const { worker } = await import(DULY);
    await worker({ handlers: { work: () => 1 } });`);
  assert.equal((await duly.history("t"))[0].status, "succeeded", log);
  assert.match(log, /a banner/);
  assert.doesNotMatch(log, /was ended/);
});

withProgram("a child process that inherits the streams takes no part in the protocol", async (file) => {
  const duly = client(file);
  await duly.add({ name: "t", handler: "work", now: true, maxAttempts: 1 });
  await duly.add({ name: "other", handler: "other", now: true, maxAttempts: 1 });
  const { log } = await serve(file, `
    import { execFileSync, spawn } from "node:child_process";
    import { worker } from DULY;
    const sh = (script) => new Promise((resolve) => spawn("sh", ["-c", script], { stdio: "inherit" }).on("close", resolve));
    await worker({
      handlers: {
        work: async () => {
          await sh("echo from a child; printf '{\\"type\\":\\"done\\",\\"run\\":2,\\"attempt\\":1}'; cat");
          return execFileSync("sh", ["-c", "cat; echo read"], { stdio: ["inherit", "pipe", "inherit"], encoding: "utf8" });
        },
        other: () => "other",
      },
    });`);
  assert.deepEqual((await duly.history("t"))[0].result, "read\n", log);
  assert.equal((await duly.history("other"))[0].result, "other");
  assert.match(log, /: from a child/);
});

for (const [how, thrown, error] of [
  ["an error", `new TypeError("no date")`, /exit code 1: TypeError: no date$/],
  ["an AggregateError", `new AggregateError([new Error("a"), new RangeError("b")], "both")`, /AggregateError: both \(a; RangeError: b\)$/],
  ["a cause", `new Error("cannot send", { cause: new Error("refused\\nby the server") })`, /cannot send: refused by the server$/],
]) {
  withProgram(`a crash of the worker by ${how} is the error of its runs`, async (file) => {
    const duly = client(file);
    await duly.add({ name: "t", handler: "work", now: true, maxAttempts: 1 });
    const { log } = await serve(file, `
      import { worker } from DULY;
      await worker({ handlers: { work: () => new Promise(() => setImmediate(() => { throw ${thrown}; })) } });`);
    const [run] = await duly.history("t");
    assert.equal(run.status, "dead");
    assert.match(run.error, error);
    assert.match(log, /at (Immediate|.*worker\.mjs)/);
  });
}

test("a worker whose input is /dev/null says so", () => {
  const source = `import { worker } from ${JSON.stringify(CLIENT)}; await worker({ handlers: { work: () => 1 } });`;
  assert.throws(
    () => execFileSync(process.execPath, ["--input-type=module", "-e", source], { stdio: ["ignore", "pipe", "pipe"] }),
    ({ status, stdout, stderr }) => status === 1 && stdout.length === 0 && /standard input is no pipe/.test(String(stderr)),
  );
});

withProgram("a task is added, shown, paused, resumed, triggered, listed and removed", async (file) => {
  const duly = client(file);
  const at = new Date("2030-01-01T12:00:00Z");
  for (const [name, schedule] of Object.entries({
    cron: { cron: "0 7 * * mon-fri", timeZone: "Europe/Rome" }, every: { every: "15m" }, seconds: { everySeconds: 90 }, delay: { delay: "1h 30m" },
    at: { at }, text: { at: "2030-01-01 12:00", timeZone: "Europe/Rome" }, in: { in: "2h" }, inSeconds: { inSeconds: 60 }, manual: { manual: true },
  })) {
    const task = { name, handler: "work", payload: { to: ["anna", "é😀"] }, ...schedule };
    assert.equal((await duly.add(task)).change, "created", name);
    assert.equal((await duly.add(task)).change, "unchanged", name);
  }
  await duly.add({
    name: "all", handler: "work", cron: "@daily", startsAt: at, endsAt: new Date("2031-01-01T00:00:00Z"), overlap: "buffer_all", misfire: "run_all",
    misfireGraceMs: 1, catchUpLimit: 2, expiresMs: "1m", maxAttempts: 4, backoffMs: 5, backoffCapMs: "6s", timeoutMs: 0, jitterMs: 8, priority: 3,
    concurrencyKey: "chat:7", onDead: "manual", pauseAfterFailures: 9,
  });
  const { starts_at, misfire_grace_ms, expires_ms, backoff_cap_ms, timeout_ms, concurrency_key } = await duly.show("all");
  assert.deepEqual(
    [starts_at, misfire_grace_ms, expires_ms, backoff_cap_ms, timeout_ms, concurrency_key],
    ["2030-01-01T12:00:00.000Z", 1, 60_000, 6_000, 0, "chat:7"],
  );
  assert.equal((await duly.list()).length, 10);
  assert.equal((await duly.pause("every")).status, "paused");
  assert.equal((await duly.resume("every")).status, "active");
  const large = { text: "x".repeat(200_000) };
  const run = await duly.trigger("manual", { payload: large, key: "march" });
  assert.deepEqual([run.task, run.status, run.payload], ["manual", "queued", large]);
  assert.equal((await duly.trigger("manual", { payload: large, key: "march" })).id, run.id);
  await assert.rejects(duly.trigger("manual", { payload: 2, key: "march" }), { name: "DatabaseError", code: "exists" });
  await duly.cancel(run.id);
  assert.equal((await duly.history("manual", { limit: 1, status: "cancelled" }))[0].id, run.id);
  assert.deepEqual(await duly.remove("manual"), { name: "manual", removed: true });
  for (const call of [() => duly.show("manual"), () => duly.trigger("manual"), () => duly.cancel(999), () => duly.pause("manual")]) {
    await assert.rejects(call(), (error) => error instanceof DatabaseError && error.code === "unknown");
  }
  await assert.rejects(duly.add({ name: "every", handler: "other", every: "15m" }), { code: "exists" });
  await assert.rejects(duly.add({ name: "never", handler: "work", cron: "0 0 31 2 *" }), { code: "refused" });
  await assert.rejects(duly.add({ name: "t", handler: "work", at: Date.now() }), TypeError);
  await assert.rejects(client(`${file}x`).list(), { code: "no_database" });
  await assert.rejects(client(file, { program: "/nonexistent/duly" }).list(), { code: "no_program" });
});

withProgram("a trigger waits for the end of its run, and an AbortSignal ends the wait", async (file) => {
  const duly = client(file);
  for (const name of ["good", "bad", "slow"]) await duly.add({ name, handler: name, manual: true, maxAttempts: 1 });
  const { code, log } = await serve(
    file,
    `import { worker } from DULY;
     await worker({
       handlers: { good: () => ({ sent: 1 }), bad: () => { throw new Error("no") }, slow: (run) => new Promise((_, no) => run.signal.addEventListener("abort", no)) },
     });`,
    [],
    async (child, seen) => {
      const good = await duly.trigger("good", { wait: true });
      assert.deepEqual([good.status, good.result], ["succeeded", { sent: 1 }]);
      const bad = await duly.trigger("bad", { wait: true });
      assert.deepEqual([bad.status, bad.error], ["dead", "no"]);
      const abort = new AbortController();
      const waiting = duly.trigger("slow", { wait: true, signal: abort.signal });
      for (const late = Date.now() + 30_000; (await duly.history("slow"))[0]?.status !== "running"; await sleep(20)) assert.ok(Date.now() < late, seen());
      abort.abort(new Error("enough"));
      await assert.rejects(waiting, /enough/);
      assert.equal((await duly.history("slow"))[0].status, "running");
      await duly.cancel("slow");
      child.kill("SIGTERM");
    },
  );
  assert.equal(code, 0, log);
});

withProgram("the zones are those of the program, and its cron expressions are not refused", async (file) => {
  const names = zones();
  const manifest = join(dirname(file), "zones.toml");
  const task = (name, at) => `[[task]]\nname = "t${at}"\ncron = "0 0 * * *"\ntime_zone = "${name}"\ncommand = ["true"]\n`;
  writeFileSync(manifest, names.map(task).join(""));
  execFileSync(DULY, ["--db", file, "apply", manifest], { stdio: "pipe" });
  assert.ok(names.length > 590 && isZone("America/Argentina/ComodRivadavia") && !isZone("Rome"));

  const duly = client(file);
  const expressions = [
    "@daily", "@DAILY", "* * * * *", "*/5 0-23/2 1,15 * mon-fri", "0 0 L * *", "0 0 LW * *", "0 0 15W * *", "0 0 * * 5#2", "0 0 * * 5L",
    "0 0 * jan,MAR *", "0 0 7 * 7", "30 0 7 * * SUN", "  0  7 * *\t* ", "59 23 31 12 6",
  ];
  for (const cron of expressions) await duly.add({ name: "c", handler: "work", cron, replace: true });
});
