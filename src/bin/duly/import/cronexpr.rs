//! The times of supercronic, which are those of the Go package `cronexpr`: parsed by its rules, and rewritten for duly. Pure.

use crate::cli::values::truncated;
use crate::import::lines::is_field_of_times;

/// The times and the command of an entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// A cron expression of duly that names the same times.
    pub(crate) times: String,
    /// The command line for the shell.
    pub(crate) command: &'a str,
}

struct Field {
    name: &'static str,
    low: u16,
    high: u16,
    /// Names of the values from `low` up; their first three letters are names, too.
    names: &'static [&'static str],
    days: Days,
}

#[derive(PartialEq)]
enum Days {
    None,
    OfMonth,
    OfWeek,
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const WEEKDAYS: [&str; 7] = ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];

const FIELDS: [Field; 7] = [
    Field { name: "second", low: 0, high: 59, names: &[], days: Days::None },
    Field { name: "minute", low: 0, high: 59, names: &[], days: Days::None },
    Field { name: "hour", low: 0, high: 23, names: &[], days: Days::None },
    Field { name: "day of month", low: 1, high: 31, names: &[], days: Days::OfMonth },
    Field { name: "month", low: 1, high: 12, names: &MONTHS, days: Days::None },
    // 7 is Sunday, too, and becomes 0.
    Field { name: "day of week", low: 0, high: 6, names: &WEEKDAYS, days: Days::OfWeek },
    Field { name: "year", low: 1970, high: 2099, names: &[], days: Days::None },
];

/// The nicknames, which are case-sensitive.
const NICKNAMES: [&str; 6] = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@hourly"];

/// Splits an entry into times and command. As in supercronic, the times are the first seven words if these are valid (seconds
/// first, the year last), else the first six (the year last), else the first five, else a nickname.
pub(crate) fn entry(line: &str) -> Result<Entry<'_>, String> {
    let words = words(line);
    for count in [7, 6, 5] {
        if words.len() > count
            && let Ok(times) = times(&words[..count])
        {
            let command = rest(line, words[count]);
            if is_field_of_times(command) {
                return Err(format!(
                    "supercronic reads {count} fields of times, and then a command that begins with {:?}, which looks \
                     like a further field: correct the fields, or write the path of the program",
                    truncated(words[count])
                ));
            }
            return Ok(Entry { times: times.without_years()?, command });
        }
    }
    match words.first() {
        Some(word) if NICKNAMES.contains(word) && words.len() > 1 => {
            Ok(Entry { times: (*word).to_owned(), command: rest(line, words[1]) })
        }
        Some(word) if word.starts_with('@') && !NICKNAMES.contains(word) => {
            Err(format!("supercronic has {} only, found {:?}", NICKNAMES.join(", "), truncated(word)))
        }
        _ if words.len() <= 5 => {
            Err("expected five to seven fields of times, or one such as @daily, and a command".to_owned())
        }
        // The fields that were probably meant.
        _ => {
            let more = words[5..words.len() - 1].iter().take(2).take_while(|word| is_field_of_times(word)).count();
            times(&words[..5 + more])
                .and_then(Times::without_years)
                .map(|_| Entry { times: String::new(), command: "" })
        }
    }
}

/// Returns the words of a line, separated by blanks as in Go's `\S+`.
fn words(line: &str) -> Vec<&str> {
    line.split(|c: char| c.is_ascii_whitespace()).filter(|word| !word.is_empty()).collect()
}

/// Returns the line from a word of it.
fn rest<'a>(line: &'a str, word: &'a str) -> &'a str {
    &line[word.as_ptr().addr() - line.as_ptr().addr()..]
}

/// Valid times.
struct Times {
    expression: String,
    /// The field of years, if it names some of them only.
    years: Option<String>,
}

impl Times {
    /// Returns the expression, if it is true of all years.
    fn without_years(self) -> Result<String, String> {
        match self.years {
            None => Ok(self.expression),
            Some(years) => Err(format!(
                "duly has no field of years, found {:?}: write * there, or add the task with duly add, --starts-at and \
                 --ends-at",
                truncated(&years)
            )),
        }
    }
}

