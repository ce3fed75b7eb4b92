//! Parts that several pages share. Text from the database is shown by [`show`]: without control characters, and shortened.

use std::time::Duration;

use maud::{Markup, html};

use crate::clock::Timestamp;
use crate::model::health::Limits;
use crate::model::run::RunStatus;
use crate::model::task::{Task, TaskStatus};
use crate::model::task_pages::Mark;
use crate::page::html::links;
use crate::text::escape;
use crate::text::times::Times;
use crate::text::units::short_duration;

/// Rows of one page of a table.
pub(in crate::page) const PAGE: usize = 50;
/// The last page that a link or an address can name.
const MAX_PAGE: usize = 1_000_000;

/// The meaning of a badge or a mark: its class in `page.css`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::page) enum Tone {
    Good,
    Bad,
    Warn,
    Busy,
    Idle,
}

impl Tone {
    pub(in crate::page) fn class(self) -> &'static str {
        match self {
            Tone::Good => "ok",
            Tone::Bad => "bad",
            Tone::Warn => "warn",
            Tone::Busy => "busy",
            Tone::Idle => "idle",
        }
    }
}

/// Returns text of the database as one line: control characters escaped, cut after `limit` characters.
pub(in crate::page) fn show(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", escape::one_line(&text[..end])),
        None => escape::one_line(text),
    }
}

/// Returns text of the database with its line ends, cut after `limit` characters with a note.
pub(in crate::page) fn block(text: &str, limit: usize) -> Markup {
    let end = text.char_indices().nth(limit).map(|(end, _)| end);
    html! {
        pre { (escape::lines(&text[..end.unwrap_or(text.len())])) }
        @if let Some(end) = end {
            p.note { "Cut: the first " (bytes(end)) " of " (bytes(text.len())) "." }
        }
    }
}

fn bytes(count: usize) -> String {
    crate::text::units::bytes(u64::try_from(count).unwrap_or(u64::MAX))
}

/// Returns a number with its noun: `1 problem`, `2 problems`.
pub(in crate::page) fn plural(count: impl TryInto<u64>, noun: &str) -> String {
    crate::text::units::count_of(count, noun)
}

/// The meaning of a run's status.
pub(in crate::page) fn run_tone(status: RunStatus) -> Tone {
    match status {
        RunStatus::Succeeded => Tone::Good,
        RunStatus::Dead => Tone::Bad,
        RunStatus::Failed | RunStatus::Missed => Tone::Warn,
        RunStatus::Running => Tone::Busy,
        _ => Tone::Idle,
    }
}

/// Returns a badge: a word with a coloured sign.
pub(in crate::page) fn badge(tone: Tone, text: &str) -> Markup {
    html! { span class={ "badge " (tone.class()) } { (text) } }
}

pub(in crate::page) fn run_badge(status: RunStatus) -> Markup {
    badge(run_tone(status), status.as_str())
}

/// Returns the badge of a task: its status, or of an active task that runs of it died since its last success or resume, or that its last run
/// waits for a retry.
pub(in crate::page) fn task_badge(task: &Task) -> Markup {
    match task.status {
        TaskStatus::Active if task.failure_count >= Limits::default().failures => badge(Tone::Bad, "failing"),
        TaskStatus::Active if task.failure_count > 0 => badge(Tone::Bad, "dead"),
        TaskStatus::Active if task.last_status == Some(RunStatus::Failed) => badge(Tone::Warn, "retrying"),
        TaskStatus::Active => badge(Tone::Good, "active"),
        TaskStatus::Paused => badge(Tone::Warn, "paused"),
        TaskStatus::Invalid => badge(Tone::Bad, "invalid"),
        status => badge(Tone::Idle, status.as_str()),
    }
}

/// Returns the marks of runs, oldest first. Each status has a shape of its own; the height of a bar is the duration, in eighths of
/// the longest. The table of the task's page has the same links, so the marks are no stops of the Tab key.
pub(in crate::page) fn marks(marks: &[Mark], times: &Times) -> Markup {
    let longest = marks.iter().filter_map(|mark| mark.duration).max().unwrap_or_default().as_millis().max(1);
    let height = |mark: &Mark| match (mark.status, mark.duration) {
        (RunStatus::Succeeded, Some(length)) => (length.as_millis() * 8).div_ceil(longest).clamp(1, 8),
        _ => 8,
    };
    html! {
        span.marks {
            @for mark in marks {
                a.(mark.status.as_str()).{ "h" (height(mark)) } tabindex="-1" href=(links::run(mark.run)) title={
                    (mark.status) ", " (times.brief(mark.at))
                    @if let Some(length) = mark.duration { ", " (short_duration(length)) }
                } {}
            }
        }
    }
}

/// Returns an instant as its distance from now, with the local time and UTC as its title.
pub(in crate::page) fn when(at: Timestamp, times: &Times) -> Markup {
    html! { time datetime=(at) title={ (times.local(at)) " " (times.zone.name()) "\n" (utc(at)) } { (distance(at, times.now)) } }
}

