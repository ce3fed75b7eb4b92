//! The timeline: the runs of each task as bars in a lane, drawn as SVG.

use std::sync::Arc;
use std::time::Duration;

use axum::extract;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;

use crate::clock::Timestamp;
use crate::model::filter::NamePattern;
use crate::model::run::RunStatus;
use crate::model::views::{Lane, LaneRun, Timeline, Window};
use crate::page::html::lanes::{Bar, Plot, Span, Tick, WIDTH, bars, percent, ticks};
use crate::page::html::parts::{empty, filter, show, table, text_field};
use crate::page::html::{Content, Nav, links, rendered};
use crate::page::state::State;
use crate::text::times::Times;
use crate::text::units::short_duration;

/// Lanes of one page.
const LANES: usize = 50;
/// Occurrences of a lane that are read one by one, and triggered runs. The older ones are counted.
const RUNS: usize = 240;
/// Runs of a page that are counted, in about a tenth of a second. All pages and monitors wait as long: they share a connection.
const COUNTED: usize = 50_000;
/// Dead runs of a window that are read beside those of its lanes, the newest first, if there are more runs than are counted.
const DEAD: usize = 2000;
/// Bars of a page, and of a lane: a bar is about 150 bytes, of several statuses 230.
const PAGE_BARS: usize = 450;
const LANE_BARS: usize = 200;
/// Future occurrences of a page, and of a lane.
const PAGE_AHEAD: usize = 200;
const LANE_AHEAD: usize = 24;
/// A run that began later after its occurrence says when.
const LATE: Duration = Duration::from_secs(1);
/// Height of a lane in pixels; as in `page.css`. And of a bar of several statuses.
const HEIGHT: usize = 28;
const COLUMN: usize = 22;

/// The query of the page.
#[derive(Clone, Debug, Default, Deserialize)]
pub(in crate::page) struct Query {
    span: Option<String>,
    /// The end of the window, RFC 3339; without it, a little after now.
    until: Option<String>,
    /// A pattern for the names of tasks.
    task: Option<String>,
    /// The name after which the page begins.
    after: Option<String>,
}

/// What the page shows.
struct Shown {
    span: Span,
    /// `None`: it follows the clock.
    until: Option<Timestamp>,
    plot: Plot,
    pattern: String,
    after: Option<String>,
}

impl Shown {
    fn new(query: &Query, now: Timestamp) -> Self {
        let span = query.span.as_deref().and_then(Span::parse).unwrap_or(Span::Day);
        let until: Option<Timestamp> = query.until.as_deref().and_then(|text| text.parse().ok());
        let least = Timestamp::MIN.plus(span.length());
        let until = until.map(|until| until.clamp(least, Timestamp::MAX));
        // A twelfth of the window is the future.
        let end = until.unwrap_or_else(|| now.plus(span.length() / 12));
        let plot = Plot { from: end.minus(span.length()), until: end };
        let pattern = query.task.as_deref().map(str::trim).unwrap_or_default().to_owned();
        Shown { span, until, plot, pattern, after: query.after.clone().filter(|name| !name.is_empty()) }
    }

    fn window(&self) -> Window {
        Window {
            from: self.plot.from,
            until: self.plot.until,
            pattern: (!self.pattern.is_empty()).then(|| NamePattern::new(self.pattern.clone())),
            after: self.after.clone(),
            lanes: LANES,
            runs: RUNS,
            part: self.plot.part(),
            counted: COUNTED,
            dead: DEAD,
        }
    }

    /// Returns the address of another window.
    fn link(&self, span: Span, until: Option<Timestamp>, after: Option<&str>) -> String {
        let mut path = format!("/timeline?span={}", span.name());
        if let Some(until) = until {
            path += &format!("&until={}", links::encoded(&until.to_string()));
        }
        for (name, value) in [("task", self.pattern.as_str()), ("after", after.unwrap_or_default())] {
            if !value.is_empty() {
                path += &format!("&{name}={}", links::encoded(value));
            }
        }
        path
    }
}

