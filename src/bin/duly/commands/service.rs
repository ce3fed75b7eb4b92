//! `service`: installs, removes and shows a service of the operating system that runs `duly run`.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf, absolute};
use std::time::Duration;

use duly::Error;
use duly::text::database_name::{has_password, is_address, shown};
use serde::Serialize;

use crate::cli::args::{Args, Command, RunArgs};
use crate::cli::failure::Failure;
use crate::cli::service_args::{Install, Manager, Service, Which};
use crate::import::users;
use crate::output::escape::shell_word;
use crate::output::printer::Printer;
use crate::output::table::{Cell, Table, Tone};
use crate::service::definition::{Definition, Manages, ServiceName};
use crate::service::launchd::Launchd;
use crate::service::steps::{self, State};
use crate::service::systemd::Systemd;
use crate::service::windows::Windows;

/// After the drain: the end of commands and workers takes up to 32 s, and the rest is a margin.
const AFTER_DRAIN: Duration = Duration::from_secs(60);

pub(crate) fn service(db: &Path, command: &Service, printer: &mut Printer<'_>) -> Result<(), Failure> {
    match command {
        Service::Install(args) => install(db, args, printer),
        Service::Uninstall { which, dry_run: false } => uninstall(&Installed::find(which)?, printer),
        Service::Uninstall { which, dry_run: true } => plan_uninstall(&Installed::find(which)?, printer),
        Service::Status(which) => status(&Installed::find(which)?, printer),
    }
}

fn of(manager: Manager) -> &'static dyn Manages {
    match manager {
        Manager::Systemd => &Systemd,
        Manager::Launchd => &Launchd,
        Manager::Windows => &Windows,
    }
}

/// A service and its file.
struct Installed {
    manager: Manager,
    service: ServiceName,
    file: PathBuf,
    found: Found,
}

/// What the file of a service holds.
enum Found {
    Nothing,
    /// What duly has written, and the text of the file.
    Own(Box<Definition>, String),
    Foreign,
}

impl Installed {
    /// Looks for the service of this system.
    fn find(which: &Which) -> Result<Self, Failure> {
        let manager = Manager::of_system().ok_or_else(|| {
            Failure::Refused("duly knows the service managers of Linux, macOS and Windows alone".to_owned())
        })?;
        Self::find_for(which, manager)
    }

    fn find_for(which: &Which, manager: Manager) -> Result<Self, Failure> {
        let name = which.name.as_ref().map_or_else(|| "duly".to_owned(), |name| format!("duly-{name}"));
        let service = ServiceName { name, system: which.system };
        let preview = Manager::of_system() != Some(manager);
        let folder = |variable: &str| {
            let value = env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
            value.or_else(|| preview.then(|| PathBuf::from(format!("%{variable}%"))))
        };
        let file = of(manager).file(&service, &folder).map_err(Failure::Refused)?;
        let found = match fs::read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Nothing,
            Err(error) => return Err(Failure::Refused(format!("cannot read {}: {error}", file.display()))),
            Ok(bytes) => {
                let text = decoded(&bytes);
                let own = Definition::recorded(&text).filter(|definition| definition.service == service);
                own.map_or(Found::Foreign, |definition| Found::Own(Box::new(definition), text))
            }
        };
        Ok(Installed { manager, service, file, found })
    }

    fn name(&self) -> &str {
        &self.service.name
    }

    fn file(&self) -> String {
        self.file.display().to_string()
    }

    /// A file that exists from the time before a change is written until the service runs with it: what was interrupted is done again.
    fn pending(&self) -> PathBuf {
        self.file.with_extension("pending")
    }

    /// Writes the file as a whole: a reader never sees a part of it.
    fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        let part = self.file.with_extension("new");
        let folder = self.file.parent().map_or(Ok(()), fs::create_dir_all);
        let written = folder
            .and_then(|()| fs::write(self.pending(), ""))
            .and_then(|()| fs::write(&part, bytes))
            .and_then(|()| fs::rename(&part, &self.file));
        written.map_err(|error| {
            let _ = fs::remove_file(&part);
            let advice = if self.service.system { "; a service of the machine needs the rights of root" } else { "" };
            Failure::Refused(format!("cannot write {}: {error}{advice}", self.file()))
        })
    }

    fn foreign(&self) -> Failure {
        let file = self.file();
        Failure::Refused(format!(
            "duly service install did not write {file}: it is left as it is; --name NAME chooses another name"
        ))
    }
}

