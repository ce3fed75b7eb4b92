//! Each answer of the server has a deadline: a connection that goes silent is made again, and a server that never answers is named.
#![cfg(target_os = "linux")]

/// SIGTERM while a server does not answer.
mod ending;
mod silent;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use duly::{BoxError, Client, Context, EventFilter, Limits, NewTask, RunStatus, Scheduler};

use crate::fixtures::{eventually, patience, retry_soon, seconds, skip};
use crate::page_run::request;
use crate::postgres::deadline::silent::{DULY, Frozen, Program, Proxy, SHORT, database_behind_proxy, runs};
use crate::postgres::own_server::OwnServer;
use crate::postgres::server;
use crate::postgres::server::address;
use crate::sidecar::{at_once, shell};

#[test]
fn a_connection_that_goes_silent_is_made_again_and_work_goes_on() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    let client = Client::open(&direct).unwrap();
    let mut program = Program::spawn(&proxy.address(&direct), &["run", "--drain", "1s"]);
    program.has_logged("scheduler started");
    // The time limit for the start of the sessions is over.
    let begin = Instant::now();
    for number in 0.. {
        runs(&client, &format!("before-{number}"));
        if begin.elapsed() > seconds(4) {
            break;
        }
    }
    proxy.silence();
    let begin = Instant::now();
    runs(&client, "after");
    assert!(begin.elapsed() < seconds(3 + 10), "{:?}", begin.elapsed());
    program.has_logged("again");
    let log = program.log();
    for text in ["lost the connection to ", "connected to "] {
        assert_eq!(log.matches(text).count(), 1, "{text}: {log}");
    }
    assert!(log.contains("no answer within 3s: look whether the server"), "{log}");
    // The proof of life is there again, too: the scheduler is alive for others.
    eventually("it is alive", || client.check(&Limits::default()).unwrap().is_empty());
    program.terminate();
    assert_eq!(program.ends_within(seconds(1 + 10)), Some(0), "{}", program.log());
    let events = client.events(&EventFilter::newest(50)).unwrap();
    assert!(!events.iter().any(|event| event.kind.contains("recovered")), "{events:?}");
}

#[test]
fn a_server_that_never_answers_is_named_by_every_command() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    proxy.close();
    let silent = proxy.address(&direct);
    let file = tempfile::tempdir().unwrap();
    let target = file.path().join("new.db").display().to_string();
    let commands: [&[&str]; 6] = [
        &["list"],
        &["check"],
        &["add", "task", "--now", "--", "true"],
        &["run"],
        &["doctor"],
        &["migrate", "--from", &silent, "--to", &target],
    ];
    at_once(commands, |words| {
        let mut program = Program::spawn(&silent, words);
        let code = program.ends_within(seconds(3 + 10));
        let log = program.log();
        assert_eq!(code, Some(1), "{words:?}: {log}");
        let says =
            format!("127.0.0.1:{}: the server accepts connections and has not begun a session within 3s", proxy.port);
        assert!(log.contains(&says) && log.contains("(connect_timeout)"), "{words:?}: {log}");
    });
}

#[test]
fn a_host_that_never_answers_is_left_for_the_next_one() {
    let Some((direct, good)) = database_behind_proxy() else { return };
    let silent = Proxy::start().unwrap();
    silent.close();
    let both = good.address(&direct).replacen("127.0.0.1:", &format!("127.0.0.1:{},127.0.0.1:", silent.port), 1);
    let begin = Instant::now();
    assert!(Client::open(&both).unwrap().tasks().unwrap().is_empty());
    assert!((seconds(3)..seconds(3 + 10)).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    let mut program = Program::spawn(&both, &["list"]);
    assert_eq!(program.ends_within(seconds(3 + 10)), Some(0), "{}", program.log());
}

#[test]
fn a_command_says_that_a_server_is_frozen_over_its_socket_too() {
    let Some(server) = OwnServer::start() else { return };
    let database = format!("{}?schema=frozen&{SHORT}", address(&server.folder));
    let client = Client::open(&database).unwrap();
    let _frozen = Frozen::of(&server.folder);
    let begin = Instant::now();
    let error = client.tasks().unwrap_err().to_string();
    // An answer that does not come, and a new session that does not begin.
    assert!(begin.elapsed() < seconds(3 + 3 + 10), "{:?}", begin.elapsed());
    assert!(error.contains("has not begun a session within 3s"), "{error}");
}

#[test]
fn a_handler_whose_connection_goes_silent_is_told_and_its_run_is_retried() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    // The application's limit for its own statements.
    let address = proxy.address(&direct) + "&options=-c%20statement_timeout%3D2000";
    let proxy = Arc::new(proxy);
    let home = tempfile::tempdir().unwrap();
    let (silences, tries) = (proxy.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = tries.clone();
    let scheduler = Scheduler::builder(&address)
        .state_folder(home.path())
        .poll(Duration::from_millis(50))
        .handler("work", move |run: &Context| {
            let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            run.finish_in_postgres(|tx| -> Result<(), BoxError> {
                tx.batch_execute("SELECT 1")?;
                if first {
                    silences.silence();
                }
                Ok(tx.batch_execute("SELECT 2")?)
            })
        })
        .start()
        .unwrap();
    let client = Client::open(&direct).unwrap();
    client.add(retry_soon(NewTask::once("retried", client.now()).handler("work"), 3)).unwrap();
    eventually("it has run", || {
        client.newest_runs(1).unwrap().first().is_some_and(|run| run.status == RunStatus::Succeeded)
    });
    assert_eq!(tries.load(Ordering::SeqCst), 2);
    scheduler.shutdown(patience()).unwrap();
}

#[test]
fn nothing_is_asked_past_the_deadline() {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.ends_with("tests.rs") || name == "testing.rs" || !name.ends_with(".rs") {
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let source = source.split("#[cfg(test)]\nmod tests").next().unwrap();
            let ways = ["NoTls", "postgres::Client", "tokio_postgres::", "config.connect("];
            let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
            if code.into_iter().any(|line| ways.iter().any(|way| line.contains(way))) {
                found.push(relative(&path));
            }
        }
    }
    // `connect_plainly` is for a process that may open no TCP connection to itself.
    assert_eq!(found, ["store/postgres/client.rs"], "connections are made in store/postgres/client.rs only");
}

