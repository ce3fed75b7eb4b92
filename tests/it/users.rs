//! Commands of another user (`user`), and what a command inherits of the environment of `duly run`.
#![cfg(target_os = "linux")]

use std::os::unix::fs::MetadataExt;

use duly::{Client, NewTask, RunStatus};
use serde_json::{Value, json};

use crate::disk::tools::{skip_without, succeeds};
use crate::fixtures::{TestDb, eventually, set_mode, skip, wait_for_status};
use crate::import::write;
use crate::sidecar::{Sidecar, command, live_processes, wait_for_process_record};

/// Whether this is root, who alone can start commands of other users.
fn is_root() -> bool {
    let is_root = uid_of("/proc/self") == Some(0);
    if !is_root {
        skip("commands of other users need root");
    }
    is_root
}

/// A scheduler of root, with its database.
fn started_by_root() -> Option<(TestDb, Client, Sidecar)> {
    if !is_root() {
        return None;
    }
    let (db, client) = TestDb::with_client();
    let sidecar = Sidecar::start(&db, &[]);
    Some((db, client, sidecar))
}

/// Returns the user of a file, or of a process in /proc.
fn uid_of(path: &str) -> Option<u32> {
    std::fs::metadata(path).ok().map(|metadata| metadata.uid())
}

/// A shell line that runs as a user.
fn shell_as(name: &str, user: &str, line: &str) -> NewTask {
    command(name, json!({ "argv": ["sh", "-c", line], "cwd": "/", "user": user }))
}

/// The outcome of the one attempt of a task.
fn outcome(db: &TestDb, sidecar: &Sidecar, task: NewTask, status: RunStatus) -> duly::Run {
    let client = db.client();
    let name = client.add(task.at_most_once()).expect("a task").name;
    let run = wait_for_status(&client, &name, status);
    assert!(!run.output.as_deref().unwrap_or_default().contains("panicked"), "{}", sidecar.log());
    run
}

/// The scheduler runs with another /etc/passwd and /etc/group, in which `courier` has supplementary groups.
#[test]
fn a_command_has_the_user_the_groups_and_the_home_of_its_task() {
    if !is_root() {
        return;
    }
    if !succeeds("unshare", &["--mount", "mount", "--bind", "/etc/passwd", "/etc/group"]) {
        return skip_without("unshare", "commands of users without supplementary groups are tested");
    }
    let (db, _) = TestDb::with_client();
    let passwd = write(&db, "passwd", "root:x:0:0::/root:/bin/sh\ncourier:x:4242:4343::/usr:/bin/false\n");
    let group =
        write(&db, "group", "root:x:0:\ncourier:x:4343:\nmail:x:4444:courier\nother:x:4545:root\nlog:x:4646:courier\n");
    let [passwd, group] = [&passwd, &group].map(|file| {
        set_mode(file, 0o644);
        file.to_str().expect("a name")
    });
    let mount = "mount --bind \"$0\" /etc/passwd && mount --bind \"$1\" /etc/group && shift && exec \"$@\"";
    let mut sidecar = Sidecar::spawn_within(&db, &[], "unshare", &["--mount", "sh", "-c", mount, passwd, group]);
    let line = "id -u; id -g; id -G; echo $HOME $USER $LOGNAME $SHELL; pwd; grep -E '^(Uid|Gid):' /proc/self/status";
    let task = command("whole", json!({ "argv": ["sh", "-c", line], "user": "courier" }));
    let run = outcome(&db, &sidecar, task, RunStatus::Succeeded);
    let lines = run.output.expect("output");
    let expected = "4242\n4343\n4343 4444 4646\n/usr courier courier /bin/sh\n/usr\n\
                    Uid:\t4242\t4242\t4242\t4242\nGid:\t4343\t4343\t4343\t4343\n";
    assert_eq!(lines, expected);
    // Without `user`, the user of the scheduler.
    let plain = command("plain", json!({ "argv": ["sh", "-c", "id -u"] }));
    assert_eq!(outcome(&db, &sidecar, plain, RunStatus::Succeeded).output.as_deref(), Some("0\n"));
    sidecar.terminate();
    db.assert_sound();
}

