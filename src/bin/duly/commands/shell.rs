//! `completions` and `man`: what a shell, and a reader of manuals, is told of the program. Both are made from its options.

use std::collections::BTreeSet;

use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::args::Args;
use crate::cli::failure::Failure;
use crate::output::printer::Printer;

/// What each shell does to complete names of tasks, beside what is made from the options.
const BASH: &str = include_str!("../cli/completions/names.bash");
const ZSH: &str = include_str!("../cli/completions/names.zsh");
const FISH: &str = include_str!("../cli/completions/names.fish");

/// A script that completes commands, options and, in bash, zsh and fish, names of tasks, for a shell to read as it starts.
pub(crate) fn completions(shell: Shell, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let program = Args::command();
    let named: Vec<&str> = program.get_subcommands().filter(|one| takes_name(one)).map(Command::get_name).collect();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut marked(program.clone(), &named), "duly", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => {
            let named: Vec<String> = named.iter().map(|command| format!("{command},")).collect();
            let valued = valued(&program).into_iter().collect::<Vec<_>>().join("|");
            script.push_str(&BASH.replace("@NAMED@", &named.join("|")).replace("@VALUED@", &valued));
        }
        Shell::Zsh => {
            let begin = script.find(ZSH_MAIN).unwrap_or_default();
            script = script.replace(ZSH_MARK, ":_duly_names'");
            script.insert_str(begin, ZSH);
        }
        Shell::Fish => script.push_str(&FISH.replace("@NAMED@", &named.join(" "))),
        _ => {}
    }
    Ok(printer.out.write_all(script.as_bytes())?)
}

/// Where zsh's own function begins, and what it does with a value that is marked.
const ZSH_MAIN: &str = "_duly() {";
const ZSH_MARK: &str = ":_users'";

/// Whether a command's argument is the name of a task; that of `add` is to be a new one.
fn takes_name(command: &Command) -> bool {
    let is_name = |arg: &Arg| {
        let names = arg.get_value_names().unwrap_or_default();
        names.iter().any(|name| name.split('|').any(|one| one == "NAME"))
    };
    command.get_name() != "add" && command.get_positionals().any(is_name)
}

/// The names of tasks marked as a kind of value that the program has no other use for: the names of users.
fn marked(program: Command, named: &[&str]) -> Command {
    let mark = |arg: Arg| arg.value_hint(ValueHint::Username);
    let program = program.mut_subcommand("add", |add| add.mut_arg("on_dead", mark));
    named.iter().fold(program, |program, name| {
        program.mut_subcommand(name, |command| {
            let id = command.get_positionals().next().map(|arg| arg.get_id().clone());
            id.into_iter().fold(command, |command, id| command.mut_arg(id, mark))
        })
    })
}

/// Every option that takes a value, as it is typed.
fn valued(program: &Command) -> BTreeSet<String> {
    let all = program.get_subcommands().chain([program]).flat_map(Command::get_opts);
    let all = all.filter(|option| option.get_action().takes_values());
    let names = all.flat_map(|option| {
        let long = option.get_long().map(|long| format!("--{long}"));
        long.into_iter().chain(option.get_short().map(|short| format!("-{short}")))
    });
    names.collect()
}

/// The manual page of the program, or of one of its commands.
pub(crate) fn man(command: Option<&str>, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let mut program = Args::command();
    program.build();
    let page = match command {
        None => program,
        Some(name) => {
            // As the page of a command names those of its own: import-crontab.
            let mut words = name.split(['-', ' ']);
            let found = words.try_fold(&program, |above, word| above.find_subcommand(word)).cloned();
            found.ok_or_else(|| Failure::Refused(format!("there is no command {name:?}: see duly --help")))?
        }
    };
    let mut text = Vec::new();
    Man::new(page).source(concat!("duly ", env!("CARGO_PKG_VERSION"))).render(&mut text)?;
    Ok(printer.out.write_all(&text)?)
}
