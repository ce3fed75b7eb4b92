//! A progress bar on a terminal. A separate thread draws it: a blocked terminal must not block the work, which may hold a
//! transaction.

use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use duly::Progress;

/// Work that takes no longer shows no bar.
const DELAY: Duration = Duration::from_millis(500);
/// Interval at which the bar is drawn.
const FRAME: Duration = Duration::from_millis(100);
/// Maximum and minimum width of the bar, and the width of the text around it, in columns.
const MAX_WIDTH: usize = 40;
const MIN_WIDTH: usize = 10;
const LABEL_WIDTH: usize = 20;

/// A terminal on which bars are drawn.
#[derive(Clone, Copy)]
pub(crate) struct Bars {
    /// Opens it.
    pub(crate) terminal: fn() -> Box<dyn Write + Send>,
    /// Its width, if it is known.
    pub(crate) width: Option<u16>,
}

impl Bars {
    /// Does the work, and shows its progress once it has taken longer than [`DELAY`].
    pub(crate) fn watch<T>(self, doing: &'static str, work: impl FnOnce(&Progress) -> T) -> T {
        let progress = Progress::default();
        let (end, ended) = channel();
        let shown = progress.clone();
        let draw = move || {
            // A failure to draw is ignored.
            let _ = self.draw(doing, &shown, &ended);
        };
        let thread = thread::Builder::new().name("duly-bar".into()).spawn(draw);
        let result = work(&progress);
        drop(end);
        let _ = thread.map(thread::JoinHandle::join);
        result
    }

    /// Draws until the work has ended, then erases the bar.
    fn draw(self, doing: &str, progress: &Progress, ended: &Receiver<()>) -> std::io::Result<()> {
        if ended.recv_timeout(DELAY) != Err(RecvTimeoutError::Timeout) {
            return Ok(());
        }
        let mut terminal = (self.terminal)();
        let cells = usize::from(self.width.unwrap_or(80)).saturating_sub(LABEL_WIDTH).clamp(MIN_WIDTH, MAX_WIDTH);
        loop {
            write!(terminal, "\r{}\u{1b}[K", line(doing, progress.share(), cells))?;
            terminal.flush()?;
            if ended.recv_timeout(FRAME) != Err(RecvTimeoutError::Timeout) {
                write!(terminal, "\r\u{1b}[K")?;
                return terminal.flush();
            }
        }
    }
}

/// The text of the bar: `copying [####......]  40%`; `copying ...` if the amount of work is unknown.
fn line(doing: &str, share: Option<f64>, cells: usize) -> String {
    let Some(share) = share else { return format!("{doing} ...") };
    // `share` is between 0 and 1, so that the casts lose nothing.
    let (full, percent) = ((share * cells as f64) as usize, (share * 100.0) as u32);
    format!("{doing} [{}{}] {percent:>3}%", "#".repeat(full), ".".repeat(cells.saturating_sub(full)))
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn the_bar_shows_the_share_that_is_done() {
        assert_eq!(line("copying", None, 10), "copying ...");
        for (share, bar) in [
            (0.0, "copying [..........]   0%"),
            (0.399, "copying [###.......]  39%"),
            (0.999, "copying [#########.]  99%"),
            (1.0, "copying [##########] 100%"),
        ] {
            assert_eq!(line("copying", Some(share), 10), bar);
        }
    }
}
