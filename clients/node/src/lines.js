import { MAX_LINE_BYTES } from "./json.js";

const LINE_END = 10;

/** Splits chunks of bytes into lines of text. Each byte is copied at most once, however many chunks a line takes. */
export class Lines {
  /** @type {Buffer[]} chunks of the line that has not ended */
  #parts = [];
  #bytes = 0;
  // Fatal, since U+FFFD in place of a bad byte would be another text.
  #decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

  /**
   * Returns the lines that end in this chunk. Throws if a line is too long or is not UTF-8.
   * @param {Buffer} chunk
   * @returns {string[]}
   */
  push(chunk) {
    const last = chunk.lastIndexOf(LINE_END);
    if (last < 0) {
      this.#keep(chunk);
      return [];
    }
    let ended = chunk.subarray(0, last);
    if (this.#parts.length > 0) {
      this.#keep(chunk.subarray(0, chunk.indexOf(LINE_END)));
      const first = this.#parts;
      first[first.length - 1] = ended;
      ended = Buffer.concat(first);
      this.#parts = [];
      this.#bytes = 0;
    }
    if (last + 1 < chunk.length) this.#keep(chunk.subarray(last + 1));
    let text;
    try {
      text = this.#decoder.decode(ended);
    } catch (error) {
      throw new Error("a line that is not UTF-8", { cause: error });
    }
    const lines = text.split("\n");
    if (lines.some((line) => line.length >= MAX_LINE_BYTES)) throw tooLong();
    return lines;
  }

  /** Whether the input ended within a line. */
  get unfinished() {
    return this.#bytes > 0;
  }

  /** @param {Buffer} part */
  #keep(part) {
    this.#parts.push(part);
    this.#bytes += part.length;
    if (this.#bytes >= MAX_LINE_BYTES) throw tooLong();
  }
}

function tooLong() {
  return new Error(`a line of more than ${MAX_LINE_BYTES} bytes`);
}
