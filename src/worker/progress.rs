//! What handlers say of their progress: the newest words of each, written down at most once a second. Pure but for a lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::model::finished::{Report, ReportKind};

/// How often the words of one attempt are written down at most.
const PACE: Duration = Duration::from_secs(1);

/// The newest words of one attempt, shared by its handler and the loop.
#[derive(Debug)]
pub(crate) struct LatestProgress {
    run: i64,
    attempt: u32,
    said: Mutex<Words>,
}

#[derive(Debug, Default)]
struct Words {
    newest: Option<String>,
    /// Whether the loop knows that there is something to write.
    announced: bool,
    /// When the loop last took them, by the monotonic clock.
    taken: Option<Duration>,
}

impl LatestProgress {
    pub(crate) fn new(run: i64, attempt: u32) -> Self {
        LatestProgress { run, attempt, said: Mutex::default() }
    }

    /// Keeps the newest words. Whether the loop has still to be told that there are some.
    pub(crate) fn say(&self, text: String) -> bool {
        let mut words = self.words();
        words.newest = Some(text);
        !std::mem::replace(&mut words.announced, true)
    }

    /// The loop could not be told: the next words try again.
    pub(crate) fn unannounced(&self) {
        self.words().announced = false;
    }

    /// The newest words, written down or not.
    pub(crate) fn newest(&self) -> Option<String> {
        self.words().newest.clone()
    }

    fn due(&self) -> Duration {
        self.words().taken.map_or(Duration::ZERO, |taken| taken.saturating_add(PACE))
    }

    fn take(&self, now: Duration) -> Option<Report> {
        let mut words = self.words();
        (words.announced, words.taken) = (false, Some(now));
        let text = words.newest.clone()?;
        Some(Report { run: self.run, attempt: self.attempt, kind: ReportKind::Progress(text) })
    }

    fn words(&self) -> MutexGuard<'_, Words> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Words that wait to be written down.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    said: Vec<Arc<LatestProgress>>,
}

impl Waiting {
    /// There are new words of an attempt.
    pub(crate) fn add(&mut self, progress: Arc<LatestProgress>) {
        self.said.push(progress);
    }

    /// What is to be written down now.
    pub(crate) fn take(&mut self, now: Duration) -> Vec<Report> {
        self.said.extract_if(.., |said| said.due() <= now).filter_map(|said| said.take(now)).collect()
    }

    /// When the next words are to be written down, by the monotonic clock.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.said.iter().map(|said| said.due()).min()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{LatestProgress, Waiting};
    use crate::model::finished::{Report, ReportKind};

    #[test]
    fn the_newest_words_are_taken_once_a_second_and_none_stay_behind() {
        let at = Duration::from_millis;
        let (said, mut waiting) = (Arc::new(LatestProgress::new(7, 2)), Waiting::default());
        let text = |report: Report| match report.kind {
            ReportKind::Progress(text) => text,
            other => format!("{other:?}"),
        };
        let take = |waiting: &mut Waiting, now| waiting.take(now).into_iter().map(text).collect::<Vec<_>>();
        assert_eq!(waiting.next(), None);
        assert!(said.say("1 of 3".into()), "the first words are announced");
        waiting.add(said.clone());
        assert_eq!(waiting.next(), Some(Duration::ZERO));
        assert_eq!(take(&mut waiting, at(10)), ["1 of 3"], "and taken at once");
        assert_eq!((take(&mut waiting, at(10)), waiting.next()), (vec![], None));

        // More words within the second: one announcement, one report, the newest.
        assert!(said.say("2 of 3".into()));
        waiting.add(said.clone());
        assert!(!said.say("3 of 3".into()), "announced already");
        assert_eq!(waiting.next(), Some(at(1010)));
        assert_eq!(take(&mut waiting, at(1009)), Vec::<String>::new());
        assert_eq!(take(&mut waiting, at(1010)), ["3 of 3"]);
        assert!(said.say("done".into()), "what comes after is announced anew");
        said.unannounced();
        assert!(said.say("really".into()));
        assert_eq!(said.newest().as_deref(), Some("really"));
    }
}
