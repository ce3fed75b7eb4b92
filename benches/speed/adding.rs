//! Adding tasks that are due in the future: each in a commit of its own, and many in one. Compared with bare rows, and
//! with the same rows written into the same tables by hand as fast as possible, which is the cost of the tables
//! themselves.

use std::time::Instant;

use duly::{Client, NewTask, Scheduler, Timestamp};

use crate::Options;
use crate::bare::Bare;
use crate::measure::{median, wall_nanos};
use crate::report::{Goal, Report};
use crate::workloads::{ByHand, DURABILITIES, Home};

/// The number of alternating turns when adding one by one.
const TURNS: usize = 20;
/// The workload whose bare side writes into the tables of duly.
const BY_HAND: &str = "  .. to the same tables by hand";

/// Compared with the bare rows. A client commits at full durability, unless it belongs to a scheduler with another
/// setting.
pub(crate) fn run(options: &Options, report: &mut Report) {
    let (one_by_one, at_once) = (options.scaled(5_000, 300), options.scaled(20_000, 5_000));
    for (name, durability, synchronous) in DURABILITIES {
        let (mut bare_single, mut bare_all, mut single, mut all) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut hand_single, mut hand_all) = (Vec::new(), Vec::new());
        for _ in 0..options.rounds {
            let home = Home::new();
            let at = wall_nanos() / 1_000_000 + 86_400_000;
            let mut bare = Bare::open(&home.file("bare.db"), synchronous);
            let mut hand = ByHand::open(&home.file("hand.db"), synchronous);
            let (file, due) = (home.file("duly.db"), Timestamp::from_millis(at));
            // Its loop keeps sleeping: the added tasks are due in a day.
            let scheduler = Scheduler::builder(&file).durability(durability).start().expect("a scheduler");
            let own = (name == "full").then(|| Client::open(&file).expect("a client"));
            let client = own.as_ref().unwrap_or_else(|| scheduler.client());
            let task = |prefix: &str, n: usize| NewTask::once(format!("{prefix}-{n}"), due).handler("none");

            // In short turns: the speed of a commit varies from moment to moment.
            let (mut bare_time, mut hand_time, mut time) = (0.0, 0.0, 0.0);
            for turn in 0..TURNS {
                let some = turn * (one_by_one / TURNS)..(turn + 1) * (one_by_one / TURNS);
                hand_time += seconds(|| hand.add("one", some, at, true));
                bare_time += seconds(|| bare.add_one_by_one(one_by_one / TURNS, at));
                time += seconds(|| {
                    for n in 0..one_by_one / TURNS {
                        client.add(task(&format!("turn-{turn}"), n)).expect("a new task");
                    }
                });
            }
            bare_single.push(bare_time);
            hand_single.push(hand_time);
            single.push(time);
            bare_all.push(seconds(|| bare.add(at_once, at)));
            hand_all.push(seconds(|| hand.add("all", 0..at_once, at, false)));
            all.push(seconds(|| drop(client.add_all((0..at_once).map(|n| task("all", n))).expect("new tasks"))));
        }
        let rates = |tasks: usize, bare: Vec<f64>, duly: &[f64]| {
            (tasks as f64 / median(bare), tasks as f64 / median(duly.to_vec()))
        };
        report.ratio(("add, a commit each", name), rates(one_by_one, bare_single, &single), "/s", &Goal::None);
        report.ratio((BY_HAND, name), rates(one_by_one, hand_single, &single), "/s", &Goal::None);
        let workload = format!("add {at_once} in one commit");
        report.ratio((workload, name), rates(at_once, bare_all, &all), "/s", &Goal::None);
        report.ratio((BY_HAND, name), rates(at_once, hand_all, &all), "/s", &Goal::None);
    }
    report.detail(
        "add: at normal through a running scheduler's client, which need not wake it; at full through a client alone",
    );
}

fn seconds(f: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    f();
    begin.elapsed().as_secs_f64()
}
