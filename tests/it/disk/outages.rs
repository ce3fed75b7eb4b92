//! A fault that begins at a chosen moment and lasts for a while, by whatever means: while the scheduler is idle, while a command
//! is at work, while its end is to be written down, and while the scheduler leaves.

use duly::{NewTask, RunStatus};
use rusqlite::Connection;

use crate::disk::tools::{SPARED, SmallDisk, Strace, can_limit, limit_files, may_attach, may_mount, without};
use crate::disk::{ACCEPTS, REFUSES, all, assert_all_told, probe, refusals, soon, starts};
use crate::fixtures::{TestDb, eventually, seconds};
use crate::sidecar::{Gate, Sidecar, stands, told};

/// How the writing is made to fail.
#[derive(Clone, Copy)]
enum Means<'a> {
    /// These calls fail with this error.
    Calls(&'a str, &'a str),
    /// No byte is free.
    Disk(&'a SmallDisk),
    /// No file may grow.
    Limit,
    /// Another program keeps the database locked.
    Lock,
}

/// A fault that lasts until it is dropped.
enum Spell<'a> {
    Calls(Strace),
    Disk(&'a SmallDisk),
    Limit(u32),
    Lock(Connection),
}

impl<'a> Means<'a> {
    fn begin(self, db: &TestDb, sidecar: &Sidecar) -> Spell<'a> {
        match self {
            Means::Calls(calls, error) => Spell::Calls(Strace::attach(db, sidecar.pid(), calls, error)),
            Means::Disk(disk) => {
                // What is written back leaves room in the log, which the next commit would fit into.
                db.plain().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("a log without room");
                disk.fill();
                Spell::Disk(disk)
            }
            Means::Limit => {
                // What a command writes for the test, and what the scheduler logs, is shorter than that.
                limit_files(sidecar.pid(), Some(16 * 1024));
                Spell::Limit(sidecar.pid())
            }
            Means::Lock => {
                let plain = db.plain();
                plain.execute_batch("BEGIN IMMEDIATE").expect("the lock");
                Spell::Lock(plain)
            }
        }
    }

    fn name(self) -> String {
        match self {
            Means::Calls(calls, error) => format!("{calls}: {error}"),
            Means::Disk(_) => "a full disk".to_owned(),
            Means::Limit => "a limit of files".to_owned(),
            Means::Lock => "a lock".to_owned(),
        }
    }
}

impl Spell<'_> {
    /// Waits until the scheduler has tried again, where somebody counts that.
    fn sees_more_tries(&self) {
        if let Spell::Calls(strace) = self {
            let before = strace.failures();
            eventually("it tries again", || strace.failures() > before);
        }
    }
}

impl Drop for Spell<'_> {
    fn drop(&mut self) {
        match self {
            Spell::Disk(disk) => disk.clear(),
            Spell::Limit(pid) => limit_files(*pid, None),
            // Dropped, they let go.
            Spell::Calls(_) => {}
            Spell::Lock(plain) => plain.execute_batch("ROLLBACK").expect("the lock is free"),
        }
    }
}

fn start(db: &TestDb, lease: &str) -> Sidecar {
    // Frames are written behind the others, beyond what a limit allows.
    let sidecar = Sidecar::spawn_within(db, &["--lease", lease], "sh", &SPARED);
    eventually("it has started", || sidecar.log().contains("started, with 4 workers"));
    sidecar
}

fn refuses(sidecar: &Sidecar) -> bool {
    sidecar.log().contains(REFUSES)
}

/// A task that is due every second falls due meanwhile, and heartbeats too.
fn while_idle(db: &TestDb, means: Means<'_>) {
    let client = db.client();
    client.add(soon(NewTask::interval("tick", seconds(1))).handler("command").payload(tick(db))).unwrap();
    let mut sidecar = start(db, "3s");
    eventually("it ticks", || !starts(db).is_empty());
    let ended = "SELECT count(*) FROM task_runs WHERE status = 'running'";
    eventually("it has ended", || db.ask(ended) == "0");
    let spell = means.begin(db, &sidecar);
    eventually("it is refused", || refuses(&sidecar));
    let started = starts(db);
    for _ in 0..2 {
        spell.sees_more_tries();
    }
    assert_eq!(starts(db), started, "nothing starts that is not recorded");
    drop(spell);
    eventually("it goes on", || sidecar.log().contains(ACCEPTS) && starts(db).len() > started.len());
    client.pause("tick").unwrap();
    let open = "SELECT count(*) FROM task_runs WHERE status IN ('queued', 'running', 'failed')";
    eventually("nothing is left", || db.ask(open) == "0");
    sidecar.leave();
    assert_eq!(refusals(&sidecar.log()), 1, "{}", sidecar.log());
    assert_all_told(db, &means.name());
}

fn tick(db: &TestDb) -> serde_json::Value {
    let home = db.home().display();
    serde_json::json!({ "argv": ["sh", "-c", format!("echo $DULY_RUN_ID $DULY_ATTEMPT >>{home}/starts")] })
}

