//! Programs that read an argument as a script, or as options of another program.

/// Programs that read one of their arguments as a script.
const SHELLS: [&str; 13] =
    ["sh", "bash", "dash", "zsh", "fish", "ksh", "ash", "csh", "tcsh", "cmd", "powershell", "pwsh", "busybox"];
/// Programs that read an argument after an option as a script.
const INTERPRETERS: [&str; 9] = ["python", "node", "perl", "ruby", "php", "deno", "bun", "lua", "env"];
/// Programs of which each argument may be a script.
const SCRIPTED: [&str; 8] = ["awk", "gawk", "mawk", "nawk", "sed", "ssh", "sqlite3", "sqlite"];
/// Programs that start another one, whose options follow their own, with the number of words before the name of that program: `npm run`,
/// `docker exec CONTAINER`.
const WRAPPERS: [(&str, usize); 22] = [
    ("npm", 1),
    ("npx", 0),
    ("pnpm", 1),
    ("yarn", 1),
    ("env", 0),
    ("sudo", 0),
    ("doas", 0),
    ("su", 0),
    ("nice", 0),
    ("ionice", 0),
    ("nohup", 0),
    ("timeout", 0),
    ("xargs", 0),
    ("docker", 2),
    ("podman", 2),
    ("kubectl", 2),
    ("setsid", 0),
    ("stdbuf", 0),
    ("systemd-run", 0),
    ("cargo", 0),
    ("uv", 1),
    ("uvx", 0),
];
/// Words of an interpreter before the script.
const SUBCOMMANDS: [&str; 4] = ["run", "exec", "x", "task"];
/// Words of a shell before the name of a program.
const KEYWORDS: [&str; 13] =
    ["if", "then", "elif", "else", "while", "until", "do", "!", "time", "exec", "command", "builtin", "eval"];
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
    let name = before[program].unwrap_or_default();
    let subcommands =
        before[program + 1..].iter().take_while(|text| text.is_some_and(|text| SUBCOMMANDS.contains(&text)));
    if is_one_of(name, &INTERPRETERS) && word_behind(before, program, subcommands.count(), has_extension).is_none() {
        return true;
    }
    let shell = before.iter().position(|text| text.is_some_and(|text| is_one_of(text, &SHELLS)));
    let Some(shell) = shell else { return false };
    let is_option = |text: &&str| text.starts_with(['-', '+']) || text.len() == 2 && text.starts_with('/');
    let mut words = before[shell + 1..].iter().copied().flatten().filter(|text| !is_option(text));
    word_behind(before, shell, 0, has_extension).is_none()
        || has_letter(&['c'])
        || words.next().is_some_and(runs_its_argument)
}

/// Returns the place of the program that is started, behind those that start it. `None`: a parameter names it, or may do so.
fn program_of(before: &[Option<&str>]) -> Option<usize> {
    let mut program = 0;
    while let Some(words) = before[program].and_then(words_of_wrapper) {
        program = word_behind(before, program, words, |_| false)?;
    }
    Some(program)
}

/// Returns the place of the word behind `program` and `words` others that is certainly none of its options, nor the value of one, nor a
/// number or a setting such as `A=B`. `None`: there is none before the parameter. `is_word`: what is a word also directly behind an option.
fn word_behind(
    before: &[Option<&str>],
    program: usize,
    mut words: usize,
    is_word: impl Fn(&str) -> bool,
) -> Option<usize> {
    let (mut is_value, mut has_ended) = (false, false);
    for (at, text) in before.iter().enumerate().skip(program + 1) {
        let text = (*text)?;
        if !has_ended && text.starts_with(['-', '+']) {
            (is_value, has_ended) = (text != "--" && !text.contains('='), text == "--");
        } else if (std::mem::take(&mut is_value) && !is_word(text)) || is_setting(text) {
            // It may belong to the option.
        } else if words == 0 {
            return Some(at);
        } else {
            words -= 1;
        }
    }
    None
}

fn is_setting(text: &str) -> bool {
    text.contains('=') || text.starts_with(|letter: char| letter.is_ascii_digit())
}

/// Returns whether the text is the name of a file such as `post.py`.
fn has_extension(text: &str) -> bool {
    let name = text.rsplit(['/', '\\']).next().unwrap_or_default();
    name.rsplit_once('.').is_some_and(|(stem, extension)| !stem.is_empty() && !extension.is_empty())
}

/// Returns whether a script of a shell starts a program that an argument names: `$1`, `cd /x && "$0"`, `if true; then sudo $1`.
fn runs_its_argument(script: &str) -> bool {
    let is_argument = |word: &str| {
        let name = word.strip_prefix('$').map(|name| name.trim_start_matches('{'));
        name.is_some_and(|name| name.starts_with(|letter: char| letter.is_ascii_digit() || "@*".contains(letter)))
    };
    script.split([';', '&', '|', '\n', '(', '`']).any(|command| {
        if command.trim_start().starts_with("eval ") {
            return true;
        }
        let words = command.split_whitespace().map(|word| word.trim_matches(['"', '\'']));
        let mut is_value = false;
        for word in words.filter(|word| !word.is_empty()) {
            let may_be_value = std::mem::take(&mut is_value);
            if is_argument(word) {
                return true;
            }
            let starts = KEYWORDS.contains(&word) || [".", "source"].contains(&word) || is_one_of(word, &SHELLS);
            if word.starts_with('-') {
                is_value = !word.contains('=');
            } else if !(starts || may_be_value || is_setting(word) || words_of_wrapper(word).is_some()) {
                return false;
            }
        }
        false
    })
}

/// Returns how many words stand before the program that this one starts. `None`: it starts none.
fn words_of_wrapper(program: &str) -> Option<usize> {
    WRAPPERS.iter().find(|(name, _)| is_one_of(program, &[name])).map(|(_, words)| *words)
}

/// Returns whether the options of another program may follow an argument `--`.
pub(super) fn is_wrapped(before: &[Option<&str>]) -> bool {
    before.iter().flatten().any(|text| words_of_wrapper(text).is_some())
}

/// Returns whether a program is one of these, in whichever folder and version.
fn is_one_of(program: &str, names: &[&str]) -> bool {
    let name = program.rsplit(['/', '\\']).next().unwrap_or_default().to_ascii_lowercase();
    let name = name.strip_suffix(".exe").unwrap_or(&name);
    names.contains(&name)
        || names.contains(&name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.'))
}
