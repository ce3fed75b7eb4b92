//! A fault that begins at a chosen moment and lasts for a while: while the scheduler is idle, while a command runs, while
//! its outcome is to be recorded, and while the scheduler stops.

use duly::{NewTask, RunStatus};
use rusqlite::Connection;

use crate::disk::tools::{IGNORE_XFSZ, SmallDisk, Strace, can_limit, limit_files, may_attach, may_mount, skip_without};
use crate::disk::{ACCEPTS, REFUSES, all, assert_consistent, count_outages, probe, soon, starts};
use crate::fixtures::{TestDb, eventually, seconds, wait_for_status};
use crate::sidecar::{Gate, Sidecar, wait_for_line};

/// How writing is made to fail.
#[derive(Clone, Copy)]
enum FaultKind<'a> {
    /// These calls fail with this error.
    Calls(&'a str, &'a str),
    /// No byte is free.
    Disk(&'a SmallDisk),
    /// No file may grow.
    Limit,
    /// Another program holds the write lock.
    Lock,
}

/// A fault that lasts until it is dropped.
enum Outage<'a> {
    Calls(Strace),
    Disk(&'a SmallDisk),
    Limit(u32),
    Lock(Connection),
}

impl<'a> FaultKind<'a> {
    fn begin(self, db: &TestDb, sidecar: &Sidecar) -> Outage<'a> {
        match self {
            FaultKind::Calls(calls, error) => Outage::Calls(Strace::attach(db, sidecar.pid(), calls, error)),
            FaultKind::Disk(disk) => {
                // A checkpoint leaves room in the log, into which the next commit would fit.
                db.plain().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("a log without room");
                disk.fill(db);
                Outage::Disk(disk)
            }
            FaultKind::Limit => {
                // What a command writes for the test, and the log of the scheduler, is shorter than that.
                limit_files(sidecar.pid(), Some(16 * 1024));
                Outage::Limit(sidecar.pid())
            }
            FaultKind::Lock => {
                let plain = db.plain();
                plain.execute_batch("BEGIN IMMEDIATE").expect("the lock");
                Outage::Lock(plain)
            }
        }
    }

    fn name(self) -> String {
        match self {
            FaultKind::Calls(calls, error) => format!("{calls}: {error}"),
            FaultKind::Disk(_) => "a full disk".to_owned(),
            FaultKind::Limit => "a file size limit".to_owned(),
            FaultKind::Lock => "a lock".to_owned(),
        }
    }
}

impl Outage<'_> {
    /// Waits until the scheduler has tried again, if the tries can be counted.
    fn wait_for_retry(&self) {
        if let Outage::Calls(strace) = self {
            let before = strace.failures();
            eventually("it tries again", || strace.failures() > before);
        }
    }
}

impl Drop for Outage<'_> {
    fn drop(&mut self) {
        match self {
            Outage::Disk(disk) => disk.clear(),
            Outage::Limit(pid) => limit_files(*pid, None),
            // Detaches when it is dropped.
            Outage::Calls(_) => {}
            Outage::Lock(plain) => plain.execute_batch("ROLLBACK").expect("the lock is free"),
        }
    }
}

fn start(db: &TestDb, lease: &str) -> Sidecar {
    // Frames are appended beyond the limit.
    let sidecar = Sidecar::spawn_within(db, &["--lease", lease], "sh", &IGNORE_XFSZ);
    eventually("it has started", || sidecar.log().contains("started, with 4 workers"));
    sidecar
}

fn refuses(sidecar: &Sidecar) -> bool {
    sidecar.log().contains(REFUSES)
}

/// A task that is due every second becomes due meanwhile, and heartbeats too.
fn while_idle(db: &TestDb, fault: FaultKind<'_>) {
    let client = db.client();
    client.add(soon(NewTask::interval("tick", seconds(1))).handler("command").payload(tick(db))).unwrap();
    let mut sidecar = start(db, "3s");
    eventually("it ticks", || !starts(db).is_empty());
    let ended = "SELECT count(*) FROM task_runs WHERE status = 'running'";
    eventually("it has ended", || db.ask(ended) == "0");
    let outage = fault.begin(db, &sidecar);
    eventually("it is refused", || refuses(&sidecar));
    let recorded = || db.number::<usize>("SELECT coalesce(sum(attempt), 0) FROM task_runs");
    eventually("what is recorded has started", || starts(db).len() == recorded());
    let started = starts(db);
    for _ in 0..2 {
        outage.wait_for_retry();
    }
    assert_eq!(starts(db), started, "nothing starts that is not recorded");
    drop(outage);
    eventually("it continues", || sidecar.log().contains(ACCEPTS) && starts(db).len() > started.len());
    client.pause("tick").unwrap();
    let open = "SELECT count(*) FROM task_runs WHERE status IN ('queued', 'running', 'failed')";
    eventually("no run is left", || db.ask(open) == "0");
    sidecar.terminate();
    assert_eq!(count_outages(&sidecar.log()), 1, "{}", sidecar.log());
    assert_consistent(db, &fault.name());
}

fn tick(db: &TestDb) -> serde_json::Value {
    let home = db.home().display();
    serde_json::json!({ "argv": ["sh", "-c", format!("echo $DULY_RUN_ID $DULY_ATTEMPT >>{home}/starts")] })
}

