//! Buttons that trigger, pause, resume, cancel and retry.

use maud::{Markup, html};

use crate::page::state::State;

/// Returns a form with one button, which posts to `path`: `/tasks/digest/trigger`. Empty if the page only reads. `task`: the id of the
/// task that it acts on, since another one may have its name when the button is pressed.
pub(super) fn button(state: &State, path: &str, task: Option<i64>, label: &str) -> Markup {
    with_field(state, path, ("task", task), label)
}

/// As [`button`], for all runs that match, but none that is newer than `newest`: it was not counted.
pub(super) fn button_for_all(state: &State, path: &str, newest: Option<i64>, label: &str) -> Markup {
    with_field(state, path, ("newest", newest), label)
}

fn with_field(state: &State, path: &str, (name, id): (&str, Option<i64>), label: &str) -> Markup {
    html! {
        @if state.page.has_actions() {
            form.action method="post" action=(path) {
                input type="hidden" name="token" value=(state.token);
                @if let Some(id) = id { input type="hidden" name=(name) value=(id); }
                button type="submit" { (label) }
            }
        }
    }
}
