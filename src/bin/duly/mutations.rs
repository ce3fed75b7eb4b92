//! Mutation tests of the parsers of the program: they never panic, an error is one readable line, and an accepted value is equal
//! when it is written and parsed again.

/// The mutator of the library's tests.
#[path = "../../../tests/it/mutations/mutator.rs"]
mod mutator;

use std::collections::BTreeSet;
use std::path::Path;

use clap::Parser;
use duly::{Overlap, Timestamp, Zone};
use toml::Table;

use crate::cli::args::Args;
use crate::cli::values::{duration, json, variable};
use crate::exec::payload::Payload;
use crate::import::crontab::{self, Dialect, Options};
use crate::import::source::{Parsed, ParsedTask};
use crate::import::supercronic;
use crate::import::users::User;
use crate::manifest;
use crate::mutations::mutator::{each, each_in_time};
use crate::output::escape::{is_control, lines, one_line, shell_word};

const MANIFESTS: [&str; 8] = [
    "[defaults]\ntime_zone = \"Europe/Rome\"\nmax_attempts = 3\nenv = { A = \"1\" }\n\n[[task]]\nname = \"nightly\"\n\
     cron = \"0 6 * * *\"\ncommand = [\"./report.sh\", \"--yesterday\"]\ntimeout = \"10m\"\n",
    "[[task]]\nname = \"a\"\nevery = \"90s\"\nshell = \"echo $HOME\"\njitter = \"1m\"\nexpires = \"1h\"\npriority = 0\n",
    "[[task]]\nname = \"b\"\nat = 2027-03-14T07:00:00\nhandler = \"h\"\npayload = { to = [1, 2.5, \"x\", true], at = 07:00:00 }\n\
     starts_at = 2027-03-14T07:00:00Z\nends_at = \"2028-03-14T07:00:00+01:00\"\n",
    "[[task]]\nname = \"c\"\nafter = \"1h 30m\"\ncommand = [\"x\"]\noverlap = \"buffer_all\"\nmisfire = \"run_all\"\n\
     misfire_grace = \"0\"\ncatch_up_limit = 7\nat_most_once = true\nbackoff = \"1s\"\nbackoff_cap = \"1m\"\n",
    "[[task]]\nname = \"d\"\ncron = \"@daily\"\nhandler = \"command\"\npayload.argv = [\"x\"]\nconcurrency_key = \"chat:7\"\n\
     on_dead = \"e\"\npause_after_failures = 3\n[[task]]\nname = \"e\"\nevery = '1m'\nhandler = '''h'''\n",
    "[[worker]]\nname = \"mail\"\ncommand = [\"node\", \"mail.mjs\"]\ncwd = \"mail\"\nenv = { LOG = \"debug\" }\ncopies = 2\n\
     [[worker]]\nname = \"w\"\ncommand = [\"./w\"]\n[[task]]\nname = \"f\"\nevery = \"1m\"\nhandler = \"mail\"\n",
    "[[calendar]]\nname = \"holidays\"\ndates = [\"2027-12-24..2027-12-26\", \"2028-01-01\"]\n[[task]]\nname = \"g\"\n\
     cron = \"0 9 * * *\"\nhandler = \"h\"\nonly_between = \"09:00-12:00, 22:00-24:00\"\nonly_on = [\"2027-01-01..2028-12-31\"]\n\
     except = [\"holidays\", \"2027-11-02\"]\n",
    "[handler.mail]\ndescription = \"d\"\npayload_schema = { type = \"object\", required = [\"to\"], properties.to = { pattern = \"^a\" } }\n\
     [[template]]\nname = \"p\"\ncommand = [\"sh\", \"p.sh\", \"--to={to}\", \"--\", \"{{{n}}}\"]\nmax_attempts = 2\n\
     parameters.to = { pattern = \"[a-z]+\", max_length = 9 }\nparameters.n = { type = \"integer\", minimum = -1, maximum = 9 }\n",
];

fn one_readable_line(reason: &str, of: &str) {
    assert!(reason.lines().count() == 1 && reason.len() < 2000, "{of:?}\n{reason:.3000}");
}

