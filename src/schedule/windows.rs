//! The times of the day and the dates on which the occurrences of a task are run. All others are skipped.
//!
//! The rules are about the local time of an occurrence, in the zone of its task. Pure: it reads no clock.

use chrono::{Days, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::schedule::calendar::time_of_day;
use crate::schedule::zone::Zone;

/// The columns, which name the rules in errors and reasons.
const ONLY_BETWEEN: &str = "only_between";
const ONLY_ON: &str = "only_on";
const EXCEPT_ON: &str = "except_on";

/// Most ranges of dates of a column.
const MAX_DATES: usize = 1000;
/// Most times of the day.
const MAX_TIMES: usize = 24;
const TIMES: &str = "times of 24 hours such as 09:00-17:30, or 22:00-06:00 over midnight, separated by commas";
const DATES: &str = "dates such as 2027-12-24 or 2027-12-24..2027-12-26, separated by commas";

/// When the occurrences of a task are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    zone: Zone,
    /// Empty: at every time of the day.
    between: Vec<Times>,
    only_on: Option<Dates>,
    except_on: Option<Dates>,
    /// As they were written.
    texts: [String; 3],
}

/// From the first time until before the last. If the last is not later, the times are over midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    from: NaiveTime,
    until: NaiveTime,
}

/// Ranges of dates, each with its first and its last day, and the name of its calendar.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Dates(Vec<(NaiveDate, NaiveDate, String)>);

/// The rule by which an occurrence is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    Between,
    OnlyOn,
    /// The index of a range of dates of the calendar.
    Except(usize),
}

impl Windows {
    /// Parses the columns. Returns `None` if there is no rule.
    ///
    /// ```text
    /// only_between  09:00-12:00, 13:00-17:30      09:00 is within, 17:30 is not
    /// only_between  22:00-06:00                   over midnight
    /// except_on     2027-12-24..2027-12-26        three days
    /// except_on     holidays: 2027-12-25, 2028-01-01; strike: 2027-11-02
    /// ```
    pub(crate) fn parse(zone: &str, [between, only_on, except_on]: [Option<&str>; 3]) -> Result<Option<Self>> {
        if between.is_none() && only_on.is_none() && except_on.is_none() {
            return Ok(None);
        }
        let dates = |column, text: Option<&str>| text.map(|text| Dates::parse(column, text)).transpose();
        Ok(Some(Windows {
            zone: Zone::named(zone)?,
            between: between.map_or_else(|| Ok(Vec::new()), times)?,
            only_on: dates(ONLY_ON, only_on)?,
            except_on: dates(EXCEPT_ON, except_on)?,
            texts: [between, only_on, except_on].map(|text| text.unwrap_or_default().to_owned()),
        }))
    }

    /// Returns the rule by which an occurrence is not run; `None` if it is.
    pub(crate) fn closed(&self, at: Timestamp) -> Option<Closed> {
        self.closed_at(self.zone.local_at(at)?)
    }

    /// As [`Windows::closed`], for a local time.
    pub(crate) fn closed_at(&self, local: NaiveDateTime) -> Option<Closed> {
        if let Some(range) = self.except_on.as_ref().and_then(|dates| dates.of(local.date())) {
            return Some(Closed::Except(range));
        }
        if self.only_on.as_ref().is_some_and(|dates| dates.of(local.date()).is_none()) {
            return Some(Closed::OnlyOn);
        }
        let is_within = self.between.is_empty() || self.between.iter().any(|times| times.contain(local.time()));
        (!is_within).then_some(Closed::Between)
    }

    /// Returns why an occurrence is not run. The same text for all that a rule excludes, so that they are one row.
    pub(crate) fn reason(&self, closed: Closed) -> String {
        match closed {
            Closed::Between => format!("outside of {} ({ONLY_BETWEEN})", self.texts[0]),
            Closed::OnlyOn => format!("on none of the dates of {ONLY_ON}"),
            Closed::Except(range) => {
                let range = self.except_on.as_ref().and_then(|dates| dates.0.get(range));
                let (first, last, calendar) = range.cloned().unwrap_or_default();
                let named = if calendar.is_empty() { calendar } else { format!("{calendar}: ") };
                let until = if first == last { String::new() } else { format!("..{last}") };
                format!("on {named}{first}{until} ({EXCEPT_ON})")
            }
        }
    }

    /// Returns whether the dates say something about a day from this instant on.
    pub(crate) fn have_dates_after(&self, at: Timestamp) -> bool {
        let today = self.zone.local_at(at).map(|local| local.date());
        let dates = [&self.only_on, &self.except_on].into_iter().flatten();
        dates.flat_map(|dates| &dates.0).any(|(_, last, _)| Some(*last) >= today)
    }

