//! A handler that pays once, and writes into a table of the application's own in the transaction in which its run ends. What it
//! has really done is kept here, in the world outside, and held against what the tables say.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use duly::{BoxError, Claim, Context, NewTask, Outcome, Retry, RunStatus};

use crate::simulation::attempts::Work;
use crate::simulation::history::{Check, Deed};
use crate::simulation::scenario::World;

/// The handler's name, and its table.
pub(crate) const LEDGER: &str = "ledger";
pub(crate) const TABLE: &str = "CREATE TABLE ledger (run INTEGER NOT NULL, attempt INTEGER NOT NULL) STRICT";

/// What is to befall an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Fate {
    #[default]
    Nothing,
    /// It ends between the deed and the word that it is done: by a panic, or with its process.
    Panic,
    Killed,
    /// It cannot pay, and says so.
    CannotPay,
    /// It fails when it has paid.
    FailsAfter,
    /// It fails when its own rows are written, and its process goes on.
    FailsWithin,
    /// Its process is killed when all is committed, before anybody is told.
    KilledAfter,
}

impl Fate {
    pub(crate) fn draw(rng: &mut fastrand::Rng) -> Self {
        match rng.u32(..100) {
            0..5 => Fate::Panic,
            5..10 => Fate::Killed,
            10..25 => Fate::FailsAfter,
            25..32 => Fate::FailsWithin,
            32..38 => Fate::KilledAfter,
            38..45 => Fate::CannotPay,
            _ => Fate::Nothing,
        }
    }
}

/// What passes between the world and the handler of one owner.
#[derive(Debug, Default)]
pub(crate) struct Script {
    fate: Fate,
    /// A task to add in the same transaction.
    adds: Option<NewTask>,
    /// Whether it has paid, the value that it was given for it, and whether it finished its run.
    paid: bool,
    value: Option<u32>,
    finished: bool,
}

/// What is known outside of what was done.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// By the first of a chain of retries: paid by this attempt. `Err`: nobody has written down that it was done.
    paid: BTreeMap<i64, Result<u32, ()>>,
    /// Runs that were finished, and by which attempt.
    finished: BTreeMap<i64, u32>,
}

type Shared = Arc<Mutex<Script>>;

fn script(shared: &Shared) -> std::sync::MutexGuard<'_, Script> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handler.
pub(crate) fn handler(shared: Shared) -> impl Fn(&Context) -> Result<u32, BoxError> + Send + Sync + 'static {
    move |run: &Context| {
        let fate = script(&shared).fate;
        let pay = || {
            if fate == Fate::CannotPay {
                return Err("no money".into());
            }
            script(&shared).paid = true;
            if matches!(fate, Fate::Panic | Fate::Killed) {
                // Without a word on stderr.
                std::panic::resume_unwind(Box::new("killed while it paid"));
            }
            Ok(run.attempt())
        };
        let value: u32 = run.effect("pay", pay)?;
        script(&shared).value = Some(value);
        if fate == Fate::FailsAfter {
            return Err("out of ink".into());
        }
        let adds = script(&shared).adds.take();
        let answer = run.finish(|tx| {
            tx.execute("INSERT INTO ledger (run, attempt) VALUES (?1, ?2)", (run.run_id(), run.attempt()))?;
            adds.map(|task| run.add_in(tx, task)).transpose()?;
            if fate == Fate::FailsWithin { Err("the books do not balance".into()) } else { Ok(run.attempt()) }
        })?;
        script(&shared).finished = true;
        Ok(answer)
    }
}

impl World {
    /// Carries out an attempt, and sees what it has done.
    pub(crate) fn carry_out(&mut self, one: usize, work: &Work) -> Check {
        let claim = &work.claim;
        let name = (self.once_in(5) && self.has_room()).then(|| self.new_name());
        let adds = name.as_ref().map(|name| self.draw_task(name));
        let holds = self.holds(one, claim);
        let shared = self.agents[one].script.clone();
        let fate = if work.fails() { Fate::FailsAfter } else { work.fate };
        *script(&shared) = Script { fate, adds, ..Script::default() };
        let Some(stepper) = &mut self.agents[one].stepper else { return Ok(()) };
        let ended = stepper.carry_out(claim).ok_or("there is no such handler")?;
        let told = std::mem::take(&mut *script(&shared));
        let (id, number) = (claim.run_id, claim.attempt);
        // Its handler is called now, and no time passes in it.
        let now = self.now();
        self.history.began(claim, now.monotonic);
        self.history.delivered(claim, ended.outcome.clone(), now);
        let first = self.first_of(id);
        self.check_paid(first, fate, &told, holds)
            .map_err(|broken| format!("attempt {number} of run {id}: {broken}"))?;
        let in_doubt = self.ledger.paid.get(&first).is_some_and(Result::is_err);
        if told.finished {
            self.ledger.finished.insert(id, number);
            let deed = Deed::Finished { owner: one, run: id, attempt: number, added: name };
            self.done(&deed, &format!("owner {one} has finished run {id}"))?;
        } else {
            let may_fail =
                fate != Fate::Nothing && fate != Fate::KilledAfter || in_doubt || !holds || self.history.is_stuck(id);
            // A task that is refused takes all else with it.
            if !may_fail && name.is_none() {
                return Err(format!(
                    "attempt {number} of run {id} could be finished, and was not: {:?}",
                    ended.outcome
                ));
            }
            let gave_up = matches!(ended.outcome, Outcome::Failed { retry: Retry::GiveUp, .. });
            if holds && in_doubt && !told.paid && !gave_up {
                return Err(format!("run {id} found in doubt what it had to do, and ended with {:?}", ended.outcome));
            }
            self.done(&Deed::Nothing, &format!("attempt {number} of run {id} ends with {:?}", ended.outcome))?;
        }
        self.check_ledger(id)?;
        if fate == Fate::Killed && told.paid || fate == Fate::KilledAfter && told.finished {
            self.fault("killed around a deed");
            return self.crash(one, "around a deed");
        }
        Ok(())
    }

    /// Paid is once, whatever becomes of the attempts.
    fn check_paid(&mut self, first: i64, fate: Fate, told: &Script, holds: bool) -> Check {
        let known = self.ledger.paid.get(&first).copied();
        if told.paid {
            if known.is_some() || !holds {
                return Err(format!("paid though it had been paid ({known:?}), or the claim did not hold ({holds})"));
            }
            let died = matches!(fate, Fate::Panic | Fate::Killed);
            self.ledger.paid.insert(first, told.value.filter(|_| !died).ok_or(()));
            return Ok(());
        }
        match told.value {
            Some(value) if known != Some(Ok(value)) => Err(format!("told that {value} had paid, expected {known:?}")),
            _ => Ok(()),
        }
    }

    /// The application has one row of each run that was finished, and none of any other.
    fn check_ledger(&self, run: i64) -> Check {
        let rows = self.history.ledger_of(run);
        let expected = Vec::from_iter(self.ledger.finished.get(&run).copied());
        if rows == expected { Ok(()) } else { Err(format!("rows of run {run}: {rows:?}, expected {expected:?}")) }
    }

    /// As [`World::check_ledger`], of all that there are.
    pub(crate) fn check_books(&self) -> Check {
        let rows = self.history.ledger();
        let expected = self.ledger.finished.len();
        if rows == expected { Ok(()) } else { Err(format!("{rows} rows of finished runs, expected {expected}")) }
    }

    /// The first of a chain of retries.
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