/// A manifest that is formatted anew has the same tasks.
#[test]
fn manifests() {
    let mut read = 0;
    each(4000, |mutator| {
        let text = mutator.text(&MANIFESTS);
        match manifest::parse(&text, Path::new("/etc")) {
            Err(reason) => one_readable_line(&reason, &text),
            Ok(tasks) => {
                let written = text.parse::<Table>().expect("TOML").to_string();
                let again = manifest::parse(&written, Path::new("/etc")).expect("the same manifest");
                assert_eq!(format!("{tasks:?}"), format!("{again:?}"), "{written}");
                for task in &tasks.tasks {
                    if let Err(error) = task.occurrences(Timestamp::MIN, 2) {
                        one_readable_line(&error.to_string(), &text);
                    }
                }
                read += 1;
            }
        }
    });
    assert!(read > 200, "{read} were read");
}

#[test]
fn payloads_of_commands() {
    let seeds = [
        r#"{"argv": ["sh", "-c", "echo $HOME"], "cwd": "/srv", "env": {"A": "1"}, "env_from": ["HOME"], "stdin": "x\u0000"}"#,
        r#"{"argv": ["true"], "cwd": null, "stdin": null}"#,
        r#"{"argv": ["a", "b c", "\ud83d\ude00", ""], "env": {"": "", "B=C": "x"}}"#,
        "null",
        "[[[[[]]]]]",
        "7",
        "\"argv\"",
    ];
    let mut read = 0;
    each(8000, |mutator| {
        let text = mutator.text(&seeds);
        match Payload::parse(&text) {
            Err(reason) => one_readable_line(&reason, &text),
            Ok(payload) => {
                let written = payload.checked().expect("what was read");
                assert_eq!(Payload::parse(written.get()).expect("its own text"), payload);
                assert!(!payload.argv[0].is_empty() && payload.argv.iter().all(|word| !word.contains('\0')));
                read += 1;
            }
        }
    });
    assert!(read > 200, "{read} were read");
}

const CRONTABS: [&str; 4] = [
    "SHELL=/bin/bash\nMAILTO=\"\"\n# comment\n*/5 * * * * /usr/bin/true\n@daily cat%one%two\n",
    "CRON_TZ=Europe/Rome\n0 2 * * 1-5 anna backup.sh >/dev/null 2>&1\nTZ=UTC\n-0 5 * * * root x\n",
    "  PATH = '/usr/bin:$HOME/bin'  \r\n30 1 L * * date +\\%F%50\\% of\\it\r\n0~30 5 * * * a\r\n",
    "\"B C\" = d\n17 * * * *\troot    cd / && run-parts --report /etc/cron.hourly\n@reboot x\n@daily %only input",
];

const SUPERCRONICS: [&str; 4] = [
    "*/2 * * * * * * ls 2>/dev/null\n@hourly echo \"$A\"\n* * * * * 2030 once\n* * * * * * with year\n",
    "  CRON_TZ = Europe/Rome\r\n0 3 */2 january-JUN friday#2,5L 1970-2099 a\nUSER='b'\nCRON_TZ=\"Local\"",
    "0 0 15W,LW,L * ? * a\n,,5/10 0-23/2 1,,2 * 0-7 7z a\n# comment\n@midnight a",
    "FOO=\nTZ=UTC\n* * * * *\n0 0 12 * * MON /bin/a\n30\t2 * * * a%b\n",
];

fn with_comments(bytes: &[u8]) -> Vec<u8> {
    [b"# a comment\xff\n\n", bytes, b"\n# another"].concat()
}

/// Each line is imported, refused or ignored; an imported task can be planned or is refused then; a comment `around` the lines
/// changes nothing.
fn check_lines<'a>(bytes: &'a [u8], around: &'a [u8], parse: impl Fn(&'a [u8]) -> Parsed<'a>) {
    let found = parse(bytes);
    let count = bytes.split(|byte| *byte == b'\n').count();
    assert!(found.tasks.len() + found.refused.len() <= count);
    let names: BTreeSet<_> = found.tasks.iter().map(|task| task.name.clone()).collect();
    assert_eq!(names.len(), found.tasks.len(), "a duplicate name");
    for note in found.refused.iter().chain(&found.remarks) {
        one_readable_line(&note.reason, &note.text);
    }
    let more = parse(around);
    assert_eq!(more.refused.len(), found.refused.len());
    let tasks = |found: &Parsed<'_>| {
        let task = |task: &ParsedTask<'_>| (task.name.clone(), format!("{:?}", (task.item)(&task.name)));
        found.tasks.iter().map(task).collect::<Vec<_>>()
    };
    assert_eq!(tasks(&more), tasks(&found));
}

