// The same client under duly itself: DULY_BIN names the program.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import process from "node:process";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { add, trigger } from "../src/index.js";
import { modules, withFile } from "./support/databases.js";

const CLIENT = new URL("../src/index.js", import.meta.url).href;
const DULY = process.env.DULY_BIN;
const SKIPPED = DULY ? false : "no DULY_BIN";

const HANDLERS = `{
  echo: (run) => { run.progress("half"); return [run.payload, run.attempt, run.origin, run.idempotencyKey, run.scheduledFor.toISOString()] },
  gives_up: () => { throw new GiveUp("no such chat 😀") },
  waits: (run) => { if (run.attempt === 1) throw new RetryAfter("1ms", "busy"); return run.attempt },
  fails: () => { throw new TypeError("no date") },
  effects: async (run) => {
    const first = await run.effect("first", () => { console.log("performed once"); return { id: 7 } });
    if (run.attempt === 1) throw new RetryAfter(1, "after the first");
    await run.effect("second", () => { throw new Error("not performed") }).catch(() => {});
    return [first, await run.effect("second", () => [])];
  },
  large: () => "x".repeat(1 << 20),
  sleeps: (run) => new Promise((_, reject) => run.signal.addEventListener("abort", () => reject(run.signal.reason))),
}`;

/** Handlers that kill their process, one at a time: another attempt would die with it. */
const CRASHING = `{
  doubt: async (run) => {
    if (run.attempt === 1) await run.effect("send", () => process.kill(process.pid, "SIGKILL") && new Promise(() => {}));
    return run.effect("send", () => "performed", { lookUp: () => run.payload.found });
  },
  blind: (run) => run.effect("send", () => process.kill(process.pid, "SIGKILL") && new Promise(() => {})),
}`;

/** A database with the programs of two workers beside it. */
class Site {
  log = "";

  constructor(file) {
    this.file = file;
    this.workers = [["work", HANDLERS, 20], ["crashing", CRASHING, 1]].flatMap(([name, handlers, concurrency]) => {
      const program = join(dirname(file), `${name}.mjs`);
      writeFileSync(
        program,
        `import { worker, GiveUp, RetryAfter } from ${JSON.stringify(CLIENT)};
         await worker({ handlers: ${handlers}, concurrency: ${concurrency} });`,
      );
      return ["--worker", `${name}='${process.execPath}' '${program}'`];
    });
  }

