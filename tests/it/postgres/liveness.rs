//! Which owners count as dead on a server. Two hosts are two folders of local files: an owner has no lock file on the other one.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use duly::testing::{ManualClock, Stepper, StepperBuilder};
use duly::{Client, Context, Error, Event, Limits, NewTask, Outcome, ProblemKind, RunStatus, Scheduler, Timestamp};
use postgres::NoTls;
use tempfile::TempDir;

use crate::fixtures::on_server::{self, OWNERS, holders, key_of_owner};
use crate::fixtures::{NOON, Watched, end, eventually, listen, patience, receive, seconds, test_process};
use crate::postgres::database;

/// A schema on a server, and the folders of some hosts.
struct Hosts {
    address: String,
    home: TempDir,
    _watched: Watched,
}

impl Hosts {
    fn new() -> Option<Self> {
        Some(Hosts::at(database()?))
    }

    fn at(address: String) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        Hosts { address, home, _watched: Watched::test() }
    }

    /// A scheduler on a host that polls every second.
    fn builder(&self, host: &str, clock: &ManualClock) -> StepperBuilder {
        let builder =
            Stepper::builder(&self.address, clock.now_wall()).clock(clock).state_folder(self.home.path().join(host));
        builder.accept("work").poll(seconds(1)).lease(seconds(60))
    }

    fn start(&self, host: &str, clock: &ManualClock) -> Stepper {
        self.builder(host, clock).start().expect("a stepper")
    }

    /// A session as an administrator has it.
    fn session(&self) -> postgres::Client {
        let server = self.address.split_once("schema=").expect("an address").0;
        postgres::Client::connect(server.trim_end_matches(['?', '&']), NoTls).expect("a session")
    }

    fn schema(&self) -> &str {
        self.address.split_once("schema=").expect("an address with a schema").1
    }

    /// The key of an owner's lock.
    fn key(&self, owner: &str) -> i32 {
        key_of_owner(&mut on_server::session(&self.address), owner)
    }

    /// The processes of the server that hold the lock of an owner.
    fn holders(&self, owner: &str) -> Vec<i32> {
        let mut session = on_server::session(&self.address);
        let key = key_of_owner(&mut session, owner);
        holders(&mut session, key)
    }

    /// Cuts the session by which an owner is known to be alive.
    fn cut(&self, owner: &str) {
        for pid in self.holders(owner) {
            self.session().execute("SELECT pg_terminate_backend($1)", &[&pid]).expect("its end");
        }
        eventually("the lock is free", || self.holders(owner).is_empty());
    }

    fn client(&self, stepper: &Stepper) -> Client {
        stepper.client().clone()
    }
}

/// The time of a clock that a test moves.
trait Wall {
    fn now_wall(&self) -> Timestamp;
}

impl Wall for ManualClock {
    fn now_wall(&self) -> Timestamp {
        duly::Clock::now(self).wall
    }
}

fn noon() -> ManualClock {
    ManualClock::new(NOON.parse().expect("a time"))
}

/// Adds a task and has a stepper claim its run. Returns its id, and the id of the owner.
fn claimed(stepper: &mut Stepper) -> (i64, String) {
    let client = stepper.client().clone();
    let task =
        NewTask::manual("digest").handler("work").retry(duly::RetryPolicy { max_attempts: 5, ..Default::default() });
    client.add(task).expect("a task");
    let run = client.trigger("digest").expect("a run");
    let claims = stepper.step().expect("a turn");
    assert_eq!(claims.len(), 1);
    let owner = client.run(run).expect("a run").expect("a run").locked_by.expect("an owner");
    (run, owner)
}

/// Moves the clock second by second, with a turn of each stepper.
fn pass(clock: &ManualClock, time: u64, steppers: &mut [&mut Stepper]) {
    for _ in 0..time {
        clock.advance(seconds(1));
        for stepper in steppers.iter_mut() {
            let _claims = stepper.step().expect("a turn");
        }
    }
}

fn status(client: &Client, run: i64) -> RunStatus {
    client.run(run).expect("a run").expect("a run").status
}

