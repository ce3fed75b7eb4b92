//! Durations, instants, zone names, and tasks of unusual parts: what is accepted stays the same when it is written out and
//! read again, and means what a second implementation reads; a refusal is one line.

use duly::{Change, Error, NewTask, ScheduleKind, Timestamp, Zone, duration_text, parse_duration};

use crate::fixtures::{NOON, TestDb, at};
use crate::mutations::mutator::each;

const DURATIONS: &str = "
    15m, 1h 30m, 90000, 1.5h, 2weeks, 10years, 1y 2months 3d, 250ms, 1s500ms, 24h, 3 days, 1us 999us, 0s,
    7d 12hours 5min 1sec, 0.25days, 1M, 3652d 12h, 2147483647ms";

/// Texts between commas.
fn seeds(list: &str) -> Vec<&str> {
    list.split(',').map(str::trim).collect()
}

/// Nanoseconds of a unit, as documented for durations.
fn unit(name: &str) -> Option<u128> {
    const SECOND: u128 = 1_000_000_000;
    Some(match name {
        "nanos" | "nsec" | "ns" => 1,
        "usec" | "us" | "\u{b5}s" => 1_000,
        "millis" | "msec" | "ms" => 1_000_000,
        "seconds" | "second" | "secs" | "sec" | "s" => SECOND,
        "minutes" | "minute" | "mins" | "min" | "m" => 60 * SECOND,
        "hours" | "hour" | "hrs" | "hr" | "h" => 3600 * SECOND,
        "days" | "day" | "d" => 86_400 * SECOND,
        "weeks" | "week" | "wks" | "wk" | "w" => 7 * 86_400 * SECOND,
        "months" | "month" | "M" => 2_630_016 * SECOND,
        "years" | "year" | "yrs" | "yr" | "y" => 31_557_600 * SECOND,
        _ => return None,
    })
}

/// A second implementation of durations: numbers, each with a unit, added up.
fn nanoseconds(text: &str) -> Option<u128> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse::<u64>().ok().map(|millis| u128::from(millis) * 1_000_000);
    }
    let characters: Vec<char> = text.chars().filter(|letter| !letter.is_whitespace()).collect();
    let (mut at, mut sum) = (0, 0_u128);
    while at < characters.len() {
        let run = |from: usize, holds: fn(&char) -> bool| {
            characters[from..].iter().take_while(|letter| holds(letter)).count()
        };
        let digits = run(at, char::is_ascii_digit);
        let whole: u128 = String::from_iter(&characters[at..at + digits]).parse().ok()?;
        at += digits;
        let mut part = String::new();
        if characters.get(at) == Some(&'.') {
            let digits = run(at + 1, char::is_ascii_digit);
            part = String::from_iter(&characters[at + 1..at + 1 + digits]);
            at += 1 + digits;
        }
        let letters_of_unit = run(at, |letter| letter.is_alphabetic());
        let unit = unit(&String::from_iter(&characters[at..at + letters_of_unit]))?;
        at += letters_of_unit;
        // Beyond 18 digits a fraction of a year is less than a nanosecond.
        let part: String = part.chars().take(18).collect();
        let scale = 10_u128.pow(u32::try_from(part.len()).ok()?);
        sum = sum.checked_add(whole.checked_mul(unit)?)?;
        sum = sum.checked_add(if part.is_empty() { 0 } else { unit * part.parse::<u128>().ok()? / scale })?;
    }
    Some(sum)
}

#[test]
fn durations_match_a_second_implementation() {
    for text in seeds(DURATIONS) {
        assert_eq!(
            parse_duration(text).ok().map(|read| read.as_nanos()),
            nanoseconds(text).filter(|n| *n > 0),
            "{text}"
        );
    }
    let mut read = 0;
    each(20_000, |mutator| {
        let text = mutator.text(&seeds(DURATIONS));
        match parse_duration(&text) {
            Ok(length) => {
                assert_eq!(Some(length.as_nanos()), nanoseconds(&text), "{text:?}");
                assert_eq!(parse_duration(&duration_text(length)).expect("its own text"), length);
                read += 1;
            }
            Err(error) => refused(&error, &text),
        }
    });
    assert!(read > 1000, "{read} of them were read");
}

