//! A crontab, as tasks that keep cron's habits: tried once, not made up for, run beside themselves, without a time limit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use duly::{Misfire, NewTask, Overlap, RetryPolicy, ScheduleKind, Zone};

use crate::cli::values::brief;
use crate::cli::zone;
use crate::exec::payload::Payload;
use crate::import::lines::{self, Entry, Line};
use crate::import::name::Names;
use crate::import::source::{Coming, Found, Place, Said};
use crate::import::users::Person;

/// How late a start is none that was missed: cron makes up for as much after a sleep of its own.
const GRACE: Duration = Duration::from_secs(60);
/// Longest line that is shown.
const SHOWN: usize = 120;

/// How a crontab is to be read.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    /// Each line names a user.
    pub(crate) system: bool,
    /// Whose lines they are, or whose are taken.
    pub(crate) person: Person,
    /// Who is known here.
    pub(crate) people: &'a BTreeSet<String>,
    /// Where times are read before a line says otherwise.
    pub(crate) zone: &'a Zone,
    pub(crate) prefix: &'a str,
}

/// Whether each line of such a file names a user, as its place tells.
pub(crate) fn is_of_the_system(path: &Path) -> bool {
    path == Path::new("/etc/crontab") || path.parent() == Some(Path::new("/etc/cron.d"))
}

/// What stands above a line.
struct Above {
    env: BTreeMap<String, String>,
    /// The zone that `CRON_TZ` named, or what is wrong with it.
    zone: Option<Result<Zone, String>>,
}

/// Reads a crontab. What cannot come is told, and keeps nothing else back.
pub(crate) fn read(bytes: &[u8], how: &Reading<'_>) -> Found {
    let mut found = Found::default();
    let mut names = Names::new(how.prefix);
    let mut above = Above { env: BTreeMap::new(), zone: None };
    let mut all_name_users = !how.system;
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let place = Place::line(number + 1);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // A comment may be in any encoding.
        if line.trim_ascii_start().first() == Some(&b'#') {
            continue;
        }
        let text = String::from_utf8_lossy(line);
        let said = |reason: String| Said { place: place.clone(), text: shown(&text), reason };
        if let Err(error) = std::str::from_utf8(line) {
            let reason = format!("expected UTF-8, found another byte after {} of them", error.valid_up_to());
            found.refused.push(said(reason));
            continue;
        }
        match lines::read(&text) {
            Line::Nothing => {}
            Line::Variable { name, value } => match above.set(name, value, how.zone) {
                Heard::Kept => {}
                Heard::Told(remark) => found.remarks.push(said(remark)),
                Heard::Refused(reason) => found.refused.push(said(reason)),
            },
            Line::Entry(entry) => match above.task(entry, how, &mut names) {
                Ok((name, task)) => {
                    all_name_users &= names_a_user(entry, how.people);
                    let brought = task.into();
                    found.tasks.push(Coming { place: place.clone(), text: shown(&text), name, brought });
                }
                Err(reason) => found.refused.push(said(reason)),
            },
        }
    }
    if all_name_users && !found.tasks.is_empty() {
        let reason =
            "every command begins with the name of a user: if this is a system crontab, import it with --system";
        found.remarks.push(Said { place: Place::default(), text: String::new(), reason: reason.into() });
    }
    let homeless = how.person.home.is_none() && !above.env.contains_key("HOME");
    if homeless && !found.tasks.is_empty() {
        let reason = format!("no home of {} is known here: commands start in the scheduler's folder", how.person.name);
        found.remarks.push(Said { place: Place::default(), text: String::new(), reason });
    }
    found
}

/// Whether what a line runs has the name of somebody who is known here.
fn names_a_user(line: &str, people: &BTreeSet<String>) -> bool {
    lines::entry(line, true).is_ok_and(|entry| entry.user.is_some_and(|user| people.contains(user)))
}

/// What becomes of a variable.
enum Heard {
    Kept,
    Told(String),
    Refused(String),
}

impl Above {
    fn set(&mut self, name: String, value: String, usual: &Zone) -> Heard {
        // Told of its own line: the commands below can do without it.
        if name.contains('=') {
            return Heard::Refused(format!("expected the name of a variable, found {:?}", brief(&name)));
        }
        if name.contains('\0') || value.contains('\0') {
            return Heard::Refused("no system can pass on a NUL character".into());
        }
        match name.as_str() {
            "CRON_TZ" => {
                let zone = zone::named(&value).ok_or_else(|| format!("CRON_TZ names no time zone: {:?}", brief(&value)));
                let heard = match &zone {
                    Ok(_) => Heard::Kept,
                    Err(reason) => Heard::Refused(format!("{reason}; what follows has no times without it")),
                };
                self.zone = Some(zone);
                heard
            }
            "TZ" => {
                let zone = self.zone.as_ref().and_then(|zone| zone.as_ref().ok()).unwrap_or(usual).name();
                let remark = format!("goes to the commands, as with cron; their times are those of {zone}");
                self.env.insert(name, value);
                Heard::Told(remark)
            }
            // Where nobody was to be told, nothing is lost.
            "MAILTO" | "MAILFROM" if value.is_empty() => Heard::Kept,
            "MAILTO" | "MAILFROM" | "CONTENT_TYPE" | "CONTENT_TRANSFER_ENCODING" => Heard::Refused(
                "no mail is sent: logs shows what a run printed, check what is wrong, and on_dead tells a task of yours"
                    .into(),
            ),
            "RANDOM_DELAY" => Heard::Refused("no start is put off by chance: jitter spreads those of a task".into()),
            "LOGNAME" | "USER" => {
                Heard::Refused("it is who the commands run as, which a crontab cannot change: the scheduler's user".into())
            }
            "" => Heard::Refused("the variable has no name".into()),
            _ => {
                self.env.insert(name, value);
                Heard::Kept
            }
        }
    }

