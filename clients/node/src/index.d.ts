/** Any JSON. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** Why an attempt is to stop: a user or the overlap policy, its deadline, or the end of duly. */
export type CancelReason = "asked" | "timeout" | "shutdown";

/** What opened a run. */
export type Origin = "schedule" | "catch_up" | "manual" | "on_dead" | "on_success" | "on_end" | "on_missed";

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
  /** The id of the run; a text if it exceeds 2^53. */
  readonly run: number | string;
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

/** Ends a run as skipped: there is nothing to do this time. It is no failure. */
export class Skip extends Error {
  constructor(reason: string, options?: { cause?: unknown });
}

/** Fails an attempt; the next one begins after the delay: milliseconds, or a text such as "30s" or "1h 30m". */
export class RetryAfter extends Error {
  constructor(delay: number | string, reason?: string, options?: { cause?: unknown });
  readonly delayMs: number;
}

/** Why a call failed. Wrong values are a `TypeError`. */
export class DatabaseError extends Error {
  constructor(code: DatabaseErrorCode, message: string, options?: { cause?: unknown });
  /**
   * `exists`: another task has the name. `unknown`: there is no such task. `paused`, `invalid`: the task is. `refused`: SQLite
   * or a constraint of the table, or the program refuses it. `no_database`: no file or tables. `no_module`: none for SQLite. `no_program`:
   * the program duly is not found, or cannot be started. `failed`: duly did not start.
   */
  readonly code: DatabaseErrorCode;
}

export type DatabaseErrorCode = "exists" | "unknown" | "paused" | "invalid" | "refused" | "no_database" | "no_module" | "no_program" | "failed";

/** What the client uses of a `DatabaseSync` of node:sqlite, or a `Database` of better-sqlite3. */
export interface Database {
  exec(sql: string): unknown;
  prepare(sql: string): {
    run(...values: any[]): { changes: number | bigint };
    get(...values: any[]): any;
    all(...values: any[]): any[];
  };
}

/** A duration: "15m", "1h 30m". */
export type Duration = string;

interface Schedules {
  /** The times of a cron expression: "0 7 * * mon-fri", "@daily". */
  cron: string;
  /** A calendar interval: "every 2 weeks on mon at 09:00". */
  on: string;
  /** A fixed interval. */
  every: Duration;
  everySeconds: number;
  /** Again, this long after the end of each run. */
  delay: Duration;
  delaySeconds: number;
  /** Once: a Date, RFC 3339, or a local time in `timeZone`. */
  at: Date | string;
  /** Once: seconds since 1970. */
  atSeconds: number;
  /** Once, this long from now. */
  in: Duration;
  inSeconds: number;
  /** Once, now. */
  now: true;
  /** Only when it is triggered. */
  manual: true;
}

/** Exactly one schedule. */
export type Schedule = { [K in keyof Schedules]: Pick<Schedules, K> & { [O in Exclude<keyof Schedules, K>]?: never } }[keyof Schedules];

