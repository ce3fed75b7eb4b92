//! A nightly backup, with its tests in `tests/nights.rs`: over both changes of daylight saving, an outage and a crash.

use std::time::Duration;

use duly::{BoxError, Context, Misfire, NewTask};

/// The zone in which the nights are.
pub const ZONE: &str = "Europe/Rome";

/// The task: at 02:30 local time, unless it is later than half past noon when a scheduler starts again.
pub fn task() -> NewTask {
    NewTask::cron("backup", "30 2 * * *")
        .time_zone(ZONE)
        .handler("backup")
        .misfire(Misfire::RunOnce, Duration::from_secs(1))
        .expires(Duration::from_secs(10 * 3600))
        .max_attempts(3)
}

/// The handler. `copy` stores the backup of a night under a name, and replaces an older one of that name, so a
/// repeat is harmless.
pub fn backup(run: &Context, copy: impl Fn(&str) -> Result<(), BoxError>) -> Result<String, BoxError> {
    let night = duly::Zone::named(ZONE)?.text_at(run.scheduled_for());
    let name = format!("backup-{}", &night[..10]);
    copy(&name)?;
    Ok(name)
}
