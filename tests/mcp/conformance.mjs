// Drives `duly mcp` with the official TypeScript clients of the Model Context Protocol: `DULY_BIN=duly node conformance.mjs`.
//
// @modelcontextprotocol/client (both kinds of versions) and @modelcontextprotocol/sdk (versions with a handshake): every tool, errors,
// cancellation, two requests at once, and 1 MB of junk before the first request.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { Client as CurrentClient } from "@modelcontextprotocol/client";
import { StdioClientTransport as CurrentTransport } from "@modelcontextprotocol/client/stdio";
import { Client as FormerClient } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport as FormerTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const duly = process.env.DULY_BIN;
const scope = "agent:anna/";
const tools = [
  "list_tasks", "show_task", "preview", "history", "run_output", "check", "schedule_task", "trigger_task", "retry_run", "pause_task",
  "resume_task", "cancel_run", "cancel_task",
];
const me = { name: "conformance", version: "1.0.0" };

/** Calls a tool that must do what it is asked. */
async function done(client, name, args = {}, options = undefined) {
  const result = await (client instanceof FormerClient
    ? client.callTool({ name, arguments: args }, undefined, options)
    : client.callTool({ name, arguments: args }, options));
  assert.ok(!result.isError, `${name}: ${JSON.stringify(result.content)}`);
  assert.ok(result.content[0].text && Array.isArray(result.structuredContent.next), name);
  return result.structuredContent;
}

async function refused(client, name, args, says) {
  const result = await client.callTool({ name, arguments: args });
  assert.ok(result.isError && result.content[0].text.includes(says), `${name}: ${JSON.stringify(result.content)}`);
}

async function everyTool(client) {
  assert.deepEqual((await client.listTools()).tools.map((tool) => tool.name), tools);
  const name = `${scope}water`;
  const preview = await done(client, "preview", { schedule: "every weekday at 7:30" });
  assert.equal(preview.schedule.value, "30 7 * * 1-5");
  const task = { name, schedule: "every weekday at 7:30", handler: "remind", payload: { text: "water" } };
  assert.ok((await done(client, "schedule_task", { ...task, dry_run: true })).dry_run);
  assert.equal((await done(client, "schedule_task", task)).change, "added");
  assert.equal((await done(client, "schedule_task", task)).change, "unchanged");
  assert.deepEqual((await done(client, "list_tasks")).tasks.map((one) => one.name), [name]);
  const { run } = await done(client, "trigger_task", { name, key: "one" });
  assert.equal((await done(client, "run_output", { run })).run.status, "queued");
  await done(client, "cancel_run", { run });
  assert.ok((await done(client, "retry_run", { run })).run > run);
  await done(client, "pause_task", { name });
  assert.equal((await done(client, "show_task", { name })).task.status, "paused");
  assert.ok((await done(client, "history", { name, around: "13:00" })).reasons.length);
  assert.ok((await done(client, "history")).runs.length);
  await done(client, "resume_task", { name });
  assert.ok(Array.isArray((await done(client, "check")).problems));
  await done(client, "cancel_task", { name });
  assert.deepEqual((await done(client, "list_tasks")).tasks, []);
}

async function errors(client) {
  await refused(client, "show_task", { name: "payroll" }, "there is no task");
  await refused(client, "preview", { schedule: "@daily", count: 1000 }, "arguments.count");
  await refused(client, "preview", { schedule: "x".repeat(1_000_000) }, "arguments.schedule");
  await refused(client, "schedule_task", { name: `${scope}x`, schedule: "@daily", handler: "command" }, "expected one of remind");
  const isInvalid = (error) => error.code === -32602;
  await assert.rejects(client.callTool({ name: "rm", arguments: {} }), isInvalid);
  await assert.rejects(client.readResource({ uri: "file:///etc/passwd" }), isInvalid);
  assert.deepEqual((await client.listResources()).resources.map((one) => one.uri), ["duly://reference"]);
  assert.ok((await client.readResource({ uri: "duly://reference" })).contents[0].text.includes("remind"));
}

/** A cancelled request leaves its place to others: there are only 16. Meanwhile, other requests are answered. */
async function atOnce(client) {
  const name = `${scope}wait`;
  await done(client, "schedule_task", { name, schedule: "manual", handler: "remind", payload: null });
  const { run } = await done(client, "trigger_task", { name });
  for (let times = 0; times < 20; times += 1) {
    await assert.rejects(done(client, "run_output", { run, wait_seconds: 60 }, { signal: AbortSignal.timeout(50) }));
  }
  let ended = 0;
  const wait = () => done(client, "run_output", { run, wait_seconds: 60 }).then((answer) => (ended += answer.run.status === "cancelled"));
  const waiting = [wait(), wait()];
  assert.equal((await done(client, "list_tasks")).tasks.length, 1);
  assert.equal(ended, 0);
  await done(client, "cancel_run", { run });
  await Promise.all(waiting);
  assert.equal(ended, 2);
  await done(client, "cancel_task", { name });
}

const clients = [
  ["@modelcontextprotocol/sdk", "2025-11-25", () => new FormerClient(me), FormerTransport],
  ["@modelcontextprotocol/client", "2025-11-25", () => new CurrentClient(me), CurrentTransport],
  ["@modelcontextprotocol/client, auto", "2026-07-28", () => new CurrentClient(me, { versionNegotiation: { mode: "auto" } }), CurrentTransport],
];
for (const [name, version, create, Transport] of clients) {
  for (const junk of [false, true]) {
    const home = mkdtempSync(join(tmpdir(), "duly-mcp-"));
    const db = ["--db", join(home, "agent.db")];
    const allow = ["--allow", "add,trigger,pause,cancel,remove", "--scope", scope, "--handlers", "remind"];
    const words = [duly, ...db, "mcp", ...allow, "--tz", "Europe/Rome"];
    const script = `{ head -c 1000000 /dev/zero | tr '\\0' x; echo; cat; } | ${words.map((word) => `'${word}'`).join(" ")}`;
    const [command, ...args] = junk ? ["sh", "-c", script] : words;
    const client = create();
    // The answer to the junk has no id that the client knows.
    client.onerror = () => {};
    await client.connect(new Transport({ command, args }));
    const agreed = client.getNegotiatedProtocolVersion?.() ?? client.transport._protocolVersion ?? version;
    assert.equal(agreed, version);
    await everyTool(client);
    await errors(client);
    await atOnce(client);
    await client.close();
    execFileSync(duly, [...db, "doctor"]);
    rmSync(home, { recursive: true });
    console.log(`passed: ${name}: ${version}${junk ? ", after 1 MB of junk" : ""}`);
  }
}