/** The policies of a task: columns of `scheduled_tasks`. What is absent has the default of the table. `..Ms`: milliseconds, or a duration. */
export interface Policies {
  /** An IANA name, such as "Europe/Rome". */
  timeZone?: string;
  startsAt?: Date | number | null;
  endsAt?: Date | number | null;
  /** Local times within which an occurrence is run: "09:00-17:30". Others are skipped. */
  onlyBetween?: string | null;
  /** Local dates on which an occurrence is run: "2027-12-20..2027-12-31". */
  onlyOn?: string | null;
  /** Local dates on which an occurrence is skipped. */
  exceptOn?: string | null;
  /** At most this number of starts in any time of a length, retries included: "4/1d". */
  maxStarts?: string | null;
  whenLimited?: "wait" | "skip";
  overlap?: "skip" | "buffer_one" | "buffer_all" | "allow" | "cancel_running";
  misfire?: "run_once" | "skip" | "run_all";
  misfireGraceMs?: number | Duration;
  catchUpLimit?: number;
  expiresMs?: number | Duration | null;
  maxAttempts?: number;
  backoffMs?: number | Duration;
  backoffCapMs?: number | Duration;
  timeoutMs?: number | Duration | null;
  jitterMs?: number | Duration;
  priority?: 0 | 1 | 2 | 3;
  concurrencyKey?: string | null;
  /** Names of tasks, separated by commas, of which a run is opened when a run of this one dies, succeeds, ends or is missed. */
  onDead?: string | null;
  onSuccess?: string | null;
  onEnd?: string | null;
  onMissed?: string | null;
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

/** A row of `scheduled_tasks`, with the names of its columns. Times are RFC 3339 in UTC. */
export interface TaskRow {
  id: number | string;
  name: string;
  handler: string;
  payload: any;
  schedule_type: "cron" | "calendar" | "interval" | "delay" | "once" | "manual";
  schedule_value: string;
  time_zone: string;
  status: "active" | "paused" | "completed" | "invalid";
  next_run: string | null;
  last_run: string | null;
  last_status: string | null;
  last_error: string | null;
  failure_count: number;
  invalid_reason: string | null;
  [column: string]: any;
}

export type RunStatus = "queued" | "running" | "failed" | "succeeded" | "dead" | "cancelled" | "skipped" | "missed";

/** A row of `task_runs`, with the names of its columns. Times are RFC 3339 in UTC. */
export interface RunRow {
  /** A text if it exceeds 2^53. */
  id: number | string;
  task: string;
  handler: string;
  scheduled_for: string;
  origin: Origin;
  status: RunStatus;
  attempt: number;
  started_at: string | null;
  finished_at: string | null;
  duration_ms: number | null;
  error: string | null;
  result: any;
  progress: string | null;
  [column: string]: any;
}

/** `signal`: ends the call. */
export interface CallOptions {
  signal?: AbortSignal;
}

/** A database, through the program duly: every rule is that of its command line, on files and on servers. */
export class Client {
  constructor(db: string | URL, options?: { program?: string });
  /** The path or address of the database. */
  readonly database: string;
  /** The path of the program. */
  readonly program: string;
  /** Adds a task, as the function `add`. The database is created if there is none. */
  add(task: Task, options?: CallOptions): Promise<TaskRow & { change: "created" | "replaced" | "unchanged" }>;
  /**
   * Opens a run of a task. `key`: an idempotency key: the first request with it opens the run, later ones return it. `wait`: until the run
   * has ended, however it ends.
   */
  trigger(name: string, options?: { payload?: unknown; key?: string; wait?: boolean } & CallOptions): Promise<RunRow>;
  /** Cancels a run, by its id, or all unfinished runs of a task. */
  cancel(run: string | number, options?: CallOptions): Promise<any>;
  pause(name: string, options?: CallOptions): Promise<TaskRow>;
  resume(name: string, options?: CallOptions): Promise<TaskRow>;
  /** Deletes a task with its history. `cancel`: its unfinished runs are cancelled first. */
  remove(name: string, options?: { cancel?: boolean } & CallOptions): Promise<{ name: string; removed: boolean }>;
  list(options?: CallOptions): Promise<TaskRow[]>;
  /** A task, with its next occurrences and last runs. */
  show(name: string, options?: CallOptions): Promise<TaskRow & { occurrences?: string[]; runs: RunRow[] }>;
  /** Runs with their results, newest first; at most `limit`, 20 by default. */
  history(name?: string, options?: { status?: RunStatus; since?: Date | string; limit?: number } & CallOptions): Promise<RunRow[]>;
}

/** Returns a client of a database. `program`: its path; by default that of the package, else DULY_BIN, else that on the PATH. */
export function client(db: string | URL, options?: { program?: string }): Client;

/** duly has ended although nobody has asked it to. */
export interface Exit {
  /** "killed by SIGKILL" or "exit code 1". */
  reason: string;
  /** Until it is started again. */
  delayMs: number;
}

export interface StartOptions extends WorkerOptions {
  /** The path of the database, which is created if there is none; or a postgres:// address. */
  db: string | URL;
  /** Further arguments of `duly run`, such as `["--http", "127.0.0.1:8629"]`. */
  args?: string[];
  /** Called when duly has ended by itself. It is started again. */
  onExit?: (exit: Exit) => void;
  /** Where duly writes its log: to standard error, or nowhere. */
  log?: "inherit" | "ignore";
  /** Aborted: as `stop`. */
  signal?: AbortSignal;
  /** The path of the program. */
  program?: string;
}

/** A running duly, the child of this process. */
export interface Application extends Client {
  /** The pid of duly, while it runs. */
  readonly pid: number | undefined;
  /** Lets runs finish, ends duly, and waits for its end. Called by a handler of its own, it does not wait: duly waits for that handler. */
  stop(): Promise<void>;
}

/** Starts duly as a child of this process, and serves handlers here. Fulfilled when duly takes runs. */
export function start(options: StartOptions): Promise<Application>;
