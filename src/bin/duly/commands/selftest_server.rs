//! `selftest` of a database on a server: the session that duly gets there.

use std::path::Path;
use std::time::Duration;

use duly::text::database_name::shown;
use duly::{Client, ServerReport, duration_text};
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::commands::selftest::print_checks;
use crate::output::printer::Printer;
use crate::output::units::count_of;
use crate::selftest::report::{Check, Verdict};

/// A round trip that takes longer slows all hosts together: a turn holds the lock of the schema for several.
const SLOW: Duration = Duration::from_millis(10);
/// A difference of the clocks from which on a user is confused by times of other programs.
const APART: i64 = 1000;

#[derive(Serialize)]
struct Document<'a> {
    trusted: bool,
    checks: &'a [Check],
    #[serde(flatten)]
    report: &'a ServerReport,
}

/// Examines the session, and writes nothing.
pub(crate) fn selftest_server(db: &Path, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let report = Client::open_existing(db)?.examine_server()?;
    let checks = checks(&report);
    let bad: Vec<&Check> = checks.iter().filter(|check| check.verdict == Verdict::Bad).collect();
    if printer.json {
        printer.document(&Document { trusted: bad.is_empty(), checks: &checks, report: &report })?;
    } else {
        print_checks(&checks, printer)?;
    }
    match bad.first() {
        Some(first) => {
            let (count, all, advice) = (bad.len(), checks.len(), first.advice.unwrap_or_default());
            let reason = format!("{} is not ready for duly, {count} of {all} checks failed: {advice}", shown(db));
            Err(Failure::Unsuccessful(reason))
        }
        None => {
            let notes = match checks.iter().filter(|check| check.verdict == Verdict::Odd).count() {
                0 => String::new(),
                notes => format!("; read the {} above", count_of(notes, "note")),
            };
            let scope = "Its disk is tested where the server is, not from here";
            Ok(printer.say(format!("This server is ready for duly{notes}. {scope}."))?)
        }
    }
}

fn checks(report: &ServerReport) -> Vec<Check> {
    let version = format!("PostgreSQL {}, schema {}, as role {}", report.version, report.schema, report.role);
    let mut all = vec![Check::good("server", version)];
    all.push(if report.pooled {
        let advice = "clients may use a pooler; for duly run name the address of PostgreSQL itself";
        Check::bad("session", "a pooler such as pgbouncer is before the server, and shares sessions", advice)
    } else {
        Check::good("session", "a session of its own, whose settings and locks last")
    });
    all.push(if report.locks {
        Check::good("locks", "a second session waits for the lock of the first, and has it when that ends")
    } else {
        Check::bad(
            "locks",
            "two sessions had one advisory lock",
            "schedulers would run tasks twice: use another server",
        )
    });
    all.push(if report.synchronous_commit == "off" || !report.fsync {
        let found = format!("synchronous_commit is {}, fsync is {}", report.synchronous_commit, on_off(report.fsync));
        Check::bad(
            "commits",
            found,
            "a crash of the server could lose commits, and runs would start again: set both on",
        )
    } else {
        Check::good("commits", format!("they last: synchronous_commit is {}, fsync is on", report.synchronous_commit))
    });
    let (ahead, apart) =
        (report.clock_ahead_ms, duration_text(Duration::from_millis(report.clock_ahead_ms.unsigned_abs())));
    all.push(if ahead.abs() < APART {
        Check::good("time", format!("the clock of the server and of this host differ by {ahead} ms"))
    } else {
        let word = if ahead > 0 { "ahead of" } else { "behind" };
        let advice = "duly works by the server's; correct the wrong one, or times in other programs mislead";
        Check::odd("time", format!("the clock of the server is {apart} {word} that of this host"), advice)
    });
    let round_trip = Duration::from_micros(report.round_trip_us);
    let trip =
        format!("{:.2} ms for a round trip, the median of {}", round_trip.as_secs_f64() * 1000.0, report.round_trips);
    all.push(if round_trip < SLOW {
        Check::good("latency", trip)
    } else {
        Check::odd(
            "latency",
            trip,
            "run schedulers near the server: its lock is held for several round trips of a turn",
        )
    });
    all.push(if report.missing.is_empty() {
        Check::good("permissions", "the role may do all that schedulers and clients do")
    } else {
        let found = format!("missing: {}. {}", report.missing.join(", "), report.grants.join("; "));
        Check::bad(
            "permissions",
            found,
            "grant what a scheduler needs; docs/postgres.md has blocks for clients and monitors",
        )
    });
    let free = report.max_connections.saturating_sub(report.connections);
    let found = format!("{} of {} in use", report.connections, report.max_connections);
    all.push(if free < 10 {
        Check::odd(
            "connections",
            found,
            "raise max_connections: a scheduler needs up to one for each worker and five more",
        )
    } else {
        Check::good("connections", found)
    });
    all
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}
