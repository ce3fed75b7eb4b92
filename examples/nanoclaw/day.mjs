// A day of the agent of the group `family`, played by a script: `DULY_DB=duly.db node day.mjs`. It uses the tools of `duly mcp` in place of
// NanoClaw's own, with the same names: a post each day at one, a reminder, a pause, and why nothing ran. `duly run --tasks nanoclaw.toml`
// runs beside it.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { setTimeout as wait } from "node:timers/promises";

/** The tools of one agent, over the Model Context Protocol. A real agent has a client of its SDK in this place. */
export class Tools {
  /** @param {string[]} options of `duly mcp` */
  constructor(options, env = process.env) {
    this.process = spawn(env.DULY_BIN ?? "duly", ["mcp", ...options], { env, stdio: ["pipe", "pipe", "inherit"] });
    this.waiting = new Map();
    this.ended = new Promise((resolve) => this.process.on("close", resolve));
    createInterface({ input: this.process.stdout }).on("line", (line) => {
      const answer = JSON.parse(line);
      this.waiting.get(answer.id)?.(answer);
      this.waiting.delete(answer.id);
    });
  }

  /** Calls a tool, and returns its structured answer, or throws the reason of a refusal. */
  async call(name, args = {}) {
    const id = `call-${this.waiting.size}-${Math.random()}`;
    const _meta = {
      "io.modelcontextprotocol/protocolVersion": "2026-07-28",
      "io.modelcontextprotocol/clientInfo": { name: "nanoclaw", version: "1" },
      "io.modelcontextprotocol/clientCapabilities": {},
    };
    const answered = new Promise((resolve) => this.waiting.set(id, resolve));
    const params = { name, arguments: args, _meta };
    this.process.stdin.write(`${JSON.stringify({ jsonrpc: "2.0", id, method: "tools/call", params })}\n`);
    const { result, error } = await answered;
    if (error) throw new Error(error.message);
    if (result.isError) throw new Error(result.content[0].text);
    return result.structuredContent;
  }

  /** Closes the stream, which ends `duly mcp`. */
  async close() {
    this.process.stdin.end();
    await this.ended;
  }
}

const chat = { chat_jid: "120363041@g.us", group_folder: "family" };
const prompt = (text) => ({ handler: "prompt", payload: { prompt: text, ...chat } });
const options = [
  "--scope", "agent:family/", "--allow", "add,trigger,pause,remove", "--handlers", "prompt", "--manifest", "family.toml", "--tz", "Europe/Rome",
];

/** What the agent does in a day. Returns what it tells its user. */
export async function day(tools, say = console.log) {
  // The post of the day, and one that the user will not want today. The same call again changes nothing.
  const post = { name: "agent:family/carousel", schedule: "every day at 13:00", ...prompt("Make the carousel of today") };
  say(`schedule_task: ${(await tools.call("schedule_task", post)).change}`);
  say(`schedule_task again: ${(await tools.call("schedule_task", post)).change}`);
  await tools.call("schedule_task", { name: "agent:family/news", schedule: "every day at 13:00", ...prompt("Sum up the news") });
  // A reminder. On another day it has run: without replace it would be refused, since it would not run again.
  const reminder = { name: "agent:family/dentist", schedule: "in 1s", replace: true, ...prompt("Remind Anna of the dentist") };
  say(`reminder: ${(await tools.call("schedule_task", reminder)).remarks[0]}`);
  // Not in a chat of others, and no command.
  const elsewhere = { ...prompt("Hello"), payload: { prompt: "Hello", ...chat, chat_jid: "120363042@g.us" } };
  for (const [what, args] of [
    ["another chat", { name: "agent:family/x", schedule: "in 1s", ...elsewhere }],
    ["another group", { ...post, name: "agent:main/x" }],
    ["a command", { name: "agent:family/x", schedule: "in 1s", handler: "command", payload: { argv: ["id"] } }],
  ]) {
    say(`${what}: ${await tools.call("schedule_task", args).then(() => "done", (error) => error.message)}`);
  }
  // The user wants no news today.
  await tools.call("pause_task", { name: "agent:family/news" });
  const { tasks } = await tools.call("list_tasks");
  tasks.forEach((task) => say(`${task.name}: ${task.status}, next ${task.next_run?.local ?? "none"}`));
}

/** "Why did nothing run at 13:00?" */
export async function why(tools, name, say = console.log) {
  const { reasons } = await tools.call("history", { name, around: "13:00" });
  reasons.forEach((reason) => say(`${name} at 13:00: ${reason}`));
  return reasons;
}

if (process.argv[1]?.endsWith("day.mjs")) {
  const tools = new Tools(options);
  await day(tools);
  await wait(3000);
  await why(tools, "agent:family/news");
  await tools.close();
}
