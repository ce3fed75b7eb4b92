//! The only code that reads the clocks of the machine.
//!
//! Below client and scheduler the time is an argument, [`Now`]. The wall clock decides *when* work is due, the
//! monotonic clock *how long* something took: a step of the wall clock neither ends a lease nor extends a timeout.

#[cfg(feature = "postgres")]
pub(crate) mod server;

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use chrono::{DateTime, Datelike, SecondsFormat, Timelike, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Error;

/// An instant of the wall clock: milliseconds since the Unix epoch, UTC, as the tables store it.
///
/// ```
/// use duly::Timestamp;
/// let noon: Timestamp = "2027-03-14T12:00:00Z".parse()?;
/// assert_eq!(noon.as_millis(), 1_805_025_600_000);
/// // Fractions of a millisecond are cut, never rounded up: work must not start early.
/// assert_eq!("2027-03-14T12:00:00.0009Z".parse::<Timestamp>()?, noon);
/// let error = "noon".parse::<Timestamp>().unwrap_err().to_string();
/// assert!(error.starts_with("invalid time \"noon\": expected a date and time as in 2027-03-14T12:00:00Z"));
/// # Ok::<(), duly::Error>(())
/// ```
///
/// It converts from and to [`SystemTime`] and chrono's `DateTime<Utc>`, and its serde form is the text.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use duly::Timestamp;
/// let noon: Timestamp = "2027-03-14T12:00:00Z".parse()?;
/// assert_eq!(noon + Duration::from_secs(90) - Duration::from_secs(60), "2027-03-14T12:00:30Z".parse()?);
/// assert_eq!(serde_json::to_string(&noon)?, r#""2027-03-14T12:00:00.000Z""#);
/// let system = SystemTime::try_from(noon)? + Duration::from_nanos(999_999);
/// assert_eq!(Timestamp::from(system), noon, "cut to whole milliseconds");
/// assert_eq!(chrono::DateTime::<chrono::Utc>::try_from(noon)?.timestamp_millis(), noon.as_millis());
/// // Arithmetic saturates, and an instant that the other type cannot hold is an error.
/// let end = Timestamp::from_millis(i64::MAX);
/// assert_eq!(end + Duration::from_secs(1), end);
/// assert!(chrono::DateTime::<chrono::Utc>::try_from(end).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The latest instant that the tables accept: the start of the year 4000.
    pub const MAX: Timestamp = Timestamp(64_060_588_800_000);
    /// The earliest instant that the tables accept, in September 2001. Smaller numbers are most likely seconds.
    pub const MIN: Timestamp = Timestamp(1_000_000_000_000);

    /// Returns the time of the system's clock, cut to whole milliseconds. A scheduler or client with another [`Clock`] may read
    /// another time.
    ///
    /// ```
    /// use duly::{NewTask, Timestamp};
    /// let task = NewTask::enqueue("mail", Timestamp::now() + std::time::Duration::from_secs(600));
    /// assert!(Timestamp::now() <= std::time::SystemTime::now().into());
    /// ```
    pub fn now() -> Self {
        Timestamp::from(SystemTime::now())
    }

    /// Returns the instant `millis` milliseconds after the Unix epoch.
    ///
    /// ```
    /// use duly::Timestamp;
    /// assert_eq!(Timestamp::from_millis(1_805_025_600_000), "2027-03-14T12:00:00Z".parse()?);
    /// // Seconds instead of milliseconds: an instant in 1970, which the tables refuse.
    /// assert!(Timestamp::from_millis(1_805_025_600) < Timestamp::MIN);
    /// # Ok::<(), duly::Error>(())
    /// ```
    pub const fn from_millis(millis: i64) -> Self {
        Timestamp(millis)
    }

    /// Returns the milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Adds `duration`, cut to whole milliseconds. Saturates instead of overflowing.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Timestamp(self.0.saturating_add(millis(duration)))
    }

    /// Subtracts `duration`, cut to whole milliseconds. Saturates instead of overflowing.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Timestamp(self.0.saturating_sub(millis(duration)))
    }

    /// Returns the time from `earlier` to `self`; zero if `earlier` is later.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::Timestamp;
    /// let (noon, later): (Timestamp, Timestamp) = ("2027-03-14T12:00:00Z".parse()?, "2027-03-14T12:01:00Z".parse()?);
    /// assert_eq!((later.since(noon), noon.since(later)), (Duration::from_secs(60), Duration::ZERO));
    /// # Ok::<(), duly::Error>(())
    /// ```
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Converts to chrono's type. `None` if chrono cannot represent the instant.
    pub fn to_datetime(self) -> Option<DateTime<Utc>> {
        DateTime::from_timestamp_millis(self.0)
    }
}

