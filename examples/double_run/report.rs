//! The page: a timeline of each relevant day, and a table of all days.

use std::fmt::Write as _;

use duly::Timestamp;

use super::day::{Day, POLL, Result, clock, minutes};
use super::journal::{Entry, Journal, Judgement, Scene, Verdict, What, count};
use super::loops::{Deduplicate, ExpiringKey, LockTable, Loop, MoveAfter, MoveBefore, StatusColumn};
use super::{duly_day, process};

/// The width of the page in columns.
const WIDTH: usize = 100;

const INTRO: &str = "\
THE DOUBLE RUN

One task, cron 0 13 * * *, five minutes long; a process that polls every 60 seconds. Each loop runs
through its day, 12:59 to 12:58 tomorrow, on a SQLite file of its own and a manual clock. Within a
minute, ending runs end first, then the loop polls. A bar (|) is a running start; A and B are
processes. Every verdict is counted from the journal. A day without harm is one line.
";

/// One day of one loop, and its result.
struct Story {
    of: &'static str,
    day: Day,
    journal: Journal,
    judgement: Judgement,
}

/// A group of loops with a title, and the days that each ran through.
struct Section {
    title: &'static str,
    stories: Vec<Story>,
}

/// Runs all days, and writes the page.
pub(crate) fn page() -> Result<String> {
    let sections = live_all()?;
    let mut page = String::from(INTRO);
    for (number, section) in (1..).zip(&sections) {
        let _ = write!(page, "\n{}\n", rule(&format!("{number}. {} ", section.title)));
        for story in &section.stories {
            describe(&mut page, story);
        }
    }
    let stories: Vec<&Story> = sections.iter().flat_map(|section| &section.stories).collect();
    table(&mut page, &stories);
    let _ = write!(page, "\n{}\n", headline(&stories)?);
    Ok(page)
}

fn live_all() -> Result<Vec<Section>> {
    let ten = minutes(10);
    let slow = Day::slow(minutes(12));
    let naive = |title, members: &[(&dyn Loop, Day)]| -> Result<Section> {
        let stories =
            members.iter().map(|(naive, day)| Ok(Story::new(naive.name(), *day, process::live(day, *naive)?)));
        Ok(Section { title, stories: stories.collect::<Result<_>>()? })
    };
    let duly = [Day::quiet(), Day::once(), slow, Day::stalled(), Day::killed()];
    let duly = duly.iter().map(|day| Ok(Story::new("duly", *day, duly_day::live(day)?))).collect::<Result<_>>()?;

    let status: &dyn Loop = &StatusColumn { stuck_after: ten };
    let lock: &dyn Loop = &LockTable { stale_after: ten };
    let key: &dyn Loop = &ExpiringKey { expires_after: minutes(5) };
    Ok(vec![
        naive("The naive loop: next_run moves after the run", &[(&MoveAfter, Day::quiet())])?,
        naive(
            "The same, de-duplicated in memory: a task that is pending is not queued again",
            &[(&Deduplicate { at_once: usize::MAX }, Day::quiet()), (&Deduplicate { at_once: 1 }, Day::quiet())],
        )?,
        naive(
            "The one-line fix: next_run moves before the run, if there is a next",
            &[(&MoveBefore, Day::quiet()), (&MoveBefore, Day::killed()), (&MoveBefore, Day::once())],
        )?,
        naive(
            "A status column: running is not due; running for ten minutes is stuck",
            &[(status, Day::quiet()), (status, slow), (status, Day::killed())],
        )?,
        naive(
            "A lock table: a lock of ten minutes is stale",
            &[(lock, Day::quiet()), (lock, slow), (lock, Day::stalled())],
        )?,
        naive(
            "An expiring key: SET task:{id}:lock 1 EX 300 NX",
            &[(key, Day::quiet()), (key, Day::slow(minutes(6))), (key, Day::stalled())],
        )?,
        Section { title: "duly: resolved, claimed and moved on in one transaction, before the run", stories: duly },
    ])
}

impl Story {
    fn new(of: &'static str, day: Day, journal: Journal) -> Self {
        let judgement = journal.judge();
        Story { of, day, journal, judgement }
    }
}

