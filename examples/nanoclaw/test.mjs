// Tests the example with the program: `DULY_BIN=/path/to/duly node test.mjs`. It works in a temporary copy of this folder.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { setTimeout as wait } from "node:timers/promises";
import { fileURLToPath, pathToFileURL } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const given = process.env.DULY_BIN ?? "duly";
const duly = given.includes("/") ? resolve(given) : given;
const client = join(here, "../../clients/node");

const home = mkdtempSync(join(tmpdir(), "duly-nanoclaw-"));
for (const file of ["package.json", "runner.mjs", "outbox.mjs", "rows.mjs", "nanoclaw.toml", "family.toml", "day.mjs", "sample.sql", "roll-back.sql"]) {
  cpSync(join(here, file), join(home, file));
}
mkdirSync(join(home, "node_modules"));
symlinkSync(client, join(home, "node_modules/duly"));
const better = join(here, "node_modules/better-sqlite3");
if (existsSync(better)) symlinkSync(better, join(home, "node_modules/better-sqlite3"));
mkdirSync(join(home, "store"));
mkdirSync(join(home, "bin"));
if (duly.includes("/")) symlinkSync(duly, join(home, "bin/duly"));
writeFileSync(join(home, "store/messages.db"), "");

// An agent that the test controls: it notes each call, waits while a file `wait` exists, and fails while a file `fail` exists.
writeFileSync(
  join(home, "agent.mjs"),
  `import { appendFileSync, existsSync } from "node:fs";
   import { setTimeout } from "node:timers/promises";
   export async function runAgent(task, signal) {
     appendFileSync("agent.log", task.id + " " + process.pid + "\\n");
     while (existsSync("wait")) await setTimeout(20, undefined, { signal });
     if (existsSync("fail")) throw new Error("the agent failed");
     return "Done: " + task.prompt;
   }`,
);

process.chdir(home);
const { open } = await import(pathToFileURL(join(client, "src/index.js")).href);

/** Runs duly, and returns what it prints. */
function run(...words) {
  const ended = spawnSync(duly, words, { encoding: "utf8", env });
  assert.equal(ended.status, 0, `duly ${words.join(" ")}: ${ended.error ?? ended.stderr}`);
  return ended.stdout;
}

/** Waits until the condition holds, at most half a minute. */
async function until(what, holds) {
  const end = Date.now() + 30_000;
  for (;;) {
    if (holds()) return;
    if (Date.now() > end) throw new Error(`waited for: ${what}\n${log()}`);
    await wait(25);
  }
}

const log = () => (existsSync("duly.log") ? readFileSync("duly.log", "utf8") : "");
const calls = () => (existsSync("agent.log") ? readFileSync("agent.log", "utf8").trimEnd().split("\n") : []);
/** The messages that NanoClaw is to send. */
const messages = (group) => {
  const folder = join("data/ipc", group, "messages");
  const files = existsSync(folder) ? readdirSync(folder).filter((name) => name.endsWith(".json")) : [];
  return files.map((name) => JSON.parse(readFileSync(join(folder, name), "utf8")));
};
const runs = (name) => JSON.parse(run("--json", "history", name));

// The worker runs with the same Node.js as this test, and the import of the manifest with the same duly.
const PATH = `${join(home, "bin")}:${dirname(process.execPath)}:${process.env.PATH}`;
const env = { ...process.env, PATH, DULY_DB: join(home, "duly.db"), TZ: "UTC" };
let scheduler;

function start() {
  scheduler = spawn(duly, ["run", "--tasks", "nanoclaw.toml"], { env, stdio: ["ignore", "ignore", "pipe"] });
  scheduler.stderr.on("data", (text) => writeFileSync("duly.log", text, { flag: "a" }));
  scheduler.ended = new Promise((resolve) => scheduler.on("close", (code) => resolve(code)));
}

