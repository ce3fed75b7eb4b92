-- duly: the tables, version 1.
--
-- The tables are an interface. Any program, and the sqlite3 shell (3.37 or newer), may read all of them, and may write:
--   * INSERT INTO scheduled_tasks (name, handler, payload, schedule_type, schedule_value[, ..]), next_run left NULL;
--   * any policy column of a task; status = 'paused' or 'active'; next_run = now, to run it now;
--   * UPDATE task_runs SET cancel_requested = 1; DELETE FROM scheduled_tasks; effects in doubt (see task_effects);
--   * concurrency_limits and rate_limits; to forget starts, DELETE FROM rate_limit_starts, and
--     UPDATE rate_limit_openings SET opens_at = 1000000000000.
-- A running scheduler sees it within its poll interval (default 1 s). Only the program itself may write anything else.
--
-- Times are INTEGER milliseconds since the Unix epoch, UTC; a CHECK refuses seconds. Durations are milliseconds.
-- Enumerations are checked with = and OR: an IN list of three constants opens an ephemeral b-tree at every statement.
-- The most frequent values come first.
-- json_valid(NULL) is 0 before SQLite 3.45, so NULL is allowed explicitly.
-- Text is UTF-8 without NUL, which ends a text for many programs: CAST(x'00' AS TEXT) is a NUL. SQLite reads most malformed
-- bytes as U+FFFD, so NOT GLOB '*�*' refuses most of them. A payload may hold U+FFFD. (Calls of char() would take an
-- eighth of the time of an INSERT.)
-- A malformed row that passes these checks affects only itself: it becomes invalid, and doctor reports it.
-- Only defaults, the triggers below and the views read SQLite's clock; the program passes its own time.

-- ---------------------------------------------------------------------------------------------------------- tables --

