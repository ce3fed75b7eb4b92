//! The runs and their attempts: which moves a row may make, and who may make them.

use std::time::Duration;

use duly::{AttemptOutcome, Origin, Outcome, Overlap, Retry, RunStatus};

use crate::simulation::history::{Check, Deed, History, Owner, Step, Turn};
use crate::simulation::observer::Kept;
use crate::simulation::rows::{RunRow, Tables};

/// What an attempt must have come to.
struct End {
    status: RunStatus,
    forgiven: bool,
    /// Of one that failed: between which instants it is tried again.
    again: Option<(i64, i64)>,
    /// What is kept of the attempt.
    kept: Option<&'static str>,
    /// It succeeded after its time limit.
    late: bool,
    /// How long it took, if that is known.
    took: Option<i64>,
}

impl History {
    pub(crate) fn check_arrows(&mut self, step: &Step<'_>, monotonic: Duration) -> Check {
        let (mut kept, mut gone) = (Vec::new(), Vec::new());
        for (before, after) in &step.changed {
            match (before, after) {
                (Some(before), Some(after)) => self.check_move(step, before, after, monotonic, &mut kept)?,
                (None, Some(after)) => check_new(step, after)?,
                (Some(run), None) if step.after.tasks.contains_key(&run.task) => {
                    gone.push((*run, self.end_of_gone(step, run, monotonic)?));
                }
                _ => {}
            }
        }
        if step.turn().is_some_and(|turn| turn.draining) {
            check_draining(step)?;
        }
        self.check_gone(step, &gone, monotonic)?;
        self.check_settled(step, &mut kept)?;
        self.check_kept(step, kept)?;
        if let Some(turn) = step.turn() {
            self.check_claims(step, turn)?;
        }
        self.check_dead(step, &gone)?;
        self.check_expiry(step)?;
        if let Some(turn) = step.turn() {
            self.check_leases(step, turn)?;
            let owner = &mut self.owners[turn.owner];
            if let Some(lease) = lease_of(&owner.name, step.after) {
                owner.leases.entry(lease).or_insert(monotonic);
            }
        }
        Ok(())
    }

    /// An owner that can write is believed for a while yet: it extends its leases long before they end.
    fn check_leases(&self, step: &Step<'_>, turn: &Turn) -> Check {
        let Owner { name, lease, .. } = &self.owners[turn.owner];
        let lease = lease.as_millis() as i64;
        let mut held = step.after.unfinished().filter(|run| run.owner.as_ref() == Some(name));
        let is_short = |run: &&RunRow| run.lease.is_none_or(|until| until < step.now + lease / 4);
        match held.find(|run| !turn.refused && is_short(run)) {
            Some(run) => Err(format!("owner {} leaves the lease of run {} as it was: {run:?}", turn.owner, run.id)),
            None => Ok(()),
        }
    }

    fn check_move(
        &mut self,
        step: &Step<'_>,
        before: &RunRow,
        after: &RunRow,
        monotonic: Duration,
        kept: &mut Vec<Kept>,
    ) -> Check {
        let id = after.id;
        let fixed =
            |run: &RunRow| (run.task, run.scheduled_for, run.origin, run.retry_of, run.priority, run.key.clone());
        let is_same = fixed(before) == fixed(after) && self.may_expire_at(step, before, after);
        if !is_same || after.forgiven < before.forgiven {
            return Err(format!("run {id} became another: {before:?} -> {after:?}"));
        }
        if before.status.is_final() {
            return check_growth(step, before, after);
        }
        let mut from = before.status;
        let mut forgiven = before.forgiven;
        let mut took = before.duration;
        if from == RunStatus::Running && (after.status != RunStatus::Running || after.attempt != before.attempt) {
            let end = self.end(step, before, monotonic)?;
            from = end.status;
            forgiven += u32::from(end.forgiven);
            took = end.took;
            if end.forgiven {
                *self.forgiven.entry(id).or_default() += 1;
            }
            if let Some((soonest, latest)) = end.again.filter(|_| after.status == RunStatus::Failed)
                && !(soonest..=latest).contains(&after.run_at)
            {
                return Err(format!("run {id} is tried again at {}, expected {soonest} to {latest}", after.run_at));
            }
            if after.status == RunStatus::Succeeded && after.error.is_some() != end.late {
                return Err(format!("run {id} succeeded, late: {}; its row says {:?}", end.late, after.error));
            }
            kept.extend(end.kept.map(|outcome| (id, before.attempt, outcome.to_owned(), end.took)));
        }
        // By the monotonic clock of this world, whatever the other one did.
        let took = took.filter(|_| after.status != RunStatus::Running);
        if after.duration != took {
            return Err(format!("run {id} took {:?} ms, expected {took:?}", after.duration));
        }
        if after.forgiven != forgiven {
            return Err(format!("run {id} has {} forgiven attempts, expected {forgiven}", after.forgiven));
        }
        let is_turn = step.turn().is_some();
        if before.status == RunStatus::Failed && after.status == before.status && after.attempt == before.attempt {
            check_wait(step, before, after)?;
        }
        let allowed = match (from, after.status) {
            (was, is) if was == is && was != RunStatus::Running => after.attempt == before.attempt,
            (RunStatus::Running, RunStatus::Running) => after.attempt == before.attempt,
            (RunStatus::Queued | RunStatus::Failed, RunStatus::Running) => {
                is_turn && after.attempt == before.attempt + 1
            }
            (RunStatus::Queued | RunStatus::Failed, RunStatus::Cancelled) => {
                matches!(step.deed, Deed::Cancelled(_)) || before.cancel_requested || step.overtakes(after)
            }
            (RunStatus::Queued, RunStatus::Missed) => {
                is_turn
                    && after.counted() == 0
                    && after.expires_at.is_some_and(|at| at <= step.now)
                    && !self.is_new_request(step, before)
            }
            _ => false,
        };
        if !allowed {
            return Err(format!(
                "run {id} went from {} to {} (attempt {} to {}), which no arrow allows here",
                from, after.status, before.attempt, after.attempt
            ));
        }
        Ok(())
    }

