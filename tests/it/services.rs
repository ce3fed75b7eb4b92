//! `duly service` in a home folder of its own, with a `systemctl` that records what it is given: what is written, run, refused and left.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::disk::tools::{skip_without, succeeds};
use crate::docs::{read, tree};
use crate::fixtures::{TestDb, set_mode};

/// Writes its arguments to `calls`, and keeps whether the service is enabled and active. With a file `refuses`, it has no manager.
const SYSTEMCTL: &str = r#"#!/bin/sh
cd "$HOME"
echo "$*" >>calls
[ -e refuses ] && { echo "Failed to connect to bus:" >&2; echo "No medium found" >&2; exit 1; }
case "$*" in
*" enable --now "*) touch enabled active ;;
*" enable "*) touch enabled ;;
*" restart "*) touch active ;;
*" disable --now "*) rm -f enabled active ;;
*" show "*)
    [ -e active ] && echo ActiveState=active || echo ActiveState=failed
    [ -e enabled ] && echo UnitFileState=enabled || echo UnitFileState=disabled
    ;;
*" reset-failed "*) exit 1 ;;
esac
"#;

const SHOW: &str = "--user show --property=ActiveState,UnitFileState duly.service";

/// A home folder with a database, and a service manager.
struct Machine {
    db: TestDb,
    program: PathBuf,
}

/// Exit code, stdout and stderr.
type Answer = (i32, String, String);

/// Runs the program with these arguments.
type Run<'a> = &'a dyn Fn(&[&str]) -> Answer;

impl Machine {
    fn new() -> Self {
        let db = TestDb::new();
        db.printed(&["add", "t", "--manual", "--", "true"]);
        fs::create_dir(db.home().join("bin")).expect("a folder");
        fs::write(db.home().join("bin/systemctl"), SYSTEMCTL).expect("a program");
        set_mode(&db.home().join("bin/systemctl"), 0o755);
        Machine { db, program: env!("CARGO_BIN_EXE_duly").into() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.db.home().join(name)
    }

    fn unit(&self) -> PathBuf {
        self.file(".config/systemd/user/duly.service")
    }

    fn command(&self, line: &[&str]) -> Command {
        let path = format!("{}:{}", self.file("bin").display(), std::env::var("PATH").unwrap_or_default());
        let mut duly = Command::new(&self.program);
        duly.arg("service").args(line).current_dir(self.db.home()).env("HOME", self.db.home()).env("PATH", path);
        duly.env("COLUMNS", "400").env_remove("XDG_CONFIG_HOME");
        // A relative path, in the current directory.
        duly.env("DULY_DB", self.db.file().file_name().expect("a name"));
        duly
    }

    fn run(&self, line: &[&str]) -> Answer {
        answer(&mut self.command(line))
    }

    /// Runs a command, which must succeed, and returns what it prints.
    #[track_caller]
    fn printed(&self, line: &[&str]) -> String {
        let (code, out, err) = self.run(line);
        assert_eq!((code, err.as_str()), (0, ""), "{line:?}: {out}");
        out
    }

    /// The document that `status` prints, and its exit code.
    fn status(&self) -> (i32, Value) {
        let (code, out, _) = self.run(&["status", "--json"]);
        (code, serde_json::from_str(&out).expect("a document"))
    }

    /// Returns the calls of the service manager since the last look.
    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.file("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.file("calls"));
        calls.lines().map(str::to_owned).collect()
    }

    /// Returns every file below the home folder.
    fn files(&self) -> Vec<PathBuf> {
        let (mut files, mut folders) = (Vec::new(), vec![self.db.home().to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
                if entry.is_dir() {
                    folders.push(entry.clone());
                }
                files.push(entry);
            }
        }
        files.sort();
        files
    }
}

fn answer(command: &mut Command) -> Answer {
    let output = command.output().expect("the program");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("a code"), text(output.stdout), text(output.stderr))
}