-- A task: a durable promise.
CREATE TABLE scheduled_tasks (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Also the idempotency key of an enqueue: a second INSERT of the same name is refused.
    name             TEXT NOT NULL UNIQUE
                     CHECK (length(name) <= 200 AND name GLOB '[A-Za-z]*' AND name NOT GLOB '*[^A-Za-z0-9._:/@-]*'
                            AND instr(name, CAST(x'00' AS TEXT)) = 0),
    handler          TEXT NOT NULL
                     CHECK (length(handler) BETWEEN 1 AND 200
                            AND instr(handler, CAST(x'00' AS TEXT)) = 0 AND handler NOT GLOB '*�*'),
    payload          TEXT NOT NULL DEFAULT 'null'
                     CHECK (json_valid(payload) AND length(CAST(payload AS BLOB)) <= 262144
                            AND instr(payload, CAST(x'00' AS TEXT)) = 0),

    schedule_type    TEXT NOT NULL CHECK (schedule_type = 'once' OR schedule_type = 'cron'
                                          OR schedule_type = 'interval' OR schedule_type = 'delay'
                                          OR schedule_type = 'calendar' OR schedule_type = 'manual'),
    -- cron: an expression; calendar: a text such as 'every 2 weeks on mon at 09:00'; interval, delay: a duration such
    -- as '15m' or '1h 30m', or whole milliseconds; once: RFC 3339, or a local date and time read in time_zone; manual:
    -- ''. A manual task has no occurrence: only a trigger, another task's on_dead, on_success, .., or next_run = now opens a run.
    schedule_value   TEXT NOT NULL
                     CHECK (length(schedule_value) <= 256 AND instr(schedule_value, CAST(x'00' AS TEXT)) = 0
                            AND schedule_value NOT GLOB '*�*'),
    time_zone        TEXT NOT NULL DEFAULT 'UTC'
                     CHECK (length(time_zone) BETWEEN 1 AND 100
                            AND instr(time_zone, CAST(x'00' AS TEXT)) = 0 AND time_zone NOT GLOB '*�*'),
    -- No occurrence is earlier or later. An interval's grid, and the days of a calendar interval, begin at
    -- starts_at, else at created_at.
    starts_at        INTEGER CHECK (starts_at BETWEEN 1000000000000 AND 64060588800000),
    ends_at          INTEGER CHECK (ends_at BETWEEN 1000000000000 AND 64060588800000),
    -- Local times and dates at which an occurrence is run, or is skipped: '09:00-17:30', '2027-12-24..2027-12-26'. Only with cron,
    -- calendar and interval.
    only_between     TEXT CHECK (length(only_between) <= 1000 AND instr(only_between, CAST(x'00' AS TEXT)) = 0
                                 AND only_between NOT GLOB '*�*'),
    only_on          TEXT CHECK (length(only_on) <= 32000 AND instr(only_on, CAST(x'00' AS TEXT)) = 0
                                 AND only_on NOT GLOB '*�*'),
    except_on        TEXT CHECK (length(except_on) <= 32000 AND instr(except_on, CAST(x'00' AS TEXT)) = 0
                                 AND except_on NOT GLOB '*�*'),

    -- completed: no occurrence is left. invalid: written by another program and unusable; invalid_reason says why.
    status           TEXT NOT NULL DEFAULT 'active'
                     CHECK (status = 'active' OR status = 'completed' OR status = 'paused' OR status = 'invalid'),
    -- The next occurrence; NULL: none, or none known yet.
    next_run         INTEGER CHECK (next_run BETWEEN 1000000000000 AND 64060588800000),
    -- 0: a scheduler must still examine this row and compute next_run (unless it is set); 1: next_run is valid.
    planned          INTEGER NOT NULL DEFAULT 0 CHECK (planned = 0 OR planned = 1),
    -- The newest occurrence ever resolved: no occurrence up to it is resolved again, whatever the clock does.
    resolved_until   INTEGER CHECK (resolved_until BETWEEN 1000000000000 AND 64060588800000),
    -- When it was created, its schedule or zone last changed, or it was last resumed: the schedule counts from here.
    active_since     INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER))
                     CHECK (active_since BETWEEN 1000000000000 AND 64060588800000),

    -- What happens to an occurrence that falls due while an earlier run is unfinished.
    overlap          TEXT NOT NULL DEFAULT 'skip'
                     CHECK (overlap = 'skip' OR overlap = 'buffer_one' OR overlap = 'buffer_all'
                            OR overlap = 'allow' OR overlap = 'cancel_running'),
    -- What happens to occurrences that are resolved later than the grace.
    misfire          TEXT NOT NULL DEFAULT 'run_once'
                     CHECK (misfire = 'run_once' OR misfire = 'skip' OR misfire = 'run_all'),
    misfire_grace_ms INTEGER NOT NULL DEFAULT 60000 CHECK (misfire_grace_ms BETWEEN 0 AND 315576000000),
    catch_up_limit   INTEGER NOT NULL DEFAULT 100 CHECK (catch_up_limit BETWEEN 1 AND 200),
    -- A run of which no attempt began in this time becomes missed. NULL: never.
    expires_ms       INTEGER CHECK (expires_ms BETWEEN 1 AND 315576000000),
    max_attempts     INTEGER NOT NULL DEFAULT 5 CHECK (max_attempts BETWEEN 1 AND 1000000),
    backoff_ms       INTEGER NOT NULL DEFAULT 10000 CHECK (backoff_ms BETWEEN 1 AND 315576000000),
    backoff_cap_ms   INTEGER NOT NULL DEFAULT 3600000 CHECK (backoff_cap_ms BETWEEN 1 AND 315576000000),
    -- 0: no limit; NULL: the handler's default.
    timeout_ms       INTEGER CHECK (timeout_ms BETWEEN 0 AND 315576000000),
    -- Runs start later than they are due by a fixed part of this, which a hash of the task's name determines.
    jitter_ms        INTEGER NOT NULL DEFAULT 0 CHECK (jitter_ms BETWEEN 0 AND 86400000),
    priority         INTEGER NOT NULL DEFAULT 1 CHECK (priority BETWEEN 0 AND 3),
    -- At most one run with this key runs at a time, across tasks, or as many as concurrency_limits says. NULL: the task's own
    -- key, '#' and its id; with overlap 'allow', no key.
    concurrency_key  TEXT CHECK (length(concurrency_key) BETWEEN 1 AND 200 AND concurrency_key NOT GLOB '#*'
                            AND instr(concurrency_key, CAST(x'00' AS TEXT)) = 0
                            AND concurrency_key NOT GLOB '*�*'),
    -- At most this number of starts of the task in any time of this length, such as '4/1d', retries included. NULL: no limit.
    max_starts       TEXT CHECK (length(max_starts) BETWEEN 3 AND 100 AND max_starts GLOB '[0-9]*/*'
                                 AND instr(max_starts, CAST(x'00' AS TEXT)) = 0 AND max_starts NOT GLOB '*�*'),
    -- What happens to an occurrence that falls due while no start of its task, its key or its handler is left.
    when_limited     TEXT NOT NULL DEFAULT 'wait' CHECK (when_limited = 'wait' OR when_limited = 'skip'),
    -- The names of tasks, separated by commas, of which a run is opened for a run of this task, with that run as its payload, in the
    -- transaction in which it ends. on_dead: it is dead. on_success: it has succeeded. on_end: it has succeeded, is dead, or was
    -- cancelled after an attempt began. on_missed: nothing ran, because it expired, or for all occurrences of one missed row of the
    -- misfire policy skip.
    on_dead          TEXT CHECK (length(on_dead) BETWEEN 1 AND 1000 AND instr(on_dead, CAST(x'00' AS TEXT)) = 0
                                 AND on_dead NOT GLOB '*�*'),
    on_success       TEXT CHECK (length(on_success) BETWEEN 1 AND 1000 AND instr(on_success, CAST(x'00' AS TEXT)) = 0
                                 AND on_success NOT GLOB '*�*'),
    on_end           TEXT CHECK (length(on_end) BETWEEN 1 AND 1000 AND instr(on_end, CAST(x'00' AS TEXT)) = 0
                                 AND on_end NOT GLOB '*�*'),
    on_missed        TEXT CHECK (length(on_missed) BETWEEN 1 AND 1000 AND instr(on_missed, CAST(x'00' AS TEXT)) = 0
                                 AND on_missed NOT GLOB '*�*'),
    -- The task is paused after this many consecutive dead runs; a resume resets the count. NULL: never. Not for 'once'.
    pause_after_failures INTEGER CHECK (pause_after_failures BETWEEN 1 AND 1000000),

    -- The newest attempted run, and the current number of consecutive dead runs. Not stored for 'once': task_overview
    -- reads them from the run.
    last_run         INTEGER CHECK (last_run BETWEEN 1000000000000 AND 64060588800000),
    last_finished    INTEGER CHECK (last_finished BETWEEN 1000000000000 AND 64060588800000),
    last_status      TEXT,
    last_duration_ms INTEGER,
    last_error       TEXT,
    failure_count    INTEGER NOT NULL DEFAULT 0,

    invalid_reason   TEXT,
    -- What paused the task, and why: 'user'; 'sql', unless the UPDATE sets another text;
    -- 'pause_after_failures: 3 dead runs in a row'; 'apply: ..' or 'import: ..', with the reason. NULL: it is not paused.
    paused_by        TEXT CHECK (length(paused_by) <= 200 AND instr(paused_by, CAST(x'00' AS TEXT)) = 0),
    -- The manifest that declared it; NULL when added by hand.
    managed_by       TEXT CHECK (instr(managed_by, CAST(x'00' AS TEXT)) = 0),
    -- A mark: the handler of its waiting runs and what blocks them follow from the task as it is now, and turns write them in
    -- batches. NULL: all is written. 0: nothing yet. Above 0: the scheduled runs up to this occurrence. Below 0: all scheduled runs,
    -- and the others with an id up to -marked.
    marked           INTEGER,
    created_at       INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER))
                     CHECK (created_at BETWEEN 1000000000000 AND 64060588800000),
    -- When a user or a program last changed the definition or the status; the scheduler's bookkeeping does not change it.
    updated_at       INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER))
                     CHECK (updated_at BETWEEN 1000000000000 AND 64060588800000),

    CHECK ((schedule_value = '') = (schedule_type = 'manual')),
    CHECK (misfire <> 'run_all' OR overlap = 'buffer_all' OR overlap = 'allow'),
    CHECK (ends_at IS NULL OR starts_at IS NULL OR ends_at >= starts_at)
) STRICT;