    fn task(&self, line: &str, how: &Reading<'_>, names: &mut Names<'_>) -> Result<(String, NewTask), String> {
        let Entry { times, user, command, input } = lines::entry(line, how.system)?;
        if let Some(user) = user.filter(|user| *user != how.person.name) {
            let (user, mine) = (brief(user), &how.person.name);
            return Err(format!("it is for {user}, and only what is for {mine} is taken: import with --user {user}"));
        }
        let zone = match &self.zone {
            None => how.zone,
            Some(zone) => zone.as_ref().map_err(String::clone)?,
        };
        // Where a line stands in the file is not in its name, nor what stands above it but for the zone it is read in.
        let told = if self.zone.is_some() { zone.name() } else { "" };
        let name = names.of_command(&command, &[&times, &command, &input, told]);
        let shell = self.env.get("SHELL").filter(|shell| !shell.is_empty()).map_or("/bin/sh", String::as_str);
        let payload = Payload {
            argv: vec![shell.to_owned(), "-c".to_owned(), command],
            cwd: self.env.get("HOME").filter(|home| !home.is_empty()).cloned().or_else(|| how.person.home.clone()),
            env: self.env.clone(),
            env_from: Vec::new(),
            stdin: input,
        };
        let payload = payload.checked()?;
        let task = NewTask::scheduled(&name, ScheduleKind::Cron, times)
            .time_zone(zone.name())
            .handler("command")
            .payload(payload)
            .misfire(Misfire::Skip, GRACE)
            .overlap(Overlap::Allow)
            .retry(RetryPolicy { max_attempts: 1, ..RetryPolicy::default() })
            .timeout(Duration::ZERO);
        Ok((name, task))
    }
}

/// A line, as long as it can be shown.
fn shown(line: &str) -> String {
    let line = line.trim();
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Reading, is_of_the_system, read};
    use crate::import::users::Person;
    use duly::Zone;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn a_place_tells_whether_lines_name_a_user() {
        for (path, system) in [
            ("/etc/crontab", true),
            ("/etc/cron.d/certbot", true),
            ("/etc/cron.d/old/certbot", false),
            ("/srv/etc/crontab", false),
            ("/var/spool/cron/crontabs/anna", false),
        ] {
            assert_eq!(is_of_the_system(Path::new(path)), system, "{path}");
        }
    }

    #[test]
    fn a_system_crontab_gives_each_user_their_own() {
        let zone = Zone::named("UTC").unwrap();
        let text = b"@daily root a\n@daily anna b\n@daily\tanna\n";
        let of = |name: &str, home: Option<&str>| {
            let person = Person { name: name.into(), home: home.map(str::to_owned) };
            read(text, &Reading { system: true, person, people: &BTreeSet::new(), zone: &zone, prefix: "cron" })
        };
        let anna = of("anna", Some("/home/anna"));
        assert_eq!(anna.tasks.iter().map(|task| task.place.line).collect::<Vec<_>>(), [Some(2)]);
        let reasons: Vec<_> = anna.refused.iter().map(|said| said.reason.as_str()).collect();
        let whose = "it is for root, and only what is for anna is taken: import with --user root";
        assert_eq!(reasons[0], whose);
        assert!(reasons[1].ends_with("a user, and a command") && reasons.len() == 2, "{reasons:?}");
        assert!(anna.remarks.is_empty());
        let homeless = of("root", None).remarks;
        assert_eq!(homeless[0].reason, "no home of root is known here: commands start in the scheduler's folder");
        assert!(of("eve", None).remarks.is_empty(), "nothing of hers starts");
    }

    #[test]
    fn lines_that_all_name_a_user_are_told_to_do_so() {
        let zone = Zone::named("UTC").unwrap();
        let people = BTreeSet::from(["root".to_owned(), "anna".to_owned()]);
        let remarks = |text: &str, system: bool| {
            let person = Person { name: "root".into(), home: Some("/root".into()) };
            let reading = Reading { system, person, people: &people, zone: &zone, prefix: "cron" };
            read(text.as_bytes(), &reading).remarks.len()
        };
        assert_eq!(remarks("@daily root a\n0 0 * * * anna b\n", false), 1);
        assert_eq!(remarks("@daily root a\n0 0 * * * anna b\n", true), 0);
        assert_eq!(remarks("@daily root a\n0 0 * * * b c\n", false), 0);
        assert_eq!(remarks("@daily anna\n", false), 0, "a command alone may be called so");
    }
}
