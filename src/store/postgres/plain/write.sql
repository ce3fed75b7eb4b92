-- What a plain turn writes. $1 to $6 the successes, $7 the owner, $8 now, $9 tasks and $10 who wrote them, $11 the end of the lease,
-- $12 to $16, $20 and $21 the runs of these tasks, $17 to $19 the waiting runs that start, $22 when the tasks are due next, $23 where the
-- tasks are.
--
-- Which rows match is counted: another program may have changed one. A row that was read in this transaction is written where it is: to
-- look for its id again takes longer.
WITH ended AS (
    UPDATE task_runs t
       SET status = 'succeeded', started_at = o.started, finished_at = o.finished, duration_ms = o.duration,
           result = o.result::jsonb, locked_by = NULL, locked_until = NULL, process = NULL
      FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[])
           AS o(id, attempt, started, finished, duration, result)
     -- Without the status: with it the planner would compare each running run with each outcome. Only a running run has an owner.
     WHERE t.id = o.id AND t.attempt = o.attempt AND t.locked_by IS NOT DISTINCT FROM $7::text
    RETURNING 1
),
advanced AS (
    UPDATE scheduled_tasks t
       SET resolved_until = t.next_run, next_run = o.next, status = CASE WHEN o.next IS NULL THEN 'completed' ELSE t.status END,
           updated_at = CASE WHEN o.next IS NULL THEN $8::bigint ELSE t.updated_at END
      FROM unnest($23::tid[], $10::xid[], $22::bigint[]) AS o(place, written_by, next)
     WHERE t.ctid = o.place AND t.xmin = o.written_by
    RETURNING 1
),
claimed AS (
    UPDATE task_runs t
       SET status = 'running', attempt = 1, locked_by = $7::text, locked_until = $11::bigint, started_at = o.started
      FROM unnest($17::tid[], $18::xid[], $19::bigint[]) AS o(place, written_by, started)
     WHERE t.ctid = o.place AND t.xmin = o.written_by
    RETURNING 1
),
opened AS (
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, priority, concurrency_key, attempt, locked_by,
                           locked_until, started_at)
    SELECT o.task, o.handler, o.due, o.origin, CASE WHEN o.claimed THEN 'running' ELSE 'queued' END, o.due, o.priority,
           CASE WHEN o.has_key THEN '#' || o.task END, CASE WHEN o.claimed THEN 1 ELSE 0 END, CASE WHEN o.claimed THEN $7::text END,
           CASE WHEN o.claimed THEN $11::bigint END, o.started
      FROM unnest($9::bigint[], $12::text[], $13::bigint[], $14::text[], $15::boolean[], $16::bigint[], $20::bigint[], $21::boolean[])
           AS o(task, handler, due, origin, claimed, started, priority, has_key)
    RETURNING id, task_id
)
-- In this order: tasks are locked before runs, as other programs' triggers do.
SELECT (SELECT count(*) FROM advanced), (SELECT count(*) FROM ended), (SELECT count(*) FROM claimed),
       ARRAY(SELECT task_id FROM opened), ARRAY(SELECT id FROM opened)