-- A run: one occurrence of a task, or one request to run it.
CREATE TABLE task_runs (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id          INTEGER NOT NULL REFERENCES scheduled_tasks (id),
    handler          TEXT NOT NULL,
    -- The occurrence; for manual runs and those that follow others (on_dead, ..), when the run was requested.
    scheduled_for    INTEGER NOT NULL CHECK (scheduled_for BETWEEN 1000000000000 AND 64060588800000),
    -- schedule and catch_up consume an occurrence; the others never do.
    origin           TEXT NOT NULL CHECK (origin = 'schedule' OR origin = 'catch_up'
                                          OR origin = 'manual' OR origin = 'on_success' OR origin = 'on_end'
                                          OR origin = 'on_dead' OR origin = 'on_missed'),
    -- The dead or cancelled run that a user retried with this one.
    retry_of         INTEGER,
    -- Of a manual run: the idempotency key of the request. A second request with it opens no run. Of a run that follows another one:
    -- '#', the id of that run, '/', and how many runs led to it.
    request_key      TEXT CHECK (request_key IS NULL
                                 OR (length(request_key) BETWEEN 1 AND 200 AND instr(request_key, CAST(x'00' AS TEXT)) = 0
                                     AND request_key NOT GLOB '*�*')),
    -- Unfinished: queued, running, failed (is retried at run_at). The others are final.
    status           TEXT NOT NULL,
    -- The run does not start before run_at, and does not begin after expires_at.
    run_at           INTEGER NOT NULL CHECK (run_at BETWEEN 1000000000000 AND 64060588800000),
    expires_at       INTEGER CHECK (expires_at BETWEEN 1000000000000 AND 64060588800000),
    -- The first reason why it may not start. paused: its task is paused or invalid. order: an older scheduled run of its
    -- task is unfinished. key: no slot or no start of its key is free, or waiting runs with its key and handler go first.
    -- starts: no start of its task was left when it was about to start. NULL: it may.
    blocked          TEXT CHECK (blocked IS NULL OR blocked = 'paused' OR blocked = 'order' OR blocked = 'key'
                                 OR blocked = 'starts'),
    -- The number of attempts claimed. It never decreases, and is the fencing token of every write about an attempt.
    attempt          INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    -- How many of them do not count. The attempts are spent when attempt - forgiven >= max_attempts.
    forgiven         INTEGER NOT NULL DEFAULT 0 CHECK (forgiven >= 0 AND forgiven <= attempt),
    -- Interruptions in a row. An attempt that fails, is lost or is snoozed sets it to 0; one returned before it began does not
    -- change it. The first three are forgiven, unless the run may start only once.
    interrupted      INTEGER NOT NULL DEFAULT 0 CHECK (interrupted >= 0 AND interrupted <= attempt),
    -- The values when the run was opened. payload NULL: the task's.
    priority         INTEGER NOT NULL DEFAULT 1 CHECK (priority BETWEEN 0 AND 3),
    concurrency_key  TEXT,
    payload          TEXT CHECK (payload IS NULL
                                 OR (json_valid(payload) AND length(CAST(payload AS BLOB)) <= 262144)),
    -- The owner of the running attempt, and the end of its lease.
    locked_by        TEXT,
    locked_until     INTEGER CHECK (locked_until BETWEEN 1000000000000 AND 64060588800000),
    -- Of a running run: its place among the running runs of its key, 0 unless concurrency_limits allows several.
    slot             INTEGER NOT NULL DEFAULT 0,
    -- Of the newest attempt. While it runs, its owner shifts started_at by each step of the wall clock.
    started_at       INTEGER CHECK (started_at BETWEEN 1000000000000 AND 64060588800000),
    finished_at      INTEGER CHECK (finished_at BETWEEN 1000000000000 AND 64060588800000),
    -- Measured by the monotonic clock: after a step of the wall clock it is not the difference of the two above. NULL: unknown.
    duration_ms      INTEGER CHECK (duration_ms >= 0),
    error            TEXT,
    exit_code        INTEGER,
    output           TEXT,
    result           TEXT CHECK (result IS NULL OR json_valid(result)),
    progress         TEXT,
    -- What is known of a command while it lives, as a JSON object without the keys that the system does not provide:
    -- pid, started (in ticks since the boot), boot (its id), pid_ns (inode of the PID namespace in which pid counts) and
    -- session of the process that leads its group; dev and ino of the file of its input; db_dev and db_ino of this database,
    -- which differ in a copy; guard: the owner and the number by which its guard knows it; init: its scheduler was process 1.
    -- {"gone":true}: a user has declared that it is gone (duly cancel RUN --gone).
    process          TEXT CHECK (process IS NULL OR json_valid(process)),
    cancel_requested INTEGER NOT NULL DEFAULT 0 CHECK (cancel_requested = 0 OR cancel_requested = 1),
    -- 1 and NULL, except for a missed or skipped row that stands for several occurrences: scheduled_for is the
    -- oldest of them, last_scheduled_for the newest.
    occurrences      INTEGER NOT NULL DEFAULT 1 CHECK (occurrences >= 1),
    last_scheduled_for INTEGER CHECK (last_scheduled_for BETWEEN 1000000000000 AND 64060588800000),

    CHECK (blocked IS NULL OR status = 'queued' OR status = 'failed'),
    -- The statuses. Exactly the running runs have an owner. Refuses to make a final run queued or running without removing its end.
    -- The tests for NULL come first: they cost less than to compare texts.
    CHECK ((locked_by IS NOT NULL AND locked_until IS NOT NULL AND finished_at IS NULL AND status = 'running')
           OR (locked_by IS NULL AND locked_until IS NULL
               AND ((finished_at IS NULL AND status = 'queued')
                    OR (finished_at IS NOT NULL AND (status = 'succeeded' OR status = 'failed' OR status = 'dead'
                                                     OR status = 'cancelled' OR status = 'skipped' OR status = 'missed'))))),
    CHECK ((occurrences = 1 AND last_scheduled_for IS NULL) OR status = 'missed' OR status = 'skipped')
) STRICT;

-- Each attempt that did not simply succeed.
CREATE TABLE task_attempts (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id           INTEGER NOT NULL REFERENCES task_runs (id),
    attempt          INTEGER NOT NULL,
    -- lost: its owner died. released: returned to the queue before it started. snoozed: its handler postponed the run.
    -- skipped: there was nothing to do.
    -- superseded: it ended after another owner had taken the run; nothing is discarded.
    outcome          TEXT NOT NULL CHECK (outcome = 'failed' OR outcome = 'panicked' OR outcome = 'timed_out'
                                          OR outcome = 'lost' OR outcome = 'cancelled' OR outcome = 'released'
                                          OR outcome = 'snoozed' OR outcome = 'skipped' OR outcome = 'superseded'),
    error            TEXT,
    -- What a command printed; the result of an attempt that succeeded too late.
    output           TEXT,
    exit_code        INTEGER,
    locked_by        TEXT NOT NULL,
    started_at       INTEGER,
    finished_at      INTEGER NOT NULL,
    -- As in task_runs.
    duration_ms      INTEGER CHECK (duration_ms >= 0),
    -- 1: its run ended with it, as dead or cancelled. doctor reports a run that was reopened since.
    final            INTEGER NOT NULL DEFAULT 0 CHECK (final = 0 OR final = 1)
) STRICT;

