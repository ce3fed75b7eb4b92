// Databases with the tables of duly, by every module for SQLite that this machine has.

import { execFileSync, spawn } from "node:child_process";
import { closeSync, mkdtempSync, openSync, readFileSync, readSync, rmSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const SCHEMA = new URL("../../../../schema.sql", import.meta.url);
const SESSION = fileURLToPath(new URL("session.py", import.meta.url));
const require = createRequire(import.meta.url);

function load(name) {
  try {
    return require(name);
  } catch {
    return undefined;
  }
}

const node = load("node:sqlite");
const better = load("better-sqlite3");

/** Whether a path can be given to the client here. */
export const opensPaths = node !== undefined || better !== undefined;

/** Opens a file, by module. */
export const modules = new Map();
if (node !== undefined) modules.set("node:sqlite", (file) => new node.DatabaseSync(file));
if (better !== undefined) modules.set("better-sqlite3", (file) => better(file));
if (has("python3") && has("sqlite3")) modules.set("a fake of node:sqlite", (file) => new FakeDatabase(file));

export function has(program) {
  try {
    execFileSync(program, ["--version"], { stdio: "ignore" });
    return true;
  } catch {
    return false;
  }
}

/** Calls `work` with the path of a new database in a folder of its own, which is deleted afterwards. */
export async function withFile(work, { schema = true } = {}) {
  const folder = mkdtempSync(join(tmpdir(), "duly-node-"));
  try {
    const file = join(folder, "agent.db");
    if (schema) create(file);
    return await work(file);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

function create(file) {
  const sql = readFileSync(SCHEMA, "utf8");
  if (node !== undefined) {
    const db = new node.DatabaseSync(file);
    db.exec(sql);
    db.close();
  } else if (better !== undefined) better(file).exec(sql).close();
  else execFileSync("sqlite3", ["-bail", file], { input: sql });
}

/** The interface of a DatabaseSync that the client uses, over one connection of python3. */
class FakeDatabase {
  #folder = mkdtempSync(join(tmpdir(), "duly-session-"));
  #requests;
  #answers;

  constructor(file) {
    const [requests, answers] = ["requests", "answers"].map((name) => join(this.#folder, name));
    execFileSync("mkfifo", [requests, answers]);
    spawn("python3", [SESSION, file, requests, answers], { stdio: ["ignore", "ignore", "inherit"] }).unref();
    this.#requests = openSync(requests, "w");
    this.#answers = openSync(answers, "r");
  }

  exec(sql) {
    this.#ask({ script: true, sql });
  }

  prepare(sql) {
    const ask = (values) => this.#ask({ script: false, sql, values });
    return {
      run: (...values) => ({ changes: ask(values).changes }),
      get: (...values) => ask(values).rows[0],
      all: (...values) => ask(values).rows,
    };
  }

  close() {
    closeSync(this.#requests);
    closeSync(this.#answers);
    rmSync(this.#folder, { recursive: true });
  }

  #ask(request) {
    writeSync(this.#requests, `${JSON.stringify(request)}\n`);
    const buffer = Buffer.alloc(65536);
    let text = "";
    while (!text.endsWith("\n")) {
      const count = readSync(this.#answers, buffer);
      if (count === 0) throw new Error("python3 has ended");
      text += buffer.toString("utf8", 0, count);
    }
    const answer = JSON.parse(text);
    if (answer.error !== undefined) throw new Error(answer.error);
    return answer;
  }
}
