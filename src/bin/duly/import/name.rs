//! Names of imported tasks: readable, valid, and the same at the next import even if the entry has moved in the source. Pure.

use std::collections::HashMap;

/// Most characters of the name of a program that are used.
const MAX_PROGRAM: usize = 60;
/// Programs that run the following command, and say little about it.
const WRAPPERS: [&str; 16] = [
    "sudo",
    "nice",
    "ionice",
    "env",
    "flock",
    "timeout",
    "nohup",
    "exec",
    "time",
    "chronic",
    "cronic",
    "setsid",
    "stdbuf",
    "chrt",
    "systemd-cat",
    "command",
];
/// Commands that only prepare for another one.
const PREPARATIONS: [&str; 10] = ["cd", "test", "[", "[[", "export", "source", ".", "umask", "set", "sleep"];
/// Programs that run the script which the next word names.
const INTERPRETERS: [&str; 10] = ["sh", "bash", "dash", "zsh", "php", "python", "python3", "node", "perl", "ruby"];

/// Generates names, each of them once.
#[derive(Debug)]
pub(crate) struct Names<'a> {
    prefix: &'a str,
    /// The names in use, with the highest number that was appended to each.
    used: HashMap<String, usize>,
}

impl<'a> Names<'a> {
    pub(crate) fn new(prefix: &'a str) -> Self {
        Names { prefix, used: HashMap::new() }
    }

    /// Returns a name for a command at its times: `cron:backup.sh-yo2y3zwt`. It contains a hash of `parts`, so that entries may
    /// be moved and inserted. Each but the first of several equal entries gets a number.
    pub(crate) fn for_command(&mut self, command: &str, parts: &[&str]) -> String {
        let name = format!("{}:{}-{}", self.prefix, program(command), short_hash(parts));
        self.unique(name)
    }

    /// Returns a name for an ID of the source, which is kept if it is valid.
    pub(crate) fn for_id(&mut self, id: &str) -> String {
        let legal: String = id.chars().map(|c| if is_legal(c) { c } else { '-' }).take(120).collect();
        let name = format!("{}:{legal}", self.prefix);
        let name = if legal == id { name } else { format!("{name}-{}", short_hash(&[id])) };
        self.unique(name)
    }

    fn unique(&mut self, name: String) -> String {
        let Some(mut number) = self.used.get(&name).copied() else {
            self.used.insert(name.clone(), 1);
            return name;
        };
        let unused = loop {
            number += 1;
            let unused = format!("{name}-{number}");
            if !self.used.contains_key(&unused) {
                break unused;
            }
        };
        // The next search starts here: an entry may occur very often.
        self.used.insert(name, number);
        self.used.insert(unused.clone(), 1);
        unused
    }
}

fn is_legal(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._:/@-".contains(c)
}

/// Guesses the name of the main program of a shell command line.
fn program(command: &str) -> String {
    let steps = || command.split(['&', '|', ';']).map(words).filter(|words| !words.is_empty());
    let main = steps().find(|words| !PREPARATIONS.contains(&words[0])).or_else(|| steps().next()).unwrap_or_default();
    let file = |word: &str| word.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
    let script = |word: &&&str| !word.starts_with('-') && (word.contains('/') || word.contains('.'));
    let word = match main.as_slice() {
        [] => String::new(),
        [first, rest @ ..] if INTERPRETERS.contains(&file(first).as_str()) => {
            rest.first().filter(script).map_or_else(|| file(first), |word| file(word))
        }
        [first, ..] => file(first),
    };
    let kept: String =
        word.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).take(MAX_PROGRAM).collect();
    if kept.is_empty() { "command".to_owned() } else { kept }
}

/// Returns the words of one command, without leading variables and wrappers.
fn words(step: &str) -> Vec<&str> {
    let bare = |word| str::trim_matches(word, ['(', ')', '{', '}', '"', '\'', '!', '`', '$']);
    let mut words = step.split_whitespace().map(bare).filter(|word| !word.is_empty()).peekable();
    let mut wrapper = "";
    while let Some(word) = words.peek() {
        let file = word.rsplit('/').next().unwrap_or_default();
        let number = word.starts_with(|c: char| c.is_ascii_digit());
        if WRAPPERS.contains(&file) {
            wrapper = file;
        } else if wrapper == "flock" && !word.starts_with('-') {
            // The file that it locks.
            wrapper = "";
        } else if wrapper == "sudo" && ["-u", "-g"].contains(word) {
            words.next();
        } else if !(word.contains('=') || (!wrapper.is_empty() && (word.starts_with('-') || number))) {
            break;
        }
        words.next();
    }
    words.collect()
}

