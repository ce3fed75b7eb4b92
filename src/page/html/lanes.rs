//! The layout of the timeline: where an instant is, which bars are drawn, where the ticks are. Pure.
//!
//! All places are parts of the width of the plot, in ten-thousandths, so that the width itself is left to the browser.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use chrono::{Datelike, NaiveDateTime, NaiveTime, Timelike};

use crate::clock::Timestamp;
use crate::model::run::RunStatus;
use crate::model::views::{Counted, Lane, LaneRun};
use crate::schedule::Zone;

/// The width of the plot.
pub(in crate::page) const WIDTH: u32 = 10_000;
/// The shortest bar: two pixels of eight hundred.
const SHORTEST: u32 = 25;
/// The first cells in which bars are joined.
const CELL: u32 = SHORTEST / 2;
/// The width of a part of the plot in which runs are counted: some cells.
const PART: u32 = 4 * CELL;

/// The instants that the plot shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::page) struct Plot {
    pub(in crate::page) from: Timestamp,
    pub(in crate::page) until: Timestamp,
}

impl Plot {
    /// Returns the place of an instant; one outside of the plot is at its edge.
    pub(in crate::page) fn place(&self, at: Timestamp) -> u32 {
        let length = self.until.since(self.from).as_millis().max(1);
        let since = at.since(self.from).as_millis().min(length);
        u32::try_from(since * u128::from(WIDTH) / length).unwrap_or(WIDTH)
    }

    /// Returns the instant at a place.
    pub(in crate::page) fn at(&self, place: u32) -> Timestamp {
        self.from.plus(self.until.since(self.from) / WIDTH * place)
    }

    /// Returns the length of a part in which runs are counted.
    pub(in crate::page) fn part(&self) -> Duration {
        self.until.since(self.from) / WIDTH * PART
    }

    /// Returns whether the plot shows an instant.
    pub(in crate::page) fn holds(&self, at: Timestamp) -> bool {
        self.from <= at && at < self.until
    }
}

/// A bar: one run, or several that are too close to be told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::page) struct Bar {
    pub(in crate::page) start: u32,
    pub(in crate::page) end: u32,
    /// How many runs have each status, the one that matters most first. Never empty.
    pub(in crate::page) counts: Vec<(RunStatus, usize)>,
    /// The id of the newest run with the status that matters most.
    pub(in crate::page) newest: i64,
    /// The run, if it is one, and was not only counted.
    pub(in crate::page) run: Option<LaneRun>,
}

impl Bar {
    /// Returns the status that matters most.
    pub(in crate::page) fn status(&self) -> RunStatus {
        self.counts[0].0
    }

    /// Returns the number of runs.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// Adds the runs of a bar that begins later.
    fn join(&mut self, other: Bar) {
        if weight(other.status()) >= weight(self.status()) {
            self.newest = other.newest;
        }
        (self.end, self.run) = (self.end.max(other.end), None);
        for (status, count) in other.counts {
            match self.counts.iter_mut().find(|(one, _)| *one == status) {
                Some((_, all)) => *all += count,
                None => self.counts.push((status, count)),
            }
        }
        self.counts.sort_by_key(|(status, _)| Reverse(weight(*status)));
    }
}

/// How much a status matters: of runs that share a bar, it has the status that matters most.
fn weight(status: RunStatus) -> u8 {
    match status {
        RunStatus::Dead => 7,
        RunStatus::Failed => 6,
        RunStatus::Missed => 5,
        RunStatus::Running => 4,
        RunStatus::Queued => 3,
        RunStatus::Cancelled => 2,
        RunStatus::Skipped => 1,
        _ => 0,
    }
}

/// Returns the bars of a lane in the order in which they are drawn, at most `most`. Runs that share a place become one bar, and runs that
/// were counted are bars of their part. If there are too many, those become one that begin in the same cell of a grid, as coarse as it
/// must be; a run that is longer than a cell keeps a bar of its own, so that no bar reaches over times for which it does not stand.
pub(in crate::page) fn bars(lane: &Lane, plot: Plot, now: Timestamp, most: usize) -> Vec<Bar> {
    let counted = in_cells(lane.counts.iter().filter_map(part).collect(), PART);
    let bars = counted.into_iter().chain(lane.runs.iter().filter_map(|run| bar(run, plot, now))).collect();
    let mut cell = CELL;
    let mut bars = merged(bars, cell);
    while bars.len() > most.max(2) {
        cell *= 2;
        bars = merged(bars, cell);
    }
    bars
}

