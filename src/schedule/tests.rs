//! Tables of zones and days: gaps, folds, half-hour shifts, leap days, expressions without occurrences.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::local_times::LocalTimes;
use super::pattern::{Pattern, STEPS};
use super::reference::Random;
use super::zone::Zone;
use super::{CAPACITY, ClockNote, Count, Schedule, ScheduleKind, Schedules, dialect};
use crate::clock::Timestamp;
use crate::waits::{joined, patience};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn schedule(kind: ScheduleKind, value: &str, zone: &str) -> Schedule {
    Schedule::parse(kind, value, zone, at("2027-01-01T00:00:00Z")).unwrap()
}

fn cron(line: &str, zone: &str) -> Schedule {
    schedule(ScheduleKind::Cron, line, zone)
}

/// Returns the occurrences in `(after, until)`, and checks that both directions find the same.
#[track_caller]
fn occurrences(schedule: &Schedule, after: Timestamp, until: Timestamp) -> Vec<Timestamp> {
    let forward = |at: &Timestamp| schedule.next_after(*at).filter(|next| *next < until);
    let backward = |at: &Timestamp| schedule.previous_before(*at).filter(|previous| *previous > after);
    let forwards: Vec<_> = std::iter::successors(forward(&after), forward).collect();
    let mut backwards: Vec<_> = std::iter::successors(backward(&until), backward).collect();
    backwards.reverse();
    assert_eq!(forwards, backwards, "{schedule:?}");
    forwards
}

