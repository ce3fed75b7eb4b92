//! The server of the status page: it refuses foreign and oversized requests, stays reachable beside clients that block it, and
//! records each action with its event.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use duly::page::Page;
use duly::{NewTask, Scheduler};

use crate::fixtures::{TestDb, eventually, eventually_refused, far_future, seconds, skip};
#[cfg(target_os = "linux")]
use crate::page_sidecar::served_by_program;

/// A scheduler that runs nothing, with its page.
struct Served {
    db: TestDb,
    scheduler: Scheduler,
    address: SocketAddr,
}

impl Served {
    fn new(page: Page) -> Self {
        let db = TestDb::new();
        let scheduler = Scheduler::builder(db.file()).page(page).start().unwrap();
        let address = scheduler.page_address().unwrap();
        Served { db, scheduler, address }
    }

    fn reading() -> Self {
        Self::new(Page::on("127.0.0.1:0"))
    }

    /// With the task `holder`, whose page has a form with the token.
    fn with_actions() -> Self {
        Self::acting_on("127.0.0.1:0")
    }

    fn acting_on(address: &str) -> Self {
        let served = Self::new(Page::on(address).actions());
        served.scheduler.add(NewTask::manual("holder").handler("elsewhere")).unwrap();
        served
    }

    /// Sends a request with the right `Host`. `lines`: further headers.
    fn ask(&self, method: &str, target: &str, lines: &str, body: &str) -> Answer {
        let host = self.address;
        exchange(host, &format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{lines}\r\n{body}"))
    }

    fn get(&self, target: &str) -> Answer {
        self.ask("GET", target, "", "")
    }

    /// Posts a form.
    fn post(&self, target: &str, form: &str) -> Answer {
        let lines = format!("Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n", form.len());
        self.ask("POST", target, &lines, form)
    }

    /// Posts a form with the token, which a page with a button holds and SQL cannot read, and with the id of the task, if it is of one.
    fn act(&self, target: &str) -> Answer {
        let path = target.replace("%2F", "/").replace("%3A", ":").replace("%40", "@");
        let tasks = self.scheduler.client().tasks().expect("the tasks");
        let task = tasks.iter().find(|task| path.starts_with(&format!("/tasks/{}/", task.definition.name)));
        let id = task.map(|task| format!("&task={}", task.id)).unwrap_or_default();
        self.post(target, &format!("token={}{id}", self.token()))
    }

    /// Returns the hidden fields of the first form of a page, as they are posted.
    fn form(&self, page: &str) -> String {
        let text = self.get(page).text;
        let form = text.split("<form class=\"action\"").nth(1).expect("a form");
        let fields = form.split("</form>").next().into_iter().flat_map(|form| form.split("name=\"").skip(1));
        let field = |field: &str| {
            field
                .split_once("\" value=\"")
                .map(|(name, value)| format!("{name}={}", &value[..value.find('"').unwrap()]))
        };
        fields.filter_map(field).collect::<Vec<_>>().join("&")
    }

    fn token(&self) -> String {
        let page = self.get("/tasks/holder").text;
        let at = page.find("name=\"token\" value=\"").expect("a form with a token") + "name=\"token\" value=\"".len();
        page[at..at + 32].to_owned()
    }

    fn actions(&self) -> Vec<String> {
        self.db.rows("SELECT task_id, run_id, detail FROM scheduler_events WHERE kind = 'action' ORDER BY id")
    }
}

/// An address for one test, on which nothing answers once it has ended: a port of 127.0.0.1 that becomes free may be given to another
/// test at once.
pub(crate) fn own_address(host: u8) -> String {
    format!("127.0.0.{}:0", if cfg!(target_os = "linux") { host } else { 1 })
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    text: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}:")))?;
        Some(line.split_once(':')?.1.trim())
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(seconds(30))).unwrap();
    stream.set_write_timeout(Some(seconds(30))).unwrap();
    stream
}

/// Sends a request, and reads until the server closes the connection.
fn exchange(address: SocketAddr, request: &str) -> Answer {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).expect("a request");
    answer(&mut stream)
}

fn answer(stream: &mut TcpStream) -> Answer {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, head: head.to_owned(), text: body.to_owned() }
}