-- Effects: actions that are performed once, even if their run is retried. run_id is the first run of a chain of retries.
-- An intent that no attempt works on any more is in doubt, and its run has given up. Find out whether the effect was
-- performed: if not, DELETE the row; if so, set state = 'done' and value. Then retry the run.
CREATE TABLE task_effects (
    key              TEXT NOT NULL,
    run_id           INTEGER NOT NULL,
    state            TEXT NOT NULL CHECK (state = 'intent' OR state = 'done'),
    value            TEXT CHECK (value IS NULL OR json_valid(value)),
    created_at       INTEGER NOT NULL,
    done_at          INTEGER,
    PRIMARY KEY (run_id, key)
) STRICT, WITHOUT ROWID;

-- How many runs with a key may run at once, over all processes; a key without a row: one. A lower number ends no run. With
-- max_starts and per_ms: at most max_starts runs with the key start in any per_ms, as in rate_limits.
CREATE TABLE concurrency_limits (
    concurrency_key  TEXT PRIMARY KEY
                     CHECK (length(concurrency_key) BETWEEN 1 AND 200 AND concurrency_key NOT GLOB '#*'
                            AND instr(concurrency_key, char(0)) = 0
                            AND concurrency_key NOT GLOB '*' || char(65533) || '*'),
    max_running      INTEGER NOT NULL DEFAULT 1 CHECK (max_running BETWEEN 1 AND 1000),
    max_starts       INTEGER CHECK (max_starts BETWEEN 1 AND 10000),
    per_ms           INTEGER CHECK (per_ms BETWEEN 1 AND 315576000000),
    -- The manifest that declared it; NULL when it was set by hand.
    managed_by       TEXT CHECK (instr(managed_by, char(0)) = 0),
    CHECK ((max_starts IS NULL) = (per_ms IS NULL))
) STRICT, WITHOUT ROWID;

-- At most max_starts attempts of a handler start in any per_ms, retries included, over all processes. An attempt counts from its
-- claim, also if it was returned before it began; one that was claimed before a worker was free, from the latest time at which
-- it may begin.
CREATE TABLE rate_limits (
    handler          TEXT PRIMARY KEY
                     CHECK (length(handler) BETWEEN 1 AND 200
                            AND instr(handler, char(0)) = 0 AND handler NOT GLOB '*' || char(65533) || '*'),
    max_starts       INTEGER NOT NULL CHECK (max_starts BETWEEN 1 AND 10000),
    per_ms           INTEGER NOT NULL CHECK (per_ms BETWEEN 1 AND 315576000000),
    managed_by       TEXT CHECK (instr(managed_by, char(0)) = 0)
) STRICT, WITHOUT ROWID;

-- The newest max_starts starts of each handler, key and task with a rate, numbered in the order of their transactions. The next
-- start may follow when the one max_starts before it is per_ms ago. subject: 'handler:' or 'key:' and the name, or 'task:' and
-- the id of the task.
CREATE TABLE rate_limit_starts (
    subject          TEXT NOT NULL,
    number           INTEGER NOT NULL CHECK (number BETWEEN 1 AND 9000000000000000),
    started_at       INTEGER NOT NULL CHECK (started_at BETWEEN 1000000000000 AND 64060588800000),
    PRIMARY KEY (subject, number)
) STRICT, WITHOUT ROWID;

-- The keys and tasks of which no start is left, and when the next one is. A turn examines a row whose time has come, and
-- deletes it if the subject may start again.
CREATE TABLE rate_limit_openings (
    subject          TEXT PRIMARY KEY,
    opens_at         INTEGER NOT NULL CHECK (opens_at BETWEEN 1000000000000 AND 64060588800000)
) STRICT, WITHOUT ROWID;

-- One row for each started scheduler, an owner of runs.
CREATE TABLE scheduler_instances (
    id               TEXT PRIMARY KEY,
    host             TEXT NOT NULL,
    -- The kernel's boot id, a new one after every start of the machine; NULL where the system has none.
    boot_id          TEXT,
    pid              INTEGER NOT NULL,
    version          TEXT NOT NULL,
    workers          INTEGER NOT NULL,
    -- Lease: how long it counts as alive without a heartbeat, if it has no lock file.
    lease_ms         INTEGER NOT NULL CHECK (lease_ms >= 0),
    started_at       INTEGER NOT NULL,
    seen_at          INTEGER NOT NULL,
    stopped_at       INTEGER,
    -- What its application reports as wrong with its workers: a JSON array of texts, or NULL.
    problems         TEXT CHECK (problems IS NULL OR json_valid(problems)),
    -- The zone data by which it plans local times: the release, and where it is from.
    zone_data        TEXT
) STRICT;

-- Events that no run records: clock jumps, lost owners, pauses, edits, removals, faults and their end. Of the wall
-- clock: clock_forward (also after a suspend), clock_back, clock_wrong (it was hours ahead: all schedules count from
-- now), clock_behind (at a start it is behind the times in the file), clock_not_set (1970; at is the time that it would
-- show) and clock_set. owner_stalled: a live owner did not extend its lease in time; worker_ended: a worker thread
-- panicked (in both, detail begins with the id of the owner); stall_ended: an owner goes on that did nothing for longer
-- than its lease. Of a command whose scheduler died: orphan_unknown (whether it has ended cannot be known; its run
-- waits), left_group (it has ended, except for a process that left its group and holds its input), declared_gone (a
-- user declared that it has ended; detail is what was recorded of it). restored: the file was restored to an earlier
-- state, and a new history has begun. action: a user of the status page triggered or retried (run_id is the new run),
-- paused, resumed or cancelled; detail is 'page: ' and the verb. Of a client of duly mcp, also added, replaced or
-- removed: detail is 'mcp:NAME session S: ' and the verb. missed: nothing ran for occurrences, or for a run that
-- expired; caught_up: occurrences were missed, and a later one ran in their place; skipped: five or more occurrences in
-- a row were skipped, behind a run that takes long; limited: no start was left for occurrences, or for a run, which waits. Of
-- these four, run_id is the row, detail says how many and why.
CREATE TABLE scheduler_events (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    at               INTEGER NOT NULL,
    kind             TEXT NOT NULL,
    task_id          INTEGER,
    run_id           INTEGER,
    detail           TEXT
) STRICT;

