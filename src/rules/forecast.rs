//! Forecasts the occurrences of a stored task, or of one that may be added. Opens and writes nothing.

use serde::Serialize;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::new_task::NewTask;
use crate::model::run::{Origin, RunStatus};
use crate::model::task::{Definition, Task};
use crate::rules::resolve::{self, Next, Plan, Rest, Span, Step, Unfinished};
use crate::schedule::{ClockNote, Schedule, Schedules, Windows, Zone};

/// A future occurrence. Its JSON is that of `duly next --json`: `{"scheduled_for", "local", "note", "skipped"}`.
///
/// ```
/// use duly::{ClockNote, NewTask};
/// let nightly = NewTask::cron("nightly", "30 2 * * *").time_zone("Europe/Rome").handler("work");
/// let upcoming = nightly.upcoming("2027-03-28T00:00:00Z".parse()?, 1)?.remove(0);
/// assert_eq!((upcoming.local.as_str(), upcoming.note), ("2027-03-28T03:00:00+02:00", Some(ClockNote::AfterGap)));
/// # Ok::<(), duly::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Upcoming {
    /// The instant.
    #[serde(rename = "scheduled_for")]
    pub at: Timestamp,
    /// The instant as local time of the task's zone: `2027-03-14T03:00:00-04:00`.
    pub local: String,
    /// Whether the clock skips its local time, or shows it twice.
    pub note: Option<ClockNote>,
    /// Why it will be skipped: `only_between`, `only_on` or `except_on` of the task excludes it.
    pub skipped: Option<String>,
}

/// The projected result of consecutive occurrences.
///
/// ```
/// use duly::{NewTask, Origin};
/// let hourly = NewTask::cron("hourly", "0 * * * *").handler("work");
/// let outage = hourly.outage("2027-03-14T00:30:00Z".parse()?, "2027-03-14T03:30:00Z".parse()?)?;
/// let late = outage.projections.last().ok_or("nothing was due")?;
/// assert_eq!((late.origin, late.count, late.first), (Origin::CatchUp, 1, "2027-03-14T03:00:00Z".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Projection {
    /// `Queued` for those that would run, `Missed`, `Skipped`, or `Cancelled` where a newer one takes their place.
    pub status: RunStatus,
    /// `Schedule`, or `CatchUp` for one that would run late.
    pub origin: Origin,
    /// The oldest of them.
    pub first: Timestamp,
    /// The newest of them.
    pub last: Timestamp,
    /// Number of occurrences.
    pub count: u64,
    /// Whether `count` is exact. If not, it is a lower bound.
    pub exact: bool,
    /// Why they would be skipped, if `only_between`, `only_on` or `except_on` of the task excludes them.
    pub reason: Option<String>,
}

/// The projected effect of a period in which no scheduler runs.
///
/// ```
/// use duly::NewTask;
/// let yearly = NewTask::cron("yearly", "0 0 1 1 *").handler("work");
/// let outage = yearly.outage("2027-03-14T00:00:00Z".parse()?, "2027-03-15T00:00:00Z".parse()?)?;
/// // Nothing is due in the period.
/// assert!(outage.projections.is_empty() && outage.next == Some("2028-01-01T00:00:00Z".parse()?));
/// # Ok::<(), duly::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outage {
    /// Results of the occurrences that fall due in the period, oldest first.
    pub projections: Vec<Projection>,
    /// When the task would be due next.
    pub next: Option<Timestamp>,
}

impl NewTask {
    /// Returns the first occurrences, at most `limit`, that the task would have if it were added at `now`. Of a delay only
    /// the first is known. Needs no database.
    ///
    /// ```
    /// use duly::NewTask;
    /// let leap = NewTask::cron("leap-day", "0 12 29 2 *").time_zone("Europe/Rome").handler("work");
    /// let ahead = leap.occurrences("2027-03-14T12:00:00Z".parse()?, 2)?;
    /// assert_eq!(ahead, ["2028-02-29T11:00:00Z".parse()?, "2032-02-29T11:00:00Z".parse()?]);
    /// # Ok::<(), duly::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::add`](crate::Client::add), but for [`Error::TaskDiffers`].
    pub fn occurrences(&self, now: Timestamp, limit: usize) -> Result<Vec<Timestamp>> {
        Ok(self.upcoming(now, limit)?.into_iter().map(|upcoming| upcoming.at).collect())
    }

