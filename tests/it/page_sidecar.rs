//! `duly run --http`: the address in the log, refused addresses, an orderly end with open connections.
#![cfg(target_os = "linux")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use crate::fixtures::{TestDb, eventually, patience, seconds};
use crate::page_server::own_address;
use crate::sidecar::Sidecar;

/// Starts `duly run` with the page, and returns the address that its log shows.
pub(crate) fn served_by_program(db: &TestDb, address: &str) -> (Sidecar, SocketAddr) {
    drop(db.client());
    let sidecar = Sidecar::start(db, &["--http", address]);
    let mut address = None;
    eventually("the address is logged", || {
        let log = sidecar.log();
        let shown = log.split_once("status page on http://").and_then(|(_, rest)| rest.split('/').next());
        address = shown.and_then(|address| address.parse().ok());
        address.is_some()
    });
    (sidecar, address.expect("an address"))
}

/// Sends a request and returns the connection, from which the beginning of the answer was read.
fn request(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(seconds(30))).expect("a time limit");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("a request");
    let mut head = [0; 15];
    stream.read_exact(&mut head).expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 200 OK", "{path}");
    stream
}

#[test]
fn a_signal_ends_the_page_in_order_while_connections_are_open() {
    let db = TestDb::new();
    let (mut sidecar, address) = served_by_program(&db, &own_address(4));
    let connect = || TcpStream::connect(address).expect("a connection");
    // Silent ones, some with half a request, one that waits for its next request, and streams.
    let mut open: Vec<TcpStream> = (0..20).map(|_| connect()).collect();
    for half in &mut open[..10] {
        half.write_all(b"GET /api/tasks HTTP/1.1\r\nHost: ").expect("half a request");
    }
    open.push(request(address, "/api/status"));
    open.extend((0..10).map(|_| request(address, "/changes")));
    let begin = Instant::now();
    sidecar.terminate();
    // The time is the subject: the limits of the page would end the connections after five seconds.
    assert!(begin.elapsed() < patience() / 12, "it waited for a connection: {:?}", begin.elapsed());
    assert!(sidecar.log().contains("scheduler stopped"), "{}", sidecar.log());
    for stream in &mut open {
        let end = stream.read_to_end(&mut Vec::new());
        assert!(end.is_ok() || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    }
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused, "nothing listens");
    assert_eq!(db.registered_schedulers(), 0);
}

#[test]
fn what_cannot_be_served_is_refused_with_what_to_do() {
    let db = TestDb::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let used = listener.local_addr().expect("an address").to_string();
    let in_use = format!("cannot listen on {used}: Address already in use (os error 98); end the program that uses it");
    let loopback = "expected an address of the loopback interface, such as 127.0.0.1:8629, found 0.0.0.0:8629: the page has no \
                    passwords; other machines reach it through ssh -L 8629:127.0.0.1:8629, or a proxy";
    for (options, code, says) in [
        (&["--http", "0.0.0.0:8629"][..], 2, format!("invalid --http \"0.0.0.0:8629\": {loopback}").as_str()),
        (&["--http", "8629"], 2, "invalid --http \"8629\": expected an address such as 127.0.0.1:8629"),
        (&["--http", "localhost:http"], 2, "invalid --http \"localhost:http\": expected a port of 0 to 65535"),
        (&["--http", &used], 1, &in_use),
        // Options of the page need it.
        (&["--http-actions"], 2, "--http <ADDR>"),
        (&["--metrics-per-task"], 2, "--http <ADDR>"),
    ] {
        let output = db.duly(&[&["run", "--create"], options].concat()).output().expect("the program");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(says) && output.status.code() == Some(code), "{options:?}: {error}");
    }
    assert!(!db.file().exists() || db.registered_schedulers() == 0, "nothing was started");
}
