//! `Client::apply` makes tasks be what a manifest declares; `Client::import` takes over tasks of another scheduler.

use std::collections::HashSet;
use std::{iter, mem};

use crate::client::Client;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::declared::DeclaredTasks;
use crate::model::limit::Limit;
use crate::model::new_task::NewTask;
use crate::model::progress_meter::Progress;
use crate::model::request::{Applied, AppliedParts, Apply, Declaration, Done, ImportItem, SourceKind};
use crate::model::task::Definition;
use crate::rules::turn_size::MAX_ITEMS;

impl Client {
    /// Makes tasks be what a manifest declares. `manifest` is its name, which is stored with each of its tasks. A task of the same name
    /// that was added by hand becomes the manifest's.
    ///
    /// If one task or limit is refused, nothing is applied. Up to 500 tasks are one transaction: all of them are applied, or none. More
    /// tasks are first checked, all of them, and then applied in transactions of 500, between which schedulers go on. If one of these
    /// fails, or the process dies, what was applied before stays, and applying the manifest again does the rest. On a server the check
    /// does not meet triggers and constraints that an application has added. Of tasks that are no longer declared, a transaction deletes
    /// at most 500 runs, so their removal may take further transactions.
    ///
    /// ```
    /// use duly::{Apply, Client, Done, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// let tasks = |cron: &str| [NewTask::cron("digest", cron).handler("digest")];
    /// let done = client.apply("tasks.toml", tasks("0 7 * * *"), Apply::default())?;
    /// assert_eq!(done[0].done, Done::Created);
    /// // A dry run says what would be done.
    /// let dry = Apply { dry_run: true, ..Apply::default() };
    /// let done = client.apply("tasks.toml", tasks("0 8 * * *"), dry)?;
    /// assert!(matches!(&done[0].done, Done::Replaced { fields } if fields[0].0 == "schedule_value"));
    /// // Pruning removes the tasks that the manifest no longer declares.
    /// let done = client.apply("tasks.toml", [], Apply { prune: true, ..Apply::default() })?;
    /// assert_eq!(done[0].done, Done::Removed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused), naming the task, if one cannot be accepted, is declared twice, or belongs to another manifest.
    pub fn apply(&self, manifest: &str, tasks: impl IntoIterator<Item = NewTask>, how: Apply) -> Result<Vec<Applied>> {
        self.apply_watched(manifest, tasks, how, &Progress::default())
    }

    /// As [`Client::apply`], and reports its progress: tasks that are declared, and tasks that no longer are. After a failure,
    /// [`Progress::done`] is the number of tasks that are applied.
    ///
    /// # Errors
    /// As [`Client::apply`].
    pub fn apply_watched(
        &self,
        manifest: &str,
        tasks: impl IntoIterator<Item = NewTask>,
        how: Apply,
        progress: &Progress,
    ) -> Result<Vec<Applied>> {
        self.apply_with_limits(manifest, tasks, [], how, progress)
    }

    /// As [`Client::apply_watched`], and makes [limits](Limit) be what the manifest declares. The answer names them after the
    /// tasks. `prune` also removes limits that the manifest no longer declares.
    ///
    /// ```
    /// use duly::{Apply, Client, Done, Limit, NewTask, Progress};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// let tasks = [NewTask::cron("mail", "0 7 * * *").handler("mail").concurrency_key("smtp")];
    /// let progress = Progress::default();
    /// let done = client.apply_with_limits("tasks.toml", tasks, [Limit::key("smtp", 3)], Apply::default(), &progress)?;
    /// assert_eq!((done[1].name.as_str(), &done[1].done), ("key smtp", &Done::Created));
    /// // One limit that cannot be accepted, and nothing is applied.
    /// let wrong = client.apply_with_limits("tasks.toml", [], [Limit::key("smtp", 0)], Apply::default(), &progress);
    /// assert!(wrong.is_err() && client.task("mail")?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::apply`]; also for a limit.
    pub fn apply_with_limits(
        &self,
        manifest: &str,
        tasks: impl IntoIterator<Item = NewTask>,
        limits: impl IntoIterator<Item = Limit>,
        how: Apply,
        progress: &Progress,
    ) -> Result<Vec<Applied>> {
        let now = self.now();
        let tasks = tasks.into_iter();
        let mut declared = DeclaredTasks::with_capacity(tasks.size_hint().0);
        for task in tasks {
            declared.push(definition(task, manifest, now)?, false);
        }
        let limits: Vec<Limit> = limits.into_iter().collect();
        for limit in &limits {
            let request = || format!("apply the limit on {}", limit.on());
            limit.check().map_err(|error| Error::Refused { request: request(), reason: error.to_string() })?;
        }
        let (tasks, kind, limits) = (declared, SourceKind::Manifest, Some(limits));
        let whole = Declaration { source: manifest, kind, how, tasks, undeclared: Vec::new(), limits };
        self.declare(whole, Vec::new(), progress)
    }

