// Stands for the library of a chat service: it owns the connection and the main loop. A line of stdin is a message, a line of stdout a post.
import { createInterface } from "node:readline";

export class Gateway {
  #posts = 0;

  /** Posts a message, and returns its id. */
  async post(channel, text) {
    this.#posts += 1;
    console.log(`#${channel}: ${text}`);
    return `${process.pid}-${this.#posts}`;
  }

  /** Calls `onMessage` with each message, until the connection ends. */
  async run(onMessage) {
    for await (const line of createInterface({ input: process.stdin })) await onMessage(line);
  }
}