    /// Returns the same occurrences as [`NewTask::occurrences`], with local times and clock changes.
    ///
    /// ```
    /// use duly::{ClockNote, NewTask};
    /// let late = NewTask::cron("late", "0,30 2 * * *").time_zone("America/New_York").handler("work");
    /// let ahead = late.upcoming("2027-03-13T12:00:00Z".parse()?, 2)?;
    /// assert_eq!((&*ahead[0].local, ahead[0].note), ("2027-03-14T03:00:00-04:00", Some(ClockNote::AfterGap)));
    /// assert_eq!((&*ahead[1].local, ahead[1].note), ("2027-03-15T02:00:00-04:00", None));
    /// # Ok::<(), duly::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`NewTask::occurrences`].
    pub fn upcoming(&self, now: Timestamp, limit: usize) -> Result<Vec<Upcoming>> {
        let task = self.clone().into_definition(now)?;
        let schedule = task.check(now, &mut Schedules::default())?;
        let plan = Plan::new(&task, schedule, now, None, now);
        match resolve::first(&plan, false) {
            Next::At(first) => {
                resolve::check_any_is_open(&plan, first)?;
                noted(&task, &plan, from(&plan, first, limit))
            }
            Next::AfterTheRun | Next::OnRequest => Ok(Vec::new()),
            Next::Never => Err(Error::never(task.schedule_value)),
        }
    }

    /// Projects what would happen to the occurrences if no scheduler ran from `since` until `until`, and no run of the task
    /// was unfinished at `until`.
    ///
    /// ```
    /// use duly::{NewTask, RunStatus};
    /// let hourly = NewTask::cron("hourly", "0 * * * *").handler("work");
    /// let outage = hourly.outage("2027-03-14T12:30:00Z".parse()?, "2027-03-14T17:10:00Z".parse()?)?;
    /// let projections: Vec<_> = outage.projections.iter().map(|projection| (projection.status, projection.count)).collect();
    /// assert_eq!(projections, [(RunStatus::Missed, 4), (RunStatus::Queued, 1)]);
    /// # Ok::<(), duly::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`NewTask::occurrences`].
    pub fn outage(&self, since: Timestamp, until: Timestamp) -> Result<Outage> {
        let task = self.clone().into_definition(since)?;
        let schedule = task.check(since, &mut Schedules::default())?;
        let plan = Plan::new(&task, schedule, since, None, since);
        let first = resolve::first(&plan, false);
        Ok(outage(plan, first, until))
    }
}

impl Task {
    /// Returns the occurrences of the schedule after an instant, at most `limit`, whatever the status of the task. Of a
    /// delay only the next is known, and none while a run of the task is unfinished.
    ///
    /// ```
    /// use duly::{Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// let client = Client::open(home.path().join("agent.db"))?;
    /// client.add(NewTask::cron("nightly", "30 2 * * *").time_zone("Europe/Rome").handler("work"))?;
    /// client.pause("nightly")?;
    /// let task = client.task("nightly")?.ok_or("no such task")?;
    /// // In the night of the change to summer time, 02:30 does not exist; the status of the task makes no difference.
    /// let nights = task.occurrences("2027-03-27T12:00:00Z".parse()?, 2)?;
    /// assert_eq!(nights, ["2027-03-28T01:00:00Z".parse()?, "2027-03-29T00:30:00Z".parse()?]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidSchedule`] or [`Error::InvalidTask`] if the task was written by SQL and is not valid.
    pub fn occurrences(&self, after: Timestamp, limit: usize) -> Result<Vec<Timestamp>> {
        Ok(self.upcoming(after, limit)?.into_iter().map(|upcoming| upcoming.at).collect())
    }

