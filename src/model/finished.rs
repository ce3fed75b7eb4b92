//! What passes from a worker back to the loop: how an attempt ended, what is told of it while it goes on, and that a worker ended.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Now, Timestamp};
use crate::host::attempt_slots::Place;
use crate::host::orphan::Input;
use crate::model::event::Event;
use crate::model::retry::Retry;
use crate::model::run::{Claim, FailureKind, Outcome, RunStatus};

/// An attempt that has come to an end, and is settled by the loop, unless its handler has done that.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The claim it was made under.
    pub claim: Arc<Claim>,
    /// How it ended.
    pub outcome: Outcome,
    /// When the handler was entered.
    pub started_at: Timestamp,
    /// When it returned.
    pub finished_at: Timestamp,
    /// How long that took, by the monotonic clock. `None`: it did not begin.
    pub duration: Option<Duration>,
    /// The time limit that it exceeded, of an attempt that succeeded all the same.
    pub late: Option<Duration>,
    /// The remark of its handler, of an attempt that succeeded. An error includes it.
    pub remark: Option<String>,
    /// What it printed, of a command.
    pub output: Option<String>,
    /// What it exited with, of a command.
    pub exit_code: Option<i32>,
    /// What it last said of its progress.
    pub progress: Option<String>,
    /// The slot that says that it began; `None` if it did not.
    pub(crate) slot: Option<Place>,
    /// The file of its command's input.
    pub(crate) input: Option<Input>,
    /// Set if the handler committed this end together with rows of its own.
    pub(crate) recorded: Option<Recorded>,
}

/// What the loop is to tell of an end that is written down already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) error: Option<String>,
    pub(crate) next_due: Option<Timestamp>,
}

impl Finished {
    /// An attempt that printed nothing.
    pub(crate) fn new(claim: Arc<Claim>, outcome: Outcome, began: Now, ended: Now) -> Self {
        // No table takes the time of a clock that has lost its battery.
        let (started_at, finished_at) = (began.wall.max(Timestamp::MIN), ended.wall.max(Timestamp::MIN));
        let took = ended.monotonic.saturating_sub(began.monotonic);
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
            recorded,
        }
    }

    /// Its end is written down: the input of its command is needed no more.
    pub(crate) fn is_written(&self) {
        self.input.iter().for_each(Input::remove);
    }

    /// The same attempt, if it exceeded this time limit. A success remains one, since what it did is done; an error becomes a
    /// timeout, and what it says about another attempt still holds.
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

    /// The same attempt, with a remark of its handler.
    pub(crate) fn remarking(mut self, remark: Option<String>) -> Self {
        match (&mut self.outcome, remark) {
            (Outcome::Failed { error, .. }, Some(remark)) => *error = format!("{error}; {remark}"),
            (_, remark) => self.remark = remark,
        }
        self
    }

    /// What is recorded with a success: that it exceeded its time limit, and the remark of its handler.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let late = self.late.map(|limit| format!("it ended late: {}", longer_than(limit)));
        late.into_iter().chain(self.remark.clone()).collect()
    }
}

fn longer_than(limit: Duration) -> String {
    format!("it took longer than {}", humantime::format_duration(limit))
}

/// Sorts ends: those that are still to be settled join the others; the others are answered, each with its run, its slot and the
/// event to emit.
pub(crate) fn told(finished: Vec<Finished>, unsettled: &mut VecDeque<Finished>) -> Vec<(i64, Option<Place>, Event)> {
    let mut events = Vec::new();
    for mut finished in finished {
        let Some(Recorded { error, next_due }) = finished.recorded.take() else {
            unsettled.push_back(finished);
            continue;
        };
        let took = finished.duration.unwrap_or_default();
        let (claim, status, next_attempt) = (finished.claim, RunStatus::Succeeded, None);
        events.push((
            claim.run_id,
            finished.slot,
            Event::Finished { claim, status, error, took, next_attempt, next_due },
        ));
    }
    events
}

/// A worker thread that ended by a panic outside of every handler.
#[derive(Debug)]
pub(crate) struct WorkerEnded {
    /// What it carried out, if it did.
    pub(crate) at_work: AtWork,
    /// The message of the panic.
    pub(crate) error: String,
    /// Whether another worker has its place already, since the handler held it for too long.
    pub(crate) replaced: bool,
}

/// The attempt that a worker carries out.
#[derive(Debug, Default)]
pub(crate) struct AtWork {
    pub(crate) claim: Option<Arc<Claim>>,
    /// When it began, and the slot that says that it did.
    pub(crate) began: Option<(Now, Place)>,
}

impl WorkerEnded {
    /// The failed attempt, to be settled.
    pub(crate) fn finished(&self, now: Now) -> Option<Finished> {
        let claim = self.at_work.claim.clone()?;
        let error = format!("the worker ended before the attempt did: {}", self.error);
        let outcome = Outcome::Failed { how: FailureKind::Panicked, error, retry: Retry::Backoff };
        let began = self.at_work.began.map_or(now, |(began, _)| began);
        Some(Finished { slot: self.at_work.began.map(|(_, slot)| slot), ..Finished::new(claim, outcome, began, now) })
    }
}

/// What a worker tells of an attempt that goes on.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) run: i64,
    pub(crate) attempt: u32,
    pub(crate) told: ReportKind,
}

/// What it tells.
#[derive(Clone, Debug)]
pub(crate) enum ReportKind {
    /// The record of its command's process.
    Process(String),
    /// How far it has come.
    Progress(String),
    /// When it began, of an attempt that was claimed before a worker was free for it.
    Began(Timestamp),
}

impl Report {
    /// Joins those that wait to be written. Of what is said of one run's progress the newest is enough.
    pub(crate) fn join(self, others: &mut Vec<Report>) {
        let progress = |report: &Report| matches!(report.told, ReportKind::Progress(_));
        others.retain(|other| other.run != self.run || !progress(other) || !progress(&self));
        others.push(self);
    }
}
