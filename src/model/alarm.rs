//! Alarms: conditions that a user must learn of, and the messages about them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::model::run::text_enum;

text_enum! {
    /// The kinds of alarms.
    ///
    /// ```
    /// use duly::AlarmKind;
    /// assert_eq!("scheduler_lost".parse::<AlarmKind>()?, AlarmKind::SchedulerLost);
    /// # Ok::<(), duly::Error>(())
    /// ```
    AlarmKind, "kind" {
        /// A run is dead. It ends when a later run of its task succeeds, or the task is removed.
        Dead = "dead",
        /// Nothing ran for occurrences of a task, or for a run that was requested: they were resolved later than the grace of the task
        /// (misfire policy `skip`), or the run expired. It ends when a later run of the task succeeds, or the task is removed.
        Missed = "missed",
        /// Five occurrences of a task in a row were skipped, since its earlier runs took too long. It ends as [`AlarmKind::Missed`] does.
        Skipped = "skipped",
        /// No start of a task was left by a limit: a run waits for one, or occurrences were skipped. It ends when a run of the task starts, or none
        /// waits any more.
        Limited = "limited",
        /// A task has been due for more than five minutes, or runs that may start are not started.
        Overdue = "overdue",
        /// A task cannot be scheduled.
        Invalid = "invalid",
        /// A scheduler died. It ends when another one has started since.
        SchedulerLost = "scheduler_lost",
        /// The database cannot be written.
        Degraded = "degraded",
    }
}

text_enum! {
    /// What a message reports of its conditions.
    ///
    /// ```
    /// use duly::AlarmState;
    /// assert_eq!(AlarmState::parse("ended"), Some(AlarmState::Ended));
    /// assert_eq!(AlarmState::parse("over"), None);
    /// ```
    AlarmState, "state" {
        /// They began.
        Began = "began",
        /// They are over.
        Ended = "ended",
    }
}

/// A condition in a message.
///
/// ```
/// use duly::{AlarmItem, Timestamp};
/// let item = AlarmItem::new(Timestamp::MIN, "the disk is full", "free some space");
/// // A condition of the whole database has no task and no run.
/// assert_eq!((item.task, item.run, item.count), (None, None, 1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AlarmItem {
    /// The task that has it.
    pub task: Option<String>,
    /// The newest dead run, or the newest row of occurrences that were missed or skipped.
    pub run: Option<i64>,
    /// How often it began: the number of dead runs of the task, or of missed occurrences. 1 in a message about the end.
    pub count: u64,
    /// When it began.
    pub since: Timestamp,
    /// What was found when it began.
    pub found: String,
    /// What to do about it.
    pub advice: String,
}

/// A message about conditions of one kind, claimed for delivery. See [`Client::claim_alarm`](crate::Client::claim_alarm).
///
/// ```
/// use duly::{AlarmItem, AlarmKind, AlarmMessage, AlarmState, Timestamp};
/// // While the database cannot be written, an application makes the message itself.
/// let item = AlarmItem::new(Timestamp::MIN, "the disk is full", "free some space");
/// let message = AlarmMessage::unstored("outage-1".into(), "mail", AlarmKind::Degraded, AlarmState::Began, item);
/// assert_eq!((message.count, message.items.len(), message.since), (1, 1, Timestamp::MIN));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AlarmMessage {
    /// Unique within the database. A message that is delivered again has the same id.
    pub id: String,
    /// The channel.
    pub channel: String,
    /// The kind of its conditions.
    pub kind: AlarmKind,
    /// What it reports of them.
    pub state: AlarmState,
    /// How many conditions it reports: of those that began, for [`AlarmKind::Dead`] the number of dead runs, for
    /// [`AlarmKind::Missed`] of missed occurrences.
    pub count: u64,
    /// When the oldest began.
    pub since: Timestamp,
    /// The first of them, at most [`AlarmMessage::MAX_ITEMS`].
    pub items: Vec<AlarmItem>,
    /// Identifies the claim.
    pub(crate) token: String,
}

impl AlarmMessage {
    /// Most conditions that a message lists.
    pub const MAX_ITEMS: usize = 20;