    /// Returns the same occurrences as [`Task::occurrences`], with local times and clock changes.
    ///
    /// # Errors
    /// As [`Task::occurrences`].
    pub fn upcoming(&self, after: Timestamp, limit: usize) -> Result<Vec<Upcoming>> {
        let schedule = self.definition.check(self.created_at, &mut Schedules::default())?;
        let delay = matches!(schedule, Schedule::Delay(_));
        let plan = Plan::new(&self.definition, schedule, after, None, after);
        let ahead = if delay {
            self.next_run.into_iter().filter(|next| *next > after).take(limit).collect()
        } else {
            resolve::occurrence_after(&plan, after).map_or_else(Vec::new, |first| from(&plan, first, limit))
        };
        noted(&self.definition, &plan, ahead)
    }

    /// Returns the future occurrences of the task in its current state, at most `limit`: `next_run` and those after it.
    /// Empty if `next_run` is `None`: the task is paused or completed, waits for its own run, or has not been planned by a
    /// scheduler.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::NewTask;
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let mut stepper = Stepper::builder(&file, "2027-03-14T12:00:00Z".parse()?).accept("work").start()?;
    /// stepper.client().add(NewTask::cron("digest", "0 13 * * *").handler("work"))?;
    /// // A scheduler plans it.
    /// stepper.step()?;
    /// let ahead = |client: &duly::Client| client.task("digest")?.map_or(Ok(Vec::new()), |task| task.ahead(5));
    /// assert_eq!(ahead(stepper.client())?[0].at, "2027-03-14T13:00:00Z".parse()?);
    /// stepper.client().pause("digest")?;
    /// assert!(ahead(stepper.client())?.is_empty(), "a paused task has no future, but its schedule has occurrences");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Task::occurrences`].
    pub fn ahead(&self, limit: usize) -> Result<Vec<Upcoming>> {
        let schedule = self.definition.check(self.created_at, &mut Schedules::default())?;
        let plan = Plan::new(&self.definition, schedule, self.created_at, self.resolved_until, self.active_since);
        let ahead = self.next_run.map_or_else(Vec::new, |first| from(&plan, first, limit));
        noted(&self.definition, &plan, ahead)
    }

    /// Returns in words what was understood of a calendar interval or a cron expression; `None` for other schedules, for one that is not
    /// valid, and for a cron expression that a few words cannot say.
    #[doc(hidden)]
    pub fn understood(&self) -> Option<String> {
        Some(format!("{}, in the time zone {}", self.schedule_words()?, self.definition.time_zone))
    }

    /// As [`Task::understood`], without the zone.
    pub(crate) fn schedule_words(&self) -> Option<String> {
        self.definition.check(self.created_at, &mut Schedules::default()).ok()?.words()
    }

    /// Projects what would happen to the occurrences if no scheduler ran from `since` until `until`, and no run of the task
    /// was unfinished at `until`.
    ///
    /// # Errors
    /// As [`Task::occurrences`].
    pub fn outage(&self, since: Timestamp, until: Timestamp) -> Result<Outage> {
        let schedule = self.definition.check(self.created_at, &mut Schedules::default())?;
        // An occurrence that was resolved by `since` is not due again, and a delay that has started does not start again.
        let resolved_until = self.resolved_until.filter(|resolved| *resolved <= since);
        let plan = Plan::new(&self.definition, schedule, since, resolved_until, since);
        let first = match (&plan.schedule, self.next_run) {
            (Schedule::Delay(_), Some(next)) => Next::At(next),
            _ => resolve::first(&plan, false),
        };
        Ok(outage(plan, first, until))
    }
}

