//! The SQLite store: one guarded statement for each transition of a run, its row count checked.

mod actions;
pub(crate) mod add;
mod alarms;
mod apply;
pub(crate) mod attempts;
pub(crate) mod blocked;
mod bulk;
pub(crate) mod census;
pub(crate) mod claim;
pub(crate) mod clock_mark;
pub(crate) mod connection;
#[cfg(test)]
mod cost;
pub(crate) mod damage;
pub(crate) mod delays;
pub(crate) mod due;
pub(crate) mod effects;
pub(crate) mod fault;
pub(crate) mod file;
pub(crate) mod finish;
pub(crate) mod first_claim;
mod first_look;
pub(crate) mod followers;
pub(crate) mod foreign_plans;
pub(crate) mod health;
pub(crate) mod history;
pub(crate) mod ids;
pub(crate) mod invariants;
mod limit_requests;
mod limited;
pub(crate) mod limits;
pub(crate) mod manual;
pub(crate) mod marks;
pub(crate) mod matching;
pub(crate) mod memory;
pub(crate) mod migration;
pub(crate) mod once;
pub(crate) mod open;
pub(crate) mod own_triggers;
pub(crate) mod owners;
mod pass_over;
pub(crate) mod prune;
#[cfg(feature = "page")]
pub(crate) mod queue;
mod recorded;
pub(crate) mod registration;
pub(crate) mod replan;
mod requests;
pub(crate) mod restore;
pub(crate) mod row;
#[cfg(feature = "page")]
mod run_view;
pub(crate) mod runs;
#[cfg(feature = "page")]
mod schedulers;
pub(crate) mod schema;
pub(crate) mod settle;
pub(crate) mod sql;
mod starts;
pub(crate) mod task_changes;
#[cfg(feature = "page")]
pub(crate) mod task_pages;
pub(crate) mod tasks;
#[cfg(feature = "page")]
pub(crate) mod timeline;
pub(crate) mod turn;
mod wal;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::action::{Acted, Action, By};
use crate::model::alarm::{AlarmKind, AlarmMessage, AlarmPace, AlarmTurn, Look};
use crate::model::bulk::{BulkPass, BulkReport};
use crate::model::event::Event;
use crate::model::filter::Selection;
#[cfg(feature = "page")]
use crate::model::health::Queue;
use crate::model::health::{Health, Limits};
use crate::model::limit::{Limit, LimitOn, LimitState};
use crate::model::progress_meter::Progress;
use crate::model::recorded::{EventFilter, RecordedEvent};
use crate::model::report::{Finding, Pass, Pruned, Recent, Status};
use crate::model::request::{Added, AppliedParts, Cancelled, Change, Declaration, Existing, Runs, Triggered};
use crate::model::run::{Attempt, Claim, Effect, Follower, Run, RunFilter};
use crate::model::settings::Retention;
use crate::model::task::{Definition, Task};
#[cfg(feature = "page")]
use crate::model::task_pages::{RunPage, RunQuery, TaskPage, TaskQuery};
#[cfg(feature = "page")]
use crate::model::views::{RunView, SchedulerView, Timeline, Window};
use crate::store::fault::Fault;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::turn_io::{Begun, ClockEvent, Done, KnownOwners, Registered, Registration, Work};
use crate::store::{FileStore, Store};

/// Implements methods by functions whose first argument is the store.
macro_rules! by_functions {
    ($(fn $method:ident($($argument:ident: $type:ty),*) -> $answer:ty = $function:path;)+) => { $(
        fn $method(&mut self, $($argument: $type),*) -> $answer {
            $function(self, $($argument),*)
        }
    )+ };
}