/// Checks a refusal: one line that says what is expected, with the beginning of a long input.
fn refused(error: &Error, text: &str) {
    let message = error.to_string();
    assert!(message.lines().count() == 1 && message.len() < 1000, "{text:?}\n{message}");
    assert!(!message.chars().any(char::is_control), "{text:?}\n{message:?}");
    assert!(
        message.contains("expected") || message.contains("there is no day") || message.contains("nearest"),
        "{text:?}\n{message}"
    );
}

const INSTANTS: &str = "
    2027-03-14T12:00:00Z, 2027-03-14T12:00, 2027-03-14 12:00:30, 2027-11-07T01:30:00-05:00, 2027-02-29T12:00,
    2001-09-09T01:46:40.000Z, 3999-12-31T23:59:59.999Z, 2027-03-14T12:00:00.123456789+14:00,
    2028-02-29 00:00:00.5, 2027-12-31T23:59:60Z, 2027-03-14t12:00:00z, 2027-03-14 12:00:00+01:00";

/// A second implementation of instants in UTC: numbers between separators, and the calendar by arithmetic. In a local time a
/// number may have one digit.
fn milliseconds(text: &str) -> Option<i64> {
    let number = |digits: &str| {
        let plain = (1..=2).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse::<i64>().ok())?
    };
    let (date, time) = text.trim().split_once(['T', 't', ' '])?;
    let (year, date) = date.split_once('-')?;
    let (month, day) = date.split_once('-')?;
    let year: i64 = year.parse().ok().filter(|_| year.len() == 4)?;
    let (month, day) = (number(month)?, number(day)?);
    let end = time.find(['Z', 'z', '+', '-']).unwrap_or(time.len());
    let (is_local, (time, offset)) = (end == time.len(), time.split_at(end));
    let offset = match offset {
        "" | "Z" | "z" => 0,
        _ => {
            let sign = if offset.starts_with('+') { 1 } else { -1 };
            let (hours, minutes) = offset[1..].split_once(':')?;
            sign * (number(hours)? * 60 + number(minutes)?)
        }
    };
    let (hour, rest) = time.split_once(':')?;
    let (minute, rest) = rest.split_once(':').unwrap_or((rest, "0"));
    let (second, part) = rest.split_once('.').unwrap_or((rest, "0"));
    let (hour, minute, second) = (number(hour)?, number(minute)?, number(second)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let length = *lengths.get(usize::try_from(month - 1).ok()?)?;
    if !(1..=length).contains(&day) || hour > 23 || minute > 59 {
        return None;
    }
    // A leap second ends a day, and equals the first second of the next; a local time has none.
    if second > 60 || second == 60 && (is_local || (hour * 60 + minute - offset).rem_euclid(1440) != 1439) {
        return None;
    }
    let before = year - 1;
    let months: i64 = lengths[..usize::try_from(month - 1).ok()?].iter().sum();
    let days = 365 * before + before / 4 - before / 100 + before / 400 - 719_162 + months + day - 1;
    let millis: i64 = format!("{part:0<3}").get(..3)?.parse().ok()?;
    Some((((days * 24 + hour) * 60 + minute - offset) * 60 + second) * 1000 + millis)
}

#[test]
fn instants_match_a_second_implementation() {
    let zones = ["UTC", "America/New_York", "Australia/Lord_Howe"].map(|name| Zone::named(name).expect("a zone"));
    let mut read = 0;
    each(20_000, |mutator| {
        let text = mutator.text(&seeds(INSTANTS));
        for zone in &zones {
            let instant = match zone.instant(&text) {
                Ok(instant) => instant,
                Err(error) => {
                    refused(&error, &text);
                    continue;
                }
            };
            assert!((Timestamp::MIN..=Timestamp::MAX).contains(&instant), "{text:?}: {instant}");
            let written = instant.to_string();
            assert_eq!(written.parse::<Timestamp>().expect("its own text"), instant);
            assert_eq!(zone.instant(&written).expect("its own text"), instant);
            if zone.name() == "UTC" {
                assert_eq!(Some(instant.as_millis()), milliseconds(&text), "{text:?}");
                read += 1;
            }
        }
    });
    assert!(read > 1000, "{read} of them were read");
}

