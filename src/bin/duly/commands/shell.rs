//! `completions` and `man`: what a shell, and a reader of manuals, is told of the program. Both are made from its options.

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Args;
use crate::failure::Failure;
use crate::output::printer::Printer;

/// A script that completes commands and options, for a shell to read as it starts.
pub(crate) fn completions(shell: Shell, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "duly", &mut script);
    Ok(printer.out.write_all(&script)?)
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
