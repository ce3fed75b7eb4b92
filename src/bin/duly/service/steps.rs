//! Commands of service managers, as they are typed, and how they are run.

use std::io;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::output::escape::shell_word;

/// How a step has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// With success, at the latest in this number of further tries, one each second.
    Success(u64),
    /// In any way.
    Exit,
    /// With a failure, in this number of further tries: what it asks for is over.
    Failure(u64),
}

/// One command of a service manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) words: Vec<String>,
    pub(crate) wanted: Wanted,
}

impl Step {
    pub(crate) fn new(words: &[&str], wanted: Wanted) -> Self {
        Step { words: words.iter().map(ToString::to_string).collect(), wanted }
    }
}

/// Whether a service is enabled and running. `None`: unknown.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) enabled: Option<bool>,
    pub(crate) running: Option<bool>,
    /// The manager's word for it, or why it is unknown.
    pub(crate) said: String,
}

impl State {
    pub(crate) fn unknown(error: String) -> Self {
        State { said: error, ..State::default() }
    }
}

/// Why a command did not succeed.
pub(crate) enum CommandError {
    /// It was not started.
    NotStarted(String),
    /// It ended with another exit code than 0; what it printed on standard error.
    Failed(String),
}

impl CommandError {
    pub(crate) fn text(self) -> String {
        match self {
            CommandError::NotStarted(text) | CommandError::Failed(text) => text,
        }
    }
}

/// Runs a command to its end, and returns its standard output.
pub(crate) fn output(words: &[String]) -> Result<String, CommandError> {
    let (program, arguments) = words.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        CommandError::NotStarted(match error.kind() {
            io::ErrorKind::NotFound => format!("there is no {program}"),
            _ => format!("cannot start {program}: {error}"),
        })
    })?;
    // schtasks writes UTF-16 to some outputs: without NUL characters, its ASCII can be compared.
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace('\0', "");
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let said = text(&output.stderr);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(CommandError::Failed(if said.is_empty() {
        format!("{}: {}", typed(words), output.status)
    } else {
        format!("{program}: {said}")
    }))
}

/// Runs the steps in their order, until one does not end as it has to.
pub(crate) fn run(steps: &[Step]) -> Result<(), String> {
    steps.iter().try_for_each(run_one)
}

fn run_one(step: &Step) -> Result<(), String> {
    let mut tries = 0;
    loop {
        let (ended, left) = match (output(&step.words), step.wanted) {
            (Err(error @ CommandError::NotStarted(_)), _) => return Err(error.text()),
            (Ok(_), Wanted::Success(_) | Wanted::Exit) | (Err(_), Wanted::Exit | Wanted::Failure(_)) => return Ok(()),
            (Err(error), Wanted::Success(more)) => (error.text(), more),
            (Ok(_), Wanted::Failure(more)) => ("the service does not stop".to_owned(), more),
        };
        if tries >= left {
            return Err(ended);
        }
        tries += 1;
        thread::sleep(Duration::from_secs(1));
    }
}

/// Returns a command as a shell reads it.
pub(crate) fn typed(words: &[String]) -> String {
    words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")
}

/// Returns the commands that change something, as a user types them.
pub(crate) fn all_typed(steps: &[Step]) -> Vec<String> {
    let changing = steps.iter().filter(|step| !matches!(step.wanted, Wanted::Failure(_)));
    changing.map(|step| typed(&step.words)).collect()
}

#[cfg(all(test, unix))]
mod tests {
    use crate::service::steps::{Step, Wanted, run};

    #[test]
    fn steps_run_until_one_does_not_end_as_it_has_to() {
        let shell = |line: &str, wanted| Step::new(&["sh", "-c", line], wanted);
        let refused = "echo no >&2; echo bus >&2; exit 3";
        for (step, ends) in [
            (shell("exit 0", Wanted::Success(0)), Ok(())),
            (shell(refused, Wanted::Success(0)), Err("sh: no bus")),
            (shell("exit 0", Wanted::Exit), Ok(())),
            (shell(refused, Wanted::Exit), Ok(())),
            (shell("exit 0", Wanted::Failure(0)), Err("the service does not stop")),
            (shell(refused, Wanted::Failure(0)), Ok(())),
            // That it cannot be asked is no answer.
            (Step::new(&["no-such-program"], Wanted::Exit), Err("there is no no-such-program")),
            (Step::new(&["no-such-program"], Wanted::Failure(0)), Err("there is no no-such-program")),
        ] {
            let done = run(&[step.clone(), shell("exit 1", Wanted::Exit)]);
            assert_eq!(done, ends.map_err(str::to_owned), "{step:?}");
        }
        let home = tempfile::tempdir().unwrap();
        let count = |wanted| {
            let file = home.path().join(format!("{wanted:?}"));
            let line = format!("echo >>'{0}'; [ $(wc -l <'{0}') -ge 2 ]", file.display());
            run(&[shell(&line, wanted)]).map(|()| std::fs::read_to_string(file).unwrap().len())
        };
        assert_eq!(count(Wanted::Success(5)), Ok(2), "one further try was enough");
    }
}