/// Returns a duration in milliseconds, the unit of the tables. Saturates.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// As [`Timestamp::plus`].
impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, duration: Duration) -> Timestamp {
        self.plus(duration)
    }
}

/// As [`Timestamp::minus`].
impl Sub<Duration> for Timestamp {
    type Output = Timestamp;

    fn sub(self, duration: Duration) -> Timestamp {
        self.minus(duration)
    }
}

/// Fails if the operating system cannot represent the instant.
impl TryFrom<Timestamp> for SystemTime {
    type Error = Error;

    fn try_from(at: Timestamp) -> Result<Self, Error> {
        let distance = Duration::from_millis(at.0.unsigned_abs());
        let time = if at.0 < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(distance)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(distance)
        };
        time.ok_or_else(|| Error::invalid_task("timestamp", at, "an instant that the operating system can represent"))
    }
}

/// Fails for instants more than some 262 000 years from now.
impl TryFrom<Timestamp> for DateTime<Utc> {
    type Error = Error;

    fn try_from(at: Timestamp) -> Result<Self, Error> {
        at.to_datetime().ok_or_else(|| Error::invalid_task("timestamp", at, "an instant that chrono can represent"))
    }
}

/// As `Display`: RFC 3339, UTC, with milliseconds. Fails outside of the years 0 to 9999, which the text cannot hold.
impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.to_datetime().map(|at| at.year()) {
            Some(0..=9999) => to.collect_str(self),
            _ => Err(serde::ser::Error::custom(format_args!("expected a year from 0 to 9999, found {self}"))),
        }
    }
}

/// As `FromStr`: RFC 3339 with any offset.
impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl From<DateTime<Utc>> for Timestamp {
    fn from(at: DateTime<Utc>) -> Self {
        Timestamp(at.timestamp_millis())
    }
}

impl From<SystemTime> for Timestamp {
    fn from(at: SystemTime) -> Self {
        match at.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => Timestamp(millis(after)),
            // Rounded down, as above.
            Err(before) => Timestamp(-millis(before.duration().saturating_add(Duration::from_nanos(999_999)))),
        }
    }
}

/// RFC 3339, UTC, with milliseconds.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(at) = self.to_datetime() else { return write!(f, "{} ms", self.0) };
        // Digit by digit: it runs for every added task, and the formatter of chrono takes five times as long.
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let Ok(year @ 0..=9999) = u32::try_from(at.year()) else {
            return f.write_str(&at.to_rfc3339_opts(SecondsFormat::Millis, true));
        };
        let parts = [
            (0..4, year),
            (5..7, at.month()),
            (8..10, at.day()),
            (11..13, at.hour()),
            (14..16, at.minute()),
            (17..19, at.second()),
            (20..23, at.timestamp_subsec_millis()),
        ];
        for (place, mut number) in parts {
            for digit in text[place].iter_mut().rev() {
                *digit += (number % 10) as u8;
                number /= 10;
            }
        }
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Timestamp {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = |reason: String| Error::InvalidTime {
            text: text.to_owned(),
            reason: format!("expected a date and time as in 2027-03-14T12:00:00Z: {reason}"),
        };
        let at = DateTime::parse_from_rfc3339(text).map_err(|error| invalid(error.to_string()))?.with_timezone(&Utc);
        // chrono accepts second 60 in any minute; a leap second occurs only at the end of a UTC day.
        if at.nanosecond() >= 1_000_000_000 && (at.hour(), at.minute()) != (23, 59) {
            return Err(invalid("found a leap second in the middle of a day".to_owned()));
        }
        Ok(Timestamp::from(at))
    }
}

