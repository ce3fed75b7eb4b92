//! The time of a server, as its hosts show it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::clock::{Clock, Now, Timestamp};

/// A wait that any clock can compute.
const FAR: Duration = Duration::from_secs(3600);

/// The time of a server: the machine's monotonic clock, and an offset that the answers of the server correct. So hosts whose clocks
/// differ agree about the time.
pub(crate) struct ServerClock {
    local: Arc<dyn Clock>,
    /// Microseconds from the zero of the monotonic clock to the epoch.
    offset: AtomicI64,
}

impl ServerClock {
    /// Returns a clock that shows the machine's time until the server has answered.
    pub(crate) fn new(local: Arc<dyn Clock>) -> Self {
        let Now { wall, monotonic } = local.now();
        let offset = AtomicI64::new(wall.0.saturating_mul(1000).saturating_sub(micros(monotonic)));
        ServerClock { local, offset }
    }

    /// Returns the time of the monotonic clock, to be read before the server is asked.
    pub(crate) fn before(&self) -> Duration {
        self.uncut()
    }

    /// Returns the reading of the monotonic clock, which [`Clock::now`] cuts to the start of a millisecond of the machine: a millisecond of
    /// the server that begins in it would be noticed up to a millisecond late.
    fn uncut(&self) -> Duration {
        let cut = self.local.now().monotonic;
        let far = cut.saturating_add(FAR);
        let exact = far.checked_sub(self.local.until(far));
        // A clock that runs at another pace shows no more than the cut reading.
        exact.filter(|at| at.saturating_sub(cut) < Duration::from_millis(1)).map_or(cut, |at| at.max(cut))
    }

    /// Corrects the clock: the server's clock showed `wall` at some moment between `before` and now. An offset that may be right stays
    /// as it is, so the time does not jitter with the latency; any other one is replaced by the nearest that may be.
    pub(crate) fn learn(&self, wall: Timestamp, before: Duration) {
        // The server's reading is cut to milliseconds; that of a machine whose clock runs at another pace may be too.
        let after = micros(self.before()).saturating_add(1000);
        let wall = wall.0.saturating_mul(1000);
        let (least, most) = (wall.saturating_sub(after), wall.saturating_add(1000).saturating_sub(micros(before)));
        let clamped = |offset: i64| offset.max(least).min(most);
        let mut offset = self.offset.load(Ordering::Relaxed);
        while let Err(other) =
            self.offset.compare_exchange(offset, clamped(offset), Ordering::Relaxed, Ordering::Relaxed)
        {
            offset = other;
        }
    }
}

impl Clock for ServerClock {
    /// Returns both readings for the start of the current millisecond of the server.
    fn now(&self) -> Now {
        let monotonic = self.uncut();
        let wall = micros(monotonic).saturating_add(self.offset.load(Ordering::Relaxed));
        let into_the_millisecond = Duration::from_micros(wall.rem_euclid(1000).unsigned_abs());
        Now { wall: Timestamp(wall.div_euclid(1000)), monotonic: monotonic.saturating_sub(into_the_millisecond) }
    }

    fn until(&self, at: Duration) -> Duration {
        self.local.until(at)
    }
}

impl fmt::Debug for ServerClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerClock").field(&self.now()).finish()
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::ServerClock;
    use crate::clock::{Clock, ManualClock, Now, Timestamp};

    #[test]
    fn a_host_whose_clock_is_an_hour_off_shows_the_time_of_the_server() {
        let noon: Timestamp = "2027-03-14T12:00:00Z".parse().unwrap();
        let hour = Duration::from_secs(3600);
        for found in [noon, noon + hour, noon - hour] {
            let local = ManualClock::new(found);
            local.advance(Duration::from_secs(7));
            let clock = ServerClock::new(Arc::new(local.clone()));
            assert_eq!(clock.now().wall, found + Duration::from_secs(7), "nothing is known yet");
            // The server is asked, and its answer takes 40 ms; which of them its time is of is not known.
            let before = clock.before();
            local.advance(Duration::from_millis(40));
            clock.learn(noon + Duration::from_millis(30), before);
            let off = clock.now().wall.as_millis() - noon.as_millis();
            assert!((29..=72).contains(&off), "{off} ms after noon by a clock that showed {found}");
            // Answers that agree change nothing, however long the server was waited for.
            let shown = clock.now();
            let before = clock.before();
            local.advance(Duration::from_millis(4000));
            clock.learn(shown.wall + Duration::from_millis(3900), before);
            assert_eq!(clock.now().wall, shown.wall + Duration::from_millis(4000));
            // The machine's wall clock plays no part.
            let (shown, monotonic) = (clock.now(), local.now().monotonic);
            local.set_wall(noon - hour * 24 * 365);
            assert_eq!(clock.now(), shown);
            assert!(monotonic - shown.monotonic < Duration::from_millis(1));
            // A step of the server's is followed at once.
            let before = clock.before();
            clock.learn(shown.wall + hour, before);
            let stepped = clock.now().wall.since(shown.wall);
            assert!(stepped.abs_diff(hour) <= Duration::from_millis(1), "{stepped:?}");
        }
    }

    #[test]
    fn a_millisecond_of_the_server_is_noticed_as_soon_as_it_begins() {
        const NOON: Timestamp = Timestamp::from_millis(1_805_025_600_000);

        /// As the machine's: cuts its readings to milliseconds, by two clocks that are not read at the same moment.
        #[derive(Debug)]
        struct Cut {
            exact: Mutex<Duration>,
            pace: u32,
        }

        impl Clock for Cut {
            fn now(&self) -> Now {
                let exact = *self.exact.lock().unwrap();
                let cut = Duration::from_millis(u64::try_from(exact.as_millis()).unwrap());
                Now { wall: NOON + cut, monotonic: cut - Duration::from_nanos(u64::from(exact.subsec_nanos() % 1000)) }
            }

            fn until(&self, at: Duration) -> Duration {
                at.saturating_sub(*self.exact.lock().unwrap()) / self.pace
            }
        }

        for (pace, shown) in [(1, 8_000), (10, 7_999)] {
            let local = Arc::new(Cut { exact: Mutex::new(Duration::from_micros(7_000_400)), pace });
            let clock = ServerClock::new(local.clone());
            *local.exact.lock().unwrap() = Duration::from_nanos(8_000_300_100);
            assert_eq!(clock.now().wall, NOON + Duration::from_millis(shown), "at {pace} times the pace");
        }
    }
}
