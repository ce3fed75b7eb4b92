-- The waiting runs that may start here, with their tasks. $1 now, $2 handlers, $3 most runs of a handler and priority.
SELECT r.id, r.handler, r.run_at, r.priority, r.scheduled_for, r.origin, r.concurrency_key, r.written_by, t.id, t.name, t.payload::text,
       t.schedule_type <> 'once', t.max_attempts, t.backoff_ms, t.backoff_cap_ms, t.timeout_ms,
       r.is_plain AND t.is_as_written
       -- No limit concerns it.
       AND (r.concurrency_key IS NULL OR r.concurrency_key = '#' || t.id)
       AND t.max_starts IS NULL AND NOT EXISTS (SELECT 1 FROM rate_limits WHERE rate_limits.handler = r.handler)
       -- Its start blocks no other run.
       AND (SELECT id FROM task_runs WHERE status = 'running' AND concurrency_key = r.concurrency_key LIMIT 1) IS NULL
       AND (SELECT id FROM task_runs WHERE {claimable} AND concurrency_key = r.concurrency_key AND id <> r.id LIMIT 1) IS NULL,
       r.place
  FROM unnest($2::text[]) AS h(handler) CROSS JOIN (VALUES (0), (1), (2), (3)) AS p(priority)
 CROSS JOIN LATERAL (
     SELECT id, task_id, handler, run_at, s.priority, scheduled_for, origin, concurrency_key, s.xmin AS written_by, s.ctid AS place,
            status = 'queued' AND attempt = 0 AND payload IS NULL AND retry_of IS NULL AND expires_at IS NULL
            AND cancel_requested = 0 AS is_plain
       FROM task_runs s
      WHERE {claimable}
        AND s.handler = h.handler AND s.priority = p.priority AND run_at <= $1::bigint
      ORDER BY run_at, id LIMIT $3::bigint) r
 CROSS JOIN LATERAL (
     SELECT id, name, payload, schedule_type, max_starts, max_attempts, backoff_ms, backoff_cap_ms, timeout_ms,
            handler = r.handler AND status <> 'paused' AND status <> 'invalid' AS is_as_written
       FROM scheduled_tasks WHERE id = r.task_id OFFSET 0) t
