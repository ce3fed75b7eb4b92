import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";

import { DatabaseError } from "./errors.js";

/** How long a statement waits for another that writes. */
export const BUSY_TIMEOUT_MS = 5000;

/**
 * Opens the database of duly with node:sqlite, else with better-sqlite3. It must exist.
 * @param {string | URL} path
 * @returns {any}
 */
export function open(path) {
  const file = path instanceof URL ? fileURLToPath(path) : path;
  if (!existsSync(file)) {
    throw new DatabaseError("no_database", `cannot open ${file}: there is no such file; duly creates it, as with duly run --create`);
  }
  const { node, better } = sqliteModule();
  const db = node === undefined ? new better(file, { fileMustExist: true, timeout: BUSY_TIMEOUT_MS }) : new node.DatabaseSync(file);
  try {
    db.exec(`PRAGMA busy_timeout = ${BUSY_TIMEOUT_MS}; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF`);
    return db;
  } catch (error) {
    db.close();
    throw new DatabaseError("no_database", `cannot open ${file}: ${/** @type {Error} */ (error).message}`, { cause: error });
  }
}

/** @type {{ node?: any, better?: any } | undefined} */
let found;

/** Finds one of the two modules. Synchronous, since a transaction of better-sqlite3 is. */
function sqliteModule() {
  if (found !== undefined) return found;
  const own = createRequire(import.meta.url);
  try {
    found = { node: own("node:sqlite") };
    return found;
  } catch {
    // Node.js before 22.5, or without its option.
  }
  // This package may be a link to another folder: then the application's modules are found from its own.
  for (const from of [import.meta.url, process.argv[1], join(process.cwd(), "package.json")]) {
    try {
      if (from !== undefined) return (found = { better: createRequire(from)("better-sqlite3") });
    } catch {
      // Not installed there.
    }
  }
  throw new DatabaseError(
    "no_module",
    `no module for SQLite: Node.js ${process.version} has no node:sqlite (22.5 or newer does), and better-sqlite3 is not installed; ` +
      "install it, or use client(..), which needs only the program duly",
  );
}
