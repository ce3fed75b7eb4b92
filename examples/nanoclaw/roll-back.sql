-- Gives NanoClaw's tasks the next times that duly has planned, so that its loop runs none at its first poll because its next_run is
-- old. In NanoClaw's folder, after duly was stopped:
--   sqlite3 store/messages.db < roll-back.sql
ATTACH 'duly.db' AS duly;

UPDATE main.scheduled_tasks AS task
SET next_run = strftime('%Y-%m-%dT%H:%M:%fZ', planned.next_run / 1000.0, 'unixepoch')
FROM duly.scheduled_tasks AS planned
WHERE planned.name = 'nanoclaw:' || task.id
  AND planned.next_run IS NOT NULL
  AND task.status = 'active'
  AND task.schedule_type IN ('cron', 'interval');

DETACH duly;