    /// Returns the error for a task of which this rule and the others exclude each occurrence.
    pub(crate) fn exclude_all(&self, closed: Closed) -> Error {
        let (column, text) = match closed {
            Closed::Between => (ONLY_BETWEEN, &self.texts[0]),
            Closed::OnlyOn => (ONLY_ON, &self.texts[1]),
            Closed::Except(_) => (EXCEPT_ON, &self.texts[2]),
        };
        Error::invalid_task(
            column,
            text,
            "a rule that leaves an occurrence: this one, with the others, excludes all that will come",
        )
    }

    /// Returns the first instant after `at` for which the rules may say something else.
    pub(crate) fn end(&self, at: Timestamp) -> Timestamp {
        let Some(local) = self.zone.local_at(at) else { return Timestamp::MAX };
        let midnight = local.date().checked_add_days(Days::new(1)).map(|next| next.and_time(NaiveTime::MIN));
        let bounds = self.bounds(local.date()).filter(|bound| *bound > local);
        let Some(next) = bounds.chain(midnight).min() else { return Timestamp::MAX };
        let end = moved(at, next - local);
        self.zone.next_change(at, end).unwrap_or(end)
    }

    /// Returns the first instant of the time around `at` for all of which the rules say the same.
    pub(crate) fn begin(&self, at: Timestamp) -> Timestamp {
        let Some(local) = self.zone.local_at(at) else { return at };
        let bounds = self.bounds(local.date()).filter(|bound| *bound <= local);
        let last = bounds.max().unwrap_or(local.date().and_time(NaiveTime::MIN));
        let begin = moved(at, last - local);
        self.zone.last_change(begin, at).unwrap_or(begin)
    }

    /// Returns the local times of a day at which the rules about times begin and end.
    fn bounds(&self, date: NaiveDate) -> impl Iterator<Item = NaiveDateTime> {
        self.between.iter().flat_map(move |times| [times.from, times.until].map(|time| date.and_time(time)))
    }
}

fn moved(at: Timestamp, by: TimeDelta) -> Timestamp {
    Timestamp::from_millis(at.as_millis().saturating_add(by.num_milliseconds()))
}

impl Times {
    fn contain(self, time: NaiveTime) -> bool {
        let (begun, ended) = (time >= self.from, time >= self.until);
        if self.from < self.until { begun && !ended } else { begun || !ended }
    }
}

fn times(text: &str) -> Result<Vec<Times>> {
    let refused = || Error::invalid_task(ONLY_BETWEEN, text, TIMES);
    let of = |part: &str| {
        let (from, until) = part.split_once('-')?;
        let from = time_of_day(from.trim()).ok()?;
        if until.trim() == "24:00" {
            return Some(Times { from, until: NaiveTime::MIN });
        }
        let until = time_of_day(until.trim()).ok()?;
        (from != until).then_some(Times { from, until })
    };
    let times = text.split(',').map(of).collect::<Option<Vec<_>>>().ok_or_else(refused)?;
    match times.len() {
        ..=MAX_TIMES => Ok(times),
        more => Err(Error::invalid_task(ONLY_BETWEEN, format!("{more} times"), format!("at most {MAX_TIMES} times"))),
    }
}

impl Dates {
    fn parse(column: &'static str, text: &str) -> Result<Self> {
        let refused = |part: &str| Error::invalid_task(column, part.trim(), DATES);
        let mut dates = Vec::new();
        for group in text.split(';') {
            let (calendar, listed) = group.split_once(':').unwrap_or(("", group));
            for part in listed.split(',') {
                let (first, last) = part.split_once("..").unwrap_or((part, part));
                let range = date(first).zip(date(last)).filter(|(first, last)| first <= last);
                let (first, last) = range.ok_or_else(|| refused(part))?;
                dates.push((first, last, calendar.trim().to_owned()));
            }
        }
        match dates.len() {
            ..=MAX_DATES => Ok(Dates(dates)),
            more => Err(Error::invalid_task(column, format!("{more} ranges"), format!("at most {MAX_DATES} ranges"))),
        }
    }

    /// Returns the index of the first range with this date.
    fn of(&self, date: NaiveDate) -> Option<usize> {
        self.0.iter().position(|(first, last, _)| (*first..=*last).contains(&date))
    }
}

