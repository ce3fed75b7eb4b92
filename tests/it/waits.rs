//! A test that hangs is named: the watchdog of the test binary.

use std::process::Stdio;

/// For the mutator, which the program shares.
pub(crate) use crate::fixtures::patience;
use crate::fixtures::{LIMIT, TestDb, exited, test_process};

const HANGS: &str = "DULY_TEST_HANGS";

/// Not a test by itself: it hangs in the process of the test below.
#[test]
fn hanging_entry() {
    if std::env::var_os(HANGS).is_some() {
        let _db = TestDb::new();
        loop {
            std::thread::park();
        }
    }
}

#[test]
fn the_watchdog_names_a_test_that_hangs_and_fails() {
    let errors = tempfile::NamedTempFile::new().expect("a file");
    let mut hangs = test_process("waits::hanging_entry");
    hangs.args(["--test-threads", "2"]).env(HANGS, "1").env(LIMIT, "1").env_remove("DULY_STORE").stdin(Stdio::null());
    let mut hangs = hangs.stderr(errors.reopen().expect("the file")).spawn().expect("a process");
    assert_eq!(exited(&mut hangs, "the process").code(), Some(101));
    let printed = std::fs::read_to_string(errors.path()).expect("its errors");
    let named = "the watchdog ends the tests: one of these has run for more than 1s\n  waits::hanging_entry: ";
    assert!(printed.starts_with(named), "{printed}");
}
