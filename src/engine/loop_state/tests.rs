//! Steps of the loop that the simulation does not take: more outcomes than a turn writes, another history of the server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Now, Timestamp};
use crate::engine::lanes::Lanes;
use crate::engine::loop_state::{
    Act, GATHER, GATHER_ALL, Gathering, LoopState, NextTurn, Order, STOP_LIMIT, Sight, read_ahead,
};
use crate::engine::poller::Turn;
use crate::model::run::Claim;
use crate::store::turn_io::Slots;
use crate::worker::pool::QUEUE;

fn sight(millis: u64) -> Sight {
    let now = Now { wall: Timestamp::from_millis(1_805_025_600_000), monotonic: Duration::from_millis(millis) };
    Sight {
        now,
        workers: 2,
        unstarted: 0,
        beside: 0,
        beside_runtime: 0,
        unsettled: 0,
        writes_on: false,
        next_replacement: None,
        next_check: None,
        may_begin: true,
        must_register: false,
    }
}

fn state() -> LoopState {
    LoopState::new(Lanes::new(BTreeSet::from(["work".to_owned()])), Duration::from_secs(1), sight(0).now)
}

/// Goes on to the next turn, as a pool without claims does. Returns what that is given.
fn next_turn(state: &mut LoopState, sight: &Sight) -> NextTurn {
    assert!(matches!(state.next(sight), Act::Prepare(_)));
    state.recalled(Vec::new(), Vec::new());
    state.lanes_are(Vec::new(), Vec::new());
    match state.next(sight) {
        Act::Turn(next) => next,
        other => panic!("expected a turn, found {other:?}"),
    }
}

#[test]
fn a_drain_takes_turns_while_outcomes_are_left_to_write_and_ends_when_all_are_settled() {
    let mut state = state();
    assert_eq!(next_turn(&mut state, &sight(0)).slots, Some(Slots { room: 2, idle: 2 }));
    state.turned(Turn { wake_at: Duration::MAX, ..Turn::default() });
    assert!(matches!(state.next(&sight(0)), Act::Wait(until) if until == Duration::from_secs(1)));
    state.ordered(Order::Drain);
    assert_eq!(next_turn(&mut state, &sight(0)).slots, None);
    state.turned(Turn { wake_at: Duration::MAX, ..Turn::default() });
    let writes = Sight { unsettled: 300, writes_on: true, ..sight(0) };
    next_turn(&mut state, &writes);
    state.turned(Turn { wake_at: Duration::MAX, ..Turn::default() });
    // They are refused.
    assert!(matches!(state.next(&Sight { writes_on: false, ..writes }), Act::Wait(_)));
    next_turn(&mut state, &writes);
    state.turned(Turn::default());
    assert!(matches!(state.next(&sight(0)), Act::End));
}

/// Otherwise a shutdown without patience would return before the end is recorded.
#[test]
fn an_order_to_drain_is_obeyed_before_a_later_one_to_report_is_read() {
    let mut state = state();
    next_turn(&mut state, &sight(0));
    state.turned(Turn { wake_at: Duration::MAX, ..Turn::default() });
    assert!(matches!(state.next(&sight(0)), Act::Wait(_)));
    assert!(matches!(state.next(&sight(0)), Act::ReadOrder));
    state.ordered(Order::Drain);
    assert_eq!(next_turn(&mut state, &sight(0)).slots, None);
    state.turned(Turn { wake_at: Duration::MAX, ..Turn::default() });
    assert!(matches!(state.next(&sight(0)), Act::End));
}