/// A command is running. `lease`: short, so that a heartbeat fails while it runs; or long, so that nothing is written before
/// it ends.
fn while_running(db: &TestDb, fault: FaultKind<'_>, lease: &str, leaves: bool) {
    let client = db.client();
    let mut gate = Gate::new(db, "gate");
    let home = db.home().display();
    let work = format!("echo at work >{home}/at-work; read line <{home}/gate; echo done; echo over >{home}/over");
    client.add(probe(db, "long", &work)).unwrap();
    client.add(probe(db, "short", "true")).unwrap();
    let mut sidecar = start(db, lease);
    wait_for_line(db, "at-work");
    eventually("its process is recorded", || db.ask("SELECT count(*) FROM task_runs WHERE process IS NOT NULL") != "0");
    let other = "SELECT count(*) FROM task_runs WHERE status = 'succeeded'";
    eventually("the other run has ended", || db.ask(other) == "1");
    let outage = fault.begin(db, &sidecar);
    if lease == SHORT {
        eventually("a heartbeat is refused", || refuses(&sidecar));
    }
    gate.open();
    wait_for_line(db, "over");
    eventually("its end is refused", || refuses(&sidecar));
    if leaves {
        sidecar.signal("TERM");
        eventually("it has heard", || sidecar.log().contains("SIGTERM: no more runs"));
    }
    outage.wait_for_retry();
    let stands_so = "SELECT r.status || ' ' || r.attempt FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                      WHERE t.name = 'long'";
    assert_eq!(db.ask(stands_so), "running 1");
    drop(outage);
    let run = wait_for_status(&client, "long", RunStatus::Succeeded);
    assert_eq!((run.attempt, run.output.as_deref(), run.exit_code), (1, Some("done\n"), Some(0)));
    if leaves {
        assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    } else {
        sidecar.terminate();
    }
    assert_eq!(count_outages(&sidecar.log()), 1, "{}", sidecar.log());
    assert_eq!(starts(db).len(), 2);
    assert_consistent(db, &fault.name());
}

const SHORT: &str = "1s";
const LONG: &str = "1h";

/// Idle, running, settling, stopping.
fn at_every_moment(fault: FaultKind<'_>, db: impl Fn() -> TestDb) {
    println!("{}", fault.name());
    while_idle(&db(), fault);
    while_running(&db(), fault, SHORT, false);
    while_running(&db(), fault, LONG, false);
    while_running(&db(), fault, LONG, true);
}

#[test]
fn disk_errors_delay_outcomes_and_lose_none() {
    if !may_attach() {
        return skip_without("strace", "another test uses a file size limit");
    }
    for (calls, error) in
        [("pwrite64", "EIO"), ("fsync,fdatasync", "EIO"), ("pwrite64", "ENOSPC"), ("pwrite64", "EROFS")]
            .into_iter()
            .take(if all() { 4 } else { 2 })
    {
        at_every_moment(FaultKind::Calls(calls, error), TestDb::new);
    }
}

#[test]
fn a_file_size_limit_delays_outcomes_and_loses_none() {
    if !can_limit() {
        return skip_without("prlimit", "not tried");
    }
    at_every_moment(FaultKind::Limit, TestDb::new);
}

#[test]
fn a_full_disk_delays_outcomes_and_loses_none() {
    if !may_mount("disk::outages::a_full_disk_delays_outcomes_and_loses_none", "another test uses a file size limit") {
        return;
    }
    let moments: [fn(&TestDb, FaultKind<'_>); 4] = [
        while_idle,
        |db, fault| while_running(db, fault, SHORT, false),
        |db, fault| while_running(db, fault, LONG, false),
        |db, fault| while_running(db, fault, LONG, true),
    ];
    for moment in moments {
        let db = TestDb::with_folder("disk");
        let disk = SmallDisk::mount(&db);
        moment(&db, FaultKind::Disk(&disk));
    }
}

/// It waits five seconds for the lock before it reports it.
#[test]
fn a_held_write_lock_delays_outcomes_and_loses_none() {
    while_running(&TestDb::new(), FaultKind::Lock, LONG, false);
    if all() {
        while_idle(&TestDb::new(), FaultKind::Lock);
        while_running(&TestDb::new(), FaultKind::Lock, SHORT, false);
        while_running(&TestDb::new(), FaultKind::Lock, LONG, true);
    }
}

/// Outcomes that could not be recorded are reported by the exit code, and the next scheduler repeats the runs.
#[test]
fn a_scheduler_that_stops_on_a_full_disk_reports_lost_outcomes() {
    let test = "disk::outages::a_scheduler_that_stops_on_a_full_disk_reports_lost_outcomes";
    if !all() || !may_mount(test, "not tried") {
        return println!("skipped: it takes as long as a scheduler waits for its disk; DULY_DISK=all runs it");
    }
    let db = TestDb::with_folder("disk");
    let disk = SmallDisk::mount(&db);
    let client = db.client();
    let mut gate = Gate::new(&db, "gate");
    let home = db.home().display();
    client.add(probe(&db, "long", &format!("read line <{home}/gate; echo over >{home}/over"))).unwrap();
    client.add(probe(&db, "other", "true")).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", LONG, "--drain", "1s"]);
    wait_for_status(&client, "other", RunStatus::Succeeded);
    eventually("both have started", || starts(&db).len() == 2);
    db.plain().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("a log without room");
    disk.fill(&db);
    gate.open();
    wait_for_line(&db, "over");
    sidecar.signal("TERM");
    assert_eq!(sidecar.end().code(), Some(3), "{}", sidecar.log());
    assert!(sidecar.log().contains("the outcomes of 1 runs could not be recorded (run 1 of "), "{}", sidecar.log());
    disk.clear();
    gate.open();
    let mut next = Sidecar::spawn(&db, &["--until-idle"]);
    assert_eq!(next.end().code(), Some(0), "{}", next.log());
    assert_eq!(wait_for_status(&client, "long", RunStatus::Succeeded).attempt, 2);
    assert_consistent(&db, "the next");
}
