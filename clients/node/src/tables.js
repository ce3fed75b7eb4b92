// Tasks through the tables, as the head of schema.sql allows it to every program. The scheduler plans the rows.

import { randomUUID } from "node:crypto";

import { BUSY_TIMEOUT_MS, open } from "./database.js";
import { DatabaseError, milliseconds } from "./errors.js";
import { encode } from "./json.js";
import { SCHEDULE_OPTIONS, checkZone, schedule, shown } from "./schedule.js";

const SCHEMA_VERSION = "1";

/** The columns of a definition beside its schedule, by option. */
const COLUMNS = {
  handler: "handler",
  timeZone: "time_zone",
  startsAt: "starts_at",
  endsAt: "ends_at",
  onlyBetween: "only_between",
  onlyOn: "only_on",
  exceptOn: "except_on",
  overlap: "overlap",
  misfire: "misfire",
  misfireGraceMs: "misfire_grace_ms",
  catchUpLimit: "catch_up_limit",
  expiresMs: "expires_ms",
  maxAttempts: "max_attempts",
  backoffMs: "backoff_ms",
  backoffCapMs: "backoff_cap_ms",
  timeoutMs: "timeout_ms",
  jitterMs: "jitter_ms",
  priority: "priority",
  concurrencyKey: "concurrency_key",
  maxStarts: "max_starts",
  whenLimited: "when_limited",
  onDead: "on_dead",
  onSuccess: "on_success",
  onEnd: "on_end",
  onMissed: "on_missed",
  pauseAfterFailures: "pause_after_failures",
};

/** All columns of a definition. */
const DEFINITION = ["payload", "schedule_type", "schedule_value", ...Object.values(COLUMNS)];

/**
 * Adds a task. Idempotent: an equal task of the same name changes nothing.
 * @param {any} db
 * @param {any} task
 * @returns {{ name: string, change: "created" | "replaced" | "unchanged" }}
 */
export function add(db, task) {
  const { name, ifAbsent = false, replace = false } = task;
  const request = `add task ${JSON.stringify(name)}`;
  const { values, isMoving } = definition(request, task);
  return transaction(db, request, (handle) => {
    const columns = Object.keys(values);
    const inserted = handle
      .prepare(
        `INSERT INTO scheduled_tasks (name, ${columns.join(", ")}) VALUES (?${", ?".repeat(columns.length)})
         ON CONFLICT (name) DO NOTHING`,
      )
      .run(name, ...columns.map((column) => values[column]));
    if (Number(inserted.changes) === 1) return { name, change: "created" };

    const stored = handle.prepare(`SELECT ${DEFINITION.join(", ")} FROM scheduled_tasks WHERE name = ?`).get(name);
    const wanted = { ...defaults(handle), ...values };
    const different = DEFINITION.filter((column) => !isEqual(column, stored[column], wanted[column]));
    // The time that `now` and `in` stand for is no part of the definition, but `replace` moves the task to it.
    const isSame = different.length === 0 || (isMoving && !replace && different.join() === "schedule_value");
    if (isSame || ifAbsent) return { name, change: "unchanged" };
    if (!replace) {
      const [column] = different;
      throw new DatabaseError(
        "exists",
        `cannot ${request}: a task of this name exists and differs in ${column}: expected ${show(wanted[column])}, found ` +
          `${show(stored[column])}; set replace to change it, or ifAbsent to keep it`,
      );
    }
    // One statement: its trigger records what was due under the old schedule.
    const set = different.map((column) => `${column} = ?`).join(", ");
    handle.prepare(`UPDATE scheduled_tasks SET ${set} WHERE name = ?`).run(...different.map((column) => wanted[column]), name);
    return { name, change: "replaced" };
  });
}

// An occurrence that is due already stays: setting it to a later time would record it as missed.
const RUN_NOW = `
    UPDATE scheduled_tasks SET next_run = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
     WHERE name = ? AND (status = 'active' OR status = 'completed')
       AND (next_run IS NULL OR next_run > (julianday('now') - 2440587.5) * 86400000)`;

// The policies that mean something for one occurrence. It is due now; however late it is resolved, it runs.
const RUN_COPY = `
    INSERT INTO scheduled_tasks (name, handler, payload, schedule_type, schedule_value, expires_ms, max_attempts, backoff_ms,
                                 backoff_cap_ms, timeout_ms, priority, concurrency_key, on_dead, on_success, on_end, on_missed)
    SELECT ?, handler, ifnull(?, payload), 'once', strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), expires_ms, max_attempts, backoff_ms,
           backoff_cap_ms, timeout_ms, priority, concurrency_key, on_dead, on_success, on_end, on_missed
      FROM scheduled_tasks WHERE name = ? AND status <> 'invalid'
    ON CONFLICT (name) DO NOTHING`;

