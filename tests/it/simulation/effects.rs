//! A handler with an effect and with rows of the application, which it writes in the transaction that ends its run. What it
//! really did is kept outside of the database, and compared with the tables.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use duly::{BoxError, Claim, Context, NewTask, Outcome, Retry, RunStatus};

use crate::simulation::attempts::HandlerCall;
use crate::simulation::history::{Action, Check};
use crate::simulation::scenario::Scenario;

/// The handler's name, and its table.
pub(crate) const LEDGER: &str = "ledger";
pub(crate) const TABLE: &str = "CREATE TABLE ledger (run INTEGER NOT NULL, attempt INTEGER NOT NULL) STRICT";

/// A fault during an attempt with an effect.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Fault {
    #[default]
    Nothing,
    /// It ends after the effect and before that is recorded: by a panic, or with its process.
    Panic,
    Killed,
    /// The effect returns an error.
    CannotPay,
    /// It fails after the effect.
    FailsAfter,
    /// It fails inside `finish`, after writing its own rows.
    FailsWithin,
    /// Its process is killed after the commit, before the engine knows the outcome.
    KilledAfter,
}

impl Fault {
    pub(crate) fn draw(rng: &mut fastrand::Rng) -> Self {
        match rng.u32(..100) {
            0..5 => Fault::Panic,
            5..10 => Fault::Killed,
            10..25 => Fault::FailsAfter,
            25..32 => Fault::FailsWithin,
            32..38 => Fault::KilledAfter,
            38..45 => Fault::CannotPay,
            _ => Fault::Nothing,
        }
    }
}

/// Shared by the scenario and the handler of one scheduler.
#[derive(Debug, Default)]
pub(crate) struct Script {
    fault: Fault,
    /// A task to add in the same transaction.
    adds: Option<NewTask>,
    /// Whether it has paid, the value that the effect returned, and whether it finished its run.
    paid: bool,
    value: Option<u32>,
    finished: bool,
}

/// What was really done, known outside of the database.
#[derive(Debug, Default)]
pub(crate) struct ExpectedEffects {
    /// By the first of a chain of retries: the attempt that paid. `Err`: no row records that the effect was done.
    paid: BTreeMap<i64, Result<u32, ()>>,
    /// Runs that were finished, and by which attempt.
    finished: BTreeMap<i64, u32>,
}

type Shared = Arc<Mutex<Script>>;

fn script(shared: &Shared) -> std::sync::MutexGuard<'_, Script> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn handler(shared: Shared) -> impl Fn(&Context) -> Result<u32, BoxError> + Send + Sync + 'static {
    move |run: &Context| {
        let fault = script(&shared).fault;
        let pay = || {
            if fault == Fault::CannotPay {
                return Err("no money".into());
            }
            script(&shared).paid = true;
            if matches!(fault, Fault::Panic | Fault::Killed) {
                // Without a message on stderr.
                std::panic::resume_unwind(Box::new("killed while it paid"));
            }
            Ok(run.attempt())
        };
        let value: u32 = run.effect("pay", pay)?;
        script(&shared).value = Some(value);
        if fault == Fault::FailsAfter {
            return Err("failed after the effect".into());
        }
        let adds = script(&shared).adds.take();
        let answer = run.finish(|tx| {
            tx.execute("INSERT INTO ledger (run, attempt) VALUES (?1, ?2)", (run.run_id(), run.attempt()))?;
            adds.map(|task| run.add_in(tx, task)).transpose()?;
            if fault == Fault::FailsWithin { Err("failed inside finish".into()) } else { Ok(run.attempt()) }
        })?;
        script(&shared).finished = true;
        Ok(answer)
    }
}

