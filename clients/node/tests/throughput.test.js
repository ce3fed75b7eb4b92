// How many runs a second go through a worker, and that none is lost on the way. The figure is printed; no machine's is required.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import test from "node:test";

import { runMessage } from "./support/fake_duly.js";

const CLIENT = new URL("../src/index.js", import.meta.url).href;
const RUNS = 20_000;

/** Hands over runs as duly does: never more than the concurrency. Returns runs a second. */
async function measure(handler, concurrency) {
  const program = `import { worker } from ${JSON.stringify(CLIENT)};
    await worker({ handlers: { work: ${handler} }, concurrency: ${concurrency} });
    console.error(process.cpuUsage().user + process.cpuUsage().system);`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", program], { stdio: ["pipe", "pipe", "pipe"] });
  let stderr = "";
  child.stderr.setEncoding("utf8").on("data", (text) => (stderr += text));
  const template = JSON.stringify({ ...runMessage(0, { to: "anna" }), run: 0 }).replace('"run":0,', '"run":RUN,');
  let rest = "";
  let handed = 0;
  let ended = 0;
  let begun = 0;
  let start = 0;
  const hand = (count) => {
    let text = "";
    for (; count > 0 && handed < RUNS; count -= 1) text += `${template.replace("RUN", String((handed += 1)))}\n`;
    if (text !== "") child.stdin.write(text);
  };
  child.stdout.setEncoding("utf8").on("data", (text) => {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    let free = 0;
    for (const line of lines) {
      if (line.startsWith('{"type":"done"')) free += 1;
      else if (line.startsWith('{"type":"begin"')) begun += 1;
      else if (line.startsWith('{"type":"hello"')) {
        child.stdin.write('{"type":"welcome","protocol":1,"worker":"m","copy":1,"database":"/d"}\n');
        start = performance.now();
        hand(concurrency);
      } else assert.fail(line);
    }
    ended += free;
    hand(free);
    if (ended === RUNS) {
      const took = performance.now() - start;
      ended = took;
      child.stdin.write('{"type":"stop","deadline":"2027-03-14T18:00:30.000Z"}\n');
    }
  });
  const code = await new Promise((resolve) => child.on("close", resolve));
  assert.equal(code, 0, stderr);
  assert.equal(begun, RUNS);
  return { rate: Math.round((RUNS / ended) * 1000), cpu: Number(stderr) / RUNS };
}

test("runs that do nothing", async (context) => {
  for (const handler of ["() => {}", "async () => {}"]) {
    for (const concurrency of [1, 10, 100]) {
      const { rate, cpu } = await measure(handler, concurrency);
      context.diagnostic(`${handler}, concurrency ${concurrency}: ${rate} runs a second, ${cpu.toFixed(1)} µs of CPU each in the worker`);
    }
  }
});