/**
 * Requests a run of a task now. With a payload or a key it is a one-time task of its own, named NAME/KEY.
 * @param {any} db
 * @param {string} name
 * @param {{ payload?: unknown, key?: string }} [options]
 * @returns {{ name: string, change: "created" | "triggered" | "unchanged" }}
 */
export function trigger(db, name, { payload, key } = {}) {
  const request = `trigger task ${JSON.stringify(name)}`;
  if (key !== undefined && (typeof key !== "string" || key === "")) throw new TypeError(`cannot ${request}: expected a text as key`);
  const isCopy = payload !== undefined || key !== undefined;
  const text = payload === undefined ? null : json(request, payload);
  return transaction(db, request, (handle) => {
    // The write comes first: SQLite refuses to make a reader a writer if another program has written meanwhile.
    if (isCopy) {
      const copy = `${name}/${key ?? randomUUID()}`;
      if (Number(handle.prepare(RUN_COPY).run(copy, text, name).changes) === 1) return { name: copy, change: "created" };
      checkStatus(handle, request, name, ["active", "completed", "paused"]);
      return { name: copy, change: "unchanged" };
    }
    if (Number(handle.prepare(RUN_NOW).run(name).changes) === 1) return { name, change: "triggered" };
    checkStatus(handle, request, name, ["active", "completed"]);
    return { name, change: "unchanged" };
  });
}

/**
 * Throws an error if a task does not exist, or has another status.
 * @param {any} handle
 * @param {string} request
 * @param {string} name
 * @param {string[]} expected
 */
function checkStatus(handle, request, name, expected) {
  const task = handle.prepare("SELECT status, invalid_reason FROM scheduled_tasks WHERE name = ?").get(name);
  if (task === undefined) throw new DatabaseError("unknown", `cannot ${request}: there is no such task`);
  if (expected.includes(task.status)) return;
  if (task.status === "invalid") {
    throw new DatabaseError("invalid", `cannot ${request}: it is invalid: ${task.invalid_reason}; repair it first`);
  }
  throw new DatabaseError("paused", `cannot ${request}: it is paused; resume it first, or give a payload or a key`);
}

/**
 * Returns the values that a task names, by column.
 * @param {string} request
 * @param {any} task
 * @returns {{ values: Record<string, string | number | null>, isMoving: boolean }}
 */
function definition(request, task) {
  if (typeof task.name !== "string" || typeof task.handler !== "string") {
    throw new TypeError(`cannot ${request}: expected texts as name and handler`);
  }
  const { type, value, isMoving } = schedule(request, task);
  /** @type {Record<string, string | number | null>} */
  const values = { schedule_type: type, schedule_value: value };
  if (task.timeZone !== undefined) checkZone(request, task.timeZone);
  if (task.payload !== undefined) values.payload = json(request, task.payload);
  for (const [key, column] of Object.entries(COLUMNS)) {
    const given = task[key];
    if (given === undefined) continue;
    const written = column.endsWith("_ms") && typeof given === "string" ? span(request, key, given) : given;
    values[column] = written instanceof Date ? written.getTime() : written;
    if (Number.isNaN(values[column])) throw new TypeError(`cannot ${request}: ${key}: expected a valid Date, found ${shown(given)}`);
  }
  const known = new Set(["name", "payload", "ifAbsent", "replace", ...SCHEDULE_OPTIONS, ...Object.keys(COLUMNS)]);
  const unknown = Object.keys(task).find((key) => !known.has(key));
  if (unknown !== undefined) throw new TypeError(`cannot ${request}: ${unknown} is no part of a task`);
  return { values, isMoving };
}

/**
 * Returns the milliseconds of a text such as "10m".
 * @param {string} request
 * @param {string} key
 * @param {string} text
 */
function span(request, key, text) {
  try {
    return milliseconds(text);
  } catch (error) {
    throw new TypeError(`cannot ${request}: ${key}: ${/** @type {Error} */ (error).message}`);
  }
}

/**
 * @param {string} request
 * @param {unknown} payload
 */
function json(request, payload) {
  let text;
  try {
    text = encode(payload);
  } catch (error) {
    throw new TypeError(`cannot ${request}: its payload cannot be written as JSON`, { cause: error });
  }
  return text ?? "null";
}

/**
 * Executes statements together: in the application's transaction if it has begun one, else in one of their own.
 * @template T
 * @param {any} db
 * @param {string} request
 * @param {(handle: any) => T} work
 * @returns {T}
 */