#[test]
fn the_input_and_the_payload_of_a_run_are_readable_by_the_user() {
    let Some((db, client, mut sidecar)) = started_by_root() else { return };
    // A child reads the file by its name too, without the descriptors of its parent.
    let line = "id -u; cat; echo; cat /dev/stdin; cat \"$DULY_PAYLOAD_FILE\"; echo; \
                sh -c 'exec 3<&- 4<&-; cat \"$DULY_PAYLOAD_FILE\"'";
    let task = NewTask::manual("reads").handler("command");
    client.add(task.payload(json!({ "argv": ["sh", "-c", line], "cwd": "/", "user": "nobody" }))).expect("a task");
    client.trigger_run(duly::NewRun::of("reads").payload(json!({ "n": 7 }))).expect("a run");
    let run = wait_for_status(&client, "reads", RunStatus::Succeeded);
    assert_eq!(run.output.as_deref(), Some("65534\n{\"n\":7}\n{\"n\":7}{\"n\":7}\n{\"n\":7}"), "{:?}", run.error);
    eventually("the files are removed", || {
        let left = std::fs::read_dir(db.lock_folder()).expect("a folder").flatten();
        !left.into_iter().any(|file| file.file_name().to_string_lossy().starts_with("run-"))
    });
    sidecar.terminate();
}

#[test]
fn a_command_of_another_user_inherits_the_lock_on_a_further_descriptor() {
    let Some((db, _, mut sidecar)) = started_by_root() else { return };
    let prints = shell_as("prints", "nobody", "id -u; readlink /proc/self/fd/0 /proc/self/fd/41");
    let output = outcome(&db, &sidecar, prints, RunStatus::Succeeded).output.unwrap_or_default();
    let [user, input, further] = output.lines().collect::<Vec<_>>()[..] else { panic!("{output}") };
    assert!(user == "65534" && input.contains("/run-") && input == further, "{output}");
    sidecar.terminate();
}

#[test]
fn what_keeps_a_command_of_another_user_from_starting_is_named() {
    let Some((db, client, mut sidecar)) = started_by_root() else { return };
    let run = outcome(&db, &sidecar, shell_as("unknown", "nobody-here", "true"), RunStatus::Dead);
    assert_eq!(run.error.as_deref(), Some("the task names user \"nobody-here\": there is no such user here"));
    set_mode(db.home(), 0o700);
    let private = json!({ "argv": ["true"], "cwd": db.home(), "user": "nobody" });
    let run = outcome(&db, &sidecar, command("private", private), RunStatus::Dead);
    let output = run.output.unwrap_or_default();
    assert!(
        output.contains("user \"nobody\" cannot enter the cwd") && output.contains("Permission denied"),
        "{output}"
    );
    assert_eq!(run.exit_code, Some(125));
    for (name, program, code, says) in [
        ("missing", "/no/such-program", 127, "No such file"),
        ("not-executable", "/etc/passwd", 126, "Permission denied"),
    ] {
        let payload = json!({ "argv": [program], "cwd": "/", "user": "nobody" });
        let run = outcome(&db, &sidecar, command(name, payload), RunStatus::Dead);
        let output = run.output.unwrap_or_default();
        assert!(output.contains(&format!("cannot start {program:?} as user \"nobody\"")), "{output}");
        assert!(output.contains(says) && run.exit_code == Some(code), "{:?}: {output}", run.exit_code);
    }
    // An unknown user may be known later, so the run is tried again.
    client.add(shell_as("later", "nobody-here", "true")).expect("a task");
    wait_for_status(&client, "later", RunStatus::Failed);
    sidecar.terminate();
}

