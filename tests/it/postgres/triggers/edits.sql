UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'due'
UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'later'
UPDATE scheduled_tasks SET status = 'paused', paused_by = 'the operator' WHERE name = 'waits'
UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'done'
UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'invalid'
UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'busy'
UPDATE scheduled_tasks SET status = 'paused'
UPDATE scheduled_tasks SET status = 'active' WHERE name = 'paused'
UPDATE scheduled_tasks SET status = 'active', next_run = LATER WHERE name = 'paused'
UPDATE scheduled_tasks SET status = 'active', overlap = 'allow' WHERE name = 'paused'
UPDATE scheduled_tasks SET status = 'active' WHERE name = 'invalid'
UPDATE scheduled_tasks SET status = 'active' WHERE name = 'done'
UPDATE scheduled_tasks SET status = 'active', next_run = LATER WHERE name = 'done'
UPDATE scheduled_tasks SET status = 'active'
UPDATE scheduled_tasks SET status = 'completed' WHERE name = 'due'
UPDATE scheduled_tasks SET status = 'invalid' WHERE name = 'due'
UPDATE scheduled_tasks SET schedule_value = '5 * * * *' WHERE name = 'due'
UPDATE scheduled_tasks SET schedule_value = '5 * * * *', next_run = LATER WHERE name = 'due'
UPDATE scheduled_tasks SET schedule_value = '5 * * * *', resolved_until = LATER WHERE name = 'due'
UPDATE scheduled_tasks SET schedule_value = '* * * * *' WHERE name = 'due'
UPDATE scheduled_tasks SET schedule_type = 'interval', schedule_value = '1h' WHERE name = 'later'
UPDATE scheduled_tasks SET schedule_value = '2030-01-01T00:00:00Z' WHERE name = 'done'
UPDATE scheduled_tasks SET schedule_value = '2030-01-01T00:00:00Z' WHERE name = 'once'
UPDATE scheduled_tasks SET schedule_value = '0 7 * * *' WHERE name = 'invalid'
UPDATE scheduled_tasks SET schedule_value = '0 8 * * *' WHERE name = 'paused'
UPDATE scheduled_tasks SET time_zone = 'Europe/Berlin'
UPDATE scheduled_tasks SET starts_at = LATER WHERE name = 'due'
UPDATE scheduled_tasks SET starts_at = NULL WHERE name = 'later'
UPDATE scheduled_tasks SET ends_at = LATER WHERE name = 'later'
UPDATE scheduled_tasks SET schedule_value = '7 * * * *', status = 'paused', handler = 'other' WHERE name = 'due'
UPDATE scheduled_tasks SET next_run = NOW WHERE name = 'later'
UPDATE scheduled_tasks SET next_run = NOW WHERE name = 'due'
UPDATE scheduled_tasks SET next_run = NOW WHERE name = 'done'
UPDATE scheduled_tasks SET next_run = NOW WHERE name = 'paused'
UPDATE scheduled_tasks SET next_run = NOW WHERE name = 'once'
UPDATE scheduled_tasks SET next_run = NOW
UPDATE scheduled_tasks SET next_run = NULL
UPDATE scheduled_tasks SET next_run = LATER
UPDATE scheduled_tasks SET next_run = LATER, planned = 0
UPDATE scheduled_tasks SET next_run = LATER, handler = 'other' WHERE name = 'due'
UPDATE scheduled_tasks SET handler = 'other'
UPDATE scheduled_tasks SET handler = 'work'
UPDATE scheduled_tasks SET overlap = 'allow'
UPDATE scheduled_tasks SET overlap = 'buffer_one', misfire = 'skip' WHERE name = 'later'
UPDATE scheduled_tasks SET only_between = '09:00-17:30' WHERE name IN ('due', 'later')
UPDATE scheduled_tasks SET only_between = NULL, only_on = NULL
UPDATE scheduled_tasks SET only_on = '2027-01-01', except_on = '2027-01-02' WHERE name = 'invalid'
UPDATE scheduled_tasks SET payload = '{"b":2}'
UPDATE scheduled_tasks SET priority = 0, max_attempts = 1, timeout_ms = 0 WHERE name IN ('due', 'invalid')
UPDATE scheduled_tasks SET priority = 0, updated_at = 1600000000009 WHERE name IN ('due', 'invalid')
UPDATE scheduled_tasks SET name = 'renamed' WHERE name = 'due'
UPDATE scheduled_tasks SET name = name
UPDATE scheduled_tasks SET last_error = 'seen'
UPDATE scheduled_tasks SET concurrency_key = NULL, on_dead = 'later', pause_after_failures = 3, managed_by = 'm'
UPDATE scheduled_tasks SET name = 'later' WHERE name = 'due' -- refused
UPDATE scheduled_tasks SET id = 99 WHERE name = 'due' -- refused
UPDATE task_runs SET cancel_requested = 1 WHERE id IN (1, 7)
UPDATE task_runs SET cancel_requested = 1
UPDATE task_runs SET cancel_requested = 0
DELETE FROM scheduled_tasks WHERE name = 'due'
DELETE FROM scheduled_tasks WHERE name = 'later'
DELETE FROM scheduled_tasks WHERE name = 'paused'
DELETE FROM scheduled_tasks WHERE name = 'done'
DELETE FROM scheduled_tasks WHERE name = 'limited'
DELETE FROM scheduled_tasks WHERE name IN ('limited', 'limited-too')
DELETE FROM scheduled_tasks WHERE name <> 'busy'
DELETE FROM scheduled_tasks WHERE name = 'busy' -- refused
DELETE FROM scheduled_tasks -- refused
INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('key', 3)
INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('few', 3)
         ON CONFLICT (concurrency_key) DO UPDATE SET max_running = excluded.max_running
