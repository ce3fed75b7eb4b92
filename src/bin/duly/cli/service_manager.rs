//! Messages to the service manager, by the protocol of sd_notify(3): ready, status, reloading, stopping, and the watchdog.
//!
//! The variables of the protocol stay in the environment of this process, because other threads may read it. Commands are started
//! without them.

use std::cell::Cell;
use std::time::Duration;

use duly::duration_text;

/// Variables that are meant for this process only.
pub(crate) const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// The service manager that started this process, if there is one. A message that cannot be sent is dropped: the manager must not
/// delay the scheduler.
#[derive(Debug, Default)]
pub(crate) struct ServiceManager {
    #[cfg(unix)]
    socket: Option<unix::Socket>,
    /// The time after which the manager ends a process that has sent no sign of life.
    watchdog: Option<Duration>,
    is_ready: Cell<bool>,
    /// When the last sign of life was sent, and the number of turns at that time.
    last: Cell<(Duration, u64)>,
}

impl ServiceManager {
    /// Reads the variables of the protocol.
    pub(crate) fn from_env() -> Self {
        #[cfg(unix)]
        {
            let variable = |name: &str| std::env::var(name).ok();
            let watchdog = watchdog(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"), std::process::id());
            let name = std::env::var_os("NOTIFY_SOCKET");
            if let Some(doubt) = watchdog.and_then(|watchdog| doubt(watchdog, name.is_some())) {
                log::warn!("{doubt}");
            }
            let Some(socket) = name.and_then(|name| unix::Socket::open(&name)) else {
                return ServiceManager::default();
            };
            ServiceManager { socket: Some(socket), watchdog, ..ServiceManager::default() }
        }
        #[cfg(not(unix))]
        ServiceManager::default()
    }

    /// Returns how often [`ServiceManager::report_turns`] must be called, and a turn be taken, at least.
    pub(crate) fn interval(&self) -> Option<Duration> {
        self.watchdog.map(|watchdog| (watchdog / 4).max(Duration::from_millis(10)))
    }

    /// Reports that the program is ready, after the first turn; then sends a sign of life twice in the time of the watchdog, if a turn
    /// has ended since the one before it. `status`: what it does when it is ready.
    pub(crate) fn report_turns(&self, turns: u64, now: Duration, status: impl FnOnce() -> String) {
        if !self.is_ready.get() {
            self.is_ready.set(turns > 0 && self.send(&format!("READY=1\nSTATUS={}", status())));
            return;
        }
        let (sent, before) = self.last.get();
        if let Some(watchdog) = self.watchdog
            && turns != before
            && (before == 0 || now.saturating_sub(sent) >= watchdog / 2)
            && self.send("WATCHDOG=1")
        {
            self.last.set((now, turns));
        }
    }

    /// Reports that the configuration is read again.
    pub(crate) fn report_reload(&self) {
        #[cfg(unix)]
        if self.is_ready.get() {
            self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", unix::monotonic().as_micros()));
        }
    }

    /// Reports the end of a reload.
    pub(crate) fn report_reloaded(&self, status: &str) {
        if self.is_ready.get() {
            self.send(&format!("READY=1\nSTATUS={status}"));
        }
    }

    /// Reports that the program stops.
    pub(crate) fn report_stop(&self, status: &str) {
        self.send(&format!("STOPPING=1\nSTATUS={status}"));
    }

    #[cfg(unix)]
    fn send(&self, message: &str) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.send(message))
    }

    #[cfg(not(unix))]
    fn send(&self, _message: &str) -> bool {
        false
    }
}

/// Returns the time of the watchdog, if it is set for this process.
#[cfg_attr(not(unix), allow(dead_code))]
fn watchdog(microseconds: Option<String>, pid: Option<String>, own: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    microseconds?.parse().ok().filter(|time| *time > 0).map(Duration::from_micros)
}