#[test]
fn a_scheduler_that_is_not_root_gives_up_a_run_of_another_user() {
    if !is_root() {
        return;
    }
    let db = TestDb::new();
    // The whole folder belongs to another user, who runs the scheduler.
    let program = "chown -R 65534:65534 \"$0\" && exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"";
    let client = db.client();
    client.add(shell_as("other", "daemon", "true")).expect("a task");
    client.add(shell_as("same", "nobody", "true")).expect("a task");
    client.add(command("own", json!({ "argv": ["id", "-u"], "cwd": "/" }))).expect("a task");
    drop(client);
    let home = db.home().display().to_string();
    let mut sidecar = Sidecar::spawn_within(&db, &["--until-idle"], "sh", &["-c", program, &home]);
    let code = sidecar.end().code();
    if sidecar.log().contains("setpriv") {
        return skip("the program is not executable for another user");
    }
    assert_eq!(code, Some(0), "{}", sidecar.log());
    let rows = db.rows("SELECT name, r.status, r.attempt, r.error FROM task_runs r JOIN scheduled_tasks t ON t.id = task_id ORDER BY name");
    let refusal = |user: &str| format!("the task names user \"{user}\", but duly does not run as root");
    let expected = [
        format!("other|dead|1|{}", refusal("daemon")),
        "own|succeeded|1|-".into(),
        format!("same|dead|1|{}", refusal("nobody")),
    ];
    assert_eq!(rows, expected);
}

#[test]
fn a_command_of_another_user_that_outlived_its_scheduler_is_ended() {
    if !is_root() {
        return;
    }
    let (db, client) = TestDb::with_client();
    let line = "[ $DULY_ATTEMPT = 2 ] || exec sleep 1000";
    client.add(shell_as("long", "nobody", line).timeout(std::time::Duration::ZERO)).expect("a task");
    let mut sidecar = Sidecar::start(&db, &[]);
    wait_for_process_record(&db);
    let pid: u32 = db.number("SELECT process ->> 'pid' FROM task_runs");
    let alive = || live_processes().any(|process| process.pid == pid);
    sidecar.kill_with_guard();
    assert!(alive(), "it outlives its scheduler");
    assert_eq!(uid_of(&format!("/proc/{pid}")), Some(65534));
    let mut second = Sidecar::start(&db, &[]);
    eventually("it is ended", || !alive());
    wait_for_status(&client, "long", RunStatus::Failed);
    assert!(second.log().contains("ending the orphan command"), "{}", second.log());
    second.terminate();
    db.assert_sound();
}

#[test]
fn the_variables_of_a_task_do_not_reach_the_loader_of_a_process_of_root() {
    let Some((db, _, mut sidecar)) = started_by_root() else { return };
    let argv = ["/usr/bin/env"];
    let variables = json!({ "LD_PRELOAD": "/no/such-object", "OWN": "1" });
    let task = command("loads", json!({ "argv": argv, "cwd": "/", "user": "nobody", "env": variables }));
    let output = outcome(&db, &sidecar, task, RunStatus::Succeeded).output.expect("output");
    assert!(output.contains("LD_PRELOAD=/no/such-object\n") && output.contains("\nOWN=1\n"), "{output}");
    assert!(!output.contains("DULY_AS_"), "{output}");
    let warnings = output.matches("cannot be preloaded").count();
    assert!(warnings <= 1, "the loader of the command alone reads it: {output}");
    sidecar.terminate();
}

