INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, next_run, planned, status)
VALUES (1, 'good', 'work', 'cron', '0 7 * * *', unixepoch() * 1000 + 3600000, 1, 'active'),
       (2, 'bad', 'work', 'cron', '0 7 * * *', unixepoch() * 1000 + 3600000, 1, 'active');
INSERT INTO task_runs (id, task_id, handler, scheduled_for, origin, status, run_at, attempt, started_at, finished_at, duration_ms)
SELECT id, 1 + (id > 3), 'work', unixepoch() * 1000 - 600000 + id, 'manual', iif(id % 3 = 0, 'dead', 'succeeded'),
       unixepoch() * 1000 - 600000, 1, unixepoch() * 1000 - 600000, unixepoch() * 1000 - 500000, 100000
  FROM (SELECT 1 AS id UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6);
INSERT INTO task_runs (id, task_id, handler, scheduled_for, origin, status, run_at)
SELECT id, id - 6, 'work', unixepoch() * 1000, 'manual', 'queued', unixepoch() * 1000 + 3600000
  FROM (SELECT 7 AS id UNION SELECT 8);
INSERT INTO task_attempts (run_id, attempt, outcome, final, locked_by, finished_at)
SELECT id, 1, 'failed', 1, 'owner', 1805025600000 FROM task_runs WHERE status = 'dead';
INSERT INTO task_effects (key, run_id, state, created_at) SELECT 'post', id, 'intent', 1805025600000 FROM task_runs WHERE status = 'dead';
INSERT INTO scheduler_events (id, at, kind, task_id) VALUES (1000, 1805025600000, 'edited', 1), (1001, 1805025600000, 'edited', 2);
INSERT INTO scheduler_instances (id, host, pid, version, workers, lease_ms, started_at, seen_at, stopped_at)
VALUES ('stopped', 'host', 1, '1', 1, 60000, 1805025600000, 1805025600000, 1805025600000);
