//! A session keeps its settings and its statements through losses of the connection, and a commit without an answer is neither repeated
//! nor forgotten.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::Error;
use crate::model::new_task::NewTask;
use crate::model::request::{Change, Existing};
use crate::store::Store;
use crate::store::fault::{Class, Fault};
use crate::store::postgres::address::Address;
use crate::store::postgres::outcome::{Number, Outcome, Proof};
use crate::store::postgres::server::{Access, Server};
use crate::store::postgres::session::{Session, Timeline};
use crate::store::postgres::testing::{AtCommit, Pooler, Proxy, TestServer, shared, skipped};
use crate::store::postgres::{PostgresStore, Time};
use crate::store::sqlite::file::{Durability, Missing};
use crate::store::turn_io::Registration;

/// A table in a schema of a test, and the address of the schema.
pub(super) fn schema(server: &TestServer, port: u16, name: &str) -> Address {
    server.other().batch_execute(&format!("CREATE SCHEMA {name}; CREATE TABLE {name}.t (n bigint)")).unwrap();
    Address::parse(&format!("{}?schema={name}", server.url_at(port))).unwrap()
}

/// The shared server, and a session with a schema of its own.
fn connected(name: &str) -> Option<(&'static TestServer, Server)> {
    let postgres = shared()?;
    Some((postgres, Server::connect(&schema(postgres, postgres.port, name)).unwrap()))
}

/// A pooler before a server, if the program is installed.
fn pooler(postgres: &TestServer) -> Option<Pooler> {
    let pooler = Pooler::start(postgres);
    (!skipped(pooler.is_none(), "pgbouncer")).then_some(pooler?)
}

/// Ends a session of the server.
fn cut(server: &mut Server, other: &mut postgres::Client) {
    let pid: i32 = server.query("SELECT pg_backend_pid()", &[]).unwrap()[0].get(0);
    other.execute("SELECT pg_terminate_backend($1, 5000)", &[&pid]).unwrap();
}

fn rows(server: &mut Server) -> i64 {
    server.query("SELECT count(*) FROM t", &[]).unwrap()[0].get(0)
}

pub(super) fn add(server: &mut Server) {
    server.begin(Access::Write).unwrap();
    server.execute("INSERT INTO t VALUES ($1)", &[&1_i64]).unwrap();
}

fn class(fault: &Fault) -> Class {
    let Fault::Store(class, _) = fault else { panic!("{fault}") };
    *class
}

fn setting(server: &mut Server, name: &str) -> String {
    server.query("SELECT current_setting($1)", &[&name]).unwrap()[0].get(0)
}

#[test]
fn a_session_has_the_settings_also_after_a_loss() {
    let Some((postgres, mut server)) = connected("settings") else { return };
    let mut other = postgres.other();
    for round in 0..2 {
        let expected = [
            ("lock_timeout", if round == 0 { "4500ms" } else { "70ms" }),
            ("statement_timeout", "10s"),
            ("idle_in_transaction_session_timeout", "4s"),
            ("client_connection_check_interval", "1s"),
            ("tcp_keepalives_idle", "3"),
            ("tcp_keepalives_count", "3"),
            ("tcp_user_timeout", "6000"),
            ("jit", "off"),
            ("search_path", "\"settings\", pg_temp"),
            ("default_transaction_isolation", "read committed"),
            ("application_name", "duly"),
            ("duly.store", "on"),
        ];
        for (name, value) in expected {
            assert_eq!(setting(&mut server, name), value, "{name}");
        }
        if round == 0 {
            cut(&mut server, &mut other);
        }
        // Over a connection that is lost: the next one begins with it.
        server.set_lock_timeout(Duration::from_millis(70)).unwrap();
        server.begin(Access::Read).unwrap();
        server.roll_back();
    }
    assert_eq!(server.losses(), (1, false), "the second had another process");
}

#[test]
fn a_transaction_that_only_reads_may_be_idle_for_longer() {
    let Some((_, mut server)) = connected("reading") else { return };
    for (access, limit) in [(Access::Read, "1min"), (Access::Write, "4s"), (Access::Read, "1min")] {
        server.begin(access).unwrap();
        assert_eq!(setting(&mut server, "idle_in_transaction_session_timeout"), limit);
        server.roll_back();
    }
    assert_eq!(setting(&mut server, "idle_in_transaction_session_timeout"), "4s");
}

