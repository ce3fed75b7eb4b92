#!/usr/bin/env node
// The command `duly` of the package, for npx: becomes the program of its platform, or, with Node.js before 22.15 and on Windows, waits for it.
import { spawn } from "node:child_process";
import { constants } from "node:os";
import process from "node:process";

import { findProgram } from "../src/program.js";

let program;
try {
  program = findProgram();
} catch (error) {
  console.error(`error: ${error.message}`);
  process.exit(1);
}
const args = process.argv.slice(2);
if (process.execve !== undefined && process.platform !== "win32") process.execve(program, [program, ...args], process.env);

const child = spawn(program, args, { stdio: "inherit" });
child.once("error", (error) => {
  console.error(`error: cannot start ${program}: ${error.message}`);
  process.exit(1);
});
// Ctrl-C reaches the program without this process, too; a second signal would end it without its drain.
process.on("SIGINT", () => {});
for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.once("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
