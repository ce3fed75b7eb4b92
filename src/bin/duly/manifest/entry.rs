//! One `[[task]]` of a manifest, converted to a task.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use duly::{Limit, Misfire, NewTask, Overlap, ScheduleKind, StartRate, Timestamp, WhenLimited};
use serde_json::json;
use toml::{Table, Value};

use crate::cli::add_args::Policies;
use crate::cli::limit_args::rate;
use crate::cli::nearest::nearest;
use crate::cli::values::{self, expiry, schedule_duration, truncated};
use crate::exec::payload::Payload;
use crate::exec::system;

/// Keys of a task and of `[defaults]`, beside [`POLICIES`].
pub(crate) const SHARED_KEYS: &[&str] = &["time_zone", "cwd", "user", "env", "env_from", "at_most_once"];
/// Keys that only the task of a command may have.
const OF_COMMANDS: &[&str] =
    &["cwd", "user", "env", "env_from", "stdin", "only_if", "give_up_exit_codes", "skip_exit_codes"];
/// Most characters of an unknown key that are compared and printed.
const MAX_KEY: usize = 80;

/// Defines the keys of the policies, and how each is read into its field.
macro_rules! policies {
    ($($key:ident = $read:ident($($how:expr),*) => $field:ident;)+) => {
        pub(super) const POLICIES: &[&str] = &[$(stringify!($key)),+];

        impl Entry<'_> {
            pub(super) fn policies(&self) -> Result<Policies, String> {
                Ok(Policies { $($field: self.$read(stringify!($key), $($how),*)?,)+ ..Policies::default() })
            }
        }
    };
}
policies! {
    overlap = word(Overlap::parse, "skip, buffer_one, buffer_all, cancel_running or allow") => overlap;
    misfire = word(Misfire::parse, "run_once, skip or run_all") => misfire;
    misfire_grace = read(values::duration) => misfire_grace;
    catch_up_limit = number() => catch_up_limit;
    expires = read(expiry) => expires;
    max_attempts = max_attempts() => max_attempts;
    backoff = read(values::duration) => backoff;
    backoff_cap = read(values::duration) => backoff_cap;
    timeout = read(values::duration) => timeout;
    jitter = read(values::duration) => jitter;
    priority = number() => priority;
    concurrency_key = text() => key;
    max_starts = read(rate) => max_starts;
    when_limited = word(WhenLimited::parse, "wait or skip") => when_limited;
    on_dead = text() => on_dead;
    on_success = text() => on_success;
    on_end = text() => on_end;
    on_missed = text() => on_missed;
    pause_after_failures = number() => pause_after_failures;
    only_between = text() => only_between;
    only_on = dates() => only_on;
    except = dates() => except_on;
}

/// The dates of each `[[calendar]]`, as a task stores them.
pub(super) type Calendars = BTreeMap<String, String>;

/// One `[[task]]` with the `[defaults]` that apply to it.
pub(crate) struct Entry<'a> {
    pub(crate) table: &'a Table,
    pub(crate) defaults: &'a Table,
    pub(crate) folder: &'a Path,
    pub(crate) calendars: &'a Calendars,
}

impl<'a> Entry<'a> {
    /// A table to which no defaults apply.
    pub(crate) fn alone(table: &'a Table) -> Self {
        static NO_DEFAULTS: LazyLock<Table> = LazyLock::new(Table::new);
        static NO_CALENDARS: Calendars = Calendars::new();
        Entry { table, defaults: &NO_DEFAULTS, folder: Path::new(""), calendars: &NO_CALENDARS }
    }

