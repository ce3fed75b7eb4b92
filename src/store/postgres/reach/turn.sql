-- The rows that a turn may read or change: ids of tasks and runs, and what is known of them.
--
-- $1 now, $2 owner, $3 its handlers, $4 runs of outcomes and reports, $5 dead owners, $6 whether own runs are needed, $7 most due
-- tasks of a priority, $8 most unplanned tasks, $9 most expiring runs, $10 most claimable runs of a handler and priority,
-- $11 whether all rows are looked at in turns, $12 the key and $13 the task that the sweep reached, $14 how many of each it looks
-- at, $15 the task that the search for planless tasks reached, $16 how many it looks at, $17 slots, $18 tasks that a wrong clock has
-- planned, $19 stalled owners, $20 most runs of marked tasks, $21 more keys.
--
-- Every part goes along one index. LATERAL with a LIMIT or OFFSET 0 keeps the planner from joining in another way.
WITH RECURSIVE
unplanned AS MATERIALIZED (
    SELECT id FROM scheduled_tasks WHERE planned = 0 ORDER BY planned, id LIMIT $8::bigint
),
-- Tasks whose runs were to be derived again before this turn, and the first of these runs: one more than the turn derives, and as many
-- as it ends before.
marked AS MATERIALIZED (
    SELECT id, marked FROM scheduled_tasks WHERE marked IS NOT NULL ORDER BY id LIMIT {marks}
),
derived AS MATERIALIZED (
    SELECT r.id, m.id AS task_id, r.key, r.retry_of
      FROM marked m
     CROSS JOIN LATERAL (
         (SELECT id, concurrency_key AS key, retry_of, 0 AS phase, scheduled_for AS place FROM task_runs
           WHERE m.marked >= 0 AND task_id = m.id AND {unfinished} AND {unscheduled_case} = 0 AND scheduled_for > m.marked
           ORDER BY scheduled_for LIMIT $20::bigint + cardinality($4::bigint[]))
         UNION ALL
         (SELECT id, concurrency_key, retry_of, 1, id FROM task_runs
           WHERE task_id = m.id AND {unfinished} AND {unscheduled_case} > greatest(-m.marked, 0)
           ORDER BY {unscheduled_case} LIMIT $20::bigint + cardinality($4::bigint[]))) r
     ORDER BY m.id, r.phase, r.place LIMIT $20::bigint + cardinality($4::bigint[])
),
-- How far tasks and runs are planned again that a wrong clock had planned, and the next of both.
clock_mark AS MATERIALIZED (
    {clock_mark}
),
misplanned_task AS MATERIALIZED (
    SELECT id FROM scheduled_tasks WHERE id > (SELECT task FROM clock_mark) ORDER BY id LIMIT {misplanned} + 1
),
misplanned_run AS MATERIALIZED (
    SELECT r.id, r.task_id FROM clock_mark m
     CROSS JOIN LATERAL (
         SELECT id, task_id FROM task_runs
          WHERE {unfinished} AND (task_id, {unscheduled_case}, scheduled_for) > (m.task_of_run, m.unscheduled, m.scheduled_for)
          ORDER BY task_id, {unscheduled_case}, scheduled_for LIMIT {misplanned} + 1) r
),
-- The next tasks of marked time zones; and the first of each time zone in use, whose rules a full turn compares.
zone_mark AS MATERIALIZED (
    SELECT substr(key, 11) AS zone,
           CASE WHEN value ~ '^[0-9]+ -?[0-9]+$' AND length(split_part(value, ' ', 1)) < 19
                THEN split_part(value, ' ', 1)::bigint END AS after
      FROM scheduler_meta WHERE key > 'zone_mark:' AND key < 'zone_mark;' ORDER BY key LIMIT {zone_marks}
),
used (zone) AS (
    {zones_in_use}
),
zoned AS MATERIALIZED (
    SELECT t.id FROM zone_mark m
     CROSS JOIN LATERAL (
         SELECT id FROM scheduled_tasks WHERE {zoned} AND time_zone = m.zone AND id > m.after ORDER BY id LIMIT $20::bigint) t
    UNION ALL
    (SELECT (SELECT min(id) FROM scheduled_tasks WHERE {zoned} AND time_zone = zone) FROM used
      WHERE zone IS NOT NULL AND $11::boolean LIMIT {zones})
),
-- Runs that the turn may end.
ending AS MATERIALIZED (
    SELECT r.id, r.task_id, r.concurrency_key AS key, r.retry_of, true AS attempted
      FROM unnest($4::bigint[]) AS named(id)
     CROSS JOIN LATERAL (SELECT id, task_id, concurrency_key, retry_of FROM task_runs WHERE id = named.id OFFSET 0) r
    UNION ALL
    SELECT id, task_id, concurrency_key, retry_of, true
      FROM task_runs WHERE status = 'running' AND locked_by = ANY($5::text[])
    UNION ALL
    (SELECT id, task_id, concurrency_key, retry_of, false
       FROM task_runs
      WHERE expires_at IS NOT NULL AND status = 'queued' AND expires_at <= $1::bigint AND attempt = forgiven
      ORDER BY expires_at, id LIMIT $9::bigint)
    UNION ALL
    SELECT r.id, r.task_id, r.concurrency_key, r.retry_of, false
      FROM unplanned u
     CROSS JOIN LATERAL (
         SELECT id, task_id, concurrency_key, retry_of FROM task_runs
          WHERE task_id = u.id AND {waiting} AND cancel_requested = 1
          ORDER BY task_id, id LIMIT {asked} + 1) r
),
-- Runs that keep running: own ones, and those of stalled owners.
own AS MATERIALIZED (
    SELECT id, task_id FROM task_runs
     WHERE status = 'running'
       AND (locked_by = ANY($19::text[]) OR (locked_by = $2::text AND ($6::boolean OR cancel_requested = 1)))
),
-- Runs that the turn may claim. Those that expire in it are among the ending ones, and take no place here.
candidate AS MATERIALIZED (
    SELECT r.id, r.task_id, r.concurrency_key AS key, r.retry_of
      FROM unnest($3::text[]) AS h(handler) CROSS JOIN (VALUES (0), (1), (2), (3)) AS p(priority)
     CROSS JOIN LATERAL (
         SELECT id, task_id, concurrency_key, retry_of FROM task_runs
          WHERE {claimable}
            AND handler = h.handler AND priority = p.priority AND run_at <= $1::bigint
            AND (expires_at IS NULL OR expires_at > $1::bigint OR status = 'failed' OR attempt > forgiven)
          ORDER BY run_at, id LIMIT $10::bigint) r
),
-- Keys and tasks that may start again.
opened AS MATERIALIZED (
    SELECT subject FROM rate_limit_openings WHERE opens_at <= $1::bigint ORDER BY opens_at, subject LIMIT {openings}
),
-- One blocked run, as a turn looks first whether there is any.
witness AS MATERIALIZED (
    SELECT id, task_id FROM task_runs
     WHERE {waiting} AND blocked > ''
     ORDER BY blocked LIMIT 1
),
due AS MATERIALIZED (
    SELECT t.id, t.followers FROM (VALUES (0), (1), (2), (3)) AS p(priority)
     CROSS JOIN LATERAL (
         SELECT id, concat_ws(',', on_end, on_missed) AS followers FROM scheduled_tasks
          WHERE {active_planned} AND priority = p.priority AND next_run <= $1::bigint
          ORDER BY next_run, id LIMIT $7::bigint) t
),
-- Tasks without a next_run: the next ones in turn, and one, as a turn looks first whether there is any.
planless AS MATERIALIZED (
    SELECT t.id,
           t.schedule_type <> 'manual'
           AND (t.schedule_type <> 'delay'
                OR (SELECT r.id FROM task_runs r
                     WHERE r.task_id = t.id AND {unfinished:r}
                     LIMIT 1) IS NULL) AS found
      FROM (VALUES (0), (1), (2), (3)) AS p(priority)
     CROSS JOIN LATERAL (
         SELECT id, schedule_type FROM scheduled_tasks
          WHERE {active_planned} AND priority = p.priority AND next_run IS NULL AND id > $15::bigint
          ORDER BY next_run, id LIMIT CASE WHEN $11::boolean THEN $16::bigint ELSE 0 END) t
    UNION ALL
    SELECT t.id, false FROM (VALUES (0), (1), (2), (3)) AS p(priority)
     CROSS JOIN LATERAL (
         SELECT id FROM scheduled_tasks
          WHERE {active_planned} AND priority = p.priority AND next_run IS NULL
          ORDER BY next_run, id LIMIT 1) t
),
-- The next keys and tasks of the sweep.
swept_key(key, place) AS (
    SELECT (SELECT min(concurrency_key) FROM task_runs
             WHERE {waiting} AND blocked = 'key'
               AND concurrency_key > $12::text), 1
     WHERE $11::boolean
    UNION ALL
    SELECT (SELECT min(concurrency_key) FROM task_runs
             WHERE {waiting} AND blocked = 'key'
               AND concurrency_key > s.key), s.place + 1
      FROM swept_key s WHERE s.key IS NOT NULL AND s.place < $14::bigint
),
swept_task(id, place) AS (
    SELECT (SELECT min(task_id) FROM task_runs
             WHERE {unfinished} AND task_id > $13::bigint), 1
     WHERE $11::boolean
    UNION ALL
    SELECT (SELECT min(task_id) FROM task_runs
             WHERE {unfinished} AND task_id > s.id), s.place + 1
      FROM swept_task s WHERE s.id IS NOT NULL AND s.place < $14::bigint
),
-- What the ends of runs concern: how many of each task, whether it may be paused, the tasks that follow it.
ended AS MATERIALIZED (
    SELECT e.task_id AS id, e.ends, concat_ws(',', t.on_dead, t.on_success, t.on_end, t.on_missed) AS followers,
           coalesce(t.failure_count + e.attempts >= t.pause_after_failures, false) AS pauses
      FROM (SELECT task_id, count(*) AS ends, count(*) FILTER (WHERE attempted) AS attempts
              FROM ending GROUP BY task_id) e
     CROSS JOIN LATERAL (SELECT on_dead, on_success, on_end, on_missed, failure_count, pause_after_failures FROM scheduled_tasks
                          WHERE id = e.task_id OFFSET 0) t
),
-- These, and what follows those of them that are resolved first.
target(id, resolves, followers) AS (
    SELECT t.id, t.resolves, t.followers
      FROM (SELECT DISTINCT btrim(n.name) AS name
              FROM (SELECT followers FROM ended UNION ALL SELECT followers FROM due) f
             CROSS JOIN LATERAL unnest(string_to_array(f.followers, ',')) AS n(name)) e
     CROSS JOIN LATERAL (
         SELECT id, schedule_type = 'delay' AS resolves,
                CASE WHEN schedule_type = 'delay' THEN concat_ws(',', on_end, on_missed) END AS followers
           FROM scheduled_tasks WHERE name = e.name OFFSET 0) t
    UNION
    SELECT t.id, t.resolves, t.followers
      FROM target r
     CROSS JOIN LATERAL unnest(string_to_array(r.followers, ',')) AS n(name)
     CROSS JOIN LATERAL (
         SELECT id, schedule_type = 'delay' AS resolves,
                CASE WHEN schedule_type = 'delay' THEN concat_ws(',', on_end, on_missed) END AS followers
           FROM scheduled_tasks WHERE name = btrim(n.name) OFFSET 0) t
),
-- Tasks with a limit of starts, of which the next run may be released, and the first runs of each that wait for a start: at most as many as
-- may start, end, or be released by an opening and by the sweep.
limited AS MATERIALIZED (
    SELECT t.id
      FROM (SELECT task_id AS id FROM candidate
            UNION SELECT id FROM ended
            UNION SELECT id FROM due
            UNION SELECT id FROM swept_task
            UNION SELECT substr(subject, 6)::bigint FROM opened
                   WHERE subject ~ '^task:[0-9]+$' AND length(subject) < 24) n
     CROSS JOIN LATERAL (SELECT id FROM scheduled_tasks WHERE id = n.id AND max_starts IS NOT NULL OFFSET 0) t
     WHERE EXISTS (SELECT 1 FROM scheduled_tasks WHERE max_starts IS NOT NULL)
),
awaiting AS MATERIALIZED (
    SELECT r.id, l.id AS task_id, r.key, r.retry_of
      FROM limited l CROSS JOIN (VALUES (0), (1), (2), (3)) AS p(priority)
     CROSS JOIN LATERAL (
         SELECT id, concurrency_key AS key, retry_of FROM task_runs
          WHERE blocked = 'starts' AND task_id = l.id AND priority = p.priority
          ORDER BY run_at, id LIMIT $17::bigint + 2 + (SELECT count(*) FROM ending)) r
),
-- Tasks whose runs the rules look at. deep: they may be resolved; front: their first unfinished runs are looked at.
task AS MATERIALIZED (
    SELECT c.id, c.deep, c.opens, c.ends, t.overlap, t.schedule_type, t.concurrency_key, t.next_run, t.resolved_until,
           r.id IS NOT NULL AS ran,
           c.front
      FROM (SELECT id, bool_or(deep) AS deep, bool_or(front) AS front, bool_or(opens) AS opens, sum(ends)::bigint AS ends
              FROM (SELECT id, true AS deep, false AS front, false AS opens, 0 AS ends FROM due
                    UNION ALL SELECT id, false, false, false, 0 FROM marked
                    UNION ALL SELECT id, true, true, false, 0 FROM unplanned
                    UNION ALL SELECT id, found, found, false, 0 FROM planless
                    UNION ALL SELECT id, true, true, false, 0 FROM unnest($18::bigint[]) AS all_runs(id)
                    UNION ALL SELECT id, true, true, false, 0 FROM misplanned_task
                    UNION ALL SELECT id, pauses, false, false, ends FROM ended
                    -- A request of a delay task has it planned again.
                    UNION ALL SELECT id, resolves, resolves, true, 0 FROM target
                    UNION ALL
                    SELECT s.id, false, t.status <> 'paused' AND t.status <> 'invalid'
                           AND EXISTS (SELECT 1 FROM (
                               SELECT r.blocked FROM task_runs r
                                WHERE r.task_id = s.id AND {unfinished:r}
                                ORDER BY r.task_id, {unscheduled_case:r},
                                         r.scheduled_for
                                LIMIT {front}) AS first WHERE blocked = 'paused'), false, 0
                      FROM swept_task s
                     CROSS JOIN LATERAL (SELECT status FROM scheduled_tasks WHERE id = s.id OFFSET 0) t) AS chosen
             GROUP BY id) c
     CROSS JOIN LATERAL (SELECT overlap, schedule_type, concurrency_key, next_run, resolved_until
                           FROM scheduled_tasks WHERE id = c.id OFFSET 0) t
      -- One look instead of one for each kind of run: most tasks have their first run before them.
      LEFT JOIN LATERAL (SELECT id FROM task_runs WHERE task_id = c.id
                          ORDER BY {unscheduled_case} LIMIT 1) r ON true
),
unfinished AS MATERIALIZED (
    SELECT r.id, t.id AS task_id, r.concurrency_key AS key, r.retry_of, t.deep, t.deep AND t.overlap = 'cancel_running' AS leaves
      FROM task t
     CROSS JOIN LATERAL (
         SELECT id, concurrency_key, retry_of FROM task_runs
          WHERE task_id = t.id AND {unfinished}
            AND {unscheduled_case} = 0
          ORDER BY scheduled_for
          LIMIT CASE WHEN t.deep AND t.overlap <> 'allow' AND t.overlap <> 'skip' THEN {looked_at} + 1 + t.ends
                     WHEN t.front THEN {front} + 1 + t.ends
                     ELSE 2 + t.ends END) r
     WHERE t.ran
    UNION ALL
    SELECT r.id, t.id, r.concurrency_key, r.retry_of, t.deep, false
      FROM task t
     CROSS JOIN LATERAL (
         SELECT id, concurrency_key, retry_of FROM task_runs
          WHERE task_id = t.id AND {unfinished}
            AND {unscheduled_case} > 0
          ORDER BY {unscheduled_case}
          LIMIT CASE WHEN t.front THEN {front} + t.ends ELSE 1 + t.ends END) r
     WHERE t.ran
),
-- Rows of occurrences: the newest, those that a resolution may meet again, and the latest end, from which a delay counts.
occurrence AS MATERIALIZED (
    SELECT r.id, t.id AS task_id FROM task t
     CROSS JOIN LATERAL (
         SELECT id FROM task_runs
          WHERE task_id = t.id AND {unscheduled_case} = 0
          ORDER BY scheduled_for DESC LIMIT 1) r
     WHERE t.deep AND t.ran
    UNION ALL
    SELECT r.id, t.id FROM task t
     CROSS JOIN LATERAL (
         SELECT id FROM task_runs
          WHERE task_id = t.id AND {unscheduled_case} = 0
            AND scheduled_for BETWEEN least(coalesce(t.next_run, t.resolved_until, 0), coalesce(t.resolved_until + 1, t.next_run, 0))
                              AND $1::bigint
          OFFSET 0) r
     WHERE t.deep AND t.ran AND (t.schedule_type <> 'manual' OR t.next_run IS NOT NULL)
    UNION ALL
    SELECT r.id, t.id FROM task t
     CROSS JOIN LATERAL (
         SELECT id FROM task_runs WHERE task_id = t.id ORDER BY finished_at DESC NULLS LAST LIMIT 1) r
     WHERE t.front AND t.schedule_type = 'delay'
),
-- Keys whose runs may be derived again, with the number of waiting runs of each handler and priority that may go first.
key AS MATERIALIZED (
    SELECT k.key, k.leaving + CASE WHEN l.max_running IS NULL THEN 2
                                   ELSE least(l.max_running, {window}) + least(l.max_running, $17::bigint) + 1 END AS most
      FROM (SELECT key, sum(leaving)::bigint AS leaving
              FROM (SELECT key, 1 AS leaving FROM ending
                    UNION ALL SELECT key, CASE WHEN task_id IN (SELECT id FROM limited) THEN 1 ELSE 0 END FROM candidate
                    UNION ALL SELECT key, 1 FROM awaiting
                    UNION ALL SELECT substr(subject, 5), 0 FROM opened WHERE starts_with(subject, 'key:')
                    UNION ALL SELECT key, CASE WHEN leaves THEN 1 ELSE 0 END FROM unfinished
                    UNION ALL SELECT key, 1 FROM derived
                    UNION ALL SELECT '#' || task_id, 0 FROM unfinished WHERE deep
                    UNION ALL SELECT concurrency_key, 0 FROM task WHERE deep
                    UNION ALL SELECT coalesce(concurrency_key, '#' || id), 0 FROM task WHERE opens
                    UNION ALL SELECT key, 0 FROM swept_key
                    UNION ALL SELECT unnest($21::text[]), {window}) AS named
             WHERE key IS NOT NULL GROUP BY key) k
      LEFT JOIN LATERAL (SELECT max_running FROM concurrency_limits WHERE concurrency_key = k.key OFFSET 0) l ON true
),
waiting_handler(key, most, handler) AS (
    SELECT key, most, (SELECT min(handler) FROM task_runs
                        WHERE {waiting} AND blocked = 'key'
                          AND concurrency_key = key.key)
      FROM key
    UNION ALL
    SELECT h.key, h.most, (SELECT min(handler) FROM task_runs
                            WHERE {waiting} AND blocked = 'key'
                              AND concurrency_key = h.key AND handler > h.handler)
      FROM waiting_handler h WHERE h.handler IS NOT NULL
),
behind AS MATERIALIZED (
    SELECT r.id, r.task_id, r.retry_of FROM key k
     CROSS JOIN LATERAL (
         SELECT id, task_id, retry_of FROM task_runs WHERE status = 'running' AND concurrency_key = k.key OFFSET 0) r
    UNION ALL
    SELECT r.id, r.task_id, r.retry_of FROM key k
     CROSS JOIN LATERAL (
         SELECT id, task_id, retry_of FROM task_runs
          WHERE {claimable}
            AND concurrency_key = k.key ORDER BY blocked, concurrency_key, handler, priority, run_at, id OFFSET 0) r
    UNION ALL
    SELECT r.id, r.task_id, r.retry_of
      FROM waiting_handler h CROSS JOIN (VALUES (0), (1), (2), (3)) AS p(priority)
     CROSS JOIN LATERAL (
         SELECT id, task_id, retry_of FROM task_runs
          WHERE {waiting} AND blocked = 'key'
            AND concurrency_key = h.key AND handler = h.handler AND priority = p.priority
          ORDER BY run_at, id LIMIT h.most) r
     WHERE h.handler IS NOT NULL
),
-- The oldest scheduled run of the tasks whose runs may be claimed.
older AS MATERIALIZED (
    SELECT r.id, t.task_id
      FROM (SELECT task_id FROM candidate UNION SELECT task_id FROM behind UNION SELECT task_id FROM awaiting) t
     CROSS JOIN LATERAL (
         SELECT id FROM task_runs
          WHERE task_id = t.task_id AND {unfinished}
            AND {unscheduled_case} = 0
          ORDER BY scheduled_for LIMIT 1) r
),
-- The runs that a run retries, to the first. Ids decrease along a chain. They begin at an array, of which the planner expects few
-- elements: by its estimate of the rows it would allocate and clear megabytes in each turn.
retried(id, task_id, retry_of) AS (
    SELECT r.id, r.task_id, r.retry_of
      FROM unnest(ARRAY(SELECT retry_of FROM ending WHERE retry_of < id UNION SELECT retry_of FROM candidate WHERE retry_of < id
                        UNION SELECT retry_of FROM unfinished WHERE retry_of < id
                        UNION SELECT retry_of FROM behind WHERE retry_of < id
                        UNION SELECT retry_of FROM derived WHERE retry_of < id
                        UNION SELECT retry_of FROM awaiting WHERE retry_of < id)) AS n(id)
     CROSS JOIN LATERAL (SELECT id, task_id, retry_of FROM task_runs WHERE id = n.id OFFSET 0) r
    UNION
    SELECT r.id, r.task_id, r.retry_of FROM retried n
     CROSS JOIN LATERAL (SELECT id, task_id, retry_of FROM task_runs WHERE id = n.retry_of AND id < n.id OFFSET 0) r
     WHERE n.retry_of IS NOT NULL
),
run AS MATERIALIZED (
    SELECT id, task_id FROM ending UNION SELECT id, task_id FROM own UNION SELECT id, task_id FROM candidate
    UNION SELECT id, task_id FROM witness UNION SELECT id, task_id FROM unfinished UNION SELECT id, task_id FROM occurrence
    UNION SELECT id, task_id FROM behind UNION SELECT id, task_id FROM older UNION SELECT id, task_id FROM retried
    UNION SELECT id, task_id FROM derived UNION SELECT id, task_id FROM misplanned_run
    UNION SELECT id, task_id FROM awaiting
)
SELECT ARRAY(SELECT id FROM run) AS runs,
       ARRAY(SELECT task_id FROM run UNION SELECT id FROM task UNION SELECT id FROM planless
             UNION SELECT id FROM zoned) AS tasks,
       ARRAY(SELECT key FROM key) AS keys
