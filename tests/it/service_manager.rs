//! Messages of `duly run` to the service manager (sd_notify): ready, reloading, stopping, and the watchdog, which follows the turns of
//! the loop.
#![cfg(target_os = "linux")]

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use duly::RunStatus;

use crate::fixtures::{TestDb, eventually, far_future, patience, wait_for_status};
use crate::sidecar::{Sidecar, shell, wait_for_line, with_gate};

/// The receiving socket of a service manager.
struct Manager {
    socket: UnixDatagram,
    name: String,
}

impl Manager {
    fn new(db: &TestDb) -> Self {
        let path = db.home().join("notify");
        Manager { socket: UnixDatagram::bind(&path).expect("a socket"), name: path.display().to_string() }
    }

    fn abstract_socket() -> Self {
        let name = format!("duly-test-{}", fastrand::u64(..));
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        Manager { socket: UnixDatagram::bind_addr(&address).expect("a socket"), name: format!("@{name}") }
    }

    /// Returns the next message that arrives within the time.
    fn within(&self, time: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(time)).expect("a timeout");
        let mut buffer = [0; 4096];
        let length = self.socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8(buffer[..length].to_vec()).expect("UTF-8"))
    }

    /// Returns the next message that is no sign of life.
    fn next(&self) -> String {
        loop {
            let message = self.within(patience()).expect("a message");
            if message != "WATCHDOG=1" {
                return message;
            }
        }
    }

    /// Waits for signs of life.
    fn signs_of_life(&self, count: usize) {
        for _ in 0..count {
            assert_eq!(self.within(patience()).as_deref(), Some("WATCHDOG=1"));
        }
    }

    /// Waits for a time without any message, in which a watchdog of a second would have ended the process.
    fn silence(&self) {
        eventually("no message arrives", || self.within(Duration::from_secs(2)).is_none());
    }
}

#[test]
fn ready_reload_and_stop_are_reported() {
    for (manager, db) in [TestDb::new()]
        .map(|db| (Manager::new(&db), db))
        .into_iter()
        .chain([(Manager::abstract_socket(), TestDb::new())])
    {
        let manifest = db.home().join("tasks.toml");
        std::fs::write(&manifest, "[[task]]\nname = \"a\"\nmanual = true\ncommand = [\"true\"]\n").expect("a manifest");
        let options = ["--tasks", manifest.to_str().expect("a name")];
        let mut sidecar = Sidecar::spawn_with(&db, &options, &[("NOTIFY_SOCKET", &manager.name)]);
        let ready = manager.next();
        assert!(ready.starts_with("READY=1\nSTATUS=on ") && ready.ends_with("with 4 workers"), "{ready}");
        for (text, says) in [
            ("[[task]]\nname = \"a\"\nmanual = true\ncommand = [\"false\"]\n", None),
            ("[[task]\n", Some("no task was changed")),
        ] {
            std::fs::write(&manifest, text).expect("a manifest");
            sidecar.signal("HUP");
            let reloading = manager.next();
            let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("a time");
            assert!(time.parse::<u64>().is_ok_and(|time| time > 0), "{reloading}");
            let reloaded = manager.next();
            assert!(reloaded.starts_with("READY=1\nSTATUS=on "), "{reloaded}");
            assert_eq!(reloaded.contains("no task was changed"), says.is_some(), "{reloaded}");
            assert_eq!(reloaded.lines().count(), 2, "{reloaded}");
        }
        sidecar.signal("TERM");
        let stopping = manager.next();
        assert!(stopping.starts_with("STOPPING=1\nSTATUS="), "{stopping}");
        assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
        assert_eq!(manager.within(Duration::from_millis(1)), None, "no watchdog was set");
    }
}

#[test]
fn a_socket_that_cannot_be_used_does_not_stop_the_scheduler() {
    let db = TestDb::new();
    for (name, warns) in [("relative", true), ("/nowhere/notify", false), ("", true)] {
        let mut sidecar = Sidecar::spawn_with(&db, &["--create", "--until-idle"], &[("NOTIFY_SOCKET", name)]);
        assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
        assert_eq!(sidecar.log().contains("NOTIFY_SOCKET: the service manager receives no messages"), warns);
    }
}

/// The variables of a watchdog of one second.
fn watchdog(manager: &Manager) -> [(&'static str, &str); 2] {
    [("NOTIFY_SOCKET", &manager.name), ("WATCHDOG_USEC", "1000000")]
}

#[test]
fn the_watchdog_follows_the_turns_of_the_loop_also_while_it_drains() {
    let (db, client, mut gate) = with_gate();
    let manager = Manager::new(&db);
    let home = db.home().display();
    client.add(shell("long", &format!("echo up >{home}/up; read line <{home}/gate"))).unwrap();
    // An idle loop takes a turn in each poll interval, which the watchdog shortens.
    let mut sidecar = Sidecar::spawn_with(&db, &["--poll", "1h", "--drain", "1h"], &watchdog(&manager));
    assert!(manager.next().starts_with("READY=1"));
    wait_for_line(&db, "up");
    manager.signs_of_life(4);

    // A turn that has something to write waits for another program's transaction.
    let other = db.plain();
    other.execute_batch("BEGIN EXCLUSIVE").expect("the lock");
    sidecar.signal("TERM");
    eventually("it drains", || sidecar.log().contains("SIGTERM: no more runs are started"));
    gate.open();
    manager.silence();
    other.execute_batch("COMMIT").expect("an end");
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
}

#[test]
fn a_frozen_loop_sends_no_sign_of_life_and_a_moving_one_does_again() {
    let (db, client) = TestDb::with_client();
    client.add(far_future("far")).unwrap();
    let manager = Manager::new(&db);
    let mut sidecar = Sidecar::spawn_with(&db, &["--lease", "3s"], &watchdog(&manager));
    assert!(manager.next().starts_with("READY=1"));
    manager.signs_of_life(2);
    // The heartbeat of every second is a write, which waits up to five seconds.
    let other = db.plain();
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    manager.silence();
    assert!(!sidecar.has_ended());
    other.execute_batch("COMMIT").expect("an end");
    manager.signs_of_life(4);
    sidecar.terminate();
}

#[test]
fn a_watchdog_of_another_process_is_ignored_and_commands_do_not_inherit_the_variables() {
    let (db, client) = TestDb::with_client();
    let manager = Manager::new(&db);
    let variables =
        [("NOTIFY_SOCKET", &*manager.name), ("WATCHDOG_USEC", "40000"), ("WATCHDOG_PID", "1"), ("KEPT", "1")];
    client.add(shell("env", "env")).unwrap();
    let mut sidecar = Sidecar::spawn_with(&db, &[], &variables);
    assert!(manager.next().starts_with("READY=1"));
    let environment = wait_for_status(&client, "env", RunStatus::Succeeded).output.unwrap();
    assert!(environment.contains("KEPT=1"), "{environment}");
    for (name, _) in &variables[..3] {
        assert!(!environment.contains(name), "{environment}");
    }
    sidecar.terminate();
    let mut received = std::iter::from_fn(|| manager.within(Duration::from_millis(1)));
    assert!(received.all(|message| message != "WATCHDOG=1"));
}
