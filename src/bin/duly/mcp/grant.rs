//! What the tools were given: which tasks they see and change, and which handlers they use.

use std::collections::BTreeSet;

use duly::text::escape;
use duly::{Client, Error, Run, Task};

use crate::cli::mcp_args::{Allow, McpArgs};
use crate::cli::values::truncated;
use crate::mcp::answer::ToolError;

/// The beginning of what stands in `managed_by` for all clients of `duly mcp`.
pub(crate) const CLIENTS: &str = "mcp:";
/// Most tasks of a scope that are looked at one by one; of more, all tasks of the database are read.
const FEW: usize = 500;

/// How much of a task is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// With its payload, and with what its runs wrote.
    Whole,
    /// Its schedule and its runs only.
    Outline,
}

impl Sight {
    /// Returns what is shown of something that only [`Sight::Whole`] shows.
    pub(crate) fn of<T>(self, shown: Option<T>) -> Option<T> {
        shown.filter(|_| self == Sight::Whole)
    }
}

/// What `--allow`, `--scope`, `--see-all` and `--handlers` admit.
#[derive(Debug)]
pub(crate) struct Grant {
    allow: BTreeSet<Allow>,
    scope: Option<String>,
    see_all: bool,
    pub(crate) handlers: BTreeSet<String>,
}

impl Grant {
    pub(crate) fn of(args: &McpArgs) -> Self {
        let (allow, handlers) = (args.allow.iter().copied().collect(), args.handlers.iter().cloned().collect());
        Grant { allow, scope: args.scope.clone(), see_all: args.see_all, handlers }
    }

    /// Whether a kind of change is allowed at all.
    pub(crate) fn allows(&self, change: Allow) -> bool {
        self.allow.contains(&change)
    }

    /// The scope, for texts.
    pub(crate) fn scope(&self) -> Option<&str> {
        self.scope.as_deref()
    }

    /// Whether a task is in the scope: with its payload and output, and to be changed.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.scope.as_ref().is_none_or(|scope| name.len() > scope.len() && name.starts_with(scope))
    }

    /// How much of a task that is seen is shown.
    pub(crate) fn sight(&self, name: &str) -> Sight {
        if self.contains(name) { Sight::Whole } else { Sight::Outline }
    }

    /// Whether a task is seen.
    pub(crate) fn sees(&self, name: &str) -> bool {
        self.see_all || self.contains(name)
    }

    /// Returns a task that is seen. Of another one nothing is said, not even that it exists.
    pub(crate) fn seen_task(&self, client: &Client, name: &str) -> Result<Task, ToolError> {
        let unknown = || ToolError::Refused(format!("there is no task {:?}{}", shown(name), self.in_scope()));
        if !self.sees(name) {
            return Err(unknown());
        }
        client.task(name)?.ok_or_else(unknown)
    }

    /// Returns a task that may be changed.
    pub(crate) fn own_task(&self, client: &Client, name: &str) -> Result<Task, ToolError> {
        let task = self.seen_task(client, name)?;
        if self.contains(name) {
            return Ok(task);
        }
        let scope = self.scope.as_deref().unwrap_or_default();
        Err(ToolError::Refused(format!(
            "task {:?} is outside of the scope {scope}: it is shown, and not changed",
            shown(name)
        )))
    }

    /// Returns a run of a task that is seen.
    pub(crate) fn seen_run(&self, client: &Client, id: i64) -> Result<Run, ToolError> {
        let unknown = || ToolError::Refused(format!("there is no run {id}{}", self.in_scope()));
        match client.run(id) {
            Ok(Some(run)) if self.sees(&run.task) => Ok(run),
            Ok(_) | Err(Error::UnknownRun { .. }) => Err(unknown()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a run of a task that may be changed.
    pub(crate) fn own_run(&self, client: &Client, id: i64) -> Result<Run, ToolError> {
        let run = self.seen_run(client, id)?;
        self.own_task(client, &run.task).map(|_| run)
    }

    /// Checks the name of a task that is to be added.
    pub(crate) fn check_new_name(&self, name: &str) -> Result<(), ToolError> {
        let scope = self.scope.as_deref().unwrap_or_default();
        let refused = |reason: String| Err(ToolError::Refused(format!("name: {reason}, found {:?}", shown(name))));
        if !self.contains(name) {
            return refused(format!("expected a name that begins with {scope}"));
        }
        let allowed = |letter: char| letter.is_ascii_alphanumeric() || "._:/@-".contains(letter);
        if name.len() > duly::MAX_NAME_BYTES || !name.chars().all(allowed) {
            return refused(format!("expected at most {} letters, digits or . _ : / @ -", duly::MAX_NAME_BYTES));
        }
        // Names have no folders, and a reader may think that they have.
        let mut parts = name[scope.len()..].split(['/', ':']);
        if parts.any(|part| part.is_empty() || part.chars().all(|letter| letter == '.')) {
            return refused("expected parts that are not empty, . or ..".to_owned());
        }
        Ok(())
    }

    /// Returns the tasks that are seen, by name.
    pub(crate) fn seen_tasks(&self, client: &Client) -> Result<Vec<Task>, ToolError> {
        self.tasks(client, |name| self.sees(name))
    }

    /// Returns the tasks in the scope, by name.
    pub(crate) fn own_tasks(&self, client: &Client) -> Result<Vec<Task>, ToolError> {
        self.tasks(client, |name| self.contains(name))
    }

    fn tasks(&self, client: &Client, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Task>, ToolError> {
        let names: Vec<String> = client.names()?.into_iter().filter(|name| is_wanted(name)).collect();
        if names.len() > FEW {
            let mut tasks = client.tasks()?;
            tasks.retain(|task| is_wanted(task.name()));
            return Ok(tasks);
        }
        let mut tasks = Vec::with_capacity(names.len());
        for name in names {
            tasks.extend(client.task(&name)?);
        }
        Ok(tasks)
    }

    fn in_scope(&self) -> String {
        match (&self.scope, self.see_all) {
            (Some(scope), false) => format!(" in the scope {scope}"),
            _ => String::new(),
        }
    }
}

/// Whether a client of `duly mcp` added a task.
pub(crate) fn is_of_a_client(task: &Task) -> bool {
    task.definition.managed_by.as_ref().is_some_and(|manager| manager.starts_with(CLIENTS))
}

/// A text of a client in an error: its beginning, on one line.
pub(crate) fn shown(text: &str) -> String {
    escape::one_line(&truncated(text))
}
