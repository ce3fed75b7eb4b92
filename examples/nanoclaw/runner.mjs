// NanoClaw's runner as a worker of duly: `duly run --tasks nanoclaw.toml` starts it, and gives it the tasks that are due.

import { GiveUp, worker } from "duly";

import { runAgent } from "./agent.mjs";
import { send } from "./outbox.mjs";
import { Rows } from "./rows.mjs";

/**
 * A task as `duly import nanoclaw --handler` stores it: the columns of NanoClaw.
 * @typedef {object} Task
 * @property {string} id
 * @property {string} group_folder
 * @property {string} chat_jid
 * @property {string} prompt
 * @property {"group" | "isolated" | null} context_mode
 * @property {string | null} script
 * @property {string} schedule_type
 * @property {string} schedule_value
 */

const rows = new Rows(process.env.NANOCLAW_DB ?? "store/messages.db");
const ipc = process.env.NANOCLAW_IPC ?? "data/ipc";

/**
 * Carries out a task: asks the agent, sends its answer, writes the row. Each step is done once, however often the run is retried:
 * the answer is kept, the message is an effect, the row has the idempotency key.
 * @param {import("duly").Run<Task>} run
 */
async function agent(run) {
  const task = checked(run.payload);
  const key = run.idempotencyKey;
  const began = Date.now();
  const times = () => ({ run_at: new Date(began).toISOString(), duration_ms: Date.now() - began });
  try {
    let done = rows.kept(key);
    if (done === undefined) {
      // An agent may have paused or cancelled it since the last import.
      const status = rows.status(task.id) ?? "cancelled";
      if (status !== "active") return { skipped: `NanoClaw's task is ${status}` };
      run.progress("the agent is at work");
      const answer = await runAgent(task, run.signal);
      done = { ...times(), answer, logged: 0 };
      rows.keep(key, task.id, done);
    }
    const { answer } = done;
    // Killed between the message and the record of it, the next attempt gives up, and `duly check` reports the run as in doubt:
    // nothing can tell whether the chat has the message.
    if (answer) await run.effect("send", () => send(ipc, task, answer, key));
    rows.succeeded(key, task.id, done);
    return { answer: answer?.slice(0, 200) ?? null };
  } catch (error) {
    // The attempt does not count if duly ends.
    if (run.signal.reason !== "shutdown") report(run, task, times(), error);
    throw error;
  }
}

/**
 * Carries out a task that an agent added with the tools of `duly mcp`: asks the agent, and sends its answer once. Its ledger is duly's, so
 * there is no row of NanoClaw to write.
 * @param {import("duly").Run<{ prompt: string, chat_jid: string, group_folder: string }>} run
 */
async function prompt(run) {
  const task = checked({ ...run.payload, id: run.task });
  const answer = await runAgent(task, run.signal);
  if (answer) await run.effect("send", () => send(ipc, task, answer, run.idempotencyKey));
  return { answer: answer?.slice(0, 200) ?? null };
}

/** Writes the row of a failed attempt. That it cannot be written does not replace the error of the attempt. */
function report(run, task, times, error) {
  try {
    rows.failed(task.id, times, String(error?.message ?? error));
  } catch (other) {
    run.log.warn(`cannot write to task_run_logs: ${other.message}`);
  }
}

/**
 * Refuses a payload that is no task, and a folder that leads elsewhere.
 * @param {Task} task
 * @returns {Task}
 */
function checked(task) {
  const texts = ["id", "group_folder", "chat_jid", "prompt"];
  const missing = texts.find((key) => typeof task?.[key] !== "string" || task[key] === "");
  if (missing !== undefined) throw new GiveUp(`expected a task of NanoClaw 1, found a payload without ${missing}`);
  if (!/^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/.test(task.group_folder)) {
    throw new GiveUp(`expected the name of a group's folder, found ${JSON.stringify(task.group_folder)}`);
  }
  return task;
}

// NanoClaw's own limit of containers.
await worker({ handlers: { agent, prompt }, concurrency: Number(process.env.MAX_CONCURRENT_CONTAINERS ?? 5) });