fn noted(task: &Definition, plan: &Plan, ahead: Vec<Timestamp>) -> Result<Vec<Upcoming>> {
    let zone = Zone::named(&task.time_zone)?;
    let skipped = |at| plan.windows.as_ref().and_then(|windows| Some(windows.reason(plan.closed(at)?)));
    let note = |at| match plan.schedule {
        // Of a local time that the clock shows twice, the text means one.
        Schedule::Once(_) => zone.pass(at),
        _ => plan.schedule.note(at),
    };
    let noted = |at| Upcoming { at, local: zone.text_at(at), note: note(at), skipped: skipped(at) };
    Ok(ahead.into_iter().map(noted).collect())
}

/// Most turns that a projection simulates. The last turn projects all that is still due as one span.
const TURNS: usize = 50;

fn outage(plan: Plan, first: Next, until: Timestamp) -> Outage {
    let mut projections = Vec::new();
    let mut waiting = Vec::new();
    let mut due = match first {
        Next::At(next) => Some(next),
        _ => None,
    };
    let mut plan = plan;
    for turn in 1..=TURNS {
        let Some(next_run) = due.filter(|next| *next <= until) else { break };
        plan.next_run = next_run;
        let rest = if turn < TURNS { Rest::Later } else { Rest::Cut };
        let resolution = resolve::resolve(&plan, &waiting, until, rest);
        let steps = resolution.steps.into_iter();
        steps.for_each(|step| project(step, plan.windows.as_deref(), &mut projections, &mut waiting));
        plan.resolved_until = resolution.resolved_until;
        due = match resolution.next {
            Next::At(next) => Some(next),
            _ => None,
        };
    }
    Outage { projections, next: due }
}

/// Adds the result of a step. `waiting`: the runs that this step and those before it open.
fn project(step: Step, windows: Option<&Windows>, projections: &mut Vec<Projection>, waiting: &mut Vec<Unfinished>) {
    let projection = |status, span: Span| {
        let Span { first, last, count, exact } = span;
        Projection { status, origin: Origin::Schedule, first, last, count, exact, reason: None }
    };
    match step {
        Step::Open { scheduled_for: at, origin } => {
            let one = projection(RunStatus::Queued, Span { first: at, last: at, count: 1, exact: true });
            projections.push(Projection { origin, ..one });
            waiting.push(Unfinished { id: 0, origin, status: RunStatus::Queued, scheduled_for: at });
        }
        Step::Skip(span) | Step::Close(span, _) | Step::Limit(span) => {
            let reason = match (step, windows) {
                (Step::Close(_, closed), Some(windows)) => Some(windows.reason(closed)),
                _ => None,
            };
            match projections.last_mut() {
                // As in the table, where the row of the previous turn grows.
                Some(last) if last.status == RunStatus::Skipped && last.reason == reason => {
                    (last.last, last.count) = (span.last, last.count + span.count);
                }
                _ => projections.push(Projection { reason, ..projection(RunStatus::Skipped, span) }),
            }
        }
        Step::Miss(span) | Step::Cut(span) => projections.push(projection(RunStatus::Missed, span)),
        Step::CancelWaiting => {
            let queued = projections.iter_mut().filter(|projection| projection.status == RunStatus::Queued);
            queued.for_each(|projection| projection.status = RunStatus::Cancelled);
            waiting.clear();
        }
        Step::Stop { .. } => {}
    }
}

