//! One measurement, of duly or of the bare queue, for `benches/postgres/run`: the same arguments and the same output as its programs for
//! other queues.

use std::time::Duration;

use crate::bare::{self, Bare};
use crate::measure::wall_nanos;
use crate::workloads::Other;
use crate::{DAY, Place, drain_bare, drain_duly, workloads};

const USAGE: &str = "single duly|bare drain|add-one|add-batch COUNT CONNECTIONS ADDRESS";

/// Measures in a new schema, and prints the result as a line of JSON.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let [program, workload, count, connections, address] = arguments else {
        return Err(format!("expected {USAGE}, found {arguments:?}"));
    };
    let number = |text: &String| text.parse::<usize>().map_err(|_| format!("expected a number, found {text:?}"));
    let (count, connections) = (number(count)?, number(connections)?);
    let mut place = Place::new(address.clone(), None);
    let at = wall_nanos() / 1_000_000 + DAY;
    let before = place.log();
    let (time, bytes): (Duration, f64) = match (program.as_str(), workload.as_str()) {
        ("bare", "drain") => drain_bare(&mut place, connections, count),
        ("duly", "drain") => {
            let (drained, bytes) = drain_duly(&mut place, connections, count, Other::Nothing);
            (drained.time, bytes)
        }
        ("bare", adding) => {
            let schema = place.schema();
            let mut queue = Bare::create(address, &schema);
            let time = match adding {
                "add-one" => workloads::timed(|| queue.add_one_by_one(count, at)),
                "add-batch" => workloads::timed(|| queue.add_in_batches(count, at)),
                other => return Err(format!("expected drain, add-one or add-batch, found {other:?}")),
            };
            (time, place.log() - before)
        }
        ("duly", adding) => {
            let address = format!("{address}?schema={}", place.schema());
            let time = match adding {
                "add-one" => workloads::add_one_by_one(&address, count, at),
                "add-batch" => workloads::add_in_batches(&address, count, at),
                other => return Err(format!("expected drain, add-one or add-batch, found {other:?}")),
            };
            (time, place.log() - before)
        }
        (other, _) => return Err(format!("expected duly or bare, found {other:?}")),
    };
    // Removes the schema.
    place.schema();
    println!(
        "{}",
        serde_json::json!({
            "seconds": time.as_secs_f64(),
            "jobs": count,
            "wal_bytes": bytes,
            "batch": bare::BATCH,
        })
    );
    Ok(())
}
