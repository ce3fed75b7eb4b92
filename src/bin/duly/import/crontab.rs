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

/// Folders of crontabs that have the names of their users.
const SPOOLS: [&str; 4] = ["/var/spool/cron/crontabs", "/var/spool/cron/tabs", "/var/spool/cron", "/etc/crontabs"];

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
    let mut all_name_users = !options.system;
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let place = Place::line(number + 1);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
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
                    all_name_users = all_name_users && begins_with_user(entry, options.users);
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
    if all_name_users && !parsed.tasks.is_empty() {
        let reason =
            "every command begins with the name of a user: if this is a system crontab, import it with --system";
        parsed.remarks.push(Note { place: Place::default(), text: String::new(), reason: reason.into() });
    }
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

/// Whether the command of an entry begins with the name of a user.
fn begins_with_user(line: &str, users: &BTreeSet<String>) -> bool {
    lines::parse_entry(line, true).is_ok_and(|entry| entry.user.is_some_and(|user| users.contains(user)))
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
            .overlap(Overlap::Allow)
            .retry(RetryPolicy { max_attempts: 1, ..RetryPolicy::default() })
            .timeout(Duration::ZERO))
    }

    /// Parses an entry, and returns its time zone.
    fn entry<'a>(&'a self, line: &'a str, options: &'a Options<'_>) -> Result<(Entry<'a>, &'a Zone), String> {
        let entry = lines::parse_entry(line, options.system)?;
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
    use super::{Options, is_system_crontab, parse, user_of_crontab};
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
            let options = Options { system: true, user, others: false, root, users, zone: &zone, prefix: "cron" };
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
        let options = Options { system: true, user, others: true, root, users: &users, zone: &zone, prefix: "cron" };
        let text = b"@daily root a\n@daily anna a\n@daily bob a\nHOME=/srv\n@daily anna b\n17 * * * * cd / && c\n";
        let parsed = parse(text, &options);
        let names: BTreeSet<&str> = parsed.tasks.iter().map(|task| &*task.name).collect();
        assert_eq!(names.len(), 4, "equal lines of two users have two names: {names:?}");
        assert_eq!(parsed.refused[0].reason, "there is no user \"cd\" on this machine");
    }

    #[test]
    fn a_remark_suggests_system_if_every_command_begins_with_a_user() {
        let zone = Zone::named("UTC").unwrap();
        let users = BTreeSet::from(["root".to_owned(), "anna".to_owned()]);
        let remarks = |text: &str, system: bool| {
            let user = User { name: "root".into(), home: Some("/root".into()) };
            let root = None;
            let options = Options { system, user, others: false, root, users: &users, zone: &zone, prefix: "cron" };
            parse(text.as_bytes(), &options).remarks.len()
        };
        assert_eq!(remarks("@daily root a\n0 0 * * * anna b\n", false), 1);
        assert_eq!(remarks("@daily root a\n0 0 * * * anna b\n", true), 0);
        assert_eq!(remarks("@daily root a\n0 0 * * * b c\n", false), 0);
        assert_eq!(remarks("@daily anna\n", false), 0, "a command may have the name of a user");
    }
}