#[test]
fn a_service_is_installed_shown_changed_and_removed() {
    let machine = Machine::new();
    let (unit, file) = (machine.unit(), machine.unit().display().to_string());
    let out = machine.printed(&["install"]);
    assert!(out.starts_with(&format!("wrote {file}\nduly is enabled and started: ")), "{out}");
    assert!(out.contains("loginctl enable-linger"), "{out}");
    assert_eq!(machine.calls(), ["--user daemon-reload", "--user enable --now duly.service"]);
    let database = machine.db.file().display().to_string();
    let line = format!("ExecStart={} run --db {database}\n", machine.program.display());
    let text = read(&unit);
    assert!(text.contains(&line) && text.contains("\nWantedBy=default.target\n"), "{text}");
    let (code, status) = machine.status();
    assert_eq!(
        (code, &status["running"], &status["enabled"], &status["current"]),
        (0, &true.into(), &true.into(), &true.into())
    );
    assert_eq!((&status["database"], &status["file"]), (&database.into(), &file.clone().into()));
    let shown = machine.printed(&["status"]);
    assert!(shown.contains("\nrunning    yes (active)\n") && shown.contains("\ncurrent    yes\n"), "{shown}");
    assert_eq!(machine.calls(), [SHOW, SHOW]);

    // Idempotent: neither the file nor the process changes.
    let before = fs::metadata(&unit).expect("the unit");
    assert!(machine.printed(&["install"]).starts_with(&format!("unchanged: {file}\n")));
    let after = fs::metadata(&unit).expect("the unit");
    assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()));
    assert_eq!(machine.calls(), [SHOW]);
    fs::remove_file(machine.file("active")).expect("an active service");
    let (code, _, err) = machine.run(&["status"]);
    assert_eq!((code, err.as_str()), (1, "error: duly is not running\n"));
    machine.printed(&["install"]);
    let restart = ["--user daemon-reload", "--user enable duly.service", "--user restart duly.service"];
    assert_eq!(machine.calls(), [&[SHOW, SHOW][..], &restart].concat());

    // Other options restart it.
    machine.printed(&["install", "--", "--drain", "2m", "--alert-command", "echo '100%'"]);
    assert_eq!(machine.calls(), restart);
    let text = read(&unit);
    assert!(text.contains(" --drain 2m --alert-command \"echo '100%%'\"\n"), "{text}");
    assert!(text.contains("\nTimeoutStopSec=180s\n"), "{text}");
    assert_eq!(machine.status().1["options"], serde_json::json!(["--drain", "2m", "--alert-command", "echo '100%'"]));

    // A second service beside it.
    machine.printed(&["install", "--name", "mail"]);
    let other = machine.file(".config/systemd/user/duly-mail.service");
    let text = read(&other);
    machine.calls();

    let out = machine.printed(&["uninstall"]);
    let left = machine.db.file();
    let says = format!(
        "duly is stopped and disabled; removed {file}\nleft: {}, with its tasks and their history\n",
        left.display()
    );
    assert_eq!(out, says);
    let calls = ["--user disable --now duly.service", "--user daemon-reload", "--user reset-failed duly.service"];
    assert_eq!(machine.calls(), calls);
    assert!(!unit.exists() && left.exists() && read(&other) == text);
    assert_eq!(machine.printed(&["uninstall"]), format!("duly is not installed: there is no {file}\n"));
    let (code, status) = machine.status();
    assert_eq!((code, &status["installed"], &status["running"]), (1, &false.into(), &Value::Null));
    assert!(machine.calls().is_empty(), "the manager is not asked about a service that has no file");
}

