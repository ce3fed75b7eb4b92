//! The faults of a server and of the network before it: connections that are cut at any statement, commits without an answer, sessions
//! that are ended or frozen, and a server that crashes.

use std::time::Duration;

use crate::simulation::faults::OWNER_CLOCK;
use crate::simulation::history::{Action, Check};
use crate::simulation::network::{At, Network, Then};
use crate::simulation::scenario::Scenario;

/// Messages of a turn, and of a client's request: a cut at a later one does not happen.
const MESSAGES_OF_TURN: u32 = 16;
const MESSAGES_OF_REQUEST: u32 = 8;

/// What a large run must have met.
pub(crate) const ALL: [&str; 12] = [
    "connection cut in a turn",
    "connection cut in a turn, after a statement",
    "connection cut in a client's request",
    "COMMIT of a turn lost",
    "answer of a turn's COMMIT lost",
    "COMMIT of a client lost",
    "answer of a client's COMMIT lost",
    "session of an owner killed",
    "all sessions killed",
    "server restarted",
    "frozen with the lock of the schema",
    OWNER_CLOCK,
];

impl Scenario {
    pub(crate) fn inject_server_fault(&mut self, one: usize) -> Check {
        match self.rng.u32(..200) {
            0..50 => {
                let at = At::Message(self.rng.u32(1..=MESSAGES_OF_TURN));
                self.turn_over_cut(one, at, Then::Lost, "connection cut in a turn")
            }
            50..70 => {
                let at = At::Message(self.rng.u32(1..=MESSAGES_OF_TURN));
                self.turn_over_cut(one, at, Then::Unanswered, "connection cut in a turn, after a statement")
            }
            70..95 => self.turn_over_cut(one, At::Commit, Then::Lost, "COMMIT of a turn lost"),
            95..125 => self.turn_over_cut(one, At::Commit, Then::Unanswered, "answer of a turn's COMMIT lost"),
            125..140 => {
                let at = At::Message(self.rng.u32(1..=MESSAGES_OF_REQUEST));
                self.request_over_cut(at, Then::Lost, "connection cut in a client's request")
            }
            140..150 => self.request_over_cut(At::Commit, Then::Lost, "COMMIT of a client lost"),
            150..165 => self.request_over_cut(At::Commit, Then::Unanswered, "answer of a client's COMMIT lost"),
            165..185 => self.kill_session(one),
            185..192 => self.kill_all_sessions(),
            192..198 => self.restart_server(),
            _ => self.freeze(one),
        }
    }

    fn network(&self) -> &Network {
        &self.database.server.as_ref().expect("a server").1
    }

    /// One turn of an owner, during which its connection is cut.
    fn turn_over_cut(&mut self, one: usize, at: At, then: Then, kind: &'static str) -> Check {
        if !self.schedulers[one].can_step() {
            return Ok(());
        }
        self.network().arm(at, then);
        self.turn(one)?;
        if self.network().disarm() {
            self.fault(kind);
        }
        Ok(())
    }

    /// One request of a user, during which the connection is cut: it is answered, or nothing has changed.
    fn request_over_cut(&mut self, at: At, then: Then, kind: &'static str) -> Check {
        self.network().arm(at, then);
        self.random_request()?;
        if self.network().disarm() {
            self.fault(kind);
        }
        Ok(())
    }

    /// An administrator ends the session of an owner. Until the owner has noticed, only its lease shows that it is alive; one that is
    /// also suspended for longer may be taken over by another host.
    fn kill_session(&mut self, one: usize) -> Check {
        let live = self.network().live();
        if !self.database.shell.end_session(&self.history.owners[one].name) {
            return Ok(());
        }
        self.network().await_live(live - 1);
        self.fault("session of an owner killed");
        self.record(&Action::Nothing, &format!("the session of owner {one} is ended"))?;
        if self.rng.bool() { self.suspend(one) } else { Ok(()) }
    }

    fn kill_all_sessions(&mut self) -> Check {
        self.database.shell.end_all_sessions();
        self.network().await_live(0);
        self.fault("all sessions killed");
        self.record(&Action::Nothing, "all sessions are ended")
    }

    fn restart_server(&mut self) -> Check {
        let (server, network) = self.database.server.as_mut().expect("a server");
        server.crash();
        network.await_live(0);
        self.write_locked = false;
        self.database.shell.reconnect();
        self.database.reader.reconnect();
        self.history.observer.reconnect();
        self.fault("server restarted");
        self.record(&Action::Nothing, "the server is restarted")
    }

    /// The machine of an owner vanishes within a transaction, and the server does not learn that. Others are refused until the server
    /// ends the session, or one of them does: after four seconds of the server's own time.
    fn freeze(&mut self, one: usize) -> Check {
        let at = At::WithLock(self.rng.u32(1..=3));
        self.turn_over_cut(one, at, Then::Frozen, "frozen with the lock of the schema")?;
        if self.rng.bool() && self.schedulers[one].stepper.is_some() {
            self.crash(one, "while its session is frozen")?;
        }
        for other in self.running() {
            self.database.advance(Duration::from_millis(100));
            if self.schedulers[other].can_step() {
                self.turn(other)?;
            }
        }
        self.network().await_thaw();
        self.record(&Action::Nothing, "no session is frozen")
    }
}