async function main() {
  let store;
  try {
    store = open("store/messages.db");
  } catch (error) {
    if (error.code !== "no_database" || process.env.DULY_CI === "1") throw error;
    console.log(`skipped: ${error.message}`);
    return;
  }
  store.exec(readFileSync("sample.sql", "utf8"));
  const logged = (id) => store.prepare("SELECT status, result, error FROM task_run_logs WHERE task_id = ? ORDER BY id").all(id);
  const task = (id) => store.prepare("SELECT status, next_run, last_result FROM scheduled_tasks WHERE id = ?").get(id);
  const importing = ["import", "nanoclaw", "store/messages.db", "--handler", "agent"];
  const update = [...importing, "--prune", "--allow-empty", "--partial", "--json"];
  const changes = () => JSON.parse(run(...update)).tasks.map((task) => `${task.name.replace("nanoclaw:", "")} ${task.change}`);

  // The tasks are imported, and stay where they are.
  run(...importing, "--dry-run");
  run(...importing);
  assert.deepEqual(changes(), ["carousel unchanged", "inbox unchanged", "reminder unchanged"]);
  const database = open("duly.db");
  database.exec("UPDATE scheduled_tasks SET backoff_ms = 300 WHERE handler = 'agent'");
  database.close();

  // The overdue one runs at once: one answer, one message, one row, and NanoClaw's task is completed.
  start();
  await until("the reminder", () => logged("reminder").length === 1);
  const reminded = { status: "success", result: "Done: Remind Anna of the dentist", error: null };
  assert.deepEqual({ ...logged("reminder")[0] }, reminded);
  assert.deepEqual({ ...task("reminder") }, { status: "completed", next_run: null, last_result: reminded.result });
  assert.deepEqual(messages("family").map(({ type, chatJid, text }) => ({ type, chatJid, text })), [
    { type: "message", chatJid: "120363041@g.us", text: reminded.result },
  ]);
  await until("its run", () => runs("nanoclaw:reminder")[0].status === "succeeded");

  // The worker is killed while the agent is at work: the run is retried, with one message and one row.
  writeFileSync("wait", "");
  run("trigger", "nanoclaw:carousel");
  await until("the agent", () => calls().length === 2);
  process.kill(Number(calls()[1].split(" ")[1]), "SIGKILL");
  await until("the next attempt", () => calls().length === 3);
  rmSync("wait");
  await until("the carousel", () => runs("nanoclaw:carousel")[0].status === "succeeded");
  assert.equal(runs("nanoclaw:carousel")[0].attempt, 2);
  assert.deepEqual(logged("carousel").map((row) => row.status), ["success"]);
  assert.equal(messages("family").length, 2);
  assert.equal(task("carousel").status, "active");

  // duly is killed while the agent is at work: its worker ends, too, and the next scheduler retries the run.
  writeFileSync("wait", "");
  run("trigger", "nanoclaw:carousel");
  await until("the agent", () => calls().length === 4);
  scheduler.kill("SIGKILL");
  await scheduler.ended;
  start();
  await until("the next attempt", () => calls().length === 5);
  rmSync("wait");
  await until("the carousel", () => runs("nanoclaw:carousel")[0].status === "succeeded");
  assert.deepEqual(logged("carousel").map((row) => row.status), ["success", "success"]);
  assert.equal(messages("family").length, 3);

  // An agent that fails is asked again, and each failure has its row, as in NanoClaw.
  writeFileSync("fail", "");
  run("trigger", "nanoclaw:inbox");
  await until("a failure", () => logged("inbox").length > 0);
  rmSync("fail");
  await until("the inbox", () => runs("nanoclaw:inbox")[0].status === "succeeded");
  const statuses = logged("inbox").map((row) => `${row.status} ${row.error ?? ""}`);
  assert.equal(statuses.pop(), "success ");
  assert.deepEqual([...new Set(statuses)], ["error the agent failed"]);
  assert.equal(messages("main").length, 1);

  // What the agents change in NanoClaw's table is imported.
  const insert = `INSERT INTO scheduled_tasks (id, group_folder, chat_jid, prompt, schedule_type, schedule_value, created_at)
                  VALUES ('new', 'main', '120363042@g.us', 'Water the plants', 'cron', '0 9 * * 1', '2026-03-14T10:00:00.000Z')`;
  store.exec(insert);
  store.exec("DELETE FROM task_run_logs WHERE task_id = 'inbox'");
  store.exec("DELETE FROM scheduled_tasks WHERE id = 'inbox'");
  store.exec("UPDATE scheduled_tasks SET status = 'paused' WHERE id = 'carousel'");
  run("trigger", "nanoclaw-sync", "--wait");
  const names = JSON.parse(run("--json", "list", "--all")).map((task) => task.name);
  assert.deepEqual(names.sort(), ["nanoclaw-sync", "nanoclaw:carousel", "nanoclaw:new"]);
  run("trigger", "nanoclaw:carousel");
  await until("the paused task", () => runs("nanoclaw:carousel")[0].status === "succeeded");
  assert.equal(runs("nanoclaw:carousel")[0].result.skipped, "NanoClaw's task is paused");
  assert.equal(logged("carousel").length, 2);
  store.exec("UPDATE scheduled_tasks SET status = 'active' WHERE id = 'carousel'");

  await agentsDay();

  // The end, and the way back.
  assert.equal(run("check"), "");
  scheduler.kill("SIGTERM");
  assert.equal(await scheduler.ended, 0, log());
  run("doctor");
  store.exec("UPDATE scheduled_tasks SET next_run = '2026-03-14T13:00:00.000Z' WHERE id = 'carousel'");
  store.exec(readFileSync("roll-back.sql", "utf8"));
  const [next] = JSON.parse(run("--json", "list", "--all")).filter((one) => one.name === "nanoclaw:carousel");
  assert.equal(task("carousel").next_run, next.next_run);
  store.close();
  console.log("the example of NanoClaw: all tests passed");
}

