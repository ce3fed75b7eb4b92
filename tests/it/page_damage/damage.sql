UPDATE task_runs SET status = 'odd' WHERE id = 6
UPDATE task_runs SET status = CAST(x'ff' AS TEXT) WHERE id = 6
UPDATE task_runs SET status = 'odd' WHERE id = 8
UPDATE task_runs SET origin = 'odd' WHERE id > 3 AND id <> 7
UPDATE task_runs SET origin = 'odd', status = 'odd', retry_of = 3 WHERE id = 6
UPDATE task_runs SET status = 'odd', retry_of = 3, task_id = 1 WHERE id = 6
UPDATE task_runs SET scheduled_for = -9223372036854775808, run_at = -1, started_at = -1, finished_at = 9223372036854775807 WHERE id IN (6, 8)
UPDATE task_runs SET scheduled_for = 9223372036854775807, run_at = 9223372036854775807, duration_ms = -9223372036854775808 WHERE id IN (6, 8)
UPDATE task_runs SET attempt = -1, forgiven = 9223372036854775807, occurrences = -5, last_scheduled_for = -1 WHERE id = 6
UPDATE task_runs SET attempt = 9223372036854775807, occurrences = 9223372036854775807, exit_code = 9223372036854775807 WHERE id = 6
UPDATE task_runs SET priority = 99, slot = -1 WHERE id IN (6, 8)
UPDATE task_runs SET blocked = 'odd', concurrency_key = CAST(x'ff00' AS TEXT) WHERE id = 8
UPDATE task_runs SET handler = CAST(x'fffe' AS TEXT), error = CAST(x'fffe00' AS TEXT), output = CAST(x'c328' AS TEXT), payload = '{', result = '[', progress = CAST(x'ff' AS TEXT) WHERE id = 6
UPDATE task_runs SET cancel_requested = 7 WHERE id IN (6, 8)
UPDATE task_runs SET status = 'running', locked_by = 'unknown-owner', locked_until = 1805025600000 WHERE id = 8
UPDATE task_runs SET status = 'running' WHERE id = 8
UPDATE task_runs SET task_id = 77 WHERE id = 6
UPDATE scheduled_tasks SET status = 'odd' WHERE id = 2
UPDATE scheduled_tasks SET schedule_type = 'odd' WHERE id = 2
UPDATE scheduled_tasks SET schedule_value = '* * * *', time_zone = 'Mars' WHERE id = 2
UPDATE scheduled_tasks SET overlap = 'odd' WHERE id = 2
UPDATE scheduled_tasks SET misfire = 'odd' WHERE id = 2
UPDATE scheduled_tasks SET catch_up_limit = -1 WHERE id = 2
UPDATE scheduled_tasks SET max_attempts = 9223372036854775807, priority = -1 WHERE id = 2
UPDATE scheduled_tasks SET next_run = -9223372036854775808, created_at = 9223372036854775807, last_run = -1, starts_at = -5, ends_at = 9223372036854775807 WHERE id = 2
UPDATE scheduled_tasks SET misfire_grace_ms = -1, jitter_ms = 9223372036854775807, timeout_ms = -3, backoff_ms = -1, expires_ms = 9223372036854775807 WHERE id = 2
UPDATE scheduled_tasks SET payload = 'x', handler = 'command' WHERE id = 2
UPDATE scheduled_tasks SET payload = CAST(x'ff' AS TEXT), handler = CAST(x'ff' AS TEXT), on_dead = CAST(x'ff' AS TEXT), managed_by = CAST(x'ff' AS TEXT), last_error = CAST(x'ff' AS TEXT) WHERE id = 2
UPDATE scheduled_tasks SET last_status = 'odd', failure_count = -7, last_duration_ms = -1 WHERE id = 2
UPDATE scheduled_tasks SET name = CAST(x'ff2fc3a9' AS TEXT) WHERE id = 2
UPDATE scheduled_tasks SET name = 'a' || char(0) || '/../?#%<b>' WHERE id = 2
UPDATE scheduled_tasks SET name = '' WHERE id = 2
UPDATE task_attempts SET outcome = 'odd', attempt = -1 WHERE run_id = 6
UPDATE task_attempts SET error = CAST(x'ff' AS TEXT), locked_by = CAST(x'ff' AS TEXT), started_at = -1, duration_ms = -1 WHERE run_id = 6
UPDATE task_effects SET state = 'odd' WHERE run_id = 6
UPDATE task_effects SET key = CAST(x'ff' AS TEXT), value = CAST(x'ff' AS TEXT), created_at = -1, done_at = 9223372036854775807 WHERE run_id = 6
UPDATE scheduler_events SET at = -9223372036854775808, kind = CAST(x'ff' AS TEXT), detail = CAST(x'ff' AS TEXT), task_id = 77, run_id = -1 WHERE id = 1001
UPDATE scheduler_instances SET pid = -1, workers = -1, lease_ms = -1, started_at = -1, seen_at = 9223372036854775807, stopped_at = -9223372036854775808 WHERE id = 'stopped'
UPDATE scheduler_instances SET stopped_at = NULL, host = CAST(x'ff' AS TEXT), id = '../../etc' WHERE id = 'stopped'
INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('k', -1), (CAST(x'ff' AS TEXT), 9223372036854775807)
INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES ('work', -1, -1), (CAST(x'ff' AS TEXT), 9223372036854775807, 9223372036854775807)