#[test]
fn a_file_of_another_is_left_alone() {
    let machine = Machine::new();
    fs::create_dir_all(machine.unit().parent().expect("a folder")).expect("a folder");
    let own = "[Service]\nExecStart=/usr/bin/duly run\n";
    let says = format!("error: duly service install did not write {}", machine.unit().display());
    // A unit written by hand; one that is masked; one that was copied from another service of duly.
    machine.printed(&["install", "--name", "other"]);
    machine.calls();
    let copied = read(&machine.file(".config/systemd/user/duly-other.service"));
    for text in [Some(own), None, Some(copied.as_str())] {
        match text {
            Some(text) => fs::write(machine.unit(), text).expect("a unit"),
            None => symlink("/dev/null", machine.unit()).expect("a link"),
        }
        for line in
            [&["install"][..], &["install", "--dry-run"], &["uninstall"], &["uninstall", "--dry-run"], &["status"]]
        {
            let (code, out, err) = machine.run(line);
            assert!(code == 1 && out.is_empty() && err.starts_with(&says), "{line:?}: {out}{err}");
        }
        assert_eq!(read(&machine.unit()), text.unwrap_or_default());
        fs::remove_file(machine.unit()).expect("a unit");
    }
    assert!(machine.calls().is_empty());
}

#[test]
fn a_dry_run_changes_nothing() {
    let machine = Machine::new();
    let before = machine.files();
    for (manager, folder, command) in [
        ("systemd", "/.config/systemd/user/", "would run: systemctl --user enable --now duly.service\n"),
        ("launchd", "/Library/LaunchAgents/", "would run: launchctl bootstrap gui/"),
        ("windows", "%/duly/", "would run: schtasks /Create /TN duly /XML "),
    ] {
        let line = ["install", "--dry-run", "--for", manager];
        let out = machine.printed(&line);
        let first = out.lines().next().unwrap_or_default();
        assert!(first.starts_with("would write ") && first.contains(folder) && out.contains(command), "{out}");
        let document: Value =
            serde_json::from_str(&machine.printed(&[&line[..], &["--json"]].concat())).expect("a document");
        let text = document["text"].as_str().expect("a text");
        assert!(out.contains(text) && document["changed"] == true, "{document}");
        let of_machine = machine.printed(&[&line[..], &["--system"]].concat());
        assert!(!of_machine.contains(folder) || manager == "windows", "{of_machine}");
    }
    assert_eq!(
        machine.printed(&["install", "--dry-run"]),
        machine.printed(&["install", "--dry-run", "--for", "systemd"])
    );
    machine.printed(&["uninstall", "--dry-run"]);
    assert_eq!(machine.files(), before);
    machine.printed(&["install"]);
    let before = machine.files();
    machine.calls();
    let out = machine.printed(&["uninstall", "--dry-run"]);
    assert!(out.contains("would run: systemctl --user disable --now duly.service\n"), "{out}");
    let out = machine.printed(&["install", "--dry-run", "--", "--create"]);
    assert!(out.contains("would run: systemctl --user restart duly.service\n"), "{out}");
    let out = machine.printed(&["install", "--dry-run"]);
    assert!(out.starts_with("unchanged: ") && !out.contains("would run: "), "{out}");
    assert_eq!(machine.calls(), [SHOW]);
    assert_eq!(machine.files().len() + 1, before.len(), "all but the calls, which the test has removed");
}

