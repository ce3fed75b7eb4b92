//! The values that the modules of duly exchange: tasks, runs, events, settings. They do no I/O and read no clock.

pub(crate) mod action;
pub(crate) mod alarm;
mod attempt_json;
pub(crate) mod bulk;
pub(crate) mod column;
pub(crate) mod declared;
pub(crate) mod ended;
pub(crate) mod event;
pub(crate) mod filter;
pub(crate) mod finished;
pub(crate) mod health;
pub(crate) mod json;
pub(crate) mod json_value;
pub(crate) mod limit;
pub(crate) mod new_task;
pub(crate) mod observers;
mod one_line;
pub(crate) mod progress_meter;
pub(crate) mod recorded;
pub(crate) mod report;
pub(crate) mod request;
pub(crate) mod retry;
pub(crate) mod run;
#[cfg(feature = "postgres")]
pub(crate) mod server_report;
pub(crate) mod settings;
pub(crate) mod start_rate;
pub(crate) mod task;
pub(crate) mod task_columns;
mod task_json;
#[cfg(feature = "page")]
pub(crate) mod task_pages;
pub(crate) mod text_enum;
pub(crate) mod to_json;
#[cfg(feature = "page")]
pub(crate) mod views;
pub(crate) mod vitals;