    /// Creates a message that no claim of the database holds, for a condition that cannot be stored.
    pub fn unstored(id: String, channel: &str, kind: AlarmKind, state: AlarmState, item: AlarmItem) -> Self {
        let (channel, since) = (channel.to_owned(), item.since);
        AlarmMessage { id, channel, kind, state, count: 1, since, items: vec![item], token: String::new() }
    }
}

impl AlarmItem {
    /// Creates an item without a task and a run.
    pub fn new(since: Timestamp, found: &str, advice: &str) -> Self {
        AlarmItem { task: None, run: None, count: 1, since, found: found.to_owned(), advice: advice.to_owned() }
    }
}

/// What a channel has to deliver.
///
/// ```
/// use duly::AlarmTurn;
/// use std::time::Duration;
/// /// How long a loop that delivers alarms sleeps.
/// fn pause(turn: &AlarmTurn) -> Duration {
///     let look = Duration::from_secs(5);
///     match turn {
///         AlarmTurn::Deliver(_) => Duration::ZERO,
///         AlarmTurn::Wait(time) => look.min(*time),
///         AlarmTurn::Idle => look,
///     }
/// }
/// assert_eq!(pause(&AlarmTurn::Wait(Duration::from_secs(60))), Duration::from_secs(5));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AlarmTurn {
    /// Nothing.
    Idle,
    /// A message, in this time.
    Wait(Duration),
    /// This message, which the caller has claimed.
    Deliver(Box<AlarmMessage>),
}

/// How messages are grouped and claimed.
///
/// ```
/// use duly::AlarmPace;
/// use std::time::Duration;
/// // One message an hour: conditions that begin meanwhile are in the next one.
/// let pace = AlarmPace { interval: Duration::from_secs(3600), ..AlarmPace::default() };
/// assert_eq!(pace.gather, Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlarmPace {
    /// A message waits this long for further conditions of its kind. Default: 10 seconds.
    pub gather: Duration,
    /// Time between messages of one kind. Default: one minute.
    pub interval: Duration,
    /// A claim ends after this time, if the claimant has not ended it: the claimant died. Default: one minute.
    pub lease: Duration,
}

impl Default for AlarmPace {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        AlarmPace { gather: Duration::from_secs(10), interval: minute, lease: minute }
    }
}

/// A time in which the database could not be written, to be stored since it can be written again.
///
/// ```
/// use duly::{AlarmOutage, AlarmPace, AlarmTurn, Client, Limits, Timestamp};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// let channels = ["mail", "chat"];
/// client.update_alarms(&channels, &Limits::default(), Timestamp::now(), None)?;
/// let (found, advice) = ("the disk is full".to_owned(), "free some space".to_owned());
/// let outage = AlarmOutage { since: Timestamp::now(), found, advice, delivered: vec!["chat".to_owned()] };
/// client.update_alarms(&channels, &Limits::default(), Timestamp::now(), Some(&outage))?;
/// let pace = AlarmPace { gather: std::time::Duration::ZERO, ..AlarmPace::default() };
/// // The chat has delivered a message during the outage; the mail has it still to do.
/// let AlarmTurn::Deliver(late) = client.claim_alarm("mail", &pace, None)? else { panic!("nothing to deliver") };
/// assert_eq!(late.items[0].found, "the disk is full");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlarmOutage {
    /// When it began.
    pub since: Timestamp,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub advice: String,
    /// The channels that have delivered a message about it.
    pub delivered: Vec<String>,
}

/// A condition that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) kind: AlarmKind,
    /// The name of the task, the id of the owner, or nothing.
    pub(crate) subject: String,
    pub(crate) run: Option<i64>,
    pub(crate) since: Timestamp,
    pub(crate) found: String,
    pub(crate) advice: String,
}

/// What one look has found.
#[derive(Debug)]
pub(crate) struct Look<'a> {
    pub(crate) channels: &'a [&'a str],
    /// When it began.
    pub(crate) at: Timestamp,
    /// A channel that is new examines what was recorded since then.
    pub(crate) since: Timestamp,
    /// All conditions of the kinds that a look finds.
    pub(crate) conditions: Vec<Condition>,
    /// The kinds of which every condition is in `conditions`: others of these kinds are over.
    pub(crate) complete: Vec<AlarmKind>,
    /// Whether missed occurrences count although a later one ran in their place.
    pub(crate) caught_up: bool,
    pub(crate) outage: Option<&'a AlarmOutage>,
}
