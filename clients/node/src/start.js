// Child mode: this process is the application, and starts duly as its child, which hands it the runs of its handlers.

import { AsyncLocalStorage } from "node:async_hooks";
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { closeSync, mkdirSync, openSync, realpathSync, rmSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join, resolve } from "node:path";
import process from "node:process";

import { Client } from "./client.js";
import { DatabaseError } from "./errors.js";
import { describe } from "./json.js";
import { Session, checked } from "./session.js";
import { report } from "./streams.js";

/** The delay before the second start in milliseconds, doubled for each further one, up to the longest. */
const BACKOFF = 1000;
const LONGEST = 60_000;
/** A life that lasts longer begins a new row of starts. */
const PROOF = 60_000;
/** How often duly looks for what other processes have changed, unless `args` says something else. */
const POLL = "200ms";

/** @type {AsyncLocalStorage<{ application: Application, run: import("./run.js").Run }>} the handler that calls */
const caller = new AsyncLocalStorage();

/**
 * Starts duly as a child of this process, and serves handlers here.
 * @param {any} options
 * @returns {Promise<Application>} fulfilled when duly takes runs
 */
export async function start(options) {
  const application = new Application(options);
  await application._begin();
  return application;
}

/** A running duly, the child of this process. */
class Application extends Client {
  #work;
  #args;
  #onExit;
  #log;
  /** @type {import("node:child_process").ChildProcess | undefined} */
  #child;
  #starts = 0;
  #hasServed = false;
  #stopping = false;
  /** @type {() => void} ends a wait for the next start */
  #skipWait = () => {};
  /** @type {Promise<void>} */
  #over = Promise.resolve();

  /** @param {any} options */
  constructor({ db, handlers, concurrency, args = [], program, onExit, log = "inherit", signal } = {}) {
    super(db, { program });
    // The application may change its folder later.
    if (!isAddress(this.database)) this.database = resolve(this.database);
    const work = checked("start", { handlers, concurrency });
    const own = [...work.handlers].map(
      ([name, handler]) => /** @type {const} */ ([name, (/** @type {any} */ run) => caller.run({ application: this, run }, handler, run)]),
    );
    this.#work = { ...work, handlers: new Map(own) };
    if (!Array.isArray(args) || args.some((arg) => typeof arg !== "string")) throw new TypeError("start: expected an array of texts as args");
    this.#args = args.some((arg) => /^--poll\b/.test(arg)) ? args : ["--poll", POLL, ...args];
    if (onExit !== undefined && typeof onExit !== "function") throw new TypeError("start: onExit is no function");
    this.#onExit = onExit;
    if (!["inherit", "ignore"].includes(log)) throw new TypeError('start: log: expected "inherit" or "ignore"');
    this.#log = log;
    signal?.throwIfAborted();
    signal?.addEventListener("abort", () => this.stop(), { once: true });
  }

  /** The pid of duly, while it runs. */
  get pid() {
    return this.#child?.pid;
  }

  /** Lets runs finish, ends duly, and waits for its end. A handler of its own does not wait: duly waits for that handler. */
  async stop() {
    this.#stopping = true;
    this.#skipWait();
    this.#child?.kill("SIGTERM");
    const own = caller.getStore();
    if (own?.application === this && !own.run._hasEnded) return;
    await this.#over;
  }

  async [Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose")]() {
    await this.stop();
  }

  async _begin() {
    const life = await this.#start();
    const first = await Promise.race([life.ready, life.exited]);
    if (first !== undefined) throw new DatabaseError("failed", `duly did not start: ${first}; its log says why`);
    this.#hasServed = true;
    this.#over = this.#supervise(life);
  }

