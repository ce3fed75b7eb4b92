-- What is due, and whether a turn is plain. $1 now, $2 handlers, $3 runs of outcomes, $4 most tasks of a priority, $5 the version of the
-- tables.
--
-- One row for each due task, or one without a task. Every part goes along one index.
WITH gate AS MATERIALIZED (
    SELECT -- The tables are of the version that this program knows: it takes on no work in newer ones.
           (SELECT value FROM scheduler_meta WHERE key = 'schema_version') IS NOT DISTINCT FROM $5::text
           -- No run is blocked, or none by these runs: their ends make room for none.
           AND ((SELECT id FROM task_runs
                  WHERE {waiting} AND blocked > ''
                  ORDER BY blocked LIMIT 1) IS NULL
                OR NOT EXISTS (
                    SELECT 1 FROM unnest($3::bigint[]) AS n(id)
                     CROSS JOIN LATERAL (SELECT task_id, concurrency_key FROM task_runs WHERE id = n.id OFFSET 0) r
                     WHERE EXISTS (SELECT 1 FROM task_runs
                                    WHERE {waiting} AND blocked = 'key' AND concurrency_key = r.concurrency_key)
                        OR (SELECT blocked FROM task_runs
                             WHERE task_id = r.task_id AND {waiting} AND {unscheduled_case} = 0
                             ORDER BY scheduled_for LIMIT 1) = 'order'))
           -- No run has expired, and no row is to be planned.
           AND (SELECT id FROM task_runs
                 WHERE expires_at IS NOT NULL AND status = 'queued' AND expires_at <= $1::bigint AND attempt = forgiven
                 ORDER BY expires_at, id LIMIT 1) IS NULL
           AND (SELECT id FROM scheduled_tasks WHERE planned = 0 ORDER BY planned, id LIMIT 1) IS NULL
           -- No key and no task may start again.
           AND (SELECT subject FROM rate_limit_openings WHERE opens_at <= $1::bigint ORDER BY opens_at LIMIT 1) IS NULL
           -- No waiting run is to be derived again, and no task to be planned again.
           AND NOT EXISTS (SELECT 1 FROM scheduler_meta WHERE key > 'zone_mark:' AND key < 'zone_mark;')
           AND NOT EXISTS (SELECT 1 FROM scheduler_meta WHERE key = 'clock_mark')
           AND (SELECT id FROM scheduled_tasks WHERE marked IS NOT NULL ORDER BY id LIMIT 1) IS NULL
           -- No run follows these runs: no task is followed, or none of theirs.
           AND ((SELECT id FROM scheduled_tasks WHERE {followed} ORDER BY id LIMIT 1) IS NULL
                OR NOT EXISTS (
                    SELECT 1 FROM unnest($3::bigint[]) AS n(id)
                     CROSS JOIN LATERAL (SELECT task_id FROM task_runs WHERE id = n.id OFFSET 0) r
                     CROSS JOIN LATERAL (SELECT 1 FROM scheduled_tasks WHERE id = r.task_id AND {followed} OFFSET 0) t))
           -- No delay counts from the end of these runs: no task waits for that, or none of theirs.
           AND (NOT EXISTS (
               SELECT 1 FROM (VALUES (0), (1), (2), (3)) AS p(priority)
                CROSS JOIN LATERAL (
                    SELECT 1 FROM scheduled_tasks
                     WHERE {active_planned} AND priority = p.priority AND next_run IS NULL LIMIT 1) t)
           OR NOT EXISTS (
               SELECT 1 FROM unnest($3::bigint[]) AS n(id)
                CROSS JOIN LATERAL (SELECT task_id FROM task_runs WHERE id = n.id OFFSET 0) r
                CROSS JOIN LATERAL (SELECT schedule_type FROM scheduled_tasks WHERE id = r.task_id OFFSET 0) t
                WHERE t.schedule_type = 'delay')) AS is_plain,
           EXISTS (
               SELECT 1 FROM unnest($2::text[]) AS h(handler) CROSS JOIN (VALUES (0), (1), (2), (3)) AS p(priority)
                CROSS JOIN LATERAL (
                    SELECT 1 FROM task_runs
                     WHERE {claimable}
                       AND handler = h.handler AND priority = p.priority AND run_at <= $1::bigint
                     ORDER BY run_at, id LIMIT 1) r) AS any_waits
)
SELECT g.is_plain, t.id, t.name, t.handler, t.payload, t.next_run, t.active_since, t.catch_up_limit, t.priority, t.written_by,
       t.is_plain, g.any_waits, t.schedule_type, t.schedule_value, t.time_zone, t.starts_at, t.ends_at, t.resolved_until, t.overlap,
       t.misfire, t.misfire_grace_ms, t.max_attempts, t.backoff_ms, t.backoff_cap_ms, t.timeout_ms, t.created_at, t.place
  FROM gate g
  LEFT JOIN LATERAL (
      SELECT t.* FROM (VALUES (0), (1), (2), (3)) AS p(priority)
       CROSS JOIN LATERAL (
           SELECT id, name, handler, payload::text AS payload, next_run, active_since, catch_up_limit, s.priority,
                  s.xmin AS written_by, s.ctid AS place, schedule_type, schedule_value, time_zone, starts_at, ends_at, resolved_until, overlap,
                  misfire, misfire_grace_ms, max_attempts, backoff_ms, backoff_cap_ms, timeout_ms, created_at,
                  -- No limit concerns it.
                  concurrency_key IS NULL AND max_starts IS NULL AND NOT EXISTS (SELECT 1 FROM rate_limits WHERE rate_limits.handler = s.handler)
                  AND expires_ms IS NULL AND jitter_ms = 0 AND handler = ANY($2::text[])
                  AND num_nulls(only_between, only_on, except_on) = 3
                  AND CASE
                      -- Never resolved.
                      WHEN schedule_type = 'once' THEN
                          resolved_until IS NULL
                          AND (SELECT id FROM task_runs WHERE task_id = s.id
                                ORDER BY {unscheduled_case} LIMIT 1) IS NULL
                      -- Every run has ended, so the overlap policy has nothing to decide.
                      WHEN schedule_type = 'interval' OR schedule_type = 'cron' OR schedule_type = 'calendar' THEN
                          (SELECT id FROM task_runs
                            WHERE task_id = s.id AND {unfinished}
                            ORDER BY {unscheduled_case}, scheduled_for
                            LIMIT 1) IS NULL
                      ELSE false END AS is_plain
             FROM scheduled_tasks s
            WHERE {active_planned} AND s.priority = p.priority AND next_run <= $1::bigint
            ORDER BY next_run, id LIMIT $4::bigint) t) t ON g.is_plain
