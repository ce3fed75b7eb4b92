//! Converts a crontab to tasks that behave as under cron: one attempt, no catch-up, overlap allowed, no timeout.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use duly::text::local_zone;
use duly::{ImportItem, Misfire, NewTask, Overlap, RetryPolicy, ScheduleKind, Zone};

use crate::cli::values::truncated;
use crate::exec::payload::Payload;
use crate::exec::user;
use crate::import::lines::{self, Entry, Line};
use crate::import::name::Names;
use crate::import::source::{Note, Parsed, ParsedTask, Place};
use crate::import::users::User;

/// The misfire grace: cron, too, makes up for a delay of this length.
pub(crate) const GRACE: Duration = Duration::from_secs(60);
/// Most characters of a line that are printed.
const MAX_LINE: usize = 120;

/// What differs from cron for a command that leaves a process in the background.
const LEAVES_PROCESS: &str = "it leaves a process in the background, which lives on under cron, and which duly ends 2 s after the command: \
                              let the command wait for it (without &), or make that program a service";

/// Options of the import.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    /// Each entry names a user.
    pub(crate) system: bool,
    /// The user whose entries are imported.
    pub(crate) user: User,
    /// The entries of other users are imported too.
    pub(crate) others: bool,
    /// The name of root, if root imports: tasks of other users name their user.
    pub(crate) root: Option<String>,
    /// The names of all users of the machine.
    pub(crate) users: &'a BTreeSet<String>,
    /// The zone of entries above the first `CRON_TZ`.
    pub(crate) zone: &'a Zone,
    pub(crate) prefix: &'a str,
    pub(crate) dialect: Dialect,
}

impl Options<'_> {
    /// Returns the user that the task of an entry names. Otherwise it would run as root.
    fn named_user<'a>(&'a self, entry: &Entry<'a>) -> Option<&'a str> {
        let user = entry.user.unwrap_or(&self.user.name);
        self.root.as_ref().is_some_and(|root| root != user).then_some(user)
    }
}

/// Whether a file is a system crontab, by its path.
pub(crate) fn is_system_crontab(path: &Path) -> bool {
    path == Path::new("/etc/crontab") || path.parent() == Some(Path::new("/etc/cron.d"))
}

/// The folder of crontabs of BusyBox, on Alpine Linux and OpenWrt.
const OF_BUSYBOX: &str = "/etc/crontabs";

/// Folders of crontabs that have the names of their users.
const SPOOLS: [&str; 5] =
    ["/var/spool/cron/crontabs", "/var/spool/cron/tabs", "/var/spool/cron", "/var/cron/tabs", OF_BUSYBOX];

/// Whose rules a crontab follows where they differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// That of Vixie, from which those of Debian, Red Hat, SUSE and the BSDs come.
    Vixie,
    /// That of BusyBox: `%` is not special, and a command is not started while it runs.
    BusyBox,
}

/// Returns whose rules the crontab at a path follows, or why it is none.
pub(crate) fn dialect(path: Option<&Path>) -> Result<Dialect, String> {
    let Some(path) = path else { return Ok(Dialect::Vixie) };
    if path.file_name().is_some_and(|name| name == "anacrontab") {
        let reason = "it is the table of anacron, which counts days since the last run: add its commands with duly add NAME --every 1d, \
                      --every 7d or --cron @monthly; of a computer that was off, misfire run_once makes up for it";
        return Err(reason.to_owned());
    }
    let is_of_busybox = path.parent().is_some_and(|folder| folder == Path::new(OF_BUSYBOX));
    Ok(if is_of_busybox { Dialect::BusyBox } else { Dialect::Vixie })
}

/// Returns the user of a crontab in a folder of cron, by its path.
pub(crate) fn user_of_crontab(path: &Path) -> Option<&str> {
    let is_spool = path.parent().is_some_and(|folder| SPOOLS.iter().any(|spool| folder == Path::new(spool)));
    path.file_name().filter(|_| is_spool)?.to_str()
}

/// The variables above an entry.
#[derive(Clone, Default)]
struct Variables {
    env: BTreeMap<String, String>,
    /// The zone of `CRON_TZ`, or why it is invalid.
    zone: Option<Result<Zone, String>>,
}

