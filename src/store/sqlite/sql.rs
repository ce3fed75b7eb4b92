//! The conditions and expressions that many statements share, most of them word by word with an index: each is defined here
//! once, and `sql!` writes it into a statement at compile time.
//!
//! SQLite uses a partial index only for a statement whose WHERE holds the terms of the index's condition.

use crate::model::task_columns::task_columns;

/// The columns of a task, as `row` numbers them.
macro_rules! selected {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $default:expr =>
        [$($(#[$attribute:meta])* $column:ident: $of:ty $(= .$part:ident)?),+];)+) => {
        concat!(
            ".id", $($(", .", stringify!($column),)+)+ ", .status, .next_run, .planned, .resolved_until, .active_since, .last_run, \
             .last_finished, .last_status, .last_duration_ms, .last_error, .failure_count, .invalid_reason, .paused_by, \
             .created_at, .updated_at"
        )
    };
}

/// Name and text. `{name}` in a statement stands for the text, `{name:r}` for the text of the table alias `r`, which is written
/// where the text has a dot. If its comment names an index, it is the condition of that index, or a column of it.
pub(crate) const SHARED: [(&str, &str); 34] = [
    // task_runs_unfinished: runs that are not final. A run has an owner exactly while it is running, by a CHECK: NULL or not is
    // cheaper to evaluate than three comparisons of texts, at each start and each end of a run. Grouped so that the index also
    // serves a statement with {waiting}.
    ("unfinished", "(.locked_by IS NOT NULL OR (.status = 'queued' OR .status = 'failed'))"),
    // task_runs_waiting: runs that wait for their first or next attempt.
    ("waiting", ".locked_by IS NULL AND (.status = 'queued' OR .status = 'failed')"),
    // task_runs_claimable: waiting runs that nothing blocks.
    ("claimable", ".locked_by IS NULL AND (.status = 'queued' OR .status = 'failed') AND .blocked IS NULL"),
    // task_runs_one_per_occurrence, task_runs_unfinished: 0 for a scheduled run, which its occurrence identifies; else the id.
    ("unscheduled_id", "(iif(.origin = 'schedule' OR .origin = 'catch_up', 0, .id))"),
    // The same in PostgreSQL.
    ("unscheduled_case", "(CASE WHEN .origin = 'schedule' OR .origin = 'catch_up' THEN 0 ELSE .id END)"),
    // scheduled_tasks_due: active tasks whose next_run stands.
    ("active_planned", ".status = 'active' AND .planned = 1"),
    // scheduled_tasks_zoned: tasks that may have a local time.
    (
        "zoned",
        ".time_zone <> 'UTC' AND (.schedule_type = 'cron' OR .schedule_type = 'calendar' OR .schedule_type = 'once')",
    ),
    // The time zones of these tasks, for a recursive `used (zone)`. After the last one follows a NULL.
    (
        "zones_in_use",
        "SELECT min(time_zone) FROM scheduled_tasks WHERE time_zone <> 'UTC' AND (schedule_type = 'cron' OR schedule_type = 'calendar' OR schedule_type = 'once') \
          UNION ALL \
         SELECT (SELECT min(time_zone) FROM scheduled_tasks \
                  WHERE time_zone <> 'UTC' AND (schedule_type = 'cron' OR schedule_type = 'calendar' OR schedule_type = 'once') AND time_zone > zone) \
           FROM used WHERE zone IS NOT NULL",
    ),
    // How far rows are planned again that a wrong clock had planned, in PostgreSQL; no row if there is no mark, or if it cannot be read.
    (
        "clock_mark",
        "SELECT split_part(value, ' ', 1)::bigint AS since, split_part(value, ' ', 2)::bigint AS task, \
                split_part(value, ' ', 3)::bigint AS task_of_run, split_part(value, ' ', 4)::bigint AS unscheduled, \
                split_part(value, ' ', 5)::bigint AS scheduled_for \
           FROM scheduler_meta \
          WHERE key = 'clock_mark' AND value ~ '^-?[0-9]+ -?[0-9]+ -?[0-9]+ -?[0-9]+ -?[0-9]+$' AND value !~ repeat('[0-9]', 19)",
    ),
    // In PostgreSQL, the first successes of a task after a run that has these columns. In the order of the index: the server would read the
    // whole table to find that a task with many runs has not succeeded since.
    (
        "successes",
        "(SELECT id FROM task_runs \
           WHERE task_id = .task_id AND (CASE WHEN origin = 'schedule' OR origin = 'catch_up' THEN 0 ELSE id END) = 0 \
             AND scheduled_for > coalesce(.scheduled_for, 0) AND status = 'succeeded' AND id > .id \
           ORDER BY scheduled_for LIMIT 1) \
          UNION ALL \
         (SELECT id FROM task_runs \
           WHERE task_id = .task_id AND (CASE WHEN origin = 'schedule' OR origin = 'catch_up' THEN 0 ELSE id END) > .id \
             AND status = 'succeeded' \
           ORDER BY (CASE WHEN origin = 'schedule' OR origin = 'catch_up' THEN 0 ELSE id END) LIMIT 1)",
    ),
    // In PostgreSQL, a success of an earlier occurrence that waited: it began after those of the row that has these columns.
    (
        "late_success",
        "(SELECT id \
            FROM (SELECT id, status, started_at FROM task_runs \
                   WHERE task_id = .task_id AND (CASE WHEN origin = 'schedule' OR origin = 'catch_up' THEN 0 ELSE id END) = 0 \
                     AND scheduled_for < coalesce(.scheduled_for, 0) \
                   ORDER BY scheduled_for DESC LIMIT 200) w \
           WHERE status = 'succeeded' \
             AND started_at > (SELECT coalesce(last_scheduled_for, scheduled_for) FROM task_runs WHERE id = .id) \
           LIMIT 1)",
    ),
    // In PostgreSQL, the first starts of a task after a run that has these columns.
    (
        "later_starts",
        "(SELECT id FROM task_runs \
           WHERE task_id = .task_id AND (CASE WHEN origin = 'schedule' OR origin = 'catch_up' THEN 0 ELSE id END) = 0 \
             AND scheduled_for > coalesce(.scheduled_for, 0) AND attempt > 0 \
           ORDER BY scheduled_for LIMIT 1) \
          UNION ALL \
         (SELECT id FROM task_runs \
           WHERE task_id = .task_id AND (CASE WHEN origin = 'schedule' OR origin = 'catch_up' THEN 0 ELSE id END) > .id \
             AND attempt > 0 \
           ORDER BY (CASE WHEN origin = 'schedule' OR origin = 'catch_up' THEN 0 ELSE id END) LIMIT 1)",
    ),
    // Most scheduled runs of a task that wait at once (catch_up_limit).
    ("most_waiting", "200"),
    // scheduled_tasks_followed: tasks that others follow, apart from on_dead.
    ("followed", "(.on_success IS NOT NULL OR .on_end IS NOT NULL OR .on_missed IS NOT NULL)"),
    // Tasks whose next_run depends on zone data.
    (
        "local_time",
        ".time_zone <> 'UTC' AND (.schedule_type = 'cron' OR .schedule_type = 'calendar' \
             OR (.schedule_type = 'once' AND .schedule_value NOT GLOB '*[Zz]' \
                 AND .schedule_value NOT GLOB '*[+-][0-9][0-9]:[0-9][0-9]'))",
    ),
    // Tasks that no source declares: added by hand, or by an actor.
    ("undeclared", "(.managed_by IS NULL OR .managed_by LIKE 'mcp:%')"),
    // Tasks that an actor has paused.
    ("paused_by_an_actor", ".paused_by LIKE 'mcp:%'"),
    // All names of tasks that follow a task.
    (
        "followers",
        "coalesce(.on_dead, '') || ',' || coalesce(.on_success, '') || ',' || coalesce(.on_end, '') || ',' \
         || coalesce(.on_missed, '')",
    ),
    // The fencing condition: this attempt of this owner is the running one.
    ("fenced", ".id = :run AND .locked_by = :owner AND .attempt = :attempt AND .status = 'running'"),
    // What `row` reads a task, a run, an attempt and an effect from.
    ("task_columns", task_columns!(selected)),
    (
        "run_columns",
        ".id, .handler, .scheduled_for, .origin, .retry_of, .request_key, .status, .run_at, .expires_at, .blocked, \
         .attempt, .forgiven, .interrupted, .priority, .concurrency_key, .payload, .locked_by, .locked_until, \
         .started_at, .finished_at, .duration_ms, .error, .exit_code, .output, .result, .progress, .cancel_requested, \
         .occurrences, .last_scheduled_for",
    ),
    (
        "attempt_columns",
        ".run_id, .attempt, .outcome, .error, .output, .exit_code, .locked_by, .started_at, .finished_at, \
         .duration_ms",
    ),
    ("effect_columns", ".key, .run_id, .state, .value, .created_at, .done_at"),
    // Most runs of one handler that may start behind a key at one time, and most scheduled runs that a resolution reads.
    ("window", "32"),
    ("looked_at", "400"),
    // How many of the first unfinished runs of a task are looked at to find keys.
    ("front", "50"),
    // How many runs of a task a turn cancels that SQL has requested to stop.
    ("asked", "200"),
    // Of how many marked tasks one turn derives runs.
    ("marks", "32"),
    // Of how many time zones one turn plans tasks again.
    ("zone_marks", "8"),
    // Of how many time zones the rules are compared: there are some 600 names.
    ("zones", "800"),
    // How many keys and tasks one turn opens that had no start left.
    ("openings", "64"),
    // In PostgreSQL, how many starts of a task a time may have; NULL if its text cannot be read.
    (
        "max_starts",
        "(CASE WHEN .max_starts ~ '^[0-9]{1,5} *[/]' THEN btrim(split_part(.max_starts, '/', 1))::bigint END)",
    ),
    // How many tasks and runs that a wrong clock had planned one turn looks at.
    ("misplanned", "250"),
    // Numbers of starts from here on are refused by a CHECK, and ignored.
    ("most_starts", "9000000000000000"),
];

/// Replaces the placeholders of a statement, or of one in a file beside the caller: `sql!(file "due.sql")`. An unknown placeholder does
/// not compile.
macro_rules! sql {
    (file $file:literal) => {
        sql! { (include_str!($file)) }
    };
    ($statement:literal) => {
        sql! { ($statement) }
    };
    (($statement:expr)) => {{
        use crate::store::sqlite::sql::expand;
        const STATEMENT: &str = $statement;
        const LENGTH: usize = expand(STATEMENT, &mut []);
        const BYTES: [u8; LENGTH] = {
            let mut bytes = [0; LENGTH];
            expand(STATEMENT, &mut bytes);
            bytes
        };
        match std::str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => panic!("a placeholder is not ASCII"),
        }
    }};
}
pub(crate) use sql;

/// Writes the text of a statement to `into` as far as it fits, and returns its length. Panics at an unknown placeholder.
pub(crate) const fn expand(statement: &str, into: &mut [u8]) -> usize {
    let mut rest = statement.as_bytes();
    let mut length = 0;
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte == b'{' {
            let Some((placeholder, after)) = split(after, b'}') else { panic!("a placeholder without its end") };
            rest = after;
            let (name, alias) = match split(placeholder, b':') {
                Some((name, alias)) => (name, alias),
                None => (placeholder, placeholder.split_at(0).0),
            };
            length = put_shared(text_of(name), alias, into, length);
        } else {
            length = put(*byte, into, length);
        }
    }
    length
}

