//! The operations of the store: which rows each of them reads, and what the server answers itself.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "page")]
use crate::clock::Clock;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::action::{Acted, Action, By};
use crate::model::alarm::{AlarmKind, AlarmMessage, AlarmPace, AlarmTurn, Look};
use crate::model::bulk::{BulkAction, BulkPass, BulkReport};
use crate::model::event::Event;
use crate::model::filter::Selection;
#[cfg(feature = "page")]
use crate::model::health::Queue;
use crate::model::health::{Health, Limits};
use crate::model::limit::{Limit, LimitOn, LimitState};
use crate::model::recorded::{EventFilter, RecordedEvent};
use crate::model::report::{Finding, Pass, Pruned, Recent, Status};
use crate::model::request::{Added, AppliedParts, Cancelled, Change, Declaration, Existing, Runs, Triggered};
use crate::model::run::{Attempt, Claim, Effect, Follower, Run, RunFilter};
use crate::model::settings::Retention;
use crate::model::task::{Definition, Task};
#[cfg(feature = "page")]
use crate::model::task_pages::{After, RunPage, RunQuery, TaskPage, TaskQuery};
#[cfg(feature = "page")]
use crate::model::views::{RunView, SchedulerView, Timeline, Window};
use crate::store::fault::Fault;
use crate::store::postgres::add::leading;
use crate::store::postgres::counts::Listed;
use crate::store::postgres::owner_session::channel;
use crate::store::postgres::reach::Reach;
use crate::store::postgres::reach::client::Request;
#[cfg(feature = "page")]
use crate::store::postgres::reach::timeline::seems_full;
use crate::store::postgres::reach::view::View;
use crate::store::postgres::server::Access;
use crate::store::postgres::text::refuse;
use crate::store::postgres::{LISTED_AT_ONCE, PostgresStore, counts, examine, rights};
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::health::RECENT;
use crate::store::sqlite::history::MAX_LISTED;
#[cfg(feature = "page")]
use crate::store::sqlite::task_pages;
#[cfg(feature = "page")]
use crate::store::sqlite::timeline::{self, Older};
use crate::store::turn_io::{
    Begun, ClockEvent, Done, KnownOwners, MAX_ITEMS, MAX_OUTCOMES, Registered, Registration, Work,
};
use crate::store::{FileStore, OwnerSession, Store};

