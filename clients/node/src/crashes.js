import { writeSync } from "node:fs";
import process from "node:process";
import { inspect } from "node:util";

import { describe } from "./json.js";

/**
 * Has a crash of the process end with a line that says why. duly shows the last line of standard error as the error of the runs, and
 * Node.js would end with its version. An application with a listener of its own decides itself.
 */
export function reportCrashes() {
  process.on("uncaughtException", (error) => {
    if (process.listenerCount("uncaughtException") > 1) return;
    const last = describe(error).replace(/\s*\n\s*/g, " ");
    try {
      writeSync(2, `Uncaught ${inspect(error)}\n${last}\n`);
    } catch {
      // The reader of the log is gone.
    }
    process.exit(1);
  });
}
