//! The program as a user sees it: transcripts, which compare both outputs exactly, and tests that need more than a transcript.

/// Waiting, closed outputs, file permissions, terminals, shells.
mod program;
/// A database with a history, made by a stepper. No tests.
mod seed;

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
