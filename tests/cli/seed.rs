//! A database with a history: the same rows in each test.

use std::path::Path;

use duly::testing::Stepper;
use duly::{Clock, NewTask, Outcome, Timestamp};

fn at(text: &str) -> Timestamp {
    text.parse().expect("an instant")
}

/// A day in March 2023 with runs of each kind: succeeded, dead after two attempts, missed, skipped, queued, hostile text.
pub(crate) fn fill(file: &Path) {
    let mut stepper = Stepper::builder(file, at("2023-03-14T06:59:00Z")).accept("work").start().expect("a stepper");
    let client = stepper.client().clone();
    let hourly = NewTask::cron("hourly", "0 * * * *").time_zone("Europe/Paris").handler("work").payload("anna");
    let policy = duly::RetryPolicy { max_attempts: 2, ..Default::default() };
    client.add(hourly.retry(policy)).expect("a task");
    // Wider than a table.
    let wide = NewTask::cron("report:monthly-balance-of-all-accounts", "0 7 1 * *").handler("work");
    client.add(wide.time_zone("America/Argentina/Buenos_Aires")).expect("a task");
    client.add(NewTask::once("hostile", at("2023-03-14T08:30:00Z")).handler("work").at_most_once()).expect("a task");

    let mut turn = |wall: &str, outcome: Option<Outcome>| {
        let now = stepper.clock().now().wall;
        stepper.clock().advance(at(wall).since(now));
        let claims = stepper.step().expect("a turn");
        if let Some(outcome) = outcome {
            stepper.clock().advance(std::time::Duration::from_millis(2_400));
            stepper.finish(&claims[0], outcome);
            stepper.step().expect("a turn");
        }
    };
    turn("2023-03-14T07:00:00Z", Some(Outcome::Succeeded { result: Some("{\"sent\":1}".into()) }));
    turn("2023-03-14T08:00:00Z", Some(Outcome::failed("no route to host\nsecond line")));
    turn("2023-03-14T08:01:00Z", Some(Outcome::failed("no route to host")));
    turn("2023-03-14T08:30:00Z", Some(Outcome::failed("\u{1b}[2Jgone\r\nerror: not ours")));
    // No turn for some hours; then a run takes longer than an hour.
    turn("2023-03-14T13:10:00Z", None);
    turn("2023-03-14T14:00:00Z", None);
    client.trigger("hourly").expect("a run");
    client.pause("hourly").expect("a pause");
}
