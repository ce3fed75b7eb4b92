import process from "node:process";

import { reportCrashes } from "./crashes.js";
import { Session, checked } from "./session.js";
import { isTerminal, report, takeStreams } from "./streams.js";

/** How long the application may take to end by itself after the last run, in milliseconds. */
const CLEAN_UP = 1000;

let started = false;

/**
 * Runs handlers for duly, over stdin and stdout, until duly stops this worker.
 * @param {{ handlers: Record<string, (run: any) => unknown>, concurrency?: number }} options
 * @returns {Promise<void>} fulfilled after the last run, when duly has asked the worker to stop
 */
export function worker(options) {
  const work = checked("worker", options);
  if (started) throw new Error("worker() was called before: a process is one worker");
  if (isTerminal()) {
    throw new Error("standard input is no pipe: a worker is started by duly, as in duly run --worker 'NAME=node worker.mjs'");
  }
  started = true;
  const streams = takeStreams();
  reportCrashes();
  return new Promise((resolve) => {
    new Session(work, streams, (how, message, running) => {
      if (how === "stopped") {
        process.exitCode ??= 0;
        streams.input.destroy();
        // Does not keep the process alive, and ends it if something else does.
        setTimeout(() => process.exit(), CLEAN_UP).unref();
        resolve();
        return;
      }
      if (message !== undefined) report(message);
      process.exit(how === "gone" && running === 0 ? 0 : 1);
    });
    streams.protect();
  });
}
