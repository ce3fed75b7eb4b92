// @ts-check
// Proves that no picture is posted twice or lost: kills the bot and the scheduler while they work, and counts. DULY_BIN names the
// program duly.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { open, trigger } from "duly";

const DULY = process.env.DULY_BIN ?? "duly";
const BOT = fileURLToPath(new URL("carousel.ts", import.meta.url));
const DEADLINE_MS = 60_000;
const folder = mkdtempSync(join(tmpdir(), "carousel-"));
const file = join(folder, "agent.db");

/** @type {import("node:child_process").ChildProcess | undefined} */
let scheduler;
let log = "";

function start() {
  const command = [process.execPath, "--no-warnings", BOT, "--fast"].map((word) => `'${word}'`).join(" ");
  const args = ["--db", file, "run", "--create", "--poll", "100ms", "--worker", `carousel=${command}`];
  scheduler = spawn(DULY, args, { stdio: ["ignore", "inherit", "pipe"] });
  scheduler.stderr?.setEncoding("utf8").on("data", (text) => (log += text));
  scheduler.on("error", (error) => (log += error.message));
}

/**
 * Sends a signal to the scheduler, and waits until it has ended. Returns its exit code or the signal.
 * @param {NodeJS.Signals} signal
 * @returns {Promise<number | string | null>}
 */
function end(signal) {
  return new Promise((resolve) => {
    scheduler?.on("close", (code, by) => resolve(by ?? code));
    scheduler?.kill(signal);
  });
}

/**
 * Asks the database until something holds.
 * @param {string} what
 * @param {() => boolean} holds
 */
async function until(what, holds) {
  const late = Date.now() + DEADLINE_MS;
  for (;;) {
    try {
      if (holds()) return;
    } catch (error) {
      // The file, the tables, or the tasks do not exist yet.
      if (!/no such|no tables/.test(String(error))) throw error;
    }
    if (scheduler?.exitCode !== null || Date.now() > late) throw new Error(`expected ${what}\n${log}`);
    await sleep(50);
  }
}

/** @param {string} sql */
function ask(sql) {
  const db = open(file);
  try {
    return db.prepare(sql).all();
  } finally {
    db.close();
  }
}

/** @param {string} key */
const request = (key) => trigger(file, "carousel:family", { key }).change === "created";
/** @param {string} key */
const posts = (key) => ask(`SELECT * FROM posts WHERE key LIKE 'carousel:family/${key}/%'`).length;

try {
  start();
  await until("the tasks of the bot", () => request("one"));

  // The bot is killed between two pictures, and started again by the scheduler.
  await until("two pictures", () => posts("one") >= 2);
  const [{ pid }] = await bots();
  process.kill(pid, "SIGKILL");
  await until("five pictures after the bot was killed", () => posts("one") === 5);

  // The scheduler is killed. The bot ends at the end of its input.
  request("two");
  await until("two more pictures", () => posts("two") >= 2);
  assert.equal(await end("SIGKILL"), "SIGKILL");
  start();
  await until("five pictures after the scheduler was killed", () => posts("two") === 5);

  // And the schedule itself.
  const scheduled = "SELECT count(*) AS n FROM task_runs WHERE status = 'succeeded' AND origin <> 'manual'";
  await until("four runs", () => ask(scheduled)[0].n >= 4);
  assert.equal(await end("SIGTERM"), 0, log);

  const twice = ask("SELECT key FROM posts GROUP BY key HAVING count(*) > 1");
  assert.deepEqual(twice, [], "pictures that were posted twice");
  const succeeded = ask("SELECT result FROM task_runs WHERE status = 'succeeded'");
  const ids = succeeded.flatMap(({ result }) => JSON.parse(result).posted);
  assert.equal(ids.length, 5 * succeeded.length);
  assert.equal(new Set(ids).size, ids.length);
  console.log(`${succeeded.length} carousels of five pictures, none posted twice; the bot and the scheduler were killed`);
} finally {
  if (scheduler?.exitCode === null) scheduler.kill("SIGKILL");
  rmSync(folder, { recursive: true });
}

/** Returns the bots that the scheduler has started. */
async function bots() {
  const list = spawn("ps", ["-eo", "pid=,ppid=,args="], { stdio: ["ignore", "pipe", "inherit"] });
  let text = "";
  for await (const chunk of list.stdout) text += chunk;
  const found = text
    .trim()
    .split("\n")
    .map((line) => line.trim().split(/\s+/))
    // Its other child is its guard.
    .filter(([, parent, ...command]) => Number(parent) === scheduler?.pid && !command.includes("--guard"))
    .map(([pid]) => ({ pid: Number(pid) }));
  assert.equal(found.length, 1, `one bot, found ${text}`);
  return found;
}