/// Rewrites five, six or seven fields for duly.
fn times(fields: &[&str]) -> Result<Times, String> {
    let (first, count) = (if fields.len() == 7 { 0 } else { 1 }, fields.len());
    let mut parsed =
        fields.iter().zip(&FIELDS[first..]).map(|(text, field)| field.parse(text)).collect::<Result<Vec<_>, _>>()?;
    let years =
        if count > 5 { parsed.pop().filter(|years| years != "*").map(|_| fields[count - 1].to_owned()) } else { None };
    if parsed.len() == 6 && parsed[0] == "0" {
        parsed.remove(0);
    }
    either_day(&mut parsed);
    Ok(Times { expression: parsed.join(" "), years })
}

/// Rewrites the fields of days, at the third last place and at the end, for a scheduler in which every restricted field except `*`
/// counts: if both are restricted, a day that matches either one matches. In duly, a field that begins with `*` would not count.
pub(crate) fn either_day(fields: &mut [String]) {
    let (of_month, of_week) = (fields.len() - 3, fields.len() - 1);
    if fields[of_month] != "*" && fields[of_week] != "*" {
        for (at, all) in [(of_month, "1-31"), (of_week, "0-6")] {
            let items = fields[at].split(',').map(|item| match item.strip_prefix('*') {
                Some(step) => format!("{all}{step}"),
                None => item.to_owned(),
            });
            fields[at] = items.collect::<Vec<_>>().join(",");
        }
    }
}

impl Field {
    /// Returns the field in the dialect of duly: `*`, or its items.
    fn parse(&self, text: &str) -> Result<String, String> {
        // An empty item is ignored.
        let items = text.split(',').filter(|item| !item.is_empty());
        let items = items.map(|item| {
            self.item(&item.to_ascii_lowercase()).ok_or_else(|| {
                let names = match self.names {
                    [first, .., last] => {
                        format!(" or {}-{}", &first[..3], &last[..3]).to_uppercase().replace("OR", "or")
                    }
                    _ => String::new(),
                };
                format!("{}: expected {}-{}{names}, found {:?}", self.name, self.low, self.high, truncated(item))
            })
        });
        let items = items.collect::<Result<Vec<_>, _>>()?;
        match items.as_slice() {
            [] => Err(format!("{}: expected a value, found {:?}", self.name, truncated(text))),
            items if items.iter().any(|item| item == "*") => Ok("*".to_owned()),
            items => Ok(items.join(",")),
        }
    }

    fn item(&self, item: &str) -> Option<String> {
        if item == "*" || item == "?" {
            return Some("*".to_owned());
        }
        if let Some((range, step)) = item.split_once('/') {
            let step = number(step).filter(|step| (1..=self.high.min(59)).contains(step))?;
            let range = match range {
                "*" if step == 1 && self.days == Days::None => return Some("*".to_owned()),
                "*" => "*".to_owned(),
                _ if range.contains('-') => self.range(range)?,
                _ => format!("{}-{}", self.value(range)?, self.high),
            };
            return Some(format!("{range}/{step}"));
        }
        if item.contains('-') {
            return self.range(item);
        }
        match self.days {
            Days::OfMonth if item == "l" || item == "lw" => return Some(item.to_uppercase()),
            Days::OfMonth => {
                if let Some(day) = item.strip_suffix('w') {
                    return Some(format!("{}W", self.value(day)?));
                }
            }
            Days::OfWeek => {
                if let Some((day, nth)) = item.split_once('#') {
                    let nth = Some(nth).filter(|nth| ["1", "2", "3", "4", "5"].contains(nth))?;
                    return Some(format!("{}#{nth}", self.value(day)?));
                }
                if let Some(day) = item.strip_suffix('l').and_then(|day| self.value(day)) {
                    return Some(format!("{day}L"));
                }
            }
            Days::None => {}
        }
        self.value(item).map(|value| value.to_string())
    }

    fn range(&self, range: &str) -> Option<String> {
        let (first, last) = range.split_once('-')?;
        let (first, last) = (self.value(first)?, self.value(last)?);
        (first <= last).then(|| format!("{first}-{last}"))
    }

    fn value(&self, word: &str) -> Option<u16> {
        if let Some(at) = self.names.iter().position(|name| *name == word || name[..3] == *word) {
            return u16::try_from(at).ok().map(|at| at + self.low);
        }
        let value = number(word)?;
        if self.days == Days::OfWeek {
            // A leading zero makes Sunday of each day.
            return (value <= 7 && (word.len() == 1 || value % 7 == 0)).then_some(value % 7);
        }
        (self.low..=self.high).contains(&value).then_some(value)
    }
}

