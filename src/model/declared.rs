//! Definitions of many tasks in little memory, until they are applied.

use std::collections::HashSet;
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

    /// Returns the columns `on_success` and `on_end`, which name the tasks that these lead to.
    #[cfg(feature = "postgres")]
    pub(crate) fn leading(&self) -> impl Iterator<Item = &str> {
        self.tasks.iter().flat_map(|task| [&task.rest.on_success, &task.rest.on_end]).flatten().map(String::as_str)
    }

    /// Takes out what has the name of an earlier one, and returns these names.
    pub(crate) fn take_repeated(&mut self) -> Vec<String> {
        let mut names = HashSet::with_capacity(self.len());
        let is_repeated = |(place, name)| (!names.insert(name)).then_some(place);
        let places: HashSet<usize> = self.names().enumerate().filter_map(is_repeated).collect();
        let mut repeated = Vec::with_capacity(places.len());
        if !places.is_empty() {
            let mut place = 0..;
            self.tasks.retain(|task| {
                let is_first = place.next().is_none_or(|place: usize| !places.contains(&place));
                if !is_first {
                    repeated.push(task.name.to_string());
                }
                is_first
            });
        }
        repeated
    }

    /// Returns copies of the definitions, in parts of at most `most`.
    pub(crate) fn parts(&self, most: usize) -> impl Iterator<Item = DeclaredTasks> + '_ {
        self.tasks.chunks(most).map(|part| DeclaredTasks { tasks: part.to_vec() })
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
        let parts: Vec<usize> = declared.parts(2).map(|part| part.len()).collect();
        assert_eq!(parts, [2, 1]);
        declared.push(given[1].0.clone(), false);
        assert_eq!((declared.take_repeated(), declared.take_repeated()), (vec!["b".to_owned()], Vec::new()));
        assert_eq!(declared.into_definitions().collect::<Vec<_>>(), given);
    }
}
