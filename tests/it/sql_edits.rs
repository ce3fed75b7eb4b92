//! Effects of a change by SQL on due, waiting and running work, through the two connections of `sql`. Beside every changed
//! row is one that must not change.

use duly::Outcome;

use crate::fixtures::{TestDb, advance_and_step, finish_all, minutes, seconds};
use crate::sql::{Program, at_machine_time, insert, insert_due, names, present_time, programs, stages, turn};

/// Without the code that a server adds to what a trigger says.
fn without_code(rows: Vec<String>) -> Vec<String> {
    rows.into_iter().map(|row| row.replace(" [SQLSTATE P0001]", "")).collect()
}

#[test]
fn a_user_trigger_that_raises_pauses_one_task_and_no_other() {
    for (sql, db, mut stepper) in stages() {
        sql(&(insert_due("refused") + &insert_due("waits")));
        sql("UPDATE scheduled_tasks SET next_run = created_at + 60000 WHERE name = 'waits'");
        sql("CREATE TRIGGER no_run BEFORE INSERT ON task_runs WHEN NEW.task_id = 1
             BEGIN SELECT RAISE(ABORT, 'not in my db'); END;
             CREATE TRIGGER no_start BEFORE UPDATE OF status ON task_runs WHEN NEW.task_id = 2 AND NEW.status = 'running'
             BEGIN SELECT RAISE(ABORT, 'not this one either'); END;",
        );
        sql(&(insert_due("first") + &insert_due("second")));
        let claims = turn(&mut stepper);
        assert_eq!(names(&claims), ["first", "second"]);
        let refused = "SELECT name, invalid_reason FROM scheduled_tasks WHERE status = 'invalid'";
        assert_eq!(without_code(db.rows(refused)), ["refused|not in my db"]);

        // A waiting run that cannot be claimed: it is queued while all workers are busy, and then precedes others.
        sql(&(insert_due("third") + &insert_due("fourth")));
        assert_eq!(turn(&mut stepper).len(), 2);
        stepper.clock().set_wall(present_time().plus(seconds(60)));
        assert!(stepper.step().unwrap().is_empty());
        sql(&insert_due("behind"));
        claims.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
        stepper.clock().set_wall(present_time().plus(seconds(60)));
        assert_eq!(names(&stepper.step().unwrap()), ["behind"]);
        assert_eq!(without_code(db.rows(refused)), ["refused|not in my db"]);
        let aside = "SELECT detail FROM scheduler_events WHERE kind = 'set_aside'";
        let waits = db.ask("SELECT id FROM task_runs WHERE task_id = 2");
        assert_eq!(without_code(db.rows(aside)), [format!("the claim of run {waits}: not this one either")]);
        assert!(stepper.step().unwrap().is_empty());
        let idle = stepper.transactions();
        assert!(stepper.step().unwrap().is_empty());
        let turns = stepper.transactions() - idle;
        assert!(turns <= extra_turns(&db), "the run that cannot be claimed causes no extra turn");

        // The user drops the trigger.
        sql("DROP TRIGGER no_run; DROP TRIGGER no_start; UPDATE scheduled_tasks SET status = 'active'");
        finish_all(&mut stepper, &Outcome::succeeded());
        let claims = advance_and_step(&mut stepper, seconds(20));
        let mut again = names(&claims);
        again.sort_unstable();
        assert_eq!(again, ["refused", "waits"]);
        db.assert_sound();
    }
}

fn runs(db: &TestDb, name: &str) -> Vec<String> {
    db.rows(&format!(
        "SELECT origin, r.status, blocked, error FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
          WHERE name = '{name}' ORDER BY r.id"
    ))
}

/// Statements that move a task's past back by hours, as if time had passed.
fn moved_back(name: &str, hours: u64) -> String {
    let ago = 3_600_000 * hours;
    format!(
        "UPDATE scheduled_tasks SET created_at = created_at - {ago}, active_since = active_since - {ago},
                next_run = next_run - {ago} WHERE name = '{name}';"
    )
}

