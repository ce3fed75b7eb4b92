//! The rows of a turn. Two statements read them, however many they are: `turn.sql` returns ids, and the other one the rows.
//!
//! `turn.sql` begins with what is due, has ended or may be claimed, up to the limits of a turn, and follows what the rules look at
//! from there:
//! - the task of each run, its oldest unfinished runs, as far as its overlap policy looks, and the tasks that follow it;
//! - the first unfinished runs of a task that is planned, and the next ones of tasks that are marked;
//! - rows of occurrences that a resolution may meet again, and the newest one, with which a skip is merged;
//! - for each key of these: what runs with it, what may start, and of each handler and priority those that go first behind it;
//! - the tasks of these, and the oldest unfinished run of each; the runs that a run retries.

use std::collections::HashSet;

use crate::store::fault::Fault;
use crate::store::postgres::reach::unread_keys;
use crate::store::postgres::sheets::{Cell, Difference, Sheets};
use crate::store::sqlite::sql::sql;

/// See `turn.sql` for the parameters.
pub(crate) const IDS: &str = sql!(file "turn.sql");

/// What a turn asks for, and what was found.
#[derive(Clone, Debug)]
pub(crate) struct TurnReach {
    pub(crate) now: i64,
    pub(crate) owner: String,
    pub(crate) handlers: Vec<String>,
    /// The runs of outcomes and reports.
    pub(crate) runs: Vec<i64>,
    /// The runs under which effects are stored that outcomes end.
    pub(crate) effects: Vec<i64>,
    /// Owners that are dead, and owners that are stalled.
    pub(crate) dead: Vec<String>,
    pub(crate) stalled: Vec<String>,
    /// Whether the leases or the starts of own runs are written.
    pub(crate) own: bool,
    pub(crate) full: bool,
    /// Most due tasks of a priority, unplanned tasks, expiring runs, and claimable runs of a handler and priority.
    pub(crate) due: i64,
    pub(crate) unplanned: i64,
    pub(crate) expiring: i64,
    pub(crate) claimable: i64,
    /// Most keys and tasks that the sweep looks at, and what it reached.
    pub(crate) sweep: i64,
    pub(crate) swept_key: String,
    pub(crate) swept_task: i64,
    /// Most tasks that are searched for planless ones, and what the search reached.
    pub(crate) planless: i64,
    pub(crate) planless_after: i64,
    pub(crate) room: i64,
    /// Tasks that a wrong clock has planned, and that are planned again.
    pub(crate) misplanned: Vec<i64>,
    /// Most runs of marked tasks that the turn derives.
    pub(crate) derived: i64,
    /// Keys whose runs were read.
    pub(crate) keys: HashSet<String>,
    /// Whether the outputs of ended runs are read. Few rules change an ended run, and none needs its output for that.
    pub(crate) outputs: bool,
    /// Whether the attempts of the runs of outcomes are read: an outcome may be stored already.
    pub(crate) attempts: bool,
    /// Keys whose runs are read in addition: the rules went further than foreseen.
    pub(crate) more_keys: Vec<String>,
}

/// The rows by their ids, and those of the small tables. `$1` tasks, `$2` runs, `$3` owners, `$4` whether the others that have not
/// stopped are needed, `$5` handlers, `$6` slots, `$7` stalled owners, `$9` keys, `$10` the time.
const ROWS: [(&str, &str); 9] = [
    ("scheduler_meta", ""),
    ("scheduler_instances", "WHERE t.id = ANY($3::text[]) OR ($4::boolean AND t.stopped_at IS NULL)"),
    ("concurrency_limits", ""),
    ("rate_limits", ""),
    // The newest start, the one that the rate compares with, after further starts too, and all older ones, which are deleted.
    (
        "rate_limit_starts",
        sql! {"JOIN (SELECT l.subject, l.max_starts, (SELECT max(number) FROM rate_limit_starts
                                                 WHERE subject = l.subject AND number < {most_starts}) AS newest
                 FROM (SELECT 'handler:' || handler AS subject, max_starts FROM rate_limits
                        WHERE handler = ANY($5::text[])
                           OR handler IN (SELECT s.handler FROM scheduled_tasks s WHERE s.id = ANY($1::bigint[]) AND s.when_limited = 'skip')
                       UNION ALL
                       SELECT 'key:' || concurrency_key, max_starts FROM concurrency_limits
                        WHERE max_starts IS NOT NULL AND concurrency_key = ANY($9::text[])
                       UNION ALL
                       SELECT 'task:' || s.id, {max_starts:s} FROM scheduled_tasks s
                        WHERE s.id = ANY($1::bigint[]) AND s.max_starts IS NOT NULL) l) l
           ON l.subject = t.subject
          AND (l.max_starts IS NULL OR t.number >= l.newest OR t.number <= l.newest + 1 - l.max_starts + $6::bigint + {window})"},
    ),
    // Those of the keys and tasks that were read, those whose time has come, and all if a wrong clock has recorded starts.
    (
        "rate_limit_openings",
        "WHERE t.opens_at <= $10::bigint
            OR t.subject IN (SELECT 'key:' || key FROM unnest($9::text[]) AS n(key)
                             UNION ALL SELECT 'task:' || id FROM unnest($1::bigint[]) AS n(id))
            OR EXISTS (SELECT 1 FROM scheduler_meta WHERE key = 'clock_mark_starts')",
    ),
    // The next ones that a wrong clock has recorded.
    (
        "rate_limit_starts",
        sql! {"WHERE (t.subject, t.number) IN (
            SELECT s.subject, s.number
              FROM (SELECT substring(value FROM '^-?[0-9]+ [0-9]+ (.*)$') AS subject,
                           left(substring(value FROM '^-?[0-9]+ ([0-9]+) '), 18)::bigint AS number
                      FROM scheduler_meta WHERE key = 'clock_mark_starts') m
             CROSS JOIN LATERAL (
                 SELECT n.subject, n.number FROM rate_limit_starts n WHERE (n.subject, n.number) > (m.subject, m.number)
                  ORDER BY n.subject, n.number LIMIT {misplanned} + 1) s)"},
    ),
    ("scheduled_tasks", "WHERE t.id = ANY($1::bigint[])"),
    ("task_runs", "WHERE t.id = ANY($2::bigint[])"),
];