#[test]
fn a_transaction_takes_two_round_trips_beside_its_statements() {
    let Some((_, mut server)) = connected("trips") else { return };
    add(&mut server);
    server.commit().unwrap();
    let (before, prepared) = (server.round_trips(), server.prepares());
    add(&mut server);
    server.commit().unwrap();
    assert_eq!((server.round_trips() - before, server.prepares() - prepared), (3, 0));
    assert_eq!((rows(&mut server), server.transactions()), (2, 2));
}

#[test]
fn the_time_is_that_after_the_lock() {
    let Some(postgres) = shared() else { return };
    let address = schema(postgres, postgres.port, "time_of_lock");
    let mut holder = Server::connect(&address).unwrap();
    add(&mut holder);
    std::thread::scope(|threads| {
        let waiter = threads.spawn(|| {
            let mut waiter = Server::connect(&address).unwrap();
            let time = waiter.begin(Access::Write).unwrap();
            (time, rows(&mut waiter))
        });
        wait_for_waiter(&mut holder);
        let before = holder.time().unwrap();
        holder.commit().unwrap();
        let (time, seen) = waiter.join().unwrap();
        assert!(time >= before, "{time:?} {before:?}");
        assert_eq!(seen, 1, "what the holder committed");
    });
}

/// Waits until a session waits for an advisory lock of this database.
pub(super) fn wait_for_waiter(holder: &mut Server) {
    let schema = holder.address().schema().to_owned();
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                 AND objid = (SELECT oid FROM pg_namespace WHERE nspname = $1)";
    crate::waits::eventually("a session waits", || holder.query(waits, &[&schema]).unwrap()[0].get::<_, i64>(0) > 0);
}

#[test]
fn a_failed_statement_prevents_the_commit() {
    let Some((_, mut server)) = connected("failed") else { return };
    add(&mut server);
    let fault = server.query("SELECT 1 / $1::bigint", &[&0_i64]).unwrap_err();
    assert_eq!((class(&fault), fault.to_string().as_str()), (Class::Item, "division by zero [SQLSTATE 22012]"));
    assert!(server.commit().is_err() && !server.is_open());
    assert_eq!(rows(&mut server), 0);
}

#[test]
fn a_commit_without_an_answer_is_asked_for() {
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::before(postgres.port);
    let mut server = Server::connect(&schema(postgres, proxy.port, "lost_answers")).unwrap();
    for (round, then) in [AtCommit::CutAfter, AtCommit::CutAtOnce, AtCommit::Pass].into_iter().enumerate() {
        add(&mut server);
        proxy.at_next_commit(then);
        server.commit().unwrap();
        assert_eq!((rows(&mut server), server.take_repeat()), (round as i64 + 1, false), "{then:?}");
    }
    assert_eq!(server.losses(), (2, false));
}

#[test]
fn a_commit_that_did_not_arrive_is_repeated() {
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::before(postgres.port);
    let mut server = Server::connect(&schema(postgres, proxy.port, "lost_commits")).unwrap();
    add(&mut server);
    proxy.at_next_commit(AtCommit::CutBefore);
    let fault = server.commit().unwrap_err();
    assert_eq!(class(&fault), Class::Busy, "{fault}");
    assert!(server.take_repeat() && !server.take_repeat());
    add(&mut server);
    server.commit().unwrap();
    assert_eq!(rows(&mut server), 1);
}

/// This happens to a machine that is suspended within a transaction.
#[test]
fn a_transaction_that_ended_because_its_client_said_nothing_is_repeated_once() {
    let Some((_, mut server)) = connected("silent") else { return };
    let end = "DO $$ BEGIN RAISE EXCEPTION 'idle-in-transaction timeout' USING ERRCODE = '25P03'; END $$";
    for repeats in [true, false, false] {
        add(&mut server);
        let fault = server.batch(end).unwrap_err();
        assert_eq!((class(&fault), server.take_repeat()), (Class::TooLong, repeats), "{fault}");
    }
    add(&mut server);
    server.commit().unwrap();
    assert_eq!(rows(&mut server), 1);
    add(&mut server);
    assert!(server.batch(end).is_err() && server.take_repeat());
}