/// Reads until `expected` has come.
fn read_until(stream: &mut TcpStream, expected: &str) -> String {
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    while !text.contains(expected) {
        let count = stream.read(&mut bytes).unwrap_or_else(|error| panic!("{error}, after {text:?}"));
        assert!(count > 0, "closed after {text:?}");
        text.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    text
}

#[test]
fn only_its_own_host_is_answered() {
    let served = Served::reading();
    let (address, port) = (served.address, served.address.port());
    let ask = |lines: &str| exchange(address, &format!("GET / HTTP/1.1\r\nConnection: close\r\n{lines}\r\n"));
    for own in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}")] {
        assert_eq!(ask(&format!("Host: {own}\r\n")).status, 200, "{own}");
        let absolute = format!("GET http://{own}/ HTTP/1.1\r\nHost: {own}\r\nConnection: close\r\n\r\n");
        assert_eq!(exchange(address, &absolute).status, 200, "{own}");
    }
    let own = format!("Host: localhost:{port}\r\n");
    for foreign in [
        String::new(),
        "Host:\r\n".to_owned(),
        format!("Host: evil.example:{port}\r\n"),
        format!("Host: localhost.evil.example:{port}\r\n"),
        format!("Host: localhost.:{port}\r\n"),
        format!("Host: LOCALHOST:{port}\r\n"),
        format!("Host: 0.0.0.0:{port}\r\n"),
        format!("Host: user@localhost:{port}\r\n"),
        "Host: localhost\r\n".to_owned(),
        format!("Host: localhost:{}\r\n", port - 1),
        format!("{own}{own}"),
        format!("{own}Host: evil.example\r\n"),
    ] {
        let answer = ask(&foreign);
        assert_eq!(answer.status, 421, "{foreign:?}");
        assert!(answer.text.contains(&format!("open http://{address}/ ")), "{foreign:?}: {}", answer.text);
    }
    let target = format!("GET http://evil.example/ HTTP/1.1\r\n{own}Connection: close\r\n\r\n");
    assert_eq!(exchange(address, &target).status, 421);
    assert_eq!(exchange(address, "GET / HTTP/1.0\r\n\r\n").status, 421);
}

#[test]
fn requests_of_other_sites_are_refused() {
    let served = Served::reading();
    let port = served.address.port();
    for lines in [
        format!("Origin: http://127.0.0.1:{port}\r\n"),
        format!("Origin: http://localhost:{port}\r\n"),
        "Sec-Fetch-Site: same-origin\r\n".to_owned(),
        "Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\n".to_owned(),
    ] {
        assert_eq!(served.ask("GET", "/", &lines, "").status, 200, "{lines:?}");
    }
    for lines in [
        "Origin: http://evil.example\r\n".to_owned(),
        "Origin: null\r\n".to_owned(),
        "Origin:\r\n".to_owned(),
        format!("Origin: https://127.0.0.1:{port}\r\n"),
        format!("Origin: http://127.0.0.1:{}\r\n", port - 1),
        format!("Origin: http://127.0.0.1:{port}/\r\n"),
        format!("Origin: http://127.0.0.1:{port}\r\nOrigin: http://evil.example\r\n"),
        "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n".to_owned(),
        "Sec-Fetch-Site: same-site\r\n".to_owned(),
        "Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site\r\n".to_owned(),
    ] {
        for target in ["/", "/page.css", "/metrics", "/api/status", "/changes", "/unknown"] {
            assert_eq!(served.ask("GET", target, &lines, "").status, 403, "{target} {lines:?}");
        }
    }
}

#[test]
fn other_methods_and_unknown_paths_are_refused() {
    let served = Served::reading();
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
        let answer = served.ask(method, "/", "", "");
        assert_eq!((answer.status, answer.header("allow")), (405, Some("GET,HEAD")), "{method}");
    }
    for path in ["/api", "/api/", "/api/unknown", "/api/runs/"] {
        let answer = served.get(path);
        assert_eq!((answer.status, answer.header("content-type")), (404, Some("application/json")), "{path}");
    }
    let head = served.ask("HEAD", "/", "", "");
    assert_eq!((head.status, head.text.as_str()), (200, ""));
    let unknown = "
        /unknown // /page.css/ /page.css/../../Cargo.toml /../../etc/passwd /%2e%2e/%2e%2e/etc/passwd
        /..%2f..%2fetc%2fpasswd /agent.db /tasks/a/b /runs/abc /runs/%ff /runs/99999999999999999999
        /tasks/digest/trigger";
    for path in unknown.split_whitespace() {
        assert_eq!(served.get(path).status, 404, "{path}");
    }
    // Without actions there are no routes that change anything.
    for path in
        ["/tasks/digest/trigger", "/tasks/digest/pause", "/tasks/digest/resume", "/runs/1/cancel", "/runs/1/retry"]
    {
        assert_eq!(served.post(path, "token=0").status, 404, "{path}");
    }
    let served = Served::with_actions();
    let answer = served.get("/tasks/digest/trigger");
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
    assert_eq!(served.get("/runs/1/remove").status, 404);
}

