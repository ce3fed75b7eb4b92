// The command line and the output that the peers share, see README.md.
const [workload, count, connections, folder, database] = process.argv.slice(2);

export const job = { workload, count: Number(count), connections: Number(connections) };
export const server = { host: folder, user: "postgres", database };
export const BATCH = 100;
export const tomorrow = () => new Date(Date.now() + 86_400_000);

export async function timed(work) {
  const begin = process.hrtime.bigint();
  await work();
  return Number(process.hrtime.bigint() - begin) / 1e9;
}

export function* batches(count) {
  for (let first = 0; first < count; first += BATCH) {
    yield Array.from({ length: Math.min(BATCH, count - first) }, (_, n) => first + n);
  }
}

export function print(seconds, jobs) {
  console.log(JSON.stringify({ seconds, jobs }));
}
