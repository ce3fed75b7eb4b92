//! The program, as whoever types at it sees it: transcripts, in which whatever is not expected on either output fails, and
//! what a transcript cannot say.

/// Runs that are waited for, outputs that are closed, files that may not be read.
mod program;
/// A file with a history, made by a stepper on days long past. No test of its own.
mod seed;

/// Everything typed and answered, command by command. Each transcript has a folder of its own, empty at first.
#[test]
fn transcripts() {
    let cases = trycmd::TestCases::new();
    cases.env("TZ", "Europe/Rome").env("COLUMNS", "100").case("tests/cli/*.trycmd");
}

/// The same on a file that has a history.
#[test]
fn transcripts_of_the_past() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let file = home.path().join("agent.db");
    seed::fill(&file);
    let cases = trycmd::TestCases::new();
    cases.env("TZ", "Europe/Rome").env("DULY_DB", file.display().to_string());
    cases.case("tests/cli/past/*.trycmd").run();
}
