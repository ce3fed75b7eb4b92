//! The time zones of active tasks, and the zone data by which they are planned.

use std::iter;

use crate::client::check::{Check, ProblemKind, problem};
use crate::error::Error;
use crate::schedule::{Zone, rules_of, zone_data};
use crate::text::units::first_of;

impl Check<'_> {
    /// Adds zones that are not known, and zone data that may be wrong.
    pub(super) fn zones(&mut self) {
        for (zone, task, count) in &self.health.zones {
            let of = first_of(iter::once(task.clone()), 1, *count as usize);
            if let Err(error @ Error::ZoneUnavailable { .. }) = Zone::named(zone) {
                let text = format!("the time zone of {of} is not known here: {error}");
                let advice = "install zone data that has it, or repair the rows; schedulers on other machines that know it go on";
                self.of_task(ProblemKind::Zone, task, text, advice);
            }
            if let (Some(rules), Some(recorded)) = (rules_of(zone), self.health.zone_rules.get(zone))
                && rules != *recorded
            {
                let text = format!("{of} was planned by other rules of {zone} than those of this process");
                let advice = "restart the schedulers, which plan by the zone data as it is when they start; if it differs between \
                              programs, give all of them the same (the package tzdata)";
                self.of_task(ProblemKind::ZoneData, task, text, advice);
            }
            if let Some(contradiction) = zone_data().contradiction(zone) {
                let text = format!("the time zone of {of} may be wrong: {contradiction}");
                let advice = "look whether another file is mounted on it, or install the zone data of the system again; then restart";
                self.of_task(ProblemKind::ZoneData, task, text, advice);
            }
        }
        let old: Vec<_> = self.health.zones.iter().filter(|(zone, ..)| zone_data().is_old(zone, self.now)).collect();
        if let Some((_, task, _)) = old.first() {
            let zones = first_of(old.iter().map(|(zone, ..)| zone.clone()), 1, old.len());
            let release = zone_data().built_in;
            let text = format!("the rules of {zones} are those of {release}, which are built in and older than a year");
            let advice =
                "install the zone data of the system (the package tzdata), or a newer release of duly; then restart";
            self.of_task(ProblemKind::ZoneData, task, text, advice);
        }
        let is_local = |(zone, ..): &(String, String, u32)| zone != "UTC";
        if !self.health.zones.iter().any(is_local) {
            return;
        }
        for (owner, theirs) in self.health.zone_data.iter().filter(|(_, theirs)| zone_data().is_other_than(theirs)) {
            let Some((one, _)) = self.living().find(|(one, _)| one.id == *owner) else { continue };
            let (pid, host) = (one.pid, &one.host);
            let text = format!(
                "scheduler {owner} (pid {pid} on {host}) has the zone data {theirs}, and this process {}",
                zone_data()
            );
            let advice =
                "give all of them the same zone data (the package tzdata), and restart those that have older data";
            self.found.push(problem(ProblemKind::ZoneData, text, advice));
        }
    }
}
