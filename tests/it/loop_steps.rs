//! The loop of a scheduler, step by step: orders of events that threads would meet by chance, or only after seconds of real time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use duly::testing::{Arrival, LoopLane, LoopOrder, LoopStep, Looped, Stepper};
use duly::{Claim, Event, NewTask, Outcome, RetryPolicy, RunStatus};

use crate::fixtures::{NOON, REFUSE, TestDb, at, is_of_sqlite, listen, once, seconds};

/// A scheduler with this number of workers, whose loop the test drives.
fn looped(db: &TestDb, workers: usize, lanes: Vec<LoopLane>) -> Looped {
    let builder = lanes.iter().flat_map(|lane| &*lane.handlers).fold(db.builder(NOON), |it, name| it.accept(name));
    let builder = builder.accept("work").workers(workers).poll(seconds(10));
    Looped::new(builder.start().unwrap(), lanes, None)
}

/// Carries out what the loop decides until it waits or has ended.
fn until_it_waits(stepper: &mut Looped) -> Vec<LoopStep> {
    let mut steps = Vec::new();
    while !matches!(steps.last(), Some(LoopStep::Waits(_) | LoopStep::Ended)) {
        steps.push(stepper.step().unwrap());
    }
    steps
}

fn wake(stepper: &mut Looped, arrival: Arrival) -> Vec<LoopStep> {
    stepper.wake(arrival);
    until_it_waits(stepper)
}

/// As [`wake`], and returns what was handed over, and until when the loop waits.
fn wake_and_take(stepper: &mut Looped, arrival: Arrival) -> (Vec<Arc<Claim>>, Duration) {
    let (mut taken, mut wait) = (Vec::new(), None);
    for step in wake(stepper, arrival) {
        match step {
            LoopStep::HandedOver(claims) => taken.extend(claims.into_iter().map(|(_, claim)| claim)),
            LoopStep::Waits(until) => wait = Some(until),
            _ => {}
        }
    }
    (taken, wait.expect("it waits"))
}

/// A worker takes this claim, and its handler returns.
fn finish(stepper: &mut Looped, claim: &Arc<Claim>, outcome: Outcome) {
    stepper.take(claim);
    stepper.finish(claim, outcome);
}

/// The steps in words, without the wait at the end.
fn words(steps: &[LoopStep]) -> Vec<String> {
    let word = |step: &LoopStep| match step {
        LoopStep::Turned(turn) if turn.room.is_none() => format!("drains, returns {}", turn.released.len()),
        LoopStep::Turned(_) => "turn".to_owned(),
        LoopStep::HandedOver(claims) => format!("hands over {}", claims.len()),
        LoopStep::StopsAll => "stops all".to_owned(),
        LoopStep::Reported(unfinished) => format!("reports {unfinished}"),
        LoopStep::Waits(_) => "waits".to_owned(),
        LoopStep::Ended => "ends".to_owned(),
    };
    steps.iter().map(word).collect()
}

/// Its handler has returned. A caller that does not wait gets the run reported; one that does waits until its outcome is recorded, with
/// async handlers too, which are cut when no other run is unfinished.
#[test]
fn an_outcome_that_cannot_be_recorded_is_unfinished() {
    type Change = fn(&TestDb, &Stepper);
    let refused: (Change, Change) = (|db, _| _ = db.execute(REFUSE), |db, _| _ = db.execute("DROP TRIGGER refuse"));
    let not_set: (Change, Change) = (
        |_, stepper| stepper.clock().set_wall(at("1970-01-01T00:00:10Z")),
        |_, stepper| stepper.clock().set_wall(at("2027-03-14T12:01:00Z")),
    );
    for (prevent, allow) in [refused, not_set] {
        for (order, obeyed) in [
            (LoopOrder::Cut, &["stops all", "reports 1", "drains, returns 0", "waits"][..]),
            (LoopOrder::DrainWorkers, &["drains, returns 0", "waits"]),
        ] {
            let db = TestDb::new();
            let mut stepper = looped(&db, 1, Vec::new());
            stepper.client().add(once("short")).unwrap();
            let (claims, _) = wake_and_take(&mut stepper, Arrival::Nothing);
            prevent(&db, &stepper);
            finish(&mut stepper, &claims[0], Outcome::succeeded());
            assert_eq!(words(&wake(&mut stepper, Arrival::Outcomes)), ["turn", "waits"]);
            stepper.order(order);
            assert_eq!(words(&wake(&mut stepper, Arrival::Order)), obeyed);
            assert_eq!(db.count(RunStatus::Running), 1);
            allow(&db, &stepper);
            stepper.clock().advance(seconds(60));
            assert_eq!(words(&wake(&mut stepper, Arrival::Nothing)), ["drains, returns 0", "ends"]);
            assert_eq!(db.count(RunStatus::Succeeded), 1);
        }
    }
}