/// What cannot be asked is unknown: the file is written and says what to type; it is not removed.
#[test]
fn without_a_service_manager_the_file_is_written_and_the_rest_is_said() {
    let machine = Machine::new();
    let start = "systemctl --user enable --now duly.service";
    let restart = "systemctl --user enable duly.service && systemctl --user restart duly.service";
    fs::write(machine.file("refuses"), "").expect("a file");
    let without = |line: &[&str]| answer(machine.command(line).env("PATH", machine.file("nowhere")));
    let with = |line: &[&str]| machine.run(line);
    let cases: [(Run<'_>, &str, &str); 2] = [
        (&without, "there is no systemctl", start),
        (&with, "systemctl: Failed to connect to bus: No medium found", restart),
    ];
    for (run, why, typed) in cases {
        let typed = format!("to start it, type: systemctl --user daemon-reload && {typed}\n");
        let (code, out, err) = run(&["install"]);
        assert!(code == 1 && out.starts_with(if machine.unit().exists() { "" } else { "wrote " }), "{out}");
        let says =
            format!("error: {} is written, but the service is not started: {why}; {typed}", machine.unit().display());
        assert_eq!(err, says);
        let (code, out, err) = run(&["status", "--json"]);
        assert_eq!((code, err), (1, format!("error: unknown whether duly is running: {why}\n")));
        let status: Value = serde_json::from_str(&out).expect("a document");
        assert_eq!(
            (&status["installed"], &status["enabled"], &status["running"]),
            (&true.into(), &Value::Null, &Value::Null)
        );
        let (code, out, err) = run(&["uninstall"]);
        assert_eq!((code, out.as_str()), (1, ""));
        assert!(err.contains(&format!("{why}; {} is kept; ", machine.unit().display())), "{err}");
        assert!(machine.unit().exists());
    }
    fs::remove_file(machine.file("refuses")).expect("a file");
    machine.calls();
    // A running service may still run what the file was before.
    fs::write(machine.file("active"), "").expect("a file");
    fs::write(machine.file("enabled"), "").expect("a file");
    assert!(machine.printed(&["install"]).starts_with("unchanged: "));
    let calls = ["--user daemon-reload", "--user enable duly.service", "--user restart duly.service"];
    assert_eq!(machine.calls(), calls);
    machine.printed(&["install"]);
    assert_eq!(machine.calls(), [SHOW]);
    machine.printed(&["uninstall"]);
    assert_eq!(fs::read_dir(machine.unit().parent().expect("a folder")).expect("a folder").count(), 0);
}

#[test]
fn status_says_whether_install_would_write_another_file() {
    let mut machine = Machine::new();
    // The service names the link, which an upgrade leaves in its place, and not what it leads to.
    let link = machine.file("bin/duly");
    symlink(&machine.program, &link).expect("a link");
    let real = std::mem::replace(&mut machine.program, "duly".into());
    machine.printed(&["install"]);
    assert!(read(&machine.unit()).contains(&format!("\nExecStart={} run ", link.display())));
    assert_eq!(machine.status().1["current"], true);
    machine.program = real;
    let says = format!("\ncurrent    no: duly service install would write the program {}\n", machine.program.display());
    assert!(machine.printed(&["status"]).contains(&says));

    machine.printed(&["install"]);
    assert_eq!(machine.status().1["current"], true);
    fs::write(machine.unit(), read(&machine.unit()).replace("RestartSec=5s", "RestartSec=1s")).expect("a unit");
    assert!(machine.printed(&["status"]).contains("\ncurrent    no: duly service install would write another text\n"));
    machine.printed(&["install"]);
    assert!(read(&machine.unit()).contains("RestartSec=5s"));
    assert_eq!(machine.status().1["current"], true);
    let parts =
        machine.files().into_iter().filter(|file| file.extension().is_some_and(|end| end == "new" || end == "pending"));
    assert_eq!(parts.count(), 0);
}

#[test]
fn what_cannot_be_a_service_is_refused_before_anything_is_written() {
    let machine = Machine::new();
    let before = machine.files();
    for (line, code, says) in [
        (&["install", "--name", "a/b"][..], 2, "expected 1 to 60 letters, digits, - and _"),
        (&["install", "--for", "launchd"], 2, "--dry-run"),
        (&["install", "--", "--no-such"], 2, "options of duly run: unexpected argument '--no-such' found"),
        (&["install", "--", "--drain", "1"], 2, "options of duly run: invalid value '1'"),
        (&["install", "--", "--until-idle"], 2, "--until-idle ends a service"),
        (&["install", "--", "--worker", "-"], 2, "is started by no application"),
        (&["install", "--", "--help"], 2, "cannot print help"),
        (&["install", "--", "--db", "other.db"], 2, "'--db <FILE>' cannot be used multiple times"),
        (&["install", "--db", "postgres://me:s3cret@h/d"], 2, "other users can read the password"),
        (&["install", "--db", ""], 2, "--db"),
        (
            &["install", "--db", "none.db"],
            4,
            "cannot use none.db: there is no such file; -- --create lets the service create it",
        ),
    ] {
        let (found, out, err) = machine.run(line);
        assert_eq!((found, out.as_str()), (code, ""), "{line:?}: {err}");
        assert!(err.starts_with("error: ") && err.contains(says) && !err.contains("s3cret"), "{line:?}: {err}");
    }
    let (code, _, err) = answer(machine.command(&["install"]).env_remove("HOME"));
    assert_eq!((code, err.as_str()), (1, "error: HOME names no folder\n"));
    assert_eq!(machine.files(), before);
    machine.printed(&["install", "--db", "none.db", "--", "--create"]);
    machine.printed(&["install", "--db", "postgres://me@h/d", "--name", "server"]);
}

/// A unit in another folder that the new one would hide.
#[test]
fn a_unit_of_a_package_is_not_hidden() {
    let units = Path::new("/usr/lib/systemd/user/duly.service");
    let machine = Machine::new();
    let (code, _, err) = match units.exists() {
        true => machine.run(&["install"]),
        // No test writes there: the same in a mount namespace.
        false if succeeds("unshare", &["--mount", "--map-root-user", "true"]) => {
            let script = r#"mount -t tmpfs none /usr/lib/systemd && mkdir /usr/lib/systemd/user && touch /usr/lib/systemd/user/duly.service && exec "$@""#;
            let mut within = Command::new("unshare");
            within.args(["--mount", "--map-root-user", "sh", "-euc", script, "sh"]).arg(&machine.program);
            within.args(["service", "install"]).current_dir(machine.db.home()).env_remove("XDG_CONFIG_HOME");
            answer(within.env("HOME", machine.db.home()).env("DULY_DB", machine.db.file()))
        }
        false => return skip_without("unshare", "no other test has a unit of a package"),
    };
    let says = format!("error: there is a unit {}, which duly did not write", units.display());
    assert!(code == 1 && err.starts_with(&says), "{err}");
    assert!(!machine.unit().exists());
}

/// Units for folders, databases and options with what is special to systemd.
#[test]
fn systemd_accepts_the_units() {
    if !succeeds("systemd-analyze", &["--version"]) {
        return skip_without("systemd-analyze", "the words of the units are read back by unit tests");
    }
    let machine = Machine::new();
    for (count, folder) in
        ["plain", "a b", "it's \"$HOME\" ${X}", "100% %h", "back\\slash\\", "na\u{ef}ve \u{65e5}", "<a>&;#"]
            .iter()
            .enumerate()
    {
        let folder = machine.file(folder);
        fs::create_dir(&folder).expect("a folder");
        for system in [&[][..], &["--system"]] {
            let line = [&["install", "--dry-run", "--json"], system, &["--", "--alert-command", "echo '%h $HOME \\'"]]
                .concat();
            let (code, out, err) = answer(machine.command(&line).current_dir(&folder));
            assert_eq!(code, 0, "{err}");
            let document: Value = serde_json::from_str(&out).expect("a document");
            let name = format!("duly-{count}.service");
            fs::write(machine.file(&name), document["text"].as_str().expect("a text")).expect("a unit");
            let output = Command::new("systemd-analyze").arg("verify").arg(machine.file(&name)).output().expect("it");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && !said.contains(&name), "{folder:?}: {said}");
        }
    }
}

/// The unit of the package and those of `duly service` differ in the user, the folder and the hardening alone.
#[test]
fn the_unit_of_the_package_has_the_same_settings() {
    let machine = Machine::new();
    let packaged = read(&tree().join("packaging/duly.service"));
    let document = machine.printed(&["install", "--dry-run", "--system", "--for", "systemd"]);
    let value = |text: &str, name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned);
        value.unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    for name in [
        "After",
        "Wants",
        "Type",
        "ExecReload",
        "WatchdogSec",
        "Restart",
        "RestartSec",
        "RestartPreventExitStatus",
        "KillMode",
        "TimeoutStopSec",
        "OOMPolicy",
        "WantedBy",
    ] {
        assert_eq!(value(&document, name), value(&packaged, name), "{name}");
    }
}