    pub(crate) fn task(&self) -> Result<NewTask, String> {
        let name = self.text("name")?.ok_or("name: expected a string, found none")?;
        let (kind, value) = self.schedule()?;
        let mut task = NewTask::scheduled(name, kind, value);
        task = match (self.command()?, self.text("handler")?) {
            (Some(payload), None) => {
                self.reject_keys(&["payload"], "a command")?;
                task.handler("command").payload(payload.checked()?)
            }
            (None, Some(handler)) => {
                self.reject_keys(OF_COMMANDS, "a handler")?;
                let payload = self.table.get("payload").map(json_of).transpose()?;
                let payload = payload.unwrap_or_default();
                if handler == "command" {
                    Payload::parse(&payload.to_string())?;
                }
                task.handler(handler).payload(payload)
            }
            _ => return Err("expected one of command, shell or handler".into()),
        };
        if let Some(zone) = self.text("time_zone")? {
            task = task.time_zone(zone);
        }
        let mut policies = self.policies()?;
        if matches!(kind, ScheduleKind::Delay | ScheduleKind::Once | ScheduleKind::Manual) {
            // A default chooses among occurrences, and these have none.
            let Policies { only_between, only_on, except_on, .. } = &mut policies;
            for (key, given) in [("only_between", only_between), ("only_on", only_on), ("except", except_on)] {
                given.take_if(|_| !self.table.contains_key(key));
            }
        }
        task = policies.set(task);
        task = self.instant("starts_at")?.into_iter().fold(task, NewTask::starts_at);
        Ok(self.instant("ends_at")?.into_iter().fold(task, NewTask::ends_at))
    }

    /// Reads a `[[limit]]`.
    pub(crate) fn limit(&self) -> Result<Limit, String> {
        let (key, handler) = (self.text("concurrency_key")?, self.text("handler")?);
        match (key, self.number("running")?, handler, self.read("rate", rate)?) {
            (Some(key), running, None, Some(StartRate { starts, per })) => {
                Ok(Limit::key(key, running.unwrap_or(1)).with_rate(starts, per))
            }
            (Some(key), Some(running), None, None) => Ok(Limit::key(key, running)),
            (None, None, Some(handler), Some(StartRate { starts, per })) => Ok(Limit::rate(handler, starts, per)),
            _ => Err("expected concurrency_key with running, rate or both, or handler and rate".to_owned()),
        }
    }

    /// Refuses a key of the task itself that would have no effect. A default applies only to the tasks that can use it.
    fn reject_keys(&self, keys: &[&str], kind: &str) -> Result<(), String> {
        match keys.iter().find(|key| self.table.contains_key(**key)) {
            Some(key) => Err(format!("{key}: not allowed for {kind}")),
            None => Ok(()),
        }
    }

    fn schedule(&self) -> Result<(ScheduleKind, String), String> {
        let kinds = [
            ("cron", ScheduleKind::Cron),
            ("on", ScheduleKind::Calendar),
            ("every", ScheduleKind::Interval),
            ("after", ScheduleKind::Delay),
            ("at", ScheduleKind::Once),
        ];
        let manual = self.flag("manual")?.then_some(("manual", ScheduleKind::Manual));
        let mut given = kinds.into_iter().filter(|(key, _)| self.table.contains_key(*key)).chain(manual);
        match (given.next(), given.next()) {
            (Some(("manual", kind)), None) => Ok((kind, String::new())),
            (Some((key, kind @ (ScheduleKind::Interval | ScheduleKind::Delay))), None) => {
                Ok((kind, self.read(key, schedule_duration)?.unwrap_or_default()))
            }
            (Some((key, kind)), None) => Ok((kind, self.time(key)?.unwrap_or_default())),
            (None, _) => Err("expected one of cron, on, every, after, at or manual".into()),
            (Some((one, _)), Some((other, _))) => Err(format!("{one} and {other}: expected one of them")),
        }
    }

    fn max_attempts(&self, key: &str) -> Result<Option<u32>, String> {
        let attempts = self.number(key)?;
        let once = self.flag("at_most_once")?;
        // A key of the task itself takes precedence over the other key in the defaults.
        let own = |key| self.table.contains_key(key);
        match attempts {
            Some(_) if once && own("max_attempts") == own("at_most_once") => {
                Err("at_most_once and max_attempts: expected one of them".into())
            }
            Some(attempts) if !once || own("max_attempts") => Ok(Some(attempts)),
            _ => Ok(once.then_some(1)),
        }
    }

