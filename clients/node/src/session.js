import { GiveUp, RetryAfter, Skip } from "./errors.js";
import { describe, encode, encodeText, isTooLong } from "./json.js";
import { Lines } from "./lines.js";
import { parseMessage } from "./messages.js";
import { Output } from "./output.js";
import { Run, keysOf } from "./run.js";

const PROTOCOL = 1;
/** Most attempts whose `begin` is one write. */
const MAX_BATCH = 64;
/** A batch whose handlers take longer, in milliseconds, has been too large; a long one lets the input go first. */
const QUICK = 1;
const LONG = 5;
/** How a session ends: duly has stopped it and every run has ended; its messages have ended; or one of them was wrong. */
/** @typedef {"stopped" | "gone" | "failed"} How */

/**
 * Checks the handlers and the concurrency of a call.
 * @param {string} call
 * @param {any} options
 * @returns {{ handlers: Map<string, (run: any) => unknown>, concurrency: number }}
 */
export function checked(call, { handlers, concurrency = 10 } = {}) {
  const entries = Object.entries(handlers ?? {});
  if (entries.length === 0 || entries.length > 1000) {
    throw new TypeError(`${call}: expected 1 to 1000 handlers, as in { handlers: { mail: async (run) => .. } }, found ${entries.length}`);
  }
  for (const [name, handler] of entries) {
    if (typeof handler !== "function") throw new TypeError(`${call}: handler "${name}" is no function`);
    if (name === "" || Buffer.byteLength(name) > 200 || /[\p{Cc}\p{Cs}\ufffd]/u.test(name)) {
      const found = JSON.stringify(name.slice(0, 200));
      throw new TypeError(`${call}: the name of a handler has 1 to 200 bytes, without control characters or U+FFFD, found ${found}`);
    }
  }
  if (!Number.isInteger(concurrency) || concurrency < 1 || concurrency > 1000) {
    throw new TypeError(`${call}: expected a concurrency of 1 to 1000, found ${concurrency}`);
  }
  return { handlers: new Map(entries), concurrency };
}

/** The exchange with one duly process, from `hello` to its end. */
export class Session {
  #handlers;
  #concurrency;
  #input;
  #output;
  #ended;
  #welcome;
  #lines = new Lines();
  #welcomed = false;
  #stopping = false;
  #over = false;
  /** @type {Map<string, Run>} attempts without an end, by run and attempt */
  #runs = new Map();
  /** @type {Run[]} attempts without a `begin` */
  #waiting = [];
  /** @type {Run[]} attempts with a `begin`, whose handler is called next */
  #begun = [];
  #batch = 1;
  #yielding = false;
  /** @type {() => void} */
  #idle = () => {};