/// Parses a crontab. A line that cannot be imported is refused; the others are not affected.
pub(crate) fn parse<'a>(bytes: &'a [u8], options: &'a Options<'_>) -> Parsed<'a> {
    let mut parsed = Parsed::default();
    let mut names = Names::new(options.prefix);
    let mut variables = Rc::new(Variables::default());
    for (number, line) in lines_of(bytes).enumerate() {
        let place = Place::line(number + 1);
        // A comment may be in any encoding.
        if line.trim_ascii_start().first() == Some(&b'#') {
            continue;
        }
        let text = match std::str::from_utf8(line) {
            Ok(text) => text,
            Err(error) => {
                let reason = format!("expected UTF-8, found an invalid byte at offset {}", error.valid_up_to());
                let text = shortened(&String::from_utf8_lossy(line)).into_owned();
                parsed.refused.push(Note { place, text, reason });
                continue;
            }
        };
        let note = |reason: String| Note { place: place.clone(), text: shortened(text).into_owned(), reason };
        match lines::parse(text) {
            Line::Blank => {}
            Line::Variable { name, value } => match Rc::make_mut(&mut variables).set(name, value, options.zone) {
                Assignment::Accepted => {}
                Assignment::Remark(remark) => parsed.remarks.push(note(remark)),
                Assignment::Refused(reason) => parsed.refused.push(note(reason)),
            },
            Line::Entry(entry) => match variables.name(entry, options, &mut names) {
                Ok(name) => {
                    let command = parse_entry(entry, options).map(|entry| entry.command);
                    if command.is_ok_and(|command| lines::leaves_process(&command)) {
                        parsed.remarks.push(note(LEAVES_PROCESS.into()));
                    }
                    let variables = Rc::clone(&variables);
                    let item = Box::new(move |name: &str| match variables.task(name, entry, options) {
                        Ok(task) => task.into(),
                        Err(reason) => ImportItem::refused(name, reason),
                    });
                    parsed.tasks.push(ParsedTask { place, text: shortened(text), name, item });
                }
                Err(reason) => parsed.refused.push(note(reason)),
            },
        }
    }
    parsed.tasks.shrink_to_fit();
    // The home directory of a user that the tasks name is looked up at each start.
    let named = options.root.as_ref().is_some_and(|root| *root != options.user.name);
    let homeless = options.user.home.is_none() && !named && !variables.env.contains_key("HOME");
    if homeless && !parsed.tasks.is_empty() {
        let user = &options.user.name;
        let reason =
            format!("the home directory of {user} is unknown: commands start in the directory of the scheduler");
        parsed.remarks.push(Note { place: Place::default(), text: String::new(), reason });
    }
    parsed
}

/// Returns the lines of a crontab, without the byte order mark that an editor may have put before the first of a file.
fn lines_of(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = bytes.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.map(|line| line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line))
}

/// Users that system crontabs name: those of another machine may not exist on this one.
const OF_SYSTEMS: [&str; 8] = ["root", "www-data", "nobody", "daemon", "postgres", "mysql", "apache", "nginx"];

/// Whether the command of each entry begins with the name of a user, as in a system crontab. As a program it would fail at each start.
pub(crate) fn names_users(bytes: &[u8], users: &BTreeSet<String>) -> bool {
    let entries = lines_of(bytes).filter_map(|line| match lines::parse(std::str::from_utf8(line).ok()?) {
        Line::Entry(line) => Some(lines::parse_entry(line, true)),
        _ => None,
    });
    let mut users = entries.map(|entry| {
        let user = entry.ok().and_then(|entry| entry.user.map(str::to_owned));
        user.is_some_and(|user| users.contains(&user) || OF_SYSTEMS.contains(&&*user))
    });
    users.next().is_some_and(|first| first && users.all(|one| one))
}

/// Parses an entry by the rules of its cron.
fn parse_entry<'a>(line: &'a str, options: &Options<'_>) -> Result<Entry<'a>, String> {
    let entry = lines::parse_entry(line, options.system)?;
    if lines::has_flags(&entry.command) {
        return Err(
            "flags before the command (-n, -q, -s) are of a cron of the BSDs: write the command alone".to_owned()
        );
    }
    Ok(match options.dialect {
        Dialect::Vixie => entry,
        Dialect::BusyBox => {
            let command = lines::whole_command(line, options.system).to_owned();
            Entry { command, input: String::new(), ..entry }
        }
    })
}

