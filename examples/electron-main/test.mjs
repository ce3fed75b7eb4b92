// Runs main.mjs under Electron if it is installed and has a display, else under Node.js: kills it, quits it, and looks for what is left.
import assert from "node:assert";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const data = mkdtempSync(join(tmpdir(), "duly-"));

function electron() {
  if (process.env.DISPLAY === undefined) return undefined;
  try {
    return createRequire(import.meta.url)("electron");
  } catch {
    return undefined;
  }
}

async function application() {
  const program = electron();
  const command = program === undefined ? [process.execPath, "main.mjs"] : [program, ".", "--no-sandbox", `--user-data-dir=${data}`];
  const child = spawn(command[0], command.slice(1), { cwd: fileURLToPath(new URL(".", import.meta.url)), env: { ...process.env, APP_DATA: data }, stdio: ["ignore", "pipe", "inherit"] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async (part) => {
    for (;;) {
      const { value, done } = await lines.next();
      assert(!done, `the application ended before "${part}"`);
      if (value.includes(part)) return;
    }
  };
  await next("ready, ");
  await next("synchronised for ");
  return child;
}

const list = (...args) => JSON.parse(execFileSync(process.env.DULY_BIN, ["--db", join(data, "tasks.db"), "--json", ...args]));
const schedulers = () => list("status").schedulers.map(({ pid }) => pid);

for (const how of ["SIGKILL", "SIGTERM"]) {
  const child = await application();
  child.kill(how);
  const [code] = await once(child, "exit");
  // Quitting waits for duly.
  if (how === "SIGTERM") assert.equal(code, 0);
  const until = Date.now() + (how === "SIGTERM" ? 0 : 60_000);
  while (schedulers().length > 0) assert(Date.now() < until, `${how}: duly has not ended`);
}
const runs = list("history", "-n", "1000");
assert(runs.every((run) => run.status !== "running"), JSON.stringify(runs));
assert(runs.some((run) => run.status === "succeeded"));
rmSync(data, { recursive: true });
console.log(`electron-main, under ${electron() === undefined ? "Node.js" : "Electron"}: no duly is left, and no run is lost`);
