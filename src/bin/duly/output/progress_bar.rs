//! How far a long piece of work has come, as a bar on a terminal. It is drawn by a thread of its own: a terminal that is
//! held up must not hold up the work, which may have a transaction in its hands.

use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use duly::Progress;

/// What takes no longer needs no bar.
const MOMENT: Duration = Duration::from_millis(500);
/// How often the bar is drawn.
const FRAME: Duration = Duration::from_millis(100);
/// Widest and narrowest a bar is, in columns, and what stands beside it.
const WIDEST: usize = 40;
const NARROWEST: usize = 10;
const BESIDE: usize = 20;

/// A terminal on which bars are drawn.
#[derive(Clone, Copy)]
pub(crate) struct Bars {
    /// Opens it.
    pub(crate) terminal: fn() -> Box<dyn Write + Send>,
    /// Its width, if it tells.
    pub(crate) width: Option<u16>,
}

impl Bars {
    /// Does a piece of work, and shows how far it has come as soon as it takes longer than a moment.
    pub(crate) fn watch<T>(self, doing: &'static str, work: impl FnOnce(&Progress) -> T) -> T {
        let advance = Progress::default();
        let (end, ends) = channel();
        let seen = advance.clone();
        let draw = move || {
            // Nobody needs a bar so much that its failure should be told.
            let _ = self.draw(doing, &seen, &ends);
        };
        let thread = thread::Builder::new().name("duly-bar".into()).spawn(draw);
        let answer = work(&advance);
        drop(end);
        let _ = thread.map(thread::JoinHandle::join);
        answer
    }

    /// Draws until the work has ended, and leaves nothing behind.
    fn draw(self, doing: &str, advance: &Progress, ends: &Receiver<()>) -> std::io::Result<()> {
        if ends.recv_timeout(MOMENT) != Err(RecvTimeoutError::Timeout) {
            return Ok(());
        }
        let mut terminal = (self.terminal)();
        let cells = usize::from(self.width.unwrap_or(80)).saturating_sub(BESIDE).clamp(NARROWEST, WIDEST);
        loop {
            write!(terminal, "\r{}\u{1b}[K", line(doing, advance.share(), cells))?;
            terminal.flush()?;
            if ends.recv_timeout(FRAME) != Err(RecvTimeoutError::Timeout) {
                write!(terminal, "\r\u{1b}[K")?;
                return terminal.flush();
            }
        }
    }
}

/// `copying [####......]  40%`; dots where nobody knows how much there is to do.
fn line(doing: &str, share: Option<f64>, cells: usize) -> String {
    let Some(share) = share else { return format!("{doing} ...") };
    // A part of the whole, 0 to 1: neither is lost nor negative.
    let (full, percent) = ((share * cells as f64) as usize, (share * 100.0) as u32);
    format!("{doing} [{}{}] {percent:>3}%", "#".repeat(full), ".".repeat(cells.saturating_sub(full)))
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn a_bar_shows_the_part_that_is_done() {
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
