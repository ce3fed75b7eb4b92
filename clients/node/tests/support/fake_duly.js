import assert from "node:assert/strict";
import { spawn } from "node:child_process";

const CLIENT = new URL("../../src/index.js", import.meta.url).href;
const DEADLINE_MS = 20_000;

/** The side of duly: starts a worker, and speaks the protocol with it. Every wait has a deadline. */
export class FakeDuly {
  /** Messages that were not expected yet. */
  messages = [];
  stderr = "";
  #rest = "";
  #wake = () => {};
  #closed;

  /** @param {string} source the worker's program, without the import of the client */
  constructor(source) {
    const program = `import { worker, GiveUp, RetryAfter, Skip } from ${JSON.stringify(CLIENT)};\n${source}`;
    this.process = spawn(process.execPath, ["--input-type=module", "-e", program], { stdio: ["pipe", "pipe", "pipe"] });
    this.process.stdout.setEncoding("utf8").on("data", (text) => this.#take(text));
    this.process.stderr.setEncoding("utf8").on("data", (text) => {
      this.stderr += text;
      this.#wake();
    });
    // A worker that has ended does not read.
    this.process.stdin.on("error", () => {});
    this.#closed = new Promise((resolve) => this.process.on("close", (code, signal) => resolve(signal ?? code)));
  }

  /** Starts a worker, and welcomes it. */
  static async start(source) {
    const duly = new FakeDuly(source);
    duly.hello = await duly.next("hello");
    duly.send({ type: "welcome", protocol: 1, worker: "mail", copy: 1, database: "/srv/agent.db" });
    return duly;
  }

  /** Starts a worker with one handler, `work`. */
  static async handling(work, concurrency = 4) {
    return FakeDuly.start(`worker({ handlers: { work: ${work} }, concurrency: ${concurrency} });`);
  }

  send(message) {
    this.write(`${JSON.stringify(message)}\n`);
  }

  write(bytes) {
    this.process.stdin.write(bytes);
  }

  run(run, payload = null, others = {}) {
    this.send(runMessage(run, payload, others));
  }

  answer(run, key, state, others = {}) {
    this.send({ type: "effect", run, attempt: 1, key, state, ...others });
  }

  /** The next message, which must have this type. */
  async next(type) {
    await this.until(() => this.messages.length > 0, `a message "${type}"`);
    const message = this.messages.shift();
    assert.equal(message.type, type, JSON.stringify(message));
    return message;
  }

  /** The next messages of these types, without their types. */
  async all(...types) {
    const found = [];
    for (const type of types) found.push(await this.next(type));
    return found;
  }

  /** Waits until something holds after a message or a line of stderr. */
  async until(holds, what) {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(
        () => reject(new Error(`expected ${what} within 20 s; ${JSON.stringify(this.messages.slice(0, 5))}; ${this.stderr}`)),
        DEADLINE_MS,
      );
    });
    try {
      while (!holds()) await Promise.race([new Promise((resolve) => (this.#wake = resolve)), late]);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Waits until the worker has ended. Returns its exit code, or the name of its signal. */
  async end() {
    const timer = setTimeout(() => this.process.kill("SIGKILL"), DEADLINE_MS);
    const code = await this.#closed;
    clearTimeout(timer);
    return code;
  }

  /** Sends `stop`, and expects an end with exit code 0 and no further message. */
  async stop() {
    this.send({ type: "stop", deadline: "2027-03-14T18:00:30.000Z" });
    assert.equal(await this.end(), 0, this.stderr);
    assert.deepEqual(this.messages, []);
  }

  #take(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    for (const line of lines) {
      assert.ok(Buffer.byteLength(line) < 1024 * 1024, "a line of more than 1 MiB");
      try {
        this.messages.push(JSON.parse(line));
      } catch {
        this.messages.push({ type: "no message", line });
      }
    }
    this.#wake();
  }
}

export function runMessage(run, payload = null, others = {}) {
  return {
    type: "run", run, attempt: 1, task: "digest", handler: "work", payload, scheduled_for: "2027-03-14T06:00:00.000Z",
    origin: "schedule", idempotency_key: "digest/2027-03-14T06:00:00Z", deadline: null, ...others,
  };
}