/// Parses a number of at most two digits, or of a year.
fn number(text: &str) -> Option<u16> {
    let is_number = [1, 2, 4].contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::entry;

    #[test]
    fn times_are_rewritten_for_duly() {
        for (line, times, command) in [
            ("* * * * * foo some # qux", "* * * * *", "foo some # qux"),
            ("*/1 * * * * echo", "* * * * *", "echo"),
            ("* * * * * * with year", "* * * * *", "with year"),
            ("* * * * * * * with seconds", "* * * * * *", "with seconds"),
            ("*/2 * * * * * * ls 2>/dev/null", "*/2 * * * * *", "ls 2>/dev/null"),
            ("0 30 6 * * 1-5 * a", "30 6 * * 1-5", "a"),
            ("15,45 30 6 * * ? * a", "15,45 30 6 * * *", "a"),
            ("@hourly foo1 foo2 foo3 foo4 foo5 foo6", "@hourly", "foo1 foo2 foo3 foo4 foo5 foo6"),
            ("*\t*\t*\t*\t*\t \ttabs everywhere ", "* * * * *", "tabs everywhere "),
            ("* * * * * 7z a b", "* * * * *", "7z a b"),
            ("0 0 * * friday a", "0 0 * * 5", "a"),
            ("0 0 28 02 * * a", "0 0 28 2 *", "a"),
            ("0 0 1 september-DEC * a", "0 0 1 9-12 *", "a"),
            ("5/10 3/6 * * * a", "5-59/10 3-23/6 * * *", "a"),
            ("30 3 15W 3/3 * a", "30 3 15W 3-12/3 *", "a"),
            ("1,,2 0 * * * a", "1,2 0 * * *", "a"),
            ("0 0 * * 6,7 a", "0 0 * * 6,0", "a"),
            // cronexpr reads the end 7 as 0: Sunday only.
            ("0 0 * * 0-7 a", "0 0 * * 0-0", "a"),
            ("0 0 LW * fri#2,5l a", "0 0 LW * 5#2,5L", "a"),
            ("0 0 1,* * 1 a", "0 0 * * 1", "a"),
            // Either day, although a field begins with *.
            ("0 0 */2 * MON a", "0 0 1-31/2 * 1", "a"),
            ("0 0 13 * */2 a", "0 0 13 * 0-6/2", "a"),
            ("0 0 */2 * * a", "0 0 */2 * *", "a"),
            ("0 0 * * * *,2030 a", "0 0 * * *", "a"),
        ] {
            let entry = entry(line).unwrap();
            assert_eq!((entry.times.as_str(), entry.command), (times, command), "{line}");
        }
    }

    #[test]
    fn what_supercronic_refuses_and_what_duly_cannot_express_is_refused() {
        let years = "duly has no field of years, found";
        for (line, reason) in [
            ("* * * * * 2030 a", &*format!("{years} \"2030\"")),
            ("0 0 0 * Feb-Nov/2 thu#3 2000-2050 a", &format!("{years} \"2000-2050\"")),
            ("* foo", "expected five to seven fields of times"),
            ("FOO", "expected five to seven fields of times"),
            ("@daily", "expected five to seven fields of times"),
            ("@reboot a b", "supercronic has @yearly, @annually,"),
            ("@every 5m a", "found \"@every\""),
            ("* some * * *  more", "hour: expected 0-23, found \"some\""),
            ("61 * * * * a", "minute: expected 0-59, found \"61\""),
            ("*/60 * * * * * * a", "second: expected 0-59, found \"*/60\""),
            ("0 0 * foo * a", "month: expected 1-12 or JAN-DEC, found \"foo\""),
            ("45 4 * * 6-7 a", "day of week: expected 0-6 or SUN-SAT, found \"6-7\""),
            ("45 4 * * 05 a", "found \"05\""),
            ("0 22-2 * * * a", "found \"22-2\""),
            (", * * * * a", "minute: expected a value, found \",\""),
            ("* * * * * * *", "looks like a further field"),
            ("0 0 12 * * MON /bin/x", "supercronic reads 5 fields of times"),
        ] {
            let error = entry(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