#[test]
fn a_command_of_another_user_inherits_no_descriptor_of_root_and_can_open_its_output() {
    if !is_root() {
        return;
    }
    let (db, _) = TestDb::with_client();
    let mut sidecar = Sidecar::spawn_within(&db, &[], "sh", &["-c", "exec 9</etc/passwd && exec \"$@\"", "sh"]);
    let line = "for fd in /proc/self/fd/*; do case ${fd##*/} in 0|1|2) ;; *) readlink $fd | grep passwd;; esac; done; \
                echo out >/dev/stdout; echo err >/dev/stderr";
    let output = outcome(&db, &sidecar, shell_as("other", "nobody", line), RunStatus::Succeeded).output;
    assert_eq!(output.as_deref(), Some("out\n--- stderr ---\nerr\n"));
    // A command of the same user inherits it, as from a shell.
    let plain = command("plain", json!({ "argv": ["sh", "-c", line], "cwd": "/" }));
    let output = outcome(&db, &sidecar, plain, RunStatus::Succeeded).output;
    assert_eq!(output.as_deref(), Some("/etc/passwd\nout\n--- stderr ---\nerr\n"));
    sidecar.terminate();
}

/// The unit of systemd, with the capabilities that docs/deployment.md names.
#[test]
fn a_user_can_be_changed_with_few_capabilities_and_without_new_privileges() {
    if !is_root() {
        return;
    }
    let capabilities = "-all,+setuid,+setgid,+chown,+kill,+dac_override,+sys_ptrace";
    let restricted = ["--no-new-privs", "--bounding-set", capabilities];
    if !succeeds("setpriv", &[&restricted[..], &["true"]].concat()) {
        return skip_without("setpriv", "the same is tested with all capabilities");
    }
    let (db, _) = TestDb::with_client();
    let mut sidecar = Sidecar::spawn_within(&db, &[], "setpriv", &restricted);
    let line = "id -u; grep -E '^(CapEff|NoNewPrivs):' /proc/self/status";
    let run = outcome(&db, &sidecar, shell_as("restricted", "nobody", line), RunStatus::Succeeded);
    assert_eq!(run.output.as_deref(), Some("65534\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n"));
    sidecar.terminate();
}

/// Variables of `duly run` in these tests.
const VARIABLES: [(&str, &str); 5] =
    [("SECRET", "s3cr3t"), ("TOKEN", "t0k3n"), ("LANG", "C.UTF-8"), ("TZ", "Europe/Rome"), ("DULY_LOG", "info")];