  /** @param {Life} life */
  async #supervise(life) {
    for (;;) {
      const since = Date.now();
      const how = await life.exited;
      this.#child = undefined;
      if (this.#stopping) return;
      this.#starts = Date.now() - since >= PROOF ? 1 : this.#starts + 1;
      const delayMs = Math.min(BACKOFF * 2 ** (this.#starts - 1), LONGEST);
      this.#tell({ reason: how, delayMs });
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, delayMs, undefined);
        this.#skipWait = () => {
          clearTimeout(timer);
          resolve(undefined);
        };
      });
      if (this.#stopping) return;
      try {
        life = await this.#start();
      } catch (error) {
        life = { ready: Promise.resolve(), exited: Promise.resolve(/** @type {Error} */ (error).message) };
      }
    }
  }

  /** @param {{ reason: string, delayMs: number }} exit */
  #tell(exit) {
    if (this.#onExit === undefined) report(`duly has ended: ${exit.reason}; it is started again in ${exit.delayMs / 1000} s`);
    else new Promise((resolve) => resolve(this.#onExit(exit))).catch((error) => report(`onExit failed: ${describe(error)}`));
  }

  /** @returns {Promise<Life>} */
  async #start() {
    const path = lockPath(this.database);
    // While this process has the file open, its lock shows that it may run handlers: no scheduler starts their runs meanwhile.
    const file = openSync(path, "wx+", 0o600);
    /** @type {import("node:child_process").ChildProcess} */
    let child;
    try {
      await lock(this.program, file);
      // A database that has gone since is not made anew: its tasks would be missing.
      const create = this.#hasServed ? [] : ["--create"];
      child = spawn(this.program, ["--db", this.database, "run", ...create, "--worker", "-", ...this.#args], {
        // A session of its own: the signals of a terminal reach the application, which decides.
        detached: true,
        env: { ...process.env, DULY_WORKER_FILE: path },
        stdio: ["pipe", "pipe", this.#log === "ignore" ? "ignore" : "inherit"],
      });
    } catch (error) {
      closeSync(file);
      rmSync(path, { force: true });
      throw error;
    }
    this.#child = child;
    if (this.#stopping) child.kill("SIGTERM");
    const { stdin, stdout } = child;
    if (stdin === null || stdout === null) throw new Error("duly has no pipes");
    /** @type {() => void} */
    let welcome = () => {};
    const ready = new Promise((resolve) => (welcome = () => resolve(undefined)));
    const session = new Session(
      this.#work,
      { input: stdout, output: stdin },
      (how, message) => {
        if (how === "failed") report(message ?? "an error of duly");
        // After a broken rule no message follows: duly ends when its input does.
        if (how !== "stopped") stdin.destroy();
      },
      welcome,
    );
    const exited = new Promise((resolve) => {
      child.on("error", (error) => resolve(`it cannot be started: ${error.message}`));
      child.on("close", (code, signal) => resolve(signal === null ? `exit code ${code}` : `killed by ${signal}`));
    });
    // Its handlers have been asked to stop. Their runs wait for them, whoever schedules now.
    exited.then(() => session.idle()).then(() => {
      closeSync(file);
      rmSync(path, { force: true });
    });
    return { ready, exited };
  }
}

/** @typedef {{ ready: Promise<undefined | void>, exited: Promise<string> }} Life */

/**
 * Has a process lock an open file, which it shares with this one.
 * @param {string} program
 * @param {number} file
 */
async function lock(program, file) {
  const how = await new Promise((resolve) => {
    const child = spawn(program, ["duly-lock-input"], { stdio: [file, "ignore", "inherit"] });
    child.on("error", (error) => resolve(error.message));
    child.on("close", (code, signal) => resolve(code === 0 ? undefined : (signal ?? `exit code ${code}`)));
  });
  if (how !== undefined) throw new DatabaseError("no_program", `cannot start duly: ${program} cannot lock a file: ${how}`);
}

/**
 * Returns whether a database is on a server.
 * @param {string} database
 */
function isAddress(database) {
  return /^postgres(ql)?:/.test(database);
}

/**
 * Returns the path of a new file on the file system of the folder where duly keeps its locks.
 * @param {string} database
 */
function lockPath(database) {
  const { DULY_STATE_DIR, XDG_STATE_HOME } = process.env;
  let folder = dirname(resolve(database));
  try {
    folder = dirname(realpathSync(database));
  } catch {
    // duly creates it.
  }
  if (isAddress(database)) {
    const ofUser = process.getuid?.() === 0 ? "/var/lib/duly" : join(homedir(), ".local/state/duly");
    folder = DULY_STATE_DIR || (XDG_STATE_HOME ? join(XDG_STATE_HOME, "duly") : ofUser);
    mkdirSync(folder, { recursive: true, mode: 0o700 });
  }
  return join(folder, `.duly-application-${process.pid}-${randomUUID()}`);
}