#[test]
fn large_requests_are_refused_before_they_are_read() {
    let served = Served::with_actions();
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let huge = format!("{form}Content-Length: 10000000000\r\n");
    for (method, target) in [("GET", "/"), ("HEAD", "/"), ("POST", "/"), ("POST", "/tasks/a/trigger")] {
        assert_eq!(served.ask(method, target, &huge, "some bytes").status, 413, "{method} {target}");
    }
    assert_eq!(served.ask("GET", "/", "Content-Length: 1\r\n", "x").status, 413);
    assert_eq!(served.ask("GET", "/", "Content-Length: 0\r\n", "").status, 200);
    assert_eq!(served.ask("GET", "/", "Transfer-Encoding: chunked\r\n", "1\r\nx\r\n0\r\n\r\n").status, 413);
    assert_eq!(served.post("/tasks/a/trigger", &"x".repeat(5000)).status, 413);
    let chunk = format!("1388\r\n{}\r\n0\r\n\r\n", "x".repeat(5000));
    let chunked = format!("{form}Transfer-Encoding: chunked\r\n");
    assert_eq!(served.ask("POST", "/tasks/a/trigger", &chunked, &chunk).status, 411);
    let query = |length| format!("/?{}", "x".repeat(length));
    assert_eq!(served.get(&query(8000)).status, 200);
    assert_eq!(served.get(&query(8200)).status, 414);
    assert_eq!(served.get(&query(20_000)).status, 431);
    assert_eq!(served.ask("GET", "/", &format!("Cookie: {}\r\n", "x".repeat(12_000)), "").status, 200);
    assert_eq!(served.ask("GET", "/", &format!("Cookie: {}\r\n", "x".repeat(20_000)), "").status, 431);
    assert_eq!(served.ask("GET", "/", &"a: b\r\n".repeat(70), "").status, 431);
    assert_eq!(served.get("/").status, 200);
}

#[test]
fn every_answer_has_the_headers_that_bind_a_browser() {
    let served = Served::reading();
    let answers = [
        ("page", served.get("/"), 200),
        ("style", served.get("/page.css"), 200),
        ("script", served.get("/page.js"), 200),
        ("metrics", served.get("/metrics"), 200),
        ("unknown", served.get("/unknown"), 404),
        ("method", served.ask("POST", "/", "", ""), 405),
        ("origin", served.ask("GET", "/", "Origin: null\r\n", ""), 403),
        ("host", exchange(served.address, "GET / HTTP/1.1\r\nHost: evil\r\nConnection: close\r\n\r\n"), 421),
        ("body", served.ask("GET", "/", "Content-Length: 1\r\n", "x"), 413),
    ];
    for (what, answer, status) in answers {
        assert_eq!(answer.status, status, "{what}");
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(policy.starts_with("default-src 'none'; style-src 'self'; script-src 'self'"), "{what}: {policy}");
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{what}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{what}");
        assert_eq!(answer.header("referrer-policy"), Some("same-origin"), "{what}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{what}");
        assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"), "{what}");
        assert!(!answer.head.to_lowercase().contains("access-control"), "{what}: {}", answer.head);
    }
}

#[test]
fn an_action_leaves_one_event_that_names_the_page() {
    let served = Served::with_actions();
    let (db, client) = (&served.db, served.scheduler.client());
    client.add(NewTask::manual("report/daily:x@y").handler("elsewhere")).unwrap();
    let id = client.task("report/daily:x@y").unwrap().unwrap().id;
    let task = "/tasks/report%2Fdaily%3Ax%40y";
    let leads_to = |answer: Answer, page: &str| {
        assert_eq!((answer.status, answer.header("location")), (303, Some(page)), "{answer:?}");
    };
    leads_to(served.act(&format!("{task}/trigger")), "/runs/1");
    leads_to(served.act(&format!("{task}/pause")), task);
    leads_to(served.act(&format!("{task}/resume")), task);
    leads_to(served.act("/runs/1/cancel"), "/runs/1");
    leads_to(served.act("/runs/1/retry"), "/runs/2");
    let expected = [
        format!("{id}|1|page: trigger"),
        format!("{id}|-|page: pause"),
        format!("{id}|-|page: resume"),
        format!("{id}|1|page: cancel"),
        format!("{id}|2|page: retry"),
    ];
    assert_eq!(served.actions(), expected);
    assert_eq!(db.rows("SELECT id, status, retry_of FROM task_runs ORDER BY id"), ["1|cancelled|-", "2|queued|1"]);
    db.assert_sound();
}