/// Returns 40 bits of a hash (FNV-1a) as eight letters and digits. It must not change: stored names contain it.
fn short_hash(parts: &[&str]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        // A byte that occurs in no text separates the parts.
        for byte in part.bytes().chain([0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash ^= hash >> 32;
    (0..8).map(|digit| char::from(ALPHABET[(hash >> (5 * digit) & 31) as usize])).collect()
}

#[cfg(test)]
mod tests {
    use super::{Names, program};

    #[test]
    fn a_command_is_named_after_its_program() {
        for (command, name) in [
            ("/usr/local/bin/backup.sh --full", "backup.sh"),
            ("cd /srv/app && ./manage.py clearsessions", "manage.py"),
            ("cd / && run-parts --report /etc/cron.hourly", "run-parts"),
            ("test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.daily )", "run-parts"),
            ("[ -x /usr/lib/php/sessionclean ] && if [ ! -d /run/systemd/system ]; then :; fi", "if"),
            ("PATH=/opt/bin:$PATH TERM=dumb tidy", "tidy"),
            ("sudo -u www-data php -f /var/www/cron.php", "php"),
            ("/usr/bin/php /var/www/cron.php", "cron.php"),
            ("nice -n 19 ionice -c3 updatedb", "updatedb"),
            ("flock -n /tmp/sync.lock rsync -a a/ b/", "rsync"),
            ("timeout 300 curl -fsS https://example.org", "curl"),
            ("/bin/bash -c 'echo hi'", "bash"),
            ("\"$HOME/bin/my tool\" now", "my"),
            ("cd /only", "cd"),
            ("\u{e9}\u{e9}", "command"),
            (";;", "command"),
        ] {
            assert_eq!(program(command), name, "{command}");
        }
    }

    #[test]
    fn names_are_unique_and_stay_the_same_when_entries_move() {
        let lines = [("@daily", "a x"), ("@daily", "a y"), ("@hourly", "a x"), ("@daily", "a x")];
        let mut names = Names::new("cron");
        let given = lines.map(|(times, command)| names.for_command(command, &[times, command]));
        assert!(given.iter().all(|name| name.starts_with("cron:a-")), "{given:?}");
        assert_eq!(given[3], format!("{}-2", given[0]));
        let mut names = Names::new("cron");
        let moved = [lines[2], lines[0], lines[3], lines[1]];
        let moved = moved.map(|(times, command)| names.for_command(command, &[times, command]));
        assert_eq!(moved, [&given[2], &given[0], &given[3], &given[1]].map(String::clone));
        // Names are stored in databases, so that the hash must not change.
        assert_eq!(given[0], "cron:a-yo2y3zwt");
    }

    #[test]
    fn a_numbered_name_is_unique_too() {
        let mut names = Names::new("n");
        assert_eq!(
            ["a", "a-2", "a", "a", "a-2"].map(|id| names.for_id(id)),
            ["n:a", "n:a-2", "n:a-3", "n:a-4", "n:a-2-2"]
        );
    }

    #[test]
    fn numbering_many_equal_entries_is_fast() {
        // If each search began at 1, this would take minutes.
        let mut names = Names::new("cron");
        let last = (0..50_000).map(|_| names.for_command("a", &["@daily", "a"])).last();
        assert!(last.is_some_and(|name| name.ends_with("-50000")));
    }

    #[test]
    fn a_valid_id_is_kept() {
        let mut names = Names::new("nanoclaw");
        assert_eq!(names.for_id("task-1772-ab12cd"), "nanoclaw:task-1772-ab12cd");
        let (one, other) = (names.for_id("t\u{e4}glich \u{1f600}"), names.for_id("t\u{f6}glich \u{1f600}"));
        assert!(one.starts_with("nanoclaw:t-glich---") && one != other, "{one} {other}");
    }
}
