//! Names for what has none: readable, legal, and the same at the next import, wherever in the source it stands then. Pure.

use std::collections::HashMap;

/// Most bytes of a command's own name that are taken over.
const LONGEST: usize = 60;
/// What a command may begin with that says little about it.
const BEFORE: [&str; 16] = [
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
/// Steps that only prepare for another.
const STEPS: [&str; 10] = ["cd", "test", "[", "[[", "export", "source", ".", "umask", "set", "sleep"];
/// Programs that run another, which the next word names.
const INTERPRETERS: [&str; 10] = ["sh", "bash", "dash", "zsh", "php", "python", "python3", "node", "perl", "ruby"];

/// Names that were given, so that none is given twice.
#[derive(Debug)]
pub(crate) struct Names<'a> {
    prefix: &'a str,
    /// With the highest number that was put behind each.
    given: HashMap<String, usize>,
}

impl<'a> Names<'a> {
    pub(crate) fn new(prefix: &'a str) -> Self {
        Names { prefix, given: HashMap::new() }
    }

    /// A name for a command at its times: `cron:backup.sh-yo2y3zwt`. What tells it from others goes in by its hash, so that
    /// lines may be moved, and others inserted. Of several that are the same in all of it, each but the first is numbered.
    pub(crate) fn of_command(&mut self, command: &str, apart: &[&str]) -> String {
        let name = format!("{}:{}-{}", self.prefix, program(command), short_hash(apart));
        self.unused(name)
    }

    /// A name for what has one elsewhere, which is kept where it is legal here.
    pub(crate) fn of_id(&mut self, id: &str) -> String {
        let legal: String = id.chars().map(|c| if is_legal(c) { c } else { '-' }).take(120).collect();
        let name = format!("{}:{legal}", self.prefix);
        let name = if legal == id { name } else { format!("{name}-{}", short_hash(&[id])) };
        self.unused(name)
    }

    fn unused(&mut self, name: String) -> String {
        let Some(mut number) = self.given.get(&name).copied() else {
            self.given.insert(name.clone(), 1);
            return name;
        };
        let unused = loop {
            number += 1;
            let unused = format!("{name}-{number}");
            if !self.given.contains_key(&unused) {
                break unused;
            }
        };
        // Counted on from here: a line may stand there very often.
        self.given.insert(name, number);
        self.given.insert(unused.clone(), 1);
        unused
    }
}

fn is_legal(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._:/@-".contains(c)
}

/// The name of the program that a line for the shell is about, as far as a glance tells.
fn program(command: &str) -> String {
    let steps = || command.split(['&', '|', ';']).map(words).filter(|words| !words.is_empty());
    let about = steps().find(|words| !STEPS.contains(&words[0])).or_else(|| steps().next()).unwrap_or_default();
    let file = |word: &str| word.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
    let script = |word: &&&str| !word.starts_with('-') && (word.contains('/') || word.contains('.'));
    let word = match about.as_slice() {
        [] => String::new(),
        [first, rest @ ..] if INTERPRETERS.contains(&file(first).as_str()) => {
            rest.first().filter(script).map_or_else(|| file(first), |word| file(word))
        }
        [first, ..] => file(first),
    };
    let kept: String = word.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).take(LONGEST).collect();
    if kept.is_empty() { "command".to_owned() } else { kept }
}

/// The words of one step from its program on: without variables, and what it is started by.
fn words(step: &str) -> Vec<&str> {
    let bare = |word| str::trim_matches(word, ['(', ')', '{', '}', '"', '\'', '!', '`', '$']);
    let mut words = step.split_whitespace().map(bare).filter(|word| !word.is_empty()).peekable();
    let mut starter = "";
    while let Some(word) = words.peek() {
        let file = word.rsplit('/').next().unwrap_or_default();
        let number = word.starts_with(|c: char| c.is_ascii_digit());
        if BEFORE.contains(&file) {
            starter = file;
        } else if starter == "flock" && !word.starts_with('-') {
            // The file that it locks.
            starter = "";
        } else if starter == "sudo" && ["-u", "-g"].contains(word) {
            words.next();
        } else if !(word.contains('=') || (!starter.is_empty() && (word.starts_with('-') || number))) {
            break;
        }
        words.next();
    }
    words.collect()
}

/// Forty bits of a hash (FNV-1a), as eight letters and digits. It must stay what it is: names are made of it.
fn short_hash(parts: &[&str]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        // A byte that no text holds keeps neighbours apart.
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
    fn a_command_is_called_by_its_program() {
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
    fn names_tell_tasks_apart_and_stay_where_lines_are_moved() {
        let lines = [("@daily", "a x"), ("@daily", "a y"), ("@hourly", "a x"), ("@daily", "a x")];
        let mut names = Names::new("cron");
        let given = lines.map(|(times, command)| names.of_command(command, &[times, command]));
        assert!(given.iter().all(|name| name.starts_with("cron:a-")), "{given:?}");
        assert_eq!(given[3], format!("{}-2", given[0]));
        let mut names = Names::new("cron");
        let moved = [lines[2], lines[0], lines[3], lines[1]];
        let moved = moved.map(|(times, command)| names.of_command(command, &[times, command]));
        assert_eq!(moved, [&given[2], &given[0], &given[3], &given[1]].map(String::clone));
        // They are kept in databases: this one has been given.
        assert_eq!(given[0], "cron:a-yo2y3zwt");
    }

    #[test]
    fn a_name_that_a_number_made_is_given_once_too() {
        let mut names = Names::new("n");
        assert_eq!(
            ["a", "a-2", "a", "a", "a-2"].map(|id| names.of_id(id)),
            ["n:a", "n:a-2", "n:a-3", "n:a-4", "n:a-2-2"]
        );
    }

    #[test]
    fn a_line_that_stands_there_very_often_is_numbered_in_no_time() {
        // Were they counted from one each time, it would take some minutes.
        let mut names = Names::new("cron");
        let last = (0..50_000).map(|_| names.of_command("a", &["@daily", "a"])).last();
        assert!(last.is_some_and(|name| name.ends_with("-50000")));
    }

    #[test]
    fn an_id_is_kept_where_it_is_legal() {
        let mut names = Names::new("nanoclaw");
        assert_eq!(names.of_id("task-1772-ab12cd"), "nanoclaw:task-1772-ab12cd");
        let (one, other) = (names.of_id("t\u{e4}glich \u{1f600}"), names.of_id("t\u{f6}glich \u{1f600}"));
        assert!(one.starts_with("nanoclaw:t-glich---") && one != other, "{one} {other}");
    }
}
