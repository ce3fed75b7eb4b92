//! `duly mcp`: tools for agents over the Model Context Protocol, on standard input and output.
//!
//! A model looks, and changes what it was given: see docs/agents.md for what that means. No runtime and no framework: lines of JSON, a
//! thread for each request.

mod answer;
mod at_work;
mod change;
mod desk;
mod explain;
mod grant;
mod look;
mod pace;
mod resources;
mod rpc;
mod server;
mod shapes;
mod stream;
mod tools;
mod unfinished;
mod versions;
mod words;

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::sync::Mutex;

use duly::Client;

use crate::cli::failure::Failure;
use crate::cli::mcp_args::{Allow, McpArgs};
use crate::cli::zone;
use crate::manifest;
use crate::mcp::desk::Desk;
use crate::mcp::grant::Grant;

/// Serves a client until its stream of requests ends. `said`: for warnings.
pub(crate) fn mcp(
    db: &Path,
    args: &McpArgs,
    requests: impl Read,
    answers: impl Write + Send,
    mut said: impl Write,
) -> Result<(), Failure> {
    let desk = desk(db, args)?;
    for warning in warnings(&desk) {
        let _ = writeln!(said, "warning: {warning}");
    }
    let served = server::serve(&desk, &mut BufReader::new(requests), answers);
    served.map_err(|error| Failure::Unsuccessful(format!("standard input cannot be read: {error}")))
}

/// Where the options and the manifest say of a handler less than the user may think.
fn warnings(desk: &Desk) -> Vec<String> {
    let (granted, described) = (&desk.grant.handlers, &desk.handlers);
    let unused = described.keys().filter(|name| !granted.contains(*name));
    let unused = unused.map(|name| format!("[handler.{name}]: no task has it, since --handlers does not name it"));
    let is_open = |name: &&String| described.get(*name).is_none_or(|handler| handler.payload.is_none());
    let open = granted.iter().filter(is_open);
    unused.chain(open.map(|name| format!("--handlers {name}: without a payload_schema it takes any payload"))).collect()
}

fn desk(db: &Path, args: &McpArgs) -> Result<Desk, Failure> {
    let read = args.manifest.as_deref().map(manifest::read).transpose().map_err(Failure::Refused)?;
    let (manifest, templates, handlers) = match read {
        Some(read) => (Some(read.name), read.templates, read.handlers),
        None => (None, Vec::new(), BTreeMap::new()),
    };
    let zone = zone::from_option(&args.tz)?;
    // As `duly add`: only a command that adds tasks creates a database.
    let client = if args.allow.contains(&Allow::Add) { Client::open_own(db)? } else { Client::open_existing(db)? };
    Ok(Desk {
        client,
        grant: Grant::of(args),
        manifest,
        templates,
        handlers,
        zone,
        max_tasks: args.max_tasks,
        max_starts: usize::from(args.max_starts_per_day),
        min_interval: args.min_interval,
        named: args.client.clone(),
        session: format!("{:08x}", fastrand::u32(..)),
        changes: Mutex::new(Vec::new()),
    })
}
