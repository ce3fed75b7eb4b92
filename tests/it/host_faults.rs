//! Three hosts with a scheduler each, in network namespaces of their own, and a server with a synchronous standby. In each of
//! `DULY_ROUNDS` rounds one of them meets a fault, which overlaps with those before: killed, powered off, frozen, also in the middle of
//! a turn, cut off in both directions or in one, behind a link that loses or slows what it carries, with a clock that is hours off;
//! the server restarted, or its standby promoted. Afterwards the journal of the commands agrees with the tables.
//!
//! `DULY_SEED` repeats the choices; their timing depends on the machine. `DULY_FAULTS=Frozen,FrozenInTurn` (or `all`): these faults,
//! each when the one before is over. Needs root.

mod cluster;
mod host;
mod network;
mod recovery;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use duly::{Client, Misfire, NewTask, Overlap, RetryPolicy, RunStatus, Timestamp};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::fixtures::{eventually, number, overdue, seconds};
use crate::host_faults::cluster::Cluster;
use crate::host_faults::host::{Host, name, set_clock};
use crate::host_faults::network::{Network, Works};
use crate::host_faults::recovery::Recoveries;
use crate::kills::checker::{Facts, Rules};
use crate::kills::journal::{self, Journal, OF_TASK, probe, sleep};
use crate::selftest::checker::{Counts, Expectation, Line};

/// Rounds without `DULY_ROUNDS`, and the time from one fault to the next: a round waits for no recovery, so that faults overlap.
const ROUNDS: u32 = 2;
const PACE: Duration = Duration::from_millis(1500);

/// The same if no faults overlap: about, for that depends on the faults.
const ALONE: Duration = Duration::from_secs(6);

const HOSTS: usize = 3;

/// Tasks that each round adds beside its probe.
const ADDED: u32 = 3;

/// Limit for finishing all work after the last fault: a lease, and what it was longer than a link was cut.
const DONE_LIMIT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// SIGKILL for the scheduler. Its guard ends its commands, and it is started again.
    Killed,
    /// All processes of the host end at once. It starts with another boot id.
    PoweredOff,
    /// SIGSTOP for the scheduler.
    Frozen,
    /// The same while it holds the lock of the schema.
    FrozenInTurn,
    /// The link is cut.
    CutOff,
    /// What the host sends is lost.
    CutToServer,
    /// What the server sends is lost.
    CutToHost,
    /// The link is cut and mended many times.
    Lossy,
    /// The link is slow.
    Slow,
    /// The clock of the host is up to two hours off.
    ClockOff,
    Restarted,
    Promoted,
}

const KINDS: [Kind; 12] = {
    use Kind::*;
    [
        Killed,
        PoweredOff,
        Frozen,
        FrozenInTurn,
        CutOff,
        CutToServer,
        CutToHost,
        Lossy,
        Slow,
        ClockOff,
        Restarted,
        Promoted,
    ]
};

/// The fault of a host, and when it ends.
#[derive(Clone, Copy)]
struct Fault {
    kind: Kind,
    until: Instant,
}

struct Scenario {
    // Dropped in this order: the hosts while their server and network exist.
    hosts: Vec<Host>,
    client: Client,
    cluster: Cluster,
    network: Network,
    faults: [Option<Fault>; HOSTS],
    recoveries: Recoveries,
    /// The number of the newest scheduler.
    schedulers: u32,
    random: fastrand::Rng,
    kinds: Vec<Kind>,
    /// The last occurrences of the schedules.
    ends: Timestamp,
    journal: File,
    rules: Rules,
    home: TempDir,
}

fn task(task: NewTask, home: &Path, millis: u64) -> NewTask {
    let retry = RetryPolicy { max_attempts: 100_000, backoff: Duration::from_millis(20), max_backoff: seconds(1) };
    task.handler("command").payload(json!({ "argv": ["sh", "-c", probe(home, OF_TASK, &sleep(millis))] })).retry(retry)
}