const fn put_shared(mut text: &[u8], alias: &[u8], into: &mut [u8], mut length: usize) -> usize {
    while let [byte, after @ ..] = text {
        text = after;
        if *byte != b'.' {
            length = put(*byte, into, length);
        } else if !alias.is_empty() {
            let mut rest = alias;
            while let [byte, after @ ..] = rest {
                rest = after;
                length = put(*byte, into, length);
            }
            length = put(b'.', into, length);
        }
    }
    length
}

const fn put(byte: u8, into: &mut [u8], at: usize) -> usize {
    if at < into.len() {
        into[at] = byte;
    }
    at + 1
}

/// Returns the text before and after the first `separator`.
const fn split(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let mut at = 0;
    while at < text.len() {
        if text[at] == separator {
            return Some((text.split_at(at).0, text.split_at(at + 1).1));
        }
        at += 1;
    }
    None
}

const fn text_of(name: &[u8]) -> &'static [u8] {
    let mut at = 0;
    while at < SHARED.len() {
        let (known, text) = SHARED[at];
        if equal(known.as_bytes(), name) {
            return text.as_bytes();
        }
        at += 1;
    }
    panic!("a placeholder that store/sqlite/sql.rs does not define")
}

/// Returns a number of the list.
pub(crate) const fn number(name: &str) -> i64 {
    let mut digits = text_of(name.as_bytes());
    let mut number = 0;
    while let [digit, after @ ..] = digits {
        number = number * 10 + (*digit - b'0') as i64;
        digits = after;
    }
    number
}

