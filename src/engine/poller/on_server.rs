//! An owner on a server: its session, and what it does when the server continues another history.

use crate::clock::Now;
use crate::engine::poller::Poller;
use crate::error::Result;
use crate::store::OwnerSession;

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
    /// are not written yet, and those of the `running` attempts that have not returned, are stored under the id that claimed them, where the
    /// server has that claim. The lock of that id is held until then: without it others recover its runs. What was observed of other
    /// owners is forgotten: the server may lack their last heartbeats, so their leases may end later than it says, but within a full
    /// lease from now.
    pub(crate) fn register_again(&mut self, now: Now, running: usize) -> Result<()> {
        self.change_id(now)?;
        self.former_unstored = running + self.outbox.len() + self.aside.len();
        self.release_former();
        self.claimed.clear();
        Ok(())
    }

    /// As [`Poller::forget`], for a claim under an earlier id.
    pub(super) fn forget_former(&mut self) {
        self.former_unstored = self.former_unstored.saturating_sub(1);
        self.release_former();
    }

    fn release_former(&self) {
        if self.former_unstored == 0 {
            self.lock.release_former();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use crate::clock::Now;
    use crate::engine::poller::Poller;
    use crate::engine::poller::testing::{NOON, poller, store, with_owner};
    use crate::host::owner_lock::{Standing, standing};
    use crate::model::finished::{Finished, Report, ReportKind};
    use crate::model::new_task::NewTask;
    use crate::model::request::Existing;
    use crate::model::run::{Claim, Outcome};
    use crate::model::settings::Settings;
    use crate::store::Store;
    use crate::store::turn_io::Slots;

    /// A poller with the runs of these tasks, claimed by `a-1` as on a server.
    fn with_claims(database: &Path, tasks: &[&str]) -> (Poller, Vec<Arc<Claim>>) {
        let mut store = store(database);
        for name in tasks {
            let task = NewTask::once(*name, NOON.wall).handler("work").into_definition(NOON.wall).unwrap();
            store.add(task, Existing::Refuse, NOON.wall).unwrap();
        }
        let mut poller = poller(database);
        let all = Slots { room: tasks.len(), idle: tasks.len() };
        let claims = poller.turn(NOON, Vec::new(), Some(all)).unwrap().claims;
        // On a server they are signed.
        let sign = |claim: &Arc<Claim>| Arc::new(Claim { owner: Some("a-1".into()), ..(**claim).clone() });
        (poller, claims.iter().map(sign).collect())
    }

    #[test]
    fn what_ended_before_a_promotion_or_ends_after_it_is_stored_under_the_id_that_claimed_it() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        let (mut poller, claims) = with_claims(&database, &["one", "two"]);
        let end = |claim: &Arc<Claim>| Finished::new(claim.clone(), Outcome::succeeded(), NOON, NOON);
        let other = rusqlite::Connection::open(&database).unwrap();
        let count = |status: &str| {
            let count = "SELECT count(*) FROM task_runs WHERE status = ?1";
            other.query_row(count, [status], |row| row.get::<_, u32>(0)).unwrap()
        };
        // The outcome of one waits, because the file is locked.
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        poller.turn(NOON, vec![end(&claims[0])], Some(Slots::default())).unwrap();
        other.execute_batch("ROLLBACK").unwrap();
        poller.register_again(NOON, 1).unwrap();
        assert_eq!(poller.unsettled(), 1, "a drain waits for the outcome");
        let later = Now { wall: NOON.wall.plus(Duration::from_secs(9)), monotonic: Duration::from_secs(109) };
        poller.turn(later, Vec::new(), Some(Slots::default())).unwrap();
        assert_eq!((count("succeeded"), count("running"), poller.unsettled()), (1, 1, 0));
        let is_alive = || matches!(standing(&database, "a-1"), Standing::Alive { .. });
        assert!(is_alive(), "one has not returned");
        poller.turn(later, vec![end(&claims[1])], Some(Slots::default())).unwrap();
        assert_eq!((count("succeeded"), count("running")), (2, 0));
        assert!(!is_alive());
    }

    #[test]
    fn a_promotion_begins_the_wait_for_the_leases_of_others_anew() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        let (gone, _) = with_claims(&database, &["one"]);
        let folder = gone.lock().folder().to_owned();
        drop(gone);
        // Only its lease is left to judge by.
        std::fs::remove_dir_all(folder).unwrap();
        let mut poller = with_owner("b-1", Box::new(store(&database)), &database);
        let lease = Settings::default().lease;
        let mut lost_after = |elapsed: Duration, promoted: bool| {
            let now = Now { wall: NOON.wall.plus(elapsed), monotonic: NOON.monotonic + elapsed };
            if promoted {
                poller.register_again(now, 0).unwrap();
            }
            poller.turn(now, Vec::new(), Some(Slots::default())).unwrap();
            let count = "SELECT count(*) FROM task_attempts WHERE outcome = 'lost'";
            let other = rusqlite::Connection::open(&database).unwrap();
            other.query_row(count, [], |row| row.get::<_, u32>(0)).unwrap()
        };
        assert_eq!(lost_after(Duration::ZERO, false), 0);
        assert_eq!(lost_after(lease, true), 0);
        assert_eq!(lost_after(lease * 2, false), 0, "the server may lack its last heartbeats");
        assert_eq!(lost_after(lease * 2 + Duration::from_secs(1), false), 1);
    }

    #[test]
    fn a_registration_that_fails_leaves_no_file() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        let (mut poller, _) = with_claims(&database, &["one"]);
        let other = rusqlite::Connection::open(&database).unwrap();
        let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON scheduler_instances BEGIN SELECT raise(ABORT, 'no'); END";
        other.execute_batch(refuse).unwrap();
        let folder = poller.lock().folder().to_owned();
        let has_dot = |name: &std::ffi::OsStr| name.as_encoded_bytes().contains(&b'.');
        let files =
            || std::fs::read_dir(&folder).unwrap().filter(|file| !has_dot(&file.as_ref().unwrap().file_name())).count();
        for _ in 0..5 {
            poller.register_again(NOON, 1).unwrap_err();
        }
        assert_eq!(files(), 2, "that of the owner, and the newest");
        other.execute_batch("DROP TRIGGER refuse").unwrap();
        poller.register_again(NOON, 1).unwrap();
        assert_eq!(files(), 2);
        assert!(matches!(standing(&database, "a-1"), Standing::Alive { .. }), "its handler has not returned");
    }

    #[test]
    fn what_an_earlier_owner_has_claimed_is_not_the_new_owners() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        let (mut poller, claims) = with_claims(&database, &["one"]);
        let claim = claims[0].clone();
        poller.register_again(NOON, 1).unwrap();
        let owner = poller.owner().to_owned();
        assert_ne!(owner, "a-1");
        let standing_of_old = || standing(&database, "a-1");
        assert!(matches!(standing_of_old(), Standing::Alive { .. }), "its handler has not returned");
        let began = |claim: &Claim| poller.lock().begin(claim.identified(), claim.owner.as_deref()).is_ok();
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