-- Alarms that `duly run --alert-command` and `--alert-url` deliver: one row per channel and condition, while it lasts or a message
-- about it is due. Empty without these options. subject: the name of the task, for scheduler_lost the id of the owner, else ''.
-- run_id: the newest dead, missed, skipped or limited row. count: how often the condition began (dead runs, missed occurrences);
-- delivered: how many of these a delivered message holds; claimed: how many the message holds that is being delivered, -1 for
-- the end.
CREATE TABLE scheduler_alarms (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    channel          TEXT NOT NULL,
    kind             TEXT NOT NULL,
    subject          TEXT NOT NULL,
    run_id           INTEGER,
    since            INTEGER NOT NULL,
    count            INTEGER NOT NULL CHECK (count BETWEEN 1 AND 1000000000000),
    delivered        INTEGER NOT NULL DEFAULT 0 CHECK (delivered BETWEEN 0 AND count),
    claimed          INTEGER NOT NULL DEFAULT 0 CHECK (claimed BETWEEN -1 AND count),
    -- When the oldest change that is not delivered was found.
    changed_at       INTEGER NOT NULL,
    ended_at         INTEGER,
    found            TEXT NOT NULL,
    advice           TEXT NOT NULL
) STRICT;

-- What each channel has seen, by kind of alarm: seen_id, the last attempt or event that was examined; when its last message was
-- delivered; and which sender delivers one now, until when at most.
CREATE TABLE scheduler_alarm_channels (
    channel          TEXT NOT NULL,
    kind             TEXT NOT NULL,
    seen_id          INTEGER NOT NULL DEFAULT 0,
    sent_at          INTEGER,
    claimed_by       TEXT,
    claimed_until    INTEGER,
    PRIMARY KEY (channel, kind)
) STRICT, WITHOUT ROWID;

