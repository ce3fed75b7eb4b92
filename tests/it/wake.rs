//! A scheduler that polls once an hour: a request of its own client that is due earlier wakes it.

use std::time::Duration;

use crossbeam_channel::unbounded;
use duly::{Apply, Cancel, Client, Context, NewTask, RunStatus, Scheduler, SystemClock, Timestamp};

use crate::fixtures::{TestDb, at, minutes, patience, receive, seconds, wait_for_status};

fn task(name: &str, at: Timestamp) -> NewTask {
    NewTask::once(name, at).handler("work").at_most_once()
}

#[test]
fn a_request_of_the_own_client_wakes_the_scheduler() {
    let db = TestDb::new();
    let (sender, receiver) = unbounded();
    let scheduler = Scheduler::builder(db.address())
        .poll(minutes(60))
        // A heartbeat every eight hours.
        .lease(seconds(86_400))
        .handler("work", move |run: &Context| {
            sender.send(run.task().to_owned())?;
            match run.task() {
                "fails" => Err("no luck".into()),
                "waits" if run.wait_cancelled(seconds(60)) => Err("asked to stop".into()),
                _ => Ok::<_, duly::BoxError>(()),
            }
        })
        .start()
        .unwrap();
    let client: &Client = scheduler.client();
    let now = || duly::Clock::now(&SystemClock::new()).wall;
    let (past, far) = (at("2020-01-01T00:00:00Z"), now().plus(minutes(60 * 24)));
    let begins = |name: &str| assert_eq!(receive(&receiver, name), name);
    // Its outcome is recorded, and the loop sleeps again.
    let ends = |name: &str, status| wait_for_status(client, name, status);
    let passes = |name: &str| {
        begins(name);
        ends(name, RunStatus::Succeeded);
    };

    client.add(task("past", past)).unwrap();
    passes("past");
    client.add(task("soon", now().plus(Duration::from_millis(200)))).unwrap();
    passes("soon");
    client.add_if_absent(task("absent", past)).unwrap();
    passes("absent");
    // The urgent request need not be the first, or the last.
    client.add_all([task("far", far), task("among", past), task("farther", far)]).unwrap();
    passes("among");
    client.replace(task("far", past)).unwrap();
    passes("far");
    client.trigger("farther").unwrap();
    passes("farther");
    client.add(task("rests", now().plus(minutes(3 * 60)))).unwrap();
    client.pause("rests").unwrap();
    db.execute(&format!("UPDATE scheduled_tasks SET schedule_value = '{past}' WHERE name = 'rests'"));
    client.resume("rests").unwrap();
    passes("rests");
    client.apply("tasks.toml", [task("declared", past)], Apply::default()).unwrap();
    passes("declared");

    client.add(task("fails", past)).unwrap();
    begins("fails");
    ends("fails", RunStatus::Dead);
    client.retry(client.history("fails", 1).unwrap()[0].id).unwrap();
    begins("fails");
    ends("fails", RunStatus::Dead);
    client.add(task("waits", past)).unwrap();
    begins("waits");
    assert_eq!(client.cancel(client.history("waits", 1).unwrap()[0].id).unwrap(), Cancel::Asked);
    ends("waits", RunStatus::Cancelled);

    db.add_in_transaction(client, task("within", past), true);
    client.wake();
    passes("within");
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
}
