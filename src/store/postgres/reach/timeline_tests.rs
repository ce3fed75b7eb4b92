//! The pages of a timeline on a server.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::model::views::Window;
use crate::store::Store;
use crate::store::postgres::reach::tests::{Database, NOW};

/// The run of the first task lies before runs with higher ids and an earlier time: the clock was set back. It is not drawn.
#[test]
fn a_task_that_seems_to_have_a_lane_and_has_none_does_not_end_the_pages() {
    let Some(mut database) = Database::new("lanes") else { return };
    let rows = format!(
        "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, planned)
         SELECT 'task-' || n, 'alpha', 'manual', '', 1 FROM generate_series(1, 4) n;
         INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, finished_at)
         SELECT n, 'alpha', {NOW} - 60000, 'manual', 'dead', {NOW} - 60000, {NOW} - 50000 FROM generate_series(1, 4) n;
         INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, finished_at)
         SELECT 1, 'alpha', {NOW} - 7200000, 'manual', 'succeeded', {NOW} - 7200000, {NOW} - 7100000 FROM generate_series(1, 60)"
    );
    database.client.batch_execute(&rows).unwrap();
    let now = Timestamp::from_millis(NOW);
    let (mut after, mut pages) = (None, Vec::new());
    loop {
        let window = Window {
            from: Timestamp::from_millis(NOW - 600_000),
            until: now,
            pattern: None,
            after: after.clone(),
            lanes: 1,
            runs: 10,
            part: Duration::from_secs(60),
            counted: 100,
            dead: 10,
        };
        let timeline = database.store.timeline(&window, now).unwrap();
        pages.push(timeline.lanes.iter().map(|lane| lane.task.clone()).collect::<Vec<_>>());
        after = timeline.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(pages, [["task-2"], ["task-3"], ["task-4"]]);
}
