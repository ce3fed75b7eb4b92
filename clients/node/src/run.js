import { GiveUp } from "./errors.js";
import { describe, encode, encodeText, isTooLong } from "./json.js";
import { Progress } from "./output.js";

/** What an effect is answered after the end of duly. */
const LOST = { state: "refused", error: "duly has ended" };
const LEVELS = /** @type {const} */ (["error", "warn", "info", "debug", "trace"]);

/** One attempt of a run, as its handler sees it. */
export class Run {
  #output;
  /** @type {AbortController | undefined} made on demand: most handlers do not look at it */
  #controller;
  /** @type {string | undefined} */
  #reason;
  /** @type {Progress | undefined} */
  #progress;
  /** @type {Map<string, (answer: any) => void>} effects that duly has not answered yet, by key */
  #asked = new Map();
  /** @type {Map<string, Promise<unknown>>} effects at work, by key */
  #effects = new Map();
  #ended = false;
  #lost = false;
  /** @type {any} */
  #log;

  /**
   * @param {any} message a checked message `run`
   * @param {import("./output.js").Output} output
   */
  constructor(message, output) {
    this.run = message.run;
    this.attempt = message.attempt;
    this.task = message.task;
    this.handler = message.handler;
    this.payload = message.payload;
    this.origin = message.origin;
    this.idempotencyKey = message.idempotency_key;
    this.scheduledFor = new Date(message.scheduled_for);
    this.deadline = message.deadline === null ? null : new Date(message.deadline);
    this.#output = output;
  }

  get signal() {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      if (this.#reason !== undefined) this.#controller.abort(this.#reason);
    }
    return this.#controller.signal;
  }

  /** @param {unknown} text */
  progress(text) {
    if (this.#ended) return;
    this.#progress ??= new Progress(keysOf(this));
    this.#progress.text = encodeText(text);
    this.#output.sendProgress(this.#progress);
  }

  get log() {
    this.#log ??= Object.freeze(
      Object.fromEntries(LEVELS.map((level) => [level, (/** @type {unknown} */ text) => this.#writeLog(level, text)])),
    );
    return this.#log;
  }

  /**
   * @param {string} level
   * @param {unknown} text
   */
  #writeLog(level, text) {
    // A line about a run that the worker no longer has would be an error.
    const run = this.#ended ? "" : `,"run":${this.run}`;
    this.#output.sendLog(`{"type":"log","level":"${level}"${run},"text":${encodeText(text)}}\n`);
  }

  /**
   * @param {string} key
   * @param {() => unknown} perform
   * @param {{ lookUp?: () => unknown }} [options]
   */
  effect(key, perform, { lookUp } = {}) {
    if (typeof key !== "string" || key === "" || Buffer.byteLength(key) > 200) {
      return Promise.reject(new GiveUp(`the key of an effect is a text of 1 to 200 bytes, found ${JSON.stringify(key)}`));
    }
    if (typeof perform !== "function") return Promise.reject(new TypeError(`effect "${key}": expected a function`));
    if (this.#ended) return Promise.reject(new Error(`effect "${key}" is refused: its attempt has ended`));
    if (this.#effects.has(key)) {
      return Promise.reject(new GiveUp(`effect "${key}" is refused: this attempt is performing it already`));
    }
    const effect = this.#perform(key, perform, lookUp).finally(() => this.#effects.delete(key));
    this.#effects.set(key, effect);
    return effect;
  }

  /**
   * @param {string} key
   * @param {() => unknown} perform
   * @param {(() => unknown) | undefined} lookUp
   */
  async #perform(key, perform, lookUp) {
    const begun = await this.#ask("effect_begin", key, "");
    if (begun.state === "done") return begun.value;
    if (begun.state === "in_doubt") {
      if (lookUp === undefined) {
        throw new GiveUp(`effect "${key}" is in doubt: an earlier attempt began it and did not record how it ended`);
      }
      const found = await lookUp();
      if (found !== undefined) return this.#store(key, found);
    } else if (begun.state !== "begin") {
      throw refused(key, begun);
    }
    let value;
    try {
      value = await perform();
    } catch (error) {
      const undone = await this.#ask("effect_failed", key, "");
      if (undone.state !== "undone") this.log.warn(`effect "${key}" failed, and stays in doubt: ${undone.error}`);
      throw error;
    }
    return this.#store(key, value);
  }

  /**
   * @param {string} key
   * @param {unknown} value
   */
  async #store(key, value) {
    let json;
    try {
      json = encode(value) ?? "null";
    } catch (error) {
      throw new GiveUp(`effect "${key}" was performed, and is in doubt: its value cannot be written as JSON`, { cause: error });
    }
    const stored = await this.#ask("effect_done", key, `,"value":${json}`);
    if (stored.state !== "stored") throw refused(key, stored);
    return value;
  }

  /**
   * @param {string} type
   * @param {string} key
   * @param {string} rest
   * @returns {Promise<any>}
   */
  #ask(type, key, rest) {
    const line = `{"type":"${type}",${keysOf(this)},"key":${encode(key)}${rest}}\n`;
    if (this.#lost) return Promise.resolve(LOST);
    if (isTooLong(line)) throw new GiveUp(`effect "${key}" was performed, and is in doubt: its value is longer than a message may be`);
    return new Promise((resolve) => {
      this.#asked.set(key, resolve);
      this.#output.send(line);
    });
  }

  // What follows is for the worker only; index.d.ts does not declare it.

  /**
   * Takes an answer about an effect. Returns whether one was asked for.
   * @param {any} message
   */
  _answer(message) {
    const resolve = this.#asked.get(message.key);
    if (resolve === undefined) return false;
    this.#asked.delete(message.key);
    resolve(message);
    return true;
  }

  /** @param {string} reason */
  _cancel(reason) {
    this.#reason ??= reason;
    this.#controller?.abort(reason);
  }

  /** duly has ended: nothing is answered or recorded any more. */
  _lose() {
    this.#lost = true;
    this._cancel("shutdown");
    for (const resolve of this.#asked.values()) resolve(LOST);
    this.#asked.clear();
  }

  get _reason() {
    return this.#reason;
  }

  /** The effects that the handler did not wait for, or undefined. */
  get _unfinished() {
    return this.#effects.size === 0 ? undefined : [...this.#effects.values()];
  }

  _end() {
    this.#ended = true;
  }

  get _hasEnded() {
    return this.#ended;
  }
}

/**
 * Returns the keys that name an attempt, as JSON without braces.
 * @param {{ run: number, attempt: number }} run
 */
export function keysOf(run) {
  return `"run":${run.run},"attempt":${run.attempt}`;
}

/**
 * @param {string} key
 * @param {any} answer
 */
function refused(key, answer) {
  return new Error(`effect "${key}" is refused: ${answer.error ?? describe(answer)}`);
}
