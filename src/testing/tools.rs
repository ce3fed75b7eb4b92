//! What tests of tasks need beside the [`Stepper`](crate::testing::Stepper): handlers that fail, and local times.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::NaiveDateTime;

use crate::clock::Timestamp;
use crate::error::{BoxError, Error, Result};
use crate::schedule::Zone;
use crate::worker::handler::{Context, Handler};

/// How far ahead a change of the clock is looked for.
const CHANGES_WITHIN: Duration = Duration::from_secs(2 * 366 * 86_400);

/// Returns a handler whose first `times` attempts fail, whatever their run, and which then calls `handler`.
///
/// ```
/// use duly::testing::{Stepper, fail_first};
/// use duly::{Context, Error, NewTask, RunStatus};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let noon = "2027-03-14T12:00:00Z".parse()?;
/// let work = fail_first(5, |_: &Context| Ok::<_, Error>(()));
/// let mut stepper = Stepper::builder(&file, noon).handler("post", work).start()?;
/// stepper.client().add(NewTask::once("post", noon).handler("post"))?;
/// stepper.run_until_idle(std::time::Duration::from_secs(86_400))?;
/// let run = &stepper.client().history("post", 1)?[0];
/// assert_eq!((run.status, run.error.as_deref()), (RunStatus::Dead, Some("failure 5 of 5, for a test")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn fail_first(times: u32, handler: impl Handler) -> impl Handler {
    FailFirst { times, attempts: AtomicU64::new(0), handler }
}

struct FailFirst<H> {
    times: u32,
    attempts: AtomicU64,
    handler: H,
}

impl<H: Handler> Handler for FailFirst<H> {
    fn run(&self, context: &Context) -> Result<Option<String>, BoxError> {
        let before = self.attempts.fetch_add(1, Ordering::SeqCst);
        if before >= u64::from(self.times) {
            return self.handler.run(context);
        }
        Err(format!("failure {} of {}, for a test", before + 1, self.times).into())
    }

    fn default_timeout(&self) -> Option<Duration> {
        self.handler.default_timeout()
    }
}

/// Returns the instant at which a clock in the zone shows a local time such as `2027-03-28 01:30:00`: of a repeated local time
/// the first, of a skipped one the first instant after the gap.
///
/// ```
/// use duly::testing::local_time;
/// assert_eq!(local_time("2027-03-28 01:30:00", "Europe/Rome")?, "2027-03-28T00:30:00Z".parse()?);
/// assert_eq!(local_time("2027-03-28 02:30:00", "Europe/Rome")?, "2027-03-28T01:00:00Z".parse()?, "skipped");
/// assert_eq!(local_time("2027-10-31 02:30:00", "Europe/Rome")?, "2027-10-31T00:30:00Z".parse()?, "the first pass");
/// # Ok::<(), duly::Error>(())
/// ```
///
/// # Errors
/// If the text is no local time, or the zone is unknown.
pub fn local_time(text: &str, zone: &str) -> Result<Timestamp> {
    let local = NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S").map_err(|error| Error::InvalidTime {
        text: text.to_owned(),
        reason: format!("expected a local time as in 2027-03-28 01:30:00: {error}"),
    })?;
    Ok(Zone::named(zone)?.first_showing(local))
}

/// Returns the first instant after `at` at which the clock of the zone is changed, as for daylight saving: the first instant with
/// the new offset. `None` if there is none within two years.
///
/// ```
/// use duly::testing::clock_change_after;
/// let spring = clock_change_after("2027-01-01T00:00:00Z".parse()?, "Europe/Rome")?.expect("daylight saving");
/// assert_eq!(duly::Zone::named("Europe/Rome")?.text_at(spring), "2027-03-28T03:00:00+02:00");
/// assert_eq!(clock_change_after(spring, "UTC")?, None);
/// # Ok::<(), duly::Error>(())
/// ```
///
/// # Errors
/// If the zone is unknown.
pub fn clock_change_after(at: Timestamp, zone: &str) -> Result<Option<Timestamp>> {
    Ok(Zone::named(zone)?.next_change(at, at.plus(CHANGES_WITHIN)))
}
