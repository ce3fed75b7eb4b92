// pg-boss: each connection claims a hundred jobs by fetch and completes them by one call. Completed jobs are kept.
import { PgBoss } from "pg-boss";
import { BATCH, batches, job, print, server, timed, tomorrow } from "./arguments.mjs";

const boss = new PgBoss({ ...server, max: Math.max(job.connections, 2), supervise: false, schedule: false });
boss.on("error", (error) => {
  throw error;
});
await boss.start();
await boss.createQueue("none");
const add = async (startAfter) => {
  for (const numbers of batches(job.count)) {
    await boss.insert("none", numbers.map((n) => ({ data: { n }, startAfter })));
  }
};
let done = job.count;
let seconds;
if (job.workload === "drain") {
  await add(undefined);
  done = 0;
  const work = async () => {
    for (;;) {
      const jobs = await boss.fetch("none", { batchSize: BATCH });
      if (jobs.length === 0) return;
      await boss.complete("none", jobs.map(({ id }) => id));
      done += jobs.length;
    }
  };
  seconds = await timed(() => Promise.all(Array.from({ length: job.connections }, work)));
} else if (job.workload === "add-one") {
  seconds = await timed(async () => {
    for (let n = 0; n < job.count; n++) await boss.send("none", { n }, { startAfter: tomorrow() });
  });
} else {
  const startAfter = tomorrow();
  seconds = await timed(() => add(startAfter));
}
await boss.stop({ graceful: false });
print(seconds, done);
process.exit(0);