/// Returns an instant as local time, with the day in words if it is near; with the whole local time and UTC as its title.
pub(in crate::page) fn instant(at: Timestamp, times: &Times) -> Markup {
    html! { time datetime=(at) title={ (times.local(at)) " " (times.zone.name()) "\n" (utc(at)) } { (plain(at, times)) } }
}

/// Returns an instant as local time and distance: `tomorrow 03:30 (in 7 h)`.
pub(in crate::page) fn instant_and_distance(at: Timestamp, times: &Times) -> Markup {
    html! { (instant(at, times)) " " span.muted { "(" (distance(at, times.now)) ")" } }
}

/// Returns local time with the day in words if it is near: `tomorrow 03:30`, `2027-03-14 12:00`.
fn plain(at: Timestamp, times: &Times) -> String {
    let (text, day) = (times.local(at), |at| times.zone.local_at(at).map(|local| local.date()));
    let (Some(then), Some(today), Some((_, time))) = (day(at), day(times.now), text.split_once(' ')) else {
        return text;
    };
    match then.signed_duration_since(today).num_days() {
        -1 => format!("yesterday {time}"),
        0 => format!("today {time}"),
        1 => format!("tomorrow {time}"),
        _ => text,
    }
}

/// Returns an instant in UTC for people: `2027-03-14 12:00 UTC`, with seconds and milliseconds unless they are 0.
pub(in crate::page) fn utc(at: Timestamp) -> String {
    let form = match at.as_millis().rem_euclid(60_000) {
        0 => "%Y-%m-%d %H:%M UTC",
        millis if millis % 1000 == 0 => "%Y-%m-%d %H:%M:%S UTC",
        _ => "%Y-%m-%d %H:%M:%S%.3f UTC",
    };
    at.to_datetime().map_or_else(|| at.to_string(), |at| at.format(form).to_string())
}

/// Returns the distance from now in one unit: `in 4 min`, `3 h ago`, `2 days ago`.
pub(in crate::page) fn distance(at: Timestamp, now: Timestamp) -> String {
    let (ahead, behind) = (at.since(now), now.since(at));
    let seconds = ahead.max(behind).as_secs();
    let length = match seconds {
        0 => return "now".to_owned(),
        1..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        86_400..63_072_000 => plural(seconds / 86_400, "day"),
        _ => plural(seconds / 31_557_600, "year"),
    };
    if ahead > behind { format!("in {length}") } else { format!("{length} ago") }
}

/// Returns the duration of a run: `350ms`, `1m 5s`; a dash if it is unknown.
pub(in crate::page) fn duration(length: Option<Duration>) -> Markup {
    html! { @match length { Some(length) => (short_duration(length)), None => (none()) } }
}

/// Returns a dash for a value that does not exist.
pub(in crate::page) fn none() -> Markup {
    html! { span.none { span aria-hidden="true" { "–" } span.hidden { "none" } } }
}

/// Returns a definition list.
pub(in crate::page) fn definitions(rows: &[(&str, Markup)]) -> Markup {
    html! { dl { @for (name, value) in rows { div { dt { (name) } dd { (value) } } } } }
}

/// Returns a table that scrolls within its frame if it is too wide. `label`: its caption, for screen readers.
pub(in crate::page) fn table(label: &str, columns: &[&str], rows: &Markup) -> Markup {
    framed(label, "", &heads(columns), &html! { tbody { (rows) } })
}

/// As [`table`], but each row becomes a block on a narrow screen: a cell shows its `data-label` above it, and one of the class `full`
/// takes the whole width.
pub(in crate::page) fn stacked(label: &str, columns: &[&str], rows: &Markup) -> Markup {
    framed(label, "stack", &heads(columns), &html! { tbody { (rows) } })
}

/// The head of a column.
pub(in crate::page) struct Head<'t> {
    pub(in crate::page) text: &'t str,
    /// The word of its order in the address, if the table can be ordered by it.
    pub(in crate::page) order: Option<&'t str>,
    /// If the table has that order: `ascending`, `descending` or `other`.
    pub(in crate::page) sorted: Option<&'t str>,
}

/// As [`stacked`], with links in the heads of columns by which the table can be ordered. `bodies`: the rows, in elements `tbody`.
pub(in crate::page) fn ordered(
    label: &str,
    columns: &[Head<'_>],
    path: impl Fn(&str) -> String,
    bodies: &Markup,
) -> Markup {
    let heads = html! {
        @for Head { text, order, sorted } in columns {
            @match order {
                None => th scope="col" { (text) },
                // The order of a column is fixed, so that what matters comes first.
                Some(word) => th scope="col" aria-sort=[*sorted] { a href=(path(word)) { (text) } },
            }
        }
    };
    framed(label, "stack", &heads, bodies)
}

fn heads(columns: &[&str]) -> Markup {
    html! { @for column in columns { th scope="col" { (column) } } }
}

fn framed(label: &str, class: &str, heads: &Markup, bodies: &Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label={ (label) ", table" } {
            table class=(class) {
                caption.hidden { (label) }
                thead { tr { (heads) } }
                (bodies)
            }
        }
    }
}