impl Store for PostgresStore {
    fn as_file(&mut self) -> Option<&mut dyn FileStore> {
        None
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn error(&self, fault: Fault, doing: &'static str) -> Error {
        fault.into_error(doing)
    }

    fn set_busy_timeout(&mut self, timeout: Duration) -> Result<()> {
        self.bench
            .lock()
            .rows
            .server
            .set_lock_timeout(timeout)
            .map_err(|fault| fault.into_error("set the lock timeout"))
    }

    fn transactions(&self) -> u64 {
        self.bench.lock().rows.server.transactions()
    }

    fn most_outcomes(&self) -> usize {
        if self.ends_beside { MAX_ITEMS } else { MAX_OUTCOMES }
    }

    fn data_version(&self) -> Result<i64> {
        self.bench.lock().rows.server.data_version().map_err(|fault| fault.into_error("look for changes"))
    }

    fn turn(&mut self, work: &Work<'_>) -> Result<Done, Fault> {
        self.begun_at = None;
        let done = self.take_turn(work).map_err(|fault| rights::explain(&mut self.bench.lock().rows.server, fault))?;
        self.owes_look = done.look_follows;
        Ok(Done { decided_at: self.begun_at, ..done })
    }

    fn look(
        &mut self,
        owner: &str,
        handlers: &BTreeSet<String>,
        since: Option<i64>,
        now: Timestamp,
    ) -> Result<Option<Done>> {
        let seen = self.look_around(owner, handlers, since, now)?;
        self.owes_look = false;
        Ok(seen)
    }

    #[cfg(feature = "page")]
    fn refuse_writes(&mut self) -> Result<()> {
        self.bench.lock().rows.server.refuse_writes().map_err(|fault| fault.into_error("make a connection read-only"))
    }

    #[cfg(feature = "page")]
    fn random_token(&mut self) -> Result<String> {
        Store::random_token(&mut self.memory)
    }

    fn apply(&mut self, mut declared: Declaration<'_>, now: Timestamp) -> Result<AppliedParts> {
        let mut left = Vec::new();
        let prunes = declared.how.prune && !declared.how.dry_run && !declared.undeclared.is_empty();
        let is_all = declared.tasks.len() == 0 && declared.limits.is_none();
        if prunes {
            let together = self.read_on_server("count runs", |server| {
                counts::removed_together(server, Listed::Names(&declared.undeclared))
            })?;
            // One with more runs than a transaction deletes goes alone.
            left = declared.undeclared.split_off(together.max(usize::from(is_all)));
        }
        let names = declared.tasks.names().chain(declared.undeclared.iter().map(String::as_str));
        let reach = Request::Apply {
            source: declared.source.to_owned(),
            names: names.map(str::to_owned).collect(),
            leading: declared.tasks.leading().map(str::to_owned).collect(),
            limits: declared.limits.as_ref().map(|limits| limits.iter().map(Limit::on).collect()),
            removes_one: prunes && is_all && declared.undeclared.len() == 1,
        };
        let mut applied = self.change(now, reach, |memory, now| Store::apply(memory, declared.clone(), now))?;
        applied.left.append(&mut left);
        Ok(applied)
    }

    fn managed_by(&mut self, source: &str) -> Result<Vec<String>> {
        refuse("managed_by", source).map_err(|fault| self.memory.error(fault, "list names"))?;
        self.read_on_server("list names", |server| counts::managed_by(server, source))
    }

    fn actors(&mut self, names: &BTreeSet<String>) -> Result<BTreeMap<String, String>> {
        let reach = View::Named(names.iter().cloned().collect());
        self.look_up(Timestamp::MIN, reach, |memory, _| Store::actors(memory, names))
    }

    fn trigger(&mut self, task: &str, payload: Option<&str>, key: Option<&str>, now: Timestamp) -> Result<Triggered> {
        let reach = Request::Trigger { task: task.to_owned(), key: key.map(str::to_owned) };
        self.change(now, reach, |memory, now| Store::trigger(memory, task, payload, key, now))
    }

    fn retry(&mut self, run: i64, now: Timestamp) -> Result<i64> {
        self.change(now, Request::Retry { run }, |memory, now| Store::retry(memory, run, now))
    }

    fn cancel(&mut self, run: i64, now: Timestamp) -> Result<Cancelled> {
        self.change(now, Request::Cancel { run }, |memory, now| Store::cancel(memory, run, now))
    }

    fn declare_gone(&mut self, runs: Runs<'_>, now: Timestamp) -> Result<usize> {
        self.look_at_sessions(now)?;
        let reach = match runs {
            Runs::One(run) => Request::Gone { run },
            Runs::OfTask(task) => Request::GoneAll { task: task.to_owned() },
        };
        self.change(now, reach, |memory, now| Store::declare_gone(memory, runs, now))
    }

    fn change_matching(
        &mut self,
        selection: &Selection,
        pass: &mut BulkPass,
        report: &mut BulkReport,
        now: Timestamp,
    ) -> Result<Vec<Event>> {
        if !self.select(selection, pass)? {
            return Ok(Vec::new());
        }
        let mut ids = pass.selected.clone();
        if selection.action == BulkAction::Remove && !ids.is_empty() {
            let together =
                self.read_on_server("count runs", |server| counts::removed_together(server, Listed::Ids(&ids)))?;
            ids.truncate(together.max(1));
            pass.most = Some(pass.most.map_or(ids.len(), |most| most.min(ids.len())));
        }
        let reach = Request::Matching { action: selection.action, ids };
        let mut change = |memory: &mut SqliteStore, now| Store::change_matching(memory, selection, pass, report, now);
        if let Ok(events) = self.try_change(now, reach.into(), None, &mut change) {
            return events;
        }
        // A run that follows was refused: one by one, only that run is left out.
        let mut events = Vec::new();
        while let Some(first) = pass.selected.first().copied() {
            pass.most = Some(1);
            let reach = Request::Matching { action: selection.action, ids: vec![first] };
            let change = |memory: &mut SqliteStore, now| Store::change_matching(memory, selection, pass, report, now);
            events.extend(self.change(now, reach, change)?);
        }
        Ok(events)
    }

    fn count_matching(&mut self, selection: &Selection, pass: &mut BulkPass, report: &mut BulkReport) -> Result<()> {
        if !self.select(selection, pass)? {
            return Ok(());
        }
        let reach = Request::Matching { action: selection.action, ids: pass.selected.clone() };
        self.look_up(Timestamp::MIN, reach, |memory, _| Store::count_matching(memory, selection, pass, report))
    }

    fn set_limit(&mut self, limit: &Limit) -> Result<Change> {
        self.change(Timestamp::MIN, Request::Limit { on: limit.on() }, |memory, _| Store::set_limit(memory, limit))
    }

    fn remove_limit(&mut self, on: &LimitOn) -> Result<bool> {
        self.change(Timestamp::MIN, Request::Limit { on: on.clone() }, |memory, _| Store::remove_limit(memory, on))
    }

    fn limits(&mut self, now: Timestamp) -> Result<Vec<LimitState>> {
        let (bench, counts) = (self.bench.clone(), self.counts_on_server());
        self.look_up(now, View::Limits, |memory, now| {
            let mut limits = Store::limits(memory, now)?;
            if counts {
                let counted = counts::limits(&mut bench.lock().rows.server, &mut limits, now);
                counted.map_err(|fault| fault.into_error("list limits"))?;
            }
            Ok(limits)
        })
    }

    fn task(&mut self, name: &str) -> Result<Option<Task>> {
        self.look_up(Timestamp::MIN, View::Task(name.to_owned()), |memory, _| Store::task(memory, name))
    }

    fn tasks(&mut self) -> Result<Vec<Task>> {
        self.begin(Access::Read, Timestamp::MIN, Reach::Everything)?;
        let (mut tasks, mut after) = (Vec::new(), String::new());
        let answer = loop {
            // In the same snapshot.
            self.bench.lock().aim(Reach::from(View::Tasks { after, limit: LISTED_AT_ONCE as i64 }));
            let next = match Store::tasks(&mut self.memory) {
                Ok(next) => next,
                Err(error) => break Err(error),
            };
            let is_last = next.len() < LISTED_AT_ONCE;
            after = next.last().map(|task| task.name().to_owned()).unwrap_or_default();
            tasks.extend(next);
            if is_last || tasks.len() >= MAX_LISTED as usize {
                tasks.truncate(MAX_LISTED as usize);
                break Ok(tasks);
            }
        };
        self.end();
        answer
    }

    fn runs(&mut self, filter: &RunFilter) -> Result<Vec<Run>> {
        self.look_up(Timestamp::MIN, View::Runs(filter.clone()), |memory, _| Store::runs(memory, filter))
    }

    fn effects(&mut self, run: i64, now: Timestamp) -> Result<Vec<Effect>> {
        self.look_up(now, View::Effects(run), |memory, now| Store::effects(memory, run, now))
    }

    fn followers(&mut self, run: i64) -> Result<Vec<Follower>> {
        self.look_up(Timestamp::MIN, View::Followers(run), |memory, _| Store::followers(memory, run))
    }

    fn recent(&mut self, limit: usize) -> Result<BTreeMap<i64, Vec<Recent>>> {
        if !self.counts_on_server() {
            return self.look_up(Timestamp::MIN, Reach::Everything, |memory, _| Store::recent(memory, limit));
        }
        self.read_on_server("read the last runs", |server| counts::recent(server, limit))
    }

    fn is_idle(&mut self, handlers: &BTreeSet<String>, now: Timestamp) -> Result<bool> {
        self.look_up(now, View::Idle(handlers.clone()), |memory, now| Store::is_idle(memory, handlers, now))
    }

    fn status(&mut self, now: Timestamp) -> Result<Status> {
        self.look_at_sessions(now)?;
        let (bench, counts) = (self.bench.clone(), self.counts_on_server());
        let status = self.look_up(now, View::Status { now }, |memory, now| {
            let mut status = Store::status(memory, now)?;
            if counts {
                let counted = counts::status(&mut bench.lock().rows.server, &mut status, now);
                counted.map_err(|fault| fault.into_error("read the status"))?;
            }
            Ok(status)
        })?;
        let version = self.bench.lock().rows.server.version().map_err(|fault| fault.into_error("read the status"))?;
        let (path, server) = (PathBuf::from(self.address.to_string()), Some(format!("PostgreSQL {version}")));
        Ok(Status { path, server, file_bytes: None, log_bytes: None, ..status })
    }

    fn health(&mut self, limits: &Limits, now: Timestamp) -> Result<Health> {
        self.look_at_sessions(now)?;
        let (bench, counts) = (self.bench.clone(), self.counts_on_server());
        let (recent, before) = (now.minus(RECENT), now.minus(limits.overdue));
        self.look_up(now, View::Health { recent, now }, |memory, now| {
            let mut health = Store::health(memory, limits, now)?;
            if counts && !health.waiting.is_empty() {
                let counted = counts::waiting(&mut bench.lock().rows.server, &mut health.waiting, before);
                counted.map_err(|fault| fault.into_error("count the waiting runs"))?;
            }
            Ok(health)
        })
    }

    fn doctor(&mut self) -> Result<Vec<Finding>> {
        let bench = self.bench.clone();
        self.look_up(Timestamp::MIN, Reach::Everything, |memory, _| {
            let mut findings = Store::doctor(memory)?;
            let behind = examine::sequences_behind(&mut bench.lock().rows.server);
            findings.extend(behind.map_err(|fault| fault.into_error("look at the sequences"))?);
            Ok(findings)
        })
    }

    fn prune(&mut self, keep: &Retention, pass: &mut Pass, pruned: &mut Pruned, now: Timestamp) -> Result<i64> {
        if self.counts_on_server() {
            return self.prune_on_server(keep, pass, pruned, now);
        }
        self.change(now, Reach::Everything, |memory, now| Store::prune(memory, keep, pass, pruned, now))
    }

    fn would_prune(&mut self, keep: &Retention, pass: &mut Pass, pruned: &mut Pruned, now: Timestamp) -> Result<i64> {
        if self.counts_on_server() {
            return self.count_expired(keep, pass, pruned, now);
        }
        self.look_up(now, Reach::Everything, |memory, now| Store::would_prune(memory, keep, pass, pruned, now))
    }

    fn events(&mut self, filter: &EventFilter) -> Result<Vec<RecordedEvent>> {
        self.look_up(Timestamp::MIN, View::Events(filter.clone()), |memory, _| Store::events(memory, filter))
    }

    fn update_alarms(&mut self, look: &Look<'_>, now: Timestamp) -> Result<bool> {
        let channels = look.channels.iter().map(|&channel| channel.to_owned()).collect();
        let reach = View::Alarms { channels, since: look.since };
        self.change(now, reach, |memory, now| Store::update_alarms(memory, look, now))
    }

    fn claim_alarm(
        &mut self,
        channel: &str,
        token: &str,
        pace: &AlarmPace,
        refused: Option<AlarmKind>,
        now: Timestamp,
    ) -> Result<AlarmTurn> {
        self.change(now, Request::Alarm { channel: channel.to_owned() }, |memory, now| {
            Store::claim_alarm(memory, channel, token, pace, refused, now)
        })
    }

    fn known_owners(&mut self) -> Result<KnownOwners> {
        self.look_up(Timestamp::MIN, View::Owners, |memory, _| Store::known_owners(memory))
    }

    fn register(&mut self, new: &Registration, random: fastrand::Rng, now: Timestamp) -> Result<Registered> {
        self.require_primary();
        // What an earlier owner on this connection has claimed is lost.
        let kept = self.bench.lock().rows.server.keep_to_timeline(None);
        let registered = self.try_register(new, random, now);
        if registered.is_err() {
            // What was claimed before is as much in doubt as it was.
            self.bench.lock().rows.server.keep_to_timeline(kept);
        }
        registered
    }

    fn notify(&mut self) {
        let mut bench = self.bench.lock();
        let channel = channel(bench.rows.server.schema());
        // After the commit: within a transaction it would hold a lock of the whole server until the end.
        let _ = bench.rows.server.batch(&format!("NOTIFY {channel}"));
    }

    fn take_session(&mut self) -> Option<Box<dyn OwnerSession>> {
        self.session.take().map(|session| Box::new(session) as Box<dyn OwnerSession>)
    }

    fn end_session(&mut self) {
        if let Some(mut session) = self.session.take() {
            session.release();
        }
    }

    fn counted_beyond(&mut self, now: Timestamp) -> Result<Option<Timestamp>> {
        self.look_up(now, View::Beyond(now), Store::counted_beyond)
    }

    fn claimed_by(&mut self, owner: &str) -> Result<HashSet<i64>> {
        self.look_up(Timestamp::MIN, View::ClaimedBy(owner.to_owned()), |memory, _| Store::claimed_by(memory, owner))
    }

    fn record_clock_events(&mut self, events: &[ClockEvent]) -> Result<()> {
        self.change(Timestamp::MIN, Request::Record, |memory, _| Store::record_clock_events(memory, events))
    }

    fn stop(&mut self, owner: &str, now: Timestamp) -> Result<()> {
        self.change(now, Request::Stop { owner: owner.to_owned() }, |memory, now| Store::stop(memory, owner, now))
    }

    fn begin_effect(&mut self, owner: &str, claim: &Claim, key: &str, now: Timestamp) -> Result<Begun> {
        let reach = Request::Effect { run: claim.run_id, first: claim.first_id(), key: key.to_owned() };
        self.change(now, reach, |memory, now| Store::begin_effect(memory, owner, claim, key, now))
    }

    fn check_claim(&mut self, owner: &str, claim: &Claim) -> Result<()> {
        self.look_up(Timestamp::MIN, Request::Claim { run: claim.run_id }, |memory, _| {
            Store::check_claim(memory, owner, claim)
        })
    }

    fn record_effect(&mut self, claim: &Claim, key: &str, value: &str, now: Timestamp) -> Result<Option<String>> {
        let reach = Request::Effect { run: claim.run_id, first: claim.first_id(), key: key.to_owned() };
        self.change(now, reach, |memory, now| Store::record_effect(memory, claim, key, value, now))
    }

    fn undo_effect(&mut self, owner: &str, claim: &Claim, key: &str) -> Result<()> {
        let reach = Request::Effect { run: claim.run_id, first: claim.first_id(), key: key.to_owned() };
        self.change(Timestamp::MIN, reach, |memory, _| Store::undo_effect(memory, owner, claim, key))
    }

    fn pause(&mut self, task: &str, now: Timestamp) -> Result<()> {
        self.change(now, Request::Change { task: task.to_owned() }, |memory, now| Store::pause(memory, task, now))
    }

    fn resume(&mut self, task: &str, now: Timestamp) -> Result<()> {
        self.change(now, Request::Change { task: task.to_owned() }, |memory, now| Store::resume(memory, task, now))
    }

    fn remove(&mut self, task: &str, now: Timestamp) -> Result<bool> {
        self.change(now, Request::Remove { task: task.to_owned() }, |memory, now| Store::remove(memory, task, now))
    }

    fn names(&mut self) -> Result<Vec<String>> {
        self.read_on_server("list names", |server| counts::names(server, MAX_LISTED))
    }

    fn next_start(&mut self, task: i64) -> Result<Option<Timestamp>> {
        self.read_on_server("look for starts", |server| counts::next_start(server, task))
    }

    fn marked_runs(&mut self, task: i64, most: usize) -> Result<Option<usize>> {
        self.read_on_server("count runs", |server| counts::marked_runs(server, task, most))
    }

    fn run(&mut self, run: i64) -> Result<Option<Run>> {
        self.look_up(Timestamp::MIN, View::Run(run), |memory, _| Store::run(memory, run))
    }

    fn attempts(&mut self, run: i64) -> Result<Vec<Attempt>> {
        self.look_up(Timestamp::MIN, View::Attempts(run), |memory, _| Store::attempts(memory, run))
    }

    fn add(&mut self, task: Definition, existing: Existing, now: Timestamp) -> Result<Added> {
        self.add_task(&task, existing, now)
    }

    fn add_all(&mut self, tasks: Vec<(Definition, Existing)>, now: Timestamp) -> Result<Vec<Added>> {
        self.add_tasks(&tasks, now)
    }

    fn settle_alarm(&mut self, message: &AlarmMessage, delivered: bool, now: Timestamp) -> Result<bool> {
        self.change(now, Request::Alarm { channel: message.channel.clone() }, |memory, now| {
            Store::settle_alarm(memory, message, delivered, now)
        })
    }

    #[cfg(feature = "page")]
    fn run_view(&mut self, run: i64, now: Timestamp) -> Result<Option<RunView>> {
        self.look_up(now, View::RunPage { run, now }, |memory, now| Store::run_view(memory, run, now))
    }

    #[cfg(feature = "page")]
    fn timeline(&mut self, window: &Window, now: Timestamp) -> Result<Timeline> {
        let (bench, counts) = (self.bench.clone(), self.counts_on_server());
        let mut read = |whole| {
            self.look_up(now, View::Timeline { window: window.clone(), now, whole }, |memory, now| {
                let mut count =
                    |lanes: &[Older], limit| counts::older_runs(&mut bench.lock().rows.server, lanes, window, limit);
                let timeline = timeline::timeline(memory, window, now, counts.then_some(&mut count))?;
                // The lanes are not full, and there may be other tasks.
                let is_cut = !whole && timeline.next.is_none() && seems_full(&bench.lock().rows, window, now);
                Ok((timeline, is_cut))
            })
        };
        let (timeline, is_cut) = read(false)?;
        if is_cut { read(true).map(|(timeline, _)| timeline) } else { Ok(timeline) }
    }

    #[cfg(feature = "page")]
    fn schedulers(&mut self) -> Result<Vec<SchedulerView>> {
        let now = self.clock.as_ref().map_or_else(Timestamp::now, |clock| clock.now().wall);
        self.look_at_sessions(now)?;
        self.look_up(Timestamp::MIN, View::Owners, |memory, _| Store::schedulers(memory))
    }

    #[cfg(feature = "page")]
    fn task_page(&mut self, query: &TaskQuery) -> Result<TaskPage> {
        let prefix = query.pattern.as_ref().map_or("", |pattern| pattern.prefix());
        let (after_name, after_id) = match &query.after {
            Some(After::Name(name)) => (Some(name), None),
            Some(After::Id(id)) => (None, Some(*id)),
            None => (None, None),
        };
        let like = query.pattern.as_ref().map(|pattern| counts::like(pattern.as_str()));
        let (status, all) =
            (query.status.map(|status| status.as_str()), query.with_completed || query.status.is_some());
        let (limit, skip) = (query.limit.saturating_add(1) as i64, query.skip as i64);
        let page = TaskQuery { skip: 0, ..query.clone() };
        let (bench, counts) = (self.bench.clone(), self.counts_on_server());
        self.look_up(Timestamp::MIN, Request::Record, |memory, _| {
            if !counts {
                return Store::task_page(memory, query);
            }
            let found = counts::ids(
                &mut bench.lock().rows.server,
                &format!("{} ORDER BY {} LIMIT $8 OFFSET $9", counts::TASK_LINES, query.order.terms()),
                &[&prefix, &after_name, &after_id, &like, &query.handler, &status, &all, &limit, &skip],
            );
            let tasks = found.map_err(|fault| fault.into_error("read a page of tasks"))?;
            bench.lock().aim(Reach::from(View::TaskLines { tasks, marks: query.marks as i64 }));
            Store::task_page(memory, &page)
        })
    }

    #[cfg(feature = "page")]
    fn run_page(&mut self, query: &RunQuery) -> Result<RunPage> {
        let (bench, counts) = (self.bench.clone(), self.counts_on_server());
        self.look_up(Timestamp::MIN, Request::Record, |memory, _| {
            if !counts {
                return Store::run_page(memory, query);
            }
            let found = counts::runs(&mut bench.lock().rows.server, query);
            let (runs, end) = found.map_err(|fault| fault.into_error("read a page of runs"))?;
            bench.lock().aim(Reach::from(View::RunLines(runs.clone())));
            Ok(query.page(task_pages::lines(memory, &runs)?, end))
        })
    }

    fn act(&mut self, by: By<'_>, action: &Action, now: Timestamp) -> Result<Acted> {
        let reach = match action {
            Action::Add { task, existing } => {
                let (names, replaces) = (vec![task.name.clone()], *existing == Existing::Replace);
                Request::Add { names, leading: leading([task.as_ref()]), replaces }.of_an_actor(&task.name)
            }
            Action::Remove(on) => Request::Remove { task: on.task.clone() }.of_an_actor(&on.task),
            Action::Trigger { on, key, .. } => Request::Trigger { task: on.task.clone(), key: key.clone() },
            Action::Pause(on) | Action::Resume(on) => Request::Change { task: on.task.clone() },
            Action::Cancel(run) => Request::Cancel { run: *run },
            Action::Retry(run) => Request::Retry { run: *run },
        };
        let bench = self.bench.clone();
        self.change(now, reach, |memory, now| {
            let newest = || counts::ids(&mut bench.lock().rows.server, counts::NEWEST_ACTION, &[]);
            let checked = by.check(|| newest().map(|ids| ids.first().copied()));
            checked.map_err(|fault| fault.into_error("read the trail"))?;
            Store::act(memory, By { trail: None, ..by }, action, now)
        })
    }

    #[cfg(feature = "page")]
    fn queue(&mut self, now: Timestamp) -> Result<Queue> {
        let (bench, counts) = (self.bench.clone(), self.counts_on_server());
        self.look_up(now, View::Limits, |memory, now| {
            if !counts {
                return Store::queue(memory, now);
            }
            let limits = Store::limits(memory, now)?;
            let counted = counts::queue(&mut bench.lock().rows.server, &limits, now);
            counted.map_err(|fault| fault.into_error("count the waiting runs"))
        })
    }
}