/// Returns the text of a file in UTF-8 or, after its mark, UTF-16.
fn decoded(bytes: &[u8]) -> String {
    let Some(rest) = bytes.strip_prefix(&[0xff, 0xfe]) else { return String::from_utf8_lossy(bytes).into_owned() };
    let units: Vec<u16> = rest.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    String::from_utf16_lossy(&units).replace("\r\n", "\n")
}

/// Returns a text as the manager reads it: `schtasks` expects UTF-16.
fn encoded(manager: Manager, text: &str) -> Vec<u8> {
    match manager {
        Manager::Windows => ['\u{feff}']
            .into_iter()
            .chain(text.replace('\n', "\r\n").chars())
            .collect::<String>()
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect(),
        _ => text.as_bytes().to_vec(),
    }
}

#[derive(Serialize)]
struct Change<'a> {
    service: &'a str,
    file: String,
    /// Whether the file was, or would be, written or removed.
    changed: bool,
    /// Commands of the service manager that were, or would be, run.
    commands: Vec<String>,
    /// Of a dry run: the text that would be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    /// What is left when the service is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<&'a str>,
}

fn install(db: &Path, args: &Install, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let installed = match args.manager {
        Some(manager) => Installed::find_for(&args.which, manager)?,
        None => Installed::find(&args.which)?,
    };
    let manages = of(installed.manager);
    let run = run_args(db, &args.options)?;
    let definition = definition(db, args, &run, &installed)?;
    let text = manages.render(&definition).map_err(Failure::Usage)?;
    let found = match &installed.found {
        Found::Foreign => return Err(installed.foreign()),
        Found::Nothing => None,
        Found::Own(_, found) => Some(found.as_str()),
    };
    let (file, changed) = (installed.file(), found != Some(text.as_str()));
    let is_own = Manager::of_system() == Some(installed.manager);
    if found.is_none()
        && is_own
        && let Some(other) = manages.taken(&installed.service)
    {
        let text = format!("{other}, which duly did not write; --name NAME chooses another name");
        return Err(Failure::Refused(text));
    }
    let pending = installed.pending();
    let is_settled = !changed && is_own && !pending.exists() && {
        let State { enabled, running, .. } = manages.state(&installed.service);
        (enabled, running) == (Some(true), Some(true))
    };
    let steps = if is_settled { Vec::new() } else { manages.start(&definition, &file, found.is_some()) };
    let commands = steps::all_typed(&steps);
    if args.dry_run {
        if printer.json {
            let (service, text) = (installed.name(), Some(text.as_str()));
            return Ok(printer.document(&Change { service, file, changed, commands, text, left: None })?);
        }
        printer.say(format!("{} {file}:", if changed { "would write" } else { "unchanged:" }))?;
        printer.block(&text)?;
        return Ok(commands.iter().try_for_each(|command| printer.say(format!("would run: {command}")))?);
    }
    if !is_address(db) && !run.create && run.tasks.is_none() && db.try_exists().is_ok_and(|exists| !exists) {
        let missing = Error::UnusableDatabase { path: db.to_owned(), reason: "there is no such file".to_owned() };
        return Err(Failure::Advised(missing, "; -- --create lets the service create it".to_owned()));
    }
    if changed {
        installed.write(&encoded(installed.manager, &text))?;
        printer.say(format!("wrote {file}"))?;
    } else {
        printer.say(format!("unchanged: {file}"))?;
    }
    steps::run(&steps).map_err(|error| {
        let typed = commands.join(" && ");
        Failure::Unsuccessful(format!(
            "{file} is written, but the service is not started: {error}; to start it, type: {typed}"
        ))
    })?;
    let _ = fs::remove_file(pending);
    if printer.json {
        let service = installed.name();
        return Ok(printer.document(&Change { service, file, changed, commands, text: None, left: None })?);
    }
    let advice = manages.advice(&installed.service);
    Ok(printer.say(format!("{} is enabled and started: {advice}", installed.name()))?)
}

