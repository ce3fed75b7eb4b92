//! The cron dialect: a strict check of an expression before croner parses it.
//!
//! croner accepts more than duly promises, and parses some of it wrongly (`1,,2`, `1MON`, `L,LW`, `SUN-SUN`). So every
//! item is validated here first, and croner gets an expression that is rewritten in numbers and leaves nothing to
//! interpretation. This module handles text only: neither croner nor time.

/// How an expression reacts when the clock is set forward or back; Vixie cron's distinction, derived from the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Names times of day, each of which occurs once: after a gap that contains it, and in the first pass of a repeated
    /// hour.
    Fixed,
    /// Minute or hour (or second, if given) starts with `*`: follows the clock.
    Wildcard,
}

/// An expression that passed the check.
#[derive(Debug)]
pub(super) struct Line {
    /// Six fields for croner, in numbers: seconds first, day names replaced, `+` where both day fields must match.
    pub(super) fields: String,
    /// How it reacts to a change of the clock.
    pub(super) rule: Rule,
}

/// The maximum length of an expression.
const LONGEST_LINE: usize = 256;

struct Field {
    name: &'static str,
    low: u8,
    high: u8,
    /// The number of different values, which is the largest useful step.
    values: u8,
    /// Names of the values from `low` up.
    names: &'static [&'static str],
    /// Whether the field counts days, and which of `L`, `W` and `#` it therefore accepts.
    days: Days,
}

#[derive(PartialEq)]
enum Days {
    None,
    OfMonth,
    OfWeek,
}

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

const FIELDS: [Field; 6] = [
    Field { name: "second", low: 0, high: 59, values: 60, names: &[], days: Days::None },
    Field { name: "minute", low: 0, high: 59, values: 60, names: &[], days: Days::None },
    Field { name: "hour", low: 0, high: 23, values: 24, names: &[], days: Days::None },
    Field { name: "day of month", low: 1, high: 31, values: 31, names: &[], days: Days::OfMonth },
    Field { name: "month", low: 1, high: 12, values: 12, names: &MONTHS, days: Days::None },
    // Sunday is 0 and 7: eight numbers, seven days.
    Field { name: "day of week", low: 0, high: 7, values: 7, names: &WEEKDAYS, days: Days::OfWeek },
];

/// Checks an expression and rewrites it for croner. The error is a reason.
///
/// ```text
/// 30 6 * * MON-FRI    0 30 6 * * 1-5, fixed
/// */5 * * * * *       */5 * * * * *, wildcard: six fields begin with seconds
/// 0 0 */2 * MON       0 0 0 */2 * +1, fixed: both, since */2 does not restrict
/// 61 * * * *          minute: expected 0-59, found "61"
/// ```
pub(super) fn check(text: &str) -> Result<Line, String> {
    if text.len() > LONGEST_LINE {
        return Err(format!("expected at most {LONGEST_LINE} bytes, found {}", text.len()));
    }
    if let Some(stray) = text.chars().find(|c| !(c.is_ascii_graphic() || [' ', '\t'].contains(c))) {
        return Err(format!("expected one line of ASCII, found {stray:?}"));
    }
    let text = text.trim();
    let given: Vec<&str> = if text.starts_with('@') { expand(text)? } else { text }.split_whitespace().collect();
    let (seconds, rest) = match given.len() {
        5 => ("0", &given[..]),
        6 => (given[0], &given[1..]),
        found => return Err(wrong_count(found)),
    };
    let starred = |at: usize| rest[at].starts_with('*');
    let rule = if seconds.starts_with('*') || starred(0) || starred(1) { Rule::Wildcard } else { Rule::Fixed };
    let mut fields = FIELDS[0].rewritten(seconds)?;
    for (field, given) in FIELDS[1..].iter().zip(rest) {
        fields.push(' ');
        // Debian's cron treats a day field that starts with `*` as unrestricted, and then both day fields must match;
        // croner does so only for a bare `*`. Its `+` requires it in all cases.
        if field.days == Days::OfWeek && (starred(2) || starred(4)) {
            fields.push('+');
        }
        fields.push_str(&field.rewritten(given)?);
    }
    Ok(Line { fields, rule })
}

