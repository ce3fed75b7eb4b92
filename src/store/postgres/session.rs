//! The settings of a session, and what the server says of itself.

use std::time::Duration;

use postgres::config::TargetSessionAttrs;
use postgres::types::{ToSql, Type};
use postgres::{SimpleQueryMessage, SimpleQueryRow};

use crate::error::{Error, Unreachable};
use crate::store::fault::{Class, Fault};
use crate::store::postgres::address::Address;
use crate::store::postgres::client::Client;
use crate::store::sqlite::file::Durability;

/// A statement that waits longer for a lock gives up.
pub(crate) const LOCK: Duration = Duration::from_millis(4500);
/// As [`LOCK`], for the rows of other programs while the lock of the schema is held: others wait for that.
pub(crate) const ROW: Duration = Duration::from_millis(500);
/// The server ends a transaction whose client says nothing for this long.
const IDLE_IN_TRANSACTION: &str = "4000";
/// As [`IDLE_IN_TRANSACTION`], for a transaction that only reads. No scheduler waits for it. Many rows take a client a while.
pub(crate) const IDLE_IN_READING: &str = "60000";

/// The oldest version whose functions and settings duly uses.
const OLDEST: i64 = 140_000;

/// Settings that a platform or a version may lack.
const DESIRED: [[&str; 2]; 10] = [
    // Frees the locks of a client that was killed during a statement.
    ["client_connection_check_interval", "1000"],
    ["tcp_keepalives_idle", "3"],
    ["tcp_keepalives_interval", "1"],
    ["tcp_keepalives_count", "3"],
    ["tcp_user_timeout", "6000"],
    ["jit", "off"],
    // Statements read by index, whatever the values are, and to plan one takes longer than to run it.
    ["plan_cache_mode", "force_generic_plan"],
    // Rows that were locked or read in the same transaction are written where they are.
    ["enable_tidscan", "on"],
    ["idle_session_timeout", "0"],
    ["standard_conforming_strings", "on"],
];

/// Which history of a database a server continues. A promoted standby begins a new one, which may lack the last commits of the old.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Timeline {
    /// The identifier of the database system: the same for a server and its standbys.
    pub(crate) system: String,
    pub(crate) id: String,
}

impl std::fmt::Display for Timeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "timeline {} of system {}", self.id.trim_start_matches('0'), self.system)
    }
}

/// What holds for one session.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) timeline: Timeline,
    /// Since when the server has its statistics. It forgets them in a crash, and with them which numbers of transactions it gave.
    pub(crate) since: String,
    /// The process of the server that serves the session.
    pub(crate) backend: i64,
    /// Whether another session may serve the next transaction, so that nothing but the transaction's own settings holds.
    pub(crate) pooled: bool,
    pub(crate) is_standby: bool,
}

/// What every session must have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) lock_timeout: Duration,
    pub(crate) durability: Durability,
    pub(crate) read_only: bool,
    /// Which servers may serve: any, or one that accepts writes.
    pub(crate) target: TargetSessionAttrs,
}

impl Terms {
    fn required(&self, address: &Address) -> Vec<(&'static str, String)> {
        vec![
            ("default_transaction_isolation", "read committed".to_owned()),
            ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION.to_owned()),
            ("lock_timeout", millis(self.lock_timeout)),
            ("search_path", format!("{}, pg_temp", address.quoted_schema())),
            ("statement_timeout", millis(address.statement_timeout())),
        ]
    }

    /// Returns the settings as statements for one transaction, for sessions that keep none.
    pub(crate) fn for_transaction(&self, address: &Address) -> String {
        let literal = |(name, value): (&str, String)| match name {
            "search_path" => format!("SET LOCAL search_path = {value}; "),
            _ => format!("SET LOCAL {name} = '{value}'; "),
        };
        let required = self.required(address).into_iter().filter(|(name, _)| !name.starts_with("default_"));
        required.map(literal).collect::<String>() + "SET LOCAL jit = off; SET LOCAL duly.store = 'on'"
    }

    /// Returns a statement that makes the settings hold for the session, if it is duly's own.
    fn for_session(&self, address: &Address) -> String {
        let required = self.required(address);
        let settings = required.iter().map(|(name, value)| [*name, value.as_str()]).chain(DESIRED);
        let mut settings: Vec<String> = settings.map(|[name, value]| format!("['{name}', '{value}']")).collect();
        if self.read_only {
            settings.push("['default_transaction_read_only', 'on']".to_owned());
        }
        format!(
            "DO $duly$ DECLARE setting text[]; BEGIN
                 IF current_setting('duly.store', true) IS DISTINCT FROM 'on' THEN RETURN; END IF;
                 FOREACH setting SLICE 1 IN ARRAY ARRAY[{}] LOOP
                     BEGIN PERFORM set_config(setting[1], setting[2], false); EXCEPTION WHEN OTHERS THEN NULL; END;
                 END LOOP;
             END $duly$",
            settings.join(", ")
        )
    }
}