-- schema_version: of these tables, since user_version may be an application's. probe: see scheduled_tasks_no_replace.
-- stamp: counts heartbeats. If it decreases, the file is an older copy, and the scheduler stops; do not change it.
-- zone_data: of the scheduler that started last. zone_rules:Europe/Rome: a digest of the rules by which the tasks of this time zone are
-- planned, and those of running schedulers with other rules, each with @ and its id. zone_mark:Europe/Rome: the last of these tasks that
-- is planned again by the first of these rules, and since when. clock_mark: since when a wrong clock is known, and the last task and the
-- last run that were planned again since. misplanned: of these, rows that could not be written, and the time from which they are planned
-- again. history: a random id of the history of these rows. After the file was restored to an earlier state, the first scheduler or
-- client that finds that begins another. restored: what it found, until a scheduler records the event. held: what still runs of the
-- history before, as JSON: of each owner the id under which it goes on, and of each attempt its run, its number, its task and a hash of
-- its key; these tasks and keys start nothing. attempts is null if they are not known.
CREATE TABLE scheduler_meta (
    key              TEXT PRIMARY KEY,
    value            TEXT NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO scheduler_meta (key, value) VALUES
    ('program', 'duly'), ('schema_version', '1'), ('probe', 'kept'), ('history', lower(hex(randomblob(16))));

-- --------------------------------------------------------------------------------------------------------- indexes --

-- Due tasks, most urgent first.
CREATE INDEX scheduled_tasks_due ON scheduled_tasks (priority, next_run) WHERE status = 'active' AND planned = 1;
-- Rows that a scheduler must still examine.
CREATE INDEX scheduled_tasks_unplanned ON scheduled_tasks (planned) WHERE planned = 0;
-- Tasks whose waiting runs a scheduler must still write.
CREATE INDEX scheduled_tasks_marked ON scheduled_tasks (id) WHERE marked IS NOT NULL;
-- Tasks that others follow, apart from on_dead: if there is none, the end of a run looks up no task.
CREATE INDEX scheduled_tasks_followed ON scheduled_tasks (id)
    WHERE on_success IS NOT NULL OR on_end IS NOT NULL OR on_missed IS NOT NULL;
-- Tasks that may have a local time, by time zone. What a run changes of its task is not in it.
CREATE INDEX scheduled_tasks_zoned ON scheduled_tasks (time_zone)
    WHERE time_zone <> 'UTC' AND (schedule_type = 'cron' OR schedule_type = 'calendar' OR schedule_type = 'once');

-- At most one scheduled run per task and instant (the second term distinguishes the others). Also a task's history.
CREATE UNIQUE INDEX task_runs_one_per_occurrence ON task_runs
    (task_id, (iif(origin = 'schedule' OR origin = 'catch_up', 0, id)), scheduled_for);
-- At most one running run per slot of a key. Also all running runs.
CREATE UNIQUE INDEX task_runs_running ON task_runs (concurrency_key, slot) WHERE status = 'running';
-- The unfinished runs of a task: scheduled runs, oldest first, then the others, of which there may be any number.
CREATE INDEX task_runs_unfinished ON task_runs
    (task_id, (iif(origin = 'schedule' OR origin = 'catch_up', 0, id)), scheduled_for)
    WHERE locked_by IS NOT NULL OR (status = 'queued' OR status = 'failed');
-- Runs that may start, by handler, most urgent first. Blocked runs are not in it, and so cost a claim nothing.
CREATE INDEX task_runs_claimable ON task_runs (handler, priority, run_at)
    WHERE locked_by IS NULL AND (status = 'queued' OR status = 'failed') AND blocked IS NULL;
-- Waiting runs by what blocks them and by key: which run is next when the key is free.
CREATE INDEX task_runs_waiting ON task_runs (blocked, concurrency_key, handler, priority, run_at)
    WHERE locked_by IS NULL AND (status = 'queued' OR status = 'failed');
-- Runs that wait for a start of their task: which of them are next when it may start again.
CREATE INDEX task_runs_limited ON task_runs (task_id, priority, run_at) WHERE blocked = 'starts';
-- Tasks with a limit of starts.
CREATE INDEX scheduled_tasks_limited ON scheduled_tasks (id) WHERE max_starts IS NOT NULL;
-- Which key or task may start again next.
CREATE INDEX rate_limit_openings_next ON rate_limit_openings (opens_at);
-- Waiting runs that SQL has requested to stop.
CREATE INDEX task_runs_asked ON task_runs (task_id)
    WHERE cancel_requested = 1 AND locked_by IS NULL AND (status = 'queued' OR status = 'failed');
-- Runs that expire unless they begin.
CREATE INDEX task_runs_expiring ON task_runs (expires_at) WHERE expires_at IS NOT NULL AND status = 'queued';
-- Dead runs by their end: which of them are recent.
CREATE INDEX task_runs_dead ON task_runs (finished_at) WHERE finished_at IS NOT NULL AND status = 'dead';
-- One run for all requests with the same key.
CREATE UNIQUE INDEX task_runs_requested ON task_runs (task_id, request_key) WHERE request_key IS NOT NULL;
-- Retries by task and retried run: retention keeps a retried run as long as its retry.
CREATE INDEX task_runs_retried ON task_runs (task_id, retry_of) WHERE retry_of IS NOT NULL;

CREATE INDEX task_attempts_of_run ON task_attempts (run_id, attempt);
-- At most one open alarm per channel and condition.
CREATE UNIQUE INDEX scheduler_alarms_open ON scheduler_alarms (channel, kind, subject) WHERE ended_at IS NULL;
CREATE INDEX scheduler_events_of_task ON scheduler_events (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX scheduler_events_of_kind ON scheduler_events (kind);

-- -------------------------------------------------------------------------------------------------------- triggers --

-- +blocked, not blocked: after an ANALYZE of an empty file SQLite would search the runs of all tasks in task_runs_waiting.

-- INSERT OR REPLACE would delete the old row without its delete triggers, and leave its runs without a task. OR IGNORE and
-- upserts are allowed. A probe distinguishes them: an outer REPLACE also overrides the inner OR IGNORE, and so overwrites the
-- probe row, which every other kind of INSERT leaves unchanged.
CREATE TRIGGER scheduled_tasks_no_replace BEFORE INSERT ON scheduled_tasks
WHEN EXISTS (SELECT 1 FROM scheduled_tasks WHERE name = NEW.name OR id = NEW.id)
BEGIN
    INSERT OR IGNORE INTO scheduler_meta (key, value) VALUES ('probe', 'overwritten');
    SELECT RAISE(ABORT, 'a task of this name or id exists: use UPDATE or an upsert instead of REPLACE')
     WHERE (SELECT value FROM scheduler_meta WHERE key = 'probe') = 'overwritten';
END;

-- UPDATE OR REPLACE would do the same to another row that has the new name.
CREATE TRIGGER scheduled_tasks_no_rename_over BEFORE UPDATE OF id, name ON scheduled_tasks
WHEN NEW.id <> OLD.id OR EXISTS (SELECT 1 FROM scheduled_tasks WHERE name = NEW.name AND id <> OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'the id of a task cannot be changed') WHERE NEW.id <> OLD.id;
    SELECT RAISE(ABORT, 'a task of this name exists: remove or rename it first');
END;

-- A change of the definition, apart from the schedule, by SQL. It may repair an invalid task, so the loop examines it.
CREATE TRIGGER scheduled_tasks_touched AFTER UPDATE OF
    name, handler, payload, only_between, only_on, except_on, overlap, misfire, misfire_grace_ms, catch_up_limit,
    expires_ms, max_attempts, backoff_ms, backoff_cap_ms, timeout_ms, jitter_ms, priority, concurrency_key, max_starts,
    when_limited, on_dead, on_success, on_end, on_missed, pause_after_failures, managed_by
ON scheduled_tasks
WHEN NEW.updated_at IS OLD.updated_at
BEGIN
    UPDATE scheduled_tasks
       SET updated_at = CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER),
           planned = iif(status = 'invalid', 0, planned)
     WHERE id = NEW.id;
END;

-- A change of schedule or zone, a pause or a resume by SQL. The program does the same itself, after it has resolved what is
-- due under the old state. Its UPDATE is recognized by a new active_since or resolved_until. A pause and a resume write a mark.
CREATE TRIGGER scheduled_tasks_edited AFTER UPDATE OF
    schedule_type, schedule_value, time_zone, starts_at, ends_at, status
ON scheduled_tasks
WHEN NEW.resolved_until IS OLD.resolved_until AND NEW.active_since IS OLD.active_since
 AND (NEW.schedule_type IS NOT OLD.schedule_type OR NEW.schedule_value IS NOT OLD.schedule_value
      OR NEW.time_zone IS NOT OLD.time_zone OR NEW.starts_at IS NOT OLD.starts_at OR NEW.ends_at IS NOT OLD.ends_at
      OR (NEW.status IS NOT OLD.status
          AND (NEW.status = 'paused'
               OR (NEW.status = 'active' AND (OLD.status <> 'completed' OR NEW.next_run IS NULL)))))
BEGIN
    -- An occurrence was due under the old state and no scheduler has resolved it: it is recorded as missed.
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, priority, finished_at, error)
    SELECT OLD.id, OLD.handler, OLD.next_run, 'schedule', 'missed', OLD.next_run, OLD.priority,
           CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER),
           'at least 1: the task was changed by SQL before what was due had been resolved'
     WHERE (OLD.status = 'active' OR OLD.status = 'completed')
       AND OLD.next_run <= (julianday('now') - 2440587.5) * 86400000 AND OLD.next_run > ifnull(OLD.resolved_until, 0)
    ON CONFLICT DO NOTHING;

    UPDATE scheduled_tasks
       SET active_since = CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER),
           updated_at = CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER),
           planned = 0,
           next_run = iif(NEW.next_run IS OLD.next_run, NULL, NEW.next_run),
           resolved_until = iif((OLD.status = 'active' OR OLD.status = 'completed')
                                AND OLD.next_run <= (julianday('now') - 2440587.5) * 86400000,
                                max(OLD.next_run, ifnull(OLD.resolved_until, OLD.next_run)), OLD.resolved_until),
           status = iif(NEW.status = 'completed' OR NEW.status = 'invalid', 'active', NEW.status),
           failure_count = iif(OLD.status = 'paused' AND NEW.status = 'active', 0, failure_count),
           invalid_reason = NULL,
           paused_by = iif(NEW.status = 'paused', ifnull(NEW.paused_by, 'sql'), NULL),
           marked = iif((OLD.status = 'paused' OR OLD.status = 'invalid') = (NEW.status = 'paused'), marked, 0)
     WHERE id = NEW.id;
END;

-- next_run set to a later time by SQL, to run the task now, or to NULL, to compute it anew. An occurrence that was due is
-- recorded as missed, as above; that of a 'once' task moves along with next_run. A completed task that is given a next_run is
-- active again as soon as the loop has examined it. The program's UPDATE is recognized by a new resolved_until or planned.
CREATE TRIGGER scheduled_tasks_moved AFTER UPDATE OF next_run ON scheduled_tasks
WHEN NEW.resolved_until IS OLD.resolved_until AND NEW.active_since IS OLD.active_since AND NEW.planned = OLD.planned
 AND NEW.status = OLD.status
 AND ((OLD.status = 'active' AND ifnull(NEW.next_run > OLD.next_run, OLD.next_run IS NOT NULL))
      OR (OLD.status = 'completed' AND ifnull(NEW.next_run > OLD.next_run, NEW.next_run IS NOT NULL)))