/// The result of a variable assignment.
enum Assignment {
    Accepted,
    Remark(String),
    Refused(String),
}

impl Variables {
    fn set(&mut self, name: String, value: String, default: &Zone) -> Assignment {
        // Only this line is refused: the commands below can run without the variable.
        if name.contains('=') {
            return Assignment::Refused(format!("expected the name of a variable, found {:?}", truncated(&name)));
        }
        if name.contains('\0') || value.contains('\0') {
            return Assignment::Refused("a NUL character cannot be passed to a command".into());
        }
        match name.as_str() {
            "CRON_TZ" => {
                let zone = local_zone::from_variable(&value)
                    .ok_or_else(|| format!("CRON_TZ is not a time zone: {:?}", truncated(&value)));
                let result = match &zone {
                    Ok(_) => Assignment::Accepted,
                    Err(reason) => Assignment::Refused(format!("{reason}; the entries below are not imported")),
                };
                self.zone = Some(zone);
                result
            }
            "TZ" => {
                let zone = self.zone.as_ref().and_then(|zone| zone.as_ref().ok()).unwrap_or(default).name();
                let remark = format!("passed to the commands only, as under cron; their schedules are in {zone}");
                self.env.insert(name, value);
                Assignment::Remark(remark)
            }
            // An empty value disables mail in cron, too.
            "MAILTO" | "MAILFROM" if value.is_empty() => Assignment::Accepted,
            "MAILTO" | "MAILFROM" | "CONTENT_TYPE" | "CONTENT_TRANSFER_ENCODING" => Assignment::Refused(
                "duly sends no mail: see duly logs for output, duly check for problems, and --on-dead to run a task"
                    .into(),
            ),
            "RANDOM_DELAY" => {
                Assignment::Refused("duly has no random delay: --jitter gives each task a fixed one".into())
            }
            "LOGNAME" | "USER" => Assignment::Refused(
                "a crontab cannot change the user: commands run as the user of the scheduler".into(),
            ),
            "" => Assignment::Refused("the variable has no name".into()),
            _ => {
                self.env.insert(name, value);
                Assignment::Accepted
            }
        }
    }

    /// Returns a name for an entry that can be imported.
    fn name(&self, line: &str, options: &Options<'_>, names: &mut Names<'_>) -> Result<String, String> {
        let (entry, zone) = self.entry(line, options)?;
        let cron_tz = if self.zone.is_some() { zone.name() } else { "" };
        // The name depends on the entry and on CRON_TZ, not on its line number or on other variables.
        let other = options.named_user(&entry);
        let parts = [&*entry.times, &entry.command, &entry.input, cron_tz, other.unwrap_or_default()];
        let parts = if other.is_some() { &parts[..] } else { &parts[..4] };
        let name = names.for_command(&entry.command, parts);
        self.payload(entry, options).checked()?;
        Ok(name)
    }

    /// Returns the task of an entry.
    fn task(&self, name: &str, line: &str, options: &Options<'_>) -> Result<NewTask, String> {
        let (mut entry, zone) = self.entry(line, options)?;
        let times = std::mem::take(&mut entry.times);
        Ok(NewTask::scheduled(name, ScheduleKind::Cron, times)
            .time_zone(zone.name())
            .handler("command")
            .payload(self.payload(entry, options))
            .misfire(Misfire::Skip, GRACE)
            .overlap(match options.dialect {
                Dialect::Vixie => Overlap::Allow,
                Dialect::BusyBox => Overlap::Skip,
            })
            .retry(RetryPolicy { max_attempts: 1, ..RetryPolicy::default() })
            .timeout(Duration::ZERO))
    }