#[test]
fn a_form_acts_on_the_task_that_its_page_showed() {
    let served = Served::with_actions();
    let client = served.scheduler.client();
    client.add(far_future("digest").handler("elsewhere")).unwrap();
    let old = served.form("/tasks/digest");
    assert_eq!(served.post("/tasks/digest/pause", &old).status, 303);
    assert_eq!(served.post("/tasks/digest/resume", &old).status, 303);
    client.remove("digest").unwrap();
    assert_eq!(served.post("/tasks/digest/trigger", &old).status, 404);
    client.add(far_future("digest").handler("elsewhere")).unwrap();
    let token = format!("token={}", served.token());
    let (other, unnamed) = ("another one has its name: load the page again", "does not say which task its page showed");
    for (form, reason) in [(&old, other), (&format!("{token}&task=x"), other), (&token, unnamed)] {
        for action in ["trigger", "pause", "resume"] {
            let refused = served.post(&format!("/tasks/digest/{action}"), form);
            assert!(refused.status == 409 && refused.text.contains(reason), "{action} by {form}: {refused:?}");
        }
    }
    assert_eq!(served.db.rows("SELECT id FROM task_runs"), Vec::<String>::new());
    assert_eq!(served.post("/tasks/digest/trigger", &served.form("/tasks/digest")).status, 303);
    assert_eq!(served.db.rows("SELECT task, status FROM task_runs JOIN (SELECT name AS task, id AS of FROM scheduled_tasks) ON of = task_id"), ["digest|queued"]);
}

#[test]
fn a_refused_action_leaves_nothing() {
    let served = Served::with_actions();
    let client = served.scheduler.client();
    client.add(NewTask::manual("digest").handler("elsewhere")).unwrap();
    client.trigger("digest").unwrap();
    let (token, before) = (served.token(), served.db.rows("SELECT * FROM scheduler_events"));
    let other = token.replace(|digit: char| digit == token.chars().next().unwrap(), "x");
    let trigger = "/tasks/digest/trigger";
    for form in [
        "",
        "token=",
        "a=b",
        &format!("token={other}"),
        &format!("token={token}0"),
        &token,
        &format!("token={}", &token[..31]),
    ] {
        assert_eq!(served.post(trigger, form).status, 403, "{form}");
    }
    assert_eq!(served.ask("POST", &format!("{trigger}?token={token}"), "", "").status, 415);
    let form = format!("token={token}");
    let posted = |lines: &str| {
        let length = form.len();
        served.ask("POST", trigger, &format!("Content-Length: {length}\r\n{lines}"), &form).status
    };
    assert_eq!(posted("Content-Type: text/plain\r\n"), 415);
    assert_eq!(posted(""), 415);
    assert_eq!(posted("Content-Type: application/x-www-form-urlencoded\r\nOrigin: http://evil.example\r\n"), 403);
    assert_eq!(served.act("/tasks/unknown/trigger").status, 404);
    assert_eq!(served.act("/runs/99/cancel").status, 404);
    let refused = served.act("/runs/1/retry");
    assert_eq!(refused.status, 409);
    assert!(refused.text.contains("cannot retry run 1: it is not over: queued"), "{}", refused.text);
    assert_eq!(served.db.rows("SELECT * FROM scheduler_events"), before);
    assert_eq!(served.db.ask("SELECT count(*) FROM task_runs"), "1");
}

