//! The proxy of docs/page.md: nginx with the configuration of the page lets users in, and refuses what the page leaves to it.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Child, Command, Stdio};

use duly::page::Page;
use duly::{NewTask, Scheduler};

use crate::disk::tools::{skip_without, succeeds};
use crate::fixtures::{TestDb, eventually, reap};
use crate::sidecar::signal;

/// The name of the server in the configuration.
const SITE: &str = "https://duly.example.org";

/// nginx with one server, on a socket in a folder.
struct Proxy {
    process: Child,
    socket: String,
}

impl Proxy {
    fn start(home: &Path, name: &str, server: &str) -> Self {
        let folder = home.join(name);
        std::fs::create_dir(&folder).expect("a folder");
        let socket = folder.join("socket").display().to_string();
        let place = folder.display();
        let server = server.replace("listen 443", &format!("listen unix:{socket}"));
        let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let paths: String = kinds.iter().map(|kind| format!("{kind}_temp_path {place}/{kind};\n")).collect();
        let user = if succeeds("sh", &["-c", "[ $(id -u) = 0 ]"]) { "user root;\n" } else { "" };
        let text =
            format!("{user}daemon off;\npid {place}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}{server}}}\n");
        let file = folder.join("nginx.conf");
        std::fs::write(&file, text).expect("a file");
        let log = std::fs::File::create(folder.join("log")).expect("a log");
        let mut nginx = Command::new("nginx");
        nginx.arg("-e").arg("stderr").arg("-p").arg(&folder).arg("-c").arg(&file).stdin(Stdio::null()).stderr(log);
        let proxy = Proxy { process: nginx.spawn().expect("nginx"), socket };
        eventually("nginx answers", || proxy.curl(&["/"]).0 != 0);
        proxy
    }

    /// Returns the status and the text of an answer. The last argument is the path.
    fn curl(&self, arguments: &[&str]) -> (u16, String) {
        let (path, options) = arguments.split_last().expect("a path");
        let mut curl = Command::new("curl");
        curl.args(["-sk", "-w", "\n%{http_code}", "--unix-socket", &self.socket]).args(options);
        let output = curl.arg(format!("{SITE}{path}")).output().expect("curl");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').expect("a status");
        (status.parse().expect("a number"), body.to_owned())
    }

    /// Posts a form of the page as a browser does, with the token of the page.
    fn trigger(&self) -> u16 {
        let page = self.curl(&["-u", USER, "/tasks/job"]).1;
        let field = |name: &str| {
            let field =
                page.split_once(&format!("name=\"{name}\" value=\"")).and_then(|(_, rest)| rest.split('"').next());
            format!("{name}={}", field.unwrap_or_else(|| panic!("no {name} in {page}")))
        };
        let form = format!("{}&{}", field("token"), field("task"));
        let origin = format!("Origin: {SITE}");
        let headers = ["-H", &origin, "-H", "Sec-Fetch-Site: same-origin"];
        self.curl(&[&["-u", USER, "-d", &form][..], &headers, &["/tasks/job/trigger"]].concat()).0
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        signal("TERM", &self.process.id().to_string());
        reap(&mut self.process);
    }
}

const USER: &str = "anna:secret";

#[test]
fn the_proxy_of_the_page_lets_users_in() {
    for (tool, option) in [("nginx", "-v"), ("openssl", "version"), ("curl", "--version")] {
        if !succeeds(tool, &[option]) {
            return skip_without(tool, "the configuration of docs/page.md is not run");
        }
    }
    let db = TestDb::new();
    let home = db.home();
    let scheduler = Scheduler::builder(db.file()).page(Page::on("127.0.0.1:0").actions()).start().expect("a scheduler");
    scheduler.add(NewTask::manual("job").handler("none")).expect("a task");
    let address = scheduler.page_address().expect("a page").to_string();

    let shell = format!(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=duly.example.org -keyout duly.key -out duly.pem 2>&1
         echo \"anna:$(openssl passwd -apr1 {})\" > duly.htpasswd",
        USER.split_once(':').expect("a password").1
    );
    let made = Command::new("sh").args(["-ec", &shell]).current_dir(home).output().expect("a shell");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));

    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/page.md")).expect("the page");
    let server = page.split_once("```nginx\n").and_then(|(_, rest)| rest.split_once("```")).expect("a snippet").0;
    let here = home.display();
    let server = server.replace("127.0.0.1:8629", &address).replace("/etc/ssl/", &format!("{here}/"));
    let server = server.replace("/etc/nginx/", &format!("{here}/"));

    let proxy = Proxy::start(home, "proxy", &server);
    assert_eq!(proxy.curl(&["/"]).0, 401, "without a user");
    let (status, text) = proxy.curl(&["-u", USER, "/"]);
    assert!(status == 200 && text.contains("job"), "{status}: {text}");
    assert_eq!(proxy.curl(&["-u", USER, "-H", "Sec-Fetch-Site: same-origin", "/tasks/job"]).0, 200);
    assert_eq!(proxy.curl(&["-u", USER, "-H", "Sec-Fetch-Site: cross-site", "/"]).0, 403, "a page of another site");
    assert_eq!(proxy.trigger(), 303);
    assert_eq!(db.runs().len(), 1);
    drop(proxy);

    // As docs/page.md says: without these lines, the page can be read, and actions are refused.
    let is_kept = |line: &&str| !line.contains("Origin") && !line.contains("Sec-Fetch-Site");
    let less: String = server.lines().filter(is_kept).flat_map(|line| [line, "\n"]).collect();
    let proxy = Proxy::start(home, "less", &less);
    assert_eq!((proxy.curl(&["-u", USER, "/tasks/job"]).0, proxy.trigger()), (200, 403));
    assert_eq!(db.runs().len(), 1);
}