#[test]
fn a_session_that_is_ended_within_a_transaction_leaves_nothing() {
    let Some((postgres, mut server)) = connected("ended") else { return };
    let mut other = postgres.other();
    add(&mut server);
    cut(&mut server, &mut other);
    let fault = server.execute("INSERT INTO t VALUES ($1)", &[&1_i64]).unwrap_err();
    assert_eq!(class(&fault), Class::Other, "{fault}");
    let fault = server.execute("INSERT INTO t VALUES ($1)", &[&1_i64]).unwrap_err();
    assert!(fault.to_string().contains("broke within the transaction"), "not on another connection: {fault}");
    assert!(server.commit().is_err());
    // And one that is ended before its commit.
    add(&mut server);
    cut(&mut server, &mut other);
    assert_eq!(class(&server.commit().unwrap_err()), Class::Busy);
    assert_eq!((rows(&mut server), server.losses()), (0, (2, false)));
}

#[test]
fn a_restart_of_the_server_is_survived() {
    let Some(mut postgres) = TestServer::start("") else { return };
    let mut server = Server::connect(&schema(&postgres, postgres.port, "restarted")).unwrap();
    let timeline = server.timeline().cloned();
    server.keep_to_timeline(timeline.clone());
    for mode in ["fast", "immediate"] {
        add(&mut server);
        server.commit().unwrap();
        postgres.down(mode);
        assert!(server.begin(Access::Write).is_err());
        assert!(server.begin(Access::Write).is_err());
        postgres.up();
    }
    add(&mut server);
    server.commit().unwrap();
    assert_eq!((rows(&mut server), server.losses()), (3, (2, false)));
    assert_eq!(server.timeline().cloned(), timeline);
    // The answer to a commit comes after the restart.
    add(&mut server);
    postgres.down("immediate");
    std::thread::scope(|threads| {
        let commit = threads.spawn(|| (server.commit(), rows(&mut server)));
        postgres.up();
        let (committed, rows) = commit.join().unwrap();
        assert_eq!((class(&committed.unwrap_err()), rows), (Class::Busy, 3));
    });
}

#[test]
fn a_number_that_is_given_again_after_a_crash_is_not_the_transaction() {
    let Some((_, mut server)) = connected("given_again") else { return };
    add(&mut server);
    let id: String = server.query("SELECT pg_current_xact_id()::text", &[]).unwrap()[0].get(0);
    let timeline = server.timeline().cloned().unwrap();
    server.commit().unwrap();
    let unproved = Number { id, timeline: timeline.clone(), since: "1".to_owned(), proof: None };
    let proof = |condition: &str| Some(Proof { table: "t", condition: condition.to_owned() });
    let [number, other] =
        ["t.n = 1", "t.n = 2"].map(|condition| Number { proof: proof(condition), ..unproved.clone() });
    let on = |since: &str| Session {
        timeline: timeline.clone(),
        since: since.to_owned(),
        backend: 0,
        pooled: false,
        is_standby: false,
    };
    let schema = server.address().quoted_schema();
    let mut ask = |number: &Number, since: &str| {
        let row = &server.query(&number.question(&on(since), &schema).unwrap(), &[]).unwrap()[0];
        number.outcome(&on(since), row.get(0), row.try_get(1).unwrap_or_else(|_| row.get::<_, i32>(1).into()))
    };
    let committed = |outcome: Result<Option<Outcome>, Fault>| matches!(outcome, Ok(Some(Outcome::Committed)));
    for number in [&unproved, &number, &other] {
        assert!(committed(ask(number, "1")));
    }
    // After a crash, or a reset of statistics, it may be another transaction.
    assert!(committed(ask(&number, "2")));
    for number in [&unproved, &other] {
        assert!(ask(number, "2").is_err_and(|fault| fault.is_lost()));
    }
    let promoted = Session { timeline: Timeline { id: "00000002".to_owned(), ..timeline.clone() }, ..on("1") };
    assert!(number.question(&promoted, "s").unwrap_err().is_lost());
    assert!(unproved.outcome(&on("1"), "forgotten", 0).is_err_and(|fault| fault.is_lost()));
    assert_eq!(number.outcome(&on("2"), "aborted", 0).unwrap(), Some(Outcome::Undone));
    assert_eq!(number.outcome(&on("2"), "in progress", 0).unwrap(), None);
}

#[test]
fn a_reset_of_statistics_is_not_taken_for_a_crash() {
    let Some(postgres) = TestServer::start("") else { return };
    let proxy = Proxy::before(postgres.port);
    let address = Address::parse(&postgres.url_at(proxy.port)).unwrap();
    let mut store = PostgresStore::open(&address, Missing::Create, Time::OfServer).unwrap();
    let now = Timestamp::from_millis(1_805_025_600_000);
    let task = NewTask::manual("one").handler("work").into_definition(now).unwrap();
    postgres.other().batch_execute("SELECT pg_stat_reset_shared('bgwriter')").unwrap();
    proxy.at_next_commit(AtCommit::CutAfter);
    let added = store.add(task, Existing::Refuse, now);
    assert_eq!(added.unwrap().change, Change::Created);
    assert_eq!(store.names().unwrap(), ["one"]);
}

