-- The tables of NanoClaw 1 that matter here, with three tasks. A real store/messages.db has more.
CREATE TABLE chats (jid TEXT PRIMARY KEY, name TEXT, last_message_time TEXT);
CREATE TABLE scheduled_tasks (
  id TEXT PRIMARY KEY,
  group_folder TEXT NOT NULL,
  chat_jid TEXT NOT NULL,
  prompt TEXT NOT NULL,
  schedule_type TEXT NOT NULL,
  schedule_value TEXT NOT NULL,
  context_mode TEXT DEFAULT 'isolated',
  next_run TEXT,
  last_run TEXT,
  last_result TEXT,
  status TEXT DEFAULT 'active',
  created_at TEXT NOT NULL
);
CREATE INDEX idx_next_run ON scheduled_tasks(next_run);
CREATE INDEX idx_status ON scheduled_tasks(status);
CREATE TABLE task_run_logs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  task_id TEXT NOT NULL,
  run_at TEXT NOT NULL,
  duration_ms INTEGER NOT NULL,
  status TEXT NOT NULL,
  result TEXT,
  error TEXT,
  FOREIGN KEY (task_id) REFERENCES scheduled_tasks(id)
);
CREATE INDEX idx_task_run_logs ON task_run_logs(task_id, run_at);

INSERT INTO chats VALUES ('120363041@g.us', 'Family', '2026-03-13T20:00:00.000Z');
INSERT INTO scheduled_tasks
  (id, group_folder, chat_jid, prompt, schedule_type, schedule_value, context_mode, next_run, status, created_at)
VALUES
  -- Each day at one, for some minutes: the task that a loop runs twice.
  ('carousel', 'family', '120363041@g.us', 'Make the carousel of today', 'cron', '0 13 * * *', 'group',
   '2999-01-01T13:00:00.000Z', 'active', '2026-03-01T10:00:00.000Z'),
  -- Every six hours.
  ('inbox', 'main', '120363042@g.us', 'Summarize new mail', 'interval', '21600000', 'isolated',
   '2999-01-01T04:00:00.000Z', 'active', '2026-03-01T10:00:00.000Z'),
  -- Overdue: it runs as soon as a scheduler starts.
  ('reminder', 'family', '120363041@g.us', 'Remind Anna of the dentist', 'once', '2026-03-14T08:00:00', 'isolated',
   '2026-03-14T08:00:00.000Z', 'active', '2026-03-13T10:00:00.000Z');
