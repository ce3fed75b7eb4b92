PRAGMA synchronous = OFF;
BEGIN;
CREATE TEMP TABLE n AS
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :runs) SELECT i FROM n;
INSERT INTO scheduled_tasks (id, name, handler, payload, schedule_type, schedule_value, time_zone, status, next_run, planned,
                             resolved_until, active_since, priority, concurrency_key, last_run, last_finished, last_status,
                             last_duration_ms, last_error, failure_count, managed_by, created_at, updated_at)
SELECT i * 3, 'task:' || i, 'work:' || i % 7, '{"a": ' || i || ', "text": "\u0001 é"}',
       iif(i % 3 = 0, 'once', 'cron'), iif(i % 3 = 0, '2030-01-01T00:00:00Z', '0 7 * * *'), iif(i % 2, 'UTC', 'Europe/Rome'),
       iif(i % 3 = 0, 'completed', 'active'), iif(i % 3 = 0, NULL, 1900000000000 + i), 1, 1800000000000 + i, 1700000000000, i % 4,
       iif(i % 10 = 0, 'key:' || i % 100, NULL), 1800000000000 + i, 1800000000005 + i, 'dead', 5, 'line' || char(10, 9, 92) || 'N',
       i % 5, iif(i % 4 = 0, 'tasks.toml', NULL), 1700000000000 + i, 1700000000000 + 2 * i
  FROM n WHERE i <= :runs / 10;
INSERT INTO task_runs (id, task_id, handler, scheduled_for, origin, retry_of, request_key, status, run_at, blocked, attempt, forgiven,
                       priority, concurrency_key, payload, started_at, finished_at, duration_ms, error, exit_code, output, result,
                       progress, occurrences, last_scheduled_for)
SELECT i * 2, 3 * (1 + i % (:runs / 10)), 'work:' || i % 7, 1800000000000 + i, o, iif(o = 'manual' AND i > 100, i - 100, NULL),
       iif(o = 'manual', 'request:' || i, NULL), s, 1800000000000 + i, iif(s = 'queued' AND i % 3 = 0, 'key', NULL),
       iif(s = 'queued', 0, 1 + i % 3), iif(s = 'queued', 0, i % 2), i % 4, iif(i % 10 = 0, 'key:' || i % 100, NULL),
       iif(o = 'manual', '[1, 2.50, "' || i || '"]', NULL), iif(s = 'queued', NULL, 1800000000001 + i),
       iif(s = 'queued', NULL, 1800000000900 + i), iif(s = 'queued', NULL, 899), iif(s = 'dead', 'no route \.' || char(10), NULL),
       iif(s = 'dead', i % 256, NULL),
       iif(s = 'queued', NULL, iif(i <= :long, printf('%.*c', :output, 'x'), 'line ' || i || char(10, 13, 9) || '\N é 🦀 '
           || printf('%.*c', i % 200, 'y'))),
       iif(s = 'succeeded', '{"n": ' || i || ', "deep": [{"b": null}, true]}', NULL), iif(i % 50 = 0, '7/10', NULL),
       iif(s = 'skipped', 3, 1), iif(s = 'skipped', 1800000100000 + i, NULL)
  FROM (SELECT i, iif(i % 11 = 0, 'manual', 'schedule') AS o,
               CASE WHEN i % 97 = 0 THEN 'queued' WHEN i % 13 = 0 THEN 'dead' WHEN i % 31 = 0 THEN 'skipped'
                    WHEN i % 37 = 0 THEN 'cancelled' WHEN i % 41 = 0 THEN 'missed' ELSE 'succeeded' END AS s FROM n);
INSERT INTO task_attempts (run_id, attempt, outcome, error, output, exit_code, locked_by, started_at, finished_at, duration_ms, final)
SELECT i * 2, 1, iif(i % 3, 'failed', 'timed_out'), 'exit ' || i, iif(i % 2, 'out' || char(9), NULL), 1, 'owner:' || i % 5,
       1800000000001 + i, 1800000000500 + i, 499, 0 FROM n WHERE i % 5 = 0;
INSERT INTO task_effects (key, run_id, state, value, created_at, done_at)
SELECT 'charge ' || i % 3, i * 2, iif(i % 6, 'done', 'intent'), iif(i % 6, '{"id": "' || i || '"}', NULL), 1800000000000 + i,
       iif(i % 6, 1800000000100 + i, NULL) FROM n WHERE i % 8 = 0;
INSERT INTO scheduler_events (at, kind, task_id, run_id, detail)
SELECT 1800000000000 + i, iif(i % 2, 'action', 'edited'), 3, i * 2, 'page: ' || i FROM n WHERE i % 20 = 0;
INSERT INTO scheduler_instances (id, host, boot_id, pid, version, workers, lease_ms, started_at, seen_at, stopped_at, problems)
SELECT 'owner:' || i, 'hÖst', 'boot', i, '0.1', 4, 60000, 1800000000000, 1800000000000, 1800000000001, '["' || i || '"]'
  FROM n WHERE i <= 100;
INSERT INTO concurrency_limits SELECT 'key:' || i, 1 + i, CASE WHEN i > 40 THEN i END, CASE WHEN i > 40 THEN 60000 END, NULL FROM n WHERE i <= 50;
INSERT INTO rate_limits SELECT 'work:' || i, 1 + i, 1000, 'tasks.toml' FROM n WHERE i <= 7;
INSERT INTO rate_limit_starts SELECT 'handler:work:' || i % 7, i, 1800000000000 + i FROM n WHERE i <= 1000;
INSERT INTO rate_limit_openings SELECT 'key:key:' || i, 1800000000000 + i FROM n WHERE i > 40 AND i <= 50;
INSERT INTO scheduler_alarms (channel, kind, subject, run_id, since, count, changed_at, found, advice)
SELECT 'mail', 'dead', 'task:' || i, i, 1800000000000, i, 1800000000000, 'found ' || i, 'advice' FROM n WHERE i <= 50;
INSERT INTO scheduler_alarm_channels (channel, kind, seen_id) VALUES ('mail', 'dead', 7);
DROP TABLE temp.n;
COMMIT;