function transaction(db, request, work) {
  const isPath = typeof db === "string" || db instanceof URL;
  if (!isPath && (typeof db?.prepare !== "function" || typeof db?.exec !== "function")) {
    throw new TypeError(`cannot ${request}: expected a path, or a database of node:sqlite or better-sqlite3`);
  }
  const handle = isPath ? open(db) : db;
  // A handle of node:sqlite waits for no other writer unless it was told to, and the scheduler writes often.
  const impatient = Number(handle.prepare("PRAGMA busy_timeout").get().timeout) === 0;
  try {
    if (impatient) handle.exec(`PRAGMA busy_timeout = ${BUSY_TIMEOUT_MS}`);
    checkSchema(handle, request);
    // Within a transaction a part of it, else a transaction. Its first statement that counts writes: no read is upgraded.
    handle.exec("SAVEPOINT duly_client");
    try {
      const done = work(handle);
      handle.exec("RELEASE duly_client");
      return done;
    } catch (error) {
      undo(handle);
      throw error;
    }
  } catch (error) {
    throw readable(request, error);
  } finally {
    if (isPath) handle.close();
    else if (impatient) handle.exec("PRAGMA busy_timeout = 0");
  }
}

/** @param {any} handle */
function undo(handle) {
  try {
    handle.exec("ROLLBACK TO duly_client; RELEASE duly_client");
  } catch {
    // SQLite has rolled the transaction back itself, as after a full disk.
  }
}

/**
 * @param {any} handle
 * @param {string} request
 */
function checkSchema(handle, request) {
  let version;
  try {
    version = handle.prepare("SELECT value FROM scheduler_meta WHERE key = 'schema_version'").get()?.value;
  } catch (error) {
    if (!/no such table/.test(/** @type {Error} */ (error).message)) throw error;
    const advice = "the file has no tables of duly; duly run --create adds them";
    throw new DatabaseError("no_database", `cannot ${request}: ${advice}`, { cause: error });
  }
  if (version !== SCHEMA_VERSION) {
    throw new DatabaseError(
      "no_database",
      `cannot ${request}: the tables have version ${version}, and this client knows version ${SCHEMA_VERSION}: use a matching client`,
    );
  }
}

/**
 * Returns the defaults of the table, by column.
 * @param {any} handle
 */
function defaults(handle) {
  /** @type {Record<string, string | number | null>} */
  const values = {};
  for (const { name, dflt_value: value } of handle.prepare("SELECT name, dflt_value FROM pragma_table_info('scheduled_tasks')").all()) {
    if (!DEFINITION.includes(name)) continue;
    if (value === null) values[name] = null;
    else values[name] = value.startsWith("'") ? value.slice(1, -1) : Number(value);
  }
  return values;
}

/**
 * @param {string} column
 * @param {any} stored
 * @param {any} wanted
 */
function isEqual(column, stored, wanted) {
  if (stored === wanted) return true;
  if (stored === null || wanted === null) return false;
  // A number may be a BigInt, depending on the handle.
  if (typeof wanted === "number") return Number(stored) === wanted;
  if (column === "payload") return sorted(stored) === sorted(wanted);
  // The same instant in another form. Texts without an offset are compared as texts.
  const offset = /(Z|[+-]\d\d:\d\d)$/;
  return column === "schedule_value" && offset.test(stored) && offset.test(wanted) && Date.parse(stored) === Date.parse(wanted);
}

/**
 * Returns JSON with its keys in order.
 * @param {string} text
 */
function sorted(text) {
  const inOrder = (/** @type {string} */ _, /** @type {any} */ value) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1)))
      : value;
  try {
    return JSON.stringify(JSON.parse(text), inOrder);
  } catch {
    return text;
  }
}

/** @param {unknown} value */
function show(value) {
  const text = String(value);
  return text.length > 80 ? `${text.slice(0, 80)}..` : text;
}

/**
 * Returns an error of SQLite as one about the request.
 * @param {string} request
 * @param {any} error
 */
function readable(request, error) {
  if (error instanceof DatabaseError || error instanceof TypeError) return error;
  const message = String(error?.message ?? error);
  const check = /CHECK constraint failed: ([\s\S]*)/.exec(message);
  if (check === null) return new DatabaseError("refused", `cannot ${request}: ${message}`, { cause: error });
  const rule = check[1].replace(/\s+/g, " ");
  const column = ["name", ...DEFINITION].find((known) => new RegExp(`\\b${known}\\b`).test(rule));
  const subject = column === undefined ? "a value" : column;
  return new DatabaseError("refused", `cannot ${request}: ${subject} is not allowed: the table requires ${rule}`, { cause: error });
}
