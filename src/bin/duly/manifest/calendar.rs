//! `[[calendar]]`: dates with a name, to which the keys `only_on` and `except` of tasks refer. The dates are stored with each task.

use duly::{NewTask, Timestamp};
use toml::{Table, Value};

use crate::cli::values::truncated;
use crate::manifest::entry::{Calendars, Entry, check_keys, is_dates, wrong_value};

pub(super) const KEYS: &[&str] = &["name", "dates"];
const MAX_NAME: usize = 100;

/// Reads each `[[calendar]]` of a file.
pub(super) fn calendars(file: &Table) -> Result<Calendars, String> {
    let given = match file.get("calendar") {
        None => return Ok(Calendars::new()),
        Some(Value::Array(given)) => given,
        Some(other) => return Err(wrong_value("calendar", "tables, [[calendar]]", other)),
    };
    let mut calendars = Calendars::new();
    for (place, value) in given.iter().enumerate() {
        let Value::Table(table) = value else { return Err(wrong_value("calendar", "tables, [[calendar]]", value)) };
        let place = match table.get("name") {
            Some(Value::String(name)) => format!("calendar {:?}: ", truncated(name)),
            _ => format!("calendar {}: ", place + 1),
        };
        check_keys(table, &place, &[KEYS])?;
        let (name, dates) = calendar(&Entry::alone(table)).map_err(|reason| format!("{place}{reason}"))?;
        if calendars.insert(name, dates).is_some() {
            return Err(format!("{place}name: expected another name, since a calendar before it has this one"));
        }
    }
    Ok(calendars)
}

