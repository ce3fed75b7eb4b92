//! Signals, delivered on a thread.

#[cfg(all(windows, any(feature = "page", feature = "postgres", feature = "tokio")))]
mod console;

use std::io;
#[cfg(unix)]
use std::io::IsTerminal;
use std::thread;

#[cfg(target_os = "linux")]
use nix::sys::signal::{SIGPWR, SIGQUIT, SIGWINCH};
#[cfg(unix)]
use signal_hook::consts::{SIGALRM, SIGCHLD, SIGHUP, SIGIO, SIGPROF, SIGUSR1, SIGUSR2, SIGVTALRM};
#[cfg(unix)]
use signal_hook::consts::{SIGINT, SIGTERM};

/// Signals without a meaning here. Their default action would end the program while commands are running.
#[cfg(unix)]
const IGNORED: [i32; 6] = [SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO];

/// Signals that stop images of containers, beside SIGINT and SIGTERM: those of nginx, of Apache, of LXC, and of systemd. Runtimes take the
/// last one from the C library of most systems, which is why it is a number: others begin with another one.
#[cfg(target_os = "linux")]
const OF_IMAGES: [(i32, &str); 4] =
    [(SIGQUIT as i32, "SIGQUIT"), (SIGWINCH as i32, "SIGWINCH"), (SIGPWR as i32, "SIGPWR"), (37, "SIGRTMIN+3")];
#[cfg(all(unix, not(target_os = "linux")))]
const OF_IMAGES: [(i32, &str); 0] = [];

/// Returns the signals that stop this process as they stop an image: it is process 1, whose default action for each is to ignore it. At a
/// terminal SIGWINCH says that its size has changed.
#[cfg(unix)]
fn of_images() -> impl Iterator<Item = i32> {
    let is_first = rustix::process::getpid().is_init();
    let is_at_terminal = io::stdin().is_terminal();
    let stops = move |(_, name): &(i32, &str)| is_first && !(is_at_terminal && *name == "SIGWINCH");
    OF_IMAGES.into_iter().filter(stops).map(|(signal, _)| signal)
}

/// Unblocks all signals: the parent may have blocked some. Threads and children inherit that, so it is done before the first one.
#[cfg(unix)]
pub(crate) fn unblock() {
    let _ = nix::sys::signal::SigSet::all().thread_unblock();
}
#[cfg(not(unix))]
pub(crate) fn unblock() {}

/// The request that a signal makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Stop; with the name of the signal.
    Stop(&'static str),
    /// Read the manifest again: SIGHUP, where the system has it.
    #[cfg_attr(not(unix), allow(dead_code))]
    Reload,
}

/// Calls `take` with the request of each signal, on a thread of its own, until it returns false. Must be called before the first child is
/// started: the parent may have started this program with SIGCHLD ignored.
pub(crate) fn forward(take: impl Fn(Request) -> bool + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new()?;
    let listen = move || while signals.next().is_some_and(&take) {};
    thread::Builder::new().name("duly-signals".into()).spawn(listen).map(|_| ())
}

#[cfg(unix)]
struct Signals(signal_hook::iterator::Signals);

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        // While SIGCHLD is ignored, the kernel keeps no exit status of any child. Any handler ends that; whether it was called
        // does not matter. Commands start with the default action.
        signal_hook::flag::register(SIGCHLD, std::sync::Arc::default())?;
        let stop_or_reload = [SIGINT, SIGTERM, SIGHUP].into_iter().chain(of_images());
        signal_hook::iterator::Signals::new(stop_or_reload.chain(IGNORED)).map(Signals)
    }

    fn next(&mut self) -> Option<Request> {
        loop {
            match self.0.forever().next()? {
                SIGHUP => return Some(Request::Reload),
                signal if IGNORED.contains(&signal) => {
                    let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                    log::info!("{name}: ignored; SIGTERM or SIGINT ends the program");
                }
                signal => return Some(stop(signal)),
            }
        }
    }
}

#[cfg(all(windows, any(feature = "page", feature = "postgres", feature = "tokio")))]
struct Signals(console::Events);

#[cfg(all(windows, any(feature = "page", feature = "postgres", feature = "tokio")))]
impl Signals {
    fn new() -> io::Result<Self> {
        console::Events::new().map(Signals)
    }

    fn next(&mut self) -> Option<Request> {
        Some(Request::Stop(self.0.next()))
    }
}

/// Without these events there is Ctrl-C alone, as a signal of the C library, for which this polls.
#[cfg(not(any(unix, feature = "page", feature = "postgres", feature = "tokio")))]
struct Signals(std::sync::Arc<std::sync::atomic::AtomicBool>);

#[cfg(not(any(unix, feature = "page", feature = "postgres", feature = "tokio")))]
impl Signals {
    fn new() -> io::Result<Self> {
        let raised = std::sync::Arc::default();
        signal_hook::flag::register(signal_hook::consts::SIGINT, std::sync::Arc::clone(&raised))?;
        Ok(Signals(raised))
    }

    fn next(&mut self) -> Option<Request> {
        while !self.0.swap(false, std::sync::atomic::Ordering::SeqCst) {
            thread::sleep(std::time::Duration::from_millis(200));
        }
        Some(Request::Stop("Ctrl-C"))
    }
}

#[cfg(unix)]
fn stop(signal: i32) -> Request {
    let name = OF_IMAGES.into_iter().find(|(of_image, _)| *of_image == signal).map(|(_, name)| name);
    Request::Stop(name.unwrap_or(if signal == SIGINT { "SIGINT" } else { "SIGTERM" }))
}