    /// How a run stood that was removed: a turn may have ended it before.
    fn end_of_gone(&mut self, step: &Step<'_>, run: &RunRow, monotonic: Duration) -> Check<RunStatus> {
        match run.status {
            RunStatus::Running => match self.end(step, run, monotonic)?.status {
                // Cut short, and overtaken at once by what was opened behind it.
                RunStatus::Queued | RunStatus::Failed if step.overtakes(run) => Ok(RunStatus::Cancelled),
                status => Ok(status),
            },
            RunStatus::Queued if run.expires_at.is_some_and(|at| at <= step.now) => Ok(RunStatus::Missed),
            RunStatus::Queued | RunStatus::Failed if run.cancel_requested || step.overtakes(run) => {
                Ok(RunStatus::Cancelled)
            }
            status => Ok(status),
        }
    }

    /// What the attempt that has left `running` must have come to: what its handler returned, or its owner's death.
    fn end(&mut self, step: &Step<'_>, before: &RunRow, monotonic: Duration) -> Check<End> {
        let (id, number) = (before.id, before.attempt);
        let Some(ender) = step.ender(id, number) else {
            return Err(format!("run {id} left running without a turn of anybody"));
        };
        let task = step.after.tasks.get(&before.task).expect("a task");
        let attempt = self.attempts.get_mut(&(id, number)).expect("an attempt that was handed out");
        let (outcome, policy, late, took, returned) = match &attempt.outcome {
            Some(outcome) if attempt.owner == ender => {
                (Some(outcome.clone()), attempt.policy, attempt.is_late(), attempt.millis(), attempt.returned)
            }
            _ => {
                let owner = &self.owners[attempt.owner];
                let written = lease_of(&owner.name, step.before).and_then(|lease| owner.leases.get(&lease));
                let stood_still = monotonic.saturating_sub(written.copied().unwrap_or(monotonic));
                // The larger of what both go by.
                let lease = owner.lease.max(self.owners[ender].lease);
                if owner.lives && !owner.lock.exists() && stood_still > lease {
                    attempt.robbed = true;
                } else if owner.lives {
                    return Err(format!(
                        "run {id} was taken from owner {}, which lives and has not finished attempt {number}",
                        attempt.owner
                    ));
                }
                if attempt.began.is_some() && self.hidden.contains(&(id, number)) {
                    return Err(format!("run {id} was recovered, and its command may be at work"));
                }
                // No worker had begun it, and the slots in the lock file say so.
                let released = attempt.began.is_none() && !owner.lives && owner.left_its_lock;
                (released.then_some(Outcome::Released), (task.max_attempts, task.backoff, task.cap), false, None, None)
            }
        };
        if step.turn().is_none() {
            self.open.remove(&(id, number));
        }
        // What was counted here, not what the row says.
        let counted = number - self.forgiven.get(&id).copied().unwrap_or_default();
        // What its task resolves when it comes to rest may ask it to stop, in the same turn and before it is looked at.
        let overtaken = step.overtakes(before) && step.after.runs.get(&id).is_some_and(|run| run.cancel_requested);
        let asked = before.cancel_requested || overtaken;
        // The wait counts from the end of the attempt, or from when a clock that was set back since shows less.
        let ended = returned.map_or(step.now, |returned| returned.min(step.now));
        Ok(End { late, took, ..end_of(outcome.as_ref(), asked, counted, policy, ended) })
    }

