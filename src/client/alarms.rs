//! Alarms: what a user must learn of, recorded in the database until it is delivered. `duly run --alert-command` and `--alert-url`
//! deliver them; an application can do the same.

use crate::client::Client;
use crate::client::check::{Problem, ProblemKind};
use crate::clock::Timestamp;
use crate::error::{Result, excerpt};
use crate::model::alarm::{AlarmKind, AlarmMessage, AlarmOutage, AlarmPace, AlarmTurn, Condition, Look};
use crate::model::health::Limits;

/// `check` lists at most this number of problems of a kind: an alarm that is not listed then may last.
const MAX_LISTED: usize = 100;
/// Longest text of a condition. A message must fit into an environment variable.
const MAX_FOUND: usize = 500;

impl Client {
    /// Records, for each channel, which alarms began and ended since the last look. Writes nothing if none did. Call it every few
    /// seconds: dead runs, missed and skipped occurrences and lost schedulers are found however short the condition lasts, the other
    /// kinds if they last until a look.
    ///
    /// A channel that is new begins with what was recorded at `since` or later. `outage`: a time in which the database could not be
    /// written. Returns whether there is more: then call it again at once.
    ///
    /// ```
    /// use duly::{AlarmKind, AlarmPace, AlarmTurn, Client, Limits, NewTask, Timestamp};
    /// use std::time::Duration;
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("digest").handler("digest"))?;
    /// let plain = duly::rusqlite::Connection::open(&file)?;
    /// plain.execute("UPDATE scheduled_tasks SET status = 'invalid', invalid_reason = 'no schedule'", [])?;
    ///
    /// let (limits, pace) = (Limits::default(), AlarmPace { gather: Duration::ZERO, ..AlarmPace::default() });
    /// client.update_alarms(&["mail"], &limits, Timestamp::now(), None)?;
    /// let AlarmTurn::Deliver(message) = client.claim_alarm("mail", &pace, None)? else { panic!("nothing to deliver") };
    /// assert_eq!((message.kind, message.count), (AlarmKind::Invalid, 1));
    /// // .. deliver it ..
    /// client.alarm_delivered(&message)?;
    /// assert_eq!(client.claim_alarm("mail", &pace, None)?, AlarmTurn::Idle);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the database cannot be read, or cannot be written and there is something to record.
    pub fn update_alarms(
        &self,
        channels: &[&str],
        limits: &Limits,
        since: Timestamp,
        outage: Option<&AlarmOutage>,
    ) -> Result<bool> {
        let at = self.now();
        let (conditions, complete) = conditions(&self.check(limits)?, at);
        let look = Look { channels, at, since, conditions, complete, caught_up: limits.caught_up, outage };
        self.store().update_alarms(&look, self.now())
    }

    /// Claims the next message of a channel. At most one message of each channel and kind is claimed at a time, by whichever
    /// scheduler comes first. End the claim by [`Client::alarm_delivered`] or [`Client::alarm_not_delivered`]; otherwise it ends
    /// after [`AlarmPace::lease`], and the message is delivered again, with the same id.
    ///
    /// `refused`: the kind of the last message, if it was not delivered. Messages of other kinds go first, each in its turn, so that a
    /// message that is refused for ever holds back none of another kind.
    ///
    /// ```
    /// use duly::{AlarmPace, AlarmTurn, Client};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// // A channel of which no look was taken has nothing to deliver.
    /// assert_eq!(client.claim_alarm("mail", &AlarmPace::default(), None)?, AlarmTurn::Idle);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the database cannot be read, or cannot be written and there is a message.
    pub fn claim_alarm(&self, channel: &str, pace: &AlarmPace, refused: Option<AlarmKind>) -> Result<AlarmTurn> {
        let token = format!("{:016x}", fastrand::u64(..));
        let now = self.now();
        self.store().claim_alarm(channel, &token, pace, refused, now)
    }

    /// Records that a message was delivered. Returns false if its claim had ended before: it may be delivered again.
    ///
    /// # Errors
    /// If the database cannot be written. Call it again until it can.
    pub fn alarm_delivered(&self, message: &AlarmMessage) -> Result<bool> {
        let now = self.now();
        self.store().settle_alarm(message, true, now)
    }

    /// Ends the claim of a message that was not delivered, so that it can be claimed again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::{AlarmPace, AlarmTurn, Client, Limits, NewTask, Timestamp};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let client = Client::open(&file)?;
    /// # client.add(NewTask::manual("digest").handler("digest"))?;
    /// # let plain = duly::rusqlite::Connection::open(&file)?;
    /// # plain.execute("UPDATE scheduled_tasks SET status = 'invalid', invalid_reason = 'no schedule'", [])?;
    /// # client.update_alarms(&["mail"], &Limits::default(), Timestamp::now(), None)?;
    /// let pace = AlarmPace { gather: Duration::ZERO, ..AlarmPace::default() };
    /// let AlarmTurn::Deliver(first) = client.claim_alarm("mail", &pace, None)? else { panic!("nothing to deliver") };
    /// // The mail server refuses it.
    /// assert!(client.alarm_not_delivered(&first)?);
    /// let AlarmTurn::Deliver(again) = client.claim_alarm("mail", &pace, Some(first.kind))? else { panic!("it was lost") };
    /// assert_eq!(again.id, first.id);
    /// assert!(!client.alarm_delivered(&first)?, "its claim had ended");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the database cannot be written.
    pub fn alarm_not_delivered(&self, message: &AlarmMessage) -> Result<bool> {
        let now = self.now();
        self.store().settle_alarm(message, false, now)
    }
}

/// Returns the conditions among the problems, and the kinds of which all are listed.
fn conditions(problems: &[Problem], at: Timestamp) -> (Vec<Condition>, Vec<AlarmKind>) {
    let mut complete = vec![AlarmKind::Overdue, AlarmKind::Invalid, AlarmKind::Degraded];
    let mut conditions: Vec<Condition> = Vec::new();
    for problem in problems {
        let Some(kind) = kind(problem.kind) else { continue };
        let subject = problem.task.clone().unwrap_or_default();
        // Several schedulers or handlers are one condition.
        if !conditions.iter().any(|one| one.kind == kind && one.subject == subject) {
            let (found, advice) = (excerpt(&problem.found, MAX_FOUND), excerpt(&problem.advice, MAX_FOUND));
            conditions.push(Condition { kind, subject, run: None, since: at, found, advice });
        }
    }
    let count = |kind: ProblemKind| problems.iter().filter(|problem| problem.kind == kind).count();
    for listed in [ProblemKind::Overdue, ProblemKind::UnknownHandler, ProblemKind::Invalid, ProblemKind::Degraded] {
        if count(listed) >= MAX_LISTED {
            complete.retain(|one| Some(*one) != kind(listed));
        }
    }
    (conditions, complete)
}

/// Returns the kind of alarm of a problem, if it is one that a look finds.
fn kind(problem: ProblemKind) -> Option<AlarmKind> {
    match problem {
        ProblemKind::Overdue | ProblemKind::UnknownHandler => Some(AlarmKind::Overdue),
        ProblemKind::Invalid => Some(AlarmKind::Invalid),
        ProblemKind::Degraded => Some(AlarmKind::Degraded),
        _ => None,
    }
}