#[test]
fn an_owner_registers_again_when_its_attempts_have_ended_or_do_not_end() {
    let mut state = state();
    let lost = |millis, beside| Sight { beside, must_register: true, may_begin: false, ..sight(millis) };
    // An attempt runs: it is waited for, and nothing begins.
    let running = lost(0, 1);
    assert_eq!(next_turn(&mut state, &running).slots, Some(Slots::default()));
    state.turned(Turn::default());
    assert!(matches!(state.next(&running), Act::Wait(_)));
    state.no_order();
    let late = lost(u64::try_from(STOP_LIMIT.as_millis()).unwrap(), 1);
    assert!(matches!(state.next(&late), Act::Prepare(_)));
    assert!(matches!(state.next(&late), Act::Register(1)), "it does not end");
    // That failed, and is tried again in the next turn, not in this one.
    assert!(matches!(state.next(&late), Act::Turn(_)));
    state.turned(Turn::default());
    assert!(matches!(state.next(&late), Act::Wait(_)));
    state.no_order();
    let ended = lost(30_000, 0);
    assert!(matches!(state.next(&ended), Act::Prepare(_)));
    assert!(matches!(state.next(&ended), Act::Register(0)));
    state.registered();
    let Act::Turn(next) = state.next(&sight(30_000)) else { panic!("a turn follows") };
    assert_eq!(next.slots, Some(Slots { room: 2, idle: 2 }));
}

#[test]
fn outcomes_that_come_one_by_one_are_not_gathered_for_long() {
    let (mut gathering, begun) = (Gathering::default(), Duration::from_secs(5));
    let mut now = begun;
    // Each comes as late as it may.
    for _ in 0..500 {
        let wait = gathering.wait(now);
        assert!(wait <= GATHER);
        now += wait;
    }
    assert_eq!(now, begun + GATHER_ALL);
}

#[test]
fn as_much_is_read_ahead_as_what_finished_shows_to_be_short() {
    let cases = [
        // Nothing has finished.
        (0, Duration::ZERO, 0),
        // No-ops.
        (2, Duration::from_micros(20), 32),
        (100, Duration::from_millis(1), QUEUE),
        // Two workers end 20 such attempts in 10 ms.
        (4, Duration::from_millis(4), 20),
        // Four times what has finished.
        (2, Duration::from_millis(80), 8),
        // But no more than two workers end in 200 ms.
        (2, Duration::from_millis(400), 2),
        (100, Duration::from_millis(1_000), 40),
        (2, Duration::from_secs(600), 0),
    ];
    for (finished, busy, ahead) in cases {
        assert_eq!(read_ahead(finished, busy, 2), ahead, "{finished} in {busy:?}");
    }
}

/// Claims for two kinds of handlers are as many as the one with fewer free slots may begin: the other may have more to claim.
#[test]
fn a_turn_follows_at_once_while_another_lane_may_claim_more() {
    let mut state = state();
    let wait = |state: &mut LoopState, claims: i64| {
        assert!(matches!(state.next(&sight(0)), Act::Prepare(_)));
        state.recalled(Vec::new(), Vec::new());
        state.lanes_are(vec![Arc::new(BTreeSet::from(["mail".to_owned()]))], vec![9]);
        let Act::Turn(next) = state.next(&sight(0)) else { panic!("a turn follows") };
        let claim = |run| Arc::new(Claim::described(run, 1, "t".to_owned(), "mail".to_owned(), sight(0).now.wall));
        let claims = (0..claims).map(claim).collect();
        state.turned(Turn { claims, wake_at: Duration::MAX, ..Turn::default() });
        loop {
            match state.next(&sight(0)) {
                Act::ReadOrder => state.no_order(),
                Act::CarryOut(_) => {}
                Act::Wait(until) => {
                    state.no_order();
                    return (next.slots.map(|slots| slots.room), until);
                }
                other => panic!("expected a wait, found {other:?}"),
            }
        }
    };
    assert_eq!(wait(&mut state, 2), (Some(2), Duration::ZERO), "mails have seven more slots");
    assert_eq!(wait(&mut state, 1), (Some(9), Duration::ZERO), "the workers may have more");
    assert_eq!(wait(&mut state, 0), (Some(2), Duration::from_secs(1)));
}