pub(in crate::page) async fn page(
    extract::State(state): extract::State<Arc<State>>,
    extract::Query(query): extract::Query<Query>,
) -> Response {
    rendered(state, Nav::Timeline, move |view| {
        let shown = Shown::new(&query, view.times.now);
        let timeline = view.state.reader.timeline(&shown.window())?;
        Ok(Content::new("Timeline", main(&view.times, &shown, &timeline)))
    })
    .await
}

fn main(times: &Times, shown: &Shown, timeline: &Timeline) -> Markup {
    let Shown { span, until, plot, pattern, .. } = shown;
    let half = span.length() / 2;
    html! {
        div.head {
            h1 { "Timeline" }
            span.muted { (times.local(plot.from)) " – " (times.local(plot.until)) " " (times.zone.name()) }
        }
        div.timeline-tools {
            nav.zoom aria-label="Length of the window" {
                @for (one, name) in Span::ALL {
                    a.button href=(shown.link(one, *until, None)) aria-current=[(one == *span).then_some("true")] { (name) }
                }
            }
            nav.zoom aria-label="Move the window" {
                a.button href=(shown.link(*span, Some(plot.until.minus(half)), None)) { "← Earlier" }
                a.button href=(shown.link(*span, Some(plot.until.plus(half)), None)) { "Later →" }
                @if until.is_some() { a.button href=(shown.link(*span, None, None)) { "Now" } }
            }
            (filter("/timeline", !pattern.is_empty(), &html! {
                input type="hidden" name="span" value=(span.name());
                @if let Some(until) = until { input type="hidden" name="until" value=(until); }
                (text_field("task", "Task", "name or pattern: report-*", pattern))
            }))
        }
        @if timeline.lanes.is_empty() {
            (empty("Nothing in this window", &html! {
                @if timeline.next.is_some() { "No task up to here has a run in it; more follow." }
                @else { "No task has a run or a future occurrence in it." }
            }))
        } @else {
            (chart(times, shown, timeline))
            (legend())
            (alternative(times, timeline))
        }
        @if shown.after.is_some() || timeline.next.is_some() {
            nav.paging aria-label="Pages of the lanes" {
                @if shown.after.is_some() { a.button rel="first" href=(shown.link(*span, *until, None)) { "← First tasks" } }
                @if let Some(next) = &timeline.next {
                    a.button rel="next" href=(shown.link(*span, *until, Some(next))) { "More tasks →" }
                }
            }
        }
    }
}

/// Returns names on the left, and the plot, which takes the rest of the width.
fn chart(times: &Times, shown: &Shown, timeline: &Timeline) -> Markup {
    let (Shown { plot, .. }, lanes) = (shown, &timeline.lanes);
    let most = (share(lanes), (PAGE_AHEAD / lanes.len().max(1)).clamp(2, LANE_AHEAD));
    let ticks = ticks(*plot, &times.zone);
    let height = lanes.len() * HEIGHT;
    html! {
        div.timeline {
            div.lane-names {
                @for lane in lanes { a href=(links::task(&lane.task)) title=(show(&lane.task, 200)) { (show(&lane.task, 60)) } }
            }
            div.plot {
                (scale(&ticks))
                svg width="100%" height=(height) role="group" aria-label="Runs in lanes per task. A table follows." {
                    (patterns())
                    @for (number, _) in lanes.iter().enumerate().filter(|(number, _)| number % 2 == 1) {
                        rect.band x="0" y=(number * HEIGHT) width="100%" height=(HEIGHT) {}
                    }
                    @for tick in &ticks { line.grid x1=(percent(tick.place)) x2=(percent(tick.place)) y1="0" y2=(height) {} }
                    @for (number, lane) in lanes.iter().enumerate() { (lane_svg(times, shown, lane, number, most)) }
                    @if plot.holds(times.now) {
                        line.now x1=(percent(plot.place(times.now))) x2=(percent(plot.place(times.now))) y1="0" y2=(height) {
                            title { "now, " (times.local(times.now)) }
                        }
                    }
                }
            }
        }
        @if lanes.iter().any(|lane| lane.counted_from.is_some()) {
            p.note {
                "Hatched: the page counts at most " (COUNTED) " runs in all, the newest of each lane. Here, older runs are missing, but "
                @if timeline.has_all_dead { "no dead ones" } @else { "none of the newest " (DEAD) " dead runs" }
                ". A shorter window or a filter by task leaves fewer runs to count."
            }
        }
    }
}

