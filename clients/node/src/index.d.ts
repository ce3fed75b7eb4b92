/** Any JSON. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** Why an attempt is to stop: a user or the overlap policy, its deadline, or the end of duly. */
export type CancelReason = "asked" | "timeout" | "shutdown";

/** What opened a run. */
export type Origin = "schedule" | "catch_up" | "manual" | "on_dead";

/** Lines for the log of duly, about the run. */
export interface Log {
  error(text: unknown): void;
  warn(text: unknown): void;
  info(text: unknown): void;
  debug(text: unknown): void;
  trace(text: unknown): void;
}

/** One attempt of a run, as its handler sees it. `P` is the type of its payload, which is not checked. */
export interface Run<P = any> {
  /** The id of the run. */
  readonly run: number;
  /** The number of the attempt, from 1. */
  readonly attempt: number;
  readonly task: string;
  readonly handler: string;
  readonly payload: P;
  /** The occurrence; for a manual run, when it was requested. */
  readonly scheduledFor: Date;
  readonly origin: Origin;
  /** The same for all attempts of the run. */
  readonly idempotencyKey: string;
  /** When the attempt is asked to stop; null: never. */
  readonly deadline: Date | null;
  /** Aborted when the attempt is to stop; its `reason` is a `CancelReason`. */
  readonly signal: AbortSignal;
  readonly log: Log;
  /** Reports how far the attempt has come. The newest text is stored, at most once a second. */
  progress(text: unknown): void;
  /**
   * Performs an effect once, however often the run is retried, and returns its value, which must be JSON.
   *
   * If an earlier attempt began it and did not record how it ended, it is in doubt: `lookUp` returns its value, or
   * `undefined` if it was not performed. Without `lookUp` the attempt gives up.
   */
  effect<T>(key: string, perform: () => T | Promise<T>, options?: { lookUp?: () => T | undefined | Promise<T | undefined> }): Promise<T>;
}

/** Carries out an attempt. What it returns is the result. What it throws fails the attempt, which is retried. */
export type Handler<P = any> = (run: Run<P>) => unknown;

export interface WorkerOptions {
  /** The handlers, by name. */
  handlers: Record<string, Handler>;
  /** Most attempts at once, 1 to 1000. Default: 10. */
  concurrency?: number;
}

/**
 * Runs handlers for duly, over stdin and stdout. The promise is fulfilled when duly has stopped the worker and no attempt is
 * left; the process ends a second later at the latest.
 */
export function worker(options: WorkerOptions): Promise<void>;

/** Ends a run as dead: it is not retried. */
export class GiveUp extends Error {
  constructor(reason: string, options?: { cause?: unknown });
}

/** Fails an attempt; the next one begins after the delay: milliseconds, or a text such as "30s" or "1h 30m". */
export class RetryAfter extends Error {
  constructor(delay: number | string, reason?: string, options?: { cause?: unknown });
  readonly delayMs: number;
}

/** Why `add`, `trigger` or `open` failed. */
export class DatabaseError extends Error {
  constructor(code: DatabaseErrorCode, message: string, options?: { cause?: unknown });
  /**
   * `exists`: another task has the name. `unknown`: there is no such task. `paused`, `invalid`: the task is. `refused`: SQLite
   * or a constraint of the table refuses it. `no_database`: no file, tables or module.
   */
  readonly code: DatabaseErrorCode;
}

export type DatabaseErrorCode = "exists" | "unknown" | "paused" | "invalid" | "refused" | "no_database";

/** What the client uses of a `DatabaseSync` of node:sqlite, or a `Database` of better-sqlite3. */
export interface Database {
  exec(sql: string): unknown;
  prepare(sql: string): {
    run(...values: any[]): { changes: number | bigint };
    get(...values: any[]): any;
    all(...values: any[]): any[];
  };
}

/** One schedule. Durations: "15m", "1h 30m", or milliseconds. */
export type Schedule =
  | { cron: string; every?: never; after?: never; at?: never; manual?: never }
  | { every: string | number; cron?: never; after?: never; at?: never; manual?: never }
  | { after: string | number; cron?: never; every?: never; at?: never; manual?: never }
  | { at: Date | string; cron?: never; every?: never; after?: never; manual?: never }
  | { manual: true; cron?: never; every?: never; after?: never; at?: never };

/** The policies of a task: columns of `scheduled_tasks`. What is absent has the default of the table. */
export interface Policies {
  timeZone?: string;
  startsAt?: Date | number | null;
  endsAt?: Date | number | null;
  overlap?: "skip" | "buffer_one" | "buffer_all" | "allow" | "cancel_running";
  misfire?: "run_once" | "skip" | "run_all";
  misfireGraceMs?: number;
  catchUpLimit?: number;
  expiresMs?: number | null;
  maxAttempts?: number;
  backoffMs?: number;
  backoffCapMs?: number;
  timeoutMs?: number | null;
  jitterMs?: number;
  priority?: 0 | 1 | 2 | 3;
  concurrencyKey?: string | null;
  onDead?: string | null;
  pauseAfterFailures?: number | null;
}

export type Task = Schedule &
  Policies & {
    name: string;
    handler: string;
    /** Any JSON; default null. */
    payload?: unknown;
    /** A task of this name stays as it is. */
    ifAbsent?: boolean;
    /** A task of this name gets this definition. */
    replace?: boolean;
  };

export interface Added {
  /** The name of the task. */
  name: string;
  change: "created" | "replaced" | "unchanged";
}

export interface Triggered {
  /** The name of the task that has the run. */
  name: string;
  /** `created`: a task of its own. `triggered`: the task is due now. `unchanged`: it was due already, or the key was used. */
  change: "created" | "triggered" | "unchanged";
}

/**
 * Adds a task. An equal task of the same name changes nothing; one that differs is an error, unless `ifAbsent` or `replace`
 * is set. `db`: the path of the database, or an open handle, within whose transaction the task is added.
 */
export function add(db: string | URL | Database, task: Task): Added;

/**
 * Requests a run now. With a `payload` or a `key`, a one-time task `NAME/KEY` is added, with the handler and the policies of the
 * task; a key that was used adds nothing.
 */
export function trigger(db: string | URL | Database, name: string, options?: { payload?: unknown; key?: string }): Triggered;

/** Opens the database with node:sqlite, else better-sqlite3, with a busy timeout of 5 s and foreign keys. It must exist. */
export function open(path: string | URL): Database & { close(): void };
