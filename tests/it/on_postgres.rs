//! The shared modules once more, on PostgreSQL: this program runs itself with `DULY_STORE=postgres`, and each test prints its line.
//!
//! `DULY_STORE=postgres cargo test --features postgres --test it misfire` runs one of them by hand. The tests of all other modules are
//! about files, or start the program: they use SQLite whatever the variable says. Of those that start it, `mcp` is shared.

use std::process::Command;

use crate::fixtures::skip;

/// The modules whose tests hold for every store. The simulation runs on PostgreSQL by itself.
const SHARED: &str = "
    actors apply async_handlers attempt_slots calendar_tasks catch_up check clock clock_trouble completed_by_sql
    concurrency_keys delay_tasks draining durations effects events executor first_look follower_turns followers handler_failures history ids
    idempotency interruptions limits loop_steps manual marks matching mcp misfire observers on_dead overdue overlap passed_over progress
    regressions reopened restarts rewinds retention retention_load run_transitions schedule_changes sql_edits start_limits stuck_workers
    takeover testing_kit threads time_limits turns unknown_owner wake windows";

/// How many of them run at once. Client and server are busy most of the time: with more, on a slow machine, a client that holds a transaction
/// gets so little of the processor that the server ends it.
const THREADS: &str = "6";

fn is_shared(module: &str) -> bool {
    SHARED.split_whitespace().any(|shared| shared == module)
}

/// Returns whether the test of this thread is to run on PostgreSQL.
pub(crate) fn is_chosen() -> bool {
    if std::env::var("DULY_STORE").as_deref() != Ok("postgres") {
        return false;
    }
    // The threads of tests have their names; that of a program with one thread has not.
    let thread = std::thread::current();
    let module = thread.name().and_then(|name| name.split_once("::")).map(|(module, _)| module);
    module.is_none_or(is_shared)
}

/// The address of a new schema, if the test of this thread is to run on PostgreSQL.
pub(crate) fn database() -> Option<String> {
    is_chosen().then(|| crate::postgres::database().expect("DULY_STORE=postgres needs a PostgreSQL server"))
}

#[test]
#[ignore = "it takes minutes: .ci/nightly runs it, and .ci/run if a store changed"]
fn the_shared_tests_hold_on_postgres() {
    if crate::postgres::database().is_none() {
        return skip("no PostgreSQL");
    }
    let program = std::env::current_exe().expect("this program");
    let listed = Command::new(&program).args(["--list", "--format", "terse"]).output().expect("the tests");
    let listed = String::from_utf8(listed.stdout).expect("names");
    let shared = |test: &&str| test.split_once("::").is_some_and(|(module, _)| is_shared(module));
    let tests: Vec<&str> = listed.lines().filter_map(|line| line.strip_suffix(": test")).filter(shared).collect();
    assert!(tests.len() >= 230, "{} shared tests", tests.len());
    let state = tempfile::tempdir().expect("a folder");
    let mut again = Command::new(program);
    again.args(["--exact", "--test-threads", THREADS]);
    again.args(tests).env("DULY_STORE", "postgres").env("DULY_STATE_DIR", state.path());
    let ended = again.status().expect("the tests");
    assert!(ended.success(), "a shared test fails on PostgreSQL: its line is above");
}
