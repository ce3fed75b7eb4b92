// The handlers of docs/workers.md, "Testing a client", with the client for Node.js.
import { tmpdir } from "node:os";
import { join } from "node:path";

import { GiveUp, RetryAfter, start, worker } from "../../../clients/node/src/index.js";

/** Returns a promise of the reason of a cancellation. */
function cancelled(run) {
  return new Promise((resolve) => {
    if (run.signal.aborted) resolve(run.signal.reason);
    run.signal.addEventListener("abort", () => resolve(run.signal.reason));
  });
}

function fail({ payload: { error, retry } }) {
  if (retry === false) throw new GiveUp(error);
  if (typeof retry === "string") throw new RetryAfter(retry, error);
  throw new Error(error);
}

function effect(run, options) {
  const { key, value, failed } = run.payload;
  const perform = () => {
    if (failed) throw new Error("not performed");
    return value;
  };
  return run.effect(key, perform, options);
}

const handlers = {
  echo: (run) => run.payload,
  fail,
  wait: async (run) => {
    throw new Error(await cancelled(run));
  },
  finish: (run) => {
    run.progress("waiting");
    return cancelled(run);
  },
  ignore: () => new Promise(() => {}),
  progress: (run) => run.payload.forEach((text) => run.progress(text)),
  effect: (run) => effect(run, {}),
  found: (run) => effect(run, { lookUp: () => run.payload.found }),
  context: (run) => ({
    run: run.run,
    attempt: run.attempt,
    task: run.task,
    payload: run.payload,
    scheduled_for: run.scheduledFor,
    origin: run.origin,
    idempotency_key: run.idempotencyKey,
    deadline: run.deadline,
  }),
  large: (run) => {
    const { result, error, progress } = run.payload;
    if (progress) run.progress("p".repeat(progress));
    if (error) throw new Error("e".repeat(error));
    return "r".repeat(result ?? 0);
  },
  print: (run) => {
    console.log(run.payload);
    process.stdout.write(`${run.payload}\n`);
    run.log.info(run.payload);
  },
};

if (process.argv[2] === "application") {
  // What it prints would reach the kit.
  const { print, ...others } = handlers;
  const program = new URL("duly.py", import.meta.url).pathname;
  const onExit = ({ reason }) => process.exit(reason === "exit code 0" ? 0 : 1);
  await start({ db: join(tmpdir(), "kit.db"), concurrency: 8, handlers: others, program, onExit });
} else await worker({ concurrency: 8, handlers });
