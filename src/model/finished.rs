//! Messages from a worker to the loop: a finished attempt, a report of a running one, and the end of a worker thread.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Now, Timestamp};
use crate::host::attempt_slots::Place;
use crate::host::orphan::Input;
use crate::model::event::Event;
use crate::model::retry::Retry;
use crate::model::run::{Claim, FailureKind, Outcome, RunStatus};

/// A finished attempt. The loop stores its outcome, unless its handler has done so with `finish`.
///
/// ```
/// use duly::testing::Stepper;
/// use duly::{Context, NewTask, Outcome};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// let work = |run: &Context| {
///     run.wait_cancelled(std::time::Duration::from_secs(5));
///     Ok::<_, duly::Error>("sent")
/// };
/// let mut stepper = Stepper::builder(&file, noon).handler("mail", work).start()?;
/// stepper.client().add(NewTask::once("mail", noon).handler("mail").timeout(std::time::Duration::from_secs(2)))?;
/// let finished = &stepper.run_until_idle(std::time::Duration::from_secs(60))?[0];
/// // It succeeded, later than its time limit.
/// assert_eq!(finished.outcome, Outcome::Succeeded { result: Some(r#""sent""#.into()) });
/// assert_eq!(finished.late, Some(std::time::Duration::from_secs(2)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The claim of the attempt.
    pub claim: Arc<Claim>,
    /// How it ended.
    pub outcome: Outcome,
    /// When the handler was called.
    pub started_at: Timestamp,
    /// When it returned.
    pub finished_at: Timestamp,
    /// How long the attempt took, by the monotonic clock. `None`: it did not begin.
    pub duration: Option<Duration>,
    /// The time limit that an attempt exceeded which succeeded anyway.
    pub late: Option<Duration>,
    /// The remark of the handler, for an attempt that succeeded. An error includes the remark.
    pub remark: Option<String>,
    /// The output of a command.
    pub output: Option<String>,
    /// The exit code of a command.
    pub exit_code: Option<i32>,
    /// The last reported progress.
    pub progress: Option<String>,
    /// The slot of the lock file that records its begin; `None` if it did not begin.
    pub(crate) slot: Option<Place>,
    /// The input file of its command.
    pub(crate) input: Option<Input>,
    /// What is still to be stored of its effects, before its outcome.
    pub(crate) effects: Vec<EffectEnd>,
    /// Set if the handler committed the outcome together with its own rows.
    pub(crate) recorded: Option<Recorded>,
    /// Whether the end of its run is stored, and only what follows from it is not.
    pub(crate) stored: bool,
    /// Why nothing was started, if that was for want of resources: then it is [`Outcome::Released`].
    pub(crate) not_started: Option<String>,
    /// Whether the attempt was cut short, as its handler says or because a shutdown had asked it to stop.
    pub(crate) is_interrupted: bool,
}

/// What became of an effect: its value as JSON, or `None` if it was not performed. Then its intent is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EffectEnd {
    pub(crate) key: String,
    pub(crate) value: Option<String>,
}

/// What the loop reports of an outcome that the handler has stored already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) error: Option<String>,
    pub(crate) next_due: Option<Timestamp>,
}

impl Finished {
    /// Returns a finished attempt without output, remark or progress.
    pub(crate) fn new(claim: Arc<Claim>, outcome: Outcome, began: Now, ended: Now) -> Self {
        // A clock without a battery may show 1970, which no table accepts.
        let (started_at, finished_at) = (began.wall.max(Timestamp::MIN), ended.wall.max(Timestamp::MIN));
        let took = ended.monotonic.saturating_sub(began.monotonic);
        let (outcome, not_started) = match outcome {
            Outcome::Failed { error, retry: Retry::NotStarted, .. } => (Outcome::Released, Some(error)),
            outcome => (outcome, None),
        };
        let is_interrupted = matches!(outcome, Outcome::Failed { retry: Retry::Interrupted, .. });
        let duration = (outcome != Outcome::Released).then_some(took);
        let (late, remark, output, exit_code, progress) = (None, None, None, None, None);
        let (input, slot, recorded) = (None, None, None);
        Finished {
            claim,
            outcome,
            started_at,
            finished_at,
            duration,
            late,
            remark,
            output,
            exit_code,
            progress,
            input,
            slot,
            effects: Vec::new(),
            recorded,
            stored: false,
            not_started,
            is_interrupted,
        }
    }

    /// Records that a shutdown, or the end of its lease, had asked the attempt to stop before it ended. An error is then an
    /// interruption, unless its handler has decided what follows: to give up, to cancel or to snooze.
    pub(crate) fn asked_by_shutdown(mut self) -> Self {
        if let Outcome::Failed { how: FailureKind::Failed, retry: Retry::Backoff | Retry::After(_), .. } = self.outcome
        {
            self.is_interrupted = true;
        }
        self
    }