#[test]
fn a_dead_owner_of_another_host_is_recovered_when_its_lock_is_free_and_its_lease_has_passed() {
    let Some(hosts) = Hosts::new() else { return };
    let clock = noon();
    let (mut first, mut second) = (hosts.start("a", &clock), hosts.start("b", &clock));
    let client = hosts.client(&second);
    let (run, owner) = claimed(&mut first);
    assert_eq!(hosts.holders(&owner).len(), 1);
    pass(&clock, 1, &mut [&mut second]);
    drop(first);
    eventually("the server has freed its lock", || hosts.holders(&owner).is_empty());
    pass(&clock, 58, &mut [&mut second]);
    assert_eq!(status(&client, run), RunStatus::Running, "its lease has not passed");
    pass(&clock, 10, &mut [&mut second]);
    assert_ne!(client.run(run).expect("a run").expect("a run").locked_by, Some(owner), "it is recovered");
    let attempts = client.attempts(run).expect("its attempts");
    assert_eq!(attempts.len(), 1, "{attempts:?}");
}

#[test]
fn a_scheduler_without_runs_whose_lease_has_passed_is_named() {
    let Some(hosts) = Hosts::new() else { return };
    let clock = noon();
    let mut stepper = hosts.start("one", &clock);
    let client = hosts.client(&stepper);
    stepper.step().expect("a turn");
    let found = || client.check(&Limits::default()).expect("a check");
    clock.advance(seconds(60));
    assert_eq!(found(), []);
    clock.advance(seconds(1));
    let silent = found();
    assert_eq!((silent.len(), silent[0].kind), (1, ProblemKind::Degraded), "{silent:?}");
    let pid = std::process::id();
    assert!(silent[0].found.starts_with(&format!("the scheduler with pid {pid} on ")), "{silent:?}");
    assert!(
        silent[0].found.ends_with("its lease has passed: its last heartbeat was at 2027-03-14T12:00:00.000Z"),
        "{silent:?}"
    );
    stepper.step().expect("a turn");
    assert_eq!(found(), [], "it goes on");
}

#[test]
fn an_owner_that_holds_its_lock_is_never_dead() {
    let Some(hosts) = Hosts::new() else { return };
    let clock = noon();
    let (observer, events) = listen();
    let mut first = hosts.start("a", &clock);
    let mut second = hosts.builder("b", &clock).observe(observer).start().expect("a stepper");
    let client = hosts.client(&second);
    let (run, owner) = claimed(&mut first);
    pass(&clock, 200, &mut [&mut second]);
    assert_eq!(status(&client, run), RunStatus::Running);
    let stalled: Vec<Event> = events.try_iter().filter(|event| matches!(event, Event::OwnerStalled { .. })).collect();
    assert_eq!(stalled.len(), 1, "it is reported once: {stalled:?}");

    // It moves again, and has lost nothing.
    let claim = client.run(run).expect("a run").expect("a run");
    assert_eq!(claim.locked_by.as_deref(), Some(&*owner));
    pass(&clock, 1, &mut [&mut first, &mut second]);
    let running = first.running().to_vec();
    first.finish(&running[0], Outcome::succeeded());
    first.step().expect("a turn");
    assert_eq!(status(&client, run), RunStatus::Succeeded);
}

#[test]
fn an_owner_whose_session_was_cut_takes_its_lock_again() {
    let Some(hosts) = Hosts::new() else { return };
    let clock = noon();
    let (mut first, mut second) = (hosts.start("a", &clock), hosts.start("b", &clock));
    let client = hosts.client(&second);
    let (run, owner) = claimed(&mut first);
    pass(&clock, 1, &mut [&mut second]);
    for _ in 0..3 {
        hosts.cut(&owner);
        pass(&clock, 40, &mut [&mut first, &mut second]);
        assert_eq!(hosts.holders(&owner).len(), 1);
    }
    let seen = client.run(run).expect("a run").expect("a run");
    assert_eq!((seen.status, seen.attempt, seen.locked_by), (RunStatus::Running, 1, Some(owner)));
}

#[test]
fn the_turn_that_recovers_looks_at_the_lock_again() {
    let Some(hosts) = Hosts::new() else { return };
    let clock = noon();
    let (mut first, mut second) = (hosts.start("a", &clock), hosts.start("b", &clock));
    let client = hosts.client(&second);
    let (run, owner) = claimed(&mut first);
    pass(&clock, 1, &mut [&mut second]);
    drop(first);
    eventually("the server has freed its lock", || hosts.holders(&owner).is_empty());
    // The owner comes back on another connection, as after a broken network.
    let mut session = hosts.session();
    let key = hosts.key(&owner);
    session.execute("SELECT pg_advisory_lock($1, $2)", &[&OWNERS, &key]).expect("its lock");
    pass(&clock, 200, &mut [&mut second]);
    assert_eq!(status(&client, run), RunStatus::Running);
    drop(session);
    eventually("the server has freed its lock", || hosts.holders(&owner).is_empty());
    pass(&clock, 25, &mut [&mut second]);
    assert_ne!(client.run(run).expect("a run").expect("a run").locked_by, Some(owner), "it is recovered");
}