/// One instant, read from both clocks.
///
/// ```
/// use duly::{Clock, testing::ManualClock};
/// let clock = ManualClock::new("2027-03-14T12:00:00Z".parse()?);
/// let before = clock.now();
/// clock.set_wall("2027-03-14T11:00:00Z".parse()?);
/// assert!(clock.now().wall < before.wall && clock.now().monotonic == before.monotonic);
/// # Ok::<(), duly::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The time of day, by which work is due. It may jump.
    pub wall: Timestamp,
    /// The time since a fixed moment of this process, for durations. It never jumps.
    pub monotonic: Duration,
}

impl Now {
    /// Returns the instant this long before.
    pub(crate) fn before(self, ago: Duration) -> Self {
        Now { wall: self.wall - ago, monotonic: self.monotonic.saturating_sub(ago) }
    }
}

/// A source of the current time.
///
/// ```
/// use std::time::Duration;
/// use duly::{Clock, Now, SystemClock};
/// /// Shows the time of day of another machine.
/// struct Ahead(SystemClock, Duration);
/// impl Clock for Ahead {
///     fn now(&self) -> Now {
///         let now = self.0.now();
///         Now { wall: now.wall + self.1, ..now }
///     }
/// }
/// let clock = Ahead(SystemClock::new(), Duration::from_secs(3600));
/// assert!(clock.now().wall > duly::Timestamp::now());
/// // A wait is real time, whatever the time of day is; it is zero for a moment that has passed.
/// assert_eq!(clock.until(Duration::ZERO), Duration::ZERO);
/// ```
pub trait Clock: Send + Sync + 'static {
    /// Returns the current instant of both clocks.
    fn now(&self) -> Now;

    /// Returns how long to wait, in real time, until the monotonic clock reaches `at`.
    fn until(&self, at: Duration) -> Duration {
        at.saturating_sub(self.now().monotonic)
    }
}

/// The clocks of the machine.
///
/// ```
/// use duly::{Clock, SystemClock};
/// let (first, second) = (SystemClock::new(), SystemClock::new());
/// // The time of day is the same, and each clock counts durations from its own start.
/// assert!(second.now().monotonic <= first.now().monotonic);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// Returns a clock whose monotonic time starts at zero now.
    pub fn new() -> Self {
        SystemClock { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    /// Returns both readings for the start of the current millisecond: the wall clock is cut to whole milliseconds and
    /// the monotonic reading reduced by the same amount, so that a wait computed from them ends on time.
    fn now(&self) -> Now {
        let wall = SystemTime::now();
        let monotonic = self.start.elapsed();
        let into_the_millisecond = wall
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(Duration::ZERO, |since| Duration::from_nanos(u64::from(since.subsec_nanos() % 1_000_000)));
        Now { wall: Timestamp::from(wall), monotonic: monotonic.saturating_sub(into_the_millisecond) }
    }

    /// Computes the wait to the nanosecond, since the reading of [`Clock::now`] may be up to a millisecond old.
    fn until(&self, at: Duration) -> Duration {
        at.saturating_sub(self.start.elapsed())
    }
}

/// Returns the present of the monotonic clock, for the timers of a runtime and of channels.
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// Returns the time since the machine was started, with the time in which it was suspended where the system counts that. For the end of
/// leases, which other machines count.
#[cfg(feature = "postgres")]
pub(crate) fn since_boot() -> Duration {
    #[cfg(target_os = "linux")]
    {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
    }
    #[cfg(not(target_os = "linux"))]
    {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }
}

/// A clock that moves only when the test moves it.
///
/// ```
/// use std::time::Duration;
/// use duly::testing::ManualClock;
/// use duly::Clock;
/// let clock = ManualClock::new("2027-03-14T12:59:00Z".parse()?);
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(clock.now().wall, "2027-03-14T13:00:00Z".parse()?);
/// // A step of the wall clock alone, as by an administrator: the monotonic clock does not move.
/// let before = clock.now().monotonic;
/// clock.set_wall("2027-03-14T09:00:00Z".parse()?);
/// assert_eq!(clock.now().monotonic, before);
/// # Ok::<(), duly::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    now: Arc<Mutex<Now>>,
}

