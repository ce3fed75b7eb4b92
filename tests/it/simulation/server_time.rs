//! The time of a server in the simulation. Functions of PostgreSQL that tell the time are replaced before the tables are made: they read
//! a file. So the statements of duly are those of a release, and no session is needed to set the time.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use duly::Timestamp;

use crate::fixtures::on_server::session;

/// What the server shows of its own sessions stays in the time of the machine, and so does what is compared with that: after as many
/// seconds as the second file says.
const FUNCTIONS: &str = "
    ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO clock_timestamp_of_machine;
    ALTER FUNCTION pg_catalog.statement_timestamp() RENAME TO statement_timestamp_of_machine;
    CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
        SELECT CASE WHEN strpos(current_query(), 'pg_stat_activity') > 0
                    THEN clock_timestamp_of_machine() + pg_read_file('FOLDER/passed')::bigint * interval '1 s'
                    ELSE to_timestamp(pg_read_file('FOLDER/now')::bigint / 1000.0) END $$;
    CREATE FUNCTION pg_catalog.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS $$
        SELECT to_timestamp(pg_read_file('FOLDER/now')::bigint / 1000.0) $$";

#[derive(Debug)]
pub(crate) struct ServerTime {
    now: File,
    passed: File,
}

impl ServerTime {
    /// Replaces the time of a server that has no tables yet. `folder`: that of the server.
    pub(crate) fn of(address: &str, folder: &Path, now: Timestamp) -> Self {
        let file = |name| {
            let file = File::create(folder.join(name)).expect("a file");
            // The server runs as another user.
            file.set_permissions(Permissions::from_mode(0o644)).expect("its permissions");
            file
        };
        let time = ServerTime { now: file("now"), passed: file("passed") };
        time.set(now);
        time.pass_for_sessions(0);
        let functions = FUNCTIONS.replace("FOLDER", &folder.display().to_string());
        session(address).batch_execute(&functions).expect("the functions");
        time
    }

    /// Sets the time of day.
    pub(crate) fn set(&self, now: Timestamp) {
        // Always as many digits: no reader sees a part of it.
        self.now.write_all_at(format!("{:013}", now.as_millis()).as_bytes(), 0).expect("a time");
    }

    /// Lets what the server shows of its sessions be older by so many seconds, as if they had done nothing for as long.
    pub(crate) fn pass_for_sessions(&self, seconds: u32) {
        self.passed.write_all_at(format!("{seconds:03}").as_bytes(), 0).expect("a time");
    }
}
