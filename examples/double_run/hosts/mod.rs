//! The bench of several hosts on a PostgreSQL server: cron on three hosts with the usual guards, and duly, through the same days.
//!
//! The server, its locks, its sessions and the pool are real; only the time is the bench's. The hosts have sessions and threads of
//! their own, and call their guard at the same time.

/// The days and their counts.
mod day;
/// duly on such a day.
mod duly_day;
/// The guards, each by its tables and its SQL.
mod guards;
/// A day of hosts with a guard.
mod live;
/// Databases, sessions, and the pool.
mod server;
/// How the tests start a server.
#[path = "../../../tests/it/postgres/server.rs"]
mod test_server;

use std::error::Error;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use day::{Counts, Day, OCCURRENCES};
use guards::{Guard, GuardTable, Queue, SessionLock, TransactionLock, Unguarded};
use server::Server;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const INTRO: &str = "\
THE DOUBLE RUN ON SEVERAL HOSTS

A report every hour, twelve times a day. Cron on each host calls the guard of its row at the same
time, on a PostgreSQL server; the work takes two minutes, of the bench's clock. Started: how often the
work began. Twice: how often beside another start of the same occurrence, or after the end of one.
Lost: occurrences whose work was never completed. Each day is in a database of its own; faults are
injected at 09:00.
";

/// A guard on a day, and its expected counts: started, twice and lost.
type GuardDay = (&'static dyn Guard, Day, [usize; 3]);

const GUARDS: [GuardDay; 22] = [
    (&Unguarded, Day::OneHost, [12, 0, 0]),
    (&Unguarded, Day::Deploy, [11, 0, 1]),
    (&Unguarded, Day::Quiet, [36, 24, 0]),
    (&GuardTable, Day::Quiet, [12, 0, 0]),
    (&GuardTable, Day::Skew, [24, 12, 0]),
    (&GuardTable, Day::KilledBefore, [11, 0, 1]),
    (&SessionLock, Day::Quiet, [12, 0, 0]),
    (&SessionLock, Day::Skew, [24, 12, 0]),
    (&SessionLock, Day::PowerLost, [10, 0, 3]),
    (&SessionLock, Day::Pool, [36, 24, 0]),
    (&TransactionLock, Day::Quiet, [12, 0, 0]),
    (&TransactionLock, Day::Pool, [12, 0, 0]),
    (&TransactionLock, Day::Skew, [24, 12, 0]),
    (&TransactionLock, Day::Long, [12, 0, 1]),
    (&Queue::PUBLISHED, Day::Quiet, [12, 0, 0]),
    (&Queue::PUBLISHED, Day::Skew, [12, 0, 0]),
    (&Queue::PUBLISHED, Day::KilledBefore, [11, 0, 1]),
    (&Queue::RECLAIMING, Day::KilledBefore, [12, 0, 0]),
    (&Queue::RECLAIMING, Day::Long, [14, 2, 0]),
    (&Queue::BEATING, Day::KilledDuring, [13, 0, 0]),
    (&Queue::BEATING, Day::Long, [12, 0, 0]),
    (&Queue::BEATING, Day::Frozen, [13, 1, 0]),
];

/// The days of duly: how often it starts an occurrence, and how many attempts it records as lost.
const DULY: [(Day, [usize; 2]); 7] = [
    (Day::Quiet, [12, 0]),
    (Day::Skew, [12, 0]),
    (Day::KilledBefore, [12, 1]),
    (Day::KilledDuring, [13, 1]),
    (Day::Long, [12, 0]),
    (Day::Frozen, [12, 0]),
    (Day::SessionsEnded, [12, 0]),
];

/// The report of the bench, and whether each count is as expected.
pub(crate) struct Page {
    pub(crate) text: String,
    pub(crate) is_as_expected: bool,
}

/// A row of the table: a guard or duly, on one day.
struct Row {
    name: &'static str,
    day: Day,
    counts: Counts,
    expected: Counts,
    remark: String,
}

/// Runs all days on the server of this address, or on one of its own. `None` if PostgreSQL is not installed.
pub(crate) fn page(given: Option<String>) -> Result<Option<Page>> {
    let Some(server) = Server::find(given) else { return Ok(None) };
    let mut page = Page { text: format!("{INTRO}\n"), is_as_expected: true };
    let _ =
        writeln!(page.text, "  {:<28}{:<30}{:>4}{:>9}{:>7}{:>6}", "guard", "day", "due", "started", "twice", "lost");
    let mut above = "";
    for row in side_by_side(GUARDS.len() + DULY.len(), &|number| live(&server, number))? {
        page.row(if above == row.name { "" } else { row.name }, &row);
        above = row.name;
    }
    match duly_day::behind_a_pool(&server)? {
        Some(refusal) => {
            let _ = writeln!(page.text, "  {:<28}{:<30}refuses to start", "", Day::Pool.to_string());
            page.is_as_expected &= refusal.contains("a session of its own");
        }
        None => page
            .text
            .push_str("\npgbouncer is not installed: the pool is this program's, and hands out sessions as it does.\n"),
    }
    Ok(Some(page))
}

/// Runs the days, each in a database of its own, a few at a time.
fn side_by_side(count: usize, live: &(dyn Fn(usize) -> Result<Row> + Sync)) -> Result<Vec<Row>> {
    const THREADS: usize = 4;
    let next = AtomicUsize::new(0);
    let work = || -> Vec<(usize, Result<Row>)> {
        let numbers =
            std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take_while(|number| *number < count);
        numbers.map(|number| (number, live(number))).collect()
    };
    let mut rows: Vec<(usize, Result<Row>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    rows.sort_by_key(|(number, _)| *number);
    if rows.len() == count { rows.into_iter().map(|(_, row)| row).collect() } else { Err("a day panicked".into()) }
}

/// Runs a day: first those of the guards, then duly's.
fn live(server: &Server, number: usize) -> Result<Row> {
    let expected = |[started, twice, lost]: [usize; 3]| Counts { due: OCCURRENCES, started, twice, lost };
    if let Some((guard, day, counts)) = GUARDS.get(number) {
        let (name, day) = (guard.name(), *day);
        let journals = live::live(server, *guard, day).map_err(|error| format!("{name}, {day}: {error}"))?;
        let (counts, expected) = (Counts::of(&journals), expected(*counts));
        return Ok(Row { name, day, counts, expected, remark: String::new() });
    }
    let (day, [started, lost]) = DULY[number - GUARDS.len()];
    let lived = duly_day::live(server, day).map_err(|error| format!("duly, {day}: {error}"))?;
    let remark = match lived.recorded_as_lost {
        0 => String::new(),
        n => format!("  attempts recorded as lost: {n}"),
    };
    let counts = Counts::of(&lived.journals);
    if lived.recorded_as_lost != lost {
        return Err(format!("duly, {day}: {} attempts are recorded as lost, not {lost}", lived.recorded_as_lost).into());
    }
    Ok(Row { name: "duly", day, counts, expected: expected([started, 0, 0]), remark })
}

impl Page {
    fn row(&mut self, name: &str, row: &Row) {
        let Row { day, counts, expected, remark, .. } = row;
        let Counts { due, started, twice, lost } = counts;
        let _ =
            writeln!(self.text, "  {name:<28}{:<30}{due:>4}{started:>9}{twice:>7}{lost:>6}{remark}", day.to_string());
        if counts != expected {
            self.is_as_expected = false;
            let _ = writeln!(self.text, "  ^ expected {expected:?}");
        }
    }
}
