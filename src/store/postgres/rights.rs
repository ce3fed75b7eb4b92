//! What the role of a session may do with the tables: a right that it lacks is named with the statement that grants it.

use crate::error::{Error, Result as Answer};
use crate::store::fault::{Class, Fault};
use crate::store::postgres::server::Server;
use crate::store::postgres::tables::TABLES;
use crate::store::postgres::{fault, session};
use crate::store::sqlite::file::OTHER_TABLES;

/// The rights on each table, and on the sequence of each numbered one, that schedulers need. docs/postgres.md grants the same.
pub(crate) const ON_TABLES: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];
pub(crate) const ON_SEQUENCES: [&str; 3] = ["SELECT", "USAGE", "UPDATE"];

/// `$1` tables, `$2` rights on them, `$3` rights on their sequences, `$4` the schema. What does not exist, or is no sequence, is not
/// looked at.
const LACKING: &str = "
    WITH needed (kind, name, privilege, place) AS (
        SELECT 'SCHEMA ', '', 'USAGE', 0::bigint
         UNION ALL
        SELECT '', t, p.privilege, p.place FROM unnest($1::text[]) t CROSS JOIN unnest($2::text[]) WITH ORDINALITY p (privilege, place)
         UNION ALL
        SELECT 'SEQUENCE ', t || '_id_seq', p.privilege, p.place
          FROM unnest($1::text[]) t CROSS JOIN unnest($3::text[]) WITH ORDINALITY p (privilege, place)),
    looked AS (
        SELECT n.*, CASE WHEN n.name = '' THEN format('%I', s.nspname) ELSE format('%I.%I', s.nspname, n.name) END AS object,
               CASE n.kind WHEN 'SCHEMA ' THEN has_schema_privilege(s.oid, n.privilege)
                           WHEN 'SEQUENCE ' THEN has_sequence_privilege(c.oid, n.privilege)
                           ELSE has_table_privilege(c.oid, n.privilege) END AS is_held
          FROM needed n JOIN pg_namespace s ON s.nspname = $4::text
          LEFT JOIN pg_class c ON c.relnamespace = s.oid AND c.relname = n.name
                               AND (n.kind <> 'SEQUENCE ' OR c.relkind = 'S'))
    SELECT CASE WHEN name = '' THEN 'the schema' ELSE name END, string_agg(privilege, ', ' ORDER BY place),
           format('GRANT %s ON %s%s TO %I', string_agg(privilege, ', ' ORDER BY place), kind, object, current_user)
      FROM looked WHERE NOT is_held GROUP BY kind, name, object ORDER BY kind = 'SCHEMA ' DESC, kind, name";

/// Rights on one object that the role lacks.
#[derive(Clone, Debug)]
pub(crate) struct Lacking {
    /// `the schema`, or the name of a table or a sequence.
    pub(crate) object: String,
    /// As in `INSERT, UPDATE`.
    pub(crate) rights: String,
    pub(crate) grant: String,
}

/// Returns what the role lacks of the rights that a scheduler needs.
pub(crate) fn lacking(server: &mut Server) -> Result<Vec<Lacking>, Fault> {
    lacking_of(server, &TABLES, &ON_TABLES, &ON_SEQUENCES)
}

fn lacking_of(
    server: &mut Server,
    tables: &[&str],
    on_tables: &[&str],
    on_sequences: &[&str],
) -> Result<Vec<Lacking>, Fault> {
    let schema = server.address().schema().to_owned();
    let rows = server.query(LACKING, &[&tables, &on_tables, &on_sequences, &schema])?;
    let lacking =
        |row: &postgres::Row| Ok(Lacking { object: row.try_get(0)?, rights: row.try_get(1)?, grant: row.try_get(2)? });
    rows.iter().map(lacking).collect()
}

/// Refuses a role that lacks a right that a scheduler needs.
pub(crate) fn require(server: &mut Server) -> Result<(), Fault> {
    let lacking = lacking(server)?;
    if lacking.is_empty() { Ok(()) } else { Err(refusal(server, &lacking)) }
}

/// Refuses a role that may not use the schema: to such a role its tables do not seem to exist. Also one that may not read the marks.
/// `advice`: what else may end that.
pub(crate) fn require_to_look(server: &mut Server, advice: &str) -> Result<(), Fault> {
    let lacking = lacking_of(server, &["scheduler_meta"], &["SELECT"], &[])?;
    if lacking.is_empty() {
        return Ok(());
    }
    Err(session::unusable(server.address(), reason(&lacking) + advice))
}

fn refusal(server: &Server, lacking: &[Lacking]) -> Fault {
    session::unusable(server.address(), reason(lacking))
}

fn reason(lacking: &[Lacking]) -> String {
    let rights: Vec<String> = lacking.iter().map(|one| format!("{} on {}", one.rights, one.object)).collect();
    let grants: Vec<&str> = lacking.iter().map(|one| one.grant.as_str()).collect();
    format!("its role lacks {}: {}", rights.join(", "), grants.join("; "))
}

/// Returns a fault that a missing right has caused as one that names the right; another one as it is.
pub(crate) fn explain(server: &mut Server, fault: Fault) -> Fault {
    let Fault::Store(_, source) = &fault else { return fault };
    // Without a right on the schema, no table is found.
    let may_lack = fault::code(&fault).is_some_and(|code| matches!(code.code(), "42501" | "42P01" | "3F000"));
    if !may_lack {
        return fault;
    }
    let message = source.to_string();
    server.roll_back();
    let mut lacking = lacking(server).unwrap_or_default();
    lacking.retain(|one| one.object == "the schema" || message.contains(&format!(" {} ", one.object)));
    if lacking.is_empty() { fault } else { refusal(server, &lacking) }
}

/// As [`explain`], of the answer of an operation. Also names the server where its tables are gone.
pub(crate) fn explained<T>(server: &mut Server, answer: Answer<T>) -> Answer<T> {
    answer.map_err(|error| match error {
        Error::Store { doing, source } => explain(server, Fault::Store(Class::Other, source)).into_error(doing),
        // The tables in memory name the folder of the local files.
        Error::UnusableDatabase { path, reason } if path.is_absolute() => {
            let is_about_tables = reason.starts_with(OTHER_TABLES);
            let advice = if is_about_tables { "; DROP SCHEMA or ALTER TABLE may be the cause" } else { "" };
            session::unusable(server.address(), format!("{reason}{advice}")).into_error("use the database")
        }
        other => other,
    })
}