/// The tasks with a schedule, and what is expected of them.
fn grids(home: &Path, from: Timestamp, to: Timestamp) -> Vec<(NewTask, Expectation)> {
    let grid = |name: &str, every: u64, millis: u64, overlap: Overlap, at_most_once: bool| {
        let every = seconds(every);
        let new = NewTask::interval(name, every).starts_at(from).ends_at(to).overlap(overlap);
        let mut new = task(new.misfire(Misfire::RunOnce, seconds(5)), home, millis);
        if at_most_once {
            new = new.at_most_once();
        }
        let due = std::iter::successors(Some(from), |at| Some(at.plus(every))).take_while(|at| *at <= to);
        let due: BTreeSet<Timestamp> = due.collect();
        (new, Expectation { task: name.to_owned(), due: Some(due), at_most_once, alone: true })
    };
    vec![
        grid("tick", 1, 10, Overlap::BufferAll, false),
        grid("alone", 2, 700, Overlap::Skip, false),
        grid("once", 3, 100, Overlap::Skip, true),
        grid("long", 15, 9_000, Overlap::BufferOne, false),
    ]
}

impl Scenario {
    fn begin(seed: u64, kinds: Vec<Kind>, length: Duration) -> Option<Scenario> {
        let network = Network::new(HOSTS)?;
        let Some(cluster) = Cluster::start(&network) else {
            crate::fixtures::skip("no PostgreSQL");
            return None;
        };
        let home = tempfile::tempdir().expect("a temporary folder");
        let client = Client::open(cluster.address()).expect("a client");
        let from = client.now().plus(seconds(3));
        let ends = from.plus(length);
        let (new, tasks): (Vec<_>, Vec<_>) = grids(home.path(), from, ends).into_iter().unzip();
        client.add_all(new).expect("tasks");
        let mut scenario = Scenario {
            hosts: Vec::new(),
            client,
            cluster,
            network,
            faults: [None; HOSTS],
            recoveries: Recoveries::default(),
            schedulers: 0,
            random: fastrand::Rng::with_seed(seed),
            kinds,
            ends,
            journal: journal::open(home.path()),
            rules: Rules { tasks, ..Rules::default() },
            home,
        };
        for number in 0..HOSTS {
            set_clock(scenario.home.path(), number, 0);
            let host = Host::boot(&scenario.network, number, scenario.home.path());
            scenario.hosts.push(host);
            scenario.start(number);
        }
        Some(scenario)
    }

    fn start(&mut self, host: usize) {
        self.schedulers += 1;
        self.hosts[host].start(self.schedulers);
    }

    /// From now on what this scheduler has begun may begin again.
    fn record_kill(&mut self, host: usize) {
        let line = Line::Killed { process: self.hosts[host].scheduler };
        journal::write(&self.journal, &line).expect("a line");
    }

