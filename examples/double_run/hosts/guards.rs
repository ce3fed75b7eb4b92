//! The guards, each as it is usually written. `now()` is the bench's clock of the server; `:clock` is the host's.

use duly::Timestamp;

use super::Result;
use super::day::time_of;
use super::server::Session;

/// A host at one moment of the day.
pub(crate) struct Host<'a> {
    pub(crate) name: char,
    /// The time by its own clock.
    pub(crate) clock: Timestamp,
    pub(crate) session: &'a mut Session,
}

impl Host<'_> {
    /// Executes statements with the values of this host. Returns the first value of the last row.
    fn ask(&mut self, sql: &str) -> Result<Option<String>> {
        let clock = format!("timestamptz '{}'", self.clock);
        self.session.ask(&sql.replace(":clock", &clock).replace(":host", &format!("'{}'", self.name)))
    }

    fn execute(&mut self, sql: &str) -> Result<()> {
        self.ask(sql).map(drop)
    }

    fn is_true(&mut self, sql: &str) -> Result<bool> {
        Ok(self.ask(sql)?.as_deref() == Some("t"))
    }
}

pub(crate) trait Guard: Sync {
    fn name(&self) -> &'static str;

    fn tables(&self) -> &'static str {
        ""
    }

    /// Called by cron: when an occurrence is due by the clock of the host. Returns whether the work begins.
    fn tick(&self, host: &mut Host<'_>, occurrence: usize) -> Result<bool>;

    /// Called every minute on a host that is not working. Returns the occurrence whose work begins.
    fn poll(&self, _host: &mut Host<'_>) -> Result<Option<usize>> {
        Ok(None)
    }

    /// Called every minute during the work.
    fn beat(&self, _host: &mut Host<'_>, _occurrence: usize) -> Result<()> {
        Ok(())
    }

    /// Called after the work.
    fn done(&self, _host: &mut Host<'_>, _occurrence: usize) -> Result<()> {
        Ok(())
    }

    /// Returns whether a transaction is open during the work.
    fn holds_transaction(&self) -> bool {
        false
    }
}

pub(crate) struct Unguarded;

impl Guard for Unguarded {
    fn name(&self) -> &'static str {
        "cron, no guard"
    }

    fn tick(&self, _host: &mut Host<'_>, _occurrence: usize) -> Result<bool> {
        Ok(true)
    }
}

/// A row with the time until which the job is locked, by the clock of the host: `const now = new Date()`.
pub(crate) struct GuardTable;

impl Guard for GuardTable {
    fn name(&self) -> &'static str {
        "guard table, locked_until"
    }

    fn tables(&self) -> &'static str {
        "CREATE TABLE cron_jobs (name text PRIMARY KEY, last_run_at timestamptz, locked_until timestamptz);
         INSERT INTO cron_jobs (name) VALUES ('report')"
    }

    fn tick(&self, host: &mut Host<'_>, _occurrence: usize) -> Result<bool> {
        const IS_LOCKED: &str = "BEGIN; SELECT locked_until > :clock FROM cron_jobs WHERE name = 'report' FOR UPDATE";
        const LOCK: &str = "
            UPDATE cron_jobs SET last_run_at = :clock, locked_until = :clock + interval '5 minutes' WHERE name = 'report';
            COMMIT";
        if host.is_true(IS_LOCKED)? {
            host.ask("COMMIT")?;
            return Ok(false);
        }
        host.ask(LOCK)?;
        Ok(true)
    }

    fn done(&self, host: &mut Host<'_>, _occurrence: usize) -> Result<()> {
        host.execute("UPDATE cron_jobs SET locked_until = NULL WHERE name = 'report'")
    }
}

/// An advisory lock of the session, as long as the work takes.
pub(crate) struct SessionLock;

impl Guard for SessionLock {
    fn name(&self) -> &'static str {
        "advisory lock, session"
    }

    fn tick(&self, host: &mut Host<'_>, _occurrence: usize) -> Result<bool> {
        host.is_true("SELECT pg_try_advisory_lock(hashtext('report'))")
    }

    fn done(&self, host: &mut Host<'_>, _occurrence: usize) -> Result<()> {
        host.execute("SELECT pg_advisory_unlock(hashtext('report'))")
    }
}