/// Parses the options of `duly run`, and refuses those with which a service makes no sense.
fn run_args(db: &Path, options: &[String]) -> Result<RunArgs, Failure> {
    let words = ["duly".into(), "run".into(), "--db".into(), db.as_os_str().to_owned()];
    let parsed = Args::parse_words(words.into_iter().chain(options.iter().map(Into::into)));
    let refused = |text: &str| Err(Failure::Usage(format!("options of duly run: {text}")));
    let run = match parsed {
        Ok((Args { command: Command::Run(run), .. }, _)) => run,
        Ok(_) => return refused("expected no other command"),
        Err(error) if !error.use_stderr() => return refused("a service cannot print help or a version"),
        Err(error) => {
            let text = error.to_string();
            let first: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
            return refused(first.join(" ").trim_start_matches("error: "));
        }
    };
    if run.until_idle {
        return refused("--until-idle ends a service");
    }
    if run.worker.iter().any(|worker| worker == "-") {
        return refused("--worker -: a service is started by no application");
    }
    Ok(*run)
}

fn definition(db: &Path, args: &Install, run: &RunArgs, installed: &Installed) -> Result<Definition, Failure> {
    if has_password(db) {
        let advice = "put it into the password file of PostgreSQL, and give the address without it";
        let text = format!("{}: other users can read the password in a service: {advice}", shown(db));
        return Err(Failure::Usage(text));
    }
    let database = if is_address(db) { Ok(db.to_owned()) } else { absolute(db) };
    let current = |error: io::Error| Failure::Refused(format!("there is no current directory: {error}"));
    let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let log = || {
        let folder = if args.which.system { Path::new("/") } else { &home };
        utf8(folder.join(format!("Library/Logs/{}.log", installed.name())))
    };
    let stop = run.drain.saturating_add(AFTER_DRAIN);
    Ok(Definition {
        service: installed.service.clone(),
        program: utf8(program()?)?,
        database: utf8(database.map_err(current)?)?,
        directory: utf8(env::current_dir().map_err(current)?)?,
        options: args.options.clone(),
        stop_seconds: stop.as_secs() + u64::from(stop.subsec_nanos() > 0),
        log: (installed.manager == Manager::Launchd).then(log).transpose()?,
        user: (installed.manager == Manager::Windows && !args.which.system).then(windows_user),
    })
}

/// Returns a path as text: a file of a service cannot hold another one.
fn utf8(path: PathBuf) -> Result<String, Failure> {
    path.into_os_string()
        .into_string()
        .map_err(|path| Failure::Usage(format!("a service cannot name {path:?}: it is no UTF-8")))
}

/// Returns the path of this program: the one by which it was called, if it leads to the same file. A link to the program of a package
/// stays when the package is upgraded.
fn program() -> Result<PathBuf, Failure> {
    let own = env::current_exe().map_err(|error| Failure::Refused(format!("cannot find this program: {error}")))?;
    let called = env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let is_path = called.components().count() > 1;
    let folders = env::var_os("PATH").filter(|_| !is_path).unwrap_or_default();
    let names = env::split_paths(&folders).map(|folder| folder.join(&called));
    let mut names = is_path.then(|| called.clone()).into_iter().chain(names).filter_map(|name| absolute(name).ok());
    let real = fs::canonicalize(&own).ok();
    Ok(names.find(|name| real.is_some() && fs::canonicalize(name).ok() == real).unwrap_or(own))
}

/// Returns the name of the user for the Task Scheduler.
fn windows_user() -> String {
    let user = users::current().name;
    env::var("USERDOMAIN").map(|domain| format!("{domain}\\{user}")).unwrap_or(user)
}

fn plan_uninstall(installed: &Installed, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let (left, commands) = match &installed.found {
        Found::Nothing => return not_installed(installed, printer),
        Found::Foreign => return Err(installed.foreign()),
        Found::Own(definition, _) => (shown(Path::new(&definition.database)), removal(installed, definition)),
    };
    let file = installed.file();
    if printer.json {
        let (service, left) = (installed.name(), Some(left.as_str()));
        return Ok(printer.document(&Change { service, file, changed: true, commands, text: None, left })?);
    }
    commands.iter().try_for_each(|command| printer.say(format!("would run: {command}")))?;
    Ok(printer.say(format!("would remove {file}, and leave {left}"))?)
}

