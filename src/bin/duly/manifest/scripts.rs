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
const SCRIPT_OPTIONS: [&str; 12] = [
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
    let shell = before.iter().position(|text| text.is_some_and(|text| is_one_of(text, &SHELLS)));
    let Some(shell) = shell else { return false };
    // The first argument that is no option is the script.
    let is_option = |text: &Option<&str>| text.is_some_and(|text| text.starts_with(['-', '/', '+']));
    before[shell + 1..].iter().all(is_option) || has_letter(&['c'])
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
