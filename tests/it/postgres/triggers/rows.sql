INSERT INTO scheduled_tasks (id, name, handler, payload, schedule_type, schedule_value, status, next_run, planned,
                             resolved_until, active_since, created_at, updated_at, overlap, concurrency_key, failure_count,
                             paused_by, invalid_reason, starts_at, ends_at)
VALUES (1, 'due', 'work', '{"a":1}', 'cron', '* * * * *', 'active', PAST, 1, NULL, 1600000000000, 1600000000000,
        1600000000000, 'skip', NULL, 0, NULL, NULL, NULL, NULL),
       (2, 'later', 'work', 'null', 'interval', '15m', 'active', LATER, 1, PAST, 1600000000000, 1600000000000, 1600000000000,
        'buffer_all', 'key', 2, NULL, NULL, 1700000000000, NULL),
       (3, 'paused', 'work', 'null', 'cron', '0 7 * * *', 'paused', NULL, 1, PAST, 1600000000000, 1600000000000, 1600000000000,
        'buffer_all', 'key', 3, 'user', NULL, NULL, NULL),
       (4, 'done', 'work', 'null', 'once', '2020-01-01T00:00:00Z', 'completed', NULL, 1, 1577836800000, 1600000000000,
        1600000000000, 1600000000000, 'skip', NULL, 0, NULL, NULL, NULL, NULL),
       (5, 'invalid', 'work', 'null', 'cron', 'nonsense', 'invalid', NULL, 1, NULL, 1600000000000, 1600000000000,
        1600000000000, 'skip', NULL, 0, NULL, 'no cron expression', NULL, NULL),
       (6, 'busy', 'work', 'null', 'cron', '* * * * *', 'active', LATER, 1, PAST, 1600000000000, 1600000000000, 1600000000000,
        'skip', NULL, 0, NULL, NULL, NULL, NULL),
       (7, 'waits', 'work', 'null', 'manual', '', 'active', NULL, 1, NULL, 1600000000000, 1600000000000, 1600000000000,
        'allow', 'key', 0, NULL, NULL, NULL, NULL),
       (8, 'limited', 'work', 'null', 'manual', '', 'active', NULL, 1, NULL, 1600000000000, 1600000000000, 1600000000000,
        'allow', 'few', 0, NULL, NULL, NULL, NULL),
       (10, 'once', 'work', 'null', 'once', '2020-01-01T00:00:00Z', 'active', PAST, 1, NULL, 1600000000000, 1600000000000,
        1600000000000, 'skip', NULL, 0, NULL, NULL, NULL, NULL);
INSERT INTO scheduled_tasks (id, name, handler, payload, schedule_type, schedule_value, status, planned, active_since, created_at,
                             updated_at, overlap, concurrency_key, max_starts)
VALUES (9, 'limited-too', 'work', 'null', 'manual', '', 'active', 1, 1600000000000, 1600000000000, 1600000000000, 'allow', 'few', '2/1d');
INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('few', 2);
INSERT INTO concurrency_limits (concurrency_key, max_running, max_starts, per_ms) VALUES ('rated', 2, 2, 1000);
INSERT INTO rate_limit_starts (subject, number, started_at) VALUES ('key:rated', 1, PAST), ('task:9', 1, PAST);
INSERT INTO rate_limit_openings (subject, opens_at) VALUES ('key:rated', LATER), ('task:9', LATER);
INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES ('work', 10, 60000), ('other', 1, 1000);
INSERT INTO rate_limit_starts (subject, number, started_at) VALUES ('handler:work', 1, PAST), ('handler:work', 2, PAST), ('handler:other', 1, PAST);
INSERT INTO task_runs (id, task_id, handler, scheduled_for, origin, status, run_at, blocked, attempt, concurrency_key,
                       locked_by, locked_until, started_at, finished_at, error)
VALUES (1, 2, 'work', 1600000000001, 'schedule', 'queued', PAST, NULL, 0, 'key', NULL, NULL, NULL, NULL, NULL),
       (2, 2, 'work', 1600000000002, 'schedule', 'queued', PAST, 'order', 0, 'key', NULL, NULL, NULL, NULL, NULL),
       (3, 2, 'work', 1600000000003, 'manual', 'queued', PAST, 'key', 0, 'key', NULL, NULL, NULL, NULL, NULL),
       (4, 3, 'work', 1600000000004, 'schedule', 'failed', PAST, 'paused', 1, 'key', NULL, NULL, PAST, PAST, 'no'),
       (5, 3, 'work', 1600000000005, 'schedule', 'queued', PAST, 'paused', 0, 'key', NULL, NULL, NULL, NULL, NULL),
       (6, 3, 'work', 1600000000006, 'on_dead', 'queued', PAST, 'paused', 0, NULL, NULL, NULL, NULL, NULL, NULL),
       (7, 6, 'work', 1600000000007, 'schedule', 'running', PAST, NULL, 1, '#6', 'owner', LATER, PAST, NULL, NULL),
       (8, 7, 'work', 1600000000008, 'manual', 'queued', PAST, 'key', 0, 'key', NULL, NULL, NULL, NULL, NULL),
       (9, 8, 'work', 1600000000009, 'manual', 'queued', PAST, NULL, 0, 'few', NULL, NULL, NULL, NULL, NULL),
       (10, 9, 'work', 1600000000010, 'manual', 'queued', PAST, 'key', 0, 'few', NULL, NULL, NULL, NULL, NULL),
       (11, 4, 'work', 1577836800000, 'schedule', 'dead', PAST, NULL, 1, NULL, NULL, NULL, PAST, PAST, 'no'),
       (12, 1, 'work', 1600000000012, 'schedule', 'failed', PAST, NULL, 1, '#1', NULL, NULL, PAST, PAST, 'no');
INSERT INTO task_attempts (run_id, attempt, outcome, locked_by, finished_at)
VALUES (4, 1, 'failed', 'owner', PAST), (11, 1, 'failed', 'owner', PAST), (12, 1, 'failed', 'owner', PAST);
INSERT INTO task_effects (key, run_id, state, created_at) VALUES ('sent', 4, 'intent', PAST), ('sent', 11, 'intent', PAST);
INSERT INTO scheduler_events (at, kind, task_id, run_id) VALUES (PAST, 'pause', 3, NULL), (PAST, 'pause', 4, NULL);
