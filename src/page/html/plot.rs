//! A chart of bars, as SVG. Its labels are HTML, so that they keep their size on a narrow screen.

use std::time::Duration;

use maud::{Markup, html};

use crate::page::html::parts::{Tone, plural};
use crate::text::units::short_duration;

/// One bar: its height, its colour, what a pointer shows.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    /// `None`: unknown. The place stays empty.
    pub(super) length: Option<Duration>,
    pub(super) tone: Tone,
    pub(super) title: String,
}

/// Width of a bar and of the space to the next, and the height of the chart, in units of the drawing.
const BAR: u128 = 8;
const STEP: usize = 10;
const HEIGHT: u128 = 100;

/// Returns a chart of durations, oldest first. `ends`: the labels of its horizontal axis.
pub(super) fn durations(title: &str, about: &str, bars: &[Bar], ends: (&Markup, &Markup)) -> Markup {
    let mut known: Vec<Duration> = bars.iter().filter_map(|bar| bar.length).collect();
    known.sort_unstable();
    let Some(longest) = known.last().copied() else { return html! {} };
    let median = known[known.len() / 2];
    let top = scale(longest);
    let width = bars.len() * STEP;
    let text = |length: Duration| short_duration(length);
    let summary = format!("median {}, longest {}", text(median), text(longest));
    let height = |length: Duration| (length.as_millis() * HEIGHT).div_ceil(top.as_millis()).clamp(1, HEIGHT);
    html! {
        figure.plot {
            figcaption { strong { (title) } " " span.muted { (summary) } }
            div.area {
                div.y aria-hidden="true" { span { (text(top)) } span { (text(top / 2)) } span { "0" } }
                svg.chart role="img" viewBox={ "0 0 " (width) " " (HEIGHT) } preserveAspectRatio="none"
                    aria-label={ (title) " of the last " (plural(bars.len(), "run")) ", oldest first, " (about) ": " (summary) } {
                    @for y in [0, HEIGHT / 2, HEIGHT] {
                        line.grid x1="0" x2=(width) y1=(y) y2=(y) vector-effect="non-scaling-stroke" {}
                    }
                    @for (place, bar) in bars.iter().enumerate() {
                        @if let Some(length) = bar.length {
                            rect class=(bar.tone.class()) x=(place * STEP + 1) width=(BAR) y=(HEIGHT - height(length)) height=(height(length)) {
                                title { (bar.title) }
                            }
                        }
                    }
                }
                div.x aria-hidden="true" { span { (ends.0) } span { (ends.1) } }
            }
        }
    }
}

/// Returns the top of the vertical axis for a longest bar: a round duration.
fn scale(longest: Duration) -> Duration {
    const ROUND: [u64; 27] = [
        10,
        20,
        50,
        100,
        200,
        500,
        1_000,
        2_000,
        4_000,
        6_000,
        10_000,
        20_000,
        40_000,
        60_000,
        120_000,
        240_000,
        600_000,
        1_200_000,
        2_400_000,
        3_600_000,
        7_200_000,
        14_400_000,
        28_800_000,
        43_200_000,
        86_400_000,
        172_800_000,
        864_000_000,
    ];
    let longest = longest.as_millis();
    let round = ROUND.into_iter().find(|top| u128::from(*top) >= longest).map(Duration::from_millis);
    round.unwrap_or_else(|| Duration::from_millis(u64::try_from(longest).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::scale;
    use std::time::Duration;

    #[test]
    fn the_axis_ends_at_a_round_duration() {
        for (longest, top) in
            [(0, 10), (10, 10), (11, 20), (3_999, 4_000), (61_000, 120_000), (900_000_000, 900_000_000)]
        {
            assert_eq!(scale(Duration::from_millis(longest)), Duration::from_millis(top), "{longest}");
        }
    }
}
