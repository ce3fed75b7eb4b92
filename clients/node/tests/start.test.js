// Child mode: this process starts duly, and serves its handlers. DULY_BIN names the program.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import process from "node:process";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath, pathToFileURL } from "node:url";

import { start } from "../src/index.js";
import { withFile } from "./support/databases.js";

const CLIENT = new URL("../src/index.js", import.meta.url).href;
const DULY = process.env.DULY_BIN;
const withProgram = (title, work) => test(title, { skip: DULY ? false : "no DULY_BIN" }, () => withFile(work, { schema: false }));

async function until(what, holds) {
  for (const late = Date.now() + 30_000; !(await holds()); await sleep(20)) assert.ok(Date.now() < late, `expected ${what}`);
}

function isAlive(pid) {
  try {
    process.kill(pid, 0);
    return !existsSync(`/proc/${pid}/stat`) || !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch {
    return false;
  }
}

withProgram("handlers of this process are served, and stop waits for them", async (file) => {
  let release;
  const gate = new Promise((resolve) => (release = resolve));
  const duly = await start({
    db: file,
    handlers: { echo: (run) => [process.pid, run.payload], slow: () => gate.then(() => "slow"), fails: () => Promise.reject(new Error("no")) },
    log: "ignore",
  });
  const pid = duly.pid;
  for (const name of ["echo", "slow", "fails"]) await duly.add({ name, handler: name, payload: 7, manual: true, maxAttempts: 1 });
  const run = await duly.trigger("echo", { wait: true });
  assert.deepEqual([run.status, run.result], ["succeeded", [process.pid, 7]]);
  assert.equal((await duly.trigger("fails", { wait: true })).error, "no");
  await duly.trigger("slow");
  await until("a running run", async () => (await duly.history("slow"))[0].status === "running");
  const stopped = duly.stop();
  release();
  await stopped;
  assert.equal((await duly.history("slow"))[0].result, "slow");
  assert.ok(!isAlive(pid) && duly.pid === undefined);
  // Nothing is left of the locks.
  assert.deepEqual(readdirSync(dirname(file)).filter((name) => name.startsWith(".duly")), []);
});

withProgram("a handler that stops its own application does not wait for itself, and what it leaves does", async (file) => {
  let later;
  let ended;
  const hasEnded = new Promise((resolve) => (ended = resolve));
  const handlers = {
    quit: async () => {
      await sleep(1);
      later = hasEnded.then(() => duly.stop()).then(() => duly.pid);
      await duly.stop();
      return duly.pid;
    },
  };
  const duly = await start({ db: file, handlers, args: ["--drain", "10m"], log: "ignore" });
  const pid = duly.pid;
  await duly.add({ name: "quit", handler: "quit", now: true });
  await until("the end of the run", async () => (await duly.history("quit"))[0]?.status === "succeeded");
  ended();
  assert.equal(await later, undefined, "duly has ended");
  assert.equal((await duly.history("quit"))[0].result, pid);
});

withProgram("a killed duly is started again, the application is told, and a handler ends before its run starts again", async (file) => {
  const exits = [];
  const seen = [];
  let reason;
  let release;
  const gate = new Promise((resolve) => (release = resolve));
  const duly = await start({
    db: file,
    handlers: {
      other: () => "other",
      work: async (run) => {
        seen.push(`begin ${run.attempt}`);
        if (run.attempt === 1) {
          run.signal.addEventListener("abort", () => (reason = run.signal.reason));
          await assert.rejects(run.effect("sent", () => seen.push("performs") && gate), /duly has ended/);
        } else await run.effect("sent", () => seen.push("performs again"));
        seen.push(`end ${run.attempt}`);
        return run.attempt;
      },
    },
    onExit: (exit) => exits.push(exit),
    log: "ignore",
  });
  await duly.add({ name: "work", handler: "work", now: true, backoffMs: 1 });
  await duly.add({ name: "other", handler: "other", manual: true });
  await until("a running effect", () => seen.length === 2);
  const first = duly.pid;
  process.kill(first, "SIGKILL");
  await until("another duly", () => duly.pid !== undefined && duly.pid !== first);
  assert.deepEqual(exits, [{ reason: "killed by SIGKILL", delayMs: 1000 }]);
  assert.equal(reason, "shutdown");
  assert.equal((await duly.trigger("other", { wait: true })).result, "other");
  assert.deepEqual(seen, ["begin 1", "performs"]);
  assert.equal((await duly.history("work"))[0].status, "running");
  release();
  await until("the end of the run", async () => (await duly.history("work"))[0].status !== "running");
  await until("an end", async () => ["dead", "succeeded"].includes((await duly.history("work"))[0].status));
  // Its effect is in doubt: it is performed no second time.
  assert.deepEqual(seen, ["begin 1", "performs", "end 1", "begin 2"]);
  assert.match((await duly.history("work"))[0].error, /effect "sent" is in doubt/);
  await duly.stop();
});

for (const [how, end, code] of [
  ["exits", "process.exit(0)", 0], ["is killed", 'process.kill(process.pid, "SIGKILL")', "SIGKILL"], ["crashes", 'throw new Error("crash")', 1],
]) {
  withProgram(`an application that ${how} leaves no process`, async (file) => {
    const program = join(dirname(file), "bot.mjs");
    writeFileSync(program, `
      import { start } from ${JSON.stringify(CLIENT)};
      const duly = await start({ db: ${JSON.stringify(file)}, handlers: { work: () => 1 }, log: "ignore" });
      console.log(duly.pid);
      setTimeout(() => { ${end} }, 50);`);
    const bot = spawn(process.execPath, [program], { stdio: ["ignore", "pipe", "ignore"] });
    let text = "";
    bot.stdout.setEncoding("utf8").on("data", (chunk) => (text += chunk));
    const ended = await new Promise((resolve) => bot.on("close", (status, signal) => resolve(signal ?? status)));
    assert.equal(ended, code);
    assert.ok(Number(text) > 0, text);
    await until("the end of duly", () => !isAlive(Number(text)));
  });
}

withProgram("a duly that cannot start, and wrong options, are errors of start", async (file) => {
  const handlers = { work: () => 1 };
  await assert.rejects(start({ db: join(file, "no", "folder.db"), handlers, log: "ignore" }), /ENOENT|ENOTDIR/);
  writeFileSync(file, "no database, and long enough to be read as one".repeat(100));
  await assert.rejects(start({ db: file, handlers, log: "ignore" }), { code: "failed", message: /duly did not start: exit code 4/ });
  await assert.rejects(start({ db: `${file}2`, handlers, program: "/nonexistent/duly" }), { code: "no_program" });
  await assert.rejects(start({ db: `${file}2`, handlers, log: "ignore", args: ["--no-such-option"] }), /exit code 2/);
  for (const options of [{}, { handlers: {} }, { handlers, concurrency: 0 }, { handlers, args: "x" }, { handlers, onExit: 7 }, { handlers, log: "x" }]) {
    await assert.rejects(start({ db: `${file}2`, ...options }), TypeError);
  }
  await assert.rejects(start({ handlers }), /expected a path/);
  const abort = AbortSignal.abort(new Error("enough"));
  await assert.rejects(start({ db: `${file}2`, handlers, signal: abort }), /enough/);
});

withProgram("a removed database is not made anew, and an onExit that throws holds nothing up", async (file) => {
  const exits = [];
  const onExit = (exit) => {
    exits.push(exit.reason);
    throw Object.defineProperty(new Error(), "message", { get: () => { throw new Error("no message"); } });
  };
  const before = process.cwd();
  process.chdir(dirname(file));
  let duly;
  try {
    duly = await start({ db: "bot.db", handlers: { work: () => 1 }, onExit, log: "ignore" });
  } finally {
    process.chdir(before);
  }
  await duly.add({ name: "work", handler: "work", manual: true });
  process.kill(duly.pid, "SIGKILL");
  await until("its end", () => exits.length === 1);
  for (const end of ["", "-wal", "-shm"]) rmSync(join(dirname(file), `bot.db${end}`), { force: true });
  await until("a start that fails", () => exits.length > 1);
  assert.deepEqual(exits.slice(0, 2), ["killed by SIGKILL", "exit code 4"]);
  assert.ok(!existsSync(join(dirname(file), "bot.db")) && !existsSync(join(before, "bot.db")));
  await duly.stop();
});

withProgram("an AbortSignal stops duly, also while it waits for its next start", async (file) => {
  const abort = new AbortController();
  const exits = [];
  const duly = await start({ db: file, handlers: { work: () => 1 }, signal: abort.signal, onExit: (exit) => exits.push(exit), log: "ignore" });
  process.kill(duly.pid, "SIGKILL");
  await until("its end", () => exits.length === 1);
  abort.abort();
  await duly.stop();
  assert.equal(duly.pid, undefined);
});

test("of a program in an archive of Electron, the copy beside the archive is taken", async () => {
  const home = realpathSync(mkdtempSync(join(tmpdir(), "duly-")));
  try {
    const modules = join(home, "app.asar", "node_modules");
    cpSync(fileURLToPath(new URL("../src", import.meta.url)), join(modules, "duly", "src"), { recursive: true });
    writeFileSync(join(modules, "duly", "package.json"), '{ "type": "module" }');
    const bin = join("@duly", `${process.platform}-${process.arch}`, "bin");
    mkdirSync(join(modules, bin), { recursive: true });
    writeFileSync(join(modules, bin, "duly"), "");
    const { findProgram } = await import(pathToFileURL(join(modules, "duly", "src", "program.js")).href);
    assert.equal(findProgram(), join(home, "app.asar.unpacked", "node_modules", bin, "duly"));
  } finally {
    rmSync(home, { recursive: true });
  }
});