    /// Parses an entry, and returns its time zone.
    fn entry<'a>(&'a self, line: &'a str, options: &'a Options<'_>) -> Result<(Entry<'a>, &'a Zone), String> {
        let entry = parse_entry(line, options)?;
        if let Some(user) = entry.user.filter(|user| !options.others && *user != options.user.name) {
            let (user, own) = (truncated(user), &options.user.name);
            return Err(format!("it belongs to {user}, and this import is for {own}: import it with --user {user}"));
        }
        let is_unknown = |user: &&str| !options.users.contains(*user) && user::exists(user) == Some(false);
        if let Some(user) = options.named_user(&entry).filter(is_unknown) {
            return Err(format!("there is no user {:?} on this machine", truncated(user)));
        }
        Ok((entry, self.zone(options)?))
    }

    fn zone<'a>(&'a self, options: &'a Options<'_>) -> Result<&'a Zone, String> {
        match &self.zone {
            None => Ok(options.zone),
            Some(zone) => zone.as_ref().map_err(String::clone),
        }
    }

    fn payload(&self, entry: Entry<'_>, options: &Options<'_>) -> Payload {
        let shell = self.env.get("SHELL").filter(|shell| !shell.is_empty()).map_or("/bin/sh", String::as_str);
        let user = options.named_user(&entry).map(str::to_owned);
        // The home directory of another user is looked up at each start.
        let home = options.user.home.as_ref().filter(|_| user.is_none());
        Payload {
            argv: vec![shell.to_owned(), "-c".to_owned(), entry.command],
            cwd: self.env.get("HOME").filter(|home| !home.is_empty()).or(home).cloned(),
            user,
            env: self.env.clone(),
            stdin: entry.input,
            ..Payload::default()
        }
    }
}