/// A turn records the end of 250 attempts at most, so the claims are returned in two turns. The order to stop waiting, which is there
/// before, is not obeyed until then.
#[test]
fn a_shutdown_without_patience_counts_no_run_that_has_not_begun() {
    for are_handed_over in [false, true] {
        let db = TestDb::new();
        let mut stepper = looped(&db, 256, Vec::new());
        stepper.client().add_all((0..255).map(|number| once(&format!("claimed-{number}")))).unwrap();
        assert!(matches!(stepper.step().unwrap(), LoopStep::Turned(turn) if turn.claims.len() == 255));
        if are_handed_over {
            assert_eq!(words(&until_it_waits(&mut stepper)), ["hands over 255", "waits"]);
        }
        [LoopOrder::Drain, LoopOrder::Cut].into_iter().for_each(|order| stepper.order(order));
        if are_handed_over {
            stepper.wake(Arrival::Order);
        }
        assert_eq!(words(&until_it_waits(&mut stepper)), ["drains, returns 255", "drains, returns 0", "ends"]);
        let returned = "SELECT count(*) FROM task_runs WHERE status = 'queued' AND (attempt, forgiven) = (1, 1)";
        assert_eq!(db.ask(returned), "255", "they wait for the next scheduler");
        stepper.into_stepper().stop().unwrap();
        db.assert_sound();
    }
}

/// What a host that dies has claimed, and neither begun nor stored: one run of each worker, and what is read ahead, which is worth 200 ms of
/// work. Turns take 100 ms, and their outcomes are stored in the turn that follows.
#[test]
fn what_is_claimed_is_worth_200_ms_of_work_and_each_outcome_is_stored_in_the_next_turn() {
    const WORKERS: usize = 8;
    for (millis, most) in [(5, 8 + 320), (20, 8 + 80), (200, 8 + 8), (1_000, 8 + 1), (60_000, 8)] {
        let db = TestDb::brief();
        let mut stepper = looped(&db, WORKERS, Vec::new());
        stepper.client().add_all((0..1_500).map(|n| once(&format!("t-{n}")))).unwrap();
        let mut waiting: VecDeque<_> = wake_and_take(&mut stepper, Arrival::Nothing).0.into();
        let mut longest = 0;
        for _ in 0..9 {
            for _ in 0..(100 / millis).max(1) {
                let begun: Vec<_> = waiting.drain(..WORKERS.min(waiting.len())).collect();
                for claim in &begun {
                    stepper.take(claim);
                    stepper.begin(claim);
                }
                stepper.clock().advance(Duration::from_millis(millis));
                begun.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
            }
            waiting.extend(wake_and_take(&mut stepper, Arrival::Outcomes).0);
            waiting.retain(|claim| !stepper.given_back().iter().any(|back| Arc::ptr_eq(back, claim)));
            let claimed = db.count(RunStatus::Running);
            assert_eq!(claimed, waiting.len(), "{millis} ms: the others are stored");
            longest = longest.max(claimed);
        }
        assert_eq!(longest, most, "{millis} ms");
    }
}