/// Returns the most bars of a lane. What lanes with few runs leave free is for the others: bars that are joined look like one long run.
fn share(lanes: &[Lane]) -> usize {
    let total = |most: usize| lanes.iter().map(|lane| (lane.runs.len() + lane.counts.len()).min(most)).sum::<usize>();
    (2..=LANE_BARS).rev().find(|most| total(*most) <= PAGE_BARS).unwrap_or(2)
}

fn scale(ticks: &[Tick]) -> Markup {
    html! {
        svg.scale width="100%" height="24" aria-hidden="true" {
            @for tick in ticks.iter().filter(|tick| tick.place < WIDTH - 300) {
                text x=(percent(tick.place)) y="16" class=[(!tick.is_major).then_some("minor")] { (tick.label) }
            }
        }
    }
}

/// The fill patterns, by which bars differ without colour.
fn patterns() -> Markup {
    html! {
        defs {
            pattern #stripes width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                rect.stripe-ground width="6" height="6" {}
                rect.stripe width="3" height="6" {}
            }
            pattern #hatch width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                rect.hatch-line width="1" height="6" {}
            }
        }
    }
}

fn lane_svg(times: &Times, shown: &Shown, lane: &Lane, number: usize, (most, most_ahead): (usize, usize)) -> Markup {
    let plot = shown.plot;
    let top = number * HEIGHT;
    let bars = bars(lane, plot, times.now, most);
    let ahead = ahead(lane, plot, times.now, most_ahead);
    html! {
        @if let Some(from) = lane.counted_from.filter(|at| plot.place(*at) > 0) {
            rect.sampled x="0" y=(top + 2) width=(percent(plot.place(from))) height=(HEIGHT - 4) {
                title { "runs before " (times.brief(from)) " are missing; dead ones are shown" }
            }
        }
        g transform={ "translate(0," (top) ")" } {
            @for bar in &bars { (bar_svg(times, plot, bar)) }
            @for at in &ahead {
                rect.ahead x=(percent(plot.place(*at))) width="3" { title { "due " (times.local(*at)) } }
            }
        }
    }
}

/// The place and height of a bar within its lane are in `page.css`: each status has its own, so that no colour is needed. A bar of several
/// statuses is a column of their shares, what matters most on top.
fn bar_svg(times: &Times, plot: Plot, bar: &Bar) -> Markup {
    let (x, width) = (percent(bar.start), percent(bar.end - bar.start));
    // The table below has links for the Tab key.
    html! {
        a href=(links::run(bar.newest)) tabindex="-1" {
            title { (title(times, plot, bar)) }
            @if bar.counts.len() == 1 { rect class=(bar.status()) x=(x) width=(width) {} }
            @else {
                @for (status, top, height) in shares(bar) {
                    rect class=(status) x=(x) width=(width) y=((HEIGHT - COLUMN) / 2 + top) height=(height) {}
                }
            }
        }
    }
}

/// Returns the top and the height of each status in a column, in proportion to its runs; none is too small to be seen.
fn shares(bar: &Bar) -> Vec<(RunStatus, usize, usize)> {
    let least = (COLUMN / bar.counts.len()).min(4);
    let free = COLUMN - least * bar.counts.len();
    let (mut seen, all) = (0, bar.counts.iter().map(|(_, count)| count).sum::<usize>());
    let place = |number: usize, seen: usize| least * number + free * seen / all;
    let share = |(number, (status, count)): (usize, &(RunStatus, usize))| {
        let top = place(number, seen);
        seen += count;
        (*status, top, place(number + 1, seen) - top)
    };
    bar.counts.iter().enumerate().map(share).collect()
}

fn title(times: &Times, plot: Plot, bar: &Bar) -> String {
    let Some(LaneRun { status, scheduled_for, started_at, duration, occurrences, .. }) = &bar.run else {
        let [start, end] = [bar.start, bar.end].map(|place| times.brief(plot.at(place)));
        return format!("{}, {start} – {end}", words(&bar.counts));
    };
    let mut text = format!("{status} {}", times.brief(*scheduled_for));
    if *occurrences > 1 {
        text += &format!(", {occurrences} occurrences");
    }
    let is_run = !matches!(status, RunStatus::Skipped | RunStatus::Missed);
    if let Some(started) = started_at.filter(|at| is_run && at.since(*scheduled_for) >= LATE) {
        text += &format!(", began {}", times.brief(started));
    }
    if let Some(length) = duration {
        text += &format!(", took {}", short_duration(*length));
    }
    text
}

