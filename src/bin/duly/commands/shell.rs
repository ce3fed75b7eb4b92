//! `completions` and `man`: both are generated from the definition of the command line.

use std::collections::BTreeSet;
use std::io::{self, Write as _};

use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::args::Args;
use crate::cli::failure::Failure;
use crate::cli::nearest;
use crate::output::printer::Printer;

/// Script of each shell that completes names of tasks, added to the generated one.
const BASH: &str = include_str!("../cli/completions/names.bash");
const ZSH: &str = include_str!("../cli/completions/names.zsh");
const FISH: &str = include_str!("../cli/completions/names.fish");

/// Prints a script that completes commands, options and, in bash, zsh and fish, names of tasks.
pub(crate) fn completions(shell: Shell, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let program = Args::command();
    let commands: Vec<&str> = program.get_subcommands().filter(|one| takes_name(one)).map(Command::get_name).collect();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut mark_names(program.clone(), &commands), "duly", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => {
            let commands: Vec<String> = commands.iter().map(|command| format!("{command},")).collect();
            let options = options_with_values(&program).into_iter().collect::<Vec<_>>().join("|");
            script.push_str(&BASH.replace("@NAMED@", &commands.join("|")).replace("@VALUED@", &options));
        }
        Shell::Zsh => {
            let begin = script.find(ZSH_MAIN).unwrap_or_default();
            script = script.replace(ZSH_MARK, ":_duly_names'");
            script.insert_str(begin, ZSH);
        }
        Shell::Fish => script.push_str(&FISH.replace("@NAMED@", &commands.join(" "))),
        _ => {}
    }
    Ok(printer.out.write_all(script.as_bytes())?)
}

/// Begin of the generated zsh function, and the completion that it generates for a marked value.
const ZSH_MAIN: &str = "_duly() {";
const ZSH_MARK: &str = ":_users'";

/// Whether an argument of the command is the name of an existing task; `add` takes a new name.
fn takes_name(command: &Command) -> bool {
    let is_name = |arg: &Arg| {
        let names = arg.get_value_names().unwrap_or_default();
        names.iter().any(|name| name.split('|').any(|one| one == "NAME"))
    };
    command.get_name() != "add" && command.get_positionals().any(is_name)
}

/// Marks arguments that are names of tasks with a value hint that the program does not use otherwise: names of users.
fn mark_names(program: Command, commands: &[&str]) -> Command {
    let mark = |arg: Arg| arg.value_hint(ValueHint::Username);
    let followers = ["on_dead", "on_success", "on_end", "on_missed"];
    let program = program.mut_subcommand("add", |add| followers.iter().fold(add, |add, arg| add.mut_arg(arg, mark)));
    commands.iter().fold(program, |program, name| {
        program.mut_subcommand(name, |command| {
            let id = command.get_positionals().next().map(|arg| arg.get_id().clone());
            id.into_iter().fold(command, |command, id| command.mut_arg(id, mark))
        })
    })
}

/// Returns every option that takes a value, with its hyphens.
fn options_with_values(program: &Command) -> BTreeSet<String> {
    let all = program.get_subcommands().chain([program]).flat_map(Command::get_opts);
    let all = all.filter(|option| option.get_action().takes_values());
    let names = all.flat_map(|option| {
        let long = option.get_long().map(|long| format!("--{long}"));
        long.into_iter().chain(option.get_short().map(|short| format!("-{short}")))
    });
    names.collect()
}

/// Returns the manual page of a command: as clap_mangen makes it, but its synopsis is the usage, which has the values of options, and its
/// arguments are a section of their own, before the options.
fn page_of(command: Command) -> io::Result<Vec<u8>> {
    let only = |is_shown: fn(&Arg) -> bool| {
        let command = command.clone();
        Man::new(command.mut_args(|arg| if is_shown(&arg) { arg } else { arg.hide(true) }))
    };
    let whole = Man::new(command.clone()).source(concat!("duly ", env!("CARGO_PKG_VERSION")));
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").lines().map(|line| roff_line(line.trim()));
    let synopsis = usage.collect::<Vec<_>>().join("\n.br\n");
    let mut text = Vec::new();
    whole.render_title(&mut text)?;
    whole.render_name_section(&mut text)?;
    writeln!(text, ".SH SYNOPSIS\n{synopsis}")?;
    whole.render_description_section(&mut text)?;
    if command.get_positionals().any(|arg| !arg.is_hide_set()) {
        let mut arguments = Vec::new();
        only(Arg::is_positional).render_options_section(&mut arguments)?;
        text.extend(String::from_utf8_lossy(&arguments).replacen(".SH OPTIONS", ".SH ARGUMENTS", 1).bytes());
    }
    only(|arg| !arg.is_positional()).render_options_section(&mut text)?;
    if command.has_subcommands() {
        whole.render_subcommands_section(&mut text)?;
    }
    whole.render_extra_section(&mut text)?;
    if command.get_version().is_some() {
        whole.render_version_section(&mut text)?;
    }
    Ok(text)
}

/// Escapes a line for roff: a hyphen is the sign of an option, and a point at the begin would be a request.
fn roff_line(line: &str) -> String {
    let escaped = line.replace('\\', "\\\\").replace('-', "\\-");
    if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}") } else { escaped }
}

/// Prints the manual page of the program or of a command.
pub(crate) fn man(command: Option<&str>, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let mut program = Args::command();
    program.build();
    let page = match command {
        None => program,
        Some(name) => {
            // A manual page names subcommands like this: import-crontab.
            let mut words = name.split(['-', ' ']);
            let found = words.try_fold(&program, |above, word| above.find_subcommand(word)).cloned();
            found.ok_or_else(|| {
                let hint = nearest::hint(name, program.get_subcommands().map(Command::get_name));
                let hint = if hint.is_empty() { ": see duly --help".to_owned() } else { hint };
                Failure::Usage(format!("there is no command {name:?}{hint}"))
            })?
        }
    };
    Ok(printer.out.write_all(&page_of(page)?)?)
}
