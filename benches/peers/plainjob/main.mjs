// plainjob: one worker in one process, one job at a time; outcomes stay in `plainjob_jobs`. See ../README.md.

import Database from "better-sqlite3";
import { JobStatus, better, defineQueue, defineWorker } from "plainjob";

const DAY = 86_400_000;
const LEVELS = { normal: "NORMAL", full: "FULL", shipped: null };
const quiet = { debug() {}, info() {}, warn() {}, error: console.error };

const [workload, number, level, file] = process.argv.slice(2);
const count = Number(number);
if (!(count > 0) || !(level in LEVELS) || file === undefined) {
  throw new Error("expected drain|add-one|add-batch COUNT normal|full|shipped FILE");
}

function open() {
  const database = new Database(file);
  const queue = defineQueue({ connection: better(database), logger: quiet });
  if (LEVELS[level]) database.pragma(`synchronous = ${LEVELS[level]}`);
  return { database, queue };
}

function watch() {
  const cpu = process.cpuUsage();
  const begin = process.hrtime.bigint();
  return () => {
    const seconds = Number(process.hrtime.bigint() - begin) / 1e9;
    const used = process.cpuUsage(cpu);
    return { seconds, cpu_seconds: (used.user + used.system) / 1e6 };
  };
}

const payloads = () => Array.from({ length: count }, () => ({}));

async function drain() {
  const before = open();
  before.queue.addMany("none", payloads());
  before.queue.close();

  const { database, queue } = open();
  let [calls, outcomes, cost] = [0, 0, null];
  const end = watch();
  const worker = defineWorker("none", () => { calls += 1; }, {
    queue,
    logger: quiet,
    // It follows the commit of the outcome.
    onCompleted() {
      outcomes += 1;
      if (outcomes === count) {
        cost = end();
        void worker.stop();
      }
    },
  });
  await worker.start();
  if (calls !== count) throw new Error(`${calls} calls of the handler, expected ${count}`);
  return { database, queue, cost, status: JobStatus.Done };
}

function add(one_by_one) {
  const { database, queue } = open();
  const jobs = one_by_one ? null : payloads();
  const end = watch();
  if (one_by_one) {
    for (let n = 0; n < count; n += 1) queue.add("none", {}, { delay: DAY });
  } else {
    queue.addMany("none", jobs, { delay: DAY });
  }
  return { database, queue, cost: end(), status: JobStatus.Pending };
}

const workloads = { drain, "add-one": () => add(true), "add-batch": () => add(false) };
const { database, queue, cost, status } = await workloads[workload]();
const stored = queue.countJobs({ status });
if (stored !== count) throw new Error(`${stored} jobs have this status, expected ${count}`);
const setting = (name) => database.pragma(name, { simple: true });
console.log(JSON.stringify({
  ...cost,
  jobs: count,
  journal_mode: setting("journal_mode"),
  synchronous: setting("synchronous"),
  sqlite: database.prepare("SELECT sqlite_version() AS version").get().version,
}));
queue.close();