fn relative(path: &Path) -> String {
    path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap().display().to_string()
}

#[test]
fn the_page_says_that_its_server_is_silent_and_works_when_it_answers() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    let client = Client::open(&direct).unwrap();
    let program = Program::spawn(&proxy.address(&direct), &["run", "--http", "127.0.0.1:0"]);
    program.has_logged("status page on http://");
    let log = program.log();
    let (_, rest) = log.split_once("status page on http://").unwrap();
    let page = rest.split('/').next().unwrap().parse().unwrap();
    runs(&client, "before");
    let get = || request(page, "/", "text/html");
    assert_eq!(get().code, 200);
    proxy.close();
    proxy.silence();
    let begin = Instant::now();
    let answer = get();
    // An answer that does not come, and a session that does not begin.
    assert!(begin.elapsed() < seconds(3 + 3 + 10), "{:?}", begin.elapsed());
    assert_eq!((answer.code, answer.text.as_str()), (503, "the database does not answer in time\n"));
    proxy.open();
    let begin = Instant::now();
    runs(&client, "after");
    assert!(begin.elapsed() < seconds(3 + 3 + 10), "{:?}", begin.elapsed());
    eventually("the page works", || get().code == 200);
}

#[test]
fn alarms_are_delivered_after_their_connections_went_silent() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    let client = Client::open(&direct).unwrap();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("alarms");
    let command = format!("sh -c 'cat >>{}'", file.display());
    let paces = ["--alarm-look", "100ms", "--alarm-gather", "100ms", "--alarm-interval", "100ms"];
    let options = [&["run", "--alert-command", &command], &paces[..]].concat();
    let program = Program::spawn(&proxy.address(&direct), &options);
    let delivered = |name: &str| std::fs::read_to_string(&file).is_ok_and(|text| text.contains(name));
    let dies = |name: &str| drop(client.add(retry_soon(shell(name, "exit 1"), 1)).unwrap());
    program.has_logged("scheduler started");
    dies("before");
    eventually("the first alarm is delivered", || delivered("before"));
    proxy.silence();
    let begin = Instant::now();
    dies("after");
    eventually("the second alarm is delivered", || delivered("after"));
    // The run, the look and the channel have a connection each.
    assert!(begin.elapsed() < seconds(3 * 3 + 10), "{:?}", begin.elapsed());
}

#[test]
fn a_client_in_a_handler_goes_on_over_a_new_connection() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    let address = proxy.address(&direct);
    let home = tempfile::tempdir().unwrap();
    let (client, took) = (Client::open(&address).unwrap(), std::sync::mpsc::channel());
    let (own, send) = (client.clone(), took.0);
    let scheduler = Scheduler::builder(&address)
        .state_folder(home.path())
        .handler("work", move |_: &Context| -> Result<(), BoxError> {
            own.tasks()?;
            proxy.silence();
            let begin = Instant::now();
            own.add(NewTask::manual("by-the-handler").handler("none"))?;
            Ok(send.send(begin.elapsed())?)
        })
        .start()
        .unwrap();
    let direct = Client::open(&direct).unwrap();
    direct.add(NewTask::once("adds", direct.now()).handler("work").at_most_once()).unwrap();
    let took = crate::fixtures::receive(&took.1, "it has added a task");
    assert!(took < seconds(3 + 10), "{took:?}");
    assert!(direct.task("by-the-handler").unwrap().is_some());
    eventually("its outcome is stored", || direct.newest_runs(1).unwrap()[0].status == RunStatus::Succeeded);
    scheduler.shutdown(patience()).unwrap();
}

