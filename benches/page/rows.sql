-- Tasks with a week of history, for the bench and the tests of the page. The caller has created the table `size` with one row:
-- tasks, runs, now.

CREATE TEMP TABLE task_numbers AS
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < (SELECT tasks FROM size)) SELECT i FROM n;
CREATE TEMP TABLE run_numbers AS
    WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < (SELECT runs FROM size) - 1) SELECT i FROM n;

-- The first fifty by name have the longest names and errors. No task is due.
INSERT INTO scheduled_tasks (id, name, handler, payload, schedule_type, schedule_value, time_zone, status, next_run, planned,
                             active_since, created_at, updated_at, concurrency_key, last_run, last_finished, last_status,
                             last_duration_ms, last_error, failure_count, invalid_reason, paused_by, managed_by)
SELECT i,
       iif(i <= 50, 'a' || printf('%02d', i) || replace(printf('%197d', 0), ' ', '-'), 'team-' || (i % 20) || '/report-' || i),
       'work-' || (i % 10),
       '{"argv":["/usr/local/bin/report","--number","' || i || '"],"env":{"LANG":"C.UTF-8"}}',
       kind, value, iif(i % 3 = 0, 'Europe/Rome', 'UTC'), status,
       iif(status = 'active' AND kind <> 'manual', now + 3600000 + i % 3600 * 1000, NULL), 1,
       now - 2592000000, now - 2592000000, now - 2592000000,
       iif(i % 30 = 0, 'printer', NULL),
       now - 60000 - i, now - 59000 - i, iif(i % 9 = 0, 'dead', 'succeeded'), 250 + i % 700,
       CASE WHEN i <= 50 THEN replace(printf('%8192d', 0), ' ', '<')
            WHEN i % 9 = 0 THEN 'exit code 1: cannot connect to <db-' || i || '.example>: connection refused' END,
       iif(i % 9 = 0, 1 + i % 5, 0),
       iif(status = 'invalid', 'unknown time zone "Mars/Olympus"', NULL), iif(status = 'paused', 'user', NULL),
       iif(i % 2 = 0, '/etc/duly/tasks.toml', NULL)
  FROM (SELECT i, now, kind, CASE kind WHEN 'cron' THEN (i % 60) || ' 7 * * *' WHEN 'manual' THEN '' ELSE '1d' END AS value,
               CASE WHEN i % 25 = 3 THEN 'paused' WHEN i % 100 = 13 THEN 'invalid' ELSE 'active' END AS status
          FROM (SELECT i, CASE WHEN i % 50 = 7 THEN 'manual' WHEN i % 4 = 2 THEN 'interval' WHEN i % 4 = 3 THEN 'delay'
                               ELSE 'cron' END AS kind
                  FROM task_numbers), size);

-- Final runs, evenly over the last week, in the order in which a scheduler would have opened them.
INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, concurrency_key, started_at,
                       finished_at, duration_ms, exit_code, output, error, occurrences, last_scheduled_for)
SELECT task, 'work-' || (task % 10), at, iif(i % 13 = 0, 'manual', 'schedule'), status, at,
       iif(status = 'skipped' OR status = 'missed', 0, 1 + i % 3 * (status = 'dead')), '#' || task,
       iif(status = 'skipped' OR status = 'missed', NULL, at + i % 90), at + i % 90 + 200 + i % 3000,
       iif(status = 'skipped' OR status = 'missed', NULL, 200 + i % 3000), iif(status = 'succeeded', 0, NULL),
       'processed ' || i || ' records, wrote /var/lib/work/' || i || '.json' || char(10)
           || replace(printf('%*d', i % 40 * 20, 0), ' ', '.'),
       iif(status = 'dead', 'exit code 1: cannot open <input-' || i || '>', NULL),
       iif(status = 'missed', 1 + i % 7, 1), iif(status = 'missed' AND i % 7 > 0, at + 600000, NULL)
  FROM (SELECT i, i % tasks + 1 AS task, now - 604800000 + i * 604800000 / runs AS at,
               CASE WHEN i % 97 = 0 THEN 'dead' WHEN i % 89 = 0 THEN 'cancelled' WHEN i % 83 = 0 THEN 'skipped'
                    WHEN i % 79 = 0 THEN 'missed' ELSE 'succeeded' END AS status
          FROM run_numbers, size);

