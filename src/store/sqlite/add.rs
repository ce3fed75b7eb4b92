//! Adds tasks. A name is an idempotency key: a task whose name is taken is compared with the stored one.
//!
//! Where the last task was new, a single task is added by one statement, which is a transaction of its own. Measured with its
//! commit, that takes a fifth fewer instructions than a transaction that looks first, and writes one page less to the log. A task in a
//! zone whose rules may change is not: the zone data of the schedulers is looked at.

use std::path::Path;

use rusqlite::{CachedStatement, Connection, Transaction, params_from_iter};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::host::platform;
use crate::model::column::{Column, ColumnValue};
use crate::model::json_value::{is_stored_as, same_value};
use crate::model::request::{Added, Change, Existing};
use crate::model::task::{Definition, Task, TaskStatus};
use crate::model::task_columns::task_columns;
use crate::rules::resolve::{self, Next, Plan};
use crate::schedule::{Schedule, Schedules, has_fixed_meaning};
use crate::store::fault::Fault;
use crate::store::sqlite::bulk::{BULK, Bulk};
use crate::store::sqlite::connection::{self, SqliteStore};
use crate::store::sqlite::ids::Ids;
use crate::store::sqlite::tasks::{self, stored};
use crate::store::sqlite::{followers, foreign_plans, owners, task_changes};

/// Adds a task, or treats the task of its name as `existing` says.
pub(super) fn add(store: &mut SqliteStore, task: Definition, existing: Existing, now: Timestamp) -> Result<Added> {
    let doing = "add a task";
    // A caller that adds the same tasks at each start is served better by a look first.
    if store.adds_new() && existing != Existing::Replace && !task.leads_on() && has_fixed_meaning(&task.time_zone) {
        let checked = store.check_writable();
        let added = checked.and_then(|()| add_new(store, &task, now)).map_err(|fault| store.error(fault, doing))?;
        if let Some(added) = added {
            return Ok(added);
        }
    }
    store.added(false);
    let added = store.write(doing, |tx, schedules| put_one(tx, schedules, task, existing, now))?;
    store.added(added.change == Change::Created);
    Ok(added)
}

/// Adds tasks in one transaction: all of them, or none.
pub(super) fn add_all(
    store: &mut SqliteStore,
    tasks: Vec<(Definition, Existing)>,
    now: Timestamp,
) -> Result<Vec<Added>> {
    store.write("add tasks", |tx, schedules| {
        let mut adder = Adder::new(tx)?;
        if tasks.len() >= BULK {
            adder.bulk = Bulk::begin(tx)?;
        }
        let leading: Vec<Definition> =
            tasks.iter().map(|(task, _)| task).filter(|task| task.leads_on()).cloned().collect();
        let put = |(task, existing)| put(tx, &mut adder, schedules, task, existing, now);
        let added = tasks.into_iter().map(put).collect::<Result<_, Fault>>()?;
        followers::refuse_circles(tx, &leading)?;
        Ok(added)
    })
}

/// Adds a task inside a transaction of the application, which must be on `file`. If it cannot be added, the transaction is as it
/// was before.
pub(crate) fn add_in(
    tx: &Transaction<'_>,
    file: &Path,
    task: Definition,
    existing: Existing,
    now: Timestamp,
) -> Result<Added> {
    let refused = |reason| Error::Refused { request: format!("add task {:?} in a transaction", task.name), reason };
    let found = tx.path().unwrap_or_default();
    if !is_same(Path::new(found), file) {
        let found = if found.is_empty() { "a database in memory" } else { found };
        let file = file.display();
        return Err(refused(format!(
            "it is on {found}, and the tasks are in {file}: begin it on a connection to that file"
        )));
    }
    if tx.is_autocommit() {
        return Err(refused("it has ended".to_owned()));
    }
    if now < Timestamp::MIN {
        return Err(refused(format!("the clock of this machine shows {now}: set it first")));
    }
    connection::within(tx, file, "add a task in a transaction", |schedules| put_one(tx, schedules, task, existing, now))
}

/// Adds a task, unless it leads back to itself.
fn put_one(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    task: Definition,
    existing: Existing,
    now: Timestamp,
) -> Result<Added, Fault> {
    let leading = task.leads_on().then(|| task.clone());
    let added = put(tx, &mut Adder::new(tx)?, schedules, task, existing, now)?;
    followers::refuse_circles(tx, &leading)?;
    Ok(added)
}

