//! The transcript of an alarm in `docs/alarms.md`: a dead task sends a mail. The test runs each command of the transcript.
#![cfg(unix)]

use std::path::Path;
use std::process::Command;

use crate::fixtures::{TestDb, set_mode};

/// A program `mail`, called as `mail -s SUBJECT ADDRESS` with the text on standard input.
const MAIL: &str = "#!/bin/sh\n{ echo \"To: $3\"; echo \"Subject: $2\"; echo; cat; } >> MAILBOX\n";
const MAILBOX: &str = "/var/mail/root";

/// Returns the lines of the first transcript below a heading of the page.
fn transcript(heading: &str) -> Vec<String> {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/alarms.md")).expect("the page");
    let below = page.split_once(heading).unwrap_or_else(|| panic!("no heading {heading:?}")).1;
    let text = below.split_once("```console\n").and_then(|(_, text)| text.split_once("```")).expect("a transcript").0;
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_alarm_of_the_page_sends_a_mail() {
    let (db, programs) = (TestDb::new(), tempfile::tempdir().expect("a folder"));
    let mailbox = db.home().join("mailbox").display().to_string();
    let mail = programs.path().join("mail");
    std::fs::write(&mail, MAIL.replace("MAILBOX", &mailbox)).expect("a program");
    set_mode(&mail, 0o755);
    let duly = Path::new(env!("CARGO_BIN_EXE_duly")).parent().expect("a folder");
    let path = format!("{}:{}:{}", programs.path().display(), duly.display(), std::env::var("PATH").expect("a PATH"));

    let expected = transcript("## A task for dead runs");
    let mut found = Vec::new();
    for line in expected.iter().filter(|line| line.starts_with("$ ")) {
        let typed = line[2..].replace(MAILBOX, &mailbox);
        let mut shell = Command::new("sh");
        shell.args(["-c", &typed]).current_dir(db.home()).env("PATH", &path).env("DULY_DB", db.file());
        let output = shell.output().expect("a shell");
        found.push(line.clone());
        for printed in [&output.stdout, &output.stderr] {
            found.extend(String::from_utf8_lossy(printed).lines().map(str::to_owned));
        }
    }
    assert_eq!(found, expected);
    db.assert_sound();
}