BEGIN
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, priority, finished_at, error)
    SELECT OLD.id, OLD.handler, OLD.next_run, 'schedule', 'missed', OLD.next_run, OLD.priority,
           CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER),
           'at least 1: the task was changed by SQL before what was due had been resolved'
     WHERE OLD.schedule_type <> 'once' AND OLD.next_run <= (julianday('now') - 2440587.5) * 86400000
       AND OLD.next_run > ifnull(OLD.resolved_until, 0)
    ON CONFLICT DO NOTHING;

    UPDATE scheduled_tasks
       SET resolved_until = iif(schedule_type <> 'once' AND OLD.next_run <= (julianday('now') - 2440587.5) * 86400000,
                                max(OLD.next_run, ifnull(resolved_until, OLD.next_run)), resolved_until),
           planned = iif(next_run IS NULL OR status = 'completed', 0, planned)
     WHERE id = NEW.id;
END;

-- A change of handler also applies to the waiting runs, so that repairing a task repairs its retries; a change of overlap may
-- unblock them. The mark says so: there may be any number of them. planned = 0 calls the loop, which also examines other times
-- and dates.
CREATE TRIGGER scheduled_tasks_repaired AFTER UPDATE OF handler, overlap, max_starts, only_between, only_on, except_on
ON scheduled_tasks
WHEN NEW.handler IS NOT OLD.handler OR NEW.overlap IS NOT OLD.overlap OR NEW.max_starts IS NOT OLD.max_starts
  OR NEW.only_between IS NOT OLD.only_between
  OR NEW.only_on IS NOT OLD.only_on OR NEW.except_on IS NOT OLD.except_on
BEGIN
    UPDATE scheduled_tasks SET planned = 0, marked = 0 WHERE id = NEW.id;
END;

-- Another limit of starts: whether one is left now is examined by the next turn. Without a limit, its starts do not count.
CREATE TRIGGER scheduled_tasks_relimited AFTER UPDATE OF max_starts ON scheduled_tasks
WHEN OLD.max_starts IS NOT NULL AND NEW.max_starts IS NOT OLD.max_starts
BEGIN
    DELETE FROM rate_limit_starts WHERE subject = 'task:' || NEW.id AND NEW.max_starts IS NULL;
    DELETE FROM rate_limit_openings WHERE subject = 'task:' || NEW.id AND NEW.max_starts IS NULL;
    INSERT INTO rate_limit_openings (subject, opens_at) SELECT 'task:' || NEW.id, 1000000000000 WHERE NEW.max_starts IS NOT NULL
    ON CONFLICT (subject) DO UPDATE SET opens_at = excluded.opens_at;
END;

CREATE TRIGGER scheduled_tasks_unlimited BEFORE DELETE ON scheduled_tasks
WHEN OLD.max_starts IS NOT NULL
BEGIN
    DELETE FROM rate_limit_starts WHERE subject = 'task:' || OLD.id;
    DELETE FROM rate_limit_openings WHERE subject = 'task:' || OLD.id;
END;

-- A cancel request by SQL for a waiting run: planned = 0 calls the loop, which cancels it. The loop finds running runs itself.
CREATE TRIGGER task_runs_cancelled AFTER UPDATE OF cancel_requested ON task_runs
WHEN NEW.cancel_requested = 1 AND (NEW.status = 'queued' OR NEW.status = 'failed')
BEGIN
    UPDATE scheduled_tasks SET planned = 0 WHERE id = NEW.task_id;
END;

-- Triggers delete what belongs to a task, since the sqlite3 shell leaves foreign keys off.
CREATE TRIGGER scheduled_tasks_removed BEFORE DELETE ON scheduled_tasks
BEGIN
    SELECT RAISE(ABORT, 'the task has a running run: cancel it, or pause the task and wait')
     WHERE EXISTS (SELECT 1 FROM task_runs WHERE task_id = OLD.id AND locked_by IS NOT NULL);
    UPDATE task_runs SET blocked = NULL
     WHERE id IN (SELECT (SELECT n.id FROM task_runs n
                           WHERE n.locked_by IS NULL AND (n.status = 'queued' OR n.status = 'failed')
                             AND n.blocked = 'key'
                             AND n.concurrency_key = r.concurrency_key AND n.handler = r.handler
                             AND n.task_id <> r.task_id
                           ORDER BY n.run_at, n.id LIMIT 1)
                    FROM task_runs r
                   WHERE r.task_id = OLD.id AND r.locked_by IS NULL AND (r.status = 'queued' OR r.status = 'failed')
                     AND +r.blocked IS NULL AND r.concurrency_key IS NOT NULL);
    -- Behind a key with a limit, several may start: the loop derives which.
    UPDATE scheduled_tasks SET planned = 0
     WHERE id IN (SELECT (SELECT n.task_id FROM task_runs n
                           WHERE n.locked_by IS NULL AND (n.status = 'queued' OR n.status = 'failed')
                             AND n.blocked = 'key' AND n.concurrency_key = r.concurrency_key
                             AND n.task_id <> r.task_id LIMIT 1)
                    FROM task_runs r
                   WHERE r.task_id = OLD.id AND r.locked_by IS NULL AND (r.status = 'queued' OR r.status = 'failed')
                     AND r.concurrency_key IN (SELECT concurrency_key FROM concurrency_limits));
    DELETE FROM task_runs WHERE task_id = OLD.id;
    DELETE FROM scheduler_events WHERE task_id = OLD.id;
END;

-- A limit was changed: planned = 0 of a task that waits calls the loop, which derives anew which runs with the key may start.
CREATE TRIGGER concurrency_limits_added AFTER INSERT ON concurrency_limits
BEGIN
    -- A REPLACE deletes the old row without its delete triggers.
    DELETE FROM rate_limit_starts WHERE subject = 'key:' || NEW.concurrency_key AND NEW.max_starts IS NULL;
    UPDATE rate_limit_openings SET opens_at = 1000000000000 WHERE subject = 'key:' || NEW.concurrency_key;
    UPDATE scheduled_tasks SET planned = 0
     WHERE id IN (SELECT * FROM (SELECT task_id FROM task_runs
                                  WHERE locked_by IS NULL AND (status = 'queued' OR status = 'failed')
                                    AND blocked = 'key' AND concurrency_key = NEW.concurrency_key LIMIT 1)
                  UNION ALL
                  SELECT * FROM (SELECT task_id FROM task_runs
                                  WHERE locked_by IS NULL AND (status = 'queued' OR status = 'failed')
                                    AND blocked IS NULL AND concurrency_key = NEW.concurrency_key LIMIT 1));
END;