/// A shorter watchdog may end a scheduler that is well: a write waits up to 5 s for a lock, and one of a slow disk takes as long.
const SHORT_WATCHDOG: Duration = Duration::from_secs(30);

/// Returns why the watchdog of the service manager will end a scheduler that is well, if it may.
#[cfg_attr(not(unix), allow(dead_code))]
fn doubt(watchdog: Duration, has_socket: bool) -> Option<String> {
    let time = duration_text(watchdog);
    if !has_socket {
        return Some(format!(
            "WATCHDOG_USEC is set ({time}), and NOTIFY_SOCKET is not: the service manager gets no sign of life, and may end this process; \
             set Type=notify and NotifyAccess=main, or no WatchdogSec"
        ));
    }
    (watchdog < SHORT_WATCHDOG).then(|| {
        let least = duration_text(SHORT_WATCHDOG);
        format!(
            "WATCHDOG_USEC: {time} is short, since a turn waits for a busy disk: expected WatchdogSec={least} or longer"
        )
    })
}

#[cfg(unix)]
mod unix {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::time::Duration;

    /// A socket that never blocks, and the address of the manager.
    #[derive(Debug)]
    pub(super) struct Socket {
        socket: UnixDatagram,
        manager: SocketAddr,
    }

    impl Socket {
        /// Opens a socket for messages to this name: a path, or `@` and an abstract name.
        pub(super) fn open(name: &OsStr) -> Option<Self> {
            let manager = match name.as_bytes() {
                [b'/', ..] => SocketAddr::from_pathname(name).ok(),
                [b'@', name @ ..] => abstract_name(name),
                _ => None,
            };
            let socket = UnixDatagram::unbound().ok().filter(|socket| socket.set_nonblocking(true).is_ok());
            let open = manager.zip(socket).map(|(manager, socket)| Socket { socket, manager });
            if open.is_none() {
                log::warn!("NOTIFY_SOCKET: the service manager receives no messages: cannot use the socket {name:?}");
            }
            open
        }

        pub(super) fn send(&self, message: &str) -> bool {
            let sent = self.socket.send_to_addr(message.as_bytes(), &self.manager);
            if let Err(error) = &sent {
                log::debug!("a message to the service manager was dropped: {error}");
            }
            sent.is_ok()
        }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn abstract_name(name: &[u8]) -> Option<SocketAddr> {
        use std::os::linux::net::SocketAddrExt;
        SocketAddr::from_abstract_name(name).ok()
    }

    /// Other systems have no abstract names.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn abstract_name(_name: &[u8]) -> Option<SocketAddr> {
        None
    }

    /// Returns the clock that the manager compares with its own.
    pub(super) fn monotonic() -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let part = |number: i64| u64::try_from(number).unwrap_or_default();
        Duration::from_secs(part(now.tv_sec)) + Duration::from_nanos(part(now.tv_nsec))
    }
}

#[cfg(test)]
mod tests {
    use super::{doubt, watchdog};
    use std::time::Duration;

    #[test]
    fn a_watchdog_that_ends_a_healthy_scheduler_is_said() {
        let long = Duration::from_secs(30);
        assert_eq!(doubt(long, true), None);
        assert!(doubt(long / 2, true).unwrap().starts_with("WATCHDOG_USEC: 15s is short"));
        assert!(doubt(long, false).unwrap().contains("NOTIFY_SOCKET is not: the service manager gets no sign of life"));
    }

    #[test]
    fn a_watchdog_is_for_the_process_that_it_names() {
        let given = |time: &str, pid: Option<&str>| watchdog(Some(time.to_owned()), pid.map(str::to_owned), 7);
        let second = Some(Duration::from_secs(1));
        assert_eq!((given("1000000", Some("7")), given("1000000", None)), (second, second));
        assert_eq!((given("1000000", Some("8")), given("1000000", Some(""))), (None, None));
        assert_eq!((given("0", None), given("soon", None), watchdog(None, None, 7)), (None, None, None));
    }
}