const fn equal(mut one: &[u8], mut other: &[u8]) -> bool {
    while let ([a, rest_of_one @ ..], [b, rest_of_other @ ..]) = (one, other) {
        if *a != *b {
            return false;
        }
        (one, other) = (rest_of_one, rest_of_other);
    }
    one.is_empty() && other.is_empty()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{SHARED, number};

    fn files(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension().and_then(|of| of.to_str()) {
                _ if path.is_dir() => files(&path, found),
                Some("rs" | "sql") if !path.ends_with("sql.rs") => found.push(path),
                _ => {}
            }
        }
    }

    /// A copy of a condition would stay as it is when the condition changes.
    #[test]
    fn no_statement_repeats_what_is_defined_here() {
        let store = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store");
        let mut sources = Vec::new();
        files(&store, &mut sources);
        assert!(sources.iter().filter(|path| path.extension().is_some_and(|of| of == "sql")).count() >= 5);
        for path in sources.iter().filter(|path| !path.to_str().unwrap().ends_with("tests.rs")) {
            let source = std::fs::read_to_string(path).unwrap();
            // Whatever the alias and the breaks of lines are.
            let words: Vec<&str> = source.split_whitespace().collect();
            let words = words.join(" ");
            for (name, text) in SHARED.into_iter().filter(|(_, text)| text.len() > 20 || text.ends_with("000")) {
                let aliases = ["", "r.", "t.", "n.", "s.", "o.", "w.", "f."];
                let found = aliases.iter().find(|alias| words.contains(&text.replace('.', alias)));
                assert!(found.is_none(), "{}: {name}", path.display());
            }
        }
        assert_eq!((number("window"), number("most_starts")), (32, 9_000_000_000_000_000));
    }
}