/// Zone, cron expression, start of the search, and the following occurrences.
#[test]
fn daylight_saving() {
    for (zone, line, from, expected) in [
        // New York, 2027-03-14: 02:00 becomes 03:00.
        ("America/New_York", "0,30 2 * * *", "2027-03-13T12:00:00Z", "14T07:00 15T06:00 15T06:30"),
        ("America/New_York", "0 2,3 * * *", "2027-03-13T12:00:00Z", "14T07:00 15T06:00 15T07:00"),
        ("America/New_York", "30 1-3 * * *", "2027-03-14T05:00:00Z", "14T06:30 14T07:00 14T07:30 15T05:30"),
        ("America/New_York", "*/30 2 * * *", "2027-03-13T12:00:00Z", "15T06:00 15T06:30"),
        ("America/New_York", "*/20 * * * *", "2027-03-14T06:30:00Z", "14T06:40 14T07:00 14T07:20"),
        ("America/New_York", "59 59 * * * *", "2027-03-14T05:30:00Z", "14T05:59:59 14T06:59:59 14T07:59:59"),
        ("America/New_York", "59 59 2 * * *", "2027-03-13T12:00:00Z", "14T07:00 15T06:59:59"),
        ("America/New_York", "30 2 14 3 *", "2027-03-01T00:00:00Z", "14T07:00"),
        // 2027-11-07: 02:00 becomes 01:00.
        ("America/New_York", "0,30 1 * * *", "2027-11-06T12:00:00Z", "07T05:00 07T05:30 08T06:00 08T06:30"),
        ("America/New_York", "0,30 1 * * *", "2027-11-07T05:45:00Z", "08T06:00"),
        ("America/New_York", "0,30 1 * * *", "2027-11-07T06:15:00Z", "08T06:00"),
        ("America/New_York", "0 1,2 * * *", "2027-11-06T12:00:00Z", "07T05:00 07T07:00 08T06:00"),
        ("America/New_York", "30 * * * *", "2027-11-07T04:00:00Z", "07T04:30 07T05:30 07T06:30 07T07:30"),
        (
            "America/New_York",
            "*/15 1 7 11 *",
            "2027-11-07T00:00:00Z",
            "07T05:00 07T05:15 07T05:30 07T05:45 07T06:00 07T06:15 07T06:30 07T06:45",
        ),
        // London, at 01:00 UTC both times.
        ("Europe/London", "0 0 * * *", "2027-03-28T00:00:00Z", "28T23:00"),
        ("Europe/London", "30 1 * * *", "2027-03-27T12:00:00Z", "28T01:00 29T00:30"),
        ("Europe/London", "30 1 * * *", "2027-10-30T12:00:00Z", "31T00:30"),
        ("Europe/London", "0 * * * *", "2027-10-30T23:30:00Z", "31T00:00 31T01:00 31T02:00"),
        // Lord Howe moves by half an hour: 2027-10-03 from 02:00 to 02:30, 2027-04-04 from 02:00 to 01:30.
        ("Australia/Lord_Howe", "15 2 * * *", "2027-10-02T00:00:00Z", "02T15:30 03T15:15"),
        ("Australia/Lord_Howe", "15,45 2 * * *", "2027-10-02T00:00:00Z", "02T15:30 02T15:45 03T15:15"),
        ("Australia/Lord_Howe", "45 1 * * *", "2027-04-03T00:00:00Z", "03T14:45 04T15:15"),
        ("Australia/Lord_Howe", "45 * * * *", "2027-04-03T14:00:00Z", "03T14:45 03T15:15 03T16:15"),
        // Apia had no 30 December 2011: from -10:00 to +14:00.
        ("Pacific/Apia", "0 12 * * *", "2011-12-29T22:00:00Z", "30T10:00 30T22:00"),
        ("Pacific/Apia", "0 0 30 12 *", "2011-12-01T00:00:00Z", "30T10:00"),
        ("Pacific/Apia", "0 0 31 12 *", "2011-12-01T00:00:00Z", "30T10:00"),
        ("Pacific/Apia", "0 */12 * * *", "2011-12-29T22:00:00Z", "30T10:00 30T22:00"),
        ("Pacific/Apia", "0 * 30 12 *", "2011-12-01T00:00:00Z", ""),
        // Midnights that do not exist.
        ("Africa/Cairo", "0 0 * * *", "2027-04-29T00:00:00Z", "29T22:00 30T21:00"),
        ("Africa/Cairo", "30 0 30 4 *", "2027-04-01T00:00:00Z", "29T22:00"),
        ("Asia/Beirut", "0 0 * * *", "2027-03-27T00:00:00Z", "27T22:00 28T21:00"),
        ("America/Sao_Paulo", "0 0 * * *", "2018-11-03T12:00:00Z", "04T03:00 05T02:00"),
        ("America/Sao_Paulo", "0 0 * * *", "2018-02-17T00:00:00Z", "17T02:00 18T03:00"),
        ("America/Sao_Paulo", "30 23 * * *", "2018-02-17T12:00:00Z", "18T01:30 19T02:30"),
        // No daylight saving, and not on the hour.
        ("Asia/Kolkata", "0 9 * * *", "2027-03-13T12:00:00Z", "14T03:30 15T03:30"),
        ("Asia/Kathmandu", "0 * * * *", "2027-03-13T12:00:00Z", "13T12:15 13T13:15"),
        // Troll moves by two hours, at 01:00 UTC.
        ("Antarctica/Troll", "30 1,2 * * *", "2027-03-27T12:00:00Z", "28T01:00 28T23:30"),
        ("Antarctica/Troll", "30 1,2 * * *", "2027-10-30T12:00:00Z", "30T23:30 31T00:30"),
        ("Antarctica/Troll", "30 * * * *", "2027-10-31T00:00:00Z", "31T00:30 31T01:30"),
        // Casey went from +08:00 to +11:00 on 2009-10-18 at 02:00, and back in March.
        ("Antarctica/Casey", "30 2 * * *", "2009-10-17T00:00:00Z", "17T18:00 18T15:30"),
        ("Antarctica/Casey", "0 3,4,5 * * *", "2009-10-17T00:00:00Z", "17T18:00 18T16:00"),
        ("Antarctica/Casey", "30 0 * * *", "2010-03-04T00:00:00Z", "04T13:30 05T16:30"),
        // Past 2038.
        ("Europe/Rome", "30 2 * * *", "2040-03-24T12:00:00Z", "25T01:00 26T00:30"),
    ] {
        // With the zone files of this machine, if any, and with the built-in rules.
        for zone in [Zone::named(zone).unwrap(), Zone::built_in(zone)] {
            let case = format!("{line} in {zone:?} from {from}");
            let schedule = Schedule::Local(Arc::new(LocalTimes::cron(line, zone).unwrap()));
            let found = occurrences(&schedule, at(from), at(from).plus(Duration::from_secs(60 * 24 * 3600)));
            let found: Vec<_> = found.iter().map(|at| at.to_string()[8..19].to_owned()).collect();
            let expected: Vec<_> = expected.split_whitespace().collect();
            let as_expected = found.iter().zip(&expected).all(|(found, expected)| found.starts_with(expected));
            let none_or_enough = found.is_empty() == expected.is_empty() && found.len() >= expected.len();
            assert!(as_expected && none_or_enough, "{case}: {found:?} instead of {expected:?}");
        }
    }
}

