//! What the simulation has found, each told in small.

use duly::testing::Stepper;
use duly::{AttemptOutcome, NewTask, Outcome, Retry};

use crate::house::{House, at, minutes, seconds};
use crate::table::{claim, step};

const START: &str = "2027-03-14T12:00:00Z";

fn day(time: &str) -> String {
    format!("2027-03-14T{time}:00Z")
}

/// Lets the clock show a time of the day, and takes a step.
fn step_at(stepper: &mut Stepper, time: &str, claims: usize) {
    stepper.clock().set_wall(at(&day(time)));
    step(stepper, claims);
}

#[test]
fn what_was_cut_short_is_taken_up_again_though_it_would_have_expired() {
    let house = House::new();
    let mut owner = house.stepper(START);
    owner.client().add(NewTask::once("post", at(START)).handler("work").expires(seconds(20))).unwrap();
    let first = claim(&mut owner);
    let error = "cut short".to_owned();
    owner.finish(&first, Outcome::Failed { how: AttemptOutcome::Failed, error, retry: Retry::Interrupted });
    owner.settle().unwrap();
    owner.clock().advance(minutes(1));
    assert_eq!(claim(&mut owner).attempt, 2, "it had begun in time");
}

#[test]
fn what_is_given_back_after_the_clock_was_set_right_does_not_wait_for_the_wrong_time() {
    let house = House::new();
    let mut owner = house.stepper(&day("20:00"));
    owner.client().add(NewTask::once("post", at(&day("20:00"))).handler("work")).unwrap();
    let one = claim(&mut owner);
    step_at(&mut owner, "09:00", 0);
    owner.finish(&one, Outcome::Released);
    assert_eq!(claim(&mut owner).attempt, 2);
}
