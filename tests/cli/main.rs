//! The program as a user sees it: transcripts, which compare both outputs exactly, and tests that need more than a transcript.
#![warn(clippy::disallowed_methods)]

/// Waiting, closed outputs, file permissions, terminals, shells.
mod program;
/// A database with a history, made by a stepper. No tests.
mod seed;
#[allow(dead_code)]
#[path = "../it/fixtures/waits.rs"]
mod waits;

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