/// An instant that SQL or other zone data has planned is none of the expression, and the clock skips nothing there.
#[test]
fn a_note_about_a_skipped_time_needs_a_gap() {
    let (noon, night) = (cron("0 12 * * *", "Europe/Rome"), cron("30 2 * * *", "Europe/Rome"));
    let gap = at("2027-03-28T01:00:00Z");
    assert_eq!(night.note(gap), Some(ClockNote::AfterGap));
    assert_eq!(noon.note(at("2027-03-29T10:00:00Z")), None);
    for other in [gap, at("2027-03-29T11:00:00Z"), at("2027-03-29T09:00:00.500Z")] {
        assert_eq!(noon.note(other), None, "{other}");
    }
}

#[test]
fn days_of_the_calendar() {
    for (line, from, expected) in [
        ("0 0 29 2 *", "2096-02-29T00:00:00Z", "2104-02-29T00:00:00.000Z"),
        ("0 0 29 2 */7", "2027-01-01T00:00:00Z", "2032-02-29T00:00:00.000Z"),
        ("0 0 31 * *", "2027-01-31T00:00:00Z", "2027-03-31T00:00:00.000Z"),
        ("0 0 L 2 *", "2027-03-01T00:00:00Z", "2028-02-29T00:00:00.000Z"),
        ("0 0 LW * *", "2027-10-01T00:00:00Z", "2027-10-29T00:00:00.000Z"),
        ("0 0 15W * *", "2027-08-01T00:00:00Z", "2027-08-16T00:00:00.000Z"),
        ("0 0 * * MON#5", "2027-03-01T00:00:00Z", "2027-03-29T00:00:00.000Z"),
        ("0 0 * * FRIL", "2027-03-01T00:00:00Z", "2027-03-26T00:00:00.000Z"),
        // Either day matches if both are restricted; both must match if one starts with a star.
        ("0 0 13 * FRI", "2027-08-01T00:00:00Z", "2027-08-06T00:00:00.000Z"),
        ("0 0 */2 * MON", "2027-08-01T00:00:00Z", "2027-08-09T00:00:00.000Z"),
        ("0 0 13 * */5", "2027-08-01T00:00:00Z", "2027-08-13T00:00:00.000Z"),
        ("0 0 * * 7", "2027-08-02T00:00:00Z", "2027-08-08T00:00:00.000Z"),
        ("@weekly", "2027-08-02T00:00:00Z", "2027-08-08T00:00:00.000Z"),
        ("@yearly", "2027-08-02T00:00:00Z", "2028-01-01T00:00:00.000Z"),
    ] {
        let next = cron(line, "UTC").next_after(at(from)).unwrap();
        assert_eq!(next.to_string(), expected, "{line} from {from}");
    }
}

