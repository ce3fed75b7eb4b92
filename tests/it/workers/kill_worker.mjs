// The handlers of kills.rs: each journals what it does. kill_worker.py does the same.
import { appendFileSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { worker } from "../../../clients/node/src/index.js";

const home = process.argv[2];

function journal(what, run) {
  appendFileSync(`${home}/journal`, `${what} ${run.run} ${run.attempt} ${process.pid}\n`);
}

/** Whether a process lives that is no zombie. */
function lives(pid) {
  try {
    return !/\) [ZX] /.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch {
    return false;
  }
}

/** The file of the run names the process of the attempt that is at work. */
async function work(run) {
  const lock = `${home}/lock-${run.run}`;
  try {
    if (lives(readFileSync(lock, "utf8"))) journal("overlap", run);
  } catch {
    // No attempt is at work.
  }
  writeFileSync(lock, String(process.pid));
  journal("start", run);
  await setTimeout(run.payload);
  journal("end", run);
  rmSync(lock);
}

await worker({
  concurrency: 4,
  handlers: {
    work,
    pay: (run) => run.effect("pay", () => journal("paid", run)),
  },
});
