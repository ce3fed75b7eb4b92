import { spawn } from "node:child_process";
import { accessSync, constants, realpathSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";

import { DatabaseError } from "./errors.js";

/** Most bytes of an answer. */
const MAX_ANSWER = 256 * 1024 * 1024;

/** The file name of the program. */
const NAME = process.platform === "win32" ? "duly.exe" : "duly";

/** Returns the program duly: that of the package for this platform, else DULY_BIN, else that on the PATH. */
export function findProgram() {
  try {
    const found = createRequire(import.meta.url).resolve(`@duly/${process.platform}-${process.arch}/bin/${NAME}`);
    // In an archive of Electron nothing can be started: its packagers put programs beside it.
    return found.replace(/([\\/])app\.asar([\\/])/, "$1app.asar.unpacked$2");
  } catch {
    // The package is not installed.
  }
  const own = process.env.DULY_BIN;
  if (own !== undefined && own !== "") return own;
  for (const folder of (process.env.PATH ?? "").split(delimiter)) {
    if (folder === "") continue;
    const path = join(folder, NAME);
    try {
      accessSync(path, constants.X_OK);
      // npx and scripts of npm have the command of this package on the PATH, which asks for the program here.
      if (realpathSync(path) !== fileURLToPath(new URL("../bin/duly.js", import.meta.url))) return path;
    } catch {
      // Not there.
    }
  }
  throw new DatabaseError("no_program", "no program duly: install its package, set DULY_BIN, or put it on the PATH");
}

/**
 * Runs the program to its end, and returns its JSON.
 * @param {string} program
 * @param {string} request what is attempted, for errors
 * @param {string[]} args
 * @param {{ input?: string, signal?: AbortSignal, mayFail?: boolean }} [options] `mayFail`: an exit code of 1 with JSON is an answer
 * @returns {Promise<any>}
 */
export function ask(program, request, args, { input, signal, mayFail = false } = {}) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const child = spawn(program, ["--json", ...args], { stdio: ["pipe", "pipe", "pipe"], signal });
    /** @type {Buffer[]} */
    const chunks = [];
    let [length, errors] = [0, ""];
    child.stdout.on("data", (/** @type {Buffer} */ chunk) => {
      length += chunk.length;
      if (length > MAX_ANSWER) child.kill();
      else chunks.push(chunk);
    });
    child.stderr.setEncoding("utf8").on("data", (text) => (errors = (errors + text).slice(0, 65536)));
    // A program that has ended reads nothing.
    child.stdin.on("error", () => {});
    child.stdin.end(input ?? "");
    child.on("error", (error) => {
      if (signal?.aborted) reject(signal.reason);
      else reject(new DatabaseError("no_program", `cannot ${request}: cannot start ${program}: ${error.message}`, { cause: error }));
    });
    child.on("close", (code, killed) => {
      if (signal?.aborted) return reject(signal.reason);
      const text = Buffer.concat(chunks).toString("utf8");
      if (code === 0 || (mayFail && code === 1 && text !== "")) return resolve(parse(text));
      // The first paragraph: the usage follows.
      const said = errors.trim().replace(/^error: /, "").split("\n\n")[0] || `${program} ended: ${killed ?? `exit code ${code}`}`;
      reject(new DatabaseError(codeOf(code, said), said.startsWith("cannot ") ? said : `cannot ${request}: ${said}`));
    });
  });
}

/**
 * Parses what the program prints. Ids beyond 2^53 become texts: a number would be another id. Keys stand at the beginning of a line.
 * @param {string} text
 */
function parse(text) {
  return text === "" ? undefined : JSON.parse(text.replace(/^(\s*"(?:id|retry_of|run)": )(\d{16,})(,?)$/gm, '$1"$2"$3'));
}

/**
 * @param {number | null} code
 * @param {string} said
 * @returns {ConstructorParameters<typeof DatabaseError>[0]}
 */
function codeOf(code, said) {
  if (code === 4) return "no_database";
  if (/^(there is )?no (task|run)\b|unknown (task|run)/.test(said)) return "unknown";
  if (/\balready exists|exists with|another payload|differs in/.test(said)) return "exists";
  return "refused";
}