#[test]
fn another_history_is_not_written_by_an_owner_of_the_former() {
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::before(postgres.port);
    let mut server = Server::connect(&schema(postgres, proxy.port, "promoted")).unwrap();
    let found = server.timeline().cloned().unwrap();
    assert_eq!((found.id.as_str(), found.system.is_empty()), ("00000001", false));
    server.keep_to_timeline(Some(Timeline { id: "00000002".to_owned(), ..found.clone() }));
    let fault = server.begin(Access::Write).unwrap_err();
    assert!(fault.is_lost() && fault.to_string().contains("continues timeline 1"), "{fault}");
    server.begin(Access::Read).unwrap();
    server.keep_to_timeline(Some(found));
    add(&mut server);
    server.commit().unwrap();
}

#[test]
fn a_schema_that_is_restored_has_its_own_lock() {
    let Some((postgres, mut server)) = connected("restored") else { return };
    add(&mut server);
    server.commit().unwrap();
    postgres
        .other()
        .batch_execute("DROP SCHEMA restored CASCADE; CREATE SCHEMA restored; CREATE TABLE restored.t (n bigint)")
        .unwrap();
    add(&mut server);
    let held = "SELECT count(*) FROM pg_locks l JOIN pg_namespace n ON n.oid = l.objid WHERE n.nspname = 'restored' AND l.granted";
    assert_eq!(server.query(held, &[]).unwrap()[0].get::<_, i64>(0), 1);
    server.commit().unwrap();
}

#[test]
fn statements_are_prepared_again() {
    let Some((postgres, mut server)) = connected("prepared") else { return };
    let mut other = postgres.other();
    server.query("SELECT * FROM t", &[]).unwrap();
    other.batch_execute("ALTER TABLE prepared.t ADD m text").unwrap();
    server.query("SELECT * FROM t", &[]).unwrap();
    server.batch("DEALLOCATE ALL").unwrap();
    server.query("SELECT * FROM t", &[]).unwrap();
    // Within a transaction, the whole is repeated.
    server.batch("DEALLOCATE ALL").unwrap();
    server.begin(Access::Write).unwrap();
    assert_eq!(class(&server.query("SELECT * FROM t", &[]).unwrap_err()), Class::Busy);
    assert!(server.commit().is_err() && server.take_repeat());
    server.begin(Access::Write).unwrap();
    server.query("SELECT * FROM t", &[]).unwrap();
    server.commit().unwrap();
}