fn describe(page: &mut String, story: &Story) {
    let _ = write!(page, "\n  {}: {}\n", story.of, story.day);
    let harmless = story.judgement.verdict() == Verdict::Kept && story.journal.on_record.is_none();
    if !harmless {
        timeline(page, &story.journal.entries);
    }
    if let Some(on_record) = &story.journal.on_record {
        let _ = writeln!(page, "    on record: {on_record}");
    }
    let _ = writeln!(page, "    => {}", story.judgement.sentence());
}

/// Writes a line for each minute with entries; consecutive minutes with equal entries share one line.
fn timeline(page: &mut String, entries: &[Entry]) {
    let mut scene = Scene::default();
    let mut lines: Vec<Line> = Vec::new();
    for moment in entries.chunk_by(|a, b| (a.at, a.process) == (b.at, b.process)) {
        let mut said = Vec::new();
        for entry in moment {
            said.push(say(entry, &scene));
            scene.after(entry);
        }
        let Entry { at, process, .. } = moment[0];
        let line = Line { first: at, last: at, bars: scene.under_way.len(), process, said: said.join("; ") };
        match lines.last_mut() {
            Some(before) if before.repeats(&line) => before.last = line.last,
            _ => lines.push(line),
        }
    }
    for Line { first, last, bars, process, said } in lines {
        let when = if first == last { clock(first) } else { format!("{}-{}", clock(first), clock(last)) };
        let _ = writeln!(page, "    {when:<11}  {:<5}  {process}  {said}", "|".repeat(bars));
    }
}

struct Line {
    first: Timestamp,
    last: Timestamp,
    bars: usize,
    process: char,
    said: String,
}

impl Line {
    /// Returns whether the next poll has the same entries.
    fn repeats(&self, next: &Line) -> bool {
        let same = (self.bars, self.process, &self.said) == (next.bars, next.process, &next.said);
        same && self.last.plus(POLL) == next.first
    }
}

/// Returns the text of an entry, given the running starts before it.
fn say(entry: &Entry, before: &Scene) -> String {
    match &entry.what {
        What::Started(start) => match before.under_way.len() {
            0 => format!("start {start}"),
            others => format!("start {start}, beside {}", count(others, "other")),
        },
        What::Ended(start) => format!("start {start} ends"),
        What::Killed => match before.under_way_in(entry.process) {
            0 => "is killed".to_owned(),
            lost => format!("is killed, and {} with it", count(lost, "run")),
        },
        What::Back => "is back".to_owned(),
        What::Note(text) => text.clone(),
    }
}

fn table(page: &mut String, stories: &[&Story]) {
    let _ = write!(page, "\n{}\n\n", rule("All of them "));
    let _ = writeln!(page, "  {:<34}{:<27}{:>6}  {:>6}  verdict", "loop", "day", "starts", "kept");
    let mut above = "";
    for Story { of, day, judgement, .. } in stories {
        let name = if *of == above { "" } else { of };
        above = of;
        let kept = format!("{} of 1", judgement.kept());
        let day = day.to_string();
        let _ = writeln!(page, "  {name:<34}{day:<27}{:>6}  {kept:>6}  {}", judgement.starts, judgement.in_short());
    }
}

/// Returns the summary.
fn headline(stories: &[&Story]) -> Result<String> {
    let find = |of: &str, day: Day| {
        let found = stories.iter().find(|story| story.of == of && story.day == day);
        found.map(|story| story.judgement).ok_or_else(|| format!("{of} had no such day"))
    };
    let naive = find(MoveAfter.name(), Day::quiet())?;
    let fixed = find(MoveBefore.name(), Day::killed())?;
    let (quiet, killed) = (find("duly", Day::quiet())?, find("duly", Day::killed())?);
    let became = |judgement: Judgement| match judgement.verdict() {
        Verdict::Kept => "kept",
        Verdict::Recovered => "recovered after the crash",
        Verdict::Late => "late after the crash",
        Verdict::Doubled => "a doubled run",
        Verdict::Lost => "a lost run",
    };
    Ok(format!(
        "  Naive loop:    {} for one occurrence.\n  One-line fix:  {}.\n  duly:          {}, and {}.",
        count(naive.starts, "start"),
        became(fixed),
        count(quiet.starts, "start"),
        became(killed)
    ))
}

fn rule(title: &str) -> String {
    format!("{title}{}", "-".repeat(WIDTH.saturating_sub(title.len())))
}
