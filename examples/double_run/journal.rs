//! The journal of a day, and its evaluation, which is the same for duly and for the loops.

use std::collections::BTreeMap;
use std::time::Duration;

use duly::Timestamp;

use super::day::POLL;

/// The actions of the processes of one day, in order.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) entries: Vec<Entry>,
    /// What the file records at the end of the day. A loop keeps no record of its runs.
    pub(crate) on_record: Option<String>,
    starts: usize,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) at: Timestamp,
    pub(crate) process: char,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    /// The work began: images are made, messages sent. Starts are numbered through the day.
    Started(usize),
    /// The work ended.
    Ended(usize),
    /// The process died, and its running work with it.
    Killed,
    /// It was restarted.
    Back,
    /// A remark that changes no count.
    Note(String),
}

impl Journal {
    pub(crate) fn write(&mut self, at: Timestamp, process: char, what: What) {
        self.entries.push(Entry { at, process, what });
    }

    pub(crate) fn note(&mut self, at: Timestamp, process: char, text: impl Into<String>) {
        self.write(at, process, What::Note(text.into()));
    }

    /// Records that the work begins, and returns its number.
    pub(crate) fn start(&mut self, at: Timestamp, process: char) -> usize {
        self.starts += 1;
        self.write(at, process, What::Started(self.starts));
        self.starts
    }

    /// Evaluates a day with one occurrence.
    pub(crate) fn judge(&self) -> Judgement {
        let mut judgement = Judgement::default();
        let mut scene = Scene::default();
        let mut back = None;
        for entry in &self.entries {
            match entry.what {
                What::Started(_) => {
                    judgement.starts += 1;
                    // A start is correct only if no earlier start ended, and every earlier one has died.
                    judgement.doubled += usize::from(!scene.under_way.is_empty() || judgement.ended > 0);
                    judgement.waited = judgement.waited.or(back.map(|back| entry.at.since(back)));
                }
                What::Ended(_) => judgement.ended += 1,
                What::Killed => judgement.died += scene.under_way_in(entry.process),
                What::Back => back = Some(entry.at),
                What::Note(_) => {}
            }
            scene.after(entry);
            judgement.at_once = judgement.at_once.max(scene.under_way.len());
        }
        judgement
    }
}

/// The running starts after an entry, each with its process.
#[derive(Debug, Default)]
pub(crate) struct Scene {
    pub(crate) under_way: BTreeMap<usize, char>,
}

impl Scene {
    pub(crate) fn after(&mut self, entry: &Entry) {
        match entry.what {
            What::Started(start) => drop(self.under_way.insert(start, entry.process)),
            What::Ended(start) => drop(self.under_way.remove(&start)),
            What::Killed => self.under_way.retain(|_, process| *process != entry.process),
            What::Back | What::Note(_) => {}
        }
    }

    pub(crate) fn under_way_in(&self, process: char) -> usize {
        self.under_way.values().filter(|of| **of == process).count()
    }
}

/// The result of the occurrence, counted from the journal alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Judgement {
    pub(crate) starts: usize,
    /// Starts while another one was running, or after one had ended.
    pub(crate) doubled: usize,
    /// The maximum number of concurrent starts.
    pub(crate) at_once: usize,
    pub(crate) ended: usize,
    /// Starts that died with their process.
    pub(crate) died: usize,
    /// The time from the restart of the process until the work began again.
    pub(crate) waited: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    Kept,
    Recovered,
    Late,
    Doubled,
    Lost,
}

impl Judgement {
    pub(crate) fn verdict(&self) -> Verdict {
        // A wait of at most one poll interval is no delay.
        match self {
            Judgement { doubled: 1.., .. } => Verdict::Doubled,
            Judgement { ended: 0, .. } => Verdict::Lost,
            Judgement { died: 0, .. } => Verdict::Kept,
            Judgement { waited: Some(waited), .. } if *waited > POLL => Verdict::Late,
            _ => Verdict::Recovered,
        }
    }

    /// Returns 1 if the work was completed at least once, otherwise 0.
    pub(crate) fn kept(&self) -> usize {
        usize::from(self.ended > 0)
    }

    /// Returns the verdict in a few words.
    pub(crate) fn in_short(&self) -> String {
        match self.verdict() {
            Verdict::Kept => "kept".to_owned(),
            Verdict::Recovered => format!("recovered in {}", self.wait()),
            Verdict::Late => format!("LATE by {}", self.wait()),
            Verdict::Doubled if self.at_once > 1 => format!("DOUBLED, {} at once", self.at_once),
            Verdict::Doubled => "DOUBLED, in turn".to_owned(),
            Verdict::Lost => "LOST".to_owned(),
        }
    }

    /// Returns the verdict as a sentence.
    pub(crate) fn sentence(&self) -> String {
        let starts = count(self.starts, "start");
        match self.verdict() {
            Verdict::Kept => format!("Kept: {starts}, and it ended."),
            Verdict::Recovered => {
                format!("Kept: the lost start was made good {} after the process was back; it ended once.", self.wait())
            }
            Verdict::Late => {
                format!("LATE: kept, but the process had been back for {} when the work began again.", self.wait())
            }
            Verdict::Doubled if self.at_once == self.starts => {
                format!("DOUBLED: {starts} for one occurrence, all at once.")
            }
            Verdict::Doubled if self.at_once > 1 => {
                format!("DOUBLED: {starts} for one occurrence, {} of them at once.", in_words(self.at_once))
            }
            Verdict::Doubled => format!("DOUBLED: {starts} for one occurrence, one after the other."),
            Verdict::Lost => {
                format!("LOST: {starts}, none ended, and there was no retry for the rest of the day.")
            }
        }
    }

    fn wait(&self) -> String {
        match self.waited.unwrap_or_default().as_secs() {
            seconds @ 0..60 => format!("{seconds} s"),
            seconds => format!("{} min", seconds / 60),
        }
    }
}

/// A small number and what it counts: `five starts`.
pub(crate) fn count(n: usize, of: &str) -> String {
    format!("{} {of}{}", in_words(n), if n == 1 { "" } else { "s" })
}

fn in_words(n: usize) -> String {
    const WORDS: [&str; 8] = ["no", "one", "two", "three", "four", "five", "six", "seven"];
    WORDS.get(n).map_or_else(|| n.to_string(), |word| (*word).to_owned())
}