    /// Returns the payload of a command, if the task is one. A relative `cwd` is relative to the folder of the manifest.
    pub(super) fn command(&self) -> Result<Option<Payload>, String> {
        let argv = match (self.list("command")?, self.text("shell")?) {
            (Some(_), Some(_)) => return Err("command and shell: expected one of them".into()),
            (Some(argv), None) if argv.is_empty() => return Err("command: expected a program, found none".into()),
            (Some(argv), None) => argv,
            (None, Some(line)) => system::shell(line),
            (None, None) => return Ok(None),
        };
        let cwd = self.text("cwd")?.map_or_else(|| self.folder.to_owned(), |cwd| self.folder.join(cwd));
        let cwd = cwd.into_os_string().into_string();
        let cwd = cwd.map_err(|cwd| format!("cwd: expected a directory with a name in UTF-8, found {cwd:?}"))?;
        let env_from = self.list("env_from")?.unwrap_or_default();
        let stdin = self.text("stdin")?.unwrap_or_default();
        let user = self.text("user")?;
        let only_if = self.list("only_if")?.unwrap_or_default();
        let [give_up_exit_codes, skip_exit_codes] = [self.codes("give_up_exit_codes")?, self.codes("skip_exit_codes")?];
        let (cwd, env) = (Some(cwd), self.env()?);
        Ok(Some(Payload { argv, cwd, user, env, env_from, stdin, only_if, give_up_exit_codes, skip_exit_codes }))
    }

    pub(super) fn env(&self) -> Result<BTreeMap<String, String>, String> {
        let Some(given) = self.get("env") else { return Ok(BTreeMap::new()) };
        let pair = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
        let env = given.as_table().and_then(|table| table.iter().map(pair).collect());
        env.ok_or_else(|| wrong_value("env", "a table of strings", given))
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.table.get(key).or_else(|| self.defaults.get(key))
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, String> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Boolean(flag)) => Ok(*flag),
            Some(other) => Err(wrong_value(key, "true or false", other)),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<String>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(wrong_value(key, "a string", other)),
        }
    }

    /// Returns a string, or a TOML date and time as text.
    fn time(&self, key: &str) -> Result<Option<String>, String> {
        match self.get(key) {
            Some(Value::Datetime(at)) => Ok(Some(at.to_string())),
            _ => self.text(key),
        }
    }

    fn instant(&self, key: &str) -> Result<Option<Timestamp>, String> {
        let Some(text) = self.time(key)? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| {
            format!(
                "{key}: expected a date and time with its offset, such as 2027-03-14T07:00:00Z, found {:?}",
                truncated(&text)
            )
        })
    }

    fn read<T>(&self, key: &str, read: fn(&str) -> Result<T, String>) -> Result<Option<T>, String> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        read(&text).map(Some).map_err(|reason| format!("{key}: {reason}, found {:?}", truncated(&text)))
    }

    pub(super) fn number<T: TryFrom<i64>>(&self, key: &str) -> Result<Option<T>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(value @ Value::Integer(number)) => {
                T::try_from(*number).map(Some).map_err(|_| wrong_value(key, "a smaller whole number, 0 or more", value))
            }
            Some(other) => Err(wrong_value(key, "a whole number", other)),
        }
    }

    fn word<T>(&self, key: &str, parse: fn(&str) -> Option<T>, expected: &str) -> Result<Option<T>, String> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        parse(&text).map(Some).ok_or_else(|| format!("{key}: expected {expected}, found {:?}", truncated(&text)))
    }

    /// Returns the dates that a list names, by themselves or by their calendars. No excepted dates: no rule, whatever the defaults say.
    pub(super) fn dates(&self, key: &str) -> Result<Option<String>, String> {
        let Some(items) = self.days(key)? else { return Ok(None) };
        let dates = |item: &String| match self.calendars.get(item) {
            Some(dates) => Ok(format!("{item}: {dates}")),
            None if is_dates(item) => Ok(item.clone()),
            None => {
                let expected = "the name of a [[calendar]] of this file, or dates such as 2027-12-24..2027-12-26";
                Err(format!("{key}: expected {expected}, found {:?}", truncated(item)))
            }
        };
        let dates = items.iter().map(dates).collect::<Result<Vec<_>, _>>()?;
        match dates.is_empty() {
            true if key == "except" => Ok(None),
            true => Err(format!("{key}: expected calendars or dates, found none")),
            false => Ok(Some(dates.join("; "))),
        }
    }

    /// Returns a list of strings and TOML dates.
    pub(super) fn days(&self, key: &str) -> Result<Option<Vec<String>>, String> {
        let day = |value: &Value| match value {
            Value::Datetime(at) if at.time.is_none() => Some(at.to_string()),
            value => value.as_str().map(str::to_owned),
        };
        self.items(key, "an array of strings", day)
    }

    fn codes(&self, key: &str) -> Result<Vec<i32>, String> {
        let code = |value: &Value| value.as_integer().and_then(|code| i32::try_from(code).ok());
        Ok(self.items(key, "an array of exit codes", code)?.unwrap_or_default())
    }

    pub(super) fn list(&self, key: &str) -> Result<Option<Vec<String>>, String> {
        self.items(key, "an array of strings", |value| value.as_str().map(str::to_owned))
    }

    fn items<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, String> {
        let items = match self.get(key) {
            None => return Ok(None),
            Some(Value::Array(items)) => items,
            Some(other) => return Err(wrong_value(key, expected, other)),
        };
        let item = |item| read(item).ok_or_else(|| format!("{} in it", wrong_value(key, expected, item)));
        items.iter().map(item).collect::<Result<_, _>>().map(Some)
    }
}