    /// Every outcome that was delivered before a turn that could write is written by it.
    fn check_settled(&mut self, step: &Step<'_>, kept: &mut Vec<Kept>) -> Check {
        let Some(turn) = step.turn().filter(|turn| !turn.refused) else { return Ok(()) };
        let name = self.owners[turn.owner].name.clone();
        let delivered = |key: &(i64, u32)| {
            let attempt = &self.attempts[key];
            attempt.owner == turn.owner && attempt.outcome.is_some()
        };
        let delivered: Vec<_> = self.open.iter().copied().filter(delivered).collect();
        for (id, number) in delivered {
            let holds = |run: &RunRow| {
                run.status == RunStatus::Running && run.attempt == number && run.owner.as_deref() == Some(&*name)
            };
            let left = step.after.runs.get(&id).is_some_and(|run| holds(run));
            if left && self.was_stuck(id) {
                continue;
            }
            if left {
                return Err(format!("attempt {number} of run {id} has ended, and a turn left it as it was"));
            }
            self.open.remove(&(id, number));
            match step.before.runs.get(&id) {
                Some(run) if holds(run) => {
                    let attempt = &self.attempts[&(id, number)];
                    let Some(after) = step.after.runs.get(&id) else { continue };
                    if let Some(Outcome::Succeeded { result }) = &attempt.outcome
                        && (after.status != RunStatus::Succeeded || after.result != *result)
                    {
                        return Err(format!("run {id} succeeded with {result:?}; its row says {after:?}"));
                    }
                }
                Some(_) => {
                    let took = self.attempts[&(id, number)].millis();
                    kept.push((id, number, "superseded".to_owned(), took));
                }
                None => {
                    let told = |(kind, run, _): &(String, Option<i64>, _)| kind == "late_outcome" && *run == Some(id);
                    if !step.news.events.iter().any(told) {
                        return Err(format!("run {id} is gone, and the late end of attempt {number} was not told"));
                    }
                }
            }
        }
        Ok(())
    }

    /// The attempts that are kept are those that did not simply succeed, once each.
    fn check_kept(&self, step: &Step<'_>, mut kept: Vec<Kept>) -> Check {
        let mut found = step.news.attempts.clone();
        found.retain(|(run, ..)| step.after.runs.contains_key(run));
        kept.retain(|(run, ..)| step.after.runs.contains_key(run));
        found.sort();
        kept.sort();
        if found == kept { Ok(()) } else { Err(format!("attempts kept: {found:?}, expected {kept:?}")) }
    }
}

impl Step<'_> {
    /// Whether a newer occurrence may take the place of a run that waits.
    fn overtakes(&self, run: &RunRow) -> bool {
        let policy =
            |tables: &Tables| tables.tasks.get(&run.task).is_some_and(|task| task.overlap == Overlap::CancelRunning);
        run.is_scheduled() && (policy(self.before) || policy(self.after))
    }
}

/// A retry keeps its time. If a clock that was wrong has counted it, it waits as long from now.
fn check_wait(step: &Step<'_>, before: &RunRow, after: &RunRow) -> Check {
    let ended = before.finished_at.filter(|ended| step.rewound() && *ended > step.now && before.run_at > step.now);
    let expected = match ended {
        Some(ended) if before.run_at >= ended => step.now + before.run_at - ended,
        // A second wrong clock has counted from an end by the first.
        Some(_) => before.run_at.min(step.now + step.before.tasks[&before.task].cap),
        None => before.run_at,
    };
    if after.run_at == expected {
        return Ok(());
    }
    Err(format!("the retry of run {} moved from {} to {}, expected {expected}", before.id, before.run_at, after.run_at))
}

/// A draining owner opens nothing but what follows from a death, and leaves what waits as it is. A death may pause its task, which
/// resolves what was due of it.
fn check_draining(step: &Step<'_>) -> Check {
    let rests = |tables: &Tables, task| tables.tasks.get(&task).is_some_and(|row| row.status == "paused");
    let paused = |task| rests(step.after, task) && !rests(step.before, task);
    for pair in &step.changed {
        let taken_on = match pair {
            (None, Some(after)) => after.origin != Origin::OnDead && !paused(after.task),
            (Some(before), Some(after)) => {
                before.status != RunStatus::Running && before.status != after.status && !paused(after.task)
            }
            _ => false,
        };
        if taken_on {
            return Err(format!("a draining owner has taken this on: {pair:?}"));
        }
    }
    Ok(())
}

