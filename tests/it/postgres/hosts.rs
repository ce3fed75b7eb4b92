//! Hosts whose clocks differ by hours behave as one: the time of day is the server's.

use std::process::{Command, Stdio};
use std::time::Duration;

use duly::{Client, Clock, Context, Error, EventFilter, NewTask, Now, RunStatus, Scheduler, SystemClock};

use crate::fixtures::on_server::session;
use crate::fixtures::{Process, eventually, patience};
use crate::postgres::database;
use crate::sidecar::signal;
use crate::zones::zone_file;

/// The clock of a host that is behind, or ahead if `ahead` says so.
struct Off {
    machine: SystemClock,
    by: Duration,
    ahead: bool,
}

impl Clock for Off {
    fn now(&self) -> Now {
        let Now { wall, monotonic } = self.machine.now();
        Now { wall: if self.ahead { wall + self.by } else { wall - self.by }, monotonic }
    }

    fn until(&self, at: Duration) -> Duration {
        self.machine.until(at)
    }
}

#[test]
fn hosts_whose_clocks_differ_by_hours_behave_as_one() {
    let Some(address) = database() else { return };
    let home = tempfile::tempdir().unwrap();
    let client = Client::open(&address).unwrap();
    // The server of the tests is on this machine.
    let apart = |one: duly::Timestamp, other: duly::Timestamp| one.since(other).max(other.since(one));
    let machine = SystemClock::new();
    assert!(apart(client.now(), machine.now().wall) < Duration::from_secs(60));
    let hours = Duration::from_secs(5 * 3600);
    let start = |name: &str, by, ahead| {
        Scheduler::builder(&address)
            .state_folder(home.path().join(name))
            .clock(Off { machine: SystemClock::new(), by, ahead })
            .workers(2)
            .poll(Duration::from_millis(50))
            .handler("work", |_: &Context| Ok::<_, Error>(()))
            .start()
            .unwrap()
    };
    let hosts = [start("right", Duration::ZERO, true), start("ahead", hours, true), start("behind", hours, false)];
    for host in &hosts {
        assert!(apart(host.now(), client.now()) < Duration::from_secs(60), "{} {}", host.now(), client.now());
    }
    let soon = client.now() + Duration::from_millis(500);
    client.add_all((0..30).map(|n| NewTask::once(format!("soon-{n}"), soon).handler("work"))).unwrap();
    let later = client.now() + hours - Duration::from_secs(600);
    client.add_all((0..5).map(|n| NewTask::once(format!("later-{n}"), later).handler("work"))).unwrap();
    eventually("all that is due has run", || {
        client.newest_runs(100).unwrap().iter().filter(|run| run.status.is_final()).count() >= 30
    });

    let runs = client.newest_runs(100).unwrap();
    assert_eq!(runs.len(), 30, "nothing ran twice, and nothing early");
    for run in &runs {
        // On a machine that stalls, a claim that no worker has begun is released, and does not count.
        assert_eq!((run.status, run.attempt - run.forgiven), (RunStatus::Succeeded, 1), "{run:?}");
        let started = run.started_at.expect("a start");
        assert!(started >= soon && started.since(soon) < Duration::from_secs(600), "{started} {soon}");
    }
    let events = client.events(&EventFilter::newest(100)).unwrap();
    let of_clock: Vec<_> = events.iter().filter(|event| event.kind.contains("clock")).collect();
    assert!(of_clock.is_empty(), "{of_clock:?}");
    for host in hosts {
        host.shutdown(patience()).unwrap();
    }
}

/// A zone file was wrong when a scheduler planned a task by it, and is repaired within the same release.
#[test]
fn a_repaired_zone_file_plans_the_tasks_of_a_server_again() {
    let Some(address) = database() else { return };
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("zoneinfo");
    std::fs::create_dir_all(folder.join("Europe")).unwrap();
    std::fs::write(folder.join("UTC"), zone_file(0)).unwrap();
    let rome = |hours| std::fs::write(folder.join("Europe/Rome"), zone_file(hours)).unwrap();
    let duly = |line: &[&str]| {
        let mut duly = Command::new(env!("CARGO_BIN_EXE_duly"));
        duly.args(["--db", &address]).args(line).current_dir(home.path());
        duly.env("TZDIR", &folder).env("DULY_STATE_DIR", home.path().join("state")).stderr(Stdio::null());
        duly
    };
    let output = |line: &[&str]| String::from_utf8(duly(line).output().unwrap().stdout).unwrap();
    rome(5);
    let client = Client::open(&address).unwrap();
    output(&["add", "noon", "--cron", "0 12 * * *", "--tz", "Europe/Rome", "--", "true"]);
    let mut rows = session(&address);
    let mut rules = || {
        let recorded = rows.query("SELECT value FROM scheduler_meta WHERE key = 'zone_rules:Europe/Rome'", &[]);
        recorded.unwrap().first().map(|row| row.get::<_, String>(0))
    };
    let hour = || client.task("noon").unwrap().unwrap().next_run.map(|at| at.as_millis() / 3_600_000 % 24);
    let mut run_until = |done: &mut dyn FnMut(Option<String>) -> bool| {
        let mut scheduler = Process::spawn(&mut duly(&["run", "--poll", "50ms"]));
        eventually("it has compared the rules", || done(rules()));
        signal("TERM", &scheduler.0.id().to_string());
        assert_eq!(scheduler.exit_code(), Some(0));
    };
    let mut wrong = None;
    run_until(&mut |rules| {
        wrong = rules;
        wrong.is_some()
    });
    assert_eq!(hour(), Some(7));
    rome(1);
    let says = "noon was planned by other rules of Europe/Rome than those of this process";
    assert!(output(&["check"]).contains(says) && output(&["doctor"]).contains(says));
    run_until(&mut |rules| rules != wrong && hour() == Some(11));
    assert!(!output(&["check"]).contains("zone_data"));
    assert!(client.doctor().unwrap().is_empty());
}