/// Returns the bar of runs that were counted, if the plot shows their part.
fn part(counted: &Counted) -> Option<Bar> {
    let Counted { part, status, count, newest } = *counted;
    let start = part.checked_mul(PART).filter(|start| *start < WIDTH)?;
    Some(Bar { start, end: (start + PART).min(WIDTH), counts: vec![(status, count)], newest, run: None })
}

/// Returns the bar of a run, if the plot shows a part of it. A skipped or missed run is where its occurrence was.
fn bar(run: &LaneRun, plot: Plot, now: Timestamp) -> Option<Bar> {
    let (start, end) = match run.status {
        RunStatus::Skipped | RunStatus::Missed => {
            (run.scheduled_for, run.last_scheduled_for.unwrap_or(run.scheduled_for))
        }
        RunStatus::Queued => (run.scheduled_for, now),
        RunStatus::Running => (run.started_at.unwrap_or(run.scheduled_for), now),
        _ => {
            let finished = run.finished_at.unwrap_or(run.scheduled_for);
            let taken = run.duration.map(|length| finished.minus(length));
            (run.started_at.or(taken).unwrap_or(finished), finished)
        }
    };
    let end = end.max(start);
    if end < plot.from || start >= plot.until {
        return None;
    }
    let from = plot.place(start).min(WIDTH - SHORTEST);
    let to = plot.place(end).max(from + SHORTEST);
    Some(Bar { start: from, end: to, counts: vec![(run.status, 1)], newest: run.id, run: Some(run.clone()) })
}

/// Joins the bars that begin in the same cell, of those that are not longer than one. Returns first the long ones, then the others: what
/// matters most is drawn last, and nothing hides it.
fn merged(bars: Vec<Bar>, cell: u32) -> Vec<Bar> {
    let is_short = |bar: &Bar| bar.end - bar.start <= cell.max(SHORTEST);
    let (short, mut all): (Vec<Bar>, Vec<Bar>) = bars.into_iter().partition(is_short);
    let mut short = in_cells(short, cell);
    for bars in [&mut all, &mut short] {
        bars.sort_by_key(|bar| (weight(bar.status()), bar.start, bar.newest));
    }
    all.extend(short);
    all
}

/// Joins the bars that begin in the same cell.
fn in_cells(mut bars: Vec<Bar>, cell: u32) -> Vec<Bar> {
    bars.sort_by_key(|bar| (bar.start, bar.newest));
    let mut cells: BTreeMap<u32, Bar> = BTreeMap::new();
    for bar in bars {
        match cells.entry(bar.start / cell) {
            Entry::Occupied(mut joined) => joined.get_mut().join(bar),
            Entry::Vacant(free) => drop(free.insert(bar)),
        }
    }
    cells.into_values().collect()
}

/// A line of the time scale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::page) struct Tick {
    pub(in crate::page) place: u32,
    pub(in crate::page) label: String,
    /// Whether it is one of the few that a narrow screen labels.
    pub(in crate::page) is_major: bool,
}

/// Returns the ticks of a plot in local time: at round local times, so that an hour that the clock skips or repeats moves none of
/// the others.
pub(in crate::page) fn ticks(plot: Plot, zone: &Zone) -> Vec<Tick> {
    let length = plot.until.since(plot.from);
    let hours = length.as_secs() / 3600;
    // The step in minutes, and the number of steps between labels that a narrow screen shows.
    let (step, major) = match hours {
        0..=1 => (10, 2),
        2..=30 => (120, 3),
        _ => (24 * 60, 2),
    };
    let Some(mut local) = zone.local_at(plot.from).and_then(|local| rounded(local, step)) else { return Vec::new() };
    let mut ticks = Vec::new();
    for _ in 0..64 {
        let at = zone.first_showing(local);
        if at >= plot.until {
            break;
        }
        if at >= plot.from {
            let place = plot.place(at);
            // After a gap, two round times are one instant.
            if ticks.last().is_none_or(|tick: &Tick| tick.place < place) {
                let shown = zone.local_at(at).unwrap_or(local);
                let label = shown.format(if step < 24 * 60 { "%H:%M" } else { "%a %d %b" }).to_string();
                let number = match step {
                    1440.. => i64::from(local.date().num_days_from_ce()),
                    _ => i64::from(local.hour() * 60 + local.minute()) / step,
                };
                ticks.push(Tick { place, label, is_major: number % major == 0 });
            }
        }
        let Some(next) = local.checked_add_signed(chrono::TimeDelta::minutes(step)) else { break };
        local = next;
    }
    ticks
}

