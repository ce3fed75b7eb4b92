//! Events as log lines.

use crate::model::event::Event;
use crate::model::run::RunStatus;

#[test]
fn a_log_line_ends_with_what_happens_next_and_stays_one_line() {
    let lost = Event::Lost {
        run: 81,
        task: "digest".into(),
        handler: "mail".into(),
        attempt: 2,
        status: RunStatus::Failed,
        next_attempt: Some("2027-03-14T07:02:00Z".parse().unwrap()),
    };
    let expected =
        "run 81 of \"digest\": the owner of attempt 2 died; failed; next attempt at 2027-03-14T07:02:00.000Z";
    assert_eq!(lost.to_string(), expected);
    let hostile = Event::Invalid { task: "a\nb".into(), reason: "x\u{1b}[2J\r\nfake: line\u{2028}".into() };
    assert!(!hostile.to_string().contains(|c: char| c.is_control() || c == '\u{2028}'), "{hostile}");
}
