//! Cron expressions: an accepted one has ascending occurrences; an error is one line.
#![no_main]

use duly::{NewTask, Timestamp};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: (u8, u32, &str)| {
    let (zone, second, text) = line;
    let zone = ["UTC", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"][usize::from(zone % 4)];
    let from = Timestamp::from_millis(i64::from(second) * 1000);
    match NewTask::cron("t", text).time_zone(zone).handler("h").upcoming(from, 5) {
        Ok(ahead) => {
            assert!(!ahead.is_empty() || second > 0);
            assert!(
                ahead.iter().all(|upcoming| upcoming.at > from) && ahead.is_sorted_by(|one, next| one.at < next.at)
            );
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
});