#[test]
fn a_migration_whose_connection_goes_silent_fails_and_leaves_nothing() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("t.db");
    let source = Client::open(&file).unwrap();
    source.add_all((0..3_000).map(|number| NewTask::manual(format!("task-{number}")).handler("work"))).unwrap();
    drop(source);
    proxy.hush(&["task-2900"]);
    let (from, to) = (file.display().to_string(), proxy.address(&direct));
    let mut program = Program::spawn(&from, &["migrate", "--from", &from, "--to", &to]);
    proxy.has_hushed("it copies");
    assert_eq!(program.ends_within(seconds(3 + 10)), Some(1));
    assert!(program.log().contains("no answer within 3s"), "{}", program.log());
    // As its keepalives do where the other host, or the way to it, is gone: this proxy answers them.
    let mut other = postgres::Client::connect(server().unwrap(), postgres::NoTls).unwrap();
    let ends = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'duly migrate' AND datname = current_database()
                   AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = pg_stat_activity.pid AND l.relation = $1::text::regclass)";
    let schema = direct.rsplit_once("schema=").unwrap().1;
    assert_eq!(other.query(ends, &[&format!("{schema}.scheduled_tasks")]).unwrap().len(), 1);
    let mut again = Program::spawn(&from, &["migrate", "--from", &from, "--to", &direct]);
    assert_eq!(again.ends_within(patience()), Some(0), "{}", again.log());
    assert_eq!(Client::open(&direct).unwrap().tasks().unwrap().len(), 3_000);
}

#[test]
fn a_server_that_says_that_it_encrypts_and_then_nothing_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.read_exact(&mut [0; 8]).and_then(|()| client.write_all(b"S"));
            kept.push(client);
        }
    });
    let mut program = Program::spawn(&format!("postgres://me@127.0.0.1:{port}/db?sslmode=require&{SHORT}"), &["list"]);
    assert_eq!(program.ends_within(seconds(3 + 10)), Some(1));
    assert!(program.log().contains("has not begun a session within 3s"), "{}", program.log());
}

#[test]
fn what_became_of_a_commit_is_not_asked_for_ever() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    Client::open(&direct).unwrap().add(NewTask::manual("task").handler("none")).unwrap();
    // Sessions begin, and the question is not answered.
    proxy.hush(&["COMMIT\0", "pg_xact_status"]);
    let mut program = Program::spawn(&proxy.address(&direct), &["trigger", "task"]);
    assert_eq!(program.ends_within(seconds(3 + 20 + 10)), Some(1));
    assert!(program.log().contains("whether it was committed is unknown: no answer within"), "{}", program.log());
}

#[test]
fn while_a_synchronous_standby_is_away_commands_go_on_and_outcomes_wait() {
    let Some(server) = OwnServer::start() else { return };
    let database = format!("{}?schema=waits&{SHORT}", address(&server.folder));
    let client = Client::open(&database).unwrap();
    let mut program = Program::spawn(&database, &["run", "--lease", "45s", "--poll", "50ms"]);
    program.has_logged("scheduler started");
    let home = program.home.path().display().to_string();
    client.add(shell("long", &format!("echo up >{home}/up; while [ ! -e {home}/go ]; do sleep 0.1; done"))).unwrap();
    eventually("a command runs", || program.home.path().join("up").exists());
    let mut other = postgres::Client::connect(&address(&server.folder), postgres::NoTls).unwrap();
    let mut standbys = |names: &str| {
        other.batch_execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'")).unwrap();
        other.batch_execute("SELECT pg_reload_conf()").unwrap();
        let found = || other.query_one("SHOW synchronous_standby_names", &[]).unwrap().get::<_, String>(0) == names;
        eventually("the setting holds", found);
    };
    standbys("away");
    std::fs::write(program.home.path().join("go"), "").unwrap();
    program.has_logged("the database cannot be written: the connection broke during the commit");
    standbys("");
    program.has_logged("the database can be written again");
    runs(&client, "after");
    let long = client.history("long", 1).unwrap().pop().unwrap();
    assert_eq!((long.status, long.attempt), (RunStatus::Succeeded, 1));
    let log = program.log();
    assert!(log.contains("as while it waits for a synchronous standby"), "{log}");
    assert_eq!((log.matches("lost the connection").count(), log.matches("cannot be written").count()), (1, 1), "{log}");
    assert!(!log.contains("lease") && !log.contains("registers again"), "{log}");
    program.terminate();
    assert_eq!(program.ends_within(seconds(30 + 10)), Some(0), "{}", program.log());
}

#[test]
fn a_socket_is_used_without_deadlines_where_the_process_cannot_reach_itself() {
    let Some(server) = OwnServer::start() else { return };
    let unreachable = "ip link set lo up && tc qdisc add dev lo root blackhole";
    let works = Command::new("unshare").args(["--net", "sh", "-c", unreachable]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        return skip("no network namespaces");
    }
    let mut within = Command::new("unshare");
    within.args(["--net", "sh", "-c", &format!("{unreachable} && exec \"$@\""), "sh", DULY]);
    let database = format!("{}?schema=near&{SHORT}", address(&server.folder));
    drop(Client::open(&database).unwrap());
    let mut program = Program::spawn_by(within, &database, &["run", "--until-idle"]);
    assert_eq!(program.ends_within(patience()), Some(0));
    assert_eq!(program.log().matches("have no deadline").count(), 1, "{}", program.log());
}