#[test]
fn an_expression_without_occurrences_is_refused() {
    for line in ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "* * 30 2 *", "0 0 15W * */7", "*/5 * * 31 2 *"] {
        let error = Schedule::parse(ScheduleKind::Cron, line, "UTC", at("2027-01-01T00:00:00Z")).unwrap_err();
        assert_eq!(error.to_string(), format!("invalid schedule {line:?}: no moment before the year 4000 matches it"));
    }
}

/// Returns random text of plausible pieces, most of it invalid, and sometimes with characters that no expression has.
fn random_text(random: &mut Random) -> String {
    const PIECES: [&str; 32] = [
        "*", "*", "*", "/", "-", ",", "0", "1", "2", "5", "7", "9", "12", "15", "31", "59", "60", "L", "W", "LW", "#",
        "#2", "5L", "15W", "MON", "-SUN", "JAN", "?", "+", "@", "1-5", "*/2",
    ];
    const STRANGE: [&str; 8] = ["\0", "\n", "ſun", "🕛", "4294967296", "-1", "@every", "2027"];
    let mut fields = vec!["*".to_owned(); 5 + random.below(2)];
    for _ in 0..2 {
        let field = random.below(fields.len());
        fields[field] = (0..=random.below(4)).map(|_| PIECES[random.below(PIECES.len())]).collect();
    }
    if random.below(8) == 0 {
        let field = random.below(fields.len());
        fields[field].push_str(STRANGE[random.below(STRANGE.len())]);
    }
    if random.below(200) == 0 {
        return fields.join(" ").repeat(1 + random.below(40));
    }
    fields.join(" ")
}

/// No text causes a panic, and croner parses everything that the dialect accepts.
#[test]
fn croner_parses_everything_that_the_dialect_accepts() {
    let mut random = Random(0x5eed_0003);
    let mut accepted = 0;
    for _ in 0..30_000 {
        let line = random_text(&mut random);
        if let Ok(checked) = dialect::check(&line) {
            accepted += 1;
            assert!(Pattern::read(&checked.fields).is_ok(), "{line:?} became {:?}", checked.fields);
        }
    }
    assert!(accepted > 500, "{accepted}");
}

/// The maximum number of steps of a search: two thousand years of months, and two changes of the clock each.
const MOST_STEPS: u64 = 2000 * (12 + 2 * 2);

/// For any text and instant, the result is on the correct side, and the search is short.
#[test]
fn every_search_is_short_and_correct() {
    const ZONES: [&str; 6] =
        ["UTC", "America/New_York", "Pacific/Apia", "Antarctica/Troll", "Africa/Monrovia", "Asia/Gaza"];
    // In the hour that the clocks skip, or very sparse; croner's own search would not terminate in time.
    const SPARSE: [(&str, &str); 8] = [
        ("* 2 8-14 3 */7", "America/New_York"),
        ("* 2 29 2 */7", "America/New_York"),
        ("59 59 23 29 2 *", "Pacific/Apia"),
        ("* * 30 12 *", "Pacific/Apia"),
        ("*/59 */23 31 */11 */6", "Antarctica/Troll"),
        ("* * 29 2 */6", "Asia/Gaza"),
        ("* * 30 2 *", "UTC"),
        ("* , * * *", "UTC"),
    ];
    let (begin, begun) = channel();
    let work = std::thread::spawn(move || {
        let mut random = Random(0x5eed_0005);
        let (mut answered, mut most) = (0, 0);
        for number in 0..20_000 {
            let (line, zone) = match SPARSE.get(number) {
                Some((line, zone)) => ((*line).to_owned(), *zone),
                None => (random_text(&mut random), ZONES[random.below(ZONES.len())]),
            };
            begin.send(format!("{line:?} in {zone}")).unwrap();
            let Ok(schedule) = Schedule::parse(ScheduleKind::Cron, &line, zone, Timestamp::MIN) else { continue };
            let anywhere = Timestamp::from_millis(random.below(64_060_588_800_000) as i64);
            for at in [
                anywhere,
                at("2027-03-14T06:59:59.999Z"),
                Timestamp::from_millis(i64::MIN),
                Timestamp::from_millis(i64::MAX),
            ] {
                STEPS.set(0);
                let (next, previous) = (schedule.next_after(at), schedule.previous_before(at));
                assert!(next.is_none_or(|next| next > at), "{line:?} in {zone}: {next:?} after {at}");
                assert!(previous.is_none_or(|previous| previous < at), "{line:?} in {zone}: {previous:?} before {at}");
                assert!(STEPS.get() <= 2 * MOST_STEPS, "{line:?} in {zone} at {at}: {} steps", STEPS.get());
                most = most.max(STEPS.get());
                answered += usize::from(next.is_some());
            }
        }
        (answered, most)
    });
    watch(&begun);
    let (answered, most) = joined(work, "the work").unwrap();
    println!("{answered} answers, {most} steps at most");
    assert!(answered > 1000, "{answered}");
}

