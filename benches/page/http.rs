//! A client of the page: one connection for each request.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Paths that are the same for every file of `rows.sql`, one in each line.
pub(crate) const PATHS: &str = include_str!("paths.txt");

/// Returns the status and the length of the body of an answer.
pub(crate) fn get(address: SocketAddr, path: &str) -> (u16, usize) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit");
    stream.write_all(head(address, path).as_bytes()).expect("a request");
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let (Ok(_), Some(end)) = (read, end) else { return (0, 0) };
    let status = std::str::from_utf8(&answer[9..12]).ok().and_then(|status| status.parse().ok());
    (status.unwrap_or(0), answer.len() - end - 4)
}

pub(crate) fn head(address: SocketAddr, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
}