CREATE TRIGGER concurrency_limits_changed AFTER UPDATE OF concurrency_key, max_running, max_starts, per_ms ON concurrency_limits
BEGIN
    SELECT RAISE(ABORT, 'the key of a limit cannot be changed: insert another row')
     WHERE NEW.concurrency_key <> OLD.concurrency_key;
    UPDATE scheduled_tasks SET planned = 0
     WHERE id IN (SELECT * FROM (SELECT task_id FROM task_runs
                                  WHERE locked_by IS NULL AND (status = 'queued' OR status = 'failed')
                                    AND blocked = 'key' AND concurrency_key = NEW.concurrency_key LIMIT 1)
                  UNION ALL
                  SELECT * FROM (SELECT task_id FROM task_runs
                                  WHERE locked_by IS NULL AND (status = 'queued' OR status = 'failed')
                                    AND blocked IS NULL AND concurrency_key = NEW.concurrency_key LIMIT 1));
END;

CREATE TRIGGER concurrency_limits_relimited AFTER UPDATE OF max_starts, per_ms ON concurrency_limits
WHEN OLD.max_starts IS NOT NULL AND (NEW.max_starts IS NOT OLD.max_starts OR NEW.per_ms IS NOT OLD.per_ms)
BEGIN
    DELETE FROM rate_limit_starts WHERE subject = 'key:' || NEW.concurrency_key AND NEW.max_starts IS NULL;
    DELETE FROM rate_limit_openings WHERE subject = 'key:' || NEW.concurrency_key AND NEW.max_starts IS NULL;
    INSERT INTO rate_limit_openings (subject, opens_at)
    SELECT 'key:' || NEW.concurrency_key, 1000000000000 WHERE NEW.max_starts IS NOT NULL
    ON CONFLICT (subject) DO UPDATE SET opens_at = excluded.opens_at;
END;

CREATE TRIGGER concurrency_limits_removed AFTER DELETE ON concurrency_limits
BEGIN
    DELETE FROM rate_limit_starts WHERE subject = 'key:' || OLD.concurrency_key;
    DELETE FROM rate_limit_openings WHERE subject = 'key:' || OLD.concurrency_key;
    UPDATE scheduled_tasks SET planned = 0
     WHERE id IN (SELECT * FROM (SELECT task_id FROM task_runs
                                  WHERE locked_by IS NULL AND (status = 'queued' OR status = 'failed')
                                    AND blocked = 'key' AND concurrency_key = OLD.concurrency_key LIMIT 1)
                  UNION ALL
                  SELECT * FROM (SELECT task_id FROM task_runs
                                  WHERE locked_by IS NULL AND (status = 'queued' OR status = 'failed')
                                    AND blocked IS NULL AND concurrency_key = OLD.concurrency_key LIMIT 1));
END;

CREATE TRIGGER rate_limits_moved BEFORE UPDATE OF handler ON rate_limits
WHEN NEW.handler <> OLD.handler
BEGIN
    SELECT RAISE(ABORT, 'the handler of a limit cannot be changed: insert another row');
END;

CREATE TRIGGER rate_limits_removed AFTER DELETE ON rate_limits
BEGIN
    DELETE FROM rate_limit_starts WHERE subject = 'handler:' || OLD.handler;
END;

CREATE TRIGGER task_runs_removed BEFORE DELETE ON task_runs
BEGIN
    DELETE FROM task_attempts WHERE run_id = OLD.id;
    DELETE FROM task_effects WHERE run_id = OLD.id;
END;

-- ----------------------------------------------------------------------------------------------------------- views --

-- One row per task, times as text. For 'once' tasks the last_* columns are read from the run.
CREATE VIEW task_overview AS
SELECT t.name, t.handler, t.schedule_type, t.schedule_value, t.time_zone, t.status,
       strftime('%Y-%m-%dT%H:%M:%fZ', t.next_run / 1000.0, 'unixepoch') AS next_run,
       strftime('%Y-%m-%dT%H:%M:%fZ', iif(t.schedule_type = 'once', r.started_at, t.last_run) / 1000.0, 'unixepoch')
           AS last_run,
       iif(t.schedule_type = 'once', r.status, t.last_status) AS last_status,
       iif(t.schedule_type = 'once', r.duration_ms, t.last_duration_ms) AS last_duration_ms,
       iif(t.schedule_type = 'once', r.error, t.last_error) AS last_error,
       t.failure_count, t.invalid_reason, t.paused_by
  FROM scheduled_tasks t
  LEFT JOIN task_runs r
    ON t.schedule_type = 'once'
   AND r.id = (SELECT n.id FROM task_runs n WHERE n.task_id = t.id AND n.attempt > 0
                ORDER BY n.started_at DESC, n.id DESC LIMIT 1);

-- Due for more than five minutes, or without a due time for as long, because no scheduler has planned it since it was written: no
-- scheduler is working. A manual task is never due unless its next_run was set by SQL.
CREATE VIEW overdue_tasks AS
SELECT name, handler,
       strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(next_run, updated_at) / 1000.0, 'unixepoch') AS due_since,
       CAST((julianday('now') - 2440587.5) * 86400 - coalesce(next_run, updated_at) / 1000 AS INTEGER) AS overdue_seconds
  FROM scheduled_tasks
 WHERE (status = 'active' AND planned = 1 AND next_run < (julianday('now') - 2440587.5) * 86400000 - 300000)
    OR (planned = 0
        AND ((status = 'active' AND (schedule_type <> 'manual' OR next_run IS NOT NULL)
              AND coalesce(next_run, updated_at) < (julianday('now') - 2440587.5) * 86400000 - 300000)
             OR (status = 'completed' AND next_run < (julianday('now') - 2440587.5) * 86400000 - 300000)));

CREATE VIEW failing_tasks AS
SELECT name, handler, failure_count, last_error,
       strftime('%Y-%m-%dT%H:%M:%fZ', last_finished / 1000.0, 'unixepoch') AS last_finished
  FROM scheduled_tasks
 WHERE failure_count >= 2;

-- Running past its timeout (one hour for a command that sets none), or its lease.
CREATE VIEW stuck_runs AS
SELECT r.id, t.name, r.attempt, r.locked_by,
       strftime('%Y-%m-%dT%H:%M:%fZ', r.started_at / 1000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', r.locked_until / 1000.0, 'unixepoch') AS locked_until,
       iif(r.locked_until < (julianday('now') - 2440587.5) * 86400000, 'lease', 'timeout') AS past
  FROM task_runs r
  JOIN scheduled_tasks t ON t.id = r.task_id
 WHERE r.status = 'running'
   AND (r.locked_until < (julianday('now') - 2440587.5) * 86400000
        OR (ifnull(t.timeout_ms, iif(r.handler = 'command', 3600000, 0)) > 0
            AND r.started_at + ifnull(t.timeout_ms, 3600000) < (julianday('now') - 2440587.5) * 86400000));