pub(crate) fn millis(duration: Duration) -> String {
    duration.as_millis().clamp(1, i32::MAX.unsigned_abs().into()).to_string()
}

/// Sets and reads back the settings of a new session. Fails if the server cannot be used.
pub(crate) fn prepare(client: &mut Client, address: &Address, terms: &Terms) -> Result<Session, Fault> {
    let required = terms.required(address);
    let names: Vec<String> = required.iter().map(|(name, _)| format!("current_setting('{name}')")).collect();
    // Old versions lack a part of these functions: the version is looked at first.
    let version = client.simple_query(&format!("{}; SHOW server_version_num", terms.for_session(address)))?;
    let version: i64 = number(last(&version), 0);
    if version < OLDEST {
        let (major, minor) = (version / 10_000, version % 10_000);
        return Err(unusable(address, format!("the server is PostgreSQL {major}.{minor}: expected 14 or newer")));
    }
    let told = client.simple_query(&format!(
        "SELECT pg_backend_pid(), pg_is_in_recovery(), coalesce(current_setting('duly.store', true), ''),
             current_setting('synchronous_commit'), (SELECT system_identifier FROM pg_control_system()),
             CASE WHEN pg_is_in_recovery() THEN '' ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END,
             (SELECT extract(epoch FROM stats_reset)::text FROM pg_stat_bgwriter), {}",
        names.join(", ")
    ))?;
    let row = last(&told);
    let is_standby = text(row, 1) == "t";
    if is_standby && terms.target != TargetSessionAttrs::Any {
        // During a failover, another server or a later try may be the primary.
        let unreachable = Unreachable("the server is a standby: name the primary".to_owned());
        return Err(Fault::Store(Class::ReadOnly, unreachable.into()));
    }
    if text(row, 3) == "off" && terms.durability == Durability::Full {
        let reason = "synchronous_commit is off: a crash of the server could lose what it has confirmed, and a run that had \
                      already run would start again; ALTER ROLE .. SET synchronous_commit = on, or allow it by the durability";
        return Err(unusable(address, reason.to_owned()));
    }
    let pooled = text(row, 2) != "on";
    if !pooled {
        for (at, (name, expected)) in required.iter().enumerate() {
            let found = text(row, 7 + at);
            if plain(found) != *expected {
                let reason = format!("the server does not accept {name} = {expected}: it has {found:?}");
                return Err(unusable(address, reason));
            }
        }
    }
    let timeline = Timeline { system: text(row, 4).to_owned(), id: text(row, 5).to_owned() };
    Ok(Session { timeline, since: text(row, 6).to_owned(), backend: number(row, 0), pooled, is_standby })
}

/// Returns a duration as a number of milliseconds, as it was set: the server writes `4500ms` and `10s`.
fn plain(setting: &str) -> String {
    let units = [("ms", 1), ("s", 1000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let digits = setting.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let unit = units.iter().find(|(unit, _)| *unit == &setting[digits.len()..]);
    match (unit, digits.parse::<i64>()) {
        (Some((_, factor)), Ok(number)) => (number * factor).to_string(),
        _ => setting.to_owned(),
    }
}

pub(crate) fn unusable(address: &Address, reason: String) -> Fault {
    Fault::Request(Error::UnusableDatabase { path: address.to_string().into(), reason })
}

/// Returns the only row of the last statement of a message.
pub(crate) fn last(answer: &[SimpleQueryMessage]) -> Option<&SimpleQueryRow> {
    answer.iter().rev().find_map(|message| if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None })
}

pub(crate) fn text(row: Option<&SimpleQueryRow>, column: usize) -> &str {
    row.and_then(|row| row.try_get(column).ok().flatten()).unwrap_or_default()
}

pub(crate) fn number(row: Option<&SimpleQueryRow>, column: usize) -> i64 {
    text(row, column).parse().unwrap_or_default()
}

/// Returns the fault of a server that answers with something else than was asked.
pub(crate) fn odd(what: &str) -> Fault {
    Fault::Store(Class::Other, format!("the server answers {what}").into())
}

/// Returns the parameters with their types, for a statement that is not prepared. The types are those of duly's statements.
pub(crate) fn typed<'a>(params: &[&'a (dyn ToSql + Sync)]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    let types = [Type::INT8, Type::TEXT, Type::INT8_ARRAY, Type::TEXT_ARRAY, Type::BOOL, Type::INT4, Type::BYTEA];
    let fits = |param: &dyn ToSql, of: &Type| param.to_sql_checked(of, &mut Default::default()).is_ok();
    params
        .iter()
        .map(|param| (*param, types.iter().find(|of| fits(*param, of)).cloned().unwrap_or(Type::UNKNOWN)))
        .collect()
}
