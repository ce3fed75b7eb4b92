//! A proxy before a server that delays what passes, as a network does, and counts round trips.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;

/// The messages that end a transaction, as the client sends them.
const COMMIT: &[u8] = b"COMMIT\0";

/// What passed on one connection.
#[derive(Debug, Default)]
struct Counts {
    round_trips: AtomicUsize,
    commits: AtomicUsize,
    /// Whether the last bytes were an answer.
    answered: AtomicBool,
}

/// A listener in this process, in front of the socket of a server.
pub(crate) struct Proxy {
    port: u16,
    connections: Arc<Mutex<Vec<Arc<Counts>>>>,
}

impl Proxy {
    /// Delays each direction by half of `round_trip`.
    pub(crate) fn before(folder: &Path, round_trip: Duration) -> Self {
        let socket: PathBuf = folder.join(".s.PGSQL.5432");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let connections = Arc::new(Mutex::new(Vec::new()));
        let noted = connections.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A server that has ended refuses: so does the proxy.
                let Ok(server) = UnixStream::connect(&socket) else { continue };
                let counts = Arc::new(Counts::default());
                noted.lock().expect("the list").push(counts.clone());
                forward(client, server, round_trip / 2, &counts);
            }
        });
        Proxy { port, connections }
    }

    pub(crate) fn address(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Forgets what has passed.
    pub(crate) fn reset(&self) {
        for counts in self.connections.lock().expect("the list").iter() {
            counts.round_trips.store(0, Ordering::Relaxed);
            counts.commits.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the round trips for each commit, of the connection that has committed most often.
    pub(crate) fn round_trips_of_commit(&self) -> f64 {
        let connections = self.connections.lock().expect("the list");
        let counts =
            |counts: &Arc<Counts>| (counts.commits.load(Ordering::Relaxed), counts.round_trips.load(Ordering::Relaxed));
        let (commits, round_trips) = connections.iter().map(counts).max().unwrap_or_default();
        round_trips as f64 / commits as f64
    }
}

fn forward(client: TcpStream, server: UnixStream, delay: Duration, counts: &Arc<Counts>) {
    client.set_nodelay(true).expect("a socket");
    let (from_client, to_client) = (client.try_clone().expect("a socket"), client);
    let (from_server, to_server) = (server.try_clone().expect("a socket"), server);
    let asked = counts.clone();
    let question = move |bytes: &[u8]| {
        if asked.answered.swap(false, Ordering::Relaxed) {
            asked.round_trips.fetch_add(1, Ordering::Relaxed);
        }
        if bytes.windows(COMMIT.len()).any(|some| some == COMMIT) {
            asked.commits.fetch_add(1, Ordering::Relaxed);
        }
    };
    let answered = counts.clone();
    let answer = move |_: &[u8]| answered.answered.store(true, Ordering::Relaxed);
    let (end_server, end_client) = (to_server.try_clone().expect("a socket"), to_client.try_clone().expect("a socket"));
    pass(from_client, to_server, delay, question, move || _ = end_server.shutdown(Shutdown::Both));
    pass(from_server, to_client, delay, answer, move || _ = end_client.shutdown(Shutdown::Both));
}

/// Passes on what arrives, after the delay and in order.
fn pass(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    delay: Duration,
    note: impl Fn(&[u8]) + Send + 'static,
    end: impl FnOnce() + Send + 'static,
) {
    let (arrived, queue) = unbounded::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 256 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            note(&buffer[..length]);
            if arrived.send((Instant::now() + delay, buffer[..length].to_vec())).is_err() {
                break;
            }
        }
    });
    std::thread::spawn(move || {
        for (at, bytes) in queue {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        end();
    });
}
