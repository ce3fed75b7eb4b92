//! Hosts whose clocks differ by hours behave as one: the time of day is the server's.

use std::time::Duration;

use duly::{Client, Clock, Context, Error, EventFilter, NewTask, Now, RunStatus, Scheduler, SystemClock};

use crate::fixtures::{eventually, patience};
use crate::postgres::database;

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