/// A command is at work. `lease`: short, so that a heartbeat is refused while it runs; or long, so that nothing is written
/// before its end.
fn while_running(db: &TestDb, means: Means<'_>, lease: &str, leaves: bool) {
    let client = db.client();
    let mut gate = Gate::new(db, "gate");
    let home = db.home().display();
    let work = format!("echo at work >{home}/at-work; read line <{home}/gate; echo done; echo over >{home}/over");
    client.add(probe(db, "long", &work)).unwrap();
    client.add(probe(db, "short", "true")).unwrap();
    let mut sidecar = start(db, lease);
    told(db, "at-work");
    eventually("its process is recorded", || db.ask("SELECT count(*) FROM task_runs WHERE process IS NOT NULL") != "0");
    let other = "SELECT count(*) FROM task_runs WHERE status = 'succeeded'";
    eventually("the other is over", || db.ask(other) == "1");
    let spell = means.begin(db, &sidecar);
    if lease == SHORT {
        eventually("a heartbeat is refused", || refuses(&sidecar));
    }
    gate.open();
    told(db, "over");
    eventually("its end is refused", || refuses(&sidecar));
    if leaves {
        sidecar.signal("TERM");
        eventually("it has heard", || sidecar.log().contains("SIGTERM: nothing more"));
    }
    spell.sees_more_tries();
    let stands_so = "SELECT r.status || ' ' || r.attempt FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                      WHERE t.name = 'long'";
    assert_eq!(db.ask(stands_so), "running 1");
    drop(spell);
    let run = stands(&client, "long", RunStatus::Succeeded);
    assert_eq!((run.attempt, run.output.as_deref(), run.exit_code), (1, Some("done\n"), Some(0)));
    if leaves {
        assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    } else {
        sidecar.leave();
    }
    assert_eq!(refusals(&sidecar.log()), 1, "{}", sidecar.log());
    assert_eq!(starts(db).len(), 2);
    assert_all_told(db, &means.name());
}

const SHORT: &str = "1s";
const LONG: &str = "1h";

/// Idle, running, settling, leaving.
fn at_every_moment(means: Means<'_>, db: impl Fn() -> TestDb) {
    println!("{}", means.name());
    while_idle(&db(), means);
    while_running(&db(), means, SHORT, false);
    while_running(&db(), means, LONG, false);
    while_running(&db(), means, LONG, true);
}

#[test]
fn errors_of_the_disk_delay_and_lose_nothing() {
    if !may_attach() {
        return without("strace", "a limit of files is tried, in another test");
    }
    for (calls, error) in
        [("pwrite64", "EIO"), ("fsync,fdatasync", "EIO"), ("pwrite64", "ENOSPC"), ("pwrite64", "EROFS")]
            .into_iter()
            .take(if all() { 4 } else { 2 })
    {
        at_every_moment(Means::Calls(calls, error), TestDb::new);
    }
}

#[test]
fn a_file_that_may_not_grow_delays_and_loses_nothing() {
    if !can_limit() {
        return without("prlimit", "not tried");
    }
    at_every_moment(Means::Limit, TestDb::new);
}

#[test]
fn a_full_disk_delays_and_loses_nothing() {
    if !may_mount("disk::spells::a_full_disk_delays_and_loses_nothing", "a limit of files is tried, in another test") {
        return;
    }
    let moments: [fn(&TestDb, Means<'_>); 4] = [
        while_idle,
        |db, means| while_running(db, means, SHORT, false),
        |db, means| while_running(db, means, LONG, false),
        |db, means| while_running(db, means, LONG, true),
    ];
    for moment in moments {
        let db = TestDb::with_folder("disk");
        let disk = SmallDisk::mount(&db);
        moment(&db, Means::Disk(&disk));
    }
}

/// It waits five seconds for the lock before it says so.
#[test]
fn a_writer_that_keeps_the_lock_delays_and_loses_nothing() {
    while_running(&TestDb::new(), Means::Lock, LONG, false);
    if all() {
        while_idle(&TestDb::new(), Means::Lock);
        while_running(&TestDb::new(), Means::Lock, SHORT, false);
        while_running(&TestDb::new(), Means::Lock, LONG, true);
    }
}

/// What could not be written down until the end is told by the exit code, and done again by the next scheduler.
#[test]
fn a_scheduler_that_leaves_while_the_disk_is_full_says_what_is_lost_with_it() {
    let test = "disk::spells::a_scheduler_that_leaves_while_the_disk_is_full_says_what_is_lost_with_it";
    if !all() || !may_mount(test, "not tried") {
        return println!("tried where every place is: it takes as long as such a scheduler waits for its disk");
    }
    let db = TestDb::with_folder("disk");
    let disk = SmallDisk::mount(&db);
    let client = db.client();
    let mut gate = Gate::new(&db, "gate");
    let home = db.home().display();
    client.add(probe(&db, "long", &format!("read line <{home}/gate; echo over >{home}/over"))).unwrap();
    client.add(probe(&db, "other", "true")).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", LONG, "--drain", "1s"]);
    stands(&client, "other", RunStatus::Succeeded);
    eventually("it is at work", || starts(&db).len() == 2);
    db.plain().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("a log without room");
    disk.fill();
    gate.open();
    told(&db, "over");
    sidecar.signal("TERM");
    assert_eq!(sidecar.end().code(), Some(3), "{}", sidecar.log());
    assert!(sidecar.log().contains("the ends of 1 runs could not be written down"), "{}", sidecar.log());
    disk.clear();
    gate.open();
    let mut next = Sidecar::spawn(&db, &["--until-idle"]);
    assert_eq!(next.end().code(), Some(0), "{}", next.log());
    assert_eq!(stands(&client, "long", RunStatus::Succeeded).attempt, 2);
    assert_all_told(&db, "the next");
}