#[test]
fn occurrences_during_a_pause_by_sql_are_passed_over() {
    for (sql, db, mut stepper) in stages() {
        sql(&(insert("subject", "interval", "7m") + &insert("twin", "interval", "7m")));
        turn(&mut stepper);
        sql("UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'subject'");
        turn(&mut stepper);
        let rests = "SELECT status, next_run, planned FROM scheduled_tasks WHERE name = 'subject'";
        assert_eq!(db.rows(rests), ["paused|-|1"]);
        sql(&(moved_back("subject", 3) + &moved_back("twin", 3)));
        assert_eq!(names(&turn(&mut stepper)), ["twin"]);
        assert_eq!((runs(&db, "subject").len(), runs(&db, "twin").len()), (0, 2), "a missed span, and a run");

        // Setting `next_run` of a paused task does not start it.
        sql("UPDATE scheduled_tasks SET next_run = created_at WHERE name = 'subject'");
        assert!(turn(&mut stepper).is_empty());
        let twin = db.rows_of("twin");
        sql("UPDATE scheduled_tasks SET status = 'active' WHERE name = 'subject'");
        assert!(turn(&mut stepper).is_empty());
        let ahead = "SELECT status, planned, (next_run - created_at) % 420000, next_run > active_since,
                            next_run <= active_since + 420000 FROM scheduled_tasks WHERE name = 'subject'";
        assert_eq!(db.rows(ahead), ["active|1|0|1|1"], "on the old grid, from now on");
        assert_eq!((runs(&db, "subject").len(), db.rows_of("twin")), (0, twin));

        // A one-time task that became due meanwhile runs.
        sql(&insert_due("once"));
        sql("UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'once'");
        assert!(turn(&mut stepper).is_empty());
        sql("UPDATE scheduled_tasks SET status = 'active' WHERE name = 'once'");
        assert_eq!(names(&turn(&mut stepper)), ["once"]);
        db.assert_sound();
    }
}

#[test]
fn a_waiting_run_is_paused_and_resumed_with_its_task() {
    for (sql, db, mut stepper) in stages() {
        sql(&(insert("subject", "interval", "7m") + &insert("twin", "interval", "7m")));
        sql("UPDATE scheduled_tasks SET next_run = created_at");
        assert_eq!(turn(&mut stepper).len(), 2);
        finish_all(&mut stepper, &Outcome::failed("no luck"));
        turn(&mut stepper);
        let manual = stepper.client().trigger("subject").unwrap();
        let blocked = "SELECT blocked FROM task_runs WHERE task_id = 1 ORDER BY id";
        let twin = db.rows_of("twin");
        sql("UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'subject'");
        assert_eq!(db.rows_of("twin"), twin);
        stepper.clock().set_wall(present_time().plus(seconds(10)));
        let claims = stepper.step().unwrap();
        assert_eq!(claims.iter().map(|claim| claim.run_id).collect::<Vec<_>>(), [manual, 2]);
        assert_eq!(db.rows(blocked), ["paused", "-"], "a request by hand is never held back by a pause");

        sql("UPDATE scheduled_tasks SET status = 'active' WHERE name = 'subject'");
        stepper.step().unwrap();
        assert_eq!(db.rows(blocked), ["key", "-"]);
        claims.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
        assert_eq!(stepper.step().unwrap()[0].run_id, 1);
        db.assert_sound();
    }
}

