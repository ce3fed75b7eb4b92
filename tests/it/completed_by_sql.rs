//! A completed task that SQL gives a `next_run` becomes active at the next turn and runs.

use duly::Outcome;

use crate::sql::{at_machine_time, insert_due, names, programs, turn};

#[test]
fn a_completed_task_with_a_next_run_runs_again() {
    for program in programs() {
        let (db, mut stepper) = at_machine_time();
        let now = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)";
        program.execute(&db, &(insert_due("subject") + &insert_due("beside")));
        program.execute(
            &db,
            &format!(
                "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, starts_at, ends_at)
                 VALUES ('over', 'work', 'cron', '0 0 1 1 *', {now} - 60000, {now} - 1)"
            ),
        );
        turn(&mut stepper).iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
        turn(&mut stepper);
        let rows = "SELECT name, status, next_run IS NULL FROM scheduled_tasks ORDER BY name";
        assert_eq!(db.rows(rows), ["beside|completed|1", "over|completed|1", "subject|completed|1"]);
        let beside = db.rows("SELECT * FROM scheduled_tasks WHERE name = 'beside'");

        program.execute(&db, &format!("UPDATE scheduled_tasks SET next_run = {now} WHERE name <> 'beside'"));
        // Repeating the update changes nothing.
        program.execute(&db, "UPDATE scheduled_tasks SET next_run = next_run");
        assert_eq!(db.ask("SELECT group_concat(name) FROM scheduled_tasks WHERE planned = 0"), "subject,over");
        let mut claims = turn(&mut stepper);
        claims.sort_by(|one, other| one.task.cmp(&other.task));
        assert_eq!(names(&claims), ["over", "subject"]);
        claims.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
        assert!(turn(&mut stepper).is_empty());
        assert_eq!(db.rows(rows), ["beside|completed|1", "over|completed|1", "subject|completed|1"]);
        let runs = "SELECT name, count(*) FROM scheduled_tasks t JOIN task_runs r ON r.task_id = t.id GROUP BY name";
        assert_eq!(db.rows(runs), ["beside|1", "over|1", "subject|2"]);
        assert_eq!(db.rows("SELECT * FROM scheduled_tasks WHERE name = 'beside'"), beside);
        db.assert_sound();
    }
}

#[test]
fn a_completed_task_paused_by_sql_does_not_run_whatever_its_next_run() {
    for program in programs() {
        let (db, mut stepper) = at_machine_time();
        let now = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)";
        program.execute(&db, &(insert_due("subject") + &insert_due("waiting") + &insert_due("beside")));
        for claim in turn(&mut stepper) {
            let fails = Outcome::failed("not yet");
            stepper.finish(&claim, if claim.task == "waiting" { fails } else { Outcome::succeeded() });
        }
        turn(&mut stepper);
        // The new next run is due, but no scheduler has planned it.
        program.execute(&db, &format!("UPDATE scheduled_tasks SET next_run = {now} WHERE name = 'subject'"));
        program.execute(&db, "UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'subject'");
        program.execute(
            &db,
            &format!("UPDATE scheduled_tasks SET status = 'paused', next_run = {now} WHERE name = 'waiting'"),
        );
        assert!(turn(&mut stepper).is_empty());
        let rows = "SELECT name, t.status, t.next_run IS NULL, planned, group_concat(r.status), max(r.blocked)
                      FROM scheduled_tasks t JOIN task_runs r ON r.task_id = t.id GROUP BY t.id";
        assert_eq!(
            db.rows(rows),
            [
                "subject|paused|1|1|succeeded,missed|-",
                "waiting|paused|1|1|failed|paused",
                "beside|completed|1|1|succeeded|-"
            ]
        );
        db.assert_sound();
    }
}