impl ManualClock {
    /// Returns a clock that shows `wall`. Clones share the same time.
    pub fn new(wall: Timestamp) -> Self {
        ManualClock { now: Arc::new(Mutex::new(Now { wall, monotonic: Duration::ZERO })) }
    }

    /// Advances both clocks.
    pub fn advance(&self, by: Duration) {
        self.change(|now| {
            now.wall = now.wall.plus(by);
            now.monotonic = now.monotonic.saturating_add(by);
        });
    }

    /// Steps the wall clock forward or back; the monotonic clock does not move.
    pub fn set_wall(&self, wall: Timestamp) {
        self.change(|now| now.wall = wall);
    }

    fn change(&self, change: impl FnOnce(&mut Now)) {
        change(&mut self.now.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Now {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{Clock, SystemClock, Timestamp};
    use std::time::{Duration, SystemTime};

    #[test]
    fn display_equals_the_format_of_chrono() {
        use chrono::SecondsFormat;
        // Every hundred days and some odd milliseconds, from before the year 0 to after 9999.
        for step in -8_000..30_000_i64 {
            let at = Timestamp::from_millis(step * 8_640_012_345);
            let expected = at.to_datetime().map(|at| at.to_rfc3339_opts(SecondsFormat::Millis, true));
            assert_eq!(Some(at.to_string()), expected);
            assert!(expected.is_some_and(|text| text.parse().ok() == Some(at) || text.starts_with(['-', '+'])));
        }
    }

    #[test]
    fn both_readings_are_of_one_instant_and_not_in_the_future() {
        let clock = SystemClock::new();
        let first = clock.now();
        let second = clock.now();
        assert!(second.wall >= first.wall);
        assert!(second.wall <= Timestamp::from(SystemTime::now()));
        let wall = second.wall.since(first.wall);
        let monotonic = second.monotonic.saturating_sub(first.monotonic);
        assert!(monotonic.abs_diff(wall) < Duration::from_millis(2), "{wall:?} {monotonic:?}");
    }

    #[test]
    fn conversions_return_the_same_instant_or_an_error() {
        let edges = [i64::MIN + 1, -62_167_219_200_001, -1, 0, 1, 1_805_025_600_123, 253_402_300_800_000, i64::MAX];
        let instants = edges.map(Timestamp::from_millis).into_iter().chain([Timestamp::MIN, Timestamp::MAX]);
        for at in instants {
            // The times of Windows begin in the year 1601.
            let of_system = SystemTime::try_from(at).map(Timestamp::from).ok();
            assert!(of_system.map_or(cfg!(windows), |same| same == at), "{at}");
            let converted = chrono::DateTime::try_from(at).map(Timestamp::from);
            assert_eq!(converted.is_ok(), at.to_datetime().is_some());
            assert!(converted.is_ok_and(|converted| converted == at) || at.to_datetime().is_none());
            let text = serde_json::to_string(&at);
            assert_eq!(text.is_ok(), (-62_167_219_200_000..253_402_300_800_000).contains(&at.as_millis()), "{at}");
            assert!(
                text.is_err() || serde_json::from_str::<Timestamp>(&text.unwrap()).is_ok_and(|parsed| parsed == at)
            );
        }
        let offset = serde_json::from_str::<Timestamp>(r#""2027-03-14T13:00:00+01:00""#).unwrap();
        assert_eq!(offset.to_string(), "2027-03-14T12:00:00.000Z");
        for wrong in ["1805025600000", r#""2027-03-14""#, "null"] {
            assert!(serde_json::from_str::<Timestamp>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn arithmetic_saturates() {
        let late = Timestamp::from_millis(i64::MAX - 1);
        assert_eq!((late + Duration::MAX).as_millis(), i64::MAX);
        assert_eq!((Timestamp::from_millis(i64::MIN + 1) - Duration::MAX).as_millis(), i64::MIN);
        assert_eq!(late.to_string(), format!("{} ms", i64::MAX - 1));
        assert_eq!(Timestamp::MIN.since(Timestamp::MAX), Duration::ZERO);
        assert_eq!(Timestamp::from(SystemTime::UNIX_EPOCH - Duration::from_nanos(100)), Timestamp::from_millis(-1));
    }
}