/// Returns `first` and the occurrences after it, at most `limit`.
fn from(plan: &Plan, first: Timestamp, limit: usize) -> Vec<Timestamp> {
    let next = |at: &Timestamp| match plan.schedule {
        Schedule::Delay(_) => None,
        _ => resolve::occurrence_after(plan, plan.resolved_until.map_or(*at, |until| until.max(*at))),
    };
    std::iter::successors(Some(first), next).take(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::task::{Misfire, Overlap};
    use std::time::Duration;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn occurrences_are_known_before_the_task_is_added() {
        let now = at("2027-03-14T12:00:00Z");
        let ahead = |task: NewTask| task.handler("work").occurrences(now, 3);
        let hour = Duration::from_secs(3600);
        let bounded = NewTask::interval("t", hour).starts_at(at("2027-03-14T18:30:00Z"));
        let two = [at("2027-03-14T18:30:00Z"), at("2027-03-14T19:30:00Z")];
        assert_eq!(ahead(bounded.ends_at(at("2027-03-14T20:00:00Z"))).unwrap(), two);
        assert_eq!(ahead(NewTask::delay("t", hour)).unwrap(), [at("2027-03-14T13:00:00Z")]);
        // A past instant is due immediately.
        let past = at("2027-03-14T11:00:00Z");
        assert_eq!(ahead(NewTask::once("t", past)).unwrap(), [past]);
        let over = NewTask::cron("t", "@daily").ends_at(now);
        let says = "invalid schedule \"@daily\": it names no occurrence from now on, within starts_at and ends_at";
        assert_eq!(ahead(over).unwrap_err().to_string(), says);
        assert!(ahead(NewTask::cron("no spaces, please", "@daily")).unwrap_err().to_string().contains("invalid name"));
    }

    #[test]
    fn a_single_time_that_the_clock_shows_twice_has_a_note() {
        let zone = Zone::named("Europe/Rome").unwrap();
        for (text, local, note) in [
            ("2027-10-31T02:30", "2027-10-31T02:30:00+02:00", Some(ClockNote::FirstPass)),
            ("2027-10-31T02:30:00+01:00", "2027-10-31T02:30:00+01:00", Some(ClockNote::SecondPass)),
            ("2027-10-31T03:00", "2027-10-31T03:00:00+01:00", None),
        ] {
            let task = NewTask::once("t", zone.instant(text).unwrap()).time_zone("Europe/Rome").handler("work");
            let upcoming = task.upcoming(at("2027-03-14T12:00:00Z"), 1).unwrap().remove(0);
            assert_eq!((upcoming.local.as_str(), upcoming.note), (local, note), "{text}");
        }
    }

    #[test]
    fn an_occurrence_at_the_end_of_an_outage_falls_due_in_it() {
        let task = NewTask::cron("t", "0 * * * *").handler("work");
        let outage = |until| task.outage(at("2027-03-14T12:30:00Z"), at(until)).unwrap();
        let due = at("2027-03-14T13:00:00Z");
        assert_eq!(outage("2027-03-14T12:59:59.999Z"), Outage { projections: Vec::new(), next: Some(due) });
        let at_its_end = outage("2027-03-14T13:00:00Z");
        let projected: Vec<_> = at_its_end.projections.iter().map(|one| (one.status, one.origin, one.first)).collect();
        assert_eq!(projected, [(RunStatus::Queued, Origin::Schedule, due)]);
        assert_eq!(at_its_end.next, Some(at("2027-03-14T14:00:00Z")));
    }

    /// Occurrences that the scheduler leaves for its next turns are not missed.
    #[test]
    fn every_occurrence_within_the_grace_is_projected() {
        let (since, until) = (at("2027-03-14T12:00:00Z"), at("2027-03-14T12:10:00Z"));
        let task = |every| NewTask::interval("t", every).misfire(Misfire::RunOnce, Duration::from_secs(3600));
        let projected = |task: NewTask| {
            let outage = task.handler("work").outage(since, until).unwrap();
            assert_eq!(outage.next, Some(at("2027-03-14T12:10:01Z")));
            let mut counts: Vec<(RunStatus, u64)> = Vec::new();
            for projection in outage.projections {
                match counts.last_mut() {
                    Some((status, count)) if *status == projection.status => *count += projection.count,
                    _ => counts.push((projection.status, projection.count)),
                }
            }
            counts
        };
        let second = Duration::from_secs(1);
        assert_eq!(projected(task(second).overlap(Overlap::Allow)), [(RunStatus::Queued, 600)]);
        let cancelled = [(RunStatus::Cancelled, 599), (RunStatus::Queued, 1)];
        assert_eq!(projected(task(second).overlap(Overlap::CancelRunning)), cancelled);
        let often = task(Duration::from_millis(20)).handler("work").outage(since, until).unwrap();
        let counts: Vec<_> =
            often.projections.iter().map(|projection| (projection.status, projection.count, projection.last)).collect();
        let first = at("2027-03-14T12:00:00.020Z");
        assert_eq!(counts, [(RunStatus::Queued, 1, first), (RunStatus::Skipped, 29_999, until)]);
    }

    /// Each row: when the scheduler is back after an outage that began on Friday at 12:30, and what becomes of what was due.
    #[test]
    fn after_an_outage_what_the_windows_exclude_is_skipped_and_the_newest_of_the_others_catches_up() {
        let task = NewTask::cron("t", "0 */4 * * *").handler("work").time_zone("Europe/Rome");
        let task = task.only_between("06:00-20:00").except_on("2027-03-13..2027-03-14");
        let brief = |one: &Projection| {
            let day = |at: Timestamp| at.to_string()[8..13].replace('T', "/");
            format!("{} {} x{} to {}", one.status, day(one.first), one.count, day(one.last))
        };
        for (until, expected) in [
            // 16:00 in Rome is 15:00 UTC.
            ("2027-03-12T15:00:30Z", &["queued 12/15 x1 to 12/15"][..]),
            ("2027-03-12T15:30:00Z", &["queued 12/15 x1 to 12/15"]),
            ("2027-03-12T19:00:00Z", &["missed 12/15 x1 to 12/15", "skipped 12/19 x1 to 12/19"]),
            (
                "2027-03-12T23:00:00Z",
                &["missed 12/15 x1 to 12/15", "skipped 12/19 x1 to 12/19", "skipped 12/23 x1 to 12/23"],
            ),
            (
                "2027-03-15T05:30:00Z",
                &[
                    "queued 12/15 x1 to 12/15",
                    "skipped 12/19 x1 to 12/19",
                    "skipped 12/23 x12 to 14/19",
                    "skipped 14/23 x2 to 15/03",
                ],
            ),
            (
                "2027-03-15T07:30:00Z",
                &[
                    "missed 12/15 x1 to 12/15",
                    "skipped 12/19 x1 to 12/19",
                    "skipped 12/23 x12 to 14/19",
                    "skipped 14/23 x2 to 15/03",
                    "queued 15/07 x1 to 15/07",
                ],
            ),
        ] {
            let found = task.outage(at("2027-03-12T12:30:00Z"), at(until)).unwrap();
            assert_eq!(found.projections.iter().map(brief).collect::<Vec<_>>(), expected, "{until}");
        }
    }

    /// One row for each reason, as in the table.
    #[test]
    fn a_skip_by_the_overlap_policy_is_projected_apart_from_those_that_the_windows_exclude() {
        let task = NewTask::cron("t", "0 * * * *").handler("work").only_between("00:00-01:00, 02:00-03:00");
        let task = task.misfire(Misfire::RunOnce, Duration::from_secs(6 * 3600));
        let found = task.outage(at("2027-03-13T23:59:59Z"), at("2027-03-14T03:45:00Z")).unwrap().projections;
        let outside = Some("outside of 00:00-01:00, 02:00-03:00 (only_between)");
        let brief =
            found.iter().map(|one| (one.first.to_string()[11..13].to_owned(), one.status, one.reason.as_deref()));
        let expected = [
            ("00", RunStatus::Queued, None),
            ("01", RunStatus::Skipped, outside),
            ("02", RunStatus::Skipped, None),
            ("03", RunStatus::Skipped, outside),
        ];
        assert_eq!(brief.collect::<Vec<_>>(), expected.map(|(hour, status, reason)| (hour.to_owned(), status, reason)));
    }
}