#[test]
fn each_error_of_the_server_has_its_class() {
    let Some((postgres, mut server)) = connected("classes") else { return };
    postgres
        .other()
        .batch_execute(
            "CREATE TABLE classes.k (id bigint CONSTRAINT task_runs_pkey PRIMARY KEY, u bigint UNIQUE, j jsonb, c bigint CHECK (c > 0));
             INSERT INTO classes.k VALUES (1, 1);
             CREATE TABLE classes.audit (id bigint PRIMARY KEY);
             INSERT INTO classes.audit VALUES (1);
             CREATE SEQUENCE classes.short MAXVALUE 2; SELECT nextval('classes.short'), nextval('classes.short')",
        )
        .unwrap();
    for (statement, expected) in [
        ("INSERT INTO k VALUES (1, 2)", Class::Id),
        ("INSERT INTO k VALUES (2, 1)", Class::Item),
        ("INSERT INTO audit VALUES (1)", Class::Item),
        ("INSERT INTO k VALUES (2, 2, NULL, 0)", Class::Item),
        (r#"INSERT INTO k VALUES (2, 2, '"\u0000"')"#, Class::Item),
        ("SELECT nextval('short')", Class::Space),
        ("SELECT * FROM missing", Class::Tables),
        ("SELECT missing FROM k", Class::Tables),
        ("SELECT * FROM missing.k", Class::Tables),
        ("SELECT missing()", Class::Statement),
        ("SELEC", Class::Statement),
        ("SET statement_timeout = 1; SELECT pg_sleep(9)", Class::TooLong),
        ("RESET statement_timeout; LOCK TABLE k; DO $$ BEGIN RAISE EXCEPTION 'no'; END $$", Class::Item),
        ("SET ROLE pg_monitor; SELECT * FROM classes.k", Class::Other),
    ] {
        let fault = server.batch(statement).unwrap_err();
        assert_eq!(class(&fault), expected, "{statement}: {fault}");
        assert!(fault.to_string().contains("[SQLSTATE ") && !fault.to_string().contains("INSERT"), "{fault}");
    }
    let refused = server.batch("SET ROLE pg_monitor; SELECT * FROM classes.k").unwrap_err().to_string();
    assert!(refused.contains("42501]; grant it to the role of the address"), "{refused}");
    let ended = server.batch("SELECT nextval('short')").unwrap_err().to_string();
    assert!(ended.contains("2200H]; the sequence has given its last number") && ended.contains("not full"), "{ended}");
}

#[test]
fn a_server_that_may_lose_commits_is_refused_unless_allowed() {
    let Some(postgres) = shared() else { return };
    let text = format!("{}?options=-c%20synchronous_commit%3Doff", postgres.url());
    let address = Address::parse(&text).unwrap();
    let fault = Server::connect(&address).unwrap_err();
    assert!(fault.to_string().contains("synchronous_commit is off"), "{fault}");
    Server::connect_for(&address, Durability::MayRepeatAfterPowerLoss).unwrap();
}

#[test]
fn an_address_without_a_server_is_named_with_its_cause() {
    let Some(postgres) = shared() else { return };
    let address = Address::parse("postgres://me@127.0.0.1:1/db").unwrap();
    let fault = Server::connect(&address).unwrap_err();
    assert!(fault.to_string().starts_with("127.0.0.1:1: error connecting to server: "), "{fault}");
    let address =
        Address::parse(&postgres.url().replace("/postgres", "/none").replace("//none", "//postgres")).unwrap();
    let fault = Server::connect(&address).unwrap_err();
    assert!(fault.to_string().contains("[SQLSTATE 3D000]; create the database"), "{fault}");
    // The first host that serves is taken.
    let both = format!("postgres://postgres@127.0.0.1:1,127.0.0.1:{}/postgres", postgres.port);
    Server::connect(&Address::parse(&both).unwrap()).unwrap();
    let socket = postgres.home().display().to_string().replace('/', "%2F");
    let socket = format!("postgres://postgres@{socket}:{}/postgres?sslmode=require", postgres.port);
    Server::connect(&Address::parse(&socket).unwrap()).unwrap();
}

#[test]
fn a_role_without_privileges_of_its_own_suffices() {
    let Some(postgres) = shared() else { return };
    postgres.other().batch_execute("CREATE ROLE worker LOGIN; CREATE SCHEMA AUTHORIZATION worker").unwrap();
    let proxy = Proxy::before(postgres.port);
    let text = postgres.url_at(proxy.port).replace("postgres@", "worker@");
    let mut server = Server::connect(&Address::parse(&format!("{text}?schema=worker")).unwrap()).unwrap();
    server.batch("CREATE TABLE t (n bigint)").unwrap();
    add(&mut server);
    proxy.at_next_commit(AtCommit::CutAfter);
    server.commit().unwrap();
    let mut frozen = Server::connect(server.address()).unwrap();
    frozen.batch("SET idle_in_transaction_session_timeout = 0").unwrap();
    frozen.begin(Access::Write).unwrap();
    add(&mut server);
    server.commit().unwrap();
    assert_eq!((rows(&mut server), frozen.commit().is_err()), (2, true));
    // What a crash makes of it.
    let number = "SELECT split_part(next_xid, ':', 2)::bigint FROM pg_control_checkpoint()";
    assert!(server.query(number, &[]).unwrap()[0].get::<_, i64>(0) > 0);
}

#[test]
fn a_query_on_a_connection_that_has_broken_is_repeated_once() {
    let Some((postgres, mut server)) = connected("broken") else { return };
    let mut other = postgres.other();
    cut(&mut server, &mut other);
    assert_eq!((rows(&mut server), server.losses()), (0, (1, false)));
    // What writes may have been done.
    cut(&mut server, &mut other);
    assert!(server.execute("INSERT INTO t VALUES ($1)", &[&1_i64]).is_err());
    assert_eq!((rows(&mut server), server.losses()), (0, (2, false)));
}

#[test]
fn tables_are_created_in_one_transaction_also_through_a_pooler() {
    let Some(postgres) = TestServer::start("") else { return };
    let Some(pooler) = pooler(&postgres) else { return };
    let mut other = postgres.other();
    other
        .batch_execute(
            "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
             CREATE EVENT TRIGGER refuse ON ddl_command_end WHEN TAG IN ('CREATE VIEW') EXECUTE FUNCTION refuse()",
        )
        .unwrap();
    let address = Address::parse(&postgres.url_at(pooler.port)).unwrap();
    let open = || PostgresStore::open(&address, Missing::Create, Time::OfServer).map(|_| ());
    assert!(open().is_err());
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'duly'";
    assert_eq!(other.query(schemas, &[]).unwrap()[0].get::<_, i64>(0), 0, "nothing is left");
    other.batch_execute("DROP EVENT TRIGGER refuse").unwrap();
    open().unwrap();
}

#[test]
fn no_pooler_serves_a_scheduler_and_nothing_is_created_behind_one() {
    let Some(postgres) = shared() else { return };
    for mode in ["session", "transaction", "statement"] {
        let pooler = Pooler::start_in(postgres, mode);
        if skipped(pooler.is_none(), "pgbouncer") {
            return;
        }
        let Some(pooler) = pooler else { return };
        let text = format!("{}?schema=behind_{mode}", postgres.url_at(pooler.port));
        let refused = crate::Scheduler::builder(&text).start().map(drop).unwrap_err();
        assert!(matches!(refused, Error::UnusableDatabase { .. }), "{mode}: {refused:?}");
        assert!(refused.to_string().contains("in whatever mode"), "{mode}: {refused}");
        let created = "SELECT count(*) FROM pg_namespace WHERE nspname = $1";
        let created: i64 = postgres.other().query_one(created, &[&format!("behind_{mode}")]).unwrap().get(0);
        assert_eq!(created, 0, "{mode}");
        // Transactions need a server of their own until their end.
        let client = crate::Client::open(&text).and_then(|client| client.add(NewTask::manual("job").handler("work")));
        assert_eq!(client.is_ok(), mode != "statement", "{mode}: {client:?}");
    }
}

#[test]
fn a_pooler_serves_clients_and_no_scheduler() {
    let Some(postgres) = shared() else { return };
    let Some(pooler) = pooler(postgres) else { return };
    let address = schema(postgres, pooler.port, "pooled");
    let mut clients: Vec<Server> = (0..3).map(|_| Server::connect(&address).unwrap()).collect();
    for round in 1..=3 {
        for client in &mut clients {
            add(client);
            // Within a transaction that holds the lock of the schema.
            assert_eq!(setting(client, "lock_timeout"), "500ms");
            client.commit().unwrap();
        }
        assert_eq!(rows(&mut clients[0]), round * 3);
    }
    let fault = clients[0].require_session().unwrap_err();
    assert!(fault.to_string().contains("a scheduler needs a session of its own"), "{fault}");
    let mut direct = Server::connect(&Address::parse(&format!("{}?schema=pooled", postgres.url())).unwrap()).unwrap();
    direct.require_session().unwrap();
    assert_eq!(rows(&mut direct), 9);
}

#[test]
fn an_owner_that_registered_before_a_promotion_extends_no_lease_after_it() {
    let Some(mut postgres) = TestServer::start("") else { return };
    let address = schema(&postgres, postgres.port, "early");
    let mut store = PostgresStore::open(&address, Missing::Create, Time::OfServer).unwrap();
    let registration = Registration {
        owner: "a-1".to_owned(),
        host: "host".to_owned(),
        workers: 1,
        lease: Duration::from_secs(60),
        zone_data: "2026a".to_owned(),
        problems: None,
    };
    let register = |store: &mut PostgresStore, owner: &str| {
        let registration = Registration { owner: owner.to_owned(), ..registration.clone() };
        store.register(&registration, fastrand::Rng::with_seed(1), Timestamp::MIN).unwrap();
        store.take_session().unwrap()
    };
    let mut session = register(&mut store, "a-1");
    // Its first heartbeat is sent after a standby was promoted in place of the server.
    postgres.down("fast");
    std::fs::write(postgres.home().join("data/standby.signal"), "").unwrap();
    postgres.up();
    postgres.other().batch_execute("SELECT pg_promote()").unwrap();
    let beat = (0..100).find_map(|_| session.heartbeat().ok()).unwrap();
    assert!(beat.promoted && !beat.extended, "{beat:?}");
    let beat = register(&mut store, "a-2").heartbeat().unwrap();
    assert!(beat.extended && !beat.promoted, "{beat:?}");
}