/// An advisory lock of a transaction in which the work is done.
pub(crate) struct TransactionLock;

impl Guard for TransactionLock {
    fn name(&self) -> &'static str {
        "advisory lock, transaction"
    }

    fn tables(&self) -> &'static str {
        "CREATE TABLE reports (at timestamptz)"
    }

    fn tick(&self, host: &mut Host<'_>, _occurrence: usize) -> Result<bool> {
        let begins = host.is_true("BEGIN; SELECT pg_try_advisory_xact_lock(hashtext('report'))")?;
        if !begins {
            host.ask("ROLLBACK")?;
        }
        Ok(begins)
    }

    fn done(&self, host: &mut Host<'_>, _occurrence: usize) -> Result<()> {
        host.execute("INSERT INTO reports (at) VALUES (:clock); COMMIT")
    }

    fn holds_transaction(&self) -> bool {
        true
    }
}

/// A table of jobs: cron on each host adds the job of the hour, and a worker on each host claims what is due.
pub(crate) struct Queue {
    pub(crate) name: &'static str,
    /// The jobs that may be claimed, if no lease holds them.
    pub(crate) claimable: &'static str,
    pub(crate) heartbeat: bool,
}

impl Queue {
    /// As it is often published: only a queued job is claimed.
    pub(crate) const PUBLISHED: Queue =
        Queue { name: "SKIP LOCKED, lease", claimable: "status = 'queued'", heartbeat: false };
    /// As it should be: also a running job whose lease has expired.
    pub(crate) const RECLAIMING: Queue =
        Queue { name: ".. running rows, too", claimable: "status IN ('queued', 'running')", heartbeat: false };
    pub(crate) const BEATING: Queue = Queue { name: ".. and a heartbeat", heartbeat: true, ..Queue::RECLAIMING };
}

impl Guard for Queue {
    fn name(&self) -> &'static str {
        self.name
    }

    fn tables(&self) -> &'static str {
        "CREATE TABLE jobs (id bigserial PRIMARY KEY, key text UNIQUE, occurrence int, run_at timestamptz NOT NULL,
             status text NOT NULL DEFAULT 'queued', locked_by text, locked_until timestamptz)"
    }

    fn tick(&self, host: &mut Host<'_>, occurrence: usize) -> Result<bool> {
        let hour = time_of(occurrence);
        host.ask(&format!(
            "INSERT INTO jobs (key, occurrence, run_at) VALUES ('report:{hour}', {occurrence}, '{hour}') ON CONFLICT DO NOTHING"
        ))?;
        Ok(false)
    }

    fn poll(&self, host: &mut Host<'_>) -> Result<Option<usize>> {
        const CLAIM: &str = "
            WITH next AS (
                SELECT id FROM jobs
                 WHERE :claimable AND run_at <= now() AND (locked_until IS NULL OR locked_until <= now())
                 ORDER BY run_at LIMIT 1 FOR UPDATE SKIP LOCKED)
            UPDATE jobs SET status = 'running', locked_by = :host, locked_until = now() + interval '5 minutes'
              FROM next WHERE jobs.id = next.id RETURNING occurrence";
        let claimed = host.ask(&CLAIM.replace(":claimable", self.claimable))?;
        Ok(claimed.map(|occurrence| occurrence.parse()).transpose()?)
    }

    fn beat(&self, host: &mut Host<'_>, occurrence: usize) -> Result<()> {
        const BEAT: &str = "
            UPDATE jobs SET locked_until = now() + interval '5 minutes' WHERE locked_by = :host AND occurrence = ";
        if self.heartbeat { host.execute(&format!("{BEAT}{occurrence}")) } else { Ok(()) }
    }

    fn done(&self, host: &mut Host<'_>, occurrence: usize) -> Result<()> {
        host.execute(&format!("UPDATE jobs SET status = 'done' WHERE occurrence = {occurrence}"))
    }
}
