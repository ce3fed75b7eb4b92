-- What a scheduler reads of all rows. $1 its owner, $2 its handlers, $3 now.
WITH asked AS MATERIALIZED (
    SELECT coalesce($3::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
),
-- Running runs of other owners, and those that are asked to stop.
watched AS MATERIALIZED (
    SELECT id, locked_by, locked_until, cancel_requested, process, concurrency_key, slot FROM task_runs
     WHERE status = 'running' AND (cancel_requested = 1 OR locked_by <> $1::text)
),
other AS MATERIALIZED (
    SELECT w.locked_by AS owner, max(w.locked_until) AS until,
           coalesce((SELECT lease_ms FROM scheduler_instances WHERE id = w.locked_by), 0) AS lease
      FROM watched w WHERE w.locked_by <> $1::text GROUP BY w.locked_by
),
-- The time zones of which tasks are to be planned again, each with the rules by which.
zoned AS MATERIALIZED (
    SELECT substr(m.key, 11) AS zone, split_part(r.value, ' ', 1) AS rules
      FROM scheduler_meta m JOIN scheduler_meta r ON r.key = 'zone_rules:' || substr(m.key, 11)
     WHERE m.key > 'zone_mark:' AND m.key < 'zone_mark;'
)
SELECT (SELECT min(t.next_run) FROM (VALUES (0), (1), (2), (3)) AS p(priority)
         CROSS JOIN LATERAL (
             SELECT next_run FROM scheduled_tasks
              WHERE {active_planned} AND priority = p.priority AND next_run IS NOT NULL
              ORDER BY next_run LIMIT 1) t),
       (SELECT expires_at FROM task_runs
         WHERE expires_at IS NOT NULL AND status = 'queued' AND attempt = forgiven ORDER BY expires_at LIMIT 1),
       ARRAY(SELECT (SELECT min(r.run_at) FROM (VALUES (0), (1), (2), (3)) AS p(priority)
                      CROSS JOIN LATERAL (
                          SELECT run_at FROM task_runs
                           WHERE {claimable}
                             AND handler = h.handler AND priority = p.priority
                           ORDER BY run_at LIMIT 1) r)
               FROM unnest($2::text[]) WITH ORDINALITY AS h(handler, place) ORDER BY h.place),
       ARRAY(SELECT (SELECT s.started_at + l.per_ms FROM rate_limits l
                      CROSS JOIN LATERAL (
                          SELECT started_at FROM rate_limit_starts
                           WHERE subject = 'handler:' || l.handler
                             AND number <= (SELECT max(number) FROM rate_limit_starts
                                             WHERE subject = 'handler:' || l.handler AND number < {most_starts})
                                           + 1 - greatest(l.max_starts, 1)
                           ORDER BY number DESC LIMIT 1) s
                      WHERE l.handler = h.handler)
               FROM unnest($2::text[]) WITH ORDINALITY AS h(handler, place) ORDER BY h.place),
       ARRAY(SELECT id FROM watched WHERE locked_by = $1::text ORDER BY concurrency_key NULLS FIRST, slot, id),
       ARRAY(SELECT owner FROM other ORDER BY owner),
       ARRAY(SELECT until FROM other ORDER BY owner),
       ARRAY(SELECT lease FROM other ORDER BY owner),
       ARRAY(SELECT id FROM watched WHERE locked_by <> $1::text AND cancel_requested = 1 AND process IS NOT NULL
              ORDER BY concurrency_key NULLS FIRST, slot, id),
       ARRAY(SELECT process::text FROM watched WHERE locked_by <> $1::text AND cancel_requested = 1 AND process IS NOT NULL
              ORDER BY concurrency_key NULLS FIRST, slot, id),
       EXISTS (SELECT 1 FROM task_runs
                WHERE expires_at IS NOT NULL AND status = 'queued' AND expires_at <= (SELECT now FROM asked)
                  AND attempt = forgiven)
       OR EXISTS (SELECT 1 FROM scheduled_tasks WHERE planned = 0)
       OR EXISTS (SELECT 1 FROM scheduler_meta WHERE key = 'clock_mark')
       OR EXISTS (SELECT 1 FROM rate_limit_openings WHERE opens_at <= (SELECT now FROM asked))
       OR EXISTS (SELECT 1 FROM scheduled_tasks WHERE marked IS NOT NULL),
       ARRAY(SELECT zone FROM zoned ORDER BY zone),
       ARRAY(SELECT rules FROM zoned ORDER BY zone),
       hashtextextended(pg_current_snapshot()::text, 0),
       (SELECT value FROM scheduler_meta WHERE key = 'schema_version'),
       (SELECT min(opens_at) FROM rate_limit_openings),
       (SELECT now FROM asked)