fn calendar(entry: &Entry<'_>) -> Result<(String, String), String> {
    let name = entry.text("name")?.ok_or("name: expected a string, found none")?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(allowed) || name.len() > MAX_NAME {
        let expected = format!("a letter, then up to {} letters, digits or . _ -", MAX_NAME - 1);
        return Err(format!("name: expected {expected}, found {:?}", truncated(&name)));
    }
    let dates = entry.days("dates")?.filter(|dates| !dates.is_empty()).ok_or("dates: expected dates, found none")?;
    if let Some(other) = dates.iter().find(|date| !is_dates(date)) {
        let expected = "dates such as 2027-12-24 or 2027-12-24..2027-12-26";
        return Err(format!("dates: expected {expected}, found {:?}", truncated(other)));
    }
    let dates = dates.join(", ");
    // As a task with these dates is checked.
    let task = NewTask::cron("task", "@daily").handler("work").except_on(&dates);
    let checked = task.occurrences(Timestamp::from_millis(1_800_000_000_000), 0);
    checked.map_err(|error| error.to_string().replace("invalid except_on", "dates"))?;
    Ok((name, dates))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use duly::NewTask;

    use crate::manifest::{parse, parse_in_parts, parse_whole};

    const CALENDARS: &str = "[[calendar]]\nname = \"holidays\"\ndates = [\"2027-12-24..2027-12-26\", \"2028-01-01\"]\n
                             [[calendar]]\nname = \"strike\"\ndates = [\"2027-11-02\"]\n";

    fn task(rest: &str) -> String {
        format!("{CALENDARS}[[task]]\nname = \"t\"\nhandler = \"h\"\n{rest}")
    }

    #[test]
    fn tasks_store_the_dates_of_their_calendars() {
        let text = task(
            "cron = \"0 9 * * *\"\nonly_between = \"09:00-17:30\"\nonly_on = [\"2027-11-01..2027-12-31\"]\n
             except = [\"holidays\", \"strike\", \"2027-12-31\"]",
        );
        let expected = NewTask::cron("t", "0 9 * * *").handler("h").only_between("09:00-17:30");
        let expected = expected
            .only_on("2027-11-01..2027-12-31")
            .except_on("holidays: 2027-12-24..2027-12-26, 2028-01-01; strike: 2027-11-02; 2027-12-31");
        let folder = Path::new("/etc");
        for declared in [parse_in_parts(&text, folder).unwrap(), parse_whole(&text, folder).unwrap()] {
            assert_eq!(format!("{:?}", declared.tasks), format!("{:?}", [&expected]));
        }
    }

    #[test]
    fn defaults_apply_to_the_tasks_that_have_occurrences() {
        let text = format!(
            "[defaults]\nexcept = [\"strike\"]\n{CALENDARS}
             [[task]]\nname = \"a\"\nevery = \"1h\"\nhandler = \"h\"\n
             [[task]]\nname = \"b\"\nmanual = true\nhandler = \"h\"\n"
        );
        let tasks = parse(&text, Path::new("/etc")).unwrap().tasks;
        let expected = [
            NewTask::scheduled("a", duly::ScheduleKind::Interval, "1h").handler("h").except_on("strike: 2027-11-02"),
            NewTask::manual("b").handler("h"),
        ];
        assert_eq!(format!("{tasks:?}"), format!("{expected:?}"));
    }

    #[test]
    fn a_task_lifts_a_default_and_toml_dates_are_dates() {
        let text = format!(
            "[defaults]\nexcept = [\"strike\"]\n{CALENDARS}
             [[task]]\nname = \"a\"\nevery = \"1h\"\nhandler = \"h\"\nexcept = []\n
             [[task]]\nname = \"b\"\nevery = \"1h\"\nhandler = \"h\"\nexcept = [2027-12-24, \"2028-01-01\"]\n"
        );
        let tasks = parse(&text, Path::new("/etc")).unwrap().tasks;
        let hourly = |name: &str| NewTask::scheduled(name, duly::ScheduleKind::Interval, "1h").handler("h");
        let expected = [hourly("a"), hourly("b").except_on("2027-12-24; 2028-01-01")];
        assert_eq!(format!("{tasks:?}"), format!("{expected:?}"));
    }

    #[test]
    fn errors_name_the_calendar_and_the_key() {
        let hourly = |rest: &str| task(&format!("cron = \"@hourly\"\n{rest}"));
        for (text, says) in [
            (
                hourly("except = [\"holiday\"]"),
                "task \"t\": except: expected the name of a [[calendar]] of this file, or dates",
            ),
            (hourly("except = \"holidays\""), "task \"t\": except: expected an array of strings, found \"holidays\""),
            (hourly("only_on = [7]"), "task \"t\": only_on: expected an array of strings, found 7 in it"),
            (
                hourly("except = [\"2027-12-24T00:00:00Z\"]"),
                "task \"t\": except: expected the name of a [[calendar]] of this file, or dates such as \
                 2027-12-24..2027-12-26, found \"2027-12-24T00:00:00Z\"",
            ),
            (
                "[[calendar]]\nname = \"a\"\ndates = [\"x: 2027-12-24\"]".to_owned(),
                "calendar \"a\": dates: expected dates such as 2027-12-24 or 2027-12-24..2027-12-26, found \"x: 2027-12-24\"",
            ),
            (hourly("only_on = []"), "task \"t\": only_on: expected calendars or dates, found none"),
            ("calendar = 7".to_owned(), "calendar: expected tables, [[calendar]], found 7"),
            ("[[calendar]]\ndates = []".to_owned(), "calendar 1: name: expected a string, found none"),
            (
                "[[calendar]]\nname = \"a b\"\ndates = []".to_owned(),
                "calendar \"a b\": name: expected a letter, then up to 99",
            ),
            ("[[calendar]]\nname = \"a\"\ndates = []".to_owned(), "calendar \"a\": dates: expected dates, found none"),
            (
                "[[calendar]]\nname = \"a\"\ndates = [\"25 Dec\"]".to_owned(),
                "calendar \"a\": dates: expected dates such as 2027-12-24",
            ),
            (
                format!("{CALENDARS}[[calendar]]\nname = \"strike\"\ndates = [\"2027-11-02\"]"),
                "calendar \"strike\": name: expected another name",
            ),
            (
                "[[calendar]]\nname = \"a\"\ndate = []".to_owned(),
                "calendar \"a\": unknown key \"date\": did you mean \"dates\"?",
            ),
        ] {
            let error = parse(&text, Path::new("/etc")).unwrap_err();
            assert!(error.starts_with(says) && error.lines().count() == 1, "{text}\n{error}");
        }
    }
}
