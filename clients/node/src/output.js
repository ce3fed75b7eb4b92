/** Most UTF-16 units of log that wait for a reader. Other messages are as few as the attempts and their effects. */
const MAX_WAITING_LOG = 256 * 1024;

/**
 * The messages to duly. Those of one turn of the event loop are one write. While the pipe is full they wait here: newer
 * progress replaces older, log beyond a limit is dropped and counted, everything else is kept.
 */
export class Output {
  /** @type {(string | Progress)[]} */
  #queue = [];
  #scheduled = false;
  #full = false;
  #waitingLog = 0;
  #droppedLog = 0;
  #stream;
  #write;
  #onRoom;

  /**
   * @param {import("node:stream").Writable} stream
   * @param {() => void} onRoom called when everything has been written after the pipe was full
   */
  constructor(stream, onRoom) {
    this.#stream = stream;
    // Bound now: the worker replaces it for the application.
    this.#write = stream.write.bind(stream);
    this.#onRoom = onRoom;
  }

  /** @param {string} line a message with its line end */
  send(line) {
    this.#queue.push(line);
    this.#schedule();
  }

  /** @param {Progress} progress it may still change until it is written */
  sendProgress(progress) {
    if (progress.waits) return;
    progress.waits = true;
    this.#queue.push(progress);
    this.#schedule();
  }

  /** @param {string} line */
  sendLog(line) {
    if (this.#waitingLog + line.length > MAX_WAITING_LOG && this.#waitingLog > 0) {
      this.#droppedLog += 1;
      return;
    }
    this.#waitingLog += line.length;
    this.send(line);
  }

  /** Whether the operating system has everything. */
  get written() {
    return !this.#full && this.#queue.length === 0;
  }

  /** Writes what waits, now, unless the pipe is full. */
  flush() {
    if (this.#full || this.#queue.length === 0) return;
    let text = "";
    for (const message of this.#queue) text += typeof message === "string" ? message : message.take();
    this.#queue = [];
    this.#waitingLog = 0;
    if (this.#droppedLog > 0) {
      const lines = `${this.#droppedLog} lines of log were dropped: duly read too slowly`;
      text += `{"type":"log","level":"warn","text":"${lines}"}\n`;
      this.#droppedLog = 0;
    }
    this.#full = true;
    this.#write(text, "utf8", this.#afterWrite);
    // Usually the pipe has room, and the system has taken everything by now.
    if (this.#stream.writableLength === 0) this.#full = false;
  }

  #schedule() {
    if (this.#scheduled || this.#full) return;
    this.#scheduled = true;
    setImmediate(this.#turn);
  }

  #turn = () => {
    this.#scheduled = false;
    this.flush();
    if (this.written) this.#onRoom();
  };

  #afterWrite = () => {
    if (!this.#full || this.#stream.writableLength > 0) return;
    this.#full = false;
    this.flush();
    if (this.written) this.#onRoom();
  };
}

/** The newest progress of an attempt. */
export class Progress {
  /** Whether it is in the queue. */
  waits = false;
  /** The newest text, as JSON. */
  text = '""';
  #start;

  /** @param {string} attempt the keys of the attempt, as JSON without braces */
  constructor(attempt) {
    this.#start = `{"type":"progress",${attempt},"text":`;
  }

  /** Returns the message, as it leaves the queue. */
  take() {
    this.waits = false;
    return `${this.#start}${this.text}}\n`;
  }
}