/// Copies the files of a host, as an image of its disk has them. Of another boot: with another boot id in the lock files.
fn copy_files(from: &Path, to: &Path, other_boot: bool) {
    std::fs::create_dir(to).expect("a folder");
    std::fs::set_permissions(to, std::fs::metadata(from).expect("a folder").permissions()).expect("its mode");
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy_files(&from, &to, other_boot);
            continue;
        }
        let mut content = std::fs::read(&from).expect("a file");
        if other_boot && let Some(boot) = content.get_mut(15..51) {
            boot.copy_from_slice(b"00000000-1111-2222-3333-444444444444");
        }
        std::fs::write(to, content).expect("a copy");
    }
}

/// The lock of a copied file is free, which proves nothing.
#[test]
fn the_state_folder_of_another_host_proves_no_death() {
    let Some(hosts) = Hosts::new() else { return };
    for (other_boot, name) in [(false, "b"), (true, "c")] {
        let clock = noon();
        let schema = format!("{}_{name}", hosts.address);
        let hosts = Hosts::at(schema);
        let mut first = hosts.start("a", &clock);
        let (run, owner) = claimed(&mut first);
        copy_files(&hosts.home.path().join("a"), &hosts.home.path().join(name), other_boot);
        let mut second = hosts.start(name, &clock);
        let client = hosts.client(&second);
        pass(&clock, 10, &mut [&mut second]);
        assert_eq!(status(&client, run), RunStatus::Running, "it holds the lock of its session");
        hosts.cut(&owner);
        pass(&clock, 45, &mut [&mut second]);
        let found = client.run(run).expect("a run").expect("a run");
        assert_eq!(found.locked_by.as_ref(), Some(&owner), "its lease has not passed: {found:?}");
        pass(&clock, 20, &mut [&mut second]);
        assert_ne!(client.run(run).expect("a run").expect("a run").locked_by, Some(owner), "it is recovered");
    }
}

/// The folder is shared, and the locks of its files are not, as on some network file systems.
#[test]
fn a_shared_state_folder_proves_no_death_of_an_owner_of_another_boot() {
    let Some(hosts) = Hosts::new() else { return };
    let clock = noon();
    let mut first = hosts.start("a", &clock);
    let (run, owner) = claimed(&mut first);
    let sql = format!(
        "SET duly.store = 'on'; UPDATE \"{}\".scheduler_instances SET boot_id = 'another' WHERE id = '{owner}'",
        hosts.schema()
    );
    hosts.session().batch_execute(&sql).expect("its boot");
    drop(first);
    eventually("the server has freed its lock", || hosts.holders(&owner).is_empty());
    let mut second = hosts.start("a", &clock);
    let client = hosts.client(&second);
    pass(&clock, 50, &mut [&mut second]);
    let found = client.run(run).expect("a run").expect("a run");
    assert_eq!(found.locked_by.as_ref(), Some(&owner), "its lease has not passed: {found:?}");
    pass(&clock, 20, &mut [&mut second]);
    assert_ne!(client.run(run).expect("a run").expect("a run").locked_by, Some(owner), "it is recovered");
}

/// On one host the lock file decides at once, but never against the session.
#[test]
fn a_dead_owner_of_this_host_is_recovered_at_once_unless_its_session_holds_its_lock() {
    let Some(hosts) = Hosts::new() else { return };
    let clock = noon();
    let mut first = hosts.start("a", &clock);
    let (run, owner) = claimed(&mut first);
    drop(first);
    eventually("the server has freed its lock", || hosts.holders(&owner).is_empty());
    let mut session = hosts.session();
    let key = hosts.key(&owner);
    session.execute("SELECT pg_advisory_lock($1, $2)", &[&OWNERS, &key]).expect("its lock");
    let mut second = hosts.start("a", &clock);
    let client = hosts.client(&second);
    pass(&clock, 5, &mut [&mut second]);
    assert_eq!(client.run(run).expect("a run").expect("a run").locked_by.as_ref(), Some(&owner));
    drop(session);
    eventually("the server has freed its lock", || hosts.holders(&owner).is_empty());
    pass(&clock, 2, &mut [&mut second]);
    assert_ne!(client.run(run).expect("a run").expect("a run").locked_by, Some(owner), "it is recovered");
}