/// Waits for the end of the work. Each item announces itself and may take a twelfth of the longest wait, five seconds.
fn watch(begun: &Receiver<String>) {
    let mut doing = String::new();
    loop {
        match begun.recv_timeout(patience() / 12) {
            Ok(next) => doing = next,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => panic!("no answer in {:?}: {doing}", patience() / 12),
        }
    }
}

#[test]
fn equivalent_expressions_are_equal() {
    for (one, other, same) in [
        ("@weekly", "0 0 * * SUN", true),
        ("0 0 * * 7", "0  0 * * 0", true),
        ("0,30 * * * *", "*/30 * * * *", true),
        // The same local times, but different behaviour when the clock changes.
        ("0 0-23 * * *", "0 * * * *", false),
        ("0 0 * * *", "0 1 * * *", false),
    ] {
        assert_eq!(cron(one, "UTC") == cron(other, "UTC"), same, "{one} and {other}");
    }
    assert_ne!(cron("0 0 * * *", "UTC"), cron("0 0 * * *", "Europe/Rome"));
}

#[test]
fn the_limits_of_the_range() {
    let last = Timestamp::MAX;
    let daily = cron("0 0 * * *", "UTC");
    assert_eq!(daily.next_after(last), None);
    assert_eq!(daily.previous_before(Timestamp::from_millis(i64::MAX)), Some(last));
    assert_eq!(daily.previous_before(Timestamp::from_millis(0)), None);
    let minutely = cron("* * * * *", "Pacific/Apia");
    for schedule in [&daily, &minutely] {
        assert_eq!(schedule.next_after(Timestamp::from_millis(i64::MIN)), Some(Timestamp::from_millis(0)));
        assert_eq!(schedule.next_after(Timestamp::from_millis(i64::MAX)), None);
        assert_eq!(schedule.previous_before(Timestamp::from_millis(i64::MIN)), None);
    }
}

#[test]
fn the_grid_of_an_interval() {
    let grid = schedule(ScheduleKind::Interval, "90s", "UTC");
    let found = occurrences(&grid, at("2026-12-31T00:00:00Z"), at("2027-01-01T00:03:01Z"));
    assert_eq!(found, ["2027-01-01T00:00:00Z", "2027-01-01T00:01:30Z", "2027-01-01T00:03:00Z"].map(at));
    assert_eq!(grid.next_after(at("2027-01-01T00:00:00.001Z")), Some(at("2027-01-01T00:01:30Z")));
    assert_eq!(grid.previous_before(at("2027-01-01T00:00:00.001Z")), Some(at("2027-01-01T00:00:00Z")));
    assert_eq!(grid.previous_before(at("2027-01-01T00:00:00Z")), None);
    assert_eq!(grid.next_after(Timestamp::MAX), None);
    assert!(grid.previous_before(Timestamp::from_millis(i64::MAX)) <= Some(Timestamp::MAX));
    // Elapsed time: daylight saving does not move it.
    let daily = schedule(ScheduleKind::Interval, "1d", "America/New_York");
    assert_eq!(daily.next_after(at("2027-03-14T12:00:00Z")), Some(at("2027-03-15T00:00:00Z")));
}

