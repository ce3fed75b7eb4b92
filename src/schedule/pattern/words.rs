//! The times of a cron expression in words.

use chrono::{Month, Weekday};

use crate::schedule::calendar::{enumerated, weekday_name};
use crate::schedule::pattern::{Pattern, has};

/// Most times of a day, days and months that are listed.
const MOST: usize = 4;
/// The days of an expression, without its months.
enum Days {
    All,
    /// Weekdays, Sunday first.
    OfWeek(Vec<usize>),
    OfMonth(Vec<usize>),
}

impl Pattern {
    /// Returns the times in words; `None` if a few words cannot say them.
    ///
    /// ```text
    /// 30 3 * * *           daily at 03:30
    /// 0 9,17 * * 1-5       on weekdays at 09:00 and 17:00
    /// */15 9-17 * * *      every 15 minutes from 09:00 to 17:45
    /// 0 4 1 1,7 *          on day 1 of January and July at 04:00
    /// 0 0 L * *            none: a day that is not the same in each month, as 31, which not every month has
    /// ```
    pub(in crate::schedule) fn words(&self) -> Option<String> {
        let (days, months) = (self.days_of_all_months()?, values(self.months, 1..13));
        if self.seconds != 1 || months.len() > MOST && months.len() < 12 {
            return None;
        }
        let months = (months.len() < 12).then(|| listed(&months, |month| name_of_month(*month).to_owned()));
        let days = match (days, &months) {
            (Days::All, None) => None,
            (Days::All, Some(months)) => Some(format!("in {months}")),
            (Days::OfWeek(days), months) => {
                let of = months.as_ref().map(|months| format!(" in {months}")).unwrap_or_default();
                Some(format!("on {}{of}", weekdays(&days)))
            }
            (Days::OfMonth(days), months) => {
                let noun = if days.len() == 1 { "day" } else { "days" };
                let days = listed(&days, ToString::to_string);
                Some(format!("on {noun} {days} of {}", months.as_deref().unwrap_or("each month")))
            }
        };
        let (hours, minutes) = (values(self.hours, 0..24), values(self.minutes, 0..60));
        if hours.len() * minutes.len() <= MOST {
            let times =
                hours.iter().flat_map(|hour| minutes.iter().map(move |minute| format!("{hour:02}:{minute:02}")));
            let at = format!("at {}", enumerated(&times.collect::<Vec<_>>()));
            return Some(match days {
                None => format!("daily {at}"),
                Some(days) if days.starts_with("in ") => format!("daily {at} {days}"),
                Some(days) => format!("{days} {at}"),
            });
        }
        let every = repeated(&hours, &minutes)?;
        Some(days.map_or_else(|| every.clone(), |days| format!("{every} {days}")))
    }

    /// Returns the days if they follow from the weekday or the day of the month alone, in months of every kind.
    fn days_of_all_months(&self) -> Option<Days> {
        let is = |of: &dyn Fn(usize, usize) -> bool| {
            self.days.iter().enumerate().all(|(length, kinds)| {
                kinds.iter().enumerate().all(|(first, days)| {
                    (1..=length + 28).all(|day| has(*days, day as u32) == of(day, (first + day - 1) % 7))
                })
            })
        };
        if is(&|_, _| true) {
            return Some(Days::All);
        }
        // Those of the longest month that begins on a Sunday.
        let days = values(self.days[3][0], 1..32);
        let mut of_week: Vec<usize> = days.iter().map(|day| (day - 1) % 7).collect();
        of_week.sort_unstable();
        of_week.dedup();
        if is(&|_, weekday| of_week.contains(&weekday)) {
            return Some(Days::OfWeek(of_week));
        }
        let are_in_each_month = days.len() <= MOST && days.iter().all(|day| *day <= 28);
        (are_in_each_month && is(&|day, _| days.contains(&day))).then_some(Days::OfMonth(days))
    }
}

