//! The requests of the system to leave, as messages.

use std::io;
use std::sync::mpsc::SyncSender;
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};

/// Has every SIGINT and SIGTERM from now on sent as a message, with its name, for as long as the process lives.
pub(crate) fn send<T: Send + 'static>(to: SyncSender<T>, message: fn(&'static str) -> T) -> io::Result<()> {
    let mut signals = Signals::new()?;
    let listen = move || {
        while let Some(name) = signals.next() {
            if to.send(message(name)).is_err() {
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
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map(Signals)
    }

    fn next(&mut self) -> Option<&'static str> {
        self.0.forever().next().map(name)
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

    fn next(&mut self) -> Option<&'static str> {
        loop {
            match self.0.swap(0, std::sync::atomic::Ordering::SeqCst) {
                0 => thread::sleep(std::time::Duration::from_millis(200)),
                signal => return Some(name(signal as i32)),
            }
        }
    }
}

fn name(signal: i32) -> &'static str {
    if signal == SIGINT { "SIGINT" } else { "SIGTERM" }
}