-- Waiting runs: for their next attempt, for their task to be resumed, and for a handler that no scheduler has.
INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, concurrency_key, blocked, started_at,
                       finished_at, duration_ms, error)
SELECT i, 'work-' || (i % 10), now - 30000, 'schedule', iif(status = 'active' AND i % 10 <> 9, 'failed', 'queued'),
       iif(status = 'active' AND i % 10 <> 9, now + 86400000, now - 30000), status = 'active' AND i % 10 <> 9, '#' || i,
       iif(status = 'paused', 'paused', NULL), iif(status = 'active' AND i % 10 <> 9, now - 29000, NULL),
       iif(status = 'active' AND i % 10 <> 9, now - 28000, NULL), iif(status = 'active' AND i % 10 <> 9, 1000, NULL),
       iif(status = 'active' AND i % 10 <> 9, 'timeout', NULL)
  FROM (SELECT t.id AS i, now, t.status
          FROM scheduled_tasks t, size
         WHERE schedule_type = 'cron' AND (t.id % 20 = 1 OR t.id % 10 = 9 AND t.status = 'active' OR t.status = 'paused'));

INSERT INTO task_attempts (run_id, attempt, outcome, error, output, exit_code, locked_by, started_at, finished_at, duration_ms,
                           final)
SELECT id, n, iif(n = 1 AND id % 5 = 0, 'lost', 'failed'), error, output, 1, 'owner-' || (id % 200), started_at + n, finished_at + n,
       duration_ms, n = attempt
  FROM task_runs JOIN (SELECT 1 AS n UNION ALL SELECT 2 UNION ALL SELECT 3) ON n <= attempt
 WHERE status = 'dead' OR status = 'failed';

INSERT INTO task_effects (key, run_id, state, value, created_at, done_at)
SELECT 'post', id, 'done', '{"id":' || id || '}', started_at, finished_at FROM task_runs WHERE id % 50 = 0 AND started_at IS NOT NULL;

INSERT INTO scheduler_events (at, kind, task_id, run_id, detail)
SELECT now - 604800000 + i * 604800000 / runs,
       CASE i % 4 WHEN 0 THEN 'owner_lost' WHEN 1 THEN 'paused' WHEN 2 THEN 'orphan_unknown' ELSE 'clock_forward' END,
       iif(i % 4 = 1, i % tasks + 1, NULL), iif(i % 4 = 2, i + 1, NULL),
       iif(i % 4 = 0, 'owner-' || i, 'detail <' || i || '> of the event')
  FROM run_numbers, size WHERE i % 10 = 0;

INSERT INTO scheduler_instances (id, host, boot_id, pid, version, workers, lease_ms, started_at, seen_at, stopped_at)
SELECT 'owner-' || i, 'host.example', 'a-boot', 1000 + i, '0.1.0', 4, 60000, now - 604800000 + i * 1000, now - 500000000 + i,
       now - 500000000 + i
  FROM task_numbers, size WHERE i <= 200;

-- The largest run: the longest texts that duly stores, all of them of characters that HTML escapes. It is the newest dead one.
INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, concurrency_key, payload, started_at,
                       finished_at, duration_ms, exit_code, output, error, progress, result)
SELECT 51, 'work-1', now - 45000, 'manual', 'dead', now - 45000, 60, '#51', json_quote(replace(printf('%262000d', 0), ' ', '<')),
       now - 44000, now - 40000, 4000, 1, replace(printf('%131072d', 0), ' ', '<'), replace(printf('%8192d', 0), ' ', '<'),
       replace(printf('%4096d', 0), ' ', '<'), json_quote(replace(printf('%65000d', 0), ' ', '<'))
  FROM size;
INSERT INTO task_attempts (run_id, attempt, outcome, error, output, exit_code, locked_by, started_at, finished_at, duration_ms,
                           final)
SELECT r.id, i, 'failed', r.error, r.output, 1, 'owner-1', now - 44000, now - 40000, 4000, i = 60
  FROM task_numbers, size, (SELECT id, error, output FROM task_runs ORDER BY id DESC LIMIT 1) r WHERE i <= 60;
INSERT INTO task_effects (key, run_id, state, value, created_at)
SELECT 'effect <' || i || '>', (SELECT max(id) FROM task_runs), 'intent', NULL, now - 42000 FROM task_numbers, size WHERE i <= 300;

DROP TABLE run_numbers;
DROP TABLE task_numbers;