impl Store for SqliteStore {
    fn as_file(&mut self) -> Option<&mut dyn FileStore> {
        Some(self)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn error(&self, fault: Fault, doing: &'static str) -> Error {
        SqliteStore::error(self, fault, doing)
    }

    fn set_busy_timeout(&mut self, timeout: Duration) -> Result<()> {
        SqliteStore::set_busy_timeout(self, timeout)
    }

    fn transactions(&self) -> u64 {
        SqliteStore::transactions(self)
    }

    fn data_version(&self) -> Result<i64> {
        SqliteStore::data_version(self)
    }

    fn pause(&mut self, task: &str, now: Timestamp) -> Result<()> {
        self.write("pause a task", |tx, schedules| task_changes::pause(tx, schedules, task, None, now))
    }

    fn resume(&mut self, task: &str, now: Timestamp) -> Result<()> {
        self.write("resume a task", |tx, schedules| task_changes::resume(tx, schedules, task, now))
    }

    fn remove(&mut self, task: &str, now: Timestamp) -> Result<bool> {
        self.write("remove a task", |tx, _| tasks::remove(tx, task, now))
    }

    fn names(&mut self) -> Result<Vec<String>> {
        self.read("list names", |tx, _| Ok(tasks::names(tx, history::MAX_LISTED)?))
    }

    fn managed_by(&mut self, source: &str) -> Result<Vec<String>> {
        self.read("list names", |tx, _| Ok(tasks::managed_by(tx, source)?))
    }

    fn marked_runs(&mut self, task: i64, most: usize) -> Result<Option<usize>> {
        self.read("count runs", |tx, _| Ok(marks::count(tx, task, most)?))
    }

    fn next_start(&mut self, task: i64) -> Result<Option<Timestamp>> {
        self.read("look for starts", |tx, _| Ok(starts::closed_until(tx, &starts::Subject::task(task))?))
    }

    fn run(&mut self, run: i64) -> Result<Option<Run>> {
        self.read("look a run up", |tx, _| Ok(history::run(tx, run)?))
    }

    fn attempts(&mut self, run: i64) -> Result<Vec<Attempt>> {
        self.read("read the attempts", |tx, _| Ok(history::attempts(tx, run)?))
    }

    #[cfg(feature = "page")]
    fn run_view(&mut self, run: i64, now: Timestamp) -> Result<Option<RunView>> {
        run_view::run_view(self, run, now)
    }

    #[cfg(feature = "page")]
    fn timeline(&mut self, window: &Window, now: Timestamp) -> Result<Timeline> {
        timeline::timeline(self, window, now, None)
    }

    #[cfg(feature = "page")]
    fn schedulers(&mut self) -> Result<Vec<SchedulerView>> {
        schedulers::schedulers(self)
    }

    #[cfg(feature = "page")]
    fn task_page(&mut self, query: &TaskQuery) -> Result<TaskPage> {
        task_pages::tasks(self, query)
    }

    #[cfg(feature = "page")]
    fn run_page(&mut self, query: &RunQuery) -> Result<RunPage> {
        task_pages::runs(self, query)
    }

    fn act(&mut self, by: By<'_>, action: &Action, now: Timestamp) -> Result<Acted> {
        actions::act(self, by, action, now)
    }

    #[cfg(feature = "page")]
    fn refuse_writes(&mut self) -> Result<()> {
        SqliteStore::refuse_writes(self)
    }

    #[cfg(feature = "page")]
    fn random_token(&mut self) -> Result<String> {
        SqliteStore::random_token(self)
    }

    #[cfg(feature = "page")]
    fn queue(&mut self, now: Timestamp) -> Result<Queue> {
        queue::queue(self, now)
    }

    by_functions! {
        // Requests of clients.
        fn add(task: Definition, existing: Existing, now: Timestamp) -> Result<Added> = add::add;
        fn add_all(tasks: Vec<(Definition, Existing)>, now: Timestamp) -> Result<Vec<Added>> = add::add_all;
        fn apply(declared: Declaration<'_>, now: Timestamp) -> Result<AppliedParts> = apply::apply;
        fn trigger(task: &str, payload: Option<&str>, key: Option<&str>, now: Timestamp) -> Result<Triggered>
            = requests::trigger;
        fn retry(run: i64, now: Timestamp) -> Result<i64> = requests::retry;
        fn cancel(run: i64, now: Timestamp) -> Result<Cancelled> = requests::cancel;
        fn declare_gone(runs: Runs<'_>, now: Timestamp) -> Result<usize> = requests::declare_gone;
        fn change_matching(selection: &Selection, pass: &mut BulkPass, report: &mut BulkReport, now: Timestamp)
            -> Result<Vec<Event>> = matching::change;
        fn count_matching(selection: &Selection, pass: &mut BulkPass, report: &mut BulkReport) -> Result<()>
            = matching::count;
        fn set_limit(limit: &Limit) -> Result<Change> = limit_requests::set;
        fn remove_limit(on: &LimitOn) -> Result<bool> = limit_requests::remove;
        fn limits(now: Timestamp) -> Result<Vec<LimitState>> = limit_requests::list;
        fn task(name: &str) -> Result<Option<Task>> = history::task;
        fn actors(names: &BTreeSet<String>) -> Result<BTreeMap<String, String>> = actions::actors;
        fn tasks() -> Result<Vec<Task>> = history::tasks;
        fn runs(filter: &RunFilter) -> Result<Vec<Run>> = history::runs;
        fn effects(run: i64, now: Timestamp) -> Result<Vec<Effect>> = effects::of_run;
        fn followers(run: i64) -> Result<Vec<Follower>> = followers::of_run;
        fn recent(limit: usize) -> Result<BTreeMap<i64, Vec<Recent>>> = history::recent;
        fn is_idle(handlers: &BTreeSet<String>, now: Timestamp) -> Result<bool> = census::is_idle;
        fn status(now: Timestamp) -> Result<Status> = census::status;
        fn health(limits: &Limits, now: Timestamp) -> Result<Health> = health::health;
        fn doctor() -> Result<Vec<Finding>> = health::doctor;
        fn prune(keep: &Retention, pass: &mut Pass, pruned: &mut Pruned, now: Timestamp) -> Result<i64> = prune::prune;
        fn would_prune(keep: &Retention, pass: &mut Pass, pruned: &mut Pruned, now: Timestamp) -> Result<i64>
            = prune::would_prune;
        fn events(filter: &EventFilter) -> Result<Vec<RecordedEvent>> = recorded::events;
        fn update_alarms(look: &Look<'_>, now: Timestamp) -> Result<bool> = alarms::update;
        fn claim_alarm(channel: &str, token: &str, pace: &AlarmPace, refused: Option<AlarmKind>, now: Timestamp) -> Result<AlarmTurn> = alarms::claim;
        fn settle_alarm(message: &AlarmMessage, delivered: bool, now: Timestamp) -> Result<bool> = alarms::settle;

        // Turns of a scheduler.
        fn known_owners() -> Result<KnownOwners> = registration::known_owners;
        fn register(new: &Registration, random: fastrand::Rng, now: Timestamp) -> Result<Registered>
            = registration::register;
        fn counted_beyond(now: Timestamp) -> Result<Option<Timestamp>> = registration::counted_beyond;
        fn turn(work: &Work<'_>) -> Result<Done, Fault> = turn::turn;
        fn look(owner: &str, handlers: &BTreeSet<String>, since: Option<i64>, now: Timestamp) -> Result<Option<Done>>
            = turn::look;
        fn claimed_by(owner: &str) -> Result<HashSet<i64>> = registration::claimed_by;
        fn record_clock_events(events: &[ClockEvent]) -> Result<()> = registration::record_clock_events;
        fn stop(owner: &str, now: Timestamp) -> Result<()> = registration::stop;

        // Effects and outcomes of workers.
        fn begin_effect(owner: &str, claim: &Claim, key: &str, now: Timestamp) -> Result<Begun> = effects::begin;
        fn check_claim(owner: &str, claim: &Claim) -> Result<()> = effects::check_claim;
        fn record_effect(claim: &Claim, key: &str, value: &str, now: Timestamp) -> Result<Option<String>>
            = effects::record;
        fn undo_effect(owner: &str, claim: &Claim, key: &str) -> Result<()> = effects::undo;
    }
}

impl FileStore for SqliteStore {
    fn path(&self) -> &Path {
        SqliteStore::path(self)
    }

    fn sizes(&self) -> (u64, u64) {
        SqliteStore::sizes(self)
    }

    fn check_in_place(&self) -> Result<(), Fault> {
        SqliteStore::check_in_place(self)
    }

    fn copy_into(&mut self, copy: &Path, progress: &Progress) -> Result<()> {
        SqliteStore::copy_into(self, copy, progress)
    }

    fn disown(&mut self, original: &Path, now: Timestamp) -> Result<usize> {
        self.write("make a backup", |tx, _| {
            owners::record(tx, now, "copied", None, None, Some(&original.display().to_string()))?;
            damage::forget_stamp(tx)?;
            alarms::forget(tx)?;
            Ok(owners::disown(tx, now)?)
        })
    }

    fn check_writable(&self) -> Result<(), Fault> {
        SqliteStore::check_writable(self)
    }

    fn shrink_log(&self) -> Result<()> {
        SqliteStore::shrink_log(self)
    }

    fn set_log_aside(&self) {
        SqliteStore::set_log_aside(self);
    }
}