/// Adds a task to tables that hold no other task than the one of its name, if there is one.
#[cfg(feature = "postgres")]
pub(crate) fn put_alone(
    tx: &Transaction<'_>,
    task: Definition,
    existing: Existing,
    now: Timestamp,
) -> Result<Added, Fault> {
    put(tx, &mut Adder::new(tx)?, &mut Schedules::default(), task, existing, now)
}

/// Reports whether two paths name one file.
fn is_same(one: &Path, other: &Path) -> bool {
    match (platform::identity_at(one), platform::identity_at(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// Adds a task by one statement. `None`: something refuses it, and a transaction must find out what.
fn add_new(store: &mut SqliteStore, task: &Definition, now: Timestamp) -> Result<Option<Added>, Fault> {
    let added = store.write_alone(|connection, schedules, ids, version| {
        let schedule = task.check(now, schedules)?;
        add_alone(connection, ids, version, task, schedule, now)
    });
    match added {
        Ok(next_run) => Ok(Some(Added { name: task.name.clone(), change: Change::Created, next_run })),
        Err(fault) if fault.is_about_the_item() || fault.is_about_the_tables() || fault.is_about_room() => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Adds a task, or treats the task of its name as `existing` says.
fn put(
    tx: &Transaction<'_>,
    adder: &mut Adder<'_>,
    schedules: &mut Schedules,
    task: Definition,
    existing: Existing,
    now: Timestamp,
) -> Result<Added, Fault> {
    if !adder.is_taken(&task.name)? {
        return create(adder, schedules, task, now);
    }
    // A change of a stored task relies on the triggers.
    adder.bulk = None;
    let old = tasks::expect(tx, &task.name)?;
    compare(tx, schedules, &old, task, existing, now).map(|(added, _)| added)
}

/// Adds a task whose name is free.
pub(super) fn create(
    adder: &mut Adder<'_>,
    schedules: &mut Schedules,
    task: Definition,
    now: Timestamp,
) -> Result<Added, Fault> {
    let schedule = task.check(now, schedules)?;
    let next_run = adder.add(&task, schedule, now)?;
    let next_run = if foreign_plans::leave(adder.tx, &task, now)? { None } else { next_run };
    Ok(Added { name: task.name, change: Change::Created, next_run })
}

/// Each field in which two definitions differ: its column name, the stored value, the given value.
pub(super) type Fields = Vec<(&'static str, String, String)>;

/// Compares a definition with the stored task of its name, and replaces that if `existing` says so. Returns the fields that
/// differed.
pub(super) fn compare(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    old: &Task,
    task: Definition,
    existing: Existing,
    now: Timestamp,
) -> Result<(Added, Fields), Fault> {
    let unchanged = |next_run| Added { name: old.name().to_owned(), change: Change::Unchanged, next_run };
    // A definition that was accepted before, and that no other program has changed since, need not be parsed again: that is most
    // of the cost of applying a long manifest once more.
    if old.planned && old.status != TaskStatus::Invalid && old.definition == task {
        return Ok((unchanged(old.next_run), Vec::new()));
    }
    let schedule = task.check(old.created_at, schedules)?;
    let is_of_its_kind = old.status != TaskStatus::Invalid && old.definition.schedule_type == task.schedule_type;
    let same = (existing == Existing::RefuseOtherWork && is_of_its_kind)
        || old.definition.check(old.created_at, schedules).is_ok_and(|stored| stored == schedule);
    // To replace one is to have it stored, in its form too: a handler may read 5 and not 5.0.
    let same_payload = if existing == Existing::Replace { is_stored_as } else { same_value };
    let fields = old.definition.differences(&task, same, same_payload);
    if fields.is_empty() && old.status == TaskStatus::Invalid {
        return examine_again(tx, schedules, old, now);
    }
    match (fields.first(), existing) {
        (None, _) | (Some(_), Existing::Keep) => Ok((unchanged(old.next_run), Vec::new())),
        (Some((field, stored, given)), Existing::Refuse | Existing::RefuseOtherWork) => {
            let (stored, given) = (stored.clone(), given.clone());
            Err(Error::TaskDiffers { name: task.name, field, stored, given }.into())
        }
        (Some((field, stored, given)), Existing::Replace) => {
            task_changes::change(tx, schedules, old, &task, &schedule, now)?;
            let detail = format!("{field}: {stored:?} became {given:?}");
            owners::record(tx, now, "edited", Some(old.id), None, Some(&detail))?;
            let next_run = tasks::expect(tx, &task.name)?.next_run;
            Ok((Added { name: task.name, change: Change::Replaced, next_run }, fields))
        }
    }
}

/// Examines an invalid task again that is as given: its row or the zone data may have been repaired.
fn examine_again(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    old: &Task,
    now: Timestamp,
) -> Result<(Added, Fields), Fault> {
    task_changes::repair(tx, schedules, "add", old, now)?;
    let task = tasks::expect(tx, old.name())?;
    let fields = vec![("status", old.status.to_string(), task.status.to_string())];
    Ok((Added { name: task.definition.name, change: Change::Replaced, next_run: task.next_run }, fields))
}

const IS_TAKEN: &str = "SELECT 1 FROM scheduled_tasks WHERE name = ?1";

macro_rules! add {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $default:expr =>
        [$($(#[$attribute:meta])* $column:ident: $of:ty $(= .$part:ident)?),+];)+) => {
        concat!(
            "INSERT INTO scheduled_tasks (id, planned, status, next_run, active_since, created_at, updated_at",
            $($(", ", stringify!($column),)+)+
            ") VALUES (:id, iif(:version IS NULL OR :version = (SELECT value FROM scheduler_meta WHERE key = 'schema_version'),
                                1, json('')), :status, :next, :now, :now, :now",
            $($(", :", stringify!($column),)+)+ ")"
        )
    };
}

/// `:id` is NULL where SQLite chooses one. `:version` is NULL where the version of the tables has been checked. Otherwise the
/// statement fails on tables of another version, whatever they would accept: `json('')` is an error.
const ADD: &str = task_columns!(add);

/// The statements that add tasks, prepared once for a transaction.
pub(super) struct Adder<'a> {
    tx: &'a Transaction<'a>,
    is_taken: CachedStatement<'a>,
    add: CachedStatement<'a>,
    bulk: Option<Bulk<'a>>,
}

impl<'a> Adder<'a> {
    pub(super) fn new(tx: &'a Transaction<'a>) -> rusqlite::Result<Self> {
        Ok(Adder { tx, is_taken: tx.prepare_cached(IS_TAKEN)?, add: tx.prepare_cached(ADD)?, bulk: None })
    }

    /// Reports whether a task of this name exists.
    fn is_taken(&mut self, name: &str) -> rusqlite::Result<bool> {
        self.is_taken.exists([name])
    }

    /// Adds a task that has been checked, and whose name is free. A schedule without an occurrence is refused.
    fn add(&mut self, task: &Definition, schedule: Schedule, now: Timestamp) -> Result<Option<Timestamp>, Fault> {
        insert(&mut self.add, (None, None), task, schedule, now)
    }
}

/// Adds a task that has been checked, by one statement that is a transaction of its own. Fails if its name is taken, or if the
/// tables are of another version.
fn add_alone(
    connection: &Connection,
    ids: &mut Ids,
    version: i64,
    task: &Definition,
    schedule: Schedule,
    now: Timestamp,
) -> Result<Option<Timestamp>, Fault> {
    let id = ids.next(connection)?;
    let added = insert(&mut connection.prepare_cached(ADD)?, (id, Some(version)), task, schedule, now);
    ids.note(&added);
    added
}

/// Returns the columns `status` and `next_run` of a new task that has been checked. Refuses a schedule without an occurrence.
pub(crate) fn planned(
    task: &Definition,
    schedule: Schedule,
    now: Timestamp,
) -> Result<(TaskStatus, Option<Timestamp>)> {
    let plan = Plan::new(task, schedule, now, None, now);
    match resolve::first(&plan, false) {
        Next::Never => Err(Error::never(task.schedule_value.clone())),
        next => {
            let (status, next_run) = stored(next, TaskStatus::Active);
            next_run.map_or(Ok(()), |first| resolve::check_any_is_open(&plan, first))?;
            Ok((status, next_run))
        }
    }
}

fn insert(
    add: &mut CachedStatement<'_>,
    (id, version): (Option<i64>, Option<i64>),
    task: &Definition,
    schedule: Schedule,
    now: Timestamp,
) -> Result<Option<Timestamp>, Fault> {
    let (status, next_run) = planned(task, schedule, now)?;
    // By position: looking the names up costs a seventh of adding a task.
    let number = |number: Option<i64>| number.map_or(ColumnValue::Null, ColumnValue::Number);
    let given = [number(id), number(version), ColumnValue::Text(status.as_str()), next_run.value(), now.value()];
    let rows = add.execute(params_from_iter(given.into_iter().chain(task.values())))?;
    if rows == 0 {
        let reason = "a trigger on scheduled_tasks ignores it, with RAISE(IGNORE)".to_owned();
        return Err(Error::Refused { request: format!("add task {:?}", task.name), reason }.into());
    }
    Ok(next_run)
}