#[test]
fn an_action_whose_event_cannot_be_written_is_not_performed() {
    let served = Served::with_actions();
    let client = served.scheduler.client();
    client.add(far_future("digest").handler("elsewhere")).unwrap();
    let run = client.trigger("digest").unwrap();
    let fault = "CREATE TRIGGER fault BEFORE INSERT ON scheduler_events WHEN NEW.kind = 'action' BEGIN \
                 SELECT RAISE(ABORT, 'no space for events'); END";
    served.db.plain().execute_batch(fault).unwrap();
    for path in ["/tasks/digest/trigger", "/tasks/digest/pause", &format!("/runs/{run}/cancel")] {
        assert_eq!(served.act(path).status, 503, "{path}");
    }
    let answer = served.act("/tasks/digest/pause");
    assert!(answer.text.contains("no space for events"), "{}", answer.text);
    assert!(!answer.text.contains("cannot be read"), "the page has just been read: {}", answer.text);
    assert_eq!(served.db.rows("SELECT id, status FROM task_runs"), [format!("{run}|queued")]);
    assert_eq!(served.db.ask("SELECT status FROM scheduled_tasks WHERE name = 'digest'"), "active");
    served.db.plain().execute_batch("DROP TRIGGER fault").unwrap();
    assert_eq!(served.act("/tasks/digest/pause").status, 303);
    assert_eq!(served.actions().len(), 1);
}

#[test]
fn actions_that_wait_for_a_lock_are_refused_and_do_not_delay_pages() {
    let served = Served::with_actions();
    let form = served.form("/tasks/holder");
    let other = served.db.plain();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    thread::scope(|scope| {
        let act = || served.post("/tasks/holder/trigger", &form);
        let actions: Vec<_> = (0..3).map(|_| scope.spawn(act)).collect();
        let mut pages = 0;
        for _ in 0..10 {
            assert_eq!(served.get("/").status, 200);
            pages += u32::from(actions.iter().all(|action| !action.is_finished()));
        }
        assert!(pages > 0, "a page waited for the actions");
        for action in actions {
            let answer = action.join().unwrap();
            let says_why =
                ["nothing was changed", "database is locked"].iter().any(|reason| answer.text.contains(reason));
            assert!(answer.status == 503 && says_why, "{answer:?}");
        }
    });
    other.execute_batch("COMMIT").unwrap();
    assert_eq!(served.post("/tasks/holder/trigger", &form).status, 303);
    assert_eq!(served.db.ask("SELECT count(*) FROM task_runs"), "1", "those that were refused are not performed later");
    assert_eq!(served.actions().len(), 1);
}

#[test]
fn the_page_of_a_scheduler_that_stopped_by_itself_reports_it() {
    let served = Served::acting_on(&own_address(2));
    let token = format!("token={}", served.token());
    std::fs::remove_file(served.db.file()).unwrap();
    eventually("the scheduler stops", || served.scheduler.has_stopped());
    for (path, reason) in [
        ("/livez", "the scheduler has stopped"),
        ("/healthz", "removed or moved"),
        ("/", "removed or moved"),
        ("/api/status", "removed or moved"),
        ("/metrics", "duly_database_readable 0"),
    ] {
        // What was read before is kept for a second.
        eventually(reason, || served.get(path).text.contains(reason));
        assert_eq!(served.get(path).status, if path == "/metrics" { 200 } else { 503 }, "{path}");
    }
    let refused = served.post("/tasks/holder/trigger", &token);
    assert!(refused.status == 503 && refused.text.contains("removed or moved"), "{refused:?}");
    assert!(served.scheduler.shutdown(seconds(20)).is_err());
    eventually_refused(served.address);
}

#[test]
fn a_page_starts_and_ends_within_a_runtime() {
    let mut single = tokio::runtime::Builder::new_current_thread();
    let mut several = tokio::runtime::Builder::new_multi_thread();
    for runtime in [single.enable_all(), several.enable_all()] {
        runtime.build().unwrap().block_on(async {
            let served = Served::acting_on(&own_address(3));
            assert_eq!(served.get("/").status, 200);
            let address = served.address;
            drop(served);
            eventually_refused(address);
            let refused =
                Scheduler::builder(TestDb::new().home().join("missing/agent.db")).page(Page::on("127.0.0.1:0"));
            assert!(refused.start().is_err());
        });
    }
}

#[test]
fn changes_are_announced() {
    let served = Served::reading();
    let client = served.db.client();
    let mut stream = connect(served.address);
    write!(stream, "GET /changes HTTP/1.1\r\nHost: {}\r\n\r\n", served.address).unwrap();
    let head = read_until(&mut stream, "\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{head}");
    for name in ["first", "second", "third"] {
        client.add(far_future(name)).unwrap();
        read_until(&mut stream, "data: changed\n\n");
    }
}

