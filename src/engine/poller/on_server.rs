//! An owner on a server: its session, and what it does when the server continues another history.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::clock::Now;
use crate::engine::peers::Peers;
use crate::engine::poller::Poller;
use crate::engine::wake_time::WakeTime;
use crate::error::Result;
use crate::host::owner_lock;
use crate::model::event::Event;
use crate::model::finished::{Finished, split_recorded};
use crate::model::run::Claim;
use crate::store::OwnerSession;
use crate::store::turn_io::{Registered, Registration};

impl Poller {
    /// Takes the session of this owner, for the thread that keeps it alive.
    pub(crate) fn take_session(&mut self) -> Option<Box<dyn OwnerSession>> {
        self.store.take_session()
    }

    /// The next turn looks up which claims are still this owner's, and what other connections changed.
    pub(crate) fn look_up_claims(&mut self, now: Now) {
        self.next_heartbeat = now.monotonic;
    }

    /// Registers under another id: the claims are lost, because the server may lack the commits by which they were made. Outcomes that
    /// are not written yet are superseded, and those of attempts that still run will be: see [`Poller::supersede`].
    /// `running`: how many those are. The lock of the earlier owner is held until they have returned: without it others recover its runs.
    pub(crate) fn register_again(&mut self, now: Now, running: usize) -> Result<()> {
        let mut random = fastrand::Rng::new();
        let registration = Registration { owner: owner_lock::new_owner(&mut random), ..self.registration.clone() };
        self.lock.change_owner(&registration.owner)?;
        let Registered { others, not_stopped, .. } = self.store.register(&registration, random, now.wall)?;
        let mut peers = Peers::new(self.peers.database().to_owned(), registration.owner.clone(), self.settings.lease);
        peers.update(&others, &[], now.monotonic);
        peers.check_not_stopped(not_stopped, now.monotonic);
        log::warn!(
            "the server continues another history: this scheduler has registered again, and its claims are lost"
        );
        (self.registration, self.peers, self.horizon) = (registration, peers, WakeTime::default());
        self.former = running;
        self.release_former();
        self.reports.clear();
        self.held.clear();
        let unwritten: Vec<Finished> = self.outbox.drain(..).chain(self.aside.drain(..)).collect();
        unwritten.into_iter().for_each(|finished| self.supersede_one(finished));
        self.next_heartbeat = now.monotonic;
        Ok(())
    }

    /// Notes in claims of this turn who has claimed them.
    pub(super) fn sign(&mut self, claims: &mut [Arc<Claim>]) {
        if !claims.is_empty() && self.store.as_file().is_none() {
            let owner: Arc<str> = self.registration.owner.as_str().into();
            claims.iter_mut().for_each(|claim| Arc::make_mut(claim).owner = Some(owner.clone()));
        }
    }

    /// Takes out the ends of attempts that an earlier owner claimed: this owner may have claimed the same attempt of a run again, and they
    /// are not its ends.
    pub(super) fn supersede(&mut self, finished: Vec<Finished>) -> Vec<Finished> {
        let owner = &self.registration.owner;
        let (stale, own): (Vec<_>, Vec<_>) = finished.into_iter().partition(|one| one.claim.is_of_other(owner));
        if !stale.is_empty() {
            self.former = self.former.saturating_sub(stale.len());
            self.release_former();
        }
        stale.into_iter().for_each(|finished| self.supersede_one(finished));
        own
    }

    fn release_former(&self) {
        if self.former == 0 {
            self.lock.release_former();
        }
    }

