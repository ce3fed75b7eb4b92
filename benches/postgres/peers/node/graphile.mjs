// graphile-worker: a local queue of 500 jobs and batched completion, its fastest documented form. Completed jobs are deleted.
import { makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { batches, job, print, server, timed, tomorrow } from "./arguments.mjs";

const pgPool = new pg.Pool({ ...server, max: 10 });
pgPool.on("error", console.error);
pgPool.on("connect", (client) => client.on("error", console.error));
const logger = { error: console.error, warn: console.error, info() {}, debug() {}, scope: () => logger };
const utils = await makeWorkerUtils({ pgPool, logger });
await utils.migrate();
const add = async (runAt) => {
  for (const numbers of batches(job.count)) {
    await utils.addJobs(numbers.map((n) => ({ identifier: "none", payload: { n }, runAt })));
  }
};
let done = job.count;
let seconds;
if (job.workload === "drain") {
  await add(undefined);
  done = 0;
  let ended;
  const all = new Promise((resolve) => (ended = resolve));
  const preset = {
    worker: {
      concurrentJobs: 10,
      maxPoolSize: 10,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  };
  const taskList = {
    none: async () => {
      if (++done === job.count) ended();
    },
  };
  seconds = await timed(async () => {
    const runners = await Promise.all(
      Array.from({ length: job.connections }, () => run({ pgPool, preset, taskList, logger, noHandleSignals: true })),
    );
    await all;
    await Promise.all(runners.map((runner) => runner.stop()));
  });
  const { rows } = await pgPool.query("SELECT count(*)::int AS left FROM graphile_worker.jobs");
  done -= rows[0].left;
} else if (job.workload === "add-one") {
  seconds = await timed(async () => {
    for (let n = 0; n < job.count; n++) await utils.addJob("none", { n }, { runAt: tomorrow() });
  });
} else {
  const runAt = tomorrow();
  seconds = await timed(() => add(runAt));
}
print(seconds, done);
process.exit(0);
