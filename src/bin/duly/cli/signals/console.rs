//! Windows has no signals: the events of the console.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::windows as console;

/// Once one of the last three was delivered, the system ends this process after some seconds.
pub(super) struct Events {
    runtime: Runtime,
    ctrl_c: console::CtrlC,
    ctrl_break: console::CtrlBreak,
    close: console::CtrlClose,
    logoff: console::CtrlLogoff,
    shutdown: console::CtrlShutdown,
}

impl Events {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Events {
            runtime: Builder::new_current_thread().build()?,
            ctrl_c: console::ctrl_c()?,
            ctrl_break: console::ctrl_break()?,
            close: console::ctrl_close()?,
            logoff: console::ctrl_logoff()?,
            shutdown: console::ctrl_shutdown()?,
        })
    }

    /// Waits for the next one, and returns its name.
    pub(super) fn next(&mut self) -> &'static str {
        let Events { runtime, ctrl_c, ctrl_break, close, logoff, shutdown } = self;
        runtime.block_on(poll_fn(|context| {
            let events = [
                (ctrl_c.poll_recv(context), "Ctrl-C"),
                (ctrl_break.poll_recv(context), "Ctrl-Break"),
                (close.poll_recv(context), "the end of the console"),
                (logoff.poll_recv(context), "the end of the session"),
                (shutdown.poll_recv(context), "the shutdown of the system"),
            ];
            let found = events.into_iter().find(|(event, _)| event.is_ready());
            found.map_or(Poll::Pending, |(_, name)| Poll::Ready(name))
        }))
    }
}