    /// Imports tasks that were written for another scheduler, in transactions as those of [`Client::apply`]. A task that cannot be
    /// accepted is refused, and the others are imported. `source` names where they come from, and is stored with each of them. A
    /// task of the same name that does not come from there stays as it is, even one that was added by hand, and the import of that
    /// name is refused.
    ///
    /// ```
    /// use duly::{Apply, Client, Done, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("backup", "0 2 * * *").handler("work"))?;
    /// let lines = [("backup", "0 3 * * *"), ("report", "0 6 * * *"), ("leap", "0 0 30 2 *")];
    /// let tasks = lines.map(|(name, line)| NewTask::cron(name, line).handler("work").into());
    /// let done = client.import("crontab", tasks, Apply::default())?;
    /// assert!(matches!(&done[0].done, Done::Refused { reason } if reason.contains("added by hand")));
    /// assert_eq!(done[1].done, Done::Created);
    /// assert!(matches!(done[2].done, Done::Refused { .. }), "there is no such day");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Only if the database cannot be written, or is not usable.
    pub fn import(
        &self,
        source: &str,
        tasks: impl IntoIterator<Item = ImportItem>,
        how: Apply,
    ) -> Result<Vec<Applied>> {
        self.import_watched(source, tasks, how, &Progress::default())
    }

    /// As [`Client::import`], and reports its progress: tasks that the source has, and tasks that it no longer has.
    ///
    /// # Errors
    /// As [`Client::import`].
    pub fn import_watched(
        &self,
        source: &str,
        tasks: impl IntoIterator<Item = ImportItem>,
        how: Apply,
        progress: &Progress,
    ) -> Result<Vec<Applied>> {
        let now = self.now();
        let tasks = tasks.into_iter();
        let (mut accepted, mut refused) = (DeclaredTasks::with_capacity(tasks.size_hint().0), Vec::new());
        for ImportItem { task, paused, refused: reason } in tasks {
            let name = task.name().unwrap_or_default().to_owned();
            match (reason, definition(task, source, now)) {
                (Some(reason), _) => refused.push(Applied { name, done: Done::Refused { reason }, next_run: None }),
                (None, Ok(definition)) => accepted.push(definition, paused),
                (None, Err(error)) => refused.push(Applied::refused(name, error)),
            }
        }
        let (tasks, kind) = (accepted, SourceKind::Foreign);
        let whole = Declaration { source, kind, how, tasks, undeclared: Vec::new(), limits: None };
        self.declare(whole, refused, progress)
    }

    /// `refused`: tasks of a foreign source that cannot be stored.
    fn declare(
        &self,
        mut whole: Declaration<'_>,
        mut refused: Vec<Applied>,
        progress: &Progress,
    ) -> Result<Vec<Applied>> {
        for name in whole.tasks.take_repeated() {
            let error = Applied::refusal(&name, "the manifest declares it twice".to_owned());
            match whole.kind {
                SourceKind::Manifest => return Err(error),
                SourceKind::Foreign => refused.push(Applied::refused(name, error)),
            }
        }
        whole.undeclared = self.undeclared(&whole, &refused)?;
        let count = whole.tasks.len() + whole.undeclared.len();
        if whole.kind == SourceKind::Manifest && !whole.how.dry_run && count > MAX_ITEMS {
            for mut part in parts(&whole) {
                part.how.dry_run = true;
                self.apply_part(part)?;
            }
        }
        progress.set(refused.len() as u64, (refused.len() + count) as u64);
        let mut applied = AppliedParts::default();
        for mut part in parts(&whole) {
            loop {
                let (source, kind, how) = (part.source, part.kind, part.how);
                let count = part.tasks.len() + part.undeclared.len();
                let done = self.apply_part(part)?;
                progress.set_done(progress.done() + (count - done.left.len()) as u64);
                applied.tasks.extend(done.tasks);
                applied.undeclared.extend(done.undeclared);
                applied.limits.extend(done.limits);
                if done.left.is_empty() {
                    break;
                }
                let (tasks, undeclared) = (DeclaredTasks::with_capacity(0), done.left);
                part = Declaration { source, kind, how, tasks, undeclared, limits: None };
            }
        }
        Ok([applied.tasks, refused, applied.undeclared, applied.limits].into_iter().flatten().collect())
    }

    /// Applies a part of a declaration, and leaves the lock of a file to others if there may be another part.
    fn apply_part(&self, part: Declaration<'_>) -> Result<AppliedParts> {
        let (began, count) = (self.monotonic(), part.tasks.len() + part.undeclared.len());
        let applied = if part.how.dry_run {
            self.store().apply(part, self.now())?
        } else {
            self.write(|store, now| store.apply(part, now))?
        };
        if count == MAX_ITEMS || !applied.left.is_empty() {
            self.rest(began, 1);
        }
        Ok(applied)
    }

