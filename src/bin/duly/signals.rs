//! What the system asks of the program, as messages.

use std::io;
use std::sync::mpsc::SyncSender;
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// To leave, by the signal of this name.
    Leave(&'static str),
    /// To read again what was read at the start: SIGHUP, where there is such a signal.
    #[cfg_attr(not(unix), allow(dead_code))]
    Reload,
}

/// Has every such signal from now on sent as a message, for as long as the process lives.
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
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM, signal_hook::consts::SIGHUP]).map(Signals)
    }

    fn next(&mut self) -> Option<Request> {
        self.0.forever().next().map(|signal| match signal {
            signal_hook::consts::SIGHUP => Request::Reload,
            signal => leave(signal),
        })
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