#[test]
fn streams_are_limited() {
    let served = Served::reading();
    let open = || {
        let mut stream = connect(served.address);
        write!(stream, "GET /changes HTTP/1.1\r\nHost: {}\r\n\r\n", served.address).unwrap();
        let head = read_until(&mut stream, "\r\n\r\n");
        (stream, head)
    };
    let mut streams: Vec<_> = (0..16).map(|_| open()).collect();
    assert!(streams.iter().all(|(_, head)| head.starts_with("HTTP/1.1 200")));
    assert!(open().1.starts_with("HTTP/1.1 503"));
    assert_eq!(served.get("/").status, 200);
    streams.pop();
    eventually("a closed stream makes room for another", || open().1.starts_with("HTTP/1.1 200"));
}

/// Returns the number of open descriptors of a process.
#[cfg(target_os = "linux")]
fn descriptors(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count)
}

#[cfg(target_os = "linux")]
#[test]
fn a_thousand_idle_and_dripping_connections_do_not_block_the_page() {
    let db = TestDb::new();
    let (mut sidecar, address) = served_by_program(&db, "127.0.0.1:0");
    let before = descriptors(sidecar.pid());
    let mut held = Vec::new();
    for n in 0..1000 {
        let mut stream = match TcpStream::connect(address) {
            Err(error) if error.raw_os_error() == Some(24) => return skip("the limit of open files is too low"),
            stream => stream.unwrap(),
        };
        match n % 3 {
            0 => {}
            1 => drop(stream.write_all(b"GET / HTTP/1.1\r\nHo")),
            _ => drop(stream.write_all(b"POST /tasks/a/trigger HTTP/1.1\r\nContent-Length: 100\r\nHost: x\r\n\r\ntok")),
        }
        held.push(stream);
        if n % 100 == 99 {
            let answer = exchange(address, &format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"));
            assert_eq!(answer.status, 200, "beside {n} connections");
            let now = descriptors(sidecar.pid());
            assert!(now <= before + 80, "{now} descriptors, {before} before");
        }
    }
    // The oldest ones were closed; the newest ones are open.
    let is_open = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).unwrap();
        matches!(stream.read(&mut [0; 16]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    };
    eventually("the first is closed", || !is_open(&mut held[0]));
    drop(held);
    eventually("all descriptors are returned", || descriptors(sidecar.pid()) <= before + 1);
    sidecar.terminate();
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_without_descriptors_serves_again_when_it_has_some() {
    let tool = std::process::Command::new("prlimit").arg("--version").output();
    if tool.is_err() {
        return skip("no prlimit");
    }
    let db = TestDb::new();
    let (mut sidecar, address) = served_by_program(&db, "127.0.0.1:0");
    let limit = |count: usize| {
        let arguments = ["--pid", &sidecar.pid().to_string(), &format!("--nofile={count}:")];
        assert!(std::process::Command::new("prlimit").args(arguments).status().unwrap().success());
    };
    limit(descriptors(sidecar.pid()) + 4);
    let held: Vec<_> = (0..8).map(|_| connect(address)).collect();
    eventually("it cannot accept", || sidecar.log().contains("cannot accept a connection"));
    limit(1024);
    let answer = exchange(address, &format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"));
    assert_eq!(answer.status, 200);
    assert_eq!(sidecar.log().matches("cannot accept a connection").count(), 1, "{}", sidecar.log());
    drop(held);
    sidecar.terminate();
}

#[test]
fn localhost_is_one_port_of_both_families() {
    let served = Served::new(Page::on("localhost:0"));
    let port = served.address.port();
    assert_eq!(served.get("/").status, 200);
    match TcpStream::connect(("::1", port)) {
        Ok(mut stream) => {
            write!(stream, "GET / HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n").unwrap();
            assert_eq!(answer(&mut stream).status, 200);
        }
        Err(error) => skip(&format!("no IPv6: {error}")),
    }
}

#[test]
fn each_start_has_another_token() {
    let db = TestDb::new();
    let token = || {
        let scheduler = Scheduler::builder(db.file()).page(Page::on("127.0.0.1:0").actions()).start().unwrap();
        scheduler.add(NewTask::manual("holder").handler("elsewhere")).unwrap();
        let address = scheduler.page_address().unwrap();
        let served = Served { db: TestDb::new(), scheduler, address };
        served.token()
    };
    let tokens = [token(), token()];
    assert_ne!(tokens[0], tokens[1]);
    assert!(tokens.iter().all(|token| token.chars().all(|digit| digit.is_ascii_hexdigit())), "{tokens:?}");
}
