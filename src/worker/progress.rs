//! What handlers report while they run: the newest progress and output of each attempt, recorded at most once a second. Pure but
//! for a lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::model::finished::{Report, ReportKind};

/// Shortest time between two records of one attempt's reports.
const PACE: Duration = Duration::from_secs(1);

/// The newest reports of one attempt, shared by its handler and the loop.
#[derive(Debug)]
pub(crate) struct LatestReports {
    run: i64,
    attempt: u32,
    owner: Option<Arc<str>>,
    newest: Mutex<Newest>,
}

#[derive(Debug, Default)]
struct Newest {
    /// Kept: it is also recorded at the end of the attempt.
    progress: Option<String>,
    /// Whether the progress waits to be recorded.
    progress_waits: bool,
    /// The output that waits to be recorded.
    output: Option<String>,
    /// Whether the loop knows that reports wait.
    announced: bool,
    /// When the loop last took them, by the monotonic clock.
    taken: Option<Duration>,
}

impl LatestReports {
    pub(crate) fn new(run: i64, attempt: u32, owner: Option<Arc<str>>) -> Self {
        LatestReports { run, attempt, owner, newest: Mutex::default() }
    }

    /// Keeps the newest progress. Returns whether the loop has to be notified.
    pub(crate) fn progress(&self, text: String) -> bool {
        let mut newest = self.newest();
        (newest.progress, newest.progress_waits) = (Some(text), true);
        !std::mem::replace(&mut newest.announced, true)
    }

    /// Keeps the newest output. Returns whether the loop has to be notified.
    pub(crate) fn output(&self, text: String) -> bool {
        let mut newest = self.newest();
        newest.output = Some(text);
        !std::mem::replace(&mut newest.announced, true)
    }

    /// The loop could not be notified: the next report tries again.
    pub(crate) fn unannounced(&self) {
        self.newest().announced = false;
    }

    /// Returns the newest progress, recorded or not.
    pub(crate) fn newest_progress(&self) -> Option<String> {
        self.newest().progress.clone()
    }

    /// Withdraws what waits to be recorded, and returns the newest progress. The end of the attempt records both.
    pub(crate) fn end(&self) -> Option<String> {
        let mut newest = self.newest();
        (newest.progress_waits, newest.output) = (false, None);
        newest.progress.take()
    }

    fn due(&self) -> Duration {
        self.newest().taken.map_or(Duration::ZERO, |taken| taken.saturating_add(PACE))
    }

    fn take(&self, now: Duration) -> Vec<Report> {
        let mut newest = self.newest();
        (newest.announced, newest.taken) = (false, Some(now));
        let progress_waits = std::mem::take(&mut newest.progress_waits);
        let progress = newest.progress.clone().filter(|_| progress_waits).map(ReportKind::Progress);
        let output = newest.output.take().map(ReportKind::Output);
        let report = |kind| Report { run: self.run, attempt: self.attempt, owner: self.owner.clone(), kind };
        progress.into_iter().chain(output).map(report).collect()
    }

    fn newest(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Attempts with reports that wait to be recorded.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    attempts: Vec<Arc<LatestReports>>,
}

impl Waiting {
    /// Adds an attempt that has new reports.
    pub(crate) fn add(&mut self, reports: Arc<LatestReports>) {
        self.attempts.push(reports);
    }

    /// Takes the reports that are due to be recorded, of up to `limit` attempts.
    pub(crate) fn take(&mut self, now: Duration, limit: usize) -> Vec<Report> {
        let due = self.attempts.extract_if(.., |reports| reports.due() <= now);
        due.take(limit).flat_map(|reports| reports.take(now)).collect()
    }

    /// Returns when the next reports are due to be recorded, by the monotonic clock.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.attempts.iter().map(|reports| reports.due()).min()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{LatestReports, Waiting};
    use crate::model::finished::{Report, ReportKind};

    fn take(waiting: &mut Waiting, milliseconds: u64) -> Vec<String> {
        let text = |report: Report| match report.kind {
            ReportKind::Progress(text) => text,
            ReportKind::Output(text) => format!("printed {text}"),
            other => format!("{other:?}"),
        };
        waiting.take(Duration::from_millis(milliseconds), 1).into_iter().map(text).collect()
    }

    #[test]
    fn the_newest_reports_are_taken_once_a_second_and_none_stay_behind() {
        let at = Duration::from_millis;
        let (reports, mut waiting) = (Arc::new(LatestReports::new(7, 2, None)), Waiting::default());
        assert_eq!(waiting.next(), None);
        assert!(reports.progress("1 of 3".into()), "the first report is announced");
        waiting.add(reports.clone());
        assert_eq!(waiting.next(), Some(Duration::ZERO));
        assert_eq!(take(&mut waiting, 10), ["1 of 3"], "and taken at once");
        assert_eq!((take(&mut waiting, 10), waiting.next()), (vec![], None));

        // More reports within the second: one notification, and of each kind the newest.
        assert!(reports.progress("2 of 3".into()));
        waiting.add(reports.clone());
        assert!(!reports.progress("3 of 3".into()), "announced already");
        assert!(!reports.output("a".into()) && !reports.output("ab".into()), "announced already");
        assert_eq!(waiting.next(), Some(at(1010)));
        assert_eq!(take(&mut waiting, 1009), Vec::<String>::new());
        assert_eq!(take(&mut waiting, 1010), ["3 of 3", "printed ab"]);
        assert!(reports.output("abc".into()), "what comes after is announced anew");
        reports.unannounced();
        assert!(reports.output("abcd".into()));
        waiting.add(reports.clone());
        assert_eq!(take(&mut waiting, 2010), ["printed abcd"], "unchanged progress is not recorded again");
        assert_eq!(reports.newest_progress().as_deref(), Some("3 of 3"));
    }

    /// The end of the attempt records both: no transaction follows it.
    #[test]
    fn nothing_waits_after_the_end() {
        let (reports, mut waiting) = (Arc::new(LatestReports::new(7, 2, None)), Waiting::default());
        assert!(reports.progress("3 of 3".into()) && !reports.output("abc".into()));
        waiting.add(reports.clone());
        assert_eq!(reports.end().as_deref(), Some("3 of 3"));
        assert_eq!((take(&mut waiting, 5000), waiting.next()), (vec![], None));
    }
}