fn expand(nickname: &str) -> Result<&'static str, String> {
    match nickname.to_ascii_lowercase().as_str() {
        "@hourly" => Ok("0 * * * *"),
        "@daily" | "@midnight" => Ok("0 0 * * *"),
        "@weekly" => Ok("0 0 * * 0"),
        "@monthly" => Ok("0 0 1 * *"),
        "@yearly" | "@annually" => Ok("0 0 1 1 *"),
        "@reboot" => Err("@reboot names no time: run the command when the program starts instead".to_owned()),
        every if every.starts_with("@every") => {
            Err("@every is not cron: use a schedule of type interval, as in 15m".to_owned())
        }
        _ => Err(format!(
            "expected @hourly, @daily, @midnight, @weekly, @monthly, @yearly or @annually, found {nickname:?}"
        )),
    }
}

fn wrong_count(found: usize) -> String {
    let fields = "expected 5 fields (minute, hour, day of month, month, day of week) or 6 with seconds first";
    match found {
        7 => format!("{fields}, found 7: a year cannot be given"),
        _ => format!("{fields}, found {found}"),
    }
}

impl Field {
    /// Validates every item, and returns the field in numbers.
    fn rewritten(&self, given: &str) -> Result<String, String> {
        if given == "*" {
            return Ok(given.to_owned());
        }
        let items = given
            .split(',')
            .map(|item| {
                self.item(&item.to_ascii_uppercase())
                    .map_err(|expected| format!("{}: expected {expected}, found {item:?}", self.name))
            })
            .collect::<Result<Vec<String>, String>>()?;
        let has = |wanted: &str| items.iter().any(|item| item == wanted);
        if has("L") && has("LW") {
            return Err(format!("{}: expected either L or LW in one list, found {given:?}", self.name));
        }
        Ok(items.join(","))
    }

    /// Validates one item of a list. The error says what is expected.
    fn item(&self, item: &str) -> Result<String, String> {
        if item.is_empty() {
            return Err("no empty item in the list".to_owned());
        }
        if item == "*" {
            return Err("* to stand alone".to_owned());
        }
        if let Some((range, step)) = item.split_once('/') {
            let range = match range {
                "*" => range.to_owned(),
                _ if range.contains('-') => self.range(range)?,
                _ => {
                    let first = self.value(range).unwrap_or(self.low);
                    return Err(format!("a step after * or a range, as in {first}-{}/{step}", self.high));
                }
            };
            let step = number(step).filter(|step| (1..=self.values).contains(step));
            let step = step.ok_or_else(|| format!("a step of 1-{}", self.values))?;
            return Ok(format!("{range}/{step}"));
        }
        if item.contains('-') {
            return self.range(item);
        }
        match self.days {
            Days::None => {}
            Days::OfMonth => {
                if item == "L" || item == "LW" {
                    return Ok(item.to_owned());
                }
                if let Some(day) = item.strip_suffix('W') {
                    return Ok(format!("{}W", self.value(day)?));
                }
            }
            Days::OfWeek => {
                if let Some((day, nth)) = item.split_once('#') {
                    let nth = number(nth).filter(|nth| (1..=5).contains(nth));
                    return Ok(format!("{}#{}", self.value(day)?, nth.ok_or("#1 to #5")?));
                }
                // A bare L is meaningless here: croner accepts it, and it never matches.
                if let Some(day) = item.strip_suffix('L') {
                    return Ok(format!("{}L", self.value(day)?));
                }
            }
        }
        self.value(item).map(|value| value.to_string())
    }

