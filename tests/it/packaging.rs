//! The unit of systemd and the image: systemd accepts the unit, and the program accepts their command lines.
#![cfg(target_os = "linux")]

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::disk::tools::{skip_without, succeeds};
use crate::docs::{read, tree};
use crate::fixtures::TestDb;

fn packaged(name: &str) -> String {
    read(&tree().join("packaging").join(name))
}

/// Returns the value of a directive of the unit.
fn directive<'a>(unit: &'a str, name: &str) -> &'a str {
    let value = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("the unit has no {name}="))
}

#[test]
fn systemd_accepts_the_unit() {
    if !succeeds("systemd-analyze", &["--version"]) {
        return skip_without("systemd-analyze", "its values are compared with those of the program");
    }
    let db = TestDb::new();
    let path = db.home().join("duly.service");
    // The program of the unit must exist.
    let unit = packaged("duly.service").replace("/usr/local/bin/duly", env!("CARGO_BIN_EXE_duly"));
    let verify = |unit: &str| {
        std::fs::write(&path, unit).expect("a unit");
        let output = Command::new("systemd-analyze").arg("verify").arg(&path).output().expect("systemd-analyze");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (accepted, said) = verify(&unit);
    assert!(accepted && !said.contains("duly.service"), "{said}");
    let (_, said) = verify(&unit.replace("KillMode=mixed", "KilMode=mixed"));
    assert!(said.contains("KilMode"), "systemd-analyze finds a wrong directive: {said}");
}

#[test]
fn the_unit_and_the_program_agree() {
    let unit = packaged("duly.service");
    let db = TestDb::new();
    let line = directive(&unit, "ExecStart").strip_prefix("/usr/local/bin/duly ").expect("the program");
    let words: Vec<&str> = line.split(' ').collect();
    db.printed(&[&words[..], &["--until-idle"]].concat());
    assert!(db.file().exists(), "it creates the database");

    let drain = line.split_once("--drain ").expect("a drain").1;
    let drain = humantime::parse_duration(drain).expect("a duration");
    let stop = humantime::parse_duration(directive(&unit, "TimeoutStopSec")).expect("a duration");
    assert!(stop >= drain + Duration::from_secs(50), "the drain, twice 20 s for the end of commands, and a margin");
    let watchdog = humantime::parse_duration(directive(&unit, "WatchdogSec")).expect("a duration");
    assert!(watchdog >= Duration::from_secs(30), "a turn may wait 5 s for a lock");
    assert_eq!((directive(&unit, "Type"), directive(&unit, "KillMode")), ("notify", "mixed"));

    // The exit codes for which a restart is useless.
    let codes: Vec<i32> =
        directive(&unit, "RestartPreventExitStatus").split(' ').map(|code| code.parse().expect("a number")).collect();
    let code = |arguments: &[&str]| db.duly(arguments).output().expect("the program").status.code().expect("a code");
    let wrong_usage = code(&["run", "--no-such-option"]);
    std::fs::write(db.file(), "no database, but text").expect("a file");
    assert_eq!(codes, [wrong_usage, code(&["run"])]);
}

#[test]
fn the_command_lines_of_the_image_are_valid() {
    let file = packaged("Dockerfile");
    let array = |instruction: &str| -> Vec<String> {
        let line = file.lines().find(|line| line.starts_with(instruction));
        let line = line.unwrap_or_else(|| panic!("no {instruction}"));
        let json: Value = serde_json::from_str(&line[line.find('[').expect("an array")..]).expect("JSON");
        json.as_array().expect("an array").iter().map(|word| word.as_str().expect("a word").to_owned()).collect()
    };
    let db = TestDb::new();
    let code = |words: &[String]| {
        let mut duly = Command::new(env!("CARGO_BIN_EXE_duly"));
        duly.args(words).env("DULY_DB", db.file()).current_dir(db.home()).output().expect("the program").status.code()
    };
    assert_eq!(array("ENTRYPOINT"), ["duly"]);
    let mut run = array("CMD");
    run.push("--until-idle".into());
    assert_eq!(code(&run), Some(0));
    let mut check = array("HEALTHCHECK");
    assert_eq!(check.remove(0), "duly");
    assert_eq!(code(&check), Some(0));
    db.printed(&["add", "overdue", "--at", "2020-01-01T00:00:00Z", "--", "true"]);
    assert_eq!(code(&check), Some(1), "no scheduler is alive");
}

/// What the Debian package and the crate hold is in the tree, or made by the script that builds the package.
#[test]
fn the_files_of_the_packages_exist() {
    let manifest = read(&tree().join("Cargo.toml"));
    let script = packaged("deb");
    let list = |name: &str| -> Vec<String> {
        let (_, rest) = manifest.split_once(&format!("\n{name} = [\n")).unwrap_or_else(|| panic!("no {name}"));
        let lines: Vec<&str> = rest.split("\n]").next().unwrap_or_default().lines().collect();
        let words = |line: &&str| line.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        // Of an asset, the first word: the others are its place and its mode.
        let own = |words: Vec<String>| if name == "assets" { words.into_iter().take(1).collect() } else { words };
        lines.iter().map(words).flat_map(own).collect()
    };
    let (assets, included) = (list("assets"), list("include"));
    assert!(assets.len() > 5 && included.len() > 5, "{assets:?} {included:?}");
    for file in assets.iter().chain(&included) {
        // A pattern stands for the files of a folder; one with ! leaves them out.
        let folder = file.trim_start_matches('!').split('*').next().unwrap_or_default().trim_matches('/');
        match folder.strip_prefix("target/deb/") {
            Some(made) => assert!(script.contains(&format!("$files/{made}")), "packaging/deb does not make {file}"),
            None if folder == "target/release/duly" => {}
            None => assert!(tree().join(folder).exists(), "Cargo.toml names {file}"),
        }
    }
    assert!(
        script.contains("s|/usr/local/bin/duly|/usr/bin/duly|")
            && packaged("duly.service").contains("=/usr/local/bin/duly ")
    );
}