/// A process with a scheduler, until it is killed.
fn be_a_scheduler(address: &str, folder: &Path) {
    let wait = |run: &Context| {
        println!("\nstarted {}", run.run_id());
        run.wait_cancelled(seconds(3600));
        Ok::<_, Error>(())
    };
    let builder = Scheduler::builder(address).state_folder(folder).lease(seconds(30)).handler("work", wait);
    let _scheduler = builder.start().expect("a scheduler");
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}

#[cfg(unix)]
#[test]
fn a_frozen_process_keeps_its_runs_and_a_killed_one_loses_them() {
    if let Ok(address) = std::env::var("DULY_LIVENESS") {
        return be_a_scheduler(&address, Path::new(&std::env::var("DULY_LIVENESS_FOLDER").expect("a folder")));
    }
    let Some(hosts) = Hosts::new() else { return };
    // The process has the time of the server, and this stepper a clock that starts there.
    let clock = ManualClock::new(Timestamp::now());
    let mut second = hosts.start("b", &clock);
    let client = hosts.client(&second);
    client.add(NewTask::manual("digest").handler("work")).expect("a task");
    let mut child = test_process("postgres::liveness::a_frozen_process_keeps_its_runs_and_a_killed_one_loses_them")
        .env("DULY_LIVENESS", &hosts.address)
        .env("DULY_LIVENESS_FOLDER", hosts.home.path().join("a"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let run = client.trigger("digest").expect("a run");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == format!("started {run}")), "its handler has begun");
    let owner = client.run(run).expect("a run").expect("a run").locked_by.expect("an owner");
    eventually("it has its lock", || hosts.holders(&owner).len() == 1);

    crate::sidecar::signal("STOP", &child.id().to_string());
    pass(&clock, 100, &mut [&mut second]);
    assert_eq!(status(&client, run), RunStatus::Running);
    assert_eq!(hosts.holders(&owner).len(), 1, "the server cannot know");

    end(&mut child);
    eventually("the server has freed its lock", || hosts.holders(&owner).is_empty());
    pass(&clock, 100, &mut [&mut second]);
    let found = client.run(run).expect("a run").expect("a run");
    assert_ne!(found.locked_by, Some(owner), "it is recovered: {found:?}");
}

#[test]
fn a_lease_that_is_too_short_for_a_server_is_refused() {
    let Some(hosts) = Hosts::new() else { return };
    let builder = Scheduler::builder(&hosts.address).state_folder(hosts.home.path().join("a")).lease(seconds(29));
    let error = builder.start().expect_err("a short lease");
    assert!(matches!(error, Error::InvalidConfig { field: "lease", .. }), "{error}");
    assert!(error.to_string().contains("at least 30s"), "{error}");
}

/// A scheduler polls once an hour: only a notification can wake it.
#[test]
fn a_change_by_another_process_wakes_a_scheduler() {
    let Some(hosts) = Hosts::new() else { return };
    let (sender, begun) = std::sync::mpsc::channel();
    let builder = Scheduler::builder(&hosts.address).state_folder(hosts.home.path().join("a")).poll(seconds(3600));
    let scheduler = builder
        .handler("work", move |run: &Context| {
            let _ = sender.send(run.run_id());
            Ok::<_, Error>(())
        })
        .start()
        .expect("a scheduler");
    let client = Client::open(&hosts.address).expect("a client");
    client.add(NewTask::manual("digest").handler("work")).expect("a task");
    let run = client.trigger("digest").expect("a run");
    assert_eq!(receive(&begun, "the run"), run);
    scheduler.shutdown(patience()).expect("a shutdown");
}

/// As an application that writes by SQL: nothing is notified.
#[test]
fn without_a_notification_polling_runs_everything() {
    let Some(hosts) = Hosts::new() else { return };
    let (sender, begun) = std::sync::mpsc::channel();
    let builder = Scheduler::builder(&hosts.address).state_folder(hosts.home.path().join("a"));
    let scheduler = builder
        .poll(Duration::from_millis(50))
        .handler("work", move |run: &Context| {
            let _ = sender.send(run.run_id());
            Ok::<_, Error>(())
        })
        .start()
        .expect("a scheduler");
    let insert = format!(
        "INSERT INTO \"{}\".scheduled_tasks (name, handler, schedule_type, schedule_value)
         VALUES ('digest', 'work', 'once', '2020-01-01T00:00:00Z')",
        hosts.schema()
    );
    hosts.session().batch_execute(&insert).expect("a task");
    receive(&begun, "the run");
    scheduler.shutdown(patience()).expect("a shutdown");
}
