// The handlers of soaks.rs: each journals what it does. kill_worker.py does the same.
import { appendFileSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { worker } from "../../../clients/node/src/index.js";

const home = process.argv[2];

function journal(what, run, more = "") {
  appendFileSync(`${home}/journal`, `${what} ${run.run} ${run.attempt}${more}\n`);
}

function began(run) {
  journal("began", run, ` ${process.env.DULY_TEST_SCHEDULER} ${run.scheduledFor.toISOString()} ${run.task}`);
}

/** Returns the number and the start time of a process that lives and is no zombie. */
function identity(pid) {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
    return /[ZX]/.test(fields[0]) ? undefined : `${pid} ${fields[19]}`;
  } catch {
    return undefined;
  }
}

/** The file of the run names the process of the attempt that is at work. */
async function work(run) {
  const lock = `${home}/lock-${run.run}`;
  try {
    const holder = readFileSync(lock, "utf8");
    // A process that was killed while it wrote has left a part of the text, which names no process.
    if (holder !== "" && identity(holder.split(" ")[0]) === holder) journal("overlap", run);
  } catch {
    // No attempt is at work.
  }
  writeFileSync(lock, identity(process.pid));
  began(run);
  await setTimeout(run.payload);
  journal("ended", run);
  rmSync(lock);
}

async function pay(run) {
  began(run);
  await run.effect("pay", () => journal("paid", run));
  journal("ended", run);
}

await worker({ concurrency: 4, handlers: { work, pay } });
