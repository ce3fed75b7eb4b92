//! Buttons that trigger, pause, resume, cancel and retry.

use maud::{Markup, html};

use crate::page::state::State;

/// Returns a form with one button, which posts to `path`: `/tasks/digest/trigger`. Empty if the page only reads.
pub(super) fn button(state: &State, path: &str, label: &str) -> Markup {
    html! {
        @if state.page.has_actions() {
            form.action method="post" action=(path) {
                input type="hidden" name="token" value=(state.token);
                button type="submit" { (label) }
            }
        }
    }
}
