//! The program as a user sees it: transcripts, which compare both outputs exactly, and tests that need more than a transcript.
#![warn(clippy::disallowed_methods)]

/// Waiting, closed outputs, file permissions, terminals, shells.
mod program;
/// What scripts rely on.
mod scripts;
/// A database with a history, made by a stepper. No tests.
mod seed;
#[allow(dead_code)]
#[path = "../it/fixtures/waits.rs"]
mod waits;

use crate::program::{program, result};

/// One transcript for each command or topic. Each has its own folder, empty at first.
#[test]
fn transcripts() {
    let cases = trycmd::TestCases::new();
    cases.env("TZ", "Europe/Rome").env("COLUMNS", "100").case("tests/cli/*.trycmd");
}

/// Transcripts on a database that has a history.
#[test]
fn transcripts_of_the_past() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let file = home.path().join("agent.db");
    seed::fill(&file);
    let cases = trycmd::TestCases::new();
    cases.env("TZ", "Europe/Rome").env("DULY_DB", file.display().to_string());
    cases.case("tests/cli/past/*.trycmd").run();
}

/// The words of each help text are those of docs/reference/commands.md, which a unit test compares with the command line.
#[test]
fn each_command_has_a_help_that_fits_the_terminal() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let help = |line: &[&str]| result(&program(home.path(), line).env("COLUMNS", "100").output().expect("the program"));
    assert_eq!(help(&[]), (2, String::new(), help(&["help"]).1), "a command is missing");
    let (mut left, mut seen) = (vec![String::new()], 0);
    while let Some(command) = left.pop() {
        let line: Vec<&str> = command.split_whitespace().collect();
        let (code, text, errors) = help(&[&["help"], &line[..]].concat());
        assert_eq!((code, &*errors), (0, ""), "{command}");
        assert!(text.contains(&format!("\nUsage: duly{command} ")), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert_eq!(help(&[&line[..], &["--help"]].concat()).1, text);
        let within = text.split_once("\nCommands:\n").map_or("", |(_, rest)| rest);
        let names = within.lines().take_while(|line| !line.is_empty()).filter_map(|line| line[2..].split(' ').next());
        left.extend(names.filter(|name| !["", "help"].contains(name)).map(|name| format!("{command} {name}")));
        seen += 1;
    }
    assert!(seen >= 29, "{seen} commands");
}

/// What a test has made itself is older where the machine is slower.
#[test]
fn no_transcript_shows_an_age_that_depends_on_the_load() {
    for folder in ["tests/cli", "tests/cli/past"] {
        for file in std::fs::read_dir(folder).expect("the transcripts").map(|file| file.expect("a file").path()) {
            if file.extension().is_none_or(|extension| extension != "trycmd") {
                continue;
            }
            let text = std::fs::read_to_string(&file).expect("a transcript");
            for age in ["(now)", "s ago", "m ago", "h ago"] {
                assert!(!text.contains(age), "{} shows {age:?}: write [..]", file.display());
            }
        }
    }
}
