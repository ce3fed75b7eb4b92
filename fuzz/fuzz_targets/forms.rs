//! Durations, instants and names of zones: an accepted value is unchanged when it is formatted and parsed again.
#![no_main]

use duly::{Timestamp, Zone, duration_text, parse_duration};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match parse_duration(text) {
        Ok(length) => assert_eq!(parse_duration(&duration_text(length)).ok(), Some(length)),
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
    for name in ["UTC", "America/New_York", "Australia/Lord_Howe"] {
        let Ok(zone) = Zone::named(name) else { continue };
        match zone.instant(text) {
            Ok(at) => {
                assert_eq!(at.to_string().parse::<Timestamp>().ok(), Some(at));
                assert_eq!(zone.instant(&at.to_string()).ok(), Some(at));
            }
            Err(error) => assert_eq!(error.to_string().lines().count(), 1),
        }
    }
    match Zone::named(text) {
        Ok(zone) => assert_eq!(zone.name(), text),
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
});
