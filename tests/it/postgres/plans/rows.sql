SET duly.store = 'on';
SET session_replication_role = 'replica';
SET synchronous_commit = off;
SELECT set_config('test.begin', (duly_now() - 8640000000)::text, false);
INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, status, next_run, planned, concurrency_key, resolved_until,
                             active_since, created_at, updated_at, last_run, last_finished, last_status)
SELECT 'task:' || i, 'other', CASE WHEN i % 10 < 7 THEN 'once' ELSE 'interval' END,
       CASE WHEN i % 10 < 7 THEN '2026-01-01T00:00:00Z' ELSE '10h' END, CASE WHEN i % 10 < 7 THEN 'completed' ELSE 'active' END,
       CASE WHEN i % 10 >= 7 THEN duly_now() + 36000000 + i END, 1, CASE WHEN i % 50 = 0 THEN 'shared' END, t, t, t, t,
       t, t + 10, 'succeeded'
  FROM generate_series(1, TASKS) i, (SELECT current_setting('test.begin')::bigint AS t) AS t;
INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, concurrency_key, started_at, finished_at,
                       locked_by, locked_until, blocked, priority, output)
SELECT 1 + i % TASKS, 'other', t + i, CASE WHEN i % 20 = 0 THEN 'manual' ELSE 'schedule' END, s, t + i,
       CASE WHEN s = 'queued' THEN 0 ELSE 1 END, CASE WHEN b = 'key' THEN 'shared' ELSE '#' || 1 + i % TASKS END,
       CASE WHEN s <> 'queued' THEN t + i END, CASE WHEN s = 'succeeded' OR s = 'dead' THEN t + 10 + i END,
       CASE WHEN s = 'running' THEN 'else' END, CASE WHEN s = 'running' THEN duly_now() + 36000000 END, b, i % 4, 'done'
  FROM (SELECT i, CASE WHEN i > RUNS - 100 THEN 'running' WHEN i > RUNS - 2000 THEN 'queued' WHEN i % 100 = 7 THEN 'dead'
                       ELSE 'succeeded' END AS s,
               CASE WHEN i > RUNS - 2000 AND i <= RUNS - 1000 THEN 'key' END AS b FROM generate_series(1, RUNS) i) AS runs,
       (SELECT current_setting('test.begin')::bigint AS t) AS t;
INSERT INTO task_attempts (run_id, attempt, outcome, error, locked_by, finished_at)
SELECT i, 1, 'failed', 'no', 'else', t FROM generate_series(1, TASKS) i, (SELECT current_setting('test.begin')::bigint AS t) AS t;
INSERT INTO task_effects SELECT 'charge', i, 'done', '1', t, t
  FROM generate_series(1, TASKS) i, (SELECT current_setting('test.begin')::bigint AS t) AS t;
INSERT INTO scheduler_instances (id, host, pid, version, workers, lease_ms, started_at, seen_at)
SELECT 'lost', 'elsewhere', 1, '0', 1, 1000, t, t FROM (SELECT current_setting('test.begin')::bigint AS t) AS t;
INSERT INTO scheduler_events (at, kind, task_id, run_id, detail)
SELECT duly_now() - 1000, 'action', i, i, 'page' FROM generate_series(1, TASKS) i
