// An application of the kills: its handler notes each begin, and each begin beside a living attempt of the same run.
import { appendFileSync, readFileSync, unlinkSync, writeFileSync } from "node:fs";

import { start } from "../../../clients/node/src/index.js";

const [home, db, program] = process.argv.slice(2);

/** A process by its pid and its start: another process or thread may get the number of one that was killed. */
function identity(pid) {
  const [state, ...fields] = readFileSync(`/proc/${pid}/stat`, "utf8").replace(/^.*\) /s, "").split(" ");
  return state === "Z" ? "ended" : `${pid} ${fields[18]}`;
}

function isAlive(owner) {
  try {
    const recorded = readFileSync(owner, "utf8");
    return identity(recorded.split(" ")[0]) === recorded;
  } catch {
    return false;
  }
}

async function work(run) {
  const owner = `${home}/owner-${run.run}`;
  appendFileSync(`${home}/journal`, `${isAlive(owner) ? "twice" : "begin"} ${run.task} ${run.attempt}\n`);
  writeFileSync(owner, identity(process.pid));
  // Also after a cancel: it may outlive duly.
  await new Promise((resolve) => setTimeout(resolve, Math.random() * 50));
  unlinkSync(owner);
}

await start({ db, handlers: { work }, concurrency: 4, program });
