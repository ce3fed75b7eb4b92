//! `import`: brings tasks over from a crontab or from NanoClaw, and says what came, what did not, and why.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use duly::{Applied, Apply, Client, Done, ImportItem};
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::cli::import_args::{Common, Crontab, Import, Nanoclaw};
use crate::cli::zone;
use crate::commands::apply::{self, Row};
use crate::import::source::{Found, Place, Said};
use crate::import::{crontab, nanoclaw, users};
use crate::output::printer::Printer;
use crate::output::table::{Cell, Table, Tone};

/// Largest crontab that is read.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Serialize)]
struct Document<'a> {
    source: &'a str,
    tasks: Vec<Task<'a>>,
    refused: &'a [Said],
    remarks: &'a [Said],
}

#[derive(Serialize)]
struct Task<'a> {
    #[serde(flatten)]
    place: Option<&'a Place>,
    #[serde(flatten)]
    row: Row<'a>,
}

pub(crate) fn import(db: &Path, what: &Import, printer: &mut Printer<'_>) -> Result<(), Failure> {
    match what {
        Import::Crontab(asked) => {
            let (source, found) = of_crontab(asked, printer)?;
            bring(db, &source, found, &asked.common, printer)
        }
        Import::Nanoclaw(asked) => {
            let (source, found) = of_nanoclaw(asked, printer)?;
            bring(db, &source, found, &asked.common, printer)
        }
    }
}

fn of_crontab(asked: &Crontab, printer: &mut Printer<'_>) -> Result<(String, Found), Failure> {
    let zone = zone::typed(&asked.common.tz)?;
    let in_file = |error: io::Error| Failure::Refused(format!("{}: {error}", asked.file.display()));
    let (bytes, file) = if asked.file == Path::new("-") {
        (bytes_of(io::stdin().lock()).map_err(in_file)?, None)
    } else {
        let file = File::open(&asked.file).map_err(in_file)?;
        // A pipe of the shell's, as in <(crontab -l), has no path that lasts.
        let lasts = file.metadata().map_err(in_file)?.is_file();
        let path = lasts.then(|| std::fs::canonicalize(&asked.file)).transpose().map_err(in_file)?;
        (bytes_of(file).map_err(in_file)?, path)
    };
    let person = asked.user.as_deref().map_or_else(users::me, users::named);
    let by_place = file.as_deref().filter(|file| !asked.system && crontab::is_of_the_system(file));
    let system = asked.system || by_place.is_some();
    if let Some(file) = by_place {
        printer.say(format!(
            "{} is taken for a system crontab, whose lines name a user: those of {} come",
            file.display(),
            person.name
        ))?;
    }
    // What one of several people, or of several inputs, brought is not the others' to prune.
    let source = match &file {
        None => format!("crontab of {} on standard input ({})", person.name, asked.prefix),
        Some(file) if system => format!("{} for {}", file.display(), person.name),
        Some(file) => file.display().to_string(),
    };
    let reading = crontab::Reading { system, person, people: &users::all(), zone: &zone, prefix: &asked.prefix };
    Ok((source, crontab::read(&bytes, &reading)))
}

/// No more is read than is allowed: some files have no end.
fn bytes_of(file: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if file.take(MAX_BYTES + 1).read_to_end(&mut bytes)? as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("it is too long: expected at most {MAX_BYTES} bytes")));
    }
    Ok(bytes)
}

fn of_nanoclaw(asked: &Nanoclaw, printer: &Printer<'_>) -> Result<(String, Found), Failure> {
    let zone = zone::typed(&asked.common.tz)?;
    if asked.argv.first().is_some_and(String::is_empty) {
        return Err(Failure::Refused("the command is empty: expected -- PROGRAM [ARGUMENTS]".into()));
    }
    let rows = nanoclaw::rows(&asked.file).map_err(Failure::Refused)?;
    let here = std::env::current_dir()
        .and_then(|here| here.into_os_string().into_string().map_err(|_| io::Error::other("expected a name in UTF-8")));
    let cwd = here.map_err(|error| Failure::Refused(format!("the folder here cannot be kept: {error}")))?;
    let file = std::fs::canonicalize(&asked.file).map_err(|error| Failure::Refused(error.to_string()))?;
    let (argv, prefix) = (asked.argv.as_slice(), asked.prefix.as_str());
    let reading = nanoclaw::Reading { zone: &zone, prefix, argv, cwd: &cwd, now: printer.times.now };
    Ok((file.display().to_string(), nanoclaw::read(&rows, &reading)))
}