  /**
   * @param {{ handlers: Map<string, (run: any) => unknown>, concurrency: number }} work
   * @param {{ input: import("node:stream").Readable, output: import("node:stream").Writable }} streams
   * @param {(how: How, message: string | undefined, running: number) => void} ended called once; `running`: how many attempts it has
   * @param {(database: string) => void} [welcome] called when duly has answered `hello`
   */
  constructor({ handlers, concurrency }, { input, output }, ended, welcome = () => {}) {
    this.#handlers = handlers;
    this.#concurrency = concurrency;
    this.#input = input;
    this.#ended = ended;
    this.#welcome = welcome;
    this.#output = new Output(output, () => {
      this.#proceed();
      this.#endIfIdle();
    });
    output.on("error", (error) => this.#over || this.#fail(`cannot write to duly: ${error.message}`));
    input.on("data", (/** @type {Buffer} */ chunk) => this.#read(chunk));
    input.on("end", () => this.#endOfInput());
    input.on("error", (error) => this.#over || this.#fail(`cannot read from duly: ${error.message}`));
    const names = encode([...this.#handlers.keys()]);
    this.#output.send(`{"type":"hello","protocol":${PROTOCOL},"handlers":${names},"concurrency":${this.#concurrency}}\n`);
  }

  /** Fulfilled when no handler runs any more. After the end of duly none of them is recorded. */
  async idle() {
    if (this.#runs.size > 0) await new Promise((resolve) => (this.#idle = () => resolve(undefined)));
  }

  /** @param {Buffer} chunk */
  #read(chunk) {
    if (this.#over) return;
    try {
      for (const line of this.#lines.push(chunk)) {
        if (line !== "" && line.trim() !== "") this.#take(parseMessage(line));
      }
    } catch (error) {
      this.#fail(`error of duly: ${/** @type {Error} */ (error).message}`);
    }
    this.#proceed();
  }

  /** @param {any} message */
  #take(message) {
    if (message.type === "run") this.#takeRun(message);
    else if (message.type === "ping") this.#output.send('{"type":"pong"}\n');
    else if (message.type === "effect") this.#takeEffect(message);
    else if (message.type === "cancel") this.#runs.get(keysOf(message))?._cancel(message.reason);
    else if (message.type === "error") this.#fail(`duly ends this worker: ${message.error}`);
    else if (message.type === "welcome") this.#takeWelcome(message);
    else if (message.type === "stop") {
      this.#stopping = true;
      this.#endIfIdle();
    }
  }

  /** @param {any} message */
  #takeWelcome(message) {
    if (this.#welcomed) throw new Error("a second welcome");
    if (message.protocol !== PROTOCOL) throw new Error(`it speaks protocol ${message.protocol}, and this client ${PROTOCOL}`);
    this.#welcomed = true;
    this.#welcome(message.database);
  }

  /** @param {any} message */
  #takeRun(message) {
    const keys = keysOf(message);
    if (!this.#welcomed) throw new Error(`a run before its welcome: ${keys}`);
    if (this.#stopping) throw new Error(`a run after its stop: ${keys}`);
    if (this.#runs.has(keys)) throw new Error(`an attempt that this worker has already: ${keys}`);
    if (!this.#handlers.has(message.handler)) throw new Error(`a run for a handler that this worker has not named: "${message.handler}"`);
    if (this.#runs.size >= this.#concurrency) throw new Error(`a run beyond the concurrency of ${this.#concurrency}: ${keys}`);
    const run = new Run(message, this.#output);
    this.#runs.set(keys, run);
    this.#waiting.push(run);
  }

  /** @param {any} message */
  #takeEffect(message) {
    const run = this.#runs.get(keysOf(message));
    if (run === undefined || !run._answer(message)) {
      throw new Error(`an answer about an effect that was not asked for: ${keysOf(message)}, key "${message.key}"`);
    }
  }

  /**
   * Calls the handlers of attempts that were handed over, after their `begin` was written: an attempt whose handler kills the
   * process must count. Where handlers are slow and synchronous, each is begun for itself.
   */
  #proceed() {
    while (!this.#over && !this.#yielding) {
      if (this.#begun.length === 0) {
        if (this.#waiting.length === 0) return;
        this.#begin();
      }
      this.#output.flush();
      // Continued when the pipe has room.
      if (!this.#output.written) return;
      this.#callBegun();
    }
  }

  #begin() {
    for (const run of this.#waiting.splice(0, this.#batch)) {
      if (run._reason !== undefined) {
        this.#failed(run, `cancelled before it began: ${run._reason}`, "true");
        continue;
      }
      this.#output.send(`{"type":"begin",${keysOf(run)}}\n`);
      this.#begun.push(run);
    }
  }

  #callBegun() {
    const start = performance.now();
    const runs = this.#begun;
    this.#begun = [];
    for (const run of runs) this.#call(run);
    const took = performance.now() - start;
    this.#batch = took < QUICK ? Math.min(this.#batch * 2, MAX_BATCH) : 1;
    if (took < LONG) return;
    // The input goes first: a cancel, a ping, the end.
    this.#yielding = true;
    this.#output.flush();
    setImmediate(() => {
      this.#yielding = false;
      this.#proceed();
    });
  }

  /** @param {Run} run */
  #call(run) {
    const handler = /** @type {(run: Run) => unknown} */ (this.#handlers.get(run.handler));
    try {
      const returned = handler(run);
      if (returned instanceof Promise || typeof (/** @type {any} */ (returned)?.then) === "function") {
        Promise.resolve(returned).then(
          (value) => this.#returned(run, value),
          (error) => this.#threw(run, error),
        );
      } else {
        this.#returned(run, returned);
      }
    } catch (error) {
      this.#threw(run, error);
    }
  }

  /**
   * @param {Run} run
   * @param {unknown} value
   */
  #returned(run, value) {
    const unfinished = run._unfinished;
    if (unfinished !== undefined) {
      // The outcome of an effect cannot be recorded after the end of its attempt.
      Promise.allSettled(unfinished).then(() => this.#returned(run, value));
      return;
    }
    const keys = keysOf(run);
    let line;
    try {
      const json = encode(value);
      line = json === undefined ? `{"type":"done",${keys}}\n` : `{"type":"done",${keys},"result":${json}}\n`;
    } catch (error) {
      this.#failed(run, `the handler returned, but its result cannot be written as JSON: ${describe(error)}`, "false");
      return;
    }
    if (isTooLong(line)) {
      this.#failed(run, `the handler returned, but its result has ${Buffer.byteLength(line)} bytes: return less, or store it`, "false");
      return;
    }
    this.#end(run, line);
  }

  /**
   * @param {Run} run
   * @param {unknown} error
   */
  #threw(run, error) {
    const unfinished = run._unfinished;
    if (unfinished !== undefined) {
      Promise.allSettled(unfinished).then(() => this.#threw(run, error));
      return;
    }
    let retry = "true";
    if (error instanceof GiveUp) retry = "false";
    else if (error instanceof Skip) retry = `"skip"`;
    else if (error instanceof RetryAfter) retry = `"${error.delayMs}ms"`;
    else if (error instanceof Error && error.stack !== undefined) run.log.debug(error.stack);
    const cancelled = run._reason !== undefined && error === run._reason;
    this.#failed(run, cancelled ? `stopped after a cancel: ${error}` : describe(error), retry);
  }

  /**
   * @param {Run} run
   * @param {string} error
   * @param {string} retry as JSON
   */
  #failed(run, error, retry) {
    this.#end(run, `{"type":"failed",${keysOf(run)},"error":${encodeText(error)},"retry":${retry}}\n`);
  }

  /**
   * @param {Run} run
   * @param {string} line
   */
  #end(run, line) {
    run._end();
    this.#runs.delete(keysOf(run));
    if (this.#over) {
      if (this.#runs.size === 0) this.#idle();
      return;
    }
    this.#output.send(line);
    this.#endIfIdle();
  }

  /** Ends after a `stop`, when no attempt is left and everything is written. */
  #endIfIdle() {
    if (!this.#stopping || this.#runs.size > 0 || this.#over) return;
    this.#output.flush();
    // Called again when the pipe has room.
    if (!this.#output.written) return;
    this.#over = true;
    this.#input.removeAllListeners("data");
    this.#ended("stopped", undefined, 0);
  }

  #endOfInput() {
    if (this.#over) return;
    // duly has ended, or ends this worker: nothing more is recorded.
    this.#leave("gone", this.#lines.unfinished ? "its input ended within a line" : undefined);
  }

  /** @param {string} message */
  #fail(message) {
    if (!this.#over) this.#leave("failed", message);
  }

  /**
   * @param {How} how
   * @param {string} [message]
   */
  #leave(how, message) {
    this.#over = true;
    const running = this.#runs.size;
    // Those that have not begun are not called.
    for (const run of [...this.#waiting.splice(0), ...this.#begun.splice(0)]) this.#runs.delete(keysOf(run));
    try {
      for (const run of this.#runs.values()) run._lose();
    } finally {
      this.#ended(how, message, running);
    }
  }
}