    fn supersede_one(&mut self, finished: Finished) {
        let mut superseded = VecDeque::new();
        // One whose handler has committed it was still the claim of the earlier owner then.
        for (_, slot, event) in split_recorded(vec![finished], &mut superseded) {
            self.lock.free_slots(slot.into_iter());
            self.emit(&event);
        }
        for finished in superseded {
            self.lock.free_slots(finished.slot.into_iter());
            finished.remove_input();
            self.emit(&Event::Superseded { claim: finished.claim });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::clock::{Now, Timestamp};
    use crate::engine::poller::{Parts, Poller};
    use crate::host::owner_lock::{Standing, standing};
    use crate::model::finished::{Finished, Report, ReportKind};
    use crate::model::new_task::NewTask;
    use crate::model::request::Existing;
    use crate::model::run::{Claim, Outcome};
    use crate::model::settings::Settings;
    use crate::store::Store;
    use crate::store::sqlite::connection::SqliteStore;
    use crate::store::sqlite::file::{Durability, Missing};
    use crate::store::turn_io::Slots;

    const NOON: Now = Now { wall: Timestamp::from_millis(1_805_025_600_000), monotonic: Duration::from_secs(100) };

    #[test]
    fn what_an_earlier_owner_has_claimed_is_not_the_new_owners() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        let open = |missing| SqliteStore::open(&database, missing, Durability::MayRepeatAfterPowerLoss).unwrap();
        let mut store = open(Missing::Create);
        let task = NewTask::once("one", NOON.wall).handler("work").into_definition(NOON.wall).unwrap();
        store.add(task, Existing::Refuse, NOON.wall).unwrap();
        let mut poller = Poller::new(
            Parts {
                store: Box::new(store),
                database: database.clone(),
                owner: "a-1".to_owned(),
                handlers: ["work".to_owned()].into(),
                settings: Settings::default(),
                observers: Vec::new(),
                random: fastrand::Rng::with_seed(1),
            },
            NOON,
        )
        .unwrap();
        let claims = poller.turn(NOON, Vec::new(), Some(Slots { room: 1, idle: 1 })).unwrap().claims;
        // On a server it is signed.
        let claim = Arc::new(Claim { owner: Some("a-1".into()), ..(*claims[0]).clone() });
        poller.register_again(NOON, 1).unwrap();
        let owner = poller.owner().to_owned();
        assert_ne!(owner, "a-1");
        let standing_of_old = || standing(&database, "a-1");
        assert!(matches!(standing_of_old(), Standing::Alive { .. }), "its handler has not returned");
        let began = |claim: &Claim| poller.lock().begin(claim.run_id, claim.attempt, claim.owner.as_deref()).is_ok();
        assert!(!began(&claim), "the claim is lost");
        assert!(began(&Claim { owner: Some(owner.as_str().into()), ..(*claim).clone() }));
        // The server lacks the commit of the claim, and the new owner has made it once more.
        let other = rusqlite::Connection::open(&database).unwrap();
        let set = "UPDATE task_runs SET locked_by = ?1 WHERE locked_by = 'a-1' AND status = 'running' AND attempt = 1";
        assert_eq!(other.execute(set, [&owner]).unwrap(), 1);
        let Claim { run_id: run, attempt, owner: ref claimed_by, .. } = *claim;
        let kind = ReportKind::Progress("of the earlier attempt".to_owned());
        poller.report(Report { run, attempt, owner: claimed_by.clone(), kind });
        let outcome = Outcome::Succeeded { result: None };
        let finished = Finished::new(claim.clone(), outcome.clone(), NOON, NOON);
        poller.turn(NOON, vec![finished], Some(Slots::default())).unwrap();
        let row = || {
            other
                .query_row("SELECT status || coalesce(progress, '') FROM task_runs", [], |row| row.get::<_, String>(0))
                .unwrap()
        };
        assert_eq!(row(), "running");
        assert!(!matches!(standing_of_old(), Standing::Alive { .. }), "its handlers have returned");
        let again = Arc::new(Claim { owner: Some(owner.into()), ..(*claim).clone() });
        poller.turn(NOON, vec![Finished::new(again, outcome, NOON, NOON)], Some(Slots::default())).unwrap();
        assert_eq!(row(), "succeeded");
    }
}
