//! Time limits of workers. A hidden option shortens them in tests.

use std::str::FromStr;
use std::time::Duration;

use duly::parse_duration;

/// Longest tick of the watch over a worker.
const TICK: Duration = Duration::from_secs(1);

/// Time limits of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// From the start to `hello`.
    pub(crate) hello: Duration,
    /// Silence after which a `ping` is sent.
    pub(crate) ping: Duration,
    /// Silence after which the worker is ended.
    pub(crate) silence: Duration,
    /// From a run that is handed over to its `begin`.
    pub(crate) begin: Duration,
    /// From `cancel` to the end of the attempt.
    pub(crate) cancel: Duration,
    /// From SIGTERM to SIGKILL.
    pub(crate) term: Duration,
    /// Delay before the first restart. It doubles up to sixty times its value.
    pub(crate) backoff: Duration,
    /// Life after `hello` that begins a new row of starts.
    pub(crate) proof: Duration,
    /// Starts in a row after which the worker is given up.
    pub(crate) starts: u32,
}

impl Default for Times {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Times {
            hello: seconds(30),
            ping: seconds(20),
            silence: seconds(60),
            begin: seconds(60),
            cancel: seconds(10),
            term: seconds(10),
            backoff: seconds(1),
            proof: seconds(60),
            starts: 10,
        }
    }
}

impl Times {
    /// Returns how often the limits are checked.
    pub(crate) fn tick(&self) -> Duration {
        let shortest = [self.hello, self.ping, self.silence, self.begin, self.cancel].into_iter().min().unwrap_or(TICK);
        (shortest / 5).clamp(Duration::from_millis(5), TICK)
    }

    /// Returns the delay before the start that follows `starts` starts in a row.
    pub(crate) fn delay(&self, starts: u32) -> Duration {
        let factor = 1_u32.checked_shl(starts.saturating_sub(1)).unwrap_or(60).clamp(1, 60);
        self.backoff * factor
    }
}

/// As `hello=500ms,starts=3`.
impl FromStr for Times {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut times = Times::default();
        for part in text.split(',') {
            let invalid = || format!("expected for example hello=500ms,starts=3, found {part:?}");
            let (name, value) = part.split_once('=').ok_or_else(invalid)?;
            if name == "starts" {
                times.starts = value.parse().map_err(|_| invalid())?;
                continue;
            }
            let field = match name {
                "hello" => &mut times.hello,
                "ping" => &mut times.ping,
                "silence" => &mut times.silence,
                "begin" => &mut times.begin,
                "cancel" => &mut times.cancel,
                "term" => &mut times.term,
                "backoff" => &mut times.backoff,
                "proof" => &mut times.proof,
                _ => return Err(invalid()),
            };
            *field = parse_duration(value).map_err(|error| error.to_string())?;
        }
        Ok(times)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Times;

    #[test]
    fn delays_double_up_to_a_minute() {
        let times = Times::default();
        let delays: Vec<u64> = (1..=9).map(|starts| times.delay(starts).as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!((times.delay(0).as_secs(), times.delay(40).as_secs()), (1, 60));
    }

    #[test]
    fn times_are_parsed() {
        let times: Times = "hello=500ms,starts=3,backoff=10ms".parse().unwrap();
        assert_eq!((times.hello, times.starts), (Duration::from_millis(500), 3));
        assert_eq!((times.delay(2), times.silence), (Duration::from_millis(20), Duration::from_secs(60)));
        for wrong in ["", "hello", "hallo=1s", "hello=soon", "starts=x"] {
            assert!(wrong.parse::<Times>().is_err(), "{wrong}");
        }
    }
}
