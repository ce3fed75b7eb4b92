//! `Client::apply` makes tasks be what a manifest declares; `Client::import` takes over tasks of another scheduler.

use crate::client::Client;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::declared::DeclaredTasks;
use crate::model::limit::Limit;
use crate::model::new_task::NewTask;
use crate::model::progress_meter::Progress;
use crate::model::request::{Applied, Apply, Declaration, Done, ImportItem, SourceKind};
use crate::model::task::Definition;

impl Client {
    /// Makes tasks be what a manifest declares: all of them in one transaction, or none. `manifest` is its name, which is stored
    /// with each of its tasks. A task of the same name that was added by hand becomes the manifest's.
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

    /// As [`Client::apply`], and reports its progress: tasks that are declared, and tasks that no longer are.
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
        let (tasks, kind) = (declared, SourceKind::Manifest);
        self.declare(Declaration { source: manifest, kind, how, tasks, limits, refused: Vec::new() }, progress, now)
    }

    /// Imports tasks that were written for another scheduler, in one transaction, as [`Client::apply`] does. A task that cannot be
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
        let kind = SourceKind::Foreign;
        self.declare(Declaration { source, kind, how, tasks: accepted, limits: Vec::new(), refused }, progress, now)
    }

    fn declare(&self, declared: Declaration<'_>, progress: &Progress, now: Timestamp) -> Result<Vec<Applied>> {
        progress.set_total(declared.tasks.len() as u64);
        if declared.how.dry_run {
            return self.store().apply(declared, progress, now);
        }
        self.write(|store, _| store.apply(declared, progress, now))
    }
}

/// Returns the definition to store for a task of a source.
fn definition(task: NewTask, source: &str, now: Timestamp) -> Result<Definition> {
    Ok(Definition { managed_by: Some(source.to_owned()), ..task.into_definition(now)? })
}