impl Scenario {
    /// Calls the handler for an attempt, and checks what it has done.
    pub(crate) fn run_effect_handler(&mut self, one: usize, call: &HandlerCall) -> Check {
        let claim = &call.claim;
        let name = (self.once_in(5) && self.has_room()).then(|| self.new_name());
        let adds = name.as_ref().map(|name| self.draw_task(name));
        let holds = self.holds(one, claim);
        let shared = self.schedulers[one].script.clone();
        let fault = if call.fails() { Fault::FailsAfter } else { call.fault };
        *script(&shared) = Script { fault, adds, ..Script::default() };
        let Some(stepper) = &mut self.schedulers[one].stepper else { return Ok(()) };
        let ended = stepper.carry_out(claim).ok_or("there is no such handler")?;
        let done = std::mem::take(&mut *script(&shared));
        let (id, number) = (claim.run_id, claim.attempt);
        // Its handler is called now, and takes no time.
        let now = self.now();
        self.history.began(claim, now.monotonic);
        self.history.delivered(claim, ended.outcome.clone(), now);
        let first = self.first_of(id);
        self.check_paid(first, fault, &done, holds)
            .map_err(|broken| format!("attempt {number} of run {id}: {broken}"))?;
        let in_doubt = self.expected_effects.paid.get(&first).is_some_and(Result::is_err);
        if done.finished {
            self.expected_effects.finished.insert(id, number);
            let action = Action::Finished { owner: one, run: id, attempt: number, added: name };
            self.record(&action, &format!("owner {one} has finished run {id}"))?;
        } else {
            let may_fail = fault != Fault::Nothing && fault != Fault::KilledAfter
                || in_doubt
                || !holds
                || self.history.is_stuck(id);
            // A task that is refused rolls everything back.
            if !may_fail && name.is_none() {
                return Err(format!(
                    "attempt {number} of run {id} could be finished, and was not: {:?}",
                    ended.outcome
                ));
            }
            let gave_up = matches!(ended.outcome, Outcome::Failed { retry: Retry::GiveUp, .. });
            if holds && in_doubt && !done.paid && !gave_up {
                return Err(format!("run {id} has an effect in doubt, and ended with {:?}", ended.outcome));
            }
            self.record(&Action::Nothing, &format!("attempt {number} of run {id} ends with {:?}", ended.outcome))?;
        }
        self.check_ledger(id)?;
        if fault == Fault::Killed && done.paid || fault == Fault::KilledAfter && done.finished {
            self.fault("killed around an effect");
            return self.crash(one, "around an effect");
        }
        Ok(())
    }

    /// Checks that the effect is done at most once, in all attempts together.
    fn check_paid(&mut self, first: i64, fault: Fault, done: &Script, holds: bool) -> Check {
        let known = self.expected_effects.paid.get(&first).copied();
        if done.paid {
            if known.is_some() || !holds {
                return Err(format!(
                    "an effect was done that may not be done (done before: {known:?}, claim is valid: {holds})"
                ));
            }
            let died = matches!(fault, Fault::Panic | Fault::Killed);
            self.expected_effects.paid.insert(first, done.value.filter(|_| !died).ok_or(()));
            return Ok(());
        }
        match done.value {
            Some(value) if known != Some(Ok(value)) => Err(format!("an effect returned {value}, expected {known:?}")),
            _ => Ok(()),
        }
    }

    /// Checks that the application has one row of each finished run, and none of any other.
    fn check_ledger(&self, run: i64) -> Check {
        let rows = self.history.ledger_of(run);
        let expected = Vec::from_iter(self.expected_effects.finished.get(&run).copied());
        if rows == expected {
            Ok(())
        } else {
            Err(format!("rows of run {run} in the ledger: {rows:?}, expected {expected:?}"))
        }
    }

    /// As [`Scenario::check_ledger`], for all runs.
    pub(crate) fn check_all_ledger_rows(&self) -> Check {
        let rows = self.history.ledger_rows();
        let expected = self.expected_effects.finished.len();
        if rows == expected { Ok(()) } else { Err(format!("{rows} rows of finished runs, expected {expected}")) }
    }

    /// Returns the first of a chain of retries.
    fn first_of(&self, run: i64) -> i64 {
        let runs = &self.history.tables.runs;
        std::iter::successors(Some(run), |id| runs.get(id).and_then(|run| run.retry_of)).last().unwrap_or(run)
    }

    fn holds(&self, one: usize, claim: &Claim) -> bool {
        let name = &self.history.owners[one].name;
        self.history.tables.runs.get(&claim.run_id).is_some_and(|run| {
            run.status == RunStatus::Running && run.attempt == claim.attempt && run.owner.as_deref() == Some(name)
        })
    }
}
