//! What the system asks of the program, as messages.

use std::io;
use std::sync::mpsc::SyncSender;
use std::thread;

#[cfg(unix)]
use signal_hook::consts::{SIGALRM, SIGCHLD, SIGHUP, SIGIO, SIGPROF, SIGUSR1, SIGUSR2, SIGVTALRM};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Signals that mean nothing here, and would end the program with commands at work.
#[cfg(unix)]
const IGNORED: [i32; 6] = [SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO];

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// To leave, by the signal of this name.
    Leave(&'static str),
    /// To read again what was read at the start: SIGHUP, where there is such a signal.
    #[cfg_attr(not(unix), allow(dead_code))]
    Reload,
}

/// Has every such signal from now on sent as a message, for as long as the process lives. To be called before the first child
/// is started: some programs start others with SIGCHLD ignored.
pub(crate) fn send<T: Send + 'static>(to: SyncSender<T>, message: fn(Request) -> T) -> io::Result<()> {
    let mut signals = Signals::new()?;
    let listen = move || {
        while let Some(request) = signals.next() {
            if to.send(message(request)).is_err() {
                break;
            }
        }
    };
    thread::Builder::new().name("duly-signals".into()).spawn(listen).map(|_| ())
}

#[cfg(unix)]
struct Signals(signal_hook::iterator::Signals);

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        // If the parent process had SIGCHLD ignored, the kernel would keep no exit status of any child. Any handler ends that;
        // nothing asks whether it was called. A command starts without it, with the default.
        signal_hook::flag::register(SIGCHLD, std::sync::Arc::default())?;
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP].into_iter().chain(IGNORED)).map(Signals)
    }

    fn next(&mut self) -> Option<Request> {
        loop {
            match self.0.forever().next()? {
                SIGHUP => return Some(Request::Reload),
                signal if IGNORED.contains(&signal) => {
                    let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                    log::info!("{name}: ignored; SIGTERM or SIGINT ends the program");
                }
                signal => return Some(leave(signal)),
            }
        }
    }
}

/// Elsewhere nothing can wait for a signal: it is looked for.
#[cfg(not(unix))]
struct Signals(std::sync::Arc<std::sync::atomic::AtomicUsize>);

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Self> {
        let raised = std::sync::Arc::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_usize(signal, std::sync::Arc::clone(&raised), signal as usize)?;
        }
        Ok(Signals(raised))
    }

    fn next(&mut self) -> Option<Request> {
        loop {
            match self.0.swap(0, std::sync::atomic::Ordering::SeqCst) {
                0 => thread::sleep(std::time::Duration::from_millis(200)),
                signal => return Some(leave(signal as i32)),
            }
        }
    }
}

fn leave(signal: i32) -> Request {
    Request::Leave(if signal == SIGINT { "SIGINT" } else { "SIGTERM" })
}