/// The newest value of an owner's lease.
fn lease_of(owner: &str, tables: &Tables) -> Option<i64> {
    tables.unfinished().filter(|run| run.owner.as_deref() == Some(owner)).filter_map(|run| run.lease).max()
}

fn end_of(outcome: Option<&Outcome>, asked: bool, counted: u32, policy: (u32, i64, i64), now: i64) -> End {
    let (most, backoff, cap) = policy;
    let end = |status, kept| End { status, forgiven: false, again: None, kept, late: false, took: None };
    let (how, retry) = match outcome {
        Some(Outcome::Succeeded { .. }) => return end(RunStatus::Succeeded, None),
        Some(Outcome::Released) => {
            let status = if asked { RunStatus::Cancelled } else { RunStatus::Queued };
            return End { forgiven: true, ..end(status, Some("released")) };
        }
        Some(Outcome::Failed { how, retry, .. }) => (AttemptOutcome::from(*how), *retry),
        _ => (AttemptOutcome::Lost, Retry::Backoff),
    };
    if asked {
        let kept = if how == AttemptOutcome::Failed { "cancelled" } else { how.as_str() };
        return end(RunStatus::Cancelled, Some(kept));
    }
    let kept = Some(how.as_str());
    if retry == Retry::Interrupted && most > 1 {
        return End { forgiven: true, again: Some((now, now)), ..end(RunStatus::Failed, kept) };
    }
    if retry == Retry::GiveUp || counted >= most {
        return end(RunStatus::Dead, kept);
    }
    let full = backoff.saturating_mul(1 << (counted - 1).min(30)).min(cap);
    let (soonest, latest) = match retry {
        Retry::After(wait) => {
            let wait = i64::try_from(wait.as_millis()).expect("a wait");
            (wait, wait)
        }
        _ => (full / 2, full),
    };
    End { again: Some((now + soonest.max(1), now + latest.max(1))), ..end(RunStatus::Failed, kept) }
}

fn check_new(step: &Step<'_>, run: &RunRow) -> Check {
    let attempts = u32::from(run.status == RunStatus::Running);
    let status = match run.status {
        RunStatus::Running => step.turn().is_some(),
        RunStatus::Queued | RunStatus::Skipped | RunStatus::Missed => true,
        // Opened, and overtaken in the same resolution.
        RunStatus::Cancelled => [step.before, step.after]
            .iter()
            .any(|tables| tables.tasks.get(&run.task).is_some_and(|task| task.overlap == Overlap::CancelRunning)),
        _ => false,
    };
    if !status || run.attempt != attempts || run.forgiven != 0 {
        return Err(format!("run {} is new, and stands so: {run:?}", run.id));
    }
    check_opened(step, run)
}

/// A run is opened with what its task says of key, urgency and time.
fn check_opened(step: &Step<'_>, run: &RunRow) -> Check {
    // What an edit resolves it resolves by what was said before.
    let task = step.before.tasks.get(&run.task).or_else(|| step.after.tasks.get(&run.task));
    let passed_over = matches!(run.status, RunStatus::Skipped | RunStatus::Missed) && run.expires_at.is_none();
    let Some(task) = task.filter(|_| !passed_over) else { return Ok(()) };
    let own = || (task.overlap != Overlap::Allow).then(|| format!("#{}", task.id));
    let key = task.key.clone().or_else(own);
    let jitter = if run.is_scheduled() { task.jitter } else { 0 };
    let starts = run.scheduled_for..=run.scheduled_for + jitter;
    if run.key == key && run.priority == task.priority && starts.contains(&run.run_at) {
        return Ok(());
    }
    Err(format!("run {} is opened otherwise than its task says: {run:?}\n  {task:?}", run.id))
}

/// A final row changes in one way: the newest row of skips grows.
fn check_growth(step: &Step<'_>, before: &RunRow, after: &RunRow) -> Check {
    let grown =
        RunRow { occurrences: after.occurrences, last: after.last, finished_at: after.finished_at, ..before.clone() };
    let newer =
        |run: &RunRow| run.task == before.task && run.is_scheduled() && run.scheduled_for > before.scheduled_for;
    let newest = !step.before.runs.values().any(|run| newer(run));
    if before.status == RunStatus::Skipped
        && grown == *after
        && after.occurrences > before.occurrences
        && after.newest() > before.newest()
        && newest
    {
        return Ok(());
    }
    Err(format!("run {} was final, and changed: {before:?} -> {after:?}", before.id))
}