/// Has what was found come, and tells what came of it.
fn bring(db: &Path, source: &str, found: Found, common: &Common, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let Found { tasks, mut refused, staying, mut remarks } = found;
    let how = Apply { prune: common.prune, dry_run: common.dry_run, adopt: common.adopt };
    if common.prune && !common.allow_empty && tasks.is_empty() && staying.is_empty() {
        let refusal =
            "it holds no task, and --prune would remove all that was imported from it: --allow-empty accepts that";
        return Err(Failure::Refused(format!("{source}: {refusal}")));
    }
    let mut places = HashMap::with_capacity(tasks.len());
    let mut brought = Vec::with_capacity(tasks.len());
    for task in tasks {
        places.insert(task.name, (task.place, task.text));
        brought.push(task.brought);
    }
    brought.extend(staying.into_iter().map(|name| ImportItem::refused(name, "")));
    let applied = printer.watched("importing", |advance| {
        let bring = |client: Client| client.import_watched(source, brought, how, advance);
        match how.dry_run {
            true if !db.exists() => on_a_trial_file(db, bring),
            // Whose tables the file has none of yet, it gets none for a look.
            true => Ok(bring(Client::open_existing(db)?)?),
            false => Ok(bring(Client::open_own(db)?)?),
        }
    })?;
    let (mut came, mut held) = (Vec::with_capacity(applied.len()), Vec::new());
    for one in applied {
        match &one.done {
            Done::Refused { reason } => held.push((one.name.clone(), reason.clone())),
            _ => came.push(one),
        }
    }
    for (name, reason) in held {
        // Of what stays the reason is told already.
        if let Some((place, text)) = places.get(&name).cloned() {
            refused.push(Said { place, text, reason });
        }
    }
    // What was to be known of a task when it came is old by now.
    let old = came.iter().filter(|one| one.done == Done::Unchanged).filter_map(|one| places.get(&one.name));
    let old: HashSet<&Place> = old.map(|(place, _)| place).collect();
    remarks.retain(|remark| !old.contains(&remark.place));
    refused.sort_by_key(|said| said.place.line);
    if printer.json {
        let place = |one: &Applied| places.get(&one.name).map(|(place, _)| place);
        let tasks = came.iter().map(|one| Task { place: place(one), row: apply::row(one) }).collect();
        printer.document(&Document { source, tasks, refused: &refused, remarks: &remarks })?;
        return complete(refused.len(), common);
    }
    if !printer.quiet {
        let table = apply::table(&came, printer);
        printer.table(table, "nothing came")?;
    }
    told("not imported", Tone::Bad, &refused, printer)?;
    if !printer.quiet {
        told("note", Tone::Odd, &remarks, printer)?;
    }
    let would = if how.dry_run { "nothing was written: this would be " } else { "" };
    let but = match refused.len() {
        0 => String::new(),
        count => format!("; {count} not imported"),
    };
    printer.say(format!("{would}{}{but}", apply::sums(&came)))?;
    complete(refused.len(), common)
}

/// Fails if something could not be imported, unless that is accepted.
fn complete(refused: usize, common: &Common) -> Result<(), Failure> {
    if refused == 0 || common.partial {
        return Ok(());
    }
    let others = if common.dry_run { "would be" } else { "was" };
    Err(Failure::Unsuccessful(format!("not imported: {refused}; everything else {others} (--partial accepts this)")))
}

/// On a file that goes away: what would come can be looked at before there is a database.
fn on_a_trial_file<T>(db: &Path, f: impl FnOnce(Client) -> duly::Result<T>) -> Result<T, Failure> {
    let mut trial = db.as_os_str().to_owned();
    trial.push(format!(".trial-{}", std::process::id()));
    let answer = Client::open(&trial).and_then(f);
    // Nobody else knows of it. One that could not be made is not there.
    let _ = std::fs::remove_file(&trial);
    Ok(answer?)
}

/// What is to be said of places in the source, with how it is written there. What did not come is told to whoever wants quiet
/// too.
fn told(word: &str, tone: Tone, said: &[Said], printer: &mut Printer<'_>) -> Result<(), Failure> {
    let mut table = Table::default();
    for Said { place, text, reason } in said {
        table.row([Cell::new(word, tone), Cell::from(place.shown()), Cell::from(reason.as_str())]);
        if !text.is_empty() {
            table.row([Cell::from(""), Cell::from(""), Cell::new(text, Tone::Faint)]);
        }
    }
    if !table.is_empty() {
        printer.table(table, "")?;
    }
    Ok(())
}