/// Returns a regular sequence of times in words: `every 15 minutes from 09:00 to 17:45`.
fn repeated(hours: &[usize], minutes: &[usize]) -> Option<String> {
    let (first, last) = (*minutes.first()?, *minutes.last()?);
    let (from, to) = (*hours.first()?, *hours.last()?);
    let is_contiguous = to - from + 1 == hours.len();
    match (step(minutes, 60), step(hours, 24)) {
        (Some(60), Some(1)) if first == 0 => Some("hourly".to_owned()),
        (Some(60), Some(1)) => Some(format!("hourly at minute {first}")),
        (Some(60), _) if is_contiguous => Some(format!("hourly from {from:02}:{first:02} to {to:02}:{first:02}")),
        (Some(60), Some(every)) => Some(format!("every {every} hours from {from:02}:{first:02}")),
        (Some(1), Some(1)) => Some("every minute".to_owned()),
        (Some(1), _) if is_contiguous => Some(format!("every minute from {from:02}:00 to {to:02}:59")),
        (Some(every), Some(1)) if first == 0 => Some(format!("every {every} minutes")),
        (Some(every), Some(1)) => Some(format!("every {every} minutes from minute {first}")),
        (Some(every), _) if is_contiguous => {
            Some(format!("every {every} minutes from {from:02}:{first:02} to {to:02}:{last:02}"))
        }
        _ => None,
    }
}

/// Returns the distance of values that divide `whole` evenly: of one value, `whole` itself.
fn step(values: &[usize], whole: usize) -> Option<usize> {
    let step = whole / values.len();
    let are_even = values.iter().enumerate().all(|(place, value)| *value == values[0] + place * step);
    (whole.is_multiple_of(values.len()) && values[0] < step && are_even).then_some(step)
}

fn weekdays(days: &[usize]) -> String {
    match days {
        [1, 2, 3, 4, 5] => "weekdays".to_owned(),
        [0, 6] => "weekends".to_owned(),
        // A week begins on Monday.
        [0, others @ ..] => listed(&[others, &[0]].concat(), name_of_weekday),
        _ => listed(days, name_of_weekday),
    }
}

/// Returns the name of a weekday, Sunday first.
fn name_of_weekday(day: &usize) -> String {
    let day = Weekday::try_from(((day + 6) % 7) as u8).unwrap_or(Weekday::Sun);
    weekday_name(day).to_owned()
}

fn name_of_month(month: usize) -> &'static str {
    Month::try_from(month as u8).map_or("", |month| month.name())
}

fn values(mask: u64, range: std::ops::Range<usize>) -> Vec<usize> {
    range.filter(|value| has(mask, *value as u32)).collect()
}

fn listed(values: &[usize], word: impl Fn(&usize) -> String) -> String {
    enumerated(&values.iter().map(word).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn times_that_a_few_words_can_say_are_words() {
        for (fields, words) in [
            ("0 30 3 * * *", Some("daily at 03:30")),
            ("0 0 9,17 * * 1-5", Some("on weekdays at 09:00 and 17:00")),
            ("0 0,30 8,20 * * *", Some("daily at 08:00, 08:30, 20:00 and 20:30")),
            ("0 0 10 * * 0,6", Some("on weekends at 10:00")),
            ("0 15 6 * * 0,2", Some("on Tuesday and Sunday at 06:15")),
            ("0 0 4 1 * *", Some("on day 1 of each month at 04:00")),
            ("0 0 4 1,15 1,7 *", Some("on days 1 and 15 of January and July at 04:00")),
            ("0 0 4 * 12 *", Some("daily at 04:00 in December")),
            ("0 0 4 * 6-8 1", Some("on Monday in June, July and August at 04:00")),
            ("0 * * * * *", Some("every minute")),
            ("0 */15 * * * *", Some("every 15 minutes")),
            ("0 5-59/15 * * * *", Some("every 15 minutes from minute 5")),
            ("0 0 * * * *", Some("hourly")),
            ("0 7 * * * 1-5", Some("hourly at minute 7 on weekdays")),
            ("0 */15 9-17 * * *", Some("every 15 minutes from 09:00 to 17:45")),
            ("0 * 9-10 * * *", Some("every minute from 09:00 to 10:59")),
            ("0 20 9-17 * * *", Some("hourly from 09:20 to 17:20")),
            ("0 15 1-23/2 * * *", Some("every 2 hours from 01:15")),
            ("0 10 4 28 * *", Some("on day 28 of each month at 04:10")),
            ("0 10 4 31 * *", None),
            ("0 0 4 * 1-11 *", None),
            ("0 0 4 L * *", None),
            ("0 0 4 13 * 5", None),
            ("0 0 4 * * 1#2", None),
            ("0 0 4 1-5 * *", None),
            ("30 0 4 * * *", None),
            ("0 */25 * * * *", None),
            ("0 */15 1-23/2 * * *", None),
            ("0 0 1,2,3,5,9 * * *", None),
        ] {
            assert_eq!(Pattern::read(fields).unwrap().words().as_deref(), words, "{fields}");
        }
    }
}