    /// Returns the names of the tasks that a source declared before and no longer has, in order.
    fn undeclared(&self, whole: &Declaration<'_>, refused: &[Applied]) -> Result<Vec<String>> {
        let refused = refused.iter().map(|refused| refused.name.as_str());
        let names: HashSet<&str> = whole.tasks.names().chain(refused).collect();
        let mut undeclared = self.store().managed_by(whole.source)?;
        undeclared.retain(|name| !names.contains(name.as_str()));
        undeclared.sort_unstable();
        Ok(undeclared)
    }
}

/// Returns a declaration in parts of at most [`MAX_ITEMS`] tasks. The first one has the limits: no task starts before its limits hold.
fn parts<'a>(whole: &Declaration<'a>) -> impl Iterator<Item = Declaration<'a>> {
    let mut tasks = whole.tasks.parts(MAX_ITEMS);
    let mut undeclared = whole.undeclared.as_slice();
    let mut limits = whole.limits.clone();
    let mut is_first = true;
    iter::from_fn(move || {
        let tasks = tasks.next().unwrap_or_else(|| DeclaredTasks::with_capacity(0));
        let (here, later) = undeclared.split_at(undeclared.len().min(MAX_ITEMS - tasks.len()));
        undeclared = later;
        let is_one = mem::take(&mut is_first) || tasks.len() + here.len() > 0;
        let (source, kind, how, undeclared) = (whole.source, whole.kind, whole.how, here.to_vec());
        is_one.then(|| Declaration { source, kind, how, tasks, undeclared, limits: limits.take() })
    })
}

/// Returns the definition to store for a task of a source.
fn definition(task: NewTask, source: &str, now: Timestamp) -> Result<Definition> {
    Ok(Definition { managed_by: Some(source.to_owned()), ..task.into_definition(now)? })
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use crate::client::Client;
    use crate::model::filter::Filter;
    use crate::model::new_task::NewTask;
    use crate::model::request::Apply;
    use crate::rules::turn_size::MAX_ITEMS;

    /// Calls `f`, and returns how many transactions it has committed.
    fn transactions(client: &Client, f: impl FnOnce(&Client)) -> u64 {
        let before = client.store().transactions();
        f(client);
        client.store().transactions() - before
    }

    #[test]
    fn a_transaction_deletes_few_runs_of_removed_tasks() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("agent.db");
        let client = Client::open(&file).unwrap();
        let remove: [fn(&Client) -> usize; 2] = [
            |client| client.remove_matching(&Filter::new().handler("work")).unwrap().changed,
            |client| client.apply("m", [], Apply { prune: true, ..Apply::default() }).unwrap().len(),
        ];
        for remove in remove {
            let tasks = ["t:0", "t:1", "t:2"].map(|name| NewTask::manual(name).handler("work"));
            client.apply("m", tasks, Apply::default()).unwrap();
            let runs = "
                INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at)
                WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 600)
                SELECT id, handler, 1700000000000 + i, 'manual', 'queued', 1700000000000 FROM scheduled_tasks JOIN n ON i < 501 - (name > 't:0') * 201";
            assert_eq!(Connection::open(&file).unwrap().execute(runs, []).unwrap(), 501 + 300 + 300);
            // 500 runs of the first, its last one with those of the second, and those of the third.
            let taken = transactions(&client, |client| assert_eq!(remove(client), 3));
            assert_eq!((taken, client.names().unwrap().len()), (3, 0));
        }
    }

    #[test]
    fn what_concerns_many_rows_is_done_in_parts_and_few_are_done_at_once() {
        let home = tempfile::tempdir().unwrap();
        let client = Client::open(home.path().join("agent.db")).unwrap();
        let tasks = |count: usize| (0..count).map(|number| NewTask::manual(format!("t:{number}")).handler("work"));
        let apply = |count: usize| {
            transactions(&client, |client| {
                assert_eq!(client.apply("m", tasks(count), Apply::default()).unwrap().len(), count);
            })
        };
        assert_eq!([apply(MAX_ITEMS), apply(MAX_ITEMS + 1), apply(5 * MAX_ITEMS)], [1, 2, 5]);
        for _ in 0..=MAX_ITEMS {
            client.trigger("t:7").unwrap();
        }
        client.trigger("t:8").unwrap();
        for (task, runs, parts) in [("t:7", MAX_ITEMS + 1, 2), ("t:8", 1, 1)] {
            let taken = transactions(&client, |client| assert_eq!(client.cancel_all(task).unwrap(), runs));
            assert_eq!(taken, parts, "for {runs} runs");
        }
    }
}