    fn between(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.random.u64(from..=to))
    }

    /// Adds a task for now, also if answers are lost.
    fn add(&mut self, name: &str, millis: u64) {
        self.rules.once.insert(name.to_owned(), false);
        let new = task(overdue(name), self.home.path(), millis);
        eventually("the task is added", || {
            self.client.add(new.clone()).is_ok() || self.client.task(name).is_ok_and(|task| task.is_some())
        });
    }

    /// Begins the fault of a round.
    fn take_round(&mut self, round: u32) {
        for number in 0..ADDED {
            let takes = [10, 300, 2_000][number as usize];
            self.add(&format!("task-{round}-{number}"), takes);
        }
        let mut kind = self.kinds[self.random.usize(..self.kinds.len())];
        let host = self.random.usize(..HOSTS);
        let alone = self.faults.iter().all(Option::is_none);
        if self.faults[host].is_some() && !matches!(kind, Kind::Restarted | Kind::Promoted) {
            self.heal(host);
        }
        // Of its newest owner: what an earlier one had may still wait for a lease.
        let of_host = format!(
            "SELECT r.id || ' ' || r.attempt FROM duly.task_runs r
              WHERE r.status = 'running' AND r.locked_by =
                    (SELECT i.id FROM duly.scheduler_instances i WHERE i.host = '{}' ORDER BY i.started_at DESC LIMIT 1)",
            name(host)
        );
        let claims = BTreeSet::from_iter(self.cluster.ask(&of_host));
        let mut since = Instant::now();
        let length = match kind {
            Kind::Killed | Kind::PoweredOff => self.between(0, 3_000),
            // Some are longer than the lease.
            Kind::CutOff | Kind::CutToServer | Kind::CutToHost if self.random.u8(..3) == 0 => {
                self.between(30_000, 45_000)
            }
            _ => self.between(500, 12_000),
        };
        match kind {
            Kind::Killed => {
                self.record_kill(host);
                self.hosts[host].kill();
            }
            Kind::PoweredOff => {
                self.record_kill(host);
                self.hosts[host].power_off();
            }
            Kind::Frozen => self.hosts[host].signal(Signal::STOP),
            Kind::FrozenInTurn => {
                if !self.freeze_in_turn(host) {
                    kind = Kind::Frozen;
                }
                since = Instant::now();
            }
            Kind::CutOff => self.network.set(host, Works::NEITHER),
            Kind::CutToServer => self.network.set(host, Works { to_server: false, to_host: true }),
            Kind::CutToHost => self.network.set(host, Works { to_server: true, to_host: false }),
            Kind::Slow => self.network.slow(host, ["64kbit", "256kbit", "2mbit"][self.random.usize(..3)]),
            Kind::ClockOff => {
                let off = self.random.i64(-7_200..=7_200);
                set_clock(self.home.path(), host, off);
            }
            Kind::Restarted => self.cluster.restart(),
            Kind::Promoted => self.cluster.promote(),
            Kind::Lossy => {}
        }
        if !matches!(kind, Kind::Restarted | Kind::Promoted) {
            self.faults[host] = Some(Fault { kind, until: since + length });
        }
        let probe = format!("probe-{round}");
        self.add(&probe, 0);
        self.recoveries.begin(kind, since, claims, probe, alone);
    }

    /// Stops the scheduler of a host. Returns whether it holds the lock of the schema.
    fn freeze_in_turn(&mut self, host: usize) -> bool {
        let state_of_holder = format!(
            "SELECT a.state FROM pg_locks l JOIN pg_stat_activity a USING (pid)
              WHERE l.locktype = 'advisory' AND l.classid = 1685417081 AND l.granted AND a.client_addr = '10.77.{host}.2'"
        );
        let begin = Instant::now();
        while begin.elapsed() < seconds(3) {
            if self.cluster.ask(&state_of_holder).is_empty() {
                continue;
            }
            self.hosts[host].signal(Signal::STOP);
            // The server may still execute a statement, which may free the lock.
            let mut state = self.cluster.ask(&state_of_holder);
            while state == ["active"] && begin.elapsed() < seconds(3) {
                state = self.cluster.ask(&state_of_holder);
            }
            if !state.is_empty() {
                return true;
            }
            self.hosts[host].signal(Signal::CONT);
        }
        self.hosts[host].signal(Signal::STOP);
        false
    }

    /// Ends the fault of a host.
    fn heal(&mut self, host: usize) {
        let Some(Fault { kind, .. }) = self.faults[host].take() else { return };
        match kind {
            Kind::Killed => self.start(host),
            Kind::PoweredOff => {
                self.hosts[host] = Host::boot(&self.network, host, self.home.path());
                self.start(host);
            }
            Kind::Frozen | Kind::FrozenInTurn => self.hosts[host].signal(Signal::CONT),
            Kind::Slow => self.network.fast(host),
            Kind::ClockOff => set_clock(self.home.path(), host, 0),
            _ => self.network.set(host, Works::BOTH),
        }
    }

    /// Lets the faults go on while `lasts` holds.
    fn advance_while(&mut self, mut lasts: impl FnMut(&mut Self) -> bool) {
        while lasts(self) {
            self.advance();
            // A lossy link is cut or restored this often.
            #[allow(clippy::disallowed_methods)]
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Ends the faults whose time is up, and records what has recovered.
    fn advance(&mut self) {
        for host in 0..HOSTS {
            match self.faults[host] {
                Some(fault) if fault.until <= Instant::now() => self.heal(host),
                Some(Fault { kind: Kind::Lossy, .. }) => {
                    let works = if self.random.bool() { Works::BOTH } else { Works::NEITHER };
                    self.network.set(host, works);
                }
                // It gives up if it finds no server when it starts.
                None if !self.hosts[host].is_up() => self.start(host),
                _ => {}
            }
        }
        let running = self.cluster.ask("SELECT id || ' ' || attempt FROM duly.task_runs WHERE status = 'running'");
        let ended = "SELECT t.name FROM duly.task_runs r JOIN duly.scheduled_tasks t ON t.id = r.task_id
                      WHERE t.name LIKE 'probe-%' AND r.status = 'succeeded'";
        let ended = self.cluster.ask(ended);
        self.recoveries.observe(&BTreeSet::from_iter(running), &BTreeSet::from_iter(ended));
    }

    /// Waits until nothing is due, waiting or running. Returns how long that took.
    fn wait_until_done(&mut self) -> Duration {
        let left =
            "SELECT t.name || coalesce(' is due at ' || t.next_run, ' is ' || t.status) FROM duly.scheduled_tasks t
                     WHERE t.status NOT IN ('completed', 'manual')
                    UNION ALL SELECT 'run ' || r.id || ' is ' || r.status || coalesce(', of ' || r.locked_by, '')
                      FROM duly.task_runs r WHERE r.status IN ('queued', 'running', 'failed')";
        let begin = Instant::now();
        self.advance_while(|scenario| {
            let rows = scenario.cluster.ask(left);
            let is_late = begin.elapsed() >= DONE_LIMIT;
            assert!(rows.is_empty() || !is_late, "not done {DONE_LIMIT:?} after the last fault: {rows:#?}");
            !rows.is_empty()
        });
        begin.elapsed()
    }

    /// Stops the schedulers, and compares the journal with the tables.
    fn check(&mut self) -> Counts {
        self.hosts.iter().for_each(|host| host.signal(Signal::TERM));
        eventually("the schedulers have ended", || self.hosts.iter().all(|host| !host.is_up()));
        // The tables themselves, not what a session of before a promotion has read.
        let client = Client::open(self.cluster.address()).expect("a client");
        let facts = Facts::of(Journal::read(self.home.path()), &client);
        let counts = facts.assert(&self.rules);
        for run in &facts.tables.runs {
            // The clocks of the hosts decide nothing: by the server's, nothing is early, and nothing an hour late.
            if let Some(started) = run.started_at.filter(|_| run.status == RunStatus::Succeeded) {
                assert!(started >= run.scheduled_for, "early: {run:?}");
                let is_due = run.task.starts_with("task-") || run.task.starts_with("probe-");
                assert!(is_due || started.since(run.scheduled_for) < seconds(600), "late: {run:?}");
            }
        }
        // A scheduler locks its own running runs without the lock of the schema, too: in a heartbeat, and when it ends runs. What meets
        // such a lock, perhaps of a connection that broke, is set aside and written later: all are there. Nothing else is set aside.
        let aside = "SELECT detail FROM duly.scheduler_events WHERE kind IN ('set_aside', 'invalid')
                        AND detail !~ '^(the outcome of|a report on) run [0-9]+: another transaction holds its lock, until it ends: '";
        assert_eq!(self.cluster.ask(aside), [""; 0]);
        counts
    }
}

#[test]
fn three_hosts_start_each_occurrence_once_under_faults_of_hosts_network_and_server() {
    let (rounds, seed) = (number("DULY_ROUNDS", ROUNDS), number("DULY_SEED", fastrand::u64(..)));
    println!("{rounds} rounds, DULY_SEED={seed}");
    let alone = std::env::var("DULY_FAULTS").ok();
    let chosen = |kind: &Kind| match alone.as_deref() {
        None | Some("all") => true,
        Some(kinds) => kinds.split(',').any(|name| name == format!("{kind:?}")),
    };
    let kinds: Vec<Kind> = KINDS.into_iter().filter(chosen).collect();
    let pace = if alone.is_some() { ALONE } else { PACE };
    let Some(mut scenario) = Scenario::begin(seed, kinds, pace * rounds) else { return };
    for round in 0..rounds {
        let begin = Instant::now();
        scenario.take_round(round);
        scenario.advance_while(|scenario| {
            let lasts = !scenario.recoveries.is_over() || scenario.faults.iter().any(Option::is_some);
            begin.elapsed() < PACE || alone.is_some() && lasts
        });
    }
    for host in 0..HOSTS {
        scenario.heal(host);
    }
    // The rounds may have taken less time than planned: the schedules have occurrences until then.
    scenario.advance_while(|scenario| scenario.client.now() < scenario.ends);
    let settled = scenario.wait_until_done();
    let counts = scenario.check();
    scenario.recoveries.print();
    println!(
        "{counts:?}, {} schedulers, all done {:.1} s after the last fault",
        scenario.schedulers,
        settled.as_secs_f64()
    );
    assert!(counts.starts > 0, "no attempt has started");
}

#[test]
fn a_promoted_standby_without_the_last_commits_starts_their_runs_again_and_lacks_their_tasks() {
    let Some(network) = Network::new(1) else { return };
    let Some(mut cluster) = Cluster::start(&network) else { return crate::fixtures::skip("no PostgreSQL") };
    let home = tempfile::tempdir().expect("a temporary folder");
    let client = Client::open(cluster.address()).expect("a client");
    set_clock(home.path(), 0, 0);
    let mut host = Host::boot(&network, 0, home.path());
    host.start(1);
    let succeeded = |cluster: &mut Cluster, name: &str| {
        let query = "SELECT r.status FROM duly.task_runs r JOIN duly.scheduled_tasks t ON t.id = r.task_id";
        cluster.ask(&format!("{query} WHERE t.name = '{name}'")) == ["succeeded"]
    };
    client.add(task(overdue("kept"), home.path(), 0)).expect("a task");
    eventually("it has run", || succeeded(&mut cluster, "kept"));
    let soon = client.now().plus(seconds(4));
    client.add(task(NewTask::once("again", soon).at_most_once(), home.path(), 0)).expect("a task");
    cluster.detach();
    assert_eq!(cluster.ask("SELECT id::text FROM duly.task_runs WHERE status <> 'succeeded'"), [""; 0], "not due yet");
    client.add(task(overdue("gone"), home.path(), 0)).expect("a task");
    for name in ["gone", "again"] {
        eventually("it has run on the first primary", || succeeded(&mut cluster, name));
    }
    cluster.promote();
    eventually("it has run on the second primary", || succeeded(&mut cluster, "again"));
    assert_eq!(cluster.ask("SELECT name FROM duly.scheduled_tasks ORDER BY name"), ["again", "kept"]);
    host.signal(Signal::TERM);
    eventually("the scheduler has ended", || !host.is_up());
    let journal = Journal::read(home.path());
    assert_eq!(journal.torn, []);
    let starts = |name: &str| journal.starts(name);
    assert_eq!((starts("kept"), starts("again"), starts("gone")), (1, 2, 1));
    let log = host.log();
    assert!(log.contains("promoted"), "the promotion is reported: {log}");
}