/// Whether a text can be a date or a range of dates. Whether it is one is checked with the task.
pub(super) fn is_dates(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(|c| c.is_ascii_digit() || "-. ".contains(c))
}

/// Converts TOML to JSON; a date and time becomes its text. Infinity and NaN are refused.
pub(super) fn json_of(value: &Value) -> Result<serde_json::Value, String> {
    Ok(match value {
        Value::String(text) => json!(text),
        Value::Integer(number) => json!(number),
        Value::Float(number) if !number.is_finite() => {
            return Err(format!("payload: expected a value that JSON can represent, found {number}"));
        }
        Value::Float(number) => json!(number),
        Value::Boolean(truth) => json!(truth),
        Value::Datetime(at) => json!(at.to_string()),
        Value::Array(items) => items.iter().map(json_of).collect::<Result<_, _>>()?,
        Value::Table(table) => {
            table.iter().map(|(key, value)| Ok((key.clone(), json_of(value)?))).collect::<Result<_, String>>()?
        }
    })
}

/// The error for a value of the wrong type.
pub(crate) fn wrong_value(key: &str, expected: &str, found: &Value) -> String {
    let found = match found {
        Value::String(text) => format!("{:?}", text.chars().take(80).collect::<String>()),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => found.to_string(),
        Value::Array(_) => "an array".to_owned(),
        Value::Table(_) => "a table".to_owned(),
    };
    format!("{key}: expected {expected}, found {found}")
}

/// Refuses an unknown key, and suggests a similar one.
pub(super) fn check_keys(table: &Table, place: &str, keys: &[&[&str]]) -> Result<(), String> {
    let keys = || keys.iter().flat_map(|keys| keys.iter());
    let Some(unknown) = table.keys().find(|key| !keys().any(|known| known == key)) else { return Ok(()) };
    // No valid key is as long, and the comparison takes quadratic time.
    let unknown: String = unknown.chars().take(MAX_KEY).collect();
    let hint = match nearest(&unknown, keys().copied()) {
        Some(known) => format!("did you mean {known:?}?"),
        None => format!("expected one of {}", keys().copied().collect::<Vec<_>>().join(", ")),
    };
    Err(format!("{place}unknown key {unknown:?}: {hint}"))
}