/// Returns what is shown in place of an empty table.
pub(in crate::page) fn empty(title: &str, advice: &Markup) -> Markup {
    html! { div.empty { p.title { (title) } p { (advice) } } }
}

/// Returns a number of a page that an address names, from 1.
pub(in crate::page) fn page_number(given: Option<&str>) -> usize {
    given.and_then(|text| text.parse().ok()).unwrap_or(1).clamp(1, MAX_PAGE)
}

/// Returns links to the pages before and after `page`. `path`: without a query. `query`: names and values of the filter. Empty if
/// everything is on one page.
pub(in crate::page) fn paging(path: &str, query: &[(&str, &str)], page: usize, has_more: bool) -> Markup {
    let to = |page: usize| {
        let number = if page > 1 { page.to_string() } else { String::new() };
        links::with_query(path, &[query, &[("page", &number)]].concat())
    };
    html! {
        @if page > 1 || has_more {
            nav.paging aria-label="Pages of the table" {
                @if page > 1 { a.button rel="prev" href=(to(page - 1)) { "← Previous" } }
                span { "Page " (page) }
                @if has_more { a.button rel="next" href=(to(page + 1)) { "Next →" } }
            }
        }
    }
}

/// Returns links to the first page and to the next one, of a table whose pages begin after the last row of the page before.
pub(in crate::page) fn key_paging(first: Option<String>, next: Option<String>, label: &str) -> Markup {
    html! {
        @if first.is_some() || next.is_some() {
            nav.paging aria-label="Pages of the table" {
                @if let Some(path) = first { a.button rel="first" href=(path) { "← Newest" } }
                @if let Some(path) = next { a.button rel="next" href=(path) { (label) } }
            }
        }
    }
}

/// Returns a form that filters a table by GET. `fields`: made by [`choice`], [`text_field`], [`whole_field`] and [`switch`]. With script, it
/// applies while it is changed.
pub(in crate::page) fn filter(path: &str, is_used: bool, fields: &Markup) -> Markup {
    html! {
        form.filter method="get" action=(path) {
            (fields)
            button type="submit" { "Filter" }
            a.clear href=(path) hidden[!is_used] { "Clear" }
        }
    }
}

/// Returns a field with a list of values. The first is "any".
pub(in crate::page) fn choice<'a>(
    name: &str,
    label: &str,
    values: impl IntoIterator<Item = &'a str>,
    selected: &str,
) -> Markup {
    html! {
        label {
            span { (label) }
            select name=(name) {
                option value="" { "any" }
                @for value in values { option value=(value) selected[value == selected] { (value) } }
            }
        }
    }
}

pub(in crate::page) fn text_field(name: &str, label: &str, hint: &str, value: &str) -> Markup {
    field(name, label, hint, value, false)
}

/// As [`text_field`], for a value of which no part has a meaning: it applies when the field is left.
pub(in crate::page) fn whole_field(name: &str, label: &str, hint: &str, value: &str) -> Markup {
    field(name, label, hint, value, true)
}

fn field(name: &str, label: &str, hint: &str, value: &str, is_whole: bool) -> Markup {
    html! {
        label {
            span { (label) }
            input type="search" name=(name) value=(value) placeholder=(hint) maxlength="200" autocomplete="off" spellcheck="false" data-whole[is_whole];
        }
    }
}

/// Returns a box that is ticked for the value `1`.
pub(in crate::page) fn switch(name: &str, label: &str, is_on: bool) -> Markup {
    html! { label.switch { input type="checkbox" name=(name) value="1" checked[is_on]; span { (label) } } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Zone;

    #[test]
    fn a_near_day_is_a_word_and_a_time_that_a_clock_shows_twice_has_its_offset() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let times = Times { now: at("2027-11-06T21:00:00Z"), zone: Zone::built_in("America/New_York") };
        for (instant, text) in [
            ("2027-11-06T03:59:59Z", "yesterday 23:59:59"),
            ("2027-11-06T04:00:00Z", "today 00:00"),
            ("2027-11-07T05:30:00Z", "tomorrow 01:30 -04:00"),
            ("2027-11-07T06:30:00Z", "tomorrow 01:30 -05:00"),
            ("2027-11-08T04:59:00Z", "tomorrow 23:59"),
            ("2027-11-08T05:00:00Z", "2027-11-08 00:00"),
            ("2027-11-05T03:59:00Z", "2027-11-04 23:59"),
        ] {
            assert_eq!(plain(at(instant), &times), text, "{instant}");
        }
        let shown = instant_and_distance(at("2027-11-07T08:30:00Z"), &times).into_string();
        assert!(shown.contains(">tomorrow 03:30</time> <span class=\"muted\">(in 11 h)</span>"), "{shown}");
        assert_eq!(plain(Timestamp::MAX, &times), times.local(Timestamp::MAX));
    }
}
