//! `import`: imports tasks from a crontab, from supercronic or from NanoClaw, and lists what could not be imported and why.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use duly::text::database_name::may_exist;
use duly::{Applied, Apply, Client, Done, ImportItem, Overlap};
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::cli::import_args::{Common, Crontab, Import, Nanoclaw, Supercronic};
use crate::cli::zone;
use crate::commands::apply::{self, Row};
use crate::exec::user;
use crate::import::crontab::Dialect;
use crate::import::foreign_rows::{self, Source};
use crate::import::nanoclaw::Target;
use crate::import::source::{Note, Parsed, ParsedTask, Place};
use crate::import::{crontab, nanoclaw, nanoclaw_sessions, supercronic, users};
use crate::output::printer::{Each, Printer};
use crate::output::table::{Cell, Table, Tone};

/// Largest crontab that is read.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Serialize)]
struct Document<'a, T> {
    source: &'a str,
    tasks: T,
    refused: &'a [Note],
    remarks: &'a [Note],
}

#[derive(Serialize)]
struct Task<'a> {
    #[serde(flatten)]
    place: Option<&'a Place>,
    #[serde(flatten)]
    row: Row<'a>,
}

pub(crate) fn import(db: &Path, import: &Import, printer: &mut Printer<'_>) -> Result<(), Failure> {
    match import {
        Import::Crontab(args) => import_crontab(db, args, printer),
        Import::Supercronic(args) => import_supercronic(db, args, printer),
        Import::Nanoclaw(args) => {
            let (source, parsed) = read_nanoclaw(args, printer)?;
            import_tasks(db, &source, parsed, &args.common, printer)
        }
    }
}

fn import_crontab(db: &Path, args: &Crontab, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let zone = zone::from_option(&args.common.tz)?;
    let (bytes, file) = read_file(&args.file)?;
    let by_path = file.as_deref().filter(|file| !args.system && !args.user_crontab && crontab::is_system_crontab(file));
    let system = args.system || by_path.is_some();
    let root = users::is_root().then(|| users::current().name);
    let by_name = file.as_deref().filter(|_| root.is_some() && !system && args.user.is_none());
    let by_name = by_name.and_then(crontab::user_of_crontab).filter(|name| root.as_deref() != Some(*name));
    let user = args.user.as_deref().or(by_name).map_or_else(users::current, users::by_name);
    let others = system && args.user.is_none() && root.is_some();
    let names = users::names();
    let dialect = crontab::dialect(file.as_deref());
    let dialect = dialect.map_err(|reason| Failure::Refused(format!("{}: {reason}", args.file.display())))?;
    if dialect == Dialect::BusyBox {
        printer.say(format!(
            "{} is read as a crontab of BusyBox: % is not special, and a command is not started while it runs",
            args.file.display()
        ))?;
    }
    if !system && !args.user_crontab && crontab::names_users(&bytes, &names) {
        let name = args.file.display();
        return Err(Failure::Usage(format!(
            "{name}: every command begins with the name of a user, as in a system crontab: import it with --system, or with \
             --user-crontab if these are programs"
        )));
    }
    if let Some(unknown) = args.user.as_ref().filter(|user| !names.contains(*user) && user::exists(user) == Some(false))
    {
        return Err(Failure::Usage(format!(
            "invalid --user {unknown:?}: there is no user of this name on this machine"
        )));
    }
    let whose = if others { "all users" } else { &user.name };
    if let Some(file) = by_path {
        printer.say(format!(
            "{} is read as a system crontab, whose entries name a user: importing those of {}",
            file.display(),
            whose
        ))?;
    }
    if let (Some(name), Some(file)) = (by_name, &file) {
        printer.say(format!("{} is the crontab of {name}: its entries run as {name}", file.display()))?;
    }
    // Users, and inputs with different prefixes, are different sources: one does not prune the tasks of another.
    let source = match &file {
        None => format!("crontab of {whose} on standard input ({})", args.prefix),
        Some(file) if system => format!("{} for {whose}", file.display()),
        Some(file) => file.display().to_string(),
    };
    let options = crontab::Options {
        system,
        user: user.clone(),
        others,
        root,
        users: &names,
        zone: &zone,
        prefix: &args.prefix,
        dialect,
    };
    import_tasks(db, &source, crontab::parse(&bytes, &options), &args.common, printer)
}

