//! Sparkline of the last runs of a task, oldest first, one character each. A bar is a run that succeeded; its height is its
//! duration in eighths of the longest one. Without Unicode it is a point: digits would read as a number. Other runs have a letter, so that no colour is needed. Pure.

use std::time::Duration;

use duly::{Recent, RunStatus};

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const POINTS: [char; 8] = ['.'; 8];

/// The characters of runs that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heights {
    /// For terminals that show Unicode.
    Blocks,
    /// Points, for other outputs.
    Points,
}

/// Returns the sparkline of `runs`.
pub(crate) fn spark(runs: &[Recent], heights: Heights) -> String {
    let longest = runs.iter().filter_map(|run| run.duration).max().unwrap_or_default();
    let ladder = match heights {
        Heights::Blocks => BLOCKS,
        Heights::Points => POINTS,
    };
    runs.iter()
        .map(|run| match run.status {
            RunStatus::Succeeded => ladder[eighths(run.duration.unwrap_or_default(), longest)],
            RunStatus::Dead => 'x',
            RunStatus::Failed => '!',
            RunStatus::Skipped => '-',
            RunStatus::Missed => 'm',
            RunStatus::Cancelled => 'c',
            RunStatus::Running => '>',
            RunStatus::Queued => 'q',
            _ => '?',
        })
        .collect()
}

/// The eighth of the longest duration, from 0.
fn eighths(length: Duration, longest: Duration) -> usize {
    let (length, longest) = (length.as_millis(), longest.as_millis().max(1));
    usize::try_from((length * 8).div_ceil(longest)).unwrap_or(8).clamp(1, 8) - 1
}

#[cfg(test)]
mod tests {
    use super::{BLOCKS, Heights, eighths, spark};
    use std::time::Duration;

    #[test]
    fn the_height_of_a_run_is_its_duration() {
        let ms = Duration::from_millis;
        for (length, longest, place) in
            [(0, 0, 0), (0, 80, 0), (10, 80, 0), (11, 80, 1), (40, 80, 3), (79, 80, 7), (80, 80, 7), (5, 5, 7)]
        {
            assert_eq!(eighths(ms(length), ms(longest)), place, "{length} of {longest}");
        }
        assert_eq!(spark(&[], Heights::Blocks), "");
        assert!(BLOCKS.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
