//! What the simulation has found, each told in small.

use duly::{AttemptOutcome, NewTask, Outcome, Retry};

use crate::house::{House, at, minutes, seconds};
use crate::table::claim;

const START: &str = "2027-03-14T12:00:00Z";

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