fn names(environment: &str) -> Vec<&str> {
    let mut names: Vec<&str> = environment.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_clean_environment_has_the_basic_variables_and_those_of_the_task() {
    let (db, _) = TestDb::with_client();
    let payload = json!({ "argv": ["env"], "env": { "OWN": "1" }, "env_from": ["TOKEN"] });
    let mut clean = Sidecar::spawn_with(&db, &["--clean-env"], &VARIABLES);
    let output = outcome(&db, &clean, command("clean", payload.clone()), RunStatus::Succeeded).output.expect("output");
    let basic = ["HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TZ", "USER"];
    let own = ["OWN", "TOKEN"];
    for name in names(&output) {
        assert!(basic.contains(&name) || own.contains(&name) || name.starts_with("DULY_"), "{name} in {output}");
    }
    for line in ["OWN=1\n", "TOKEN=t0k3n\n", "LANG=C.UTF-8\n", "TZ=Europe/Rome\n", "DULY_TASK=clean\n"] {
        assert!(output.contains(line), "{line} not in {output}");
    }
    assert!(output.contains("PATH=") && !output.contains("DULY_LOG"), "{output}");
    clean.terminate();
    // Without the option, the environment is inherited.
    let mut sidecar = Sidecar::spawn_with(&db, &[], &VARIABLES);
    let output = outcome(&db, &sidecar, command("inherits", payload), RunStatus::Succeeded).output.expect("output");
    assert!(output.contains("SECRET=s3cr3t\n") && output.contains("DULY_LOG=info\n"), "{output}");
    if is_root() {
        // Secrets in the environment of root are not for other users.
        let other = command("other", json!({ "argv": ["env"], "cwd": "/", "user": "nobody", "env_from": ["TOKEN"] }));
        let output = outcome(&db, &sidecar, other, RunStatus::Succeeded).output.expect("output");
        assert!(!output.contains("SECRET") && output.contains("TOKEN=t0k3n\n"), "{output}");
        assert!(output.contains("USER=nobody\n") && output.contains("TZ=Europe/Rome\n"), "{output}");
    }
    sidecar.terminate();
}

#[test]
fn add_and_a_manifest_store_the_user() {
    let db = TestDb::new();
    db.printed(&["add", "by-hand", "--manual", "--user", "backup", "--", "true"]);
    let manifest = "[defaults]\nuser = \"www-data\"\n[[task]]\nname = \"one\"\nmanual = true\nuser = \"mail\"\ncommand = [\"true\"]\n\
                    [[task]]\nname = \"two\"\nmanual = true\ncommand = [\"true\"]\n";
    let file = write(&db, "tasks.toml", manifest);
    db.printed(&["apply", file.to_str().expect("a name")]);
    let users = db.rows("SELECT name, payload ->> 'user' FROM scheduled_tasks ORDER BY name");
    assert_eq!(users, ["by-hand|backup", "one|mail", "two|www-data"]);
    let shown = db.printed(&["show", "by-hand"]);
    assert!(shown.lines().any(|line| line.split_whitespace().eq(["user", "backup"])), "{shown}");
    // Idempotent; another user is another definition.
    assert!(db.printed(&["add", "by-hand", "--manual", "--user", "backup", "--", "true"]).contains("is unchanged"));
    let other = db.duly(&["add", "by-hand", "--manual", "--", "true"]).output().expect("the program");
    assert!(!other.status.success());
}

#[test]
fn root_imports_a_system_crontab_with_the_users_of_its_entries() {
    if !is_root() {
        return;
    }
    let db = TestDb::new();
    let text = "@daily root a\n@daily nobody a\nHOME=/srv\n@daily daemon b\n17 * * * * cd / && c\n";
    let file = write(&db, "system", text);
    let import = ["import", "crontab", file.to_str().expect("a name"), "--system", "--partial"];
    let printed = db.printed(&import);
    assert!(printed.contains("there is no user \"cd\" on this machine"), "{printed}");
    let rows = "SELECT payload ->> 'user', payload ->> 'cwd' FROM scheduled_tasks ORDER BY id";
    assert_eq!(db.rows(rows), ["-|/root", "nobody|-", "daemon|/srv"]);
    assert!(db.printed(&import).contains("3 unchanged"));
    let payload: Value = serde_json::from_str(&db.ask("SELECT payload FROM scheduled_tasks LIMIT 1")).expect("JSON");
    assert_eq!(payload.get("user"), None, "the entries of root have no user");
}

/// A crontab of a user names no user in its entries. As root's own, they would run as root.
#[test]
fn root_imports_a_crontab_for_another_user() {
    if !is_root() {
        return;
    }
    let db = TestDb::new();
    let (own, system) = (write(&db, "own", "@daily a\n"), write(&db, "system", "@daily nobody b\n@daily root c\n"));
    let [own, system] = [&own, &system].map(|file| file.to_str().expect("a name"));
    db.printed(&["import", "crontab", own, "--user", "nobody"]);
    db.printed(&["import", "crontab", system, "--system", "--user", "nobody", "--partial"]);
    db.printed(&["import", "crontab", own, "--prefix", "mine", "--adopt"]);
    let rows = "SELECT payload ->> '$.argv[2]', payload ->> 'user', payload ->> 'cwd' FROM scheduled_tasks ORDER BY id";
    assert_eq!(db.rows(rows), ["a|nobody|-", "b|nobody|-", "a|-|/root"]);
    let unknown = db.duly(&["import", "crontab", own, "--user", "nobody-here"]).output().expect("the program");
    let printed = String::from_utf8_lossy(&unknown.stderr);
    assert!(
        printed.contains("invalid --user \"nobody-here\": there is no user of this name on this machine"),
        "{printed}"
    );
}
