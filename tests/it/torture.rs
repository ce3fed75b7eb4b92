//! Everything at once, for as long as `DULY_TORTURE` says (`60s`, or a number of seconds): real schedulers of both kinds on
//! one file, killed, stopped past their lease, told to leave, one with a clock that lies; a write lock that is kept for
//! seconds, a busy disk, edits by SQL, requests, cancels. Then all is quiet, everything that was due must be done in bounded
//! time, and what the handlers wrote down themselves is held against the tables.
//!
//! `DULY_SEED` makes the same choices again. What becomes of them is up to the machine.
#![cfg(target_os = "linux")]

mod processes;
mod scenario;
mod tasks;

use std::time::{Duration, Instant};

use crate::evidence::{UNSHARE, can};
use crate::torture::scenario::Play;

/// How long where nobody asks for more.
const LENGTH: Duration = Duration::from_secs(5);
fn length() -> Duration {
    let Ok(text) = std::env::var("DULY_TORTURE") else { return LENGTH };
    let seconds = text.parse().map(Duration::from_secs).map_err(|_| ());
    seconds.unwrap_or_else(|()| duly::parse_duration(&text).expect("DULY_TORTURE is a length of time: 60s, or seconds"))
}

#[test]
fn whatever_is_done_to_them_each_occurrence_is_kept_once_and_nothing_is_left_undone() {
    torture(false);
}

/// No scheduler of commands sees the processes of the other. Some are killed with their namespace, others without it.
#[test]
fn schedulers_in_two_pid_namespaces_begin_nothing_beside_what_is_still_at_work() {
    if can("unshare", &[&UNSHARE[..], &["true"]].concat()) {
        torture(true);
    }
}

fn torture(apart: bool) {
    let length = length();
    let seed = std::env::var("DULY_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a seed"));
    println!("{length:?}, DULY_SEED={seed}");
    let mut play = Play::begin(seed, length, apart);
    let begin = Instant::now();
    while begin.elapsed() < length {
        play.keep_time();
        play.act();
        std::thread::sleep(play.millis(20, 150));
    }
    play.calm();
    let quiet = play.quiet();
    play.end();
    let sums = play.judge();
    println!("{}\n{sums:?}, all done {} ms after the last of it", play.deeds, quiet.as_millis());
    assert!(sums.starts > 0, "they were at work meanwhile");
}
