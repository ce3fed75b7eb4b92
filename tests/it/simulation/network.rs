//! The network between schedulers and their server: a proxy on a socket, which cuts a connection at a message that the seed names.
//!
//! When a connection is cut, the proxy waits until the server has ended its session, so that the same seed always sees the same.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The name of a server's socket in its folder.
const SOCKET: &str = ".s.PGSQL.5432";

/// At which message a connection is cut. A message that only prepares a statement does not count: a connection that is used again has
/// prepared it already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// At one of the next messages that execute something, counted from 1.
    Message(u32),
    /// At such a message within a transaction that holds the lock of the schema.
    WithLock(u32),
    /// At the next `COMMIT`.
    Commit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The server does not receive the message.
    Lost,
    /// The server acts on the message, and its answer is lost.
    Unanswered,
    /// The server does not receive the message, and does not learn that its client is gone.
    Frozen,
}

#[derive(Debug, Default)]
struct State {
    armed: Option<(At, Then)>,
    /// Whether a connection was cut since then.
    is_hit: bool,
    /// Whether a transaction that holds the lock has begun since the cut was armed.
    has_lock: bool,
    /// Connections of which neither side has ended.
    live: usize,
    /// Sessions of the server whose client is gone.
    frozen: usize,
}

#[derive(Clone, Debug, Default)]
struct Shared(Arc<(Mutex<State>, Condvar)>);

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.0.1.notify_all();
    }

    fn wait(&self, goes_on: impl Fn(&mut State) -> bool) {
        drop(self.0.1.wait_while(self.state(), goes_on).unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns what happens at this message. Only one message of a cut that was armed is hit.
    fn meets(&self, text: Option<&[u8]>) -> Option<Then> {
        let mut state = self.state();
        let (at, then) = state.armed?;
        let is_commit = text.is_some_and(|text| text.starts_with(b"COMMIT"));
        let hits = match at {
            At::Message(1) => true,
            At::Message(number) => {
                state.armed = Some((At::Message(number - 1), then));
                false
            }
            At::Commit => is_commit,
            At::WithLock(_) if text.is_some_and(|text| text.starts_with(b"BEGIN ISOLATION LEVEL READ COMMITTED")) => {
                state.has_lock = true;
                false
            }
            At::WithLock(_) if !state.has_lock => false,
            At::WithLock(_) if is_commit => {
                state.armed = None;
                false
            }
            At::WithLock(1) => true,
            At::WithLock(number) => {
                state.armed = Some((At::WithLock(number - 1), then));
                false
            }
        };
        hits.then(|| {
            (state.armed, state.is_hit) = (None, true);
            then
        })
    }
}

/// The proxy before one server.
pub(crate) struct Network {
    shared: Shared,
    folder: PathBuf,
}

impl Network {
    /// Listens on a socket in `folder`, for the server whose socket is in `server`.
    pub(crate) fn before(server: &Path, folder: &Path) -> Self {
        let listener = UnixListener::bind(folder.join(SOCKET)).expect("a socket");
        let (shared, server) = (Shared::default(), server.join(SOCKET));
        let network = Network { shared: shared.clone(), folder: folder.to_owned() };
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // Without a server the client is refused.
                let Ok(server) = UnixStream::connect(&server) else { continue };
                shared.change(|state| state.live += 1);
                let shared = shared.clone();
                std::thread::spawn(move || {
                    forward(client, server, &shared);
                    shared.change(|state| state.live -= 1);
                });
            }
        });
        network
    }

    /// Has a connection cut.
    pub(crate) fn arm(&self, at: At, then: Then) {
        self.shared.change(|state| (state.armed, state.is_hit, state.has_lock) = (Some((at, then)), false, false));
    }

    /// Cuts nothing any more. Returns whether a connection was cut.
    pub(crate) fn disarm(&self) -> bool {
        let mut state = self.shared.state();
        state.armed = None;
        state.is_hit
    }

    pub(crate) fn live(&self) -> usize {
        self.shared.state().live
    }

    /// Waits until at most so many connections are left.
    pub(crate) fn await_live(&self, most: usize) {
        self.shared.wait(|state| state.live > most);
    }

    /// Waits until the server has ended the sessions whose clients are gone.
    pub(crate) fn await_thaw(&self) {
        self.shared.wait(|state| state.frozen > 0);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.folder.join(SOCKET));
    }
}

/// Passes the messages of one connection on, until one side ends it or it is cut.
fn forward(mut client: UnixStream, mut server: UnixStream, shared: &Shared) {
    let is_cut = Arc::new(Mutex::new(false));
    let answers = pass_answers(&server, &client, is_cut.clone());
    let mut requests = Requests::default();
    let mut buffer = [0; 16_384];
    let cut = 'passing: loop {
        let Ok(length @ 1..) = client.read(&mut buffer) else { break None };
        requests.bytes.extend_from_slice(&buffer[..length]);
        while let Some((request, text)) = requests.next() {
            let then = if text.executes { shared.meets(text.query.as_deref()) } else { None };
            if let Some(then) = then {
                *is_cut.lock().unwrap_or_else(PoisonError::into_inner) = true;
                if then == Then::Unanswered {
                    let _ = server.write_all(&request);
                }
                break 'passing Some(then);
            }
            if server.write_all(&request).is_err() {
                break 'passing None;
            }
        }
    };
    if cut == Some(Then::Frozen) {
        shared.change(|state| state.frozen += 1);
        let _ = client.shutdown(Shutdown::Both);
        let _ = answers.join();
        shared.change(|state| state.frozen -= 1);
        return;
    }
    // The server closes its side when its session has ended, and only then its locks are free.
    let _ = server.shutdown(Shutdown::Write);
    let _ = answers.join();
    let _ = client.shutdown(Shutdown::Both);
}

fn pass_answers(from: &UnixStream, to: &UnixStream, is_cut: Arc<Mutex<bool>>) -> JoinHandle<()> {
    let (mut from, mut to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
    std::thread::spawn(move || {
        let mut buffer = [0; 16_384];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if !*is_cut.lock().unwrap_or_else(PoisonError::into_inner) {
                let _ = to.write_all(&buffer[..length]);
            }
        }
        if !*is_cut.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = to.shutdown(Shutdown::Both);
        }
    })
}

/// The messages of a client: <https://www.postgresql.org/docs/current/protocol-message-formats.html>.
#[derive(Default)]
struct Requests {
    bytes: Vec<u8>,
    /// The first message has no type.
    has_begun: bool,
}

struct Text {
    /// Whether a statement is executed, and not only prepared.
    executes: bool,
    query: Option<Vec<u8>>,
}

impl Requests {
    /// Takes the next messages, up to one at whose end the server answers, if all of them have arrived.
    fn next(&mut self) -> Option<(Vec<u8>, Text)> {
        let (mut end, mut executes) = (0, false);
        loop {
            let begin = end + usize::from(self.has_begun);
            let length = self.bytes.get(begin..begin + 4)?;
            let length = u32::from_be_bytes(length.try_into().ok()?) as usize;
            let kind = if self.has_begun { self.bytes[end] } else { b'F' };
            let text = self.bytes.get(begin + 4..begin + length)?;
            let query = (kind == b'Q').then(|| text.to_vec());
            end = begin + length;
            executes |= matches!(kind, b'Q' | b'E');
            if matches!(kind, b'Q' | b'S' | b'F' | b'X') {
                self.has_begun = true;
                return Some((self.bytes.drain(..end).collect(), Text { executes, query }));
            }
        }
    }
}
