//! Runs and attempts: which transitions a row may make, and which owner may make them.

use std::collections::BTreeSet;
use std::time::Duration;

use duly::{AttemptOutcome, Outcome, Overlap, Retry, RunStatus};

use crate::simulation::history::{Action, Check, History, Owner, Step, Turn};
use crate::simulation::observer::Kept;
use crate::simulation::rows::{RunRow, Tables};

/// The expected end of an attempt.
struct AttemptEnd {
    status: RunStatus,
    forgiven: bool,
    /// How many interruptions of the run there are then, if that changes.
    interrupted: Option<u32>,
    /// If it failed: the earliest and latest time of its retry.
    again: Option<(i64, i64)>,
    /// The outcome that is recorded for the attempt.
    kept: Option<&'static str>,
    /// It succeeded after its time limit.
    late: bool,
    /// How long it took, if that is known.
    took: Option<i64>,
}

impl History {
    pub(crate) fn check_transitions(&mut self, step: &Step<'_>, monotonic: Duration) -> Check {
        let (mut kept, mut gone) = (Vec::new(), Vec::new());
        for (before, after) in &step.changed {
            match (before, after) {
                (Some(before), Some(after)) => self.check_transition(step, before, after, monotonic, &mut kept)?,
                (None, Some(after)) => check_new(step, after)?,
                (Some(run), None) if step.after.tasks.contains_key(&run.task) => {
                    gone.push((*run, self.status_when_removed(step, run, monotonic)?));
                }
                _ => {}
            }
        }
        if step.turn().is_some_and(|turn| turn.draining) {
            check_draining(step)?;
        }
        self.check_removed(step, &gone, monotonic)?;
        self.check_settled(step, &mut kept)?;
        self.check_kept(step, kept)?;
        if let Some(turn) = step.turn() {
            self.check_claims(step, turn)?;
        }
        self.check_dead(step, &gone)?;
        self.check_expiry(step)?;
        self.check_notices(step)?;
        if let Some(turn) = step.turn() {
            self.check_leases(step, turn)?;
            let owner = &mut self.owners[turn.owner];
            if let Some(lease) = lease_of(&owner.name, step.after) {
                owner.leases.entry(lease).or_insert(monotonic);
            }
        }
        Ok(())
    }

    /// Checks that an owner that can write extends its leases long before they expire.
    fn check_leases(&self, step: &Step<'_>, turn: &Turn) -> Check {
        let Owner { name, lease, .. } = &self.owners[turn.owner];
        let lease = lease.as_millis() as i64;
        let mut held = step.after.unfinished().filter(|run| run.owner.as_ref() == Some(name));
        let is_short = |run: &&RunRow| run.lease.is_none_or(|until| until < step.now + lease / 4);
        match held.find(|run| !turn.refused && is_short(run)) {
            Some(run) => Err(format!("owner {} does not extend the lease of run {}: {run:?}", turn.owner, run.id)),
            None => Ok(()),
        }
    }