fn removal(installed: &Installed, definition: &Definition) -> Vec<String> {
    let manages = of(installed.manager);
    let stop = manages.stop(&installed.service, definition.stop_seconds);
    steps::all_typed(&[stop, manages.forget(&installed.service)].concat())
}

fn uninstall(installed: &Installed, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let definition = match &installed.found {
        Found::Nothing => return not_installed(installed, printer),
        Found::Foreign => return Err(installed.foreign()),
        Found::Own(definition, _) => definition,
    };
    let (manages, file) = (of(installed.manager), installed.file());
    let stop = manages.stop(&installed.service, definition.stop_seconds);
    steps::run(&stop).map_err(|error| {
        let typed = steps::all_typed(&stop).join(" && ");
        Failure::Unsuccessful(format!("the service may be running: {error}; {file} is kept; to stop it, type: {typed}"))
    })?;
    fs::remove_file(&installed.file)
        .map_err(|error| Failure::Refused(format!("the service is stopped, but {file} cannot be removed: {error}")))?;
    let _ = fs::remove_file(installed.pending());
    if let Err(error) = steps::run(&manages.forget(&installed.service)) {
        printer.warn(format!("the service manager does not know yet that {file} is removed: {error}"));
    }
    let left = shown(Path::new(&definition.database));
    if printer.json {
        let (service, commands) = (installed.name(), removal(installed, definition));
        return Ok(printer.document(&Change {
            service,
            file,
            changed: true,
            commands,
            text: None,
            left: Some(&left),
        })?);
    }
    printer.say(format!("{} is stopped and disabled; removed {file}", installed.name()))?;
    printer.say(format!("left: {left}, with its tasks and their history"))?;
    Ok(definition.log.iter().try_for_each(|log| printer.say(format!("left: {log}")))?)
}

fn not_installed(installed: &Installed, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let file = installed.file();
    if printer.json {
        let service = installed.name();
        let commands = Vec::new();
        return Ok(printer.document(&Change { service, file, changed: false, commands, text: None, left: None })?);
    }
    Ok(printer.say(format!("{} is not installed: there is no {file}", installed.name()))?)
}

#[derive(Serialize)]
struct Document<'a> {
    service: &'a str,
    file: String,
    installed: bool,
    /// `null`: unknown.
    enabled: Option<bool>,
    running: Option<bool>,
    state: &'a str,
    program: Option<&'a str>,
    database: Option<String>,
    directory: Option<&'a str>,
    options: Option<&'a [String]>,
    /// Whether `install` with this program would write the same file.
    current: Option<bool>,
}

fn status(installed: &Installed, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let (manages, file) = (of(installed.manager), installed.file());
    let (definition, found) = match &installed.found {
        Found::Own(definition, text) => (Some(&**definition), text.as_str()),
        Found::Nothing | Found::Foreign => (None, ""),
    };
    let state = if definition.is_some() { manages.state(&installed.service) } else { State::default() };
    let program = program()?.display().to_string();
    let anew = definition.map(|definition| Definition { program: program.clone(), ..definition.clone() });
    let current = anew.map(|anew| manages.render(&anew).as_deref() == Ok(found));
    let database = definition.map(|definition| shown(Path::new(&definition.database)));
    if printer.json {
        printer.document(&Document {
            service: installed.name(),
            file: file.clone(),
            installed: definition.is_some(),
            enabled: state.enabled,
            running: state.running,
            state: &state.said,
            program: definition.map(|definition| definition.program.as_str()),
            database,
            directory: definition.map(|definition| definition.directory.as_str()),
            options: definition.map(|definition| definition.options.as_slice()),
            current,
        })?;
    } else if let (Some(definition), Some(database)) = (definition, database) {
        let options = definition.options.iter().map(|option| shell_word(option)).collect::<Vec<_>>().join(" ");
        let differs = current == Some(false);
        let mut table = Table::default();
        let mut row = |name: &str, value: &str, tone| table.row([Cell::new(name, Tone::Faint), Cell::new(value, tone)]);
        row("service", installed.name(), Tone::Plain);
        row("file", &file, Tone::Plain);
        row("enabled", word(state.enabled), Tone::Plain);
        row("running", &format!("{} ({})", word(state.running), state.said), Tone::Plain);
        row("program", &definition.program, Tone::Plain);
        row("database", &database, Tone::Plain);
        row("directory", &definition.directory, Tone::Plain);
        row("options", if options.is_empty() { "none" } else { &options }, Tone::Plain);
        let text = if !differs {
            "yes".to_owned()
        } else if program == definition.program {
            "no: duly service install would write another text".to_owned()
        } else {
            format!("no: duly service install would write the program {program}")
        };
        row("current", &text, if differs { Tone::Odd } else { Tone::Plain });
        printer.table(table, "")?;
    }
    match (&installed.found, state.running) {
        (Found::Nothing, _) => {
            Err(Failure::Unsuccessful(format!("{} is not installed: there is no {file}", installed.name())))
        }
        (Found::Foreign, _) => Err(Failure::Unsuccessful(format!("duly service install did not write {file}"))),
        (Found::Own(..), Some(true)) => Ok(()),
        (Found::Own(..), Some(false)) => Err(Failure::Unsuccessful(format!("{} is not running", installed.name()))),
        (Found::Own(..), None) => {
            Err(Failure::Unsuccessful(format!("unknown whether {} is running: {}", installed.name(), state.said)))
        }
    }
}

