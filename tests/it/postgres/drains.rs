//! Hosts that are killed in a drain of short runs: what each had claimed is worth 200 ms of work beside one run of each worker. No more
//! than that runs again, and an attempt that never began counts only if its row says that it did, since a worker was idle.
//! `DULY_ROUNDS` sets the number of hosts.
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use duly::{Client, NewTask, RetryPolicy, Run, RunFilter, RunStatus};
use serde_json::json;

use crate::fixtures::{end, eventually_counts, number, overdue};
use crate::postgres::database;

const DULY: &str = env!("CARGO_BIN_EXE_duly");
const WORKERS: usize = 8;
const ROUNDS: usize = 3;
/// How many commands of a host have ended when it is killed.
const ENDED: usize = 40;

struct Drain {
    database: String,
    folder: tempfile::TempDir,
    client: Client,
}

impl Drain {
    /// A host of its own: others cannot read its lock files.
    fn host(&self, number: usize) -> Child {
        let mut host = Command::new(DULY);
        host.args(["--db", &self.database, "run", "--poll", "200ms", "--lease", "30s", "--drain", "1s", "--workers"]);
        host.arg(WORKERS.to_string()).env("DULY_STATE_DIR", self.folder.path().join(format!("host-{number}")));
        host.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a host")
    }

    fn lines(&self, word: &str) -> Vec<String> {
        let journal = std::fs::read_to_string(self.folder.path().join("journal")).unwrap_or_default();
        journal.lines().filter_map(|line| line.strip_prefix(word)).map(str::to_owned).collect()
    }

    fn runs(&self) -> Vec<Run> {
        self.client.runs(&RunFilter::newest(1_000_000)).expect("the runs")
    }
}

fn job(folder: &Path, number: usize, millis: u64) -> NewTask {
    let line = format!(
        "echo \"began $DULY_RUN_ID\" >>{0}/journal; sleep 0.{millis:03}; echo \"ended $DULY_RUN_ID\" >>{0}/journal",
        folder.display()
    );
    let retry =
        RetryPolicy { max_attempts: 1_000, backoff: Duration::from_millis(20), max_backoff: Duration::from_millis(20) };
    let job = overdue(&format!("job-{number}")).handler("command");
    job.payload(json!({ "argv": ["sh", "-c", line] })).retry(retry)
}

/// Kills hosts in a drain of commands that take this long. `most`: what each of them may have claimed.
fn killed_in_a_drain(millis: u64, most: usize) -> Option<()> {
    let (database, folder, hosts) = (database()?, tempfile::tempdir().unwrap(), number("DULY_ROUNDS", ROUNDS));
    let client = Client::open(&database).unwrap();
    let jobs = hosts * (ENDED + 2 * most);
    client.add_all((0..jobs).map(|number| job(folder.path(), number, millis))).unwrap();
    let drain = Drain { database, folder, client };
    let (mut claimed, mut announced) = (BTreeSet::new(), 0);
    for number in 0..hosts {
        let before = drain.lines("ended ").len();
        let mut host = drain.host(number);
        eventually_counts("commands end", ENDED, || drain.lines("ended ").len() - before);
        end(&mut host);
        let is_new = |run: &Run| run.status == RunStatus::Running && !claimed.contains(&run.id);
        let of_host: Vec<Run> = drain.runs().into_iter().filter(is_new).collect();
        let (count, began) = (of_host.len(), of_host.iter().filter(|run| run.started_at.is_some()).count());
        println!("{millis} ms: host {number} had claimed {count}; {began} rows say when the attempt began");
        assert!(count <= most, "{millis} ms: {count} claims, expected at most {most}");
        claimed.extend(of_host.iter().map(|run| run.id));
        announced += began;
    }
    let mut last = drain.host(hosts);
    eventually_counts("runs succeed", jobs, || drain.runs().iter().filter(|run| run.status.is_final()).count());
    end(&mut last);

    let (mut repeated, mut burned) = (0, 0);
    let mut begun = BTreeMap::<i64, u32>::new();
    for run in drain.lines("began ") {
        *begun.entry(run.parse().expect("a run")).or_default() += 1;
    }
    for run in drain.runs() {
        let (begun, counted) = (begun.remove(&run.id).unwrap_or_default(), run.attempt - run.forgiven);
        assert_eq!(run.status, RunStatus::Succeeded, "{run:?}");
        assert!(begun <= counted + 1, "at most one attempt more than those that count: {begun} began, {run:?}");
        repeated += begun as usize - 1;
        burned += counted.saturating_sub(begun) as usize;
    }
    let lost = claimed.len();
    println!("{millis} ms: {repeated} of {lost} repeated, {burned} burned");
    assert!(repeated <= lost, "{millis} ms: {repeated} repeated, {lost} were claimed");
    assert!(burned <= announced, "{millis} ms: {burned} attempts count and never began, {announced} were announced");
    Some(())
}

#[test]
#[ignore = "takes long: .ci/nightly runs it, and .ci/run if a store changed"]
fn hosts_that_are_killed_in_a_drain_repeat_and_burn_no_more_than_documented() {
    std::thread::scope(|scope| {
        // As many as end in 200 ms.
        for (millis, most) in [(20, WORKERS + 80), (200, WORKERS + 8)] {
            scope.spawn(move || killed_in_a_drain(millis, most));
        }
    });
}