    fn check_transition(
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
        // A forgiven attempt that has begun ends the expiry, as is checked below.
        let may_end = before.status == RunStatus::Running && after.expires_at.is_none();
        let is_same = fixed(before) == fixed(after) && (may_end || self.may_expire_at(step, before, after));
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
            let end = self.attempt_end(step, before, monotonic)?;
            from = end.status;
            forgiven += u32::from(end.forgiven);
            took = end.took;
            let is_over = end.forgiven && end.status == RunStatus::Failed;
            if before.expires_at.is_some() && after.expires_at.is_none() != is_over {
                return Err(format!("run {id} expires at {:?}: {before:?} -> {after:?}", after.expires_at));
            }
            if end.forgiven {
                *self.forgiven.entry(id).or_default() += 1;
            }
            self.interrupted.extend(end.interrupted.map(|interrupted| (id, interrupted)));
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
        // By the monotonic clock, whatever the wall clock did.
        let took = took.filter(|_| after.status != RunStatus::Running);
        if after.duration != took {
            return Err(format!("run {id} took {:?} ms, expected {took:?}", after.duration));
        }
        if after.forgiven != forgiven {
            return Err(format!("run {id} has {} forgiven attempts, expected {forgiven}", after.forgiven));
        }
        let interrupted = self.interrupted.get(&id).copied().unwrap_or_default();
        if after.interrupted != interrupted {
            return Err(format!("run {id} has {} interruptions, expected {interrupted}", after.interrupted));
        }
        let is_turn = step.turn().is_some();
        if before.status == RunStatus::Failed && after.status == before.status && after.attempt == before.attempt {
            check_retry_time(step, self.rewinding, before, after)?;
        }
        let allowed = match (from, after.status) {
            (was, is) if was == is && was != RunStatus::Running => after.attempt == before.attempt,
            (RunStatus::Running, RunStatus::Running) => after.attempt == before.attempt,
            (RunStatus::Queued | RunStatus::Failed, RunStatus::Running) => {
                is_turn && after.attempt == before.attempt + 1
            }
            (RunStatus::Queued | RunStatus::Failed, RunStatus::Cancelled) => {
                matches!(step.action, Action::Cancelled(_)) || before.cancel_requested || step.overlap_cancels(after)
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
                "run {id} went from {} to {} (attempt {} to {}), a transition that is not allowed here",
                from, after.status, before.attempt, after.attempt
            ));
        }
        Ok(())
    }

    /// Returns the last status of a deleted run: a turn may have ended it first.
    fn status_when_removed(&mut self, step: &Step<'_>, run: &RunRow, monotonic: Duration) -> Check<RunStatus> {
        match run.status {
            RunStatus::Running => match self.attempt_end(step, run, monotonic)?.status {
                // Interrupted, and cancelled at once by the newer occurrence.
                RunStatus::Queued | RunStatus::Failed if step.overlap_cancels(run) => Ok(RunStatus::Cancelled),
                status => Ok(status),
            },
            RunStatus::Queued if run.expires_at.is_some_and(|at| at <= step.now) => Ok(RunStatus::Missed),
            RunStatus::Queued | RunStatus::Failed if run.cancel_requested || step.overlap_cancels(run) => {
                Ok(RunStatus::Cancelled)
            }
            status => Ok(status),
        }
    }

    /// Returns the expected end of an attempt that has left `running`: by its handler's outcome, or its owner's death.
    fn attempt_end(&mut self, step: &Step<'_>, before: &RunRow, monotonic: Duration) -> Check<AttemptEnd> {
        let (id, number) = (before.id, before.attempt);
        let Some(settling_owner) = step.settling_owner(id, number) else {
            return Err(format!("run {id} left running without a turn"));
        };
        let task = step.after.tasks.get(&before.task).expect("a task");
        let attempt = self.attempts.get_mut(&(id, number)).expect("a claimed attempt");
        let mut unannounced = false;
        let (outcome, policy, late, took, returned) = match &attempt.outcome {
            Some(outcome) if attempt.owner == settling_owner => {
                (Some(outcome.clone()), attempt.policy, attempt.is_late(), attempt.millis(), attempt.returned)
            }
            _ => {
                let owner = &self.owners[attempt.owner];
                let written = lease_of(&owner.name, step.before).and_then(|lease| owner.leases.get(&lease));
                let stood_still = monotonic.saturating_sub(written.copied().unwrap_or(monotonic));
                // The longer lease of the two owners decides.
                let lease = owner.lease.max(self.owners[settling_owner].lease);
                // On a server, an owner of another host is judged by its session and its lease, and by nothing else.
                let same_host = owner.host == self.owners[settling_owner].host;
                let is_seen = same_host && owner.lock.exists() || self.observer.has_session(&owner.name);
                if owner.is_alive && !is_seen && stood_still > lease {
                    attempt.taken_over = true;
                } else if owner.is_alive {
                    return Err(format!(
                        "run {id} was taken from owner {}, which is alive and has not finished attempt {number}",
                        attempt.owner
                    ));
                }
                if attempt.began.is_some() && self.hidden.contains(&(id, number)) {
                    return Err(format!("run {id} was recovered, and its command may be running"));
                }
                // No worker had begun it, and the slots in the lock file say so.
                let shows_slots = !owner.is_alive && owner.left_lock_file && same_host;
                let released = attempt.began.is_none() && shows_slots;
                // The slots of another host cannot be read: the row decides, once for each run.
                unannounced =
                    self.observer.is_on_server() && !shows_slots && before.forgiven == 0 && !before.is_announced;
                (released.then_some(Outcome::Released), (task.max_attempts, task.backoff, task.cap), false, None, None)
            }
        };
        if step.turn().is_none() {
            self.open.remove(&(id, number));
        }
        // As counted by the checker, not by the row.
        let counted = number - self.forgiven.get(&id).copied().unwrap_or_default();
        let interrupted = self.interrupted.get(&id).copied().unwrap_or_default();
        // A pause of its task resolves occurrences that may cancel it, in the same turn, before its outcome is recorded.
        let replaced = step.overlap_cancels(before) && step.after.runs.get(&id).is_some_and(|run| run.cancel_requested);
        let cancel = before.cancel_requested || replaced;
        // The wait counts from the end of the attempt, or from an earlier time that the clock has shown since.
        let ended = returned.map_or(step.now, |returned| returned.min(step.now));
        Ok(AttemptEnd {
            late,
            took,
            ..expected_end(outcome.as_ref(), cancel, (counted, interrupted, unannounced), policy, ended)
        })
    }

    /// Checks that a turn that can write records every outcome delivered before it.
    fn check_settled(&mut self, step: &Step<'_>, kept: &mut Vec<Kept>) -> Check {
        let Some(turn) = step.turn().filter(|turn| !turn.refused) else { return Ok(()) };
        let name = self.owners[turn.owner].name.clone();
        let delivered = |key: &(i64, u32)| {
            let attempt = &self.attempts[key];
            attempt.owner == turn.owner && attempt.outcome.is_some() && attempt.arrived
        };
        let delivered: Vec<_> = self.open.iter().copied().filter(delivered).collect();
        let is_own = |run: &RunRow| run.status == RunStatus::Running && run.owner.as_deref() == Some(&*name);
        let is_left =
            |key: &(i64, u32)| step.after.runs.get(&key.0).is_some_and(|run| is_own(run) && run.attempt == key.1);
        let waiting: Vec<_> = delivered.iter().filter(|key| is_left(key) && !self.was_stuck(key.0)).collect();
        let tried = delivered.len() - waiting.len();
        // In a small turn, the runs that follow the first ends may leave no room for others.
        let follows = |run: &RunRow| run.follows() && !step.before.runs.contains_key(&run.id);
        let any_follows = step.changed.iter().any(|(_, after)| after.is_some_and(follows));
        let may_wait =
            turn.most_outcomes.is_some_and(|most| tried >= most) || turn.is_small && tried > 0 && any_follows;
        if let Some((id, number)) = waiting.first().filter(|_| !may_wait) {
            return Err(format!("attempt {number} of run {id} has ended, and a turn did not record it"));
        }
        for (id, number) in delivered.iter().copied().filter(|key| !is_left(key)) {
            let holds = |run: &RunRow| is_own(run) && run.attempt == number;
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
                    let is_late =
                        |(kind, run, _): &(String, Option<i64>, _)| kind == "late_outcome" && *run == Some(id);
                    if !step.fresh.events.iter().any(is_late) {
                        return Err(format!("run {id} was deleted, and no event reports attempt {number}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks that the recorded attempts are those that did not simply succeed, once each.
    fn check_kept(&self, step: &Step<'_>, mut kept: Vec<Kept>) -> Check {
        let mut found = step.fresh.attempts.clone();
        found.retain(|(run, ..)| step.after.runs.contains_key(run));
        kept.retain(|(run, ..)| step.after.runs.contains_key(run));
        found.sort();
        kept.sort();
        if found == kept { Ok(()) } else { Err(format!("attempts kept: {found:?}, expected {kept:?}")) }
    }
}

impl Step<'_> {
    /// Whether a newer occurrence may cancel a waiting run.
    fn overlap_cancels(&self, run: &RunRow) -> bool {
        let policy =
            |tables: &Tables| tables.tasks.get(&run.task).is_some_and(|task| task.overlap == Overlap::CancelRunning);
        run.is_scheduled() && (policy(self.before) || policy(self.after))
    }
}

/// A retry keeps its time. If it counts from a wrong clock, it waits as long from `since`, when that was found; turns come to it one after
/// the other.
fn check_retry_time(step: &Step<'_>, since: Option<i64>, before: &RunRow, after: &RunRow) -> Check {
    let since = since.filter(|_| before.finished_at > Some(step.now) && before.run_at > step.now);
    let expected = match since.zip(before.finished_at) {
        Some((since, ended)) if before.run_at >= ended => since + before.run_at - ended,
        // A second wrong clock has counted from an end by the first.
        Some((since, _)) => before.run_at.min(since + step.before.tasks[&before.task].cap),
        None => before.run_at,
    };
    let is_awaited = since.is_some() && !step.turn().is_some_and(Turn::sees_to_all);
    if after.run_at == expected || is_awaited && after.run_at == before.run_at {
        return Ok(());
    }
    Err(format!("the retry of run {} moved from {} to {}, expected {expected}", before.id, before.run_at, after.run_at))
}

/// A draining owner opens no run but those that follow from an end, and leaves waiting runs as they are. A death may pause
/// its task, which resolves its due occurrences; so does a run of a delay task that follows, since its schedule waits for that run.
fn check_draining(step: &Step<'_>) -> Check {
    let rests = |tables: &Tables, task| tables.tasks.get(&task).is_some_and(|row| row.status == "paused");
    let new = step.changed.iter().filter(|(before, _)| before.is_none()).filter_map(|(_, after)| *after);
    let received: BTreeSet<i64> = new.filter(|run| run.follows()).map(|run| run.task).collect();
    let waits = |task| received.contains(&task) && step.after.tasks.get(&task).is_some_and(|row| row.kind == "delay");
    let resolved = |task| rests(step.after, task) && !rests(step.before, task) || waits(task);
    for pair in &step.changed {
        let taken_on = match pair {
            (None, Some(after)) => !after.follows() && !resolved(after.task),
            (Some(before), Some(after)) => {
                before.status != RunStatus::Running && before.status != after.status && !resolved(after.task)
            }
            _ => false,
        };
        if taken_on {
            return Err(format!("a draining owner has opened or claimed a run: {pair:?}"));
        }
    }
    Ok(())
}

/// Returns the latest lease of an owner.
fn lease_of(owner: &str, tables: &Tables) -> Option<i64> {
    tables.unfinished().filter(|run| run.owner.as_deref() == Some(owner)).filter_map(|run| run.lease).max()
}

fn expected_end(
    outcome: Option<&Outcome>,
    cancel: bool,
    (counted, interrupted, unannounced): (u32, u32, bool),
    policy: (u32, i64, i64),
    now: i64,
) -> AttemptEnd {
    let (most, backoff, cap) = policy;
    let end = |status, kept| AttemptEnd {
        status,
        forgiven: false,
        interrupted: None,
        again: None,
        kept,
        late: false,
        took: None,
    };
    let (how, retry) = match outcome {
        Some(Outcome::Succeeded { .. }) => return end(RunStatus::Succeeded, None),
        Some(Outcome::Released) => {
            let status = if cancel { RunStatus::Cancelled } else { RunStatus::Queued };
            return AttemptEnd { forgiven: true, ..end(status, Some("released")) };
        }
        Some(Outcome::Failed { how, retry, .. }) => (AttemptOutcome::from(*how), *retry),
        _ => (AttemptOutcome::Lost, Retry::Backoff),
    };
    let said = |word| Some(if how == AttemptOutcome::Failed { word } else { how.as_str() });
    if cancel || retry == Retry::Cancel {
        return end(RunStatus::Cancelled, said("cancelled"));
    }
    if retry == Retry::Skip {
        return AttemptEnd { forgiven: true, ..end(RunStatus::Skipped, said("skipped")) };
    }
    let kept = Some(how.as_str());
    let interrupted = if retry == Retry::Interrupted { interrupted + 1 } else { 0 };
    let end = |status, kept| AttemptEnd { interrupted: Some(interrupted), ..end(status, kept) };
    if let (Retry::Snooze(wait), 2..) = (retry, most) {
        let at = now + i64::try_from(wait.as_millis()).expect("a wait").max(1000);
        return AttemptEnd { forgiven: true, again: Some((at, at)), ..end(RunStatus::Failed, said("snoozed")) };
    }
    let is_interrupted = (1..=3).contains(&interrupted);
    let forgiven = (is_interrupted || unannounced) && most > 1;
    if retry == Retry::GiveUp || counted >= most && !forgiven {
        return end(RunStatus::Dead, kept);
    }
    let failures = if is_interrupted && most > 1 { interrupted } else { counted };
    let full = backoff.saturating_mul(1 << (failures - 1).min(30)).min(cap);
    let (soonest, latest) = match retry {
        Retry::After(wait) => {
            let wait = i64::try_from(wait.as_millis()).expect("a wait");
            (wait, wait)
        }
        _ => (full / 2, full),
    };
    AttemptEnd { forgiven, again: Some((now + soonest.max(1), now + latest.max(1))), ..end(RunStatus::Failed, kept) }
}

fn check_new(step: &Step<'_>, run: &RunRow) -> Check {
    let attempts = u32::from(run.status == RunStatus::Running);
    let status = match run.status {
        RunStatus::Running => step.turn().is_some(),
        RunStatus::Queued | RunStatus::Skipped | RunStatus::Missed => true,
        // Opened, and cancelled by a newer occurrence in the same resolution.
        RunStatus::Cancelled => [step.before, step.after]
            .iter()
            .any(|tables| tables.tasks.get(&run.task).is_some_and(|task| task.overlap == Overlap::CancelRunning)),
        _ => false,
    };
    if !status || run.attempt != attempts || run.forgiven != 0 {
        return Err(format!("run {} is new, with unexpected values: {run:?}", run.id));
    }
    check_opened(step, run)
}

/// Checks that a run is opened with its task's key, priority and time.
fn check_opened(step: &Step<'_>, run: &RunRow) -> Check {
    // An edit resolves by the definition before it.
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
    Err(format!("run {} differs from its task: {run:?}\n  {task:?}", run.id))
}

/// A final row changes in one way: the newest skip grows.
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
