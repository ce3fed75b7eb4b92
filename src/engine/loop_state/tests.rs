//! How long outcomes are gathered, and how much is read ahead.

use std::time::Duration;

use crate::engine::loop_state::{GATHER, GATHER_ALL, Gathering, read_ahead};
use crate::worker::pool::QUEUE;

#[test]
fn outcomes_that_come_one_by_one_are_not_gathered_for_long() {
    let (mut gathering, begun) = (Gathering::default(), Duration::from_secs(5));
    let mut now = begun;
    // Each comes as late as it may.
    for _ in 0..500 {
        let wait = gathering.wait(now);
        assert!(wait <= GATHER);
        now += wait;
    }
    assert_eq!(now, begun + GATHER_ALL);
}

#[test]
fn as_much_is_read_ahead_as_what_finished_shows_to_be_short() {
    let cases = [
        // Nothing has finished.
        (0, Duration::ZERO, 0),
        // No-ops.
        (2, Duration::from_micros(20), 32),
        (100, Duration::from_millis(1), QUEUE),
        // Two workers end 20 such attempts in 10 ms.
        (4, Duration::from_millis(4), 20),
        // Four times what has finished, however long it took.
        (2, Duration::from_secs(600), 8),
    ];
    for (finished, busy, ahead) in cases {
        assert_eq!(read_ahead(finished, busy, 2), ahead, "{finished} in {busy:?}");
    }
}