    /// Validates a rising range. A range that wraps, such as `22-2`, is refused as in Vixie cron: it may be a mistake.
    fn range(&self, item: &str) -> Result<String, String> {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let start = self.value(first)?;
        let end = match self.value(last)? {
            // Sunday is the end of the week in FRI-SUN, and its start in SUN-TUE.
            0 if start > 0 && last == WEEKDAYS[0] => self.high,
            end => end,
        };
        if start > end {
            return Err(format!("a range that rises, as in {start}-{},{}-{end}", self.high, self.low));
        }
        Ok(format!("{start}-{end}"))
    }

    fn value(&self, item: &str) -> Result<u8, String> {
        let named = || self.names.iter().zip(self.low..).find(|(name, _)| **name == item).map(|(_, value)| value);
        number(item).filter(|value| (self.low..=self.high).contains(value)).or_else(named).ok_or_else(|| {
            match self.names {
                [] => format!("{}-{}", self.low, self.high),
                [first, .., last] => format!("{}-{} or {first}-{last}", self.low, self.high),
                [only] => format!("{}-{} or {only}", self.low, self.high),
            }
        })
    }
}

/// Parses digits only; `parse` alone accepts a sign.
fn number(text: &str) -> Option<u8> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::{Rule, check};

    #[test]
    fn expressions_are_rewritten_in_numbers() {
        for (text, fields, rule) in [
            ("* * * * *", "0 * * * * +*", Rule::Wildcard),
            ("05 04 * * *", "0 5 4 * * +*", Rule::Fixed),
            (" 0,30\t2 1,15 JAN-mar mon ", "0 0,30 2 1,15 1-3 1", Rule::Fixed),
            ("*/15 1 * * *", "0 */15 1 * * +*", Rule::Wildcard),
            ("0 */2 1 * *", "0 0 */2 1 * +*", Rule::Wildcard),
            ("0 0-23/2 1 * 5", "0 0 0-23/2 1 * 5", Rule::Fixed),
            ("*/10 0 12 1 1 1", "*/10 0 12 1 1 1", Rule::Wildcard),
            ("0 0 12 1 1 1", "0 0 12 1 1 1", Rule::Fixed),
            ("0 0 */2 * MON", "0 0 0 */2 * +1", Rule::Fixed),
            ("0 0 13 * */2", "0 0 0 13 * +*/2", Rule::Fixed),
            ("0 0 3,*/2 * MON", "0 0 0 3,*/2 * 1", Rule::Fixed),
            ("0 0 L,15w * *", "0 0 0 L,15W * +*", Rule::Fixed),
            ("0 0 lw 2 5", "0 0 0 LW 2 5", Rule::Fixed),
            ("0 0 * * fri#2,FRIL", "0 0 0 * * +5#2,5L", Rule::Fixed),
            ("0 0 1 * 0-7", "0 0 0 1 * 0-7", Rule::Fixed),
            ("0 0 1 * fri-sun", "0 0 0 1 * 5-7", Rule::Fixed),
            ("0 0 1 * sun-tue", "0 0 0 1 * 0-2", Rule::Fixed),
            ("0 0 1 * sun-sun", "0 0 0 1 * 0-0", Rule::Fixed),
            ("@Midnight", "0 0 0 * * +*", Rule::Fixed),
            ("@hourly", "0 0 * * * +*", Rule::Wildcard),
            ("@annually", "0 0 0 1 1 +*", Rule::Fixed),
        ] {
            let line = check(text).unwrap();
            assert_eq!((line.fields.as_str(), line.rule), (fields, rule), "{text}");
        }
    }

    #[test]
    fn an_error_names_the_field_the_expected_and_the_found_value() {
        for (text, reason) in [
            ("61 * * * *", "minute: expected 0-59, found \"61\""),
            ("* 24 * * *", "hour: expected 0-23, found \"24\""),
            ("60 * * * * *", "second: expected 0-59, found \"60\""),
            ("* * 0 * *", "day of month: expected 1-31, found \"0\""),
            ("* * * foo *", "month: expected 1-12 or JAN-DEC, found \"foo\""),
            ("* * * * 8", "day of week: expected 0-7 or SUN-SAT, found \"8\""),
            ("* * * * MONDAY", "day of week: expected 0-7 or SUN-SAT, found \"MONDAY\""),
            ("MON * * * *", "minute: expected 0-59, found \"MON\""),
            ("1MON * * * *", "minute: expected 0-59, found \"1MON\""),
            ("* * * MON *", "month: expected 1-12 or JAN-DEC, found \"MON\""),
            ("1,,2 * * * *", "minute: expected no empty item in the list, found \"\""),
            (", * * * *", "minute: expected no empty item in the list, found \"\""),
            ("* , * * *", "hour: expected no empty item in the list, found \"\""),
            ("*/0 * * * *", "minute: expected a step of 1-60, found \"*/0\""),
            ("*/61 * * * *", "minute: expected a step of 1-60, found \"*/61\""),
            ("* */25 * * *", "hour: expected a step of 1-24, found \"*/25\""),
            ("* * * * */8", "day of week: expected a step of 1-7, found \"*/8\""),
            ("*/ * * * *", "minute: expected a step of 1-60, found \"*/\""),
            ("*/2/3 * * * *", "minute: expected a step of 1-60, found \"*/2/3\""),
            ("5/10 * * * *", "minute: expected a step after * or a range, as in 5-59/10, found \"5/10\""),
            ("/10 * * * *", "minute: expected a step after * or a range, as in 0-59/10, found \"/10\""),
            ("* 22-2 * * *", "hour: expected a range that rises, as in 22-23,0-2, found \"22-2\""),
            ("* * * * 6-1", "day of week: expected a range that rises, as in 6-7,0-1, found \"6-1\""),
            ("1-2-3 * * * *", "minute: expected 0-59, found \"1-2-3\""),
            ("+5 * * * *", "minute: expected 0-59, found \"+5\""),
            ("*,5 * * * *", "minute: expected * to stand alone, found \"*\""),
            ("* * ? * *", "day of month: expected 1-31, found \"?\""),
            ("* * * * +MON", "day of week: expected 0-7 or SUN-SAT, found \"+MON\""),
            ("* * * * L", "day of week: expected 0-7 or SUN-SAT, found \"L\""),
            ("* * * * 5#6", "day of week: expected #1 to #5, found \"5#6\""),
            ("* * * * 1-5#2", "day of week: expected 0-7 or SUN-SAT, found \"1-5#2\""),
            ("* * * * 5#L", "day of week: expected #1 to #5, found \"5#L\""),
            ("* * 15W99 * *", "day of month: expected 1-31, found \"15W99\""),
            ("* * L-3 * *", "day of month: expected 1-31, found \"L-3\""),
            ("* * L,LW * *", "day of month: expected either L or LW in one list, found \"L,LW\""),
            ("H * * * *", "minute: expected 0-59, found \"H\""),
            ("* * * * \u{17f}un", "expected one line of ASCII, found 'ſ'"),
            ("* * *\n* *", "expected one line of ASCII, found '\\n'"),
            ("@reboot", "@reboot names no time: run the command when the program starts instead"),
            ("@every 5m", "@every is not cron: use a schedule of type interval, as in 15m"),
        ] {
            assert_eq!(check(text).unwrap_err(), reason, "{text}");
        }
        for (text, count) in [("", "found 0"), ("* * * *", "found 4"), ("0 0 0 1 1 * 2027", "found 7: a year")] {
            assert!(check(text).unwrap_err().contains(count), "{text}");
        }
        assert_eq!(check(&"1,".repeat(200)).unwrap_err(), "expected at most 256 bytes, found 400");
        assert!(check("@fortnightly").unwrap_err().contains("@monthly"));
    }
}
