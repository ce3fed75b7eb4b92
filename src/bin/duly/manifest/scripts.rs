//! Programs that read an argument as a script, or as options of another program.

/// Programs that read one of their arguments as a script.
const SHELLS: [&str; 13] =
    ["sh", "bash", "dash", "zsh", "fish", "ksh", "ash", "csh", "tcsh", "cmd", "powershell", "pwsh", "busybox"];
/// Programs that read an argument after an option as a script.
const INTERPRETERS: [&str; 9] = ["python", "node", "perl", "ruby", "php", "deno", "bun", "lua", "env"];
/// Programs of which each argument may be a script.
const SCRIPTED: [&str; 8] = ["awk", "gawk", "mawk", "nawk", "sed", "ssh", "sqlite3", "sqlite"];
/// Programs that start another one, whose options follow their own.
const WRAPPERS: [&str; 20] = [
    "npm",
    "npx",
    "pnpm",
    "yarn",
    "env",
    "sudo",
    "doas",
    "su",
    "nice",
    "nohup",
    "timeout",
    "xargs",
    "docker",
    "podman",
    "kubectl",
    "setsid",
    "stdbuf",
    "systemd-run",
    "cargo",
    "uv",
];
/// Options after which a program reads a script, in lower case.
const SCRIPT_OPTIONS: [&str; 16] = [
    "-exec",
    "-execdir",
    "-ok",
    "-okdir",
    "-c",
    "-e",
    "-lc",
    "/c",
    "/k",
    "-command",
    "--eval",
    "--command",
    "--exec",
    "--execute",
    "--print",
    "--split-string",
];

/// Returns whether an argument with a parameter is, or may be, a script that its program reads. `before`: the arguments before it that have
/// no parameter, `None` for one that has; `beginning`: its text before the parameter.
///
/// A guard against common mistakes: there are more programs.
pub(super) fn is_script(before: &[Option<&str>], beginning: &str) -> bool {
    let Some(program) = program_of(before) else { return true };
    let previous = before.last().copied().flatten().unwrap_or_default();
    let options = [previous, beginning.trim_end_matches('=')];
    if options.iter().any(|option| SCRIPT_OPTIONS.contains(&option.to_ascii_lowercase().as_str())) {
        return true;
    }
    // `-ne` is the option e as well.
    let has_letter = |letters: &[char]| {
        options.iter().any(|option| option.starts_with('-') && !option.starts_with("--") && option.contains(letters))
    };
    let has_script = has_letter(&['c', 'e', 'E', 'r', 'p', 'S']) || previous == "eval";
    let mut programs = before.iter().copied().flatten();
    if programs.any(|text| is_one_of(text, &SCRIPTED) || (has_script && is_one_of(text, &INTERPRETERS))) {
        return true;
    }
    // The first argument that is no option is the script.
    let is_option = |text: &Option<&str>| text.is_some_and(|text| text.starts_with(['-', '/', '+']));
    let is_first = |at: usize| before[at + 1..].iter().all(is_option);
    if before[program].is_some_and(|text| is_one_of(text, &INTERPRETERS)) && is_first(program) {
        return true;
    }
    let shell = before.iter().position(|text| text.is_some_and(|text| is_one_of(text, &SHELLS)));
    let Some(shell) = shell else { return false };
    let mut scripts = before[shell + 1..].iter().copied().flatten().filter(|text| !is_option(&Some(text)));
    is_first(shell) || has_letter(&['c']) || scripts.next().is_some_and(runs_its_argument)
}

/// Returns the place of the program that is started: behind those that start it, their options, numbers and settings such as `A=B`. `None`:
/// a parameter would name it.
fn program_of(before: &[Option<&str>]) -> Option<usize> {
    let is_setting =
        |text: &str| text.starts_with('-') || text.contains('=') || text.starts_with(|c: char| c.is_ascii_digit());
    let mut program = 0;
    while is_one_of(before.get(program).copied()??, &WRAPPERS) {
        let rest = before[program + 1..].iter();
        program += 1 + rest.take_while(|text| text.is_some_and(is_setting)).count();
    }
    Some(program)
}

/// Returns whether a script of a shell starts a program that an argument names: `$1`, `cd /x && "$0"`, `eval "$1"`.
fn runs_its_argument(script: &str) -> bool {
    let commands = script.split([';', '&', '|', '\n', '(', '`']).map(|part| part.trim_start_matches(['"', ' ', '\t']));
    commands.into_iter().any(|command| {
        command.starts_with('$') || ["eval ", "exec $", "exec \"$"].iter().any(|word| command.starts_with(word))
    })
}

/// Returns whether the options of another program may follow an argument `--`.
pub(super) fn is_wrapped(before: &[Option<&str>]) -> bool {
    before.iter().flatten().any(|text| is_one_of(text, &WRAPPERS))
}

/// Returns whether a program is one of these, in whichever folder and version.
fn is_one_of(program: &str, names: &[&str]) -> bool {
    let name = program.rsplit(['/', '\\']).next().unwrap_or_default().to_ascii_lowercase();
    let name = name.strip_suffix(".exe").unwrap_or(&name);
    names.contains(&name)
        || names.contains(&name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.'))
}