/// Returns the future occurrences of a lane within the plot.
fn ahead(lane: &Lane, plot: Plot, now: Timestamp, most: usize) -> Vec<Timestamp> {
    let Some(task) = &lane.ahead else { return Vec::new() };
    let ahead = task.ahead(most).unwrap_or_default();
    ahead.into_iter().map(|one| one.at).filter(|at| plot.holds(*at) && *at >= now).collect()
}

fn legend() -> Markup {
    html! {
        ul.legend aria-label="Legend" {
            @for status in RunStatus::ALL {
                li {
                    svg width="18" height=(HEIGHT) aria-hidden="true" { rect class=(status) x="2" width="14" {} }
                    (status)
                }
            }
            li { svg width="18" height=(HEIGHT) aria-hidden="true" { rect.ahead x="7" width="3" {} } "due" }
        }
    }
}

/// Returns the lanes as a table, for readers without sight.
fn alternative(times: &Times, timeline: &Timeline) -> Markup {
    html! {
        details {
            summary { "As a table" }
            (table("Runs by task", &["Task", "Runs in the window", "Newest"], &html! {
                @for lane in &timeline.lanes {
                    tr {
                        th scope="row" { a href=(links::task(&lane.task)) { (show(&lane.task, 60)) } }
                        td { (counts(times, lane, timeline.has_all_dead)) }
                        td {
                            @if let Some(run) = lane.runs.first() {
                                a href=(links::run(run.id)) { "run " (run.id) } " " (run.status) ", " (times.brief(run.scheduled_for))
                            }
                        }
                    }
                }
            }))
        }
    }
}

fn counts(times: &Times, lane: &Lane, has_all_dead: bool) -> String {
    let count = |one: RunStatus| {
        let counted = lane.counts.iter().filter(|counted| counted.status == one).map(|counted| counted.count);
        lane.runs.iter().filter(|run| run.status == one).count() + counted.sum::<usize>()
    };
    let mut counts: Vec<(RunStatus, usize)> = RunStatus::ALL.iter().map(|one| (*one, count(*one))).collect();
    counts.retain(|(_, count)| *count > 0);
    let others = if has_all_dead { " that are not dead" } else { "" };
    let more = lane.counted_from.map(|from| format!("more before {}{others}", times.brief(from)));
    match more {
        None if counts.is_empty() => "none yet".to_owned(),
        None => words(&counts),
        Some(more) if counts.is_empty() => more,
        Some(more) => format!("{}, and {more}", words(&counts)),
    }
}

/// Returns how many have each status: `2 dead, 38 succeeded`.
fn words(counts: &[(RunStatus, usize)]) -> String {
    counts.iter().map(|(status, count)| format!("{count} {status}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_a_column_fill_it_and_none_is_too_small_to_be_seen() {
        use RunStatus::{Cancelled, Dead, Succeeded};
        let column = |counts: &[(RunStatus, usize)]| {
            shares(&Bar { start: 0, end: 25, counts: counts.to_vec(), newest: 1, run: None })
        };
        assert_eq!(column(&[(Dead, 1), (Succeeded, 229)]), [(Dead, 0, 4), (Succeeded, 4, 18)]);
        assert_eq!(column(&[(Dead, 229), (Succeeded, 1)]), [(Dead, 0, 17), (Succeeded, 17, 5)]);
        assert_eq!(
            column(&[(Dead, 1), (Cancelled, 1), (Succeeded, 1)]),
            [(Dead, 0, 7), (Cancelled, 7, 7), (Succeeded, 14, 8)]
        );
        let all = column(&RunStatus::ALL.iter().map(|status| (*status, 1)).collect::<Vec<_>>());
        assert_eq!(all.iter().map(|(_, _, height)| height).sum::<usize>(), COLUMN);
        assert!(all.iter().all(|(_, _, height)| *height >= 2), "{all:?}");
    }
}