fn import_supercronic(db: &Path, args: &Supercronic, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let zone = zone::from_option(&args.common.tz)?;
    let (bytes, file) = read_file(&args.file)?;
    // Inputs with different prefixes are different sources: one does not prune the tasks of another.
    let source = match &file {
        None => format!("crontab of supercronic on standard input ({})", args.prefix),
        Some(file) => file.display().to_string(),
    };
    let overlap = if args.overlapping { Overlap::Allow } else { Overlap::Skip };
    let options = supercronic::Options { zone: &zone, prefix: &args.prefix, overlap };
    import_tasks(db, &source, supercronic::parse(&bytes, &options), &args.common, printer)
}

/// Reads a file, or the standard input. A pipe of a shell, as in `<(crontab -l)`, has no lasting path.
fn read_file(path: &Path) -> Result<(Vec<u8>, Option<PathBuf>), Failure> {
    let in_file = |error: io::Error| Failure::Refused(format!("{}: {error}", path.display()));
    if path == Path::new("-") {
        return Ok((read_bytes(io::stdin().lock()).map_err(in_file)?, None));
    }
    let file = File::open(path).map_err(in_file)?;
    let is_file = file.metadata().map_err(in_file)?.is_file();
    let lasting = is_file.then(|| std::fs::canonicalize(path)).transpose().map_err(in_file)?;
    Ok((read_bytes(file).map_err(in_file)?, lasting))
}

/// Reads at most [`MAX_BYTES`]: a device may have no end.
fn read_bytes(file: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if file.take(MAX_BYTES + 1).read_to_end(&mut bytes)? as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("the file is too large: expected at most {MAX_BYTES} bytes")));
    }
    Ok(bytes)
}

fn read_nanoclaw(args: &Nanoclaw, printer: &Printer<'_>) -> Result<(String, Parsed<'static>), Failure> {
    let zone = zone::from_option(&args.common.tz)?;
    if args.argv.first().is_some_and(String::is_empty) {
        return Err(Failure::Usage("the command is empty: expected -- PROGRAM [ARGUMENTS]".into()));
    }
    if args.handler.as_deref() == Some("command") {
        let refusal =
            "invalid --handler: the handler command starts a program: give the program, -- PROGRAM [ARGUMENTS]";
        return Err(Failure::Usage(refusal.into()));
    }
    let rows = foreign_rows::read(&args.file).map_err(Failure::Refused)?;
    let here = std::env::current_dir()
        .and_then(|here| here.into_os_string().into_string().map_err(|_| io::Error::other("expected a name in UTF-8")));
    let cwd = here.map_err(|error| Failure::Refused(format!("cannot store the current directory: {error}")))?;
    let file = std::fs::canonicalize(&args.file).map_err(|error| Failure::Refused(error.to_string()))?;
    let target = match &args.handler {
        Some(name) => Target::Handler(name),
        None => Target::Command { argv: &args.argv, cwd: &cwd },
    };
    let options = nanoclaw::Options { zone: &zone, prefix: &args.prefix, target, now: printer.times.now };
    let parsed = match rows {
        Source::Tasks(rows) => nanoclaw::convert(&rows, &options),
        Source::Sessions(sessions) => nanoclaw_sessions::convert(&sessions, &options),
    };
    Ok((file.display().to_string(), parsed))
}