fn word(answer: Option<bool>) -> &'static str {
    match answer {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Manager, decoded, encoded, of};
    use crate::service::definition::ServiceName;
    use crate::service::steps::all_typed;
    use crate::service::tests::definition;

    #[test]
    fn the_file_of_a_task_is_utf_16_with_its_mark() {
        let text = "<?xml?>\n<!-- na\u{ef}ve \u{1f600} -->\n";
        let bytes = encoded(Manager::Windows, text);
        assert_eq!((&bytes[..4], &bytes[14..20]), (&[0xff, 0xfe, b'<', 0][..], &[b'>', 0, b'\r', 0, b'\n', 0][..]));
        for manager in [Manager::Windows, Manager::Systemd, Manager::Launchd] {
            assert_eq!(decoded(&encoded(manager, text)), text);
        }
    }

    #[test]
    fn each_manager_has_its_folder_and_its_commands() {
        let folder = |name: &str| (name != "XDG_CONFIG_HOME").then(|| PathBuf::from(format!("/{name}")));
        let settings = |name: &str| Some(PathBuf::from(format!("/{name}")));
        let mut definition = definition("/db");
        let user = definition.service.clone();
        let system = ServiceName { system: true, ..user.clone() };
        for (manager, of_user, of_system) in [
            (Manager::Systemd, "/HOME/.config/systemd/user/duly.service", "/etc/systemd/system/duly.service"),
            (Manager::Launchd, "/HOME/Library/LaunchAgents/duly.plist", "/Library/LaunchDaemons/duly.plist"),
            (Manager::Windows, "/LOCALAPPDATA/duly/duly.xml", "/PROGRAMDATA/duly/duly.xml"),
        ] {
            let file = |service| of(manager).file(service, &folder).unwrap();
            assert_eq!((file(&user), file(&system)), (of_user.into(), of_system.into()));
            assert!(of(manager).file(&user, &|_| None).unwrap_err().ends_with("names no folder"));
        }
        let file = of(Manager::Systemd).file(&user, &settings).unwrap();
        assert_eq!(file, PathBuf::from("/XDG_CONFIG_HOME/systemd/user/duly.service"));

        definition.service = system.clone();
        let start = |manager, replaced| all_typed(&of(manager).start(&definition, "/f g", replaced));
        let stop = |manager| all_typed(&[of(manager).stop(&system, 90), of(manager).forget(&system)].concat());
        assert_eq!(start(Manager::Systemd, false), ["systemctl daemon-reload", "systemctl enable --now duly.service"]);
        let loads =
            ["launchctl bootout system/duly", "launchctl enable system/duly", "launchctl bootstrap system '/f g'"];
        assert_eq!(start(Manager::Launchd, false), loads);
        assert_eq!(start(Manager::Launchd, true), loads);
        assert_eq!(stop(Manager::Launchd), loads[..1]);
        let creates = ["schtasks /End /TN duly", "schtasks /Create /TN duly /XML '/f g' /F", "schtasks /Run /TN duly"];
        assert_eq!(start(Manager::Windows, true), creates);
        assert_eq!(start(Manager::Windows, false), creates[1..]);
        assert_eq!(stop(Manager::Windows), ["schtasks /End /TN duly", "schtasks /Delete /TN duly /F"]);
    }
}