#[test]
fn delay_and_once() {
    let delay = schedule(ScheduleKind::Delay, "15m", "UTC");
    assert_eq!(delay.next_after(at("2027-01-01T00:00:00.001Z")), Some(at("2027-01-01T00:15:00.001Z")));
    assert_eq!(delay.previous_before(at("2027-01-01T00:00:00Z")), None);
    let once = schedule(ScheduleKind::Once, "2027-07-01T09:00", "Asia/Kolkata");
    let instant = at("2027-07-01T03:30:00Z");
    assert_eq!(occurrences(&once, Timestamp::MIN, Timestamp::MAX), [instant]);
    assert_eq!((once.next_after(instant), once.previous_before(instant)), (None, None));
}

#[test]
fn a_manual_schedule_has_no_occurrence_and_no_text() {
    let manual = schedule(ScheduleKind::Manual, "", "UTC");
    let instant = at("2027-01-01T00:00:00Z");
    assert_eq!((manual.next_after(instant), manual.previous_before(instant)), (None, None));
    for value in ["@daily", " "] {
        let error = Schedule::parse(ScheduleKind::Manual, value, "UTC", instant).unwrap_err().to_string();
        assert!(error.contains("expected an empty text"), "{error}");
    }
}

#[test]
fn counting_is_exact_or_stops_at_the_limit() {
    let (first, last) = (at("2027-01-01T00:00:00Z"), at("2027-01-08T00:00:00Z"));
    for (kind, value, count) in [
        (ScheduleKind::Cron, "0 * * * *", Count { n: 169, exact: true }),
        (ScheduleKind::Cron, "* * * * *", Count { n: 10_000, exact: false }),
        (ScheduleKind::Interval, "1ms", Count { n: 604_800_001, exact: true }),
        (ScheduleKind::Interval, "7d", Count { n: 2, exact: true }),
    ] {
        assert_eq!(schedule(kind, value, "UTC").count_between(first, last, 10_000), count, "{value}");
    }
    let daily = cron("0 0 * * *", "UTC");
    assert_eq!(daily.count_between(first, last, 8), Count { n: 8, exact: true });
    assert_eq!(daily.count_between(first, last, 7), Count { n: 7, exact: false });
    assert_eq!(daily.count_between(first, first, 10_000), Count { n: 1, exact: true });
    assert_eq!(daily.count_between(last, first, 10_000), Count { n: 0, exact: true });
    assert_eq!(schedule(ScheduleKind::Delay, "1s", "UTC").count_between(first, last, 7), Count { n: 1, exact: true });
}

#[test]
fn the_cache_is_correct_and_bounded() {
    let mut schedules = Schedules::default();
    let anchor = at("2027-01-01T00:00:00Z");
    for line in 0..2 * CAPACITY {
        let line = format!("{} {} * * *", line % 60, line / 60 % 24);
        for zone in ["Europe/Rome", "UTC"] {
            let kept = schedules.get(ScheduleKind::Cron, &line, zone, anchor).unwrap();
            assert_eq!(kept, cron(&line, zone));
            assert_eq!(schedules.get(ScheduleKind::Cron, &line, zone, anchor).unwrap(), kept);
        }
        assert!(schedules.lines.len() <= CAPACITY);
    }
    assert!(schedules.get(ScheduleKind::Cron, "61 * * * *", "UTC", anchor).is_err());
    // The key is a pair: six fields in UTC differ from five fields in a zone with an odd name.
    assert!(schedules.get(ScheduleKind::Cron, "0 0 1 1 * *", "UTC", anchor).is_ok());
    assert!(schedules.get(ScheduleKind::Cron, "0 1 1 * *", "UTC 0", anchor).is_err());
    assert!(schedules.get(ScheduleKind::Cron, "0 * * * *", "utc", anchor).is_err());
    assert!(schedules.get(ScheduleKind::Interval, "15m", "Local", anchor).is_err());
}
