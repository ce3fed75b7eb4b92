// Handlers that do nothing: as a worker; with DB and PROGRAM as arguments, as an application that starts duly. It prints the milliseconds from
// the call of `start` to the first handler.
import { start, worker } from "../../clients/node/src/index.js";

const [db, program] = process.argv.slice(2);
if (db === undefined) {
  worker({ handlers: { noop: () => {} }, concurrency: 500 });
} else {
  const began = performance.now();
  let first = true;
  const noop = () => {
    if (first) console.log(performance.now() - began);
    first = false;
  };
  await start({ db, program, handlers: { noop }, concurrency: 500 });
}
