//! The progress that handlers report: the newest text of each attempt, recorded at most once a second. Pure but for a lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::model::finished::{Report, ReportKind};

/// Shortest time between two records of one attempt's progress.
const PACE: Duration = Duration::from_secs(1);

/// The newest progress of one attempt, shared by its handler and the loop.
#[derive(Debug)]
pub(crate) struct LatestProgress {
    run: i64,
    attempt: u32,
    reported: Mutex<Words>,
}

#[derive(Debug, Default)]
struct Words {
    newest: Option<String>,
    /// Whether the loop knows that there is new progress.
    announced: bool,
    /// When the loop last took it, by the monotonic clock.
    taken: Option<Duration>,
}

impl LatestProgress {
    pub(crate) fn new(run: i64, attempt: u32) -> Self {
        LatestProgress { run, attempt, reported: Mutex::default() }
    }

    /// Keeps the newest progress. Returns whether the loop has to be notified.
    pub(crate) fn say(&self, text: String) -> bool {
        let mut words = self.words();
        words.newest = Some(text);
        !std::mem::replace(&mut words.announced, true)
    }

    /// The loop could not be notified: the next report tries again.
    pub(crate) fn unannounced(&self) {
        self.words().announced = false;
    }

    /// Returns the newest progress, recorded or not.
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
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Progress that waits to be recorded.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    reported: Vec<Arc<LatestProgress>>,
}

impl Waiting {
    /// Adds new progress of an attempt.
    pub(crate) fn add(&mut self, progress: Arc<LatestProgress>) {
        self.reported.push(progress);
    }

    /// Takes progress that is due to be recorded, of up to `limit` attempts.
    pub(crate) fn take(&mut self, now: Duration, limit: usize) -> Vec<Report> {
        self.reported
            .extract_if(.., |reported| reported.due() <= now)
            .take(limit)
            .filter_map(|reported| reported.take(now))
            .collect()
    }

    /// Returns when the next progress is due to be recorded, by the monotonic clock.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.reported.iter().map(|reported| reported.due()).min()
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
        let (reported, mut waiting) = (Arc::new(LatestProgress::new(7, 2)), Waiting::default());
        let text = |report: Report| match report.kind {
            ReportKind::Progress(text) => text,
            other => format!("{other:?}"),
        };
        let take = |waiting: &mut Waiting, now| waiting.take(now, 1).into_iter().map(text).collect::<Vec<_>>();
        assert_eq!(waiting.next(), None);
        assert!(reported.say("1 of 3".into()), "the first words are announced");
        waiting.add(reported.clone());
        assert_eq!(waiting.next(), Some(Duration::ZERO));
        assert_eq!(take(&mut waiting, at(10)), ["1 of 3"], "and taken at once");
        assert_eq!((take(&mut waiting, at(10)), waiting.next()), (vec![], None));

        // More progress within the second: one notification, one report, the newest.
        assert!(reported.say("2 of 3".into()));
        waiting.add(reported.clone());
        assert!(!reported.say("3 of 3".into()), "announced already");
        assert_eq!(waiting.next(), Some(at(1010)));
        assert_eq!(take(&mut waiting, at(1009)), Vec::<String>::new());
        assert_eq!(take(&mut waiting, at(1010)), ["3 of 3"]);
        assert!(reported.say("done".into()), "what comes after is announced anew");
        reported.unannounced();
        assert!(reported.say("really".into()));
        assert_eq!(reported.newest().as_deref(), Some("really"));
    }
}