/// Returns the newest local time not after `local` that is a multiple of `minutes` after midnight.
fn rounded(local: NaiveDateTime, minutes: i64) -> Option<NaiveDateTime> {
    let since = i64::from(local.hour() * 60 + local.minute());
    let midnight = local.date().and_time(NaiveTime::MIN);
    midnight.checked_add_signed(chrono::TimeDelta::minutes(since / minutes * minutes))
}

/// Returns the middle of a mark as a percentage: `12.34%`.
pub(in crate::page) fn percent(place: u32) -> String {
    let text = format!("{}.{:02}", place / 100, place % 100);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}%")
}

/// The spans that the timeline offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::page) enum Span {
    Hour,
    Day,
    Week,
}

impl Span {
    pub(in crate::page) const ALL: [(Span, &str); 3] = [(Span::Hour, "hour"), (Span::Day, "day"), (Span::Week, "week")];

    pub(in crate::page) fn parse(text: &str) -> Option<Self> {
        Span::ALL.iter().find(|(_, name)| *name == text).map(|(span, _)| *span)
    }

    pub(in crate::page) fn name(self) -> &'static str {
        Span::ALL.iter().find(|(span, _)| *span == self).map_or("", |(_, name)| name)
    }

    pub(in crate::page) fn length(self) -> Duration {
        let hours = match self {
            Span::Hour => 1,
            Span::Day => 24,
            Span::Week => 7 * 24,
        };
        Duration::from_secs(hours * 3600)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: i64 = 1_805_025_600_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(NOON + 1000 * seconds)
    }

    fn instant(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// An hour from noon.
    fn hour() -> Plot {
        Plot { from: at(0), until: at(3600) }
    }

    fn run(id: i64, status: RunStatus, start: i64, end: i64) -> LaneRun {
        let ended = !matches!(status, RunStatus::Running | RunStatus::Queued);
        LaneRun {
            id,
            status,
            scheduled_for: at(start),
            started_at: (status != RunStatus::Queued).then(|| at(start)),
            finished_at: ended.then(|| at(end)),
            duration: None,
            occurrences: 1,
            last_scheduled_for: None,
        }
    }

    fn lane(runs: &[LaneRun]) -> Lane {
        Lane { task: "t".to_owned(), runs: runs.to_vec(), counts: Vec::new(), counted_from: None, ahead: None }
    }

    fn places(runs: &[LaneRun]) -> Vec<(u32, u32, RunStatus, usize)> {
        let bars = bars(&lane(runs), hour(), at(1800), 100);
        bars.iter().map(|bar| (bar.start, bar.end, bar.status(), bar.count())).collect()
    }

    #[test]
    fn an_instant_has_a_place_and_those_outside_are_at_the_edge() {
        let places = [-1, 0, 900, 3599, 3600, 9999].map(|seconds| hour().place(at(seconds)));
        assert_eq!(places, [0, 0, 2500, 9997, 10_000, 10_000]);
        let all = Plot { from: Timestamp::MIN, until: Timestamp::MAX };
        assert_eq!(
            [all.place(Timestamp::from_millis(i64::MIN)), all.place(Timestamp::from_millis(i64::MAX))],
            [0, WIDTH]
        );
        let empty = Plot { from: at(0), until: at(0) };
        assert_eq!(empty.place(at(1)), WIDTH);
        assert_eq!([0, 5, 1200, 1234, WIDTH].map(percent), ["0%", "0.05%", "12%", "12.34%", "100%"]);
    }

    #[test]
    fn each_status_has_its_bar() {
        use RunStatus::{Cancelled, Dead, Failed, Missed, Queued, Running, Skipped, Succeeded};
        for status in [Succeeded, Dead, Failed, Cancelled] {
            assert_eq!(places(&[run(1, status, 900, 1800)]), [(2500, 5000, status, 1)]);
        }
        // A running or waiting run lasts until now, which is half past.
        for status in [Running, Queued] {
            assert_eq!(places(&[run(1, status, 900, 0)]), [(2500, 5000, status, 1)]);
        }
        // An occurrence that was not run is a mark, and a row of several reaches to the newest.
        for status in [Skipped, Missed] {
            let one = run(1, status, 900, 3000);
            assert_eq!(places(std::slice::from_ref(&one)), [(2500, 2525, status, 1)]);
            assert_eq!(places(&[LaneRun { last_scheduled_for: Some(at(1800)), ..one }]), [(2500, 5000, status, 1)]);
        }
        // Cancelled before an attempt began: where it ended.
        let cancelled = LaneRun { started_at: None, ..run(1, Cancelled, 0, 1800) };
        assert_eq!(places(&[cancelled]), [(5000, 5025, Cancelled, 1)]);
    }

    #[test]
    fn bars_are_clipped_at_the_edges_and_a_short_one_is_visible() {
        use RunStatus::Succeeded;
        assert_eq!(places(&[run(1, Succeeded, -900, 900)]), [(0, 2500, Succeeded, 1)]);
        assert_eq!(places(&[run(1, Succeeded, 2700, 9999)]), [(7500, 10_000, Succeeded, 1)]);
        assert_eq!(places(&[run(1, Succeeded, 1800, 1800)]), [(5000, 5025, Succeeded, 1)]);
        assert_eq!(places(&[run(1, Succeeded, 3599, 3599)]), [(9975, 10_000, Succeeded, 1)]);
        assert_eq!(places(&[run(1, Succeeded, -20, -10), run(2, Succeeded, 3600, 3700)]), []);
    }

    #[test]
    fn bars_that_share_a_place_become_one_that_counts_each_status() {
        use RunStatus::{Dead, Succeeded};
        let runs = [run(1, Succeeded, 1798, 1798), run(2, Dead, 1799, 1799), run(3, Succeeded, 1800, 1800)];
        let bars = bars(&lane(&runs), hour(), at(3600), 100);
        assert_eq!((bars.len(), bars[0].newest, &*bars[0].counts), (1, 2, &[(Dead, 1), (Succeeded, 2)][..]));
        // Beside them, one that must not be merged.
        assert_eq!(places(&[run(1, Succeeded, 1800, 1800), run(2, Dead, 1860, 1860)]).len(), 2);
    }

    #[test]
    fn there_are_never_more_bars_than_allowed_and_no_run_is_lost_or_reaches_over_others() {
        use RunStatus::{Dead, Succeeded};
        let every = |period: i64| {
            let status = |id: i64| if id % period == 0 { Dead } else { Succeeded };
            lane(&(1..3600).map(|id| run(id, status(id), id, id)).collect::<Vec<_>>())
        };
        for (period, most) in [(10_000, 20), (900, 20), (2, 20), (2, 1), (7, 400), (3, 3)] {
            let bars = bars(&every(period), hour(), at(3600), most);
            assert!(bars.len() <= most.max(2), "{} of {most}", bars.len());
            let mut starts: Vec<u32> = bars.iter().map(|bar| bar.start).collect();
            starts.sort_unstable();
            assert!(starts.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(bars.windows(2).all(|pair| weight(pair[0].status()) <= weight(pair[1].status())));
            let count = |wanted| {
                bars.iter()
                    .flat_map(|bar| &bar.counts)
                    .filter(|(one, _)| *one == wanted)
                    .map(|(_, count)| count)
                    .sum::<usize>()
            };
            let dead = (3599 / period) as usize;
            assert_eq!((count(Dead), count(Succeeded)), (dead, 3599 - dead));
        }
        // A dead run among many that succeeded: its bar is one of many, and says that it is the one of them.
        let one = bars(&every(1800), hour(), at(3600), 200);
        let dead: Vec<&Bar> = one.iter().filter(|bar| bar.status() == Dead).collect();
        assert_eq!((dead.len(), dead[0].counts[0]), (1, (Dead, 1)));
        assert!(dead[0].end - dead[0].start <= 125 && dead[0].count() <= 40, "{:?}", dead[0]);
        // A long run beside many short ones keeps its own bar.
        let mut mixed = every(10_000);
        mixed.runs.push(run(9999, Dead, 600, 1800));
        let bars = bars(&mixed, hour(), at(3600), 20);
        let long = bars.iter().find(|bar| bar.status() == Dead).unwrap();
        assert_eq!((long.start, long.end, long.count()), (1666, 5000, 1));
    }

    #[test]
    fn runs_that_were_counted_are_bars_of_their_part_and_join_the_others() {
        use RunStatus::{Dead, Succeeded};
        let counted = |part, status, count| Counted { part, status, count, newest: i64::from(part) };
        let counts =
            vec![counted(0, Succeeded, 30), counted(0, Dead, 1), counted(1, Succeeded, 4), counted(208, Dead, 2)];
        let lane = Lane { counts, ..lane(&[run(999, Succeeded, 1800, 1800)]) };
        let shown = |most| {
            let bars = bars(&lane, hour(), at(3600), most);
            let shown = bars.into_iter().map(|bar| (bar.start, bar.end, bar.counts, bar.newest));
            shown.collect::<Vec<_>>()
        };
        assert_eq!(
            shown(100),
            [
                (48, 96, vec![(Succeeded, 4)], 1),
                (0, 48, vec![(Dead, 1), (Succeeded, 30)], 0),
                (5000, 5025, vec![(Succeeded, 1)], 999),
                (9984, 10_000, vec![(Dead, 2)], 208)
            ]
        );
        let both = (0, 96, vec![(Dead, 1), (Succeeded, 34)], 0);
        assert_eq!(shown(3)[1], both, "the newest dead one is linked");
        // The instants of a part, and of its bar.
        assert_eq!(hour().part().as_millis() * 10_000, 3_600_000 * 48);
        assert_eq!(
            [0, 48, 5000, WIDTH].map(|place| hour().at(place)),
            [at(0), Timestamp::from_millis(NOON + 17_280), at(1800), at(3600)]
        );
        // A part that no plot has.
        assert_eq!(part(&counted(u32::MAX, Dead, 1)).or(part(&counted(209, Dead, 1))), None);
    }

    fn labels(from: &str, until: &str, zone: &str) -> Vec<(u32, String)> {
        let plot = Plot { from: instant(from), until: instant(until) };
        ticks(plot, &Zone::built_in(zone)).into_iter().map(|tick| (tick.place, tick.label)).collect()
    }

    #[test]
    fn ticks_are_round_local_times() {
        let hour = labels("2027-03-14T12:05:00Z", "2027-03-14T13:05:00Z", "Asia/Kolkata");
        assert_eq!(
            hour.iter().map(|(_, label)| label.as_str()).collect::<Vec<_>>(),
            ["17:40", "17:50", "18:00", "18:10", "18:20", "18:30"]
        );
        assert_eq!(hour[0].0, 833);
        let week = labels("2027-03-10T12:00:00Z", "2027-03-17T12:00:00Z", "UTC");
        assert_eq!((week.len(), week[0].1.as_str(), week[0].0), (7, "Thu 11 Mar", 714));
        let all = Plot { from: Timestamp::MIN, until: Timestamp::MAX };
        assert!(ticks(all, &Zone::built_in("UTC")).len() <= 64);
    }

    #[test]
    fn ticks_follow_a_change_of_the_clock() {
        // Rome skips 02:00 to 03:00: the first instant after the gap is labelled 03:00, and the day has 23 hours.
        let spring = labels("2027-03-27T23:00:00Z", "2027-03-28T22:00:00Z", "Europe/Rome");
        let shown: Vec<&str> = spring.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(
            shown,
            [
                "00:00", "03:00", "04:00", "06:00", "08:00", "10:00", "12:00", "14:00", "16:00", "18:00", "20:00",
                "22:00"
            ]
        );
        assert_eq!(spring[1].0, 2 * WIDTH / 23);
        // Rome shows 02:00 to 03:00 twice: one tick, at the first pass, and 04:00 five hours after midnight.
        let autumn = labels("2027-10-30T22:00:00Z", "2027-10-31T23:00:00Z", "Europe/Rome");
        let shown: Vec<&str> = autumn.iter().map(|(_, label)| label.as_str()).take(4).collect();
        assert_eq!(shown, ["00:00", "02:00", "04:00", "06:00"]);
        assert_eq!((autumn[1].0, autumn[2].0), (2 * WIDTH / 25, 5 * WIDTH / 25));
    }
}
