//! Which marks were open after a step, so that a run of many seeds shows that each kind occurs. The checker does not use this: to its model,
//! a change holds at once.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::simulation::observer::Observer;
use crate::simulation::rows::TaskRow;

const PAUSE: &str = "mark of a pause open";
const RESUME: &str = "mark of a resume open";
const HANDLER: &str = "mark of another handler open";
const OVERLAP: &str = "mark of another overlap policy open";
const ZONE: &str = "mark of a time zone open";
const CLOCK: &str = "mark of a wrong clock open";
const SEVERAL: &str = "mark replaced by a later one";

/// What a large run must have seen.
pub(crate) const ALL: [&str; 7] = [PAUSE, RESUME, HANDLER, OVERLAP, ZONE, CLOCK, SEVERAL];

const MARKED: &str = "SELECT id FROM scheduled_tasks WHERE marked IS NOT NULL";
const OTHERS: &str = "SELECT CAST(key AS TEXT) FROM scheduler_meta WHERE key = 'clock_mark' OR key LIKE 'zone_mark:%'";

/// The kinds of the open mark of each task.
#[derive(Debug, Default)]
pub(crate) struct MarksSeen(BTreeMap<i64, BTreeSet<&'static str>>);

impl MarksSeen {
    /// Compares the tasks with those before a step. Returns the marks that are open.
    pub(crate) fn after_a_step(
        &mut self,
        before: &BTreeMap<i64, Rc<TaskRow>>,
        after: &BTreeMap<i64, Rc<TaskRow>>,
        observer: &Observer,
    ) -> Vec<&'static str> {
        let marked: BTreeSet<i64> = observer.rows(MARKED, [], |row| row.get(0).expect("an id")).into_iter().collect();
        self.0.retain(|task, _| marked.contains(task));
        let mut seen = Vec::new();
        for task in marked {
            let kinds = self.0.entry(task).or_default();
            if let (Some(before), Some(after)) = (before.get(&task), after.get(&task)) {
                let had_any = !kinds.is_empty();
                let changed: Vec<&str> = [
                    (PAUSE, after.is_halted() && !before.is_halted()),
                    (RESUME, before.is_halted() && !after.is_halted()),
                    (HANDLER, before.handler != after.handler),
                    (OVERLAP, before.overlap != after.overlap),
                ]
                .into_iter()
                .filter_map(|(kind, has_changed)| has_changed.then_some(kind))
                .collect();
                seen.extend((had_any && !changed.is_empty()).then_some(SEVERAL));
                kinds.extend(changed);
            }
            seen.extend(kinds.iter().copied());
        }
        for key in observer.rows(OTHERS, [], |row| row.get::<_, String>(0).expect("a key")) {
            seen.push(if key == "clock_mark" { CLOCK } else { ZONE });
        }
        seen
    }
}
