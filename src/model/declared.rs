//! Definitions of many tasks in little memory, until they are applied.

use std::sync::Arc;

use crate::model::task::Definition;

/// Definitions in order, each with whether its task is paused at its source.
#[derive(Clone, Debug)]
pub(crate) struct DeclaredTasks {
    tasks: Vec<Declared>,
}

/// A definition in parts. Neighbours share what is usually equal.
#[derive(Clone, Debug)]
struct Declared {
    name: Box<str>,
    payload: Box<str>,
    schedule_value: Box<str>,
    /// The definition without these texts.
    rest: Arc<Definition>,
    paused: bool,
}

impl DeclaredTasks {
    pub(crate) fn with_capacity(tasks: usize) -> Self {
        DeclaredTasks { tasks: Vec::with_capacity(tasks) }
    }

    pub(crate) fn push(&mut self, mut rest: Definition, paused: bool) {
        let mut take = |text: fn(&mut Definition) -> &mut String| std::mem::take(text(&mut rest)).into_boxed_str();
        let (name, payload) = (take(|rest| &mut rest.name), take(|rest| &mut rest.payload));
        let schedule_value = take(|rest| &mut rest.schedule_value);
        let shared = self.tasks.last().map(|last| &last.rest).filter(|last| ***last == rest);
        let rest = shared.map_or_else(|| Arc::new(rest), Arc::clone);
        self.tasks.push(Declared { name, payload, schedule_value, rest, paused });
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tasks.iter().map(|task| &*task.name)
    }

    /// Returns each definition, and drops what it was kept as.
    pub(crate) fn into_definitions(self) -> impl Iterator<Item = (Definition, bool)> {
        self.tasks.into_iter().map(|Declared { name, payload, schedule_value, rest, paused }| {
            let rest = Arc::unwrap_or_clone(rest);
            let (name, payload, schedule_value) = (name.into(), payload.into(), schedule_value.into());
            (Definition { name, payload, schedule_value, ..rest }, paused)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::DeclaredTasks;
    use crate::clock::Timestamp;
    use crate::model::new_task::NewTask;

    #[test]
    fn definitions_are_returned_as_they_were_given_and_share_what_is_equal() {
        let tasks = ["a", "b", "c"].map(|name| NewTask::cron(name, "@daily").handler("work").payload(name));
        let [a, b, c] = tasks.map(|task| task.into_definition(Timestamp::MIN).unwrap());
        let given = [(a, false), (b, true), ({ c }, false)].map(|(mut task, paused)| {
            task.priority = if task.name == "c" { 0 } else { 1 };
            (task, paused)
        });
        let mut declared = DeclaredTasks::with_capacity(3);
        given.iter().for_each(|(task, paused)| declared.push(task.clone(), *paused));
        assert!(Arc::ptr_eq(&declared.tasks[0].rest, &declared.tasks[1].rest));
        assert!(!Arc::ptr_eq(&declared.tasks[1].rest, &declared.tasks[2].rest));
        assert_eq!((declared.len(), declared.names().collect::<Vec<_>>()), (3, vec!["a", "b", "c"]));
        assert_eq!(declared.into_definitions().collect::<Vec<_>>(), given);
    }
}