/// Imports the parsed tasks, and prints the result.
fn import_tasks(
    db: &Path,
    source: &str,
    parsed: Parsed<'_>,
    common: &Common,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let Parsed { tasks, mut refused, retained, mut remarks } = parsed;
    let options = Apply { prune: common.prune, dry_run: common.dry_run, adopt: common.adopt };
    if common.prune && !common.allow_empty && tasks.is_empty() && retained.is_empty() {
        let refusal =
            "it contains no task, and --prune would remove all tasks imported from it: add --allow-empty to do that";
        return Err(Failure::Refused(format!("{source}: {refusal}")));
    }
    let items = tasks.iter().map(|task| (task.item)(&task.name));
    let items = items.chain(retained.into_iter().map(|name| ImportItem::refused(name, "")));
    let applied = printer.watched("importing", |progress| {
        let import = |client: Client| client.import_watched(source, items, options, progress);
        let partly = |error| apply::partly(error, progress);
        match options.dry_run {
            true if !may_exist(db) => with_temporary_database(db, import),
            // A dry run does not add the tables of duly to an existing file.
            true => Ok(import(Client::open_existing(db)?)?),
            false => import(Client::open_own(db)?).map_err(partly),
        }
    })?;
    let entries: HashMap<&str, &ParsedTask<'_>> = tasks.iter().map(|task| (task.name.as_str(), task)).collect();
    let mut imported = Vec::with_capacity(applied.len());
    for one in applied {
        match &one.done {
            // The reason of a retained entry is in `refused` already.
            Done::Refused { reason } => {
                let found = entries.get(one.name.as_str());
                refused.extend(found.map(|task| Note {
                    place: task.place.clone(),
                    text: task.text.clone().into_owned(),
                    reason: reason.clone(),
                }));
            }
            _ => imported.push(one),
        }
    }
    let place = |one: &Applied| entries.get(one.name.as_str()).map(|task| &task.place);
    // Remarks were printed when the task was first imported.
    let old: HashSet<&Place> = imported.iter().filter(|one| one.done == Done::Unchanged).filter_map(place).collect();
    remarks.retain(|remark| !old.contains(&remark.place));
    refused.sort_by_key(|note| note.place.line);
    if printer.json {
        let tasks = Each(imported.iter().map(|one| Task { place: place(one), row: apply::row(one) }));
        printer.document(&Document { source, tasks, refused: &refused, remarks: &remarks })?;
        return check_complete(refused.len(), common);
    }
    if !printer.quiet {
        let table = apply::table(&imported, printer);
        printer.table(table, "nothing was imported")?;
    }
    print_notes("not imported", Tone::Bad, &refused, printer)?;
    if !printer.quiet {
        print_notes("note", Tone::Odd, &remarks, printer)?;
    }
    let prefix = if options.dry_run { apply::DRY_RUN } else { "" };
    let suffix = match refused.len() {
        0 => String::new(),
        count => format!("; {count} not imported"),
    };
    printer.say(format!("{prefix}{}{suffix}", apply::summary(&imported)))?;
    check_complete(refused.len(), common)
}

/// Fails if an entry could not be imported, unless `--partial` is given.
fn check_complete(refused: usize, common: &Common) -> Result<(), Failure> {
    if refused == 0 || common.partial {
        return Ok(());
    }
    let others = if common.dry_run { "would be imported" } else { "were imported" };
    Err(Failure::Unsuccessful(format!(
        "{refused} not imported, the others {others}: correct the source, or accept this with --partial"
    )))
}

/// Runs `f` on a temporary database, for a dry run before a database exists.
fn with_temporary_database<T>(db: &Path, f: impl FnOnce(Client) -> duly::Result<T>) -> Result<T, Failure> {
    let mut path = db.as_os_str().to_owned();
    path.push(format!(".trial-{}", std::process::id()));
    let result = Client::open(&path).and_then(f);
    // If it could not be created, there is no file to remove.
    let _ = std::fs::remove_file(&path);
    Ok(result?)
}

/// Prints notes with the text of their entries.
fn print_notes(word: &str, tone: Tone, notes: &[Note], printer: &mut Printer<'_>) -> Result<(), Failure> {
    let mut table = Table::default();
    for Note { place, text, reason } in notes {
        table.row([Cell::new(word, tone), Cell::from(place.text()), Cell::from(reason.as_str())]);
        if !text.is_empty() {
            table.row([Cell::from(""), Cell::from(""), Cell::new(text, Tone::Faint)]);
        }
    }
    if !table.is_empty() {
        printer.table(table, "")?;
    }
    Ok(())
}