/** The agent's day with the tools of `duly mcp`, before and after 13:00 in Rome. The clock is that of libfaketime, if the machine has it. */
async function agentsDay() {
  const { Tools, day, why } = await import(pathToFileURL(join(home, "day.mjs")).href);
  const library = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"].map((at) => `${at}/faketime/libfaketime.so.1`).find(existsSync);
  if (library === undefined) {
    if (process.env.DULY_CI === "1") throw new Error("no libfaketime");
    console.log("skipped: no libfaketime: the agent's day");
    return;
  }
  const clock = (at) => ({ LD_PRELOAD: library, FAKETIME: `@${at}`, FAKETIME_DONT_FAKE_MONOTONIC: "1", FAKETIME_NO_CACHE: "1" });
  const noon = { ...env, DULY_BIN: duly, DULY_DB: join(home, "day.db"), ...clock("2027-03-14 11:59:55") };
  const options = ["--scope", "agent:family/", "--allow", "add,trigger,pause,remove", "--handlers", "prompt"];
  const tools = new Tools([...options, "--manifest", "family.toml", "--tz", "Europe/Rome"], noon);
  const said = [];
  await day(tools, (line) => said.push(line));
  assert.deepEqual(said.slice(0, 2), ["schedule_task: added", "schedule_task again: unchanged"]);
  assert.match(said[2], /^reminder: it runs within a minute: in [01]s$/);
  assert.match(said[3], /^another chat: payload.chat_jid: expected one of "120363041@g.us"/);
  assert.match(said[4], /^another group: name: expected a name that begins with agent:family\//);
  assert.match(said[5], /^a command: handler: expected one of prompt, found "command"/);
  const before = messages("family").length;
  const runner = spawn(duly, ["run", "--worker", "nanoclaw=node runner.mjs", "--poll", "50ms"], { env: noon, stdio: "ignore" });
  try {
    // One post, and the reminder; no news.
    await until("13:00", () => messages("family").length >= before + 2);
    const texts = messages("family").map((message) => message.text).filter((text) => /carousel of today|dentist|news/.test(text));
    assert.equal(texts.filter((text) => text === "Done: Make the carousel of today").length, 3, "two of before, and one");
    assert.equal(texts.filter((text) => text.includes("news")).length, 0);
    const [posted] = await why(tools, "agent:family/carousel", () => {});
    assert.match(posted, /^it ran: run \d+ succeeded|^run \d+ of /);
    const [reason] = await why(tools, "agent:family/news", () => {});
    assert.match(reason, /^nothing ran because the task was paused at 2027-03-14T12:59:5.*by mcp:nanoclaw session .*it is still paused/);
  } finally {
    runner.kill("SIGTERM");
    await new Promise((resolve) => runner.on("close", resolve));
    await tools.close();
  }
}

try {
  await main();
} finally {
  scheduler?.kill("SIGKILL");
  process.chdir(tmpdir());
  rmSync(home, { recursive: true, force: true });
}