  duly(...args) {
    return execFileSync(DULY, ["--db", this.file, ...args], { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  }

  start(...args) {
    const child = spawn(DULY, ["--db", this.file, "run", "--create", "--poll", "50ms", ...this.workers, ...args], {
      stdio: ["ignore", "inherit", "pipe"],
    });
    child.stderr.setEncoding("utf8").on("data", (text) => (this.log += text));
    const timer = setTimeout(() => child.kill("SIGKILL"), 60_000);
    const ended = new Promise((resolve) =>
      child.on("close", (code, signal) => {
        clearTimeout(timer);
        resolve(signal ?? code);
      }),
    );
    return { child, ended };
  }

  /** The newest run of a task. */
  newest(task) {
    return JSON.parse(this.duly("--json", "history", task, "-n", "1"))[0];
  }

  async until(what, holds) {
    for (const late = Date.now() + 30_000; !holds(); await sleep(50)) {
      assert.ok(Date.now() < late, `expected ${what}: ${this.log}`);
    }
  }
}

test("handlers, retries and effects", { skip: SKIPPED }, () =>
  withFile(
    async (file) => {
      const site = new Site(file);
      const now = (name, handler, payload = null, ...more) =>
        site.duly("add", name, "--handler", handler, "--payload", JSON.stringify(payload), "--now", ...more);
      now("echo", "echo", { text: "é😀\n" });
      for (const handler of ["gives_up", "waits", "large", "effects"]) now(handler, handler);
      now("fails", "fails", null, "--max-attempts", "1");
      now("found", "doubt", { found: "looked up" }, "--backoff", "1ms");
      now("absent", "doubt", {}, "--backoff", "1ms");
      now("blind", "blind", null, "--backoff", "1ms");
      assert.equal(await site.start("--until-idle").ended, 0, site.log);

      const echo = site.newest("echo");
      assert.deepEqual(echo.result, [{ text: "é😀\n" }, 1, "schedule", `echo/${echo.scheduled_for}`, echo.scheduled_for]);
      assert.equal(echo.progress, "half");
      const outcomes = ["gives_up", "fails", "large", "blind"].map((name) => site.newest(name));
      assert.deepEqual(outcomes.map(({ status }) => status), ["dead", "dead", "dead", "dead"]);
      const errors = [/^no such chat 😀$/, /^TypeError: no date$/, /its result has \d+ bytes/, /effect "send" is in doubt/];
      errors.forEach((expected, at) => assert.match(outcomes[at].error, expected));
      assert.deepEqual([site.newest("waits").result, site.newest("waits").attempt], [2, 2]);
      assert.deepEqual(site.newest("effects").result, [{ id: 7 }, []]);
      // The line of the log alone: the end of the worker is reported with its last line.
      assert.equal(site.log.match(/: performed once\n/g).length, 1);
      assert.equal(site.newest("found").result, "looked up");
      assert.equal(site.newest("absent").result, "performed");
    },
    { schema: false },
  ));

test("a cancelled run ends, and a drained worker too", { skip: SKIPPED }, () =>
  withFile(
    async (file) => {
      const site = new Site(file);
      for (const name of ["one", "two"]) site.duly("add", name, "--handler", "sleeps", "--now");
      const { child, ended } = site.start("--drain", "100ms");
      await site.until("two running runs", () => ["one", "two"].every((name) => site.newest(name)?.status === "running"));
      site.duly("cancel", "one");
      await site.until("a cancelled run", () => site.newest("one").status === "cancelled");
      assert.match(site.newest("one").error, /stopped after a cancel: asked/);
      child.kill("SIGTERM");
      await ended;
      const { status, attempt, forgiven } = site.newest("two");
      assert.deepEqual([status, attempt, forgiven], ["failed", 1, 1], site.log);
      assert.doesNotMatch(site.log, /killed/);
    },
    { schema: false },
  ));

test("what add and trigger write is run", { skip: SKIPPED || (modules.size === 0 ? "no module for SQLite" : false) }, () =>
  withFile(
    async (file) => {
      const site = new Site(file);
      const { child, ended } = site.start();
      await site.until("a started worker", () => /ready.*echo/.test(site.log));
      for (const [module, openFile] of modules) {
        const db = openFile(file);
        const name = module.replace(/[^a-z]/g, "-");
        try {
          add(db, { name: `${name}/once`, handler: "echo", at: new Date() });
          add(db, { name: `${name}/daily`, handler: "echo", cron: "0 6 1 1 *", timeZone: "Europe/Rome", payload: 1 });
          add(db, { name: `${name}/manual`, handler: "echo", manual: true, payload: 2 });
          await site.until("the first run", () => site.newest(`${name}/once`)?.status === "succeeded");
          for (const kind of ["daily", "manual"]) {
            trigger(db, `${name}/${kind}`);
            trigger(db, `${name}/${kind}`, { key: "order-7", payload: 7 });
            trigger(db, `${name}/${kind}`, { key: "order-7", payload: 8 });
          }
          for (const [kind, payload] of [["daily", 1], ["manual", 2], ["daily/order-7", 7], ["manual/order-7", 7]]) {
            await site.until(`a run of ${kind}`, () => site.newest(`${name}/${kind}`)?.status === "succeeded");
            assert.equal(site.newest(`${name}/${kind}`).result[0], payload);
          }
          // Later triggers open further runs.
          const first = site.newest(`${name}/manual`).id;
          trigger(db, `${name}/manual`);
          await site.until("a second run", () => site.newest(`${name}/manual`).id > first);
        } finally {
          db.close();
        }
      }
      child.kill("SIGTERM");
      assert.equal(await ended, 0, site.log);
      assert.match(site.duly("doctor"), /./);
    },
    { schema: false },
  ));
