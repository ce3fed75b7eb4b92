//! The server with short limits, and with answers that no page gives.

use std::future::pending;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};

use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::model::limit::Limit;
use crate::page::answer::answered;
use crate::page::guard::Guard;
use crate::page::limits::Limits;
use crate::page::server::Server;
use crate::store::Store;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::file::{Durability, Missing};
use crate::waits::patience;

/// A short limit. Each server has one: under the others, a busy machine answers as usual.
const TIME: Duration = Duration::from_millis(500);

fn serve(limits: Limits) -> (Server, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/", get(async || "here"))
        .route("/form", post(async || "taken"))
        .route("/large", get(async || "x".repeat(64 << 20)))
        .route("/hanging", get(async || pending::<&str>().await))
        .route("/panic", get(async || -> &str { panic!("a planted panic") }))
        .route(
            "/panic/data",
            get(async || answered("text/plain", || -> Result<String> { panic!("a planted panic") }).await),
        );
    let router = Guard::new(&[address], limits).around(router);
    (Server::start(vec![listener], limits, router, pending()).unwrap(), address)
}

fn connect(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(patience())).unwrap();
    stream.write_all(request.replace("HOST", &format!("Host: {address}\r\n")).as_bytes()).unwrap();
    stream
}

/// Reads until the server closes the connection.
fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn status(address: SocketAddr, path: &str) -> String {
    let answer = rest(&mut connect(address, &format!("GET {path} HTTP/1.1\r\nHOSTConnection: close\r\n\r\n")));
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

/// Reads an answer that leaves the connection open.
fn here(stream: &mut TcpStream) {
    let (mut text, mut bytes) = (String::new(), [0; 1024]);
    while !text.ends_with("here") {
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "{text:?}");
        text.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
}

#[test]
fn a_panic_is_an_answer_and_the_server_continues() {
    let (_server, address) = serve(Limits::default());
    for path in ["/panic", "/panic/data", "/panic"] {
        assert_eq!(status(address, path), "500", "{path}");
    }
    assert_eq!(status(address, "/"), "200");
}

#[test]
fn slow_requests_end_at_their_limit() {
    let (_server, address) = serve(Limits { head: TIME, ..Limits::default() });
    // A byte now and then does not extend the limit.
    let mut dripping = connect(address, "GET / HT");
    dripping.set_nonblocking(true).unwrap();
    let clock = SystemClock::new();
    loop {
        assert!(clock.now().monotonic < patience(), "a dripping client is still served");
        match dripping.read(&mut [0; 64]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let _ = dripping.write(b"x");
        std::thread::yield_now();
    }
    assert_eq!(rest(&mut connect(address, "")), "");
    let mut idle = connect(address, "GET / HTTP/1.1\r\nHOST\r\n");
    here(&mut idle);
    assert_eq!(rest(&mut idle), "");
    let post = "POST /form HTTP/1.1\r\nHOSTConnection: close\r\nContent-Length: 10\r\n\r\n";
    let (_server, address) = serve(Limits { body: TIME, ..Limits::default() });
    assert!(rest(&mut connect(address, post)).starts_with("HTTP/1.1 408"));
    let (_server, address) = serve(Limits { answer: TIME, ..Limits::default() });
    assert_eq!(status(address, "/hanging"), "503");
    let (_server, address) = serve(Limits::default());
    assert!(rest(&mut connect(address, &format!("{post}0123456789"))).starts_with("HTTP/1.1 200"));
}

#[test]
fn a_slow_reader_loses_its_answer() {
    let (_server, address) = serve(Limits { write: TIME, ..Limits::default() });
    let request = "GET /large HTTP/1.1\r\nHOSTConnection: close\r\n\r\n";
    let mut slow = connect(address, request);
    slow.read_exact(&mut [0; 100]).unwrap();
    // Others are served meanwhile. It is closed without a read of this client: the next write fails.
    let clock = SystemClock::new();
    while slow.write(b"x").is_ok() {
        assert_eq!(status(address, "/"), "200");
        assert!(clock.now().monotonic < patience(), "a slow reader is still served");
    }
    assert!(rest(&mut slow).len() < 64 << 20);
    // With the usual limit: how fast it is depends on the machine.
    let (_server, address) = serve(Limits::default());
    let mut fast = connect(address, request);
    assert!(rest(&mut fast).len() > 64 << 20);
}

#[test]
fn the_oldest_connection_that_makes_no_answer_is_closed_for_a_new_one() {
    let (_server, address) = serve(Limits { connections: 4, ..Limits::default() });
    let mut answering = connect(address, "GET /hanging HTTP/1.1\r\nHOST\r\n");
    let mut idle: Vec<_> = (0..3).map(|_| connect(address, "GET / HTTP/1.1\r\nHOST\r\n")).collect();
    idle.iter_mut().for_each(here);
    assert_eq!(status(address, "/"), "200");
    assert_eq!(rest(&mut idle[0]), "");
    for stream in &mut idle[1..] {
        write!(stream, "GET / HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
        here(stream);
    }
    answering.set_nonblocking(true).unwrap();
    assert_eq!(answering.read(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
    // If all of them make an answer, the oldest one makes room.
    answering.set_nonblocking(false).unwrap();
    let _hanging: Vec<_> = (0..4).map(|_| connect(address, "GET /hanging HTTP/1.1\r\nHOST\r\n")).collect();
    assert_eq!(rest(&mut answering), "");
    assert_eq!(status(address, "/"), "200");
}

#[test]
fn a_server_ends_at_once_beside_work_that_does_not() {
    let (server, address) = serve(Limits::default());
    let mut held =
        [connect(address, ""), connect(address, "GET /hanging HTTP/1.1\r\nHOST\r\n"), connect(address, "GET")];
    let clock = SystemClock::new();
    drop(server);
    assert!(clock.now().monotonic < Duration::from_secs(3), "{:?}", clock.now().monotonic);
    for stream in &mut held {
        assert_eq!(rest(stream), "");
    }
}

#[test]
fn the_reader_cannot_write() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("agent.db");
    let now = "2027-03-14T12:00:00Z".parse().unwrap();
    let limit = Limit::key("smtp", 2);
    let mut reader = SqliteStore::open(&file, Missing::Create, Durability::Full).unwrap();
    assert!(Store::set_limit(&mut reader, &limit).is_ok());
    reader.refuse_writes().unwrap();
    let refused = Store::remove_limit(&mut reader, &limit.on()).unwrap_err();
    let mut causes = String::new();
    let mut cause: Option<&dyn std::error::Error> = Some(&refused);
    while let Some(error) = cause {
        causes = format!("{causes}: {error}");
        cause = error.source();
    }
    assert!(causes.contains("readonly"), "{causes}");
    assert_eq!(Store::limits(&mut reader, now).unwrap().len(), 1);
    assert_eq!(Store::status(&mut reader, now).unwrap().due, 0);
}
