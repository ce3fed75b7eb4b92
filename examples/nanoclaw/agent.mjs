// A stand-in for the agent. This is the file to replace: everything else stays as it is.

import { setTimeout } from "node:timers/promises";

/**
 * Runs the agent on a task, and returns its answer, or null if there is nothing to send.
 *
 * In NanoClaw, call `runContainerAgent` of `dist/container-runner.js` here, as its `runTask` does: with the registered group of
 * `task.group_folder`, and with the session of the group if `task.context_mode` is "group". Return the last `result` of its
 * output, and throw an error if its `status` is "error". End the container when `signal` is aborted.
 *
 * @param {import("./runner.mjs").Task} task
 * @param {AbortSignal} signal aborted when the attempt is to stop
 * @returns {Promise<string | null>}
 */
export async function runAgent(task, signal) {
  await setTimeout(200, undefined, { signal });
  return `Done: ${task.prompt}`;
}