#[test]
fn occurrences_due_before_a_change_are_recorded() {
    for program in programs() {
        for change in [
            "status = 'paused'",
            "schedule_value = '8m'",
            "time_zone = 'Europe/Rome'",
            "ends_at = 4000000000000",
            "status = 'paused', next_run = NULL",
            "schedule_value = '8m', next_run = NULL",
        ] {
            let (db, mut stepper) = at_machine_time();
            program.execute(&db, &(insert("subject", "interval", "7m") + &insert("twin", "interval", "7m")));
            turn(&mut stepper);
            program.execute(&db, "UPDATE scheduled_tasks SET next_run = created_at - 1");
            let due_at = db.ask("SELECT next_run FROM scheduled_tasks WHERE name = 'subject'");
            let twin = db.rows_of("twin");
            program.execute(&db, &format!("UPDATE scheduled_tasks SET {change} WHERE name = 'subject'"));
            let missed =
                "schedule|missed|-|at least 1: the task was changed by SQL before what was due had been resolved";
            assert_eq!(runs(&db, "subject"), [missed], "{change}");
            let row = "SELECT resolved_until, planned, next_run, active_since >= created_at FROM scheduled_tasks";
            assert_eq!(db.rows(row)[0], format!("{due_at}|0|-|1"), "{change}");
            assert_eq!(db.rows_of("twin"), twin);
            assert_eq!(names(&turn(&mut stepper)), ["twin"]);
            // An instant before the newest resolved occurrence is not due, by any change.
            program.execute(&db, "UPDATE scheduled_tasks SET status = 'active' WHERE name = 'subject'");
            turn(&mut stepper);
            program.execute(&db, "UPDATE scheduled_tasks SET next_run = resolved_until - 1 WHERE name = 'subject'");
            program.execute(&db, "UPDATE scheduled_tasks SET schedule_value = '9m' WHERE name = 'subject'");
            assert_eq!(runs(&db, "subject"), [missed], "{change}: recorded once");
            db.assert_sound();
        }
    }
}

#[test]
fn a_changed_schedule_counts_from_now_and_reactivates_a_completed_task() {
    for (sql, db, mut stepper) in stages() {
        sql(&(insert_due("over")
            + &insert_due("twin")
            + &insert("cron", "cron", "0 0 1 1 *")
            + &insert("rests", "cron", "@daily")));
        assert_eq!(turn(&mut stepper).len(), 2);
        finish_all(&mut stepper, &Outcome::succeeded());
        sql("UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'rests'");
        turn(&mut stepper);
        let (twin, cron) = (db.rows_of("twin"), db.rows_of("cron"));
        sql("UPDATE scheduled_tasks SET schedule_value = schedule_value, time_zone = 'UTC', status = status");
        assert_eq!((db.rows_of("twin"), db.rows_of("cron")), (twin.clone(), cron), "the same again changes nothing");

        let soon = present_time().plus(minutes(5));
        sql(&format!("UPDATE scheduled_tasks SET schedule_value = '{soon}' WHERE name = 'over'"));
        sql("UPDATE scheduled_tasks SET schedule_value = '@hourly' WHERE name IN ('cron', 'rests')");
        assert!(turn(&mut stepper).is_empty());
        let state = "SELECT name, status, planned, next_run - active_since BETWEEN 1 AND 3600000 FROM scheduled_tasks";
        assert_eq!(db.rows(state), ["over|active|1|1", "twin|completed|1|-", "cron|active|1|1", "rests|paused|1|-"]);
        assert_eq!(db.ask("SELECT next_run FROM scheduled_tasks WHERE name = 'over'"), soon.as_millis().to_string());
        stepper.clock().set_wall(soon);
        assert!(names(&stepper.step().unwrap()).contains(&"over"));
        assert_eq!(db.rows_of("twin"), twin);
        db.assert_sound();
    }
}

#[test]
fn next_run_set_to_now_runs_now_and_the_schedule_continues() {
    for (sql, db, mut stepper) in stages() {
        sql(&(insert("subject", "interval", "7m") + &insert("twin", "interval", "7m")));
        turn(&mut stepper);
        let twin = db.rows_of("twin");
        let now = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)";
        sql(&format!("UPDATE scheduled_tasks SET next_run = {now} WHERE name = 'subject'"));
        assert_eq!(names(&turn(&mut stepper)), ["subject"]);
        let grid = "SELECT next_run - created_at, last_run, planned FROM scheduled_tasks WHERE name = 'subject'";
        assert_eq!(db.rows(grid), ["420000|-|1"]);
        assert_eq!(db.rows_of("twin"), twin);
        // Also in a row that no scheduler has seen yet.
        sql(&insert("fresh", "cron", "0 0 1 1 *")
            .replace("value)", "value, next_run)")
            .replace("*')", &format!("*', {now})")));
        assert_eq!(names(&turn(&mut stepper)), ["fresh"]);
        db.assert_sound();
    }
}

