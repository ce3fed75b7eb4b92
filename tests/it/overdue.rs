//! `status`, `check` and the view of the tables agree on which tasks are overdue.

use std::collections::BTreeSet;

use duly::{Clock, Limits, NewTask, Outcome, ProblemKind};

use crate::fixtures::{TestDb, claim, minutes, once};

#[test]
fn status_counts_the_tasks_that_check_names() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add(once("again")).unwrap();
    let run = claim(&mut stepper);
    stepper.finish(&run, Outcome::succeeded());
    stepper.step().unwrap();
    client.add(NewTask::interval("planned", minutes(60)).handler("work")).unwrap();
    client.add(NewTask::interval("later", minutes(600)).handler("work")).unwrap();
    client.add(NewTask::manual("manual").handler("work")).unwrap();
    stepper.step().unwrap();
    // From here on no scheduler reads the file.
    let now = stepper.clock().now().wall.as_millis();
    let by_sql = format!(
        "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, updated_at)
         VALUES ('never-seen', 'work', 'cron', '0 7 * * *', {now}), ('manual-by-sql', 'work', 'manual', '', {now}),
                ('paused', 'work', 'cron', '0 7 * * *', {now});
         UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'paused';
         UPDATE scheduled_tasks SET next_run = {now} WHERE name = 'again'"
    );
    db.execute(&by_sql);
    let status = client.status().unwrap();
    assert_eq!((status.due, status.overdue), (2, 0), "a row that no scheduler has seen yet is due at once");
    stepper.clock().advance(minutes(70));
    let named: BTreeSet<String> = client
        .check(&Limits::default())
        .unwrap()
        .into_iter()
        .filter(|problem| problem.kind == ProblemKind::Overdue)
        .filter_map(|problem| problem.task)
        .collect();
    assert_eq!(named, ["again", "never-seen", "planned"].map(str::to_owned).into());
    let status = client.status().unwrap();
    assert_eq!((status.due, status.overdue), (3, 3));
    stepper.step().unwrap();
    let status = client.status().unwrap();
    assert_eq!((status.due, status.overdue), (0, 0));
}