/// The first attempts of runs that wait again: whether they have begun before.
const FIRST_ATTEMPTS: &str = sql! {"
    SELECT a.id FROM unnest($2::bigint[]) AS n(id)
     CROSS JOIN LATERAL (
         SELECT id, locked_by, status, attempt, forgiven FROM task_runs WHERE id = n.id OFFSET 0) r
     CROSS JOIN LATERAL (
         SELECT id FROM task_attempts WHERE run_id = r.id AND outcome <> 'released'
          ORDER BY run_id, attempt LIMIT 1) a
     WHERE {waiting:r} AND r.attempt = r.forgiven AND r.attempt > 0"};

/// The attempts of the runs that have an outcome.
const ATTEMPTS_OF_OUTCOMES: &str = "UNION ALL SELECT o.id FROM task_attempts o WHERE o.run_id = ANY($8::bigint[])";

/// The output of a run. `$8`: the runs of outcomes and reports.
const OUTPUT: &str = "
    CASE WHEN (t.status = 'succeeded' OR t.status = 'dead' OR t.status = 'cancelled' OR t.status = 'skipped') AND t.id <> ALL($8::bigint[]) THEN NULL
         ELSE t.output END";

/// As [`OUTPUT`], of all runs. The statement keeps its parameters.
const ANY_OUTPUT: &str = "CASE WHEN $8::bigint[] IS NULL THEN NULL ELSE t.output END";

/// The newest record of the stall of an owner. `$7` as above.
const STALLS: (&str, &str) = (
    "scheduler_events",
    "WHERE t.kind = 'owner_stalled' AND EXISTS (
         SELECT 1 FROM scheduler_instances i
          WHERE i.id = ANY($7::text[]) AND t.at >= i.seen_at AND starts_with(t.detail, i.id || ': '))",
);

/// As [`STALLS`], without a stalled owner. The statement keeps its parameters.
const NO_STALLS: (&str, &str) = ("scheduler_events", "WHERE $7::text[] IS NULL AND t.id = 0");

impl TurnReach {
    pub(super) fn read(&mut self, bench: &mut Sheets) -> Result<(), Fault> {
        if !self.effects.is_empty() {
            bench.read("task_effects", "WHERE t.run_id = ANY ($1)", &[&self.effects])?;
        }
        let statement = format!("{IDS},\n       {}", bench.numbers());
        let found = bench.server.query(
            &statement,
            &[
                &self.now,
                &self.owner,
                &self.handlers,
                &self.runs,
                &self.dead,
                &self.own,
                &self.due,
                &self.unplanned,
                &self.expiring,
                &self.claimable,
                &self.full,
                &self.swept_key,
                &self.swept_task,
                &self.sweep,
                &self.planless_after,
                &self.planless,
                &self.room,
                &self.misplanned,
                &self.stalled,
                &self.derived,
                &self.more_keys,
            ],
        )?;
        let row = &found[0];
        let (runs, tasks): (Vec<i64>, Vec<i64>) = (row.try_get(0)?, row.try_get(1)?);
        let keys: Vec<String> = row.try_get(2)?;
        bench.take_numbers(row, 3)?;
        self.keys = keys.iter().cloned().collect();

        let owners: Vec<&String> = [&self.owner].into_iter().chain(&self.dead).chain(&self.stalled).collect();
        let mut parts = ROWS.to_vec();
        let of_outcomes = if self.attempts { ATTEMPTS_OF_OUTCOMES } else { "" };
        let attempts = format!("WHERE t.id = ANY(ARRAY({FIRST_ATTEMPTS} {of_outcomes}))");
        parts.push(("task_attempts", &attempts));
        parts.push(if self.stalled.is_empty() { NO_STALLS } else { STALLS });
        let output = (("task_runs", "output"), if self.outputs { ANY_OUTPUT } else { OUTPUT });
        let (handlers, room, stalled, named) = (&self.handlers, &self.room, &self.stalled, &self.runs);
        bench.read_together(
            &parts,
            Some(output),
            false,
            &[&tasks, &runs, &owners, &self.full, handlers, room, stalled, named, &keys, &self.now],
        )
    }

    /// Which run starts, or may start, depends on the runs of its key.
    pub(super) fn was_enough(&mut self, differences: &[Difference<'_>]) -> bool {
        let mut enough = true;
        for difference in differences {
            match difference.table().name {
                "task_runs" => {
                    let is_ended = |status: &Cell| matches!(status, Cell::Text(status) if matches!(&**status, "succeeded" | "dead" | "cancelled" | "skipped"));
                    if !self.outputs && difference.changes(["status"]).any(|([before], _)| is_ended(before)) {
                        (self.outputs, enough) = (true, false);
                    }
                    let unread = unread_keys(difference, &self.keys);
                    enough &= unread.is_empty();
                    self.more_keys.extend(unread);
                }
                // An outcome would be superseded: the attempts may show that it is stored already.
                "task_attempts" if !self.attempts && difference.adds("outcome", "superseded") => {
                    (self.attempts, enough) = (true, false);
                }
                _ => {}
            }
        }
        enough
    }
}