#[test]
fn cancel_requested_cancels_a_waiting_run_and_stops_a_running_one() {
    for (sql, db, mut stepper) in stages() {
        let rows: String = ["running", "failed", "twin"].map(|name| insert(name, "interval", "7m")).concat();
        sql(&rows);
        sql("UPDATE scheduled_tasks SET next_run = created_at");
        let claims = turn(&mut stepper);
        for claim in claims.iter().filter(|claim| claim.task != "running") {
            stepper.finish(claim, Outcome::failed("no luck"));
        }
        turn(&mut stepper);
        // Behind the key of the running one.
        sql(&insert_due("queued"));
        sql(&insert_due("next"));
        let manual = stepper.client().trigger("running").unwrap();
        let twin = db.rows_of("twin");
        sql("UPDATE task_runs SET cancel_requested = 1
                            WHERE task_id IN (SELECT id FROM scheduled_tasks WHERE name IN ('running', 'failed'))");
        assert_eq!(names(&turn(&mut stepper)), ["queued", "next"]);
        assert_eq!(runs(&db, "running"), ["schedule|running|-|-", "manual|cancelled|-|cancelled before it began"]);
        let between = "schedule|cancelled|-|cancelled while it waited for its next attempt";
        assert_eq!(runs(&db, "failed"), [between]);
        assert_eq!(stepper.stopped().first(), Some(&claims[0].run_id), "and not run {manual}");
        let last = "SELECT last_status, planned, status FROM scheduled_tasks WHERE name = 'failed'";
        assert_eq!(db.rows(last), ["cancelled|1|active"]);
        assert_eq!(db.rows_of("twin"), twin);
        stepper.finish(&claims[0], Outcome::failed("stopped"));
        turn(&mut stepper);
        assert_eq!(runs(&db, "running")[0], "schedule|cancelled|-|stopped");
        db.assert_sound();
    }
}

#[test]
fn a_repaired_handler_applies_to_waiting_runs() {
    for (sql, db, mut stepper) in stages() {
        sql(&(insert_due("subject") + &insert_due("twin") + &insert_due("done")).replace("'work'", "'wrok'"));
        sql("UPDATE scheduled_tasks SET handler = 'work' WHERE name = 'done'");
        assert_eq!(names(&turn(&mut stepper)), ["done"]);
        sql("UPDATE scheduled_tasks SET handler = 'wrok' WHERE name = 'done'");
        assert_eq!(db.ask("SELECT handler FROM task_runs WHERE task_id = 3"), "work", "what runs, runs on");
        finish_all(&mut stepper, &Outcome::succeeded());
        assert!(turn(&mut stepper).is_empty(), "no scheduler has that handler");
        let twin = db.rows_of("twin");
        sql("UPDATE scheduled_tasks SET handler = 'work' WHERE name = 'subject'");
        assert_eq!(names(&turn(&mut stepper)), ["subject"]);
        assert_eq!(db.rows_of("twin"), twin);
        assert_eq!(db.ask("SELECT handler FROM task_runs WHERE task_id = 3"), "work", "nor is history rewritten");
    }
}

#[test]
fn overlap_and_priority_apply_from_the_next_run() {
    for (sql, db, mut stepper) in stages() {
        sql(&(insert("subject", "interval", "7m") + &insert("twin", "interval", "7m")));
        sql("UPDATE scheduled_tasks SET next_run = created_at");
        assert_eq!(turn(&mut stepper).len(), 2);
        sql("UPDATE scheduled_tasks SET overlap = 'allow', priority = 0 WHERE name = 'subject'");
        assert_eq!(db.ask("SELECT group_concat(priority) FROM task_runs"), "1,1");
        turn(&mut stepper);
        stepper.clock().set_wall(present_time().plus(minutes(7)));
        assert_eq!(names(&stepper.step().unwrap()), ["subject"], "beside the first");
        let rows = "SELECT status, priority, concurrency_key FROM task_runs WHERE task_id = 1";
        assert_eq!(db.rows(rows), ["running|1|#1", "running|0|-"]);
        assert_eq!(runs(&db, "twin").len(), 2, "the twin skips");
        sql("UPDATE scheduled_tasks SET overlap = 'skip' WHERE name = 'subject'");
        stepper.step().unwrap();
        stepper.clock().set_wall(present_time().plus(minutes(14)));
        assert!(stepper.step().unwrap().is_empty());
        assert_eq!(runs(&db, "subject").len(), 3);
        db.assert_sound();
    }
}

#[test]
fn a_change_of_overlap_by_sql_applies_to_waiting_runs() {
    for program in programs() {
        let db = TestDb::new();
        let mut stepper = db.builder(&present_time().to_string()).start().unwrap();
        for name in ["subject", "twin"] {
            program.execute(&db, &(insert(name, "interval", "7m")));
        }
        program.execute(&db, "UPDATE scheduled_tasks SET overlap = 'allow', next_run = created_at");
        turn(&mut stepper);
        stepper.clock().set_wall(present_time().plus(minutes(7)));
        stepper.step().unwrap();
        let blocked = "SELECT group_concat(ifnull(blocked, '-')) FROM task_runs GROUP BY task_id";
        assert_eq!(db.rows(blocked), ["-,-", "-,-"]);
        for (overlap, becomes) in [("buffer_all", "-,order"), ("allow", "-,-")] {
            program.execute(&db, &format!("UPDATE scheduled_tasks SET overlap = '{overlap}' WHERE name = 'subject'"));
            stepper.step().unwrap();
            assert_eq!(db.rows(blocked), [becomes, "-,-"]);
        }
    }
}

#[test]
fn a_bad_row_that_no_turn_has_seen_cannot_be_paused() {
    let (db, mut stepper) = at_machine_time();
    Program::Plain.execute(&db, &insert("bad", "cron", "61 * * * *"));
    let refused = stepper.client().pause("bad").unwrap_err().to_string();
    assert!(refused.starts_with("cannot pause task \"bad\": it is invalid (") && refused.contains("61"), "{refused}");
    turn(&mut stepper);
    assert_eq!(db.ask("SELECT status FROM scheduled_tasks"), "invalid");
    let refused = stepper.client().trigger("bad").unwrap_err().to_string();
    assert!(refused.starts_with("cannot trigger task \"bad\": it is invalid"), "{refused}");
}

/// How many turns a look at nothing new may lead to while an item that is due is set aside: on a server, every commit in any database
/// looks like a change.
fn extra_turns(db: &TestDb) -> u64 {
    u64::from(db.is_on_server())
}

#[test]
fn a_refused_expiry_is_retried_at_the_next_poll_and_delays_no_other() {
    for (sql, db, mut stepper) in stages() {
        sql(&(insert_due("refused") + &insert_due("twin")).replace("'work'", "'elsewhere'"));
        let no = "CREATE TRIGGER no BEFORE UPDATE OF status ON task_runs WHEN NEW.task_id = 1
                  BEGIN SELECT RAISE(ABORT, 'no'); END";
        sql(&format!("UPDATE scheduled_tasks SET expires_ms = 1000; {no}"));
        turn(&mut stepper);
        stepper.clock().set_wall(present_time().plus(seconds(10)));
        stepper.step().unwrap();
        assert_eq!((runs(&db, "refused").len(), runs(&db, "twin").len()), (1, 1));
        assert_eq!(runs(&db, "twin"), ["schedule|missed|-|expired before an attempt began"]);
        stepper.step().unwrap();
        assert_eq!(stepper.sleeps(), seconds(1), "or it would turn without end");
        let before = stepper.transactions();
        stepper.step().unwrap();
        assert!(stepper.transactions() - before <= extra_turns(&db));
        let before = stepper.transactions();
        advance_and_step(&mut stepper, seconds(1));
        assert_eq!(stepper.transactions(), before + 1, "one by one at once, since it is known to fail");
    }
}