/// Returns the beginning of a line, for messages.
pub(crate) fn shortened(line: &str) -> Cow<'_, str> {
    let line = line.trim();
    match line.char_indices().nth(MAX_LINE) {
        Some((end, _)) => format!("{}...", &line[..end]).into(),
        None => line.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Dialect, Options, dialect, is_system_crontab, parse, user_of_crontab};
    use crate::import::source::Parsed;
    use crate::import::users::User;
    use duly::Zone;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn system_crontabs_are_recognized_by_their_path() {
        for (path, system) in [
            ("/etc/crontab", true),
            ("/etc/cron.d/certbot", true),
            ("/etc/cron.d/old/certbot", false),
            ("/srv/etc/crontab", false),
            ("/var/spool/cron/crontabs/anna", false),
        ] {
            assert_eq!(is_system_crontab(Path::new(path)), system, "{path}");
        }
    }

    #[test]
    fn the_rules_of_another_cron_are_recognized_by_the_path() {
        let of = |path: &str| dialect(Some(Path::new(path)));
        assert_eq!((of("/etc/crontabs/root"), of("/etc/crontab")), (Ok(Dialect::BusyBox), Ok(Dialect::Vixie)));
        assert_eq!(dialect(None), Ok(Dialect::Vixie));
        assert!(of("/etc/anacrontab").unwrap_err().starts_with("it is the table of anacron"));
        let zone = Zone::named("UTC").unwrap();
        let task = |dialect, line: &str| {
            let user = User { name: "root".into(), home: Some("/root".into()) };
            let users = &BTreeSet::new();
            let options =
                Options { system: false, user, others: false, root: None, users, zone: &zone, prefix: "cron", dialect };
            let text = format!("{line}\n");
            let parsed = parse(text.as_bytes(), &options);
            let first = parsed.tasks.first().map(|task| format!("{:?}", (task.item)("t").task));
            first.ok_or_else(|| parsed.refused[0].reason.clone())
        };
        let line = "@daily date +%F";
        let (vixie, busybox) = (task(Dialect::Vixie, line).unwrap(), task(Dialect::BusyBox, line).unwrap());
        assert!(vixie.contains("date +\\\"]") && vixie.contains("overlap: Allow"), "{vixie}");
        assert!(busybox.contains("date +%F\\\"]") && busybox.contains("overlap: Skip"), "{busybox}");
        let reason = task(Dialect::Vixie, "@daily -nq prog").unwrap_err();
        assert!(reason.starts_with("flags before the command"), "{reason}");
    }

    #[test]
    fn the_crontab_of_a_user_is_recognized_by_its_path() {
        for (path, user) in [
            ("/var/spool/cron/crontabs/anna", Some("anna")),
            ("/var/spool/cron/anna", Some("anna")),
            ("/etc/crontabs/root", Some("root")),
            ("/etc/cron.d/certbot", None),
            ("/home/anna/crontab", None),
        ] {
            assert_eq!(user_of_crontab(Path::new(path)), user, "{path}");
        }
    }

    #[test]
    fn only_the_entries_of_one_user_are_imported_from_a_system_crontab() {
        let zone = Zone::named("UTC").unwrap();
        let text = b"@daily root a\n@daily anna b\n@daily\tanna\n";
        let of = |name: &str, home: Option<&str>| {
            let user = User { name: name.into(), home: home.map(str::to_owned) };
            let (users, root) = (&BTreeSet::new(), None);
            let options = Options {
                system: true,
                user,
                others: false,
                root,
                users,
                zone: &zone,
                prefix: "cron",
                dialect: Dialect::Vixie,
            };
            let Parsed { tasks, refused, remarks, .. } = parse(text, &options);
            (tasks.iter().map(|task| task.place.line).collect::<Vec<_>>(), refused, remarks)
        };
        let (lines, refused, remarks) = of("anna", Some("/home/anna"));
        assert_eq!(lines, [Some(2)]);
        let reasons: Vec<_> = refused.iter().map(|note| note.reason.as_str()).collect();
        assert_eq!(reasons[0], "it belongs to root, and this import is for anna: import it with --user root");
        assert!(reasons[1].ends_with("a user, and a command") && reasons.len() == 2, "{reasons:?}");
        assert!(remarks.is_empty());
        let (_, _, homeless) = of("root", None);
        assert_eq!(
            homeless[0].reason,
            "the home directory of root is unknown: commands start in the directory of the scheduler"
        );
        assert!(of("eve", None).2.is_empty(), "no entry is imported");
    }

    // Other systems have no users of this list.
    #[cfg(unix)]
    #[test]
    fn root_imports_the_entries_of_all_users_and_each_names_its_user() {
        let zone = Zone::named("UTC").unwrap();
        let users = BTreeSet::from(["root".to_owned(), "anna".to_owned(), "bob".to_owned()]);
        let user = User { name: "root".into(), home: Some("/root".into()) };
        let root = Some("root".to_owned());
        let options = Options {
            system: true,
            user,
            others: true,
            root,
            users: &users,
            zone: &zone,
            prefix: "cron",
            dialect: Dialect::Vixie,
        };
        let text = b"@daily root a\n@daily anna a\n@daily bob a\nHOME=/srv\n@daily anna b\n17 * * * * cd / && c\n";
        let parsed = parse(text, &options);
        let names: BTreeSet<&str> = parsed.tasks.iter().map(|task| &*task.name).collect();
        assert_eq!(names.len(), 4, "equal lines of two users have two names: {names:?}");
        assert_eq!(parsed.refused[0].reason, "there is no user \"cd\" on this machine");
    }

    #[test]
    fn a_system_crontab_is_recognized_by_users_before_every_command() {
        let users = BTreeSet::from(["anna".to_owned()]);
        for (text, names_users) in [
            ("@daily root a\n0 0 * * * anna b\n", true),
            ("# one of another machine\nA=b\n\n@daily www-data a\n", true),
            ("@daily root a\n0 0 * * * b c\n", false),
            // A command may have the name of a user.
            ("@daily anna\n", false),
            ("A=b\n", false),
        ] {
            assert_eq!(super::names_users(text.as_bytes(), &users), names_users, "{text}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line() {
        let zone = Zone::named("UTC").unwrap();
        let user = User { name: "root".into(), home: Some("/root".into()) };
        let users = &BTreeSet::new();
        let options = Options {
            system: false,
            user,
            others: false,
            root: None,
            users,
            zone: &zone,
            prefix: "cron",
            dialect: Dialect::Vixie,
        };
        let with = |text: &str| {
            let text = format!("\u{feff}{text}");
            let parsed = parse(text.as_bytes(), &options);
            assert!(parsed.refused.is_empty() && parsed.tasks.len() == 1, "{:?}", parsed.refused);
            format!("{:?}", (parsed.tasks[0].item)("t").task)
        };
        assert!(with("A=b\r\n@daily a\r\n").contains(r#"\"env\":{\"A\":\"b\"}"#), "{}", with("A=b\n@daily a\n"));
    }
}
