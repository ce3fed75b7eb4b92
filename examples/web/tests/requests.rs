//! Starts the server, sends a mail, looks it up, repeats the request, restarts the server, and stops it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

struct Server {
    process: Child,
    output: BufReader<ChildStdout>,
    address: String,
}

impl Server {
    fn start(file: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_web"));
        let mut process = command.arg(file).arg("127.0.0.1:0").stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect("the address").to_owned();
        Server { process, output, address }
    }

    /// Returns the status code and the body.
    fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a response");
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn look_up(&self, id: &str) -> Value {
        serde_json::from_str(&self.request("GET", &format!("/mails/{id}"), "").1).unwrap()
    }

    /// Stops it as a service manager does. Returns its last line.
    fn stop(mut self) -> String {
        assert!(Command::new("kill").arg(self.process.id().to_string()).status().unwrap().success());
        let mut last = String::new();
        self.output.read_line(&mut last).unwrap();
        assert!(self.process.wait().unwrap().success());
        last.trim().to_owned()
    }
}

fn wait_until_sent(server: &Server, id: &str) -> Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let run = server.look_up(id);
        if run["status"] == "succeeded" {
            return run;
        }
        assert!(Instant::now() < deadline, "{run}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(unix)]
#[test]
fn a_mail_is_accepted_sent_once_and_shown() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("web.db");
    let server = Server::start(&file);
    let mail = json!({ "id": "order-7", "to": "anna@example.org" }).to_string();
    assert_eq!(server.request("POST", "/mails", &mail).0, 202);
    let run = wait_until_sent(&server, "order-7");
    assert_eq!((&run["attempt"], &run["result"]), (&json!(1), &json!("accepted for anna@example.org")));
    // The repeated request is answered, and nothing is sent again.
    assert_eq!(server.request("POST", "/mails", &mail).0, 200);
    assert_eq!(server.look_up("order-7")["id"], run["id"]);

    assert_eq!(server.request("GET", "/mails/unknown", "").0, 404);
    assert_eq!(server.request("POST", "/mails", "{}").0, 422);
    let status: Value = serde_json::from_str(&server.request("GET", "/status", "").1).unwrap();
    assert!(status.is_object(), "{status}");
    assert_eq!(server.stop(), "stopped, 0 unfinished");

    // Everything is in the file: the next process knows the mail, and sends others.
    let server = Server::start(&file);
    assert_eq!(server.look_up("order-7"), run);
    assert_eq!(server.request("POST", "/mails", &mail.replace("order-7", "order-8")).0, 202);
    wait_until_sent(&server, "order-8");
    assert_eq!(server.stop(), "stopped, 0 unfinished");
}
