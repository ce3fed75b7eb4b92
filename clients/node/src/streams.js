// Standard input and output of a worker carry the messages of duly. They are taken when this module is imported, before other code runs:
// what it prints goes to standard error, the log of the worker, and its child processes inherit neither.

import { closeSync, fstatSync, openSync, writeSync } from "node:fs";
import { Socket } from "node:net";
import process from "node:process";

/** Set for child processes, whose streams are their own. */
const TAKEN = "DULY_WORKER_TAKEN";

/** `protect`: has what the application prints go to standard error, once the session has the stream. */
/** @typedef {{ input: import("node:stream").Readable, output: import("node:stream").Writable, protect: () => void }} Streams */

/** @type {{ input: number, output: number } | undefined} */
let taken;

if (process.env.DULY_WORKER !== undefined && process.env[TAKEN] === undefined) take();

/** Takes the descriptors, if they are pipes and the system can open them anew. */
function take() {
  try {
    if (!fstatSync(0).isFIFO() || !fstatSync(1).isFIFO()) return;
    const input = openSync("/dev/fd/0", "r");
    const output = openSync("/dev/fd/1", "w");
    replace(0, "/dev/null", "r");
    replace(1, "/dev/fd/2", "a");
    taken = { input, output };
    process.env[TAKEN] = String(process.pid);
  } catch {
    // worker() uses the streams of the process.
  }
}

/**
 * @param {number} descriptor
 * @param {string} path
 * @param {string} flags
 */
function replace(descriptor, path, flags) {
  closeSync(descriptor);
  // The lowest descriptor that is free.
  let opened;
  try {
    opened = openSync(path, flags);
  } catch {
    opened = openSync("/dev/null", flags);
  }
  if (opened !== descriptor) closeSync(opened);
}

/**
 * Returns the streams of the messages.
 * @returns {Streams}
 */
export function takeStreams() {
  if (taken === undefined && process.env[TAKEN] === undefined) take();
  if (taken !== undefined) {
    return {
      input: new Socket({ fd: taken.input, readable: true, writable: false }),
      output: new Socket({ fd: taken.output, readable: false, writable: true }),
      protect: () => {},
    };
  }
  const { stdin: input, stdout: output } = process;
  const protect = () => {
    output.write = /** @type {any} */ (process.stderr.write.bind(process.stderr));
  };
  return { input, output, protect };
}

/** Whether standard input cannot carry messages: it is a terminal, or /dev/null. */
export function isTerminal() {
  try {
    return taken === undefined && fstatSync(0).isCharacterDevice();
  } catch {
    return false;
  }
}

/**
 * Writes a line of the log of the worker.
 * @param {string} message
 */
export function report(message) {
  try {
    // process.exit may follow, and would not wait for a stream.
    writeSync(2, `duly: ${message}\n`);
  } catch {
    // The reader of the log is gone, too.
  }
}
