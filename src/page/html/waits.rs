//! Why a waiting run has not started, in words.

use maud::{Markup, html};

use crate::model::run::{Run, RunStatus};
use crate::model::views::{Other, WaitsFor};
use crate::page::html::links;
use crate::page::html::parts::{instant, plural, run_badge, show, when};
use crate::schedule::duration_text;
use crate::text::times::Times;
use std::time::Duration;

/// Returns the reasons as a list.
pub(in crate::page) fn section(waits: &[WaitsFor], run: &Run, times: &Times) -> Markup {
    html! {
        section {
            h2 { "What it waits for" }
            div.card { ul.waits { @for one in waits { li { (reason(one, run, times)) } } } }
        }
    }
}

fn reason(one: &WaitsFor, run: &Run, times: &Times) -> Markup {
    html! {
        @match one {
            WaitsFor::Cancellation => { strong { "Cancellation." } " It was asked to stop: the next turn of a scheduler cancels it." }
            WaitsFor::Paused { by } => {
                strong { "Its task is paused" } " (" (show(by.as_deref().unwrap_or("unknown by what"), 200)) "). It waits until the task is resumed."
            }
            WaitsFor::Invalid { reason } => {
                strong { "Its task is invalid" } ": " (show(reason.as_deref().unwrap_or("the reason is unknown"), 300)) ". Repair the task."
            }
            WaitsFor::Older(Some(other)) => {
                strong { "Order." } " An earlier run of the task is unfinished: " (list(std::slice::from_ref(other)))
            }
            WaitsFor::Older(None) => { strong { "Order." } " The earlier run has ended: the next turn of a scheduler releases this one." }
            WaitsFor::Key { key, limit, holders } => {
                @if key.starts_with('#') { strong { "Another run of its task is running" } ": " (list(holders)) }
                @else {
                    strong { "The key " span.text { (show(key, 200)) } " is in use" } " (at most " (plural(*limit, "run")) " at once): " (list(holders))
                }
            }
            WaitsFor::Starts { key, until } => {
                strong {
                    @match key {
                        Some(key) => { "No start of the key " span.text { (show(key, 200)) } " is left" }
                        None => "No start of its task is left"
                    }
                }
                @match until {
                    Some(until) => { ": the next one is free " (when(*until, times)) ", at " (instant(*until, times)) "." }
                    None => ": one is free now, and other runs of the task go first."
                }
            }
            WaitsFor::Behind { key, first } => {
                strong { "Behind the key" } @if !key.starts_with('#') { " " span.text { (show(key, 200)) } } ": these runs go first: " (list(first))
            }
            WaitsFor::Unknown { stored } => {
                strong { "Unknown." } " Another program stored the reason " code { (show(stored, 100)) } "."
            }
            WaitsFor::Time(at) => {
                strong { @if run.status == RunStatus::Failed { "Its next attempt" } @else { "Its time" } }
                " is " (when(*at, times)) ", at " (instant(*at, times)) "."
            }
            WaitsFor::Rate { handler, until } => {
                strong { "The rate limit of the handler " span.text { (show(handler, 200)) } } " is reached: the next attempt may start "
                (when(*until, times)) ", at " (instant(*until, times)) "."
            }
            WaitsFor::Clock(wait) => { strong { "The clock." } " " (wait) "." }
            WaitsFor::NoScheduler => { strong { "No scheduler is alive." } " Start one with " code { "duly run" } "." }
            WaitsFor::UnknownScheduler { doubt } => {
                strong { "It is unknown whether a scheduler is alive" } ": " (show(doubt, 300)) "."
            }
            WaitsFor::Degraded => { strong { "The scheduler cannot write the database." } " " a href="/schedulers" { "Schedulers" } }
            WaitsFor::Workers { workers, busy_with } => {
                strong { "All workers are busy" } " (" (workers) "), with: " (list(busy_with))
            }
            WaitsFor::Handler { handler, due_for } => {
                strong { "No scheduler has the handler " span.text { (show(handler, 200)) } } ": one is alive and has a free worker, and left the run for "
                (duration_text(Duration::from_secs(due_for.as_secs()))) "."
            }
            WaitsFor::NextTurn => { strong { "Nothing." } " It starts at the next turn of a scheduler." }
        }
    }
}

fn list(others: &[Other]) -> Markup {
    html! {
        @for (number, other) in others.iter().enumerate() {
            @if number > 0 { ", " }
            a href=(links::run(other.id)) { "run " (other.id) } " of " a.text href=(links::task(&other.task)) { (show(&other.task, 100)) }
            " " (run_badge(other.status))
        }
        @if others.is_empty() { "they have ended; the next turn of a scheduler releases this run" }
    }
}
