//! A primary and its synchronous standby, in the network of the hosts. What a commit has confirmed is on both.

use std::path::PathBuf;

use postgres::{Client, NoTls};

use crate::fixtures::eventually;
use crate::host_faults::network::Network;
use crate::postgres::server::{Guard, folder_of, start_script};

/// The ports of the two servers, which change their roles at each promotion.
pub(crate) const PORTS: [u16; 2] = [5430, 5431];

/// Starts both, prints their folder, and obeys the lines of its input until that ends: `restart` crashes the primary and starts it
/// again; `detach` ends the replication; `promote` stops the primary as a crash does, promotes the standby, and makes the other one its standby.
const SCRIPT: &str = r#"
    umask 077
    folder=$(mktemp -d /tmp/duly-pg.XXXXXX) || exit 1
    bin=$1 log=$folder/log first=5430 second=5431
    serve() {
        "$bin/pg_ctl" -D "$folder/$1" -w -t 60 -l "$log" start >>"$log" 2>&1 </dev/null -o "-p $1 -k $folder -c listen_addresses='*' \
            -c fsync=off -c full_page_writes=on -c wal_log_hints=on -c max_connections=200 -c max_locks_per_transaction=256"
    }
    sql() { "$bin/psql" -X -q -h "$folder" -p "$1" -U postgres -c "$2" >>"$log" 2>&1 </dev/null; }
    follow() {
        rm -rf "$folder/$2"
        "$bin/pg_basebackup" -h "$folder" -p "$1" -U postgres -D "$folder/$2" -R -X stream -c fast >>"$log" 2>&1 </dev/null &&
            serve "$2" && sql "$1" "ALTER SYSTEM SET synchronous_standby_names = '*'" && sql "$1" "SELECT pg_reload_conf()"
    }
    if "$bin/initdb" -D "$folder/$first" -U postgres -A trust -E UTF8 --locale=C -N >"$log" 2>&1 </dev/null &&
        echo 'host all all 10.77.0.0/16 trust' >>"$folder/$first/pg_hba.conf" && serve $first && follow $first $second
    then
        echo "$folder"
    else
        echo "failed: $(tail -n 5 "$log")"
    fi
    while read -r line; do
        case $line in
        restart) "$bin/pg_ctl" -D "$folder/$first" -m immediate stop >>"$log" 2>&1; serve $first; echo "done: $?" ;;
        detach)
            sql $first "ALTER SYSTEM RESET synchronous_standby_names" && sql $first "SELECT pg_reload_conf()" &&
                sql $second "ALTER SYSTEM SET primary_conninfo = ''" && sql $second "SELECT pg_reload_conf()"
            code=$?
            while [ "$("$bin/psql" -XAtq -h "$folder" -p $first -U postgres -c 'SELECT count(*) FROM pg_stat_replication')" != 0 ]; do :; done
            echo "done: $code" ;;
        promote)
            "$bin/pg_ctl" -D "$folder/$first" -m immediate stop >>"$log" 2>&1
            echo "synchronous_standby_names = ''" >>"$folder/$second/postgresql.auto.conf"
            "$bin/pg_ctl" -D "$folder/$second" -w -t 60 promote >>"$log" 2>&1 </dev/null &&
                { old=$first first=$second second=$old; follow $first $second; }
            echo "done: $?" ;;
        esac
    done
    for port in $first $second; do "$bin/pg_ctl" -D "$folder/$port" -m immediate stop >/dev/null 2>&1; done
    rm -rf "$folder"
"#;

pub(crate) struct Cluster {
    folder: PathBuf,
    guard: Guard,
    session: Option<Client>,
}

impl Cluster {
    /// `None` where PostgreSQL is not installed.
    pub(crate) fn start(network: &Network) -> Option<Cluster> {
        let programs = folder_of(&["initdb", "pg_ctl", "pg_basebackup", "psql"])?;
        let (folder, guard) = start_script(network.at_server("sh"), &programs, SCRIPT, "")?;
        Some(Cluster { folder, guard, session: None })
    }

    /// The address for this process, by the sockets.
    pub(crate) fn address(&self) -> String {
        let folder = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{folder}:{},{folder}:{}/postgres", PORTS[0], PORTS[1])
    }

    /// Crashes the primary, and starts it again.
    pub(crate) fn restart(&mut self) {
        self.order("restart");
    }

    /// Ends the replication: the standby gets nothing more.
    pub(crate) fn detach(&mut self) {
        self.order("detach");
    }

    /// Crashes the primary, and promotes its standby. Returns when it has a standby again.
    pub(crate) fn promote(&mut self) {
        self.order("promote");
    }

    fn order(&mut self, what: &str) {
        let answer = self.guard.order(what);
        let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let end: Vec<&str> = log.lines().rev().take(12).collect();
        assert_eq!(answer, "done: 0\n", "{what}: {end:#?}");
    }

    /// Asks the primary, on a session that is opened again if it was lost. The first column of each row, as text.
    pub(crate) fn ask(&mut self, query: &str) -> Vec<String> {
        let mut answer = None;
        eventually("the primary answers", || {
            answer = self.try_to_ask(query).ok();
            answer.is_some()
        });
        answer.expect("an answer")
    }

    fn try_to_ask(&mut self, query: &str) -> Result<Vec<String>, postgres::Error> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => Client::connect(&format!("{}?target_session_attrs=read-write", self.address()), NoTls)?,
        };
        let rows = session.query(query, &[])?;
        self.session = Some(session);
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}
