// A client that asks the program duly: every rule is that of the command line, on files and on servers.

import { fileURLToPath } from "node:url";

import { encode } from "./json.js";
import { ask, findProgram } from "./program.js";
import { SCHEDULE_OPTIONS, checkZone, schedule, shown } from "./schedule.js";

/** The options of a task beside its schedule, with those of the command line. */
const OPTIONS = {
  timeZone: "tz", startsAt: "starts-at", endsAt: "ends-at", onlyBetween: "only-between", onlyOn: "only-on", exceptOn: "except",
  overlap: "overlap", misfire: "misfire", misfireGraceMs: "misfire-grace",
  catchUpLimit: "catch-up-limit", expiresMs: "expires", maxAttempts: "max-attempts", backoffMs: "backoff", backoffCapMs: "backoff-cap",
  timeoutMs: "timeout", jitterMs: "jitter", priority: "priority", concurrencyKey: "key", maxStarts: "max-starts", whenLimited: "when-limited", onDead: "on-dead",
  pauseAfterFailures: "pause-after-failures",
};
const KNOWN = new Set(["name", "handler", "payload", "ifAbsent", "replace", ...SCHEDULE_OPTIONS, ...Object.keys(OPTIONS)]);
const OF_SCHEDULE = /** @type {Record<string, string>} */ ({ cron: "--cron", calendar: "--on", interval: "--every", delay: "--after", once: "--at" });

/** A database, through the program. */
export class Client {
  /** @type {string} */
  database;
  /** @type {string} */
  program;

  /**
   * @param {string | URL} db the path of a file, or a postgres:// address
   * @param {{ program?: string }} [options]
   */
  constructor(db, { program } = {}) {
    if (!(typeof db === "string" && db !== "") && !(db instanceof URL)) throw new TypeError(`client: expected a path, found ${shown(db)}`);
    this.database = db instanceof URL ? (db.protocol === "file:" ? fileURLToPath(db) : db.href) : db;
    this.program = program ?? findProgram();
  }

  /**
   * @param {any} task
   * @param {{ signal?: AbortSignal }} [options]
   */
  async add(task, { signal } = {}) {
    const { args, payload } = definition(task);
    return this.#ask(`add task ${shown(task.name)}`, ["add", ...args], { input: payload, signal });
  }

  /**
   * @param {string} name
   * @param {{ payload?: unknown, key?: string, wait?: boolean, signal?: AbortSignal }} [options]
   */
  async trigger(name, { payload, key, wait = false, signal } = {}) {
    const request = `trigger task ${shown(named("trigger", name))}`;
    const args = ["trigger", ...(payload === undefined ? [] : ["--payload=-"]), ...(key === undefined ? [] : [`--key=${key}`])];
    const input = payload === undefined ? undefined : json(request, payload);
    return this.#ask(request, [...args, ...(wait ? ["--wait"] : []), "--", name], { input, signal, mayFail: wait });
  }

  /**
   * @param {string | number} run
   * @param {{ signal?: AbortSignal }} [options]
   */
  cancel = (run, options) => this.#about("cancel", run, [], options);
  /**
   * @param {string} name
   * @param {{ signal?: AbortSignal }} [options]
   */
  pause = (name, options) => this.#about("pause", name, [], options);
  /**
   * @param {string} name
   * @param {{ signal?: AbortSignal }} [options]
   */
  resume = (name, options) => this.#about("resume", name, [], options);
  /**
   * @param {string} name
   * @param {{ signal?: AbortSignal }} [options]
   */
  show = (name, options) => this.#about("show", name, [], options);
  /**
   * @param {string} name
   * @param {{ cancel?: boolean, signal?: AbortSignal }} [options]
   */
  remove = (name, options) => this.#about("remove", name, options?.cancel === true ? ["--cancel"] : [], options);

  /** @param {{ signal?: AbortSignal }} [options] */
  async list(options = {}) {
    return this.#ask("list tasks", ["list"], options);
  }

  /**
   * @param {string} [name]
   * @param {{ status?: string, since?: Date | string, limit?: number, signal?: AbortSignal }} [options]
   */
  async history(name, { status, since, limit, signal } = {}) {
    const args = ["history"];
    if (status !== undefined) args.push(`--status=${status}`);
    if (since !== undefined) args.push(`--since=${since instanceof Date ? since.toISOString() : since}`);
    if (limit !== undefined) args.push(`--number=${limit}`);
    return this.#ask("list runs", name === undefined ? args : [...args, "--", named("history", name)], { signal });
  }

  /**
   * @param {string} command
   * @param {string | number} which
   * @param {string[]} args
   * @param {{ signal?: AbortSignal }} [options]
   */
  async #about(command, which, args, { signal } = {}) {
    return this.#ask(`${command} ${shown(which)}`, [command, ...args, "--", named(command, which)], { signal });
  }

  /**
   * @param {string} request
   * @param {string[]} args
   * @param {{ input?: string, signal?: AbortSignal, mayFail?: boolean }} options
   */
  #ask(request, args, options) {
    return ask(this.program, request, ["--db", this.database, ...args], options);
  }
}

/**
 * Returns a client of a database, which asks the program duly.
 * @param {string | URL} db
 * @param {{ program?: string }} [options]
 */
export function client(db, options) {
  return new Client(db, options);
}

/**
 * Returns a task as arguments of `duly add`.
 * @param {any} task
 */
function definition(task) {
  const { name, handler } = task;
  const request = `add task ${shown(name)}`;
  if (typeof name !== "string" || typeof handler !== "string") throw new TypeError(`cannot ${request}: expected texts as name and handler`);
  const { type, value, isMoving } = schedule(request, task);
  const unknown = Object.keys(task).find((key) => !KNOWN.has(key));
  if (unknown !== undefined) throw new TypeError(`cannot ${request}: ${unknown} is no part of a task`);
  if (task.timeZone !== undefined) checkZone(request, task.timeZone);
  const args = [`--handler=${handler}`, "--payload=-"];
  if (type === "manual") args.push("--manual");
  else if (isMoving && task.now === true) args.push("--now");
  else if (isMoving) args.push(`--in=${task.in ?? `${Math.round(task.inSeconds * 1000)}ms`}`);
  else args.push(`${OF_SCHEDULE[type]}=${value}`);
  for (const [key, option] of Object.entries(OPTIONS)) {
    const given = task[key];
    if (given === undefined || given === null) continue;
    let written = given;
    if (key.endsWith("Ms") && typeof given === "number") written = given === 0 ? "0" : `${given}ms`;
    else if (key === "startsAt" || key === "endsAt") written = new Date(given).toISOString();
    args.push(`--${option}=${written}`);
  }
  if (task.ifAbsent === true) args.push("--if-absent");
  if (task.replace === true) args.push("--replace");
  return { args: [...args, name], payload: json(request, task.payload) };
}

/**
 * @param {string} request
 * @param {unknown} payload
 */
function json(request, payload) {
  try {
    return encode(payload) ?? "null";
  } catch (error) {
    throw new TypeError(`cannot ${request}: its payload cannot be written as JSON`, { cause: error });
  }
}

/**
 * Returns the name of a task or the id of a run as an argument.
 * @param {string} call
 * @param {unknown} name
 */
function named(call, name) {
  if ((typeof name === "string" && name !== "") || Number.isSafeInteger(name)) return String(name);
  throw new TypeError(`${call}: expected a name, found ${shown(name)}`);
}