/// The retries of a refused write wait 0.1 s, then twice as long each time, up to 5 s. A watchdog counts turns meanwhile.
#[test]
fn turns_continue_in_each_poll_interval_while_a_refused_write_is_retried() {
    if is_of_sqlite("another program holds the lock of the file") {
        return;
    }
    let (db, (observer, events), poll) = (TestDb::new(), listen(), Duration::from_millis(50));
    let builder = db.builder(NOON).accept("work").observe(observer).poll(poll).lease(seconds(1));
    let mut stepper = Looped::new(builder.busy_timeout(Duration::ZERO).start().unwrap(), Vec::new(), None);
    wake(&mut stepper, Arrival::Nothing);
    let other = db.plain();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let before = stepper.now().monotonic;
    for _ in 0..200 {
        let now = stepper.now().monotonic;
        let (_, until) = wake_and_take(&mut stepper, Arrival::Nothing);
        assert!(until > now && until <= now + poll, "after {:?} it waits for {:?}", now - before, until - now);
        stepper.clock().advance(until - now);
    }
    let reported: Vec<Event> = events.try_iter().collect();
    assert!(matches!(&reported[..], [.., Event::Degraded { .. }]), "{reported:?}");
    other.execute_batch("ROLLBACK").unwrap();
    stepper.clock().advance(seconds(5));
    wake(&mut stepper, Arrival::Nothing);
    let reported: Vec<Event> = events.try_iter().collect();
    assert!(matches!(&reported[..], [.., Event::Recovered]), "{reported:?}");
}

/// Returns how many of two hundred short runs begin before one that may start only once, and comes when as many as possible are read ahead.
fn begun_before(once_only: NewTask) -> usize {
    let db = TestDb::new();
    let mut stepper = looped(&db, 2, Vec::new());
    stepper.client().add_all((0..200).map(|number| once(&format!("bulk-{number}")))).unwrap();
    let (mut queue, mut arrival) = (VecDeque::new(), Arrival::Nothing);
    for begun in 0..200 {
        if begun == 5 {
            stepper.client().add(once_only.clone().at_most_once()).unwrap();
        }
        queue.extend(wake_and_take(&mut stepper, arrival).0);
        let claim: Arc<Claim> = queue.pop_front().expect("a claim");
        if claim.task == "once" {
            return begun - 5;
        }
        assert!(begun != 4 || queue.len() >= 8, "{} are read ahead", queue.len());
        finish(&mut stepper, &claim, Outcome::succeeded());
        arrival = Arrival::Outcomes;
    }
    panic!("all others began before it")
}

#[test]
fn a_run_that_may_start_only_once_is_not_starved_by_read_ahead() {
    let urgent = begun_before(once("once").priority(0));
    assert!(urgent < 20, "{urgent}: more than were read ahead when it came");
    let oldest = begun_before(NewTask::once("once", at("2026-01-01T00:00:00Z")).handler("work").priority(3));
    assert!(oldest < 40, "{oldest}: it is the oldest, and every eighth goes by age");
}

/// The workers are busy and runs wait for them, while the runtime has slots: the loop neither spins nor sleeps through a retry.
#[test]
fn a_full_lane_neither_keeps_the_loop_awake_nor_makes_the_other_late() {
    let db = TestDb::new();
    let mut stepper = looped(&db, 2, vec![LoopLane::new("flaky", 1000, true)]);
    let client = stepper.client().clone();
    client.add_all((0..6).map(|number| once(&format!("holds-{number}")))).unwrap();
    let (holding, _) = wake_and_take(&mut stepper, Arrival::Nothing);
    assert_eq!(holding.len(), 2);
    for claim in &holding {
        stepper.take(claim);
        stepper.begin(claim);
    }
    let backoff = Duration::from_millis(400);
    let retry = RetryPolicy { max_attempts: 2, backoff, max_backoff: backoff };
    client.add(NewTask::once("flaky", at(NOON)).handler("flaky").retry(retry)).unwrap();
    let (claims, _) = wake_and_take(&mut stepper, Arrival::Nothing);
    finish(&mut stepper, &claims[0], Outcome::failed("again"));
    let mut woken = wake_and_take(&mut stepper, Arrival::Outcomes);
    let due = client.run(claims[0].run_id).unwrap().unwrap().run_at;
    let mut turns = 0;
    while woken.0.is_empty() {
        let (now, until) = (stepper.now(), woken.1);
        assert!(turns < 5 && until > now.monotonic && now.wall < due, "{turns} turns; {now:?}, waits until {until:?}");
        stepper.clock().advance(until - now.monotonic);
        woken = wake_and_take(&mut stepper, Arrival::Nothing);
        turns += 1;
    }
    assert_eq!((stepper.now().wall, &*woken.0[0].task, woken.0[0].attempt), (due, "flaky", 2));
}