/// `2027-12-24`, and not `2027-12-4`.
fn date(text: &str) -> Option<NaiveDate> {
    let text = text.trim();
    NaiveDate::parse_from_str(text, "%Y-%m-%d").ok().filter(|date| date.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(zone: &str, between: &str, only_on: &str, except_on: &str) -> Windows {
        let texts = [between, only_on, except_on].map(|text| Some(text).filter(|text| !text.is_empty()));
        Windows::parse(zone, texts).unwrap().expect("a rule")
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn an_occurrence_is_run_within_the_times_and_dates_of_its_zone() {
        let closed = |windows: &Windows, text: &str| windows.closed(at(text)).map(|why| windows.reason(why));
        let work = windows("Europe/Rome", "09:00-12:00, 13:00-17:30", "", "");
        let outside = Some("outside of 09:00-12:00, 13:00-17:30 (only_between)".to_owned());
        for (text, open) in [
            ("2027-01-14T07:59:59.999Z", false),
            ("2027-01-14T08:00:00Z", true),
            ("2027-01-14T10:59:59Z", true),
            ("2027-01-14T11:00:00Z", false),
            ("2027-01-14T16:29:59Z", true),
            ("2027-01-14T16:30:00Z", false),
            // Summer time.
            ("2027-07-14T07:00:00Z", true),
            ("2027-07-14T15:30:00Z", false),
        ] {
            assert_eq!(closed(&work, text), outside.clone().filter(|_| !open), "{text}");
        }
        let night = windows("UTC", "22:00-06:00", "", "");
        for (text, open) in [
            ("2027-01-14T21:59:59Z", false),
            ("2027-01-14T22:00:00Z", true),
            ("2027-01-15T05:59:00Z", true),
            ("2027-01-15T06:00:00Z", false),
        ] {
            assert_eq!(night.closed(at(text)).is_none(), open, "{text}");
        }
        let afternoon = windows("UTC", "12:00-24:00", "", "");
        assert!(afternoon.closed(at("2027-01-14T23:59:59Z")).is_none());
        assert!(afternoon.closed(at("2027-01-15T00:00:00Z")).is_some());
        assert!(windows("UTC", "00:00-24:00", "", "").closed(at("2027-01-15T00:00:00Z")).is_none());

        let dates =
            windows("America/New_York", "", "2027-12-20..2027-12-31", "holidays: 2027-12-24..2027-12-26; 2027-12-31");
        for (text, why) in [
            // Still the 19th in New York.
            ("2027-12-20T04:59:00Z", Some("on none of the dates of only_on")),
            ("2027-12-20T05:00:00Z", None),
            ("2027-12-25T12:00:00Z", Some("on holidays: 2027-12-24..2027-12-26 (except_on)")),
            ("2027-12-27T05:00:00Z", None),
            ("2027-12-31T12:00:00Z", Some("on 2027-12-31 (except_on)")),
            ("2028-01-01T12:00:00Z", Some("on none of the dates of only_on")),
        ] {
            assert_eq!(closed(&dates, text).as_deref(), why, "{text}");
        }
    }

    /// From any instant, the next and the last boundary enclose a time in which the answer does not change.
    #[test]
    fn between_its_begin_and_its_end_a_time_is_open_or_closed_throughout() {
        let zones = ["Europe/Rome", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu"];
        let mut random = fastrand::Rng::with_seed(51);
        for _ in 0..2000 {
            let zone = zones[random.usize(..zones.len())];
            let windows =
                windows(zone, "01:30-02:15, 09:00-12:00, 23:00-00:30", "", "2011-12-29..2011-12-31, 2027-03-28");
            let near = ["2027-03-28T00:00:00Z", "2027-11-07T00:00:00Z", "2011-12-30T00:00:00Z", "2027-04-03T12:00:00Z"];
            let around = at(near[random.usize(..near.len())]);
            let instant = Timestamp::from_millis(around.as_millis() + random.i64(-172_800..172_800) * 1000);
            let (begin, end, here) = (windows.begin(instant), windows.end(instant), windows.closed(instant));
            assert!(begin <= instant && instant < end, "{zone} {instant}: {begin} {end}");
            let mut step = begin;
            while step < end {
                assert_eq!(windows.closed(step), here, "{zone} {instant}: {step}");
                step = Timestamp::from_millis(step.as_millis() + 60_000);
            }
            assert_eq!(windows.closed(Timestamp::from_millis(end.as_millis() - 1)), here, "{zone} {instant}: {end}");
        }
    }

    #[test]
    fn what_is_no_time_and_no_date_is_refused_by_its_column() {
        let refused = |texts: [Option<&str>; 3]| Windows::parse("UTC", texts).unwrap_err().to_string();
        for text in [
            "",
            "9-17",
            "09:00",
            "09:00-09:00",
            "09:00-25:00",
            "24:00-06:00",
            "09:00-17:00,",
            "09:00-17:00 18:00-19:00",
        ] {
            let expected = format!("invalid only_between: expected {TIMES}, found {text:?}");
            assert_eq!(refused([Some(text), None, None]), expected);
        }
        let many = vec!["09:00-10:00"; 25].join(",");
        let expected = "invalid only_between: expected at most 24 times, found \"25 times\"";
        assert_eq!(refused([Some(&many), None, None]), expected);
        for (text, part) in [
            ("", ""),
            ("2027-02-29", "2027-02-29"),
            ("2027-1-1", "2027-1-1"),
            ("2027-01-02..2027-01-01", "2027-01-02..2027-01-01"),
            ("holidays: 2027-01-01; strike:", ""),
            ("2027-01-01, tomorrow", "tomorrow"),
        ] {
            let expected = format!("invalid except_on: expected {DATES}, found {part:?}");
            assert_eq!(refused([None, None, Some(text)]), expected);
            assert!(refused([None, Some(text), None]).starts_with("invalid only_on"));
        }
        assert_eq!(Windows::parse("UTC", [None; 3]).unwrap(), None);
    }
}
