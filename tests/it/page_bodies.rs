//! Requests with a body that no browser sends: a body whose length is stated twice, and bodies of other methods than POST.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use duly::page::Page;
use duly::{NewTask, Scheduler};

use crate::fixtures::{TestDb, patience};
use crate::page_run::request;

/// Sends a request, and returns the head of the answer.
fn head(address: SocketAddr, line: &str, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(patience())).expect("a time limit");
    let text = format!("{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n{body}");
    stream.write_all(text.as_bytes()).expect("a request");
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut part = [0; 1024];
        match stream.read(&mut part).expect("an answer") {
            0 => break,
            length => answer.extend(&part[..length]),
        }
    }
    String::from_utf8(answer).expect("a text").to_lowercase()
}

#[test]
fn an_action_in_chunks_is_refused_and_other_methods_are_not_allowed_whatever_their_body() {
    let db = TestDb::new();
    let scheduler = Scheduler::builder(db.file()).page(Page::on("127.0.0.1:0").actions()).start().expect("a scheduler");
    scheduler.add(NewTask::manual("job").handler("none")).expect("a task");
    let address = scheduler.page_address().expect("a page");
    let page = request(address, "/tasks/job", "text/html").text;
    let field = |name: &str| {
        let (_, rest) = page.split_once(&format!("name=\"{name}\" value=\"")).expect("a field");
        format!("{name}={}", rest.split('"').next().expect("a value"))
    };
    let form = format!("{}&{}", field("token"), field("task"));
    let chunks = format!("{:x}\r\n{form}\r\n0\r\n\r\n", form.len());
    let (kind, chunked) = ("Content-Type: application/x-www-form-urlencoded\r\n", "Transfer-Encoding: chunked\r\n");
    // A proxy that believes the length would take the rest for the next request.
    let length = "Content-Length: 5\r\n";
    for headers in [[chunked, length], [length, chunked], [chunked, ""]] {
        let answer = head(address, "POST /tasks/job/trigger", &format!("{kind}{}", headers.concat()), &chunks);
        assert!(answer.starts_with("http/1.1 411 ") || answer.starts_with("http/1.1 400 "), "{headers:?}: {answer}");
    }
    assert!(db.runs().is_empty(), "nothing was triggered");
    for (target, allow) in [("/", "get,head"), ("/tasks/job/trigger", "post")] {
        for headers in ["Content-Length: 3\r\n", "Content-Length: 10000000000\r\n", chunked] {
            let answer = head(address, &format!("PUT {target}"), headers, "3\r\nabc\r\n0\r\n\r\n");
            let allows = answer.contains(&format!("allow: {allow}\r\n"));
            assert!(answer.starts_with("http/1.1 405 ") && allows, "{target}, {headers}: {answer}");
        }
    }
    let length = format!("{kind}Content-Length: {}\r\n", form.len());
    assert!(
        head(address, "POST /tasks/job/trigger", &length, &form).starts_with("http/1.1 303 "),
        "with its length alone"
    );
}