#[test]
fn crontabs() {
    let zone = Zone::named("Europe/Rome").expect("a zone");
    let users = BTreeSet::from(["root".to_owned(), "anna".to_owned()]);
    each_in_time(4000, move |mutator| {
        let bytes = mutator.bytes(&CRONTABS);
        let around = with_comments(&bytes);
        let user = User { name: "anna".into(), home: Some("/home/anna".into()) };
        let (system, others) = (mutator.random.bool(), mutator.random.bool());
        let options = Options {
            system,
            user,
            others,
            root: others.then(|| "root".to_owned()),
            users: &users,
            zone: &zone,
            prefix: "cron",
            dialect: if mutator.random.bool() { Dialect::Vixie } else { Dialect::BusyBox },
        };
        check_lines(&bytes, &around, |bytes| crontab::parse(bytes, &options));
    });
}

#[test]
fn crontabs_of_supercronic() {
    let zone = Zone::named("Europe/Rome").expect("a zone");
    each_in_time(4000, move |mutator| {
        let bytes = mutator.bytes(&SUPERCRONICS);
        let around = with_comments(&bytes);
        let options = supercronic::Options { zone: &zone, prefix: "cron", overlap: Overlap::Skip };
        check_lines(&bytes, &around, |bytes| supercronic::parse(bytes, &options));
    });
}

#[test]
fn command_lines() {
    let seeds = [
        "add t --cron|0 7 * * *|--tz|Europe/Rome|--|true",
        "add t --every 15m --jitter 1m --expires 1h --handler h --payload|{\"a\": 1}",
        "add t --in 5m --at-most-once --env A=b --env-from HOME --cwd . -- ./x",
        "--db a.db -vv --json history --status failed --since 2h -n 5",
        "next|0 7 * * *|--tz|local|--from|2027-03-14|-n|3",
        "run --tasks f --workers 4 --poll 1s --lease 1m --drain 30s --until-idle --keep-for 30d",
        "cancel 7",
        "logs -1",
        "import crontab - --system --user root --prefix x --prune",
        "import supercronic - --overlapping --prefix x",
        "import nanoclaw f --tz local -- node x",
        "trigger t --payload -7 --key k --wait",
        "add t --manual --on-dead u --shell true",
        "check --overdue 5m --failures 2",
        "completions bash",
        "man add",
    ];
    let mut accepted = 0;
    each(4000, |mutator| {
        let mut line: Vec<String> = vec!["duly".to_owned()];
        for (at, part) in mutator.text(&seeds).split('|').enumerate() {
            let words: Vec<&str> = if at == 0 { part.split(' ').collect() } else { vec![part] };
            line.extend(words.into_iter().map(str::to_owned));
        }
        match Args::try_parse_from(&line) {
            Ok(_) => accepted += 1,
            Err(error) => {
                assert!([0, 2].contains(&error.exit_code()), "{error}");
                assert!(!lines(&error.render().to_string()).trim().is_empty());
            }
        }
    });
    assert!(accepted > 200, "{accepted} were accepted");
}

#[test]
fn values_and_escapes() {
    let seeds =
        ["1h 30m", "0", "A=b=c", "{\"a\": 1}", "it's", "a\u{1b}[2J\u{202e}b\r\n", "-7", "\u{9b}31m", "two words"];
    each(8000, |mutator| {
        let text = mutator.text(&seeds);
        assert!(!one_line(&text).contains(is_control), "{text:?}");
        assert!(!lines(&text).replace(['\n', '\t'], "").contains(is_control), "{text:?}");
        if let Ok(value) = json(&text) {
            assert_eq!(json(value.get()).expect("its own text").get(), value.get());
        }
        if let Ok((name, value)) = variable(&text) {
            assert_eq!(format!("{name}={value}"), text);
        }
        if let Ok(value) = duration(&text) {
            assert_eq!(duration(&duly::duration_text(value)), Ok(value));
        }
        // Without its quotes it is the word.
        let word = shell_word(&text);
        assert!(word == text || word[1..word.len() - 1].replace(r"'\''", "'") == text, "{word}");
    });
}