    /// Removes the input file of its command. Call it after the outcome is stored.
    pub(crate) fn remove_input(&self) {
        self.input.iter().for_each(Input::remove);
    }

    /// Records that the attempt exceeded this time limit, if one is given. A success stays a success, since its work is
    /// done; an error becomes a timeout, and keeps its retry advice.
    pub(crate) fn exceeding(mut self, limit: Option<Duration>) -> Self {
        let Some(limit) = limit else { return self };
        match &mut self.outcome {
            Outcome::Succeeded { .. } => self.late = Some(limit),
            Outcome::Failed { how: how @ FailureKind::Failed, error, .. } => {
                *how = FailureKind::TimedOut;
                *error = format!("{}: {error}", longer_than(limit));
            }
            Outcome::Failed { .. } | Outcome::Released => {}
        }
        self
    }

    /// Adds the remark of the handler.
    pub(crate) fn with_remark(mut self, remark: Option<String>) -> Self {
        match (&mut self.outcome, remark) {
            (Outcome::Failed { error, .. }, Some(remark)) => *error = format!("{error}; {remark}"),
            (_, remark) => self.remark = remark,
        }
        self
    }

    /// Returns the remarks to store with a success: that it exceeded its time limit, and the remark of its handler.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let late = self.late.map(|limit| format!("it ended late: {}", longer_than(limit)));
        late.into_iter().chain(self.remark.clone()).collect()
    }
}

fn longer_than(limit: Duration) -> String {
    format!("it took longer than {}", humantime::format_duration(limit))
}

/// Moves the attempts without a stored outcome to `unsettled`. For each of the others, returns its claim, its slot and
/// the event to emit.
pub(crate) fn split_recorded(
    finished: Vec<Finished>,
    unsettled: &mut VecDeque<Finished>,
) -> Vec<(Arc<Claim>, Option<Place>, Event)> {
    let mut events = Vec::new();
    for mut finished in finished {
        let Some(Recorded { error, next_due }) = finished.recorded.take() else {
            unsettled.push_back(finished);
            continue;
        };
        let took = finished.duration.unwrap_or_default();
        let (claim, status, next_attempt) = (finished.claim, RunStatus::Succeeded, None);
        events.push((
            claim.clone(),
            finished.slot,
            Event::Finished { claim, status, error, took, next_attempt, next_due },
        ));
    }
    events
}

/// A worker thread that ended by a panic outside of every handler.
#[derive(Debug)]
pub(crate) struct WorkerEnded {
    /// The attempt that it executed, if any.
    pub(crate) at_work: AtWork,
    /// The message of the panic.
    pub(crate) error: String,
    /// Whether another worker has already replaced it, since its handler exceeded the time limit.
    pub(crate) replaced: bool,
}

/// The attempt that a worker executes.
#[derive(Debug, Default)]
pub(crate) struct AtWork {
    pub(crate) claim: Option<Arc<Claim>>,
    /// When it began, and the slot that records it.
    pub(crate) began: Option<(Now, Place)>,
}

impl WorkerEnded {
    /// Returns the failed attempt, to be stored.
    pub(crate) fn finished(&self, now: Now) -> Option<Finished> {
        let claim = self.at_work.claim.clone()?;
        let error = format!("the worker ended before the attempt did: {}", self.error);
        let outcome = Outcome::Failed { how: FailureKind::Panicked, error, retry: Retry::Backoff };
        let began = self.at_work.began.map_or(now, |(began, _)| began);
        Some(Finished { slot: self.at_work.began.map(|(_, slot)| slot), ..Finished::new(claim, outcome, began, now) })
    }
}

/// A report of a worker about a running attempt.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) run: i64,
    pub(crate) attempt: u32,
    /// See [`Claim::owner`].
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) kind: ReportKind,
}

/// The content of a [`Report`].
#[derive(Clone, Debug)]
pub(crate) enum ReportKind {
    /// The record of its command's process.
    Process(String),
    /// Its progress.
    Progress(String),
    /// What its command has printed.
    Output(String),
    /// When it began, for an attempt that was claimed before a worker was free for it.
    Began(Timestamp),
}

impl Report {
    /// Adds the report to those that wait to be stored. Of the progress and the output of a run, the newest waits.
    pub(crate) fn join(self, others: &mut Vec<Report>) {
        if matches!(self.kind, ReportKind::Progress(_) | ReportKind::Output(_)) {
            let kind = mem::discriminant(&self.kind);
            others.retain(|other| other.run != self.run || mem::discriminant(&other.kind) != kind);
        }
        others.push(self);
    }
}
