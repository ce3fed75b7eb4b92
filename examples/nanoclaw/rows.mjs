// The rows that NanoClaw keeps about its runs, in its own database.

import { open } from "duly";

// NanoClaw has a table scheduled_tasks of its own, so duly has another file, and one transaction cannot contain the outcome of
// a run and its row here. This table makes the row idempotent instead: one row for each idempotency key.
const TABLE = `
  CREATE TABLE IF NOT EXISTS duly_runs (
    idempotency_key TEXT PRIMARY KEY,
    task_id TEXT NOT NULL,
    run_at TEXT NOT NULL,
    duration_ms INTEGER NOT NULL,
    answer TEXT,
    logged INTEGER NOT NULL DEFAULT 0
  )`;
const STATUS = "SELECT status FROM scheduled_tasks WHERE id = ?";
const KEPT = "SELECT run_at, duration_ms, answer, logged FROM duly_runs WHERE idempotency_key = ?";
const KEEP = "INSERT INTO duly_runs (idempotency_key, task_id, run_at, duration_ms, answer) VALUES (?, ?, ?, ?, ?)";
const MARK = "UPDATE duly_runs SET logged = 1 WHERE idempotency_key = ? AND logged = 0";
const FORGET = "DELETE FROM duly_runs WHERE logged = 1 AND run_at < ?";
// From the task: one that was cancelled meanwhile has no row, and gets none.
const LOG = `
  INSERT INTO task_run_logs (task_id, run_at, duration_ms, status, result, error)
  SELECT id, ?, ?, ?, ?, ? FROM scheduled_tasks WHERE id = ?`;
// As NanoClaw does after a run. next_run stays: it is the grid of an interval, and duly plans.
const LAST = `
  UPDATE scheduled_tasks SET last_run = ?, last_result = ?,
    status = CASE WHEN ? AND schedule_type IN ('once', 'at') THEN 'completed' ELSE status END,
    next_run = CASE WHEN ? AND schedule_type IN ('once', 'at') THEN NULL ELSE next_run END
  WHERE id = ?`;

/** How long the key of a finished run is kept. Longer than duly keeps the run, which could be retried. */
const KEPT_MS = 365 * 86_400_000;
/** How much of an answer NanoClaw shows in its list of tasks. */
const SHOWN = 200;

export class Rows {
  #db;

  /** @param {string} file NanoClaw's store/messages.db */
  constructor(file) {
    this.#db = open(file);
    this.#db.exec(TABLE);
    this.#db.prepare(FORGET).run(new Date(Date.now() - KEPT_MS).toISOString());
  }

  /**
   * Returns the status of NanoClaw's task; undefined: it has none of this id.
   * @param {string} task
   * @returns {string | undefined}
   */
  status(task) {
    return this.#db.prepare(STATUS).get(task)?.status;
  }

  /**
   * Returns what an earlier attempt of the run has kept, if there is anything.
   * @param {string} key
   * @returns {{ run_at: string, duration_ms: number, answer: string | null, logged: number } | undefined}
   */
  kept(key) {
    return this.#db.prepare(KEPT).get(key);
  }

  /**
   * Keeps the answer of the agent, so that no later attempt asks it again.
   * @param {string} key
   * @param {string} task
   * @param {{ run_at: string, duration_ms: number, answer: string | null }} done
   */
  keep(key, task, done) {
    this.#db.prepare(KEEP).run(key, task, done.run_at, done.duration_ms, done.answer);
  }

  /**
   * Writes the row of a run that has succeeded, once for its key.
   * @param {string} key
   * @param {string} task
   * @param {{ run_at: string, duration_ms: number, answer: string | null }} done
   */
  succeeded(key, task, done) {
    this.#transaction(() => {
      if (Number(this.#db.prepare(MARK).run(key).changes) === 0) return;
      this.#db.prepare(LOG).run(done.run_at, done.duration_ms, "success", done.answer, null, task);
      this.#db.prepare(LAST).run(done.run_at, done.answer?.slice(0, SHOWN) ?? "Completed", 1, 1, task);
    });
  }

  /**
   * Writes the row of an attempt that has failed.
   * @param {string} task
   * @param {{ run_at: string, duration_ms: number }} times
   * @param {string} error
   */
  failed(task, times, error) {
    this.#transaction(() => {
      this.#db.prepare(LOG).run(times.run_at, times.duration_ms, "error", null, error, task);
      this.#db.prepare(LAST).run(times.run_at, `Error: ${error}`.slice(0, SHOWN), 0, 0, task);
    });
  }

  /** @param {() => void} write */
  #transaction(write) {
    this.#db.exec("BEGIN IMMEDIATE");
    try {
      write();
      this.#db.exec("COMMIT");
    } catch (error) {
      this.#db.exec("ROLLBACK");
      throw error;
    }
  }
}