UPDATE concurrency_limits SET max_running = 1
UPDATE concurrency_limits SET concurrency_key = concurrency_key || '2' -- refused
UPDATE concurrency_limits SET managed_by = 'm'
UPDATE concurrency_limits SET max_starts = 3, per_ms = 1000 WHERE concurrency_key = 'rated'
UPDATE concurrency_limits SET max_starts = 2, per_ms = 60000 WHERE concurrency_key = 'rated'
UPDATE concurrency_limits SET max_starts = NULL, per_ms = NULL
UPDATE concurrency_limits SET max_starts = 3 WHERE concurrency_key = 'few'
UPDATE scheduled_tasks SET max_starts = '3/1d'
UPDATE scheduled_tasks SET max_starts = '2/1h'
UPDATE scheduled_tasks SET max_starts = NULL
UPDATE scheduled_tasks SET when_limited = 'skip' WHERE name = 'due'
UPDATE scheduled_tasks SET max_starts = 'often'
UPDATE scheduled_tasks SET when_limited = 'never'
DELETE FROM scheduled_tasks WHERE max_starts IS NOT NULL
DELETE FROM concurrency_limits
UPDATE rate_limits SET max_starts = 3
UPDATE rate_limits SET handler = 'third' WHERE handler = 'other' -- refused
UPDATE rate_limits SET handler = handler
DELETE FROM rate_limits WHERE handler = 'work'
DELETE FROM rate_limit_starts
DELETE FROM task_effects WHERE run_id = 4
UPDATE task_effects SET state = 'done', value = '[1,2]', done_at = NOW WHERE run_id = 11
INSERT INTO scheduled_tasks (name, handler, payload, schedule_type, schedule_value)
         VALUES ('new', 'work', '{"to":"bob"}', 'cron', '0 7 * * *')
INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('due', 'other', 'manual', '')
         ON CONFLICT DO NOTHING
INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('due', 'other', 'manual', '')
         ON CONFLICT (name) DO UPDATE SET handler = excluded.handler, schedule_value = '9 * * * *'
INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value) VALUES (50, 'far', 'work', 'manual', '');
     INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('next', 'work', 'manual', '')
INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('due', 'other', 'manual', '')
INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('1st', 'work', 'manual', '')
INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('a b', 'work', 'manual', '')
INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('é', 'work', 'manual', '')
INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('', 'work', 'manual', '')
INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('a
', 'work', 'manual', '')
INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('new', 'w�', 'manual', '')
INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('new', 'é', 'cron', 'é')
INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('new', 'work', 'manual', 'x')
UPDATE scheduled_tasks SET payload = '{''a'': 1}'
UPDATE scheduled_tasks SET payload = NULL
UPDATE scheduled_tasks SET payload = '"�"'
UPDATE scheduled_tasks SET next_run = 1805025600
UPDATE scheduled_tasks SET status = 'stopped'
UPDATE scheduled_tasks SET misfire = 'run_all' WHERE name = 'due'
UPDATE scheduled_tasks SET catch_up_limit = 201
UPDATE scheduled_tasks SET concurrency_key = '#1'
UPDATE scheduled_tasks SET concurrency_key = ''
UPDATE scheduled_tasks SET starts_at = 1805025600001, ends_at = 1805025600000
UPDATE task_runs SET status = 'running' WHERE id = 1
UPDATE task_runs SET locked_by = NULL WHERE id = 7
UPDATE task_runs SET cancel_requested = 2
UPDATE concurrency_limits SET max_running = 0