#[test]
fn zone_names_are_kept() {
    let seeds = seeds(
        "
        Europe/Rome, America/Argentina/Buenos_Aires, UTC, Etc/GMT+5, EST5EDT, local, ../../etc/passwd,
        posixrules, Europe/, right/UTC, America/Port-au-Prince, GB, Etc/GMT-14",
    );
    let mut read = 0;
    each(3000, |mutator| {
        let text = mutator.text(&seeds);
        match Zone::named(&text) {
            Ok(zone) => {
                assert_eq!(zone.name(), text);
                assert!(!text.contains("..") && !text.starts_with('/'), "{text:?}");
                assert_eq!(zone, Zone::named(zone.name()).expect("its own name"));
                read += 1;
            }
            Err(error) => refused(&error, &text),
        }
    });
    assert!(read > 100, "{read} of them are zones");
}

/// Accepted tasks are stored as given, and adding them again changes nothing. A refused task leaves no row.
#[test]
fn accepted_tasks_are_stored_as_given() {
    let (db, words) =
        (TestDb::new(), ["digest", "chat:4711", "a/b@c.d-e_f", "x", "caf\u{e9} au lait", "#7", "two words"]);
    let payloads = [
        "null",
        "{}",
        r#"{"to": ["anna", 1, -0.0, 1e308], "deep": [[[[]]]]}"#,
        "\"\\u0000\\ud83d\\ude00\"",
        "[1,2,3]",
        "1e999",
        "18446744073709551616",
        "{\"a\":1,\"a\":2}",
        " 7 ",
    ];
    let mut stepper = db.stepper(NOON);
    let (mut added, mut refusals) = (0, 0);
    each(600, |mutator| {
        use ScheduleKind::{Cron, Delay, Interval, Manual, Once};
        let kind = [Cron, Interval, Delay, Once, Manual][mutator.random.usize(..5)];
        let value = match kind {
            Cron => mutator.text(&["* * * * *", "0 7 * * MON-FRI", "@daily", "*/10 * * * * *"]),
            Once => mutator.text(&seeds(INSTANTS)),
            Manual if mutator.random.u8(..4) > 0 => String::new(),
            Manual => mutator.text(&["@daily"]),
            _ => mutator.text(&seeds(DURATIONS)),
        };
        // Most parts are valid: else no task would be accepted.
        let mut part = |usual: &str, seeds: &[&str]| match mutator.random.u8(..4) {
            0 => mutator.text(seeds),
            _ => usual.to_owned(),
        };
        let (name, handler, key) = (part("digest", &words), part("work", &words), part("chat", &words));
        let (zone, payload) = (part("UTC", &["Europe/Rome"]), part("null", &payloads));
        let Ok(payload) = serde_json::from_str::<Box<serde_json::value::RawValue>>(&payload) else { return };
        let task = NewTask::scheduled(&name, kind, &value).handler(handler).concurrency_key(key);
        let task = task.time_zone(zone).payload(payload);
        let client = stepper.client();
        match client.add(task.clone()) {
            Err(error) => {
                let message = error.to_string();
                assert!(message.lines().count() == 1 && message.len() < 1000, "{message}");
                assert_eq!(client.task(&name).expect("a look-up"), None);
                refusals += 1;
            }
            Ok(first) => {
                assert_eq!(client.add(task.clone()).expect("a repetition").change, Change::Unchanged);
                let stored = client.task(&first.name).expect("a look-up").expect("the task");
                assert_eq!((&stored.definition.name, &stored.definition.schedule_value), (&name, &value));
                let ahead = task.occurrences(at(NOON), 3).expect("occurrences");
                assert!(ahead.is_empty() == (kind == Manual) && ahead.is_sorted(), "{ahead:?}");
                stepper.step().expect("a turn");
                let client = stepper.client();
                for run in client.history(&name, 10).expect("its runs") {
                    client.cancel(run.id).expect("a cancellation");
                }
                for claim in stepper.running().to_vec() {
                    stepper.finish(&claim, duly::Outcome::succeeded());
                }
                stepper.settle().expect("a turn that begins nothing");
                stepper.client().remove(&name).expect("a task that has no running run");
                added += 1;
            }
        }
    });
    assert!(added > 40 && refusals > 40, "{added} added, {refusals} refused");
    stepper.stop().expect("its end");
    db.assert_sound();
}
