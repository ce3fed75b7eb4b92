//! `duly run --http`: the address in the log, refused addresses, an orderly end with open connections.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use crate::fixtures::{TestDb, eventually, patience, seconds};
use crate::sidecar::Sidecar;

/// Starts `duly run` with the page, and returns the address that its log shows.
fn start(db: &TestDb, options: &[&str]) -> (Sidecar, String) {
    let sidecar = Sidecar::start(db, &[&["--create", "--http", "127.0.0.1:0"], options].concat());
    let mut address = None;
    eventually("the address is logged", || {
        let log = sidecar.log();
        let shown = log.split_once("status page on http://").and_then(|(_, rest)| rest.split_once("/\n"));
        address = shown.map(|(address, _)| address.to_owned());
        address.is_some()
    });
    (sidecar, address.expect("an address"))
}

/// Sends a request and returns the connection, from which the beginning of the answer was read.
fn request(address: &str, path: &str) -> TcpStream {
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
    let (db, _client) = TestDb::with_client();
    let (mut sidecar, address) = start(&db, &[]);
    let silent = TcpStream::connect(&address).expect("a connection");
    let kept = request(&address, "/api/status");
    let stream = request(&address, "/changes");
    let mut half = TcpStream::connect(&address).expect("a connection");
    half.write_all(b"GET /api/tasks HTTP/1.1\r\nHost: ").expect("half a request");
    let begin = Instant::now();
    sidecar.terminate();
    // The time is the subject: the limits of the page would end the connections after five seconds.
    assert!(begin.elapsed() < patience() / 12, "it waited for a connection: {:?}", begin.elapsed());
    assert!(sidecar.log().contains("scheduler stopped"), "{}", sidecar.log());
    for mut open in [silent, kept, stream, half] {
        // Closed or reset.
        let _ = open.read_to_end(&mut Vec::new());
    }
    assert!(TcpStream::connect(&address).is_err(), "nothing listens");
    assert_eq!(db.registered_schedulers(), 0);
}

#[test]
fn an_address_that_cannot_be_used_is_refused_with_what_to_do() {
    let db = TestDb::new();
    for (address, says) in [
        (
            "0.0.0.0:8629",
            "error: invalid --http: expected an address of the loopback interface, such as 127.0.0.1:8629, found 0.0.0.0:8629: \
                          the page has no passwords; other machines reach it through ssh -L 8629:127.0.0.1:8629, or a proxy",
        ),
        ("8629", "error: invalid --http: expected an address such as 127.0.0.1:8629, found \"8629\""),
        ("localhost:http", "error: invalid --http: expected a port of 0 to 65535, found \"http\""),
    ] {
        let output = db.duly(&["run", "--create", "--http", address]).output().expect("the program");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(says), "{error}");
        assert_eq!(output.status.code(), Some(1), "{error}");
    }
}

#[test]
fn an_address_in_use_is_named() {
    let (db, _client) = TestDb::with_client();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address").to_string();
    let output = db.duly(&["run", "--create", "--http", &address]).output().expect("the program");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let says = format!(
        "error: invalid --http: cannot listen on {address}: Address already in use (os error 98); end the program that uses it"
    );
    assert!(error.contains(&says), "{error}");
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_eq!(db.registered_schedulers(), 0, "nothing was started");
}

#[test]
fn options_of_the_page_need_it() {
    let db = TestDb::new();
    for option in ["--http-actions", "--metrics-per-task"] {
        let output = db.duly(&["run", "--create", option]).output().expect("the program");
        assert_eq!(output.status.code(), Some(2), "{option}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("--http <ADDR>"), "{option}");
    }
}
