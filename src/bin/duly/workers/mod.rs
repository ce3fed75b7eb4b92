//! Workers: long-lived programs whose functions are handlers. Each is started, gets runs over its standard input, and reports over its
//! standard output, as docs/workers.md describes.

mod attempts;
mod bell;
mod fleet;
mod lines;
mod log_lines;
pub(crate) mod options;
mod outbox;
mod process;
mod protocol;
mod supervisor;
pub(crate) mod times;
mod worker;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use duly::executor::Executor;
use duly::{Clock, SystemClock, Timestamp};

use crate::workers::fleet::{Common, Fleet};
use crate::workers::options::MAX_COPIES;
pub(crate) use crate::workers::options::WorkerOptions;
pub(crate) use crate::workers::process::Place;
use crate::workers::supervisor::Order;
pub(crate) use crate::workers::supervisor::application::lock_input;
use crate::workers::times::Times;

/// Time for which a drop waits for the end of the workers: a process that SIGKILL does not end must not keep the program running for
/// ever.
const DROP_LIMIT: Duration = Duration::from_secs(20);
const DROP_POLL: Duration = Duration::from_millis(5);

/// All workers of a scheduler. Dropping it ends them.
pub(crate) struct Workers {
    fleets: Vec<Arc<Fleet>>,
    threads: Vec<JoinHandle<()>>,
    common: Arc<Common>,
}

impl Workers {
    /// Prepares the workers of a database. `on_change`: called when one is ready for the first time, or given up.
    ///
    /// # Errors
    /// If two have the same name, or one has too many copies.
    pub(crate) fn new(
        options: Vec<WorkerOptions>,
        times: Times,
        place: Place,
        on_change: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let mut names: Vec<&str> = options.iter().map(|options| options.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|two| two[0] == two[1]) {
            return Err(format!("two workers have the name {:?}", twice[0]));
        }
        if let Some(options) = options.iter().find(|options| !(1..=MAX_COPIES).contains(&options.copies)) {
            let (name, copies) = (&options.name, options.copies);
            return Err(format!("worker {name:?}: copies: expected 1 to {MAX_COPIES}, found {copies}"));
        }
        let common = Arc::<Common>::default();
        let on_change: Arc<dyn Fn() + Send + Sync> = Arc::new(on_change);
        let fleet = |options| Arc::new(Fleet::new(options, times, &place, common.clone(), &on_change));
        Ok(Workers { fleets: options.into_iter().map(fleet).collect(), threads: Vec::new(), common })
    }

    /// Returns what runs their attempts, for the scheduler.
    pub(crate) fn executors(&self) -> impl Iterator<Item = Arc<dyn Executor>> {
        self.fleets.iter().map(|fleet| fleet.clone() as Arc<dyn Executor>)
    }

    /// Starts them. The scheduler must have started.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        for fleet in &self.fleets {
            self.threads.extend(fleet.start()?);
        }
        Ok(())
    }

    /// Whether there are any.
    pub(crate) fn are_any(&self) -> bool {
        !self.fleets.is_empty()
    }

    /// Returns how many attempts they have.
    pub(crate) fn running(&self) -> usize {
        self.fleets.iter().map(|fleet| fleet.running()).sum()
    }

    /// Whether each has said hello, or its first start has failed: their handlers are known.
    pub(crate) fn are_settled(&self) -> bool {
        self.fleets.iter().all(|fleet| fleet.is_settled())
    }

    /// Returns which were given up, and why.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.fleets.iter().flat_map(|fleet| fleet.problems()).collect()
    }

    /// Returns why the application that started this program is served no more: it has ended, or, an error, could not be served.
    pub(crate) fn ended_application(&self) -> Option<Result<String, String>> {
        self.fleets.iter().find_map(|fleet| fleet.ended())
    }

    /// Whether the application that started this program serves handlers.
    pub(crate) fn have_application(&self) -> bool {
        self.fleets.iter().any(|fleet| fleet.is_application())
    }

    /// Returns the runs whose attempts are left to an application: nothing is heard of them any more.
    pub(crate) fn left(&self) -> BTreeSet<i64> {
        self.fleets.iter().flat_map(|fleet| fleet.left()).collect()
    }

    /// Whether an attempt was ended because the scheduler stopped.
    pub(crate) fn was_cut_short(&self) -> bool {
        self.common.was_cut_short()
    }

    /// Lets them finish their runs, and end. At the deadline they are ended.
    pub(crate) fn drain(&self, deadline: Timestamp) {
        self.fleets.iter().for_each(|fleet| fleet.order(Order::Drain(deadline)));
    }

    /// Begins to end them.
    pub(crate) fn end(&self) {
        self.fleets.iter().for_each(|fleet| fleet.order(Order::End));
    }

    /// Whether all have ended.
    pub(crate) fn have_ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.end();
        let clock = SystemClock::new();
        let until = clock.now().monotonic + DROP_LIMIT;
        while !self.have_ended() && clock.now().monotonic < until {
            thread::sleep(DROP_POLL);
        }
        if !self.have_ended() {
            log::error!("a worker could not be ended, not even by SIGKILL; the runs that it has wait until it is gone");
        }
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use duly::{NewTask, Scheduler};

    use crate::exec::environment::Environment;
    use crate::exec::guard::Guard;
    use crate::waits::{eventually, joined};
    use crate::workers::options::WorkerOptions;
    use crate::workers::times::Times;
    use crate::workers::{Place, Workers};

    /// Returns a worker of two processes for a shell. `on_run`: what it does with a run.
    fn two_copies(hello: &str, on_run: &str) -> WorkerOptions {
        let script = format!(
            r#"say() {{ printf '%s\n' "$1"; }}
            say '{{"type":"hello","protocol":1,{hello}}}'
            while IFS= read -r line; do
              run=${{line#*\"run\":}}; run=${{run%%,*}}; id="\"run\":$run,\"attempt\":1"
              case $line in *'"type":"run"'*) {on_run};; *'"type":"stop"'*) exit 0;; esac
            done"#
        );
        let argv = ["sh", "-c", &script].map(str::to_owned).to_vec();
        let is_application = false;
        WorkerOptions { name: "two".to_owned(), argv, cwd: None, env: BTreeMap::new(), copies: 2, is_application }
    }

    fn place(file: &Path) -> Place {
        Place::new(file, Environment::Inherited, Guard::default()).unwrap()
    }

    fn workers(file: &Path, options: WorkerOptions, times: &str) -> (Workers, Scheduler) {
        let times: Times = times.parse().unwrap();
        let mut workers = Workers::new(vec![options], times, place(file), || ()).unwrap();
        let mut builder = Scheduler::builder(file);
        for executor in workers.executors() {
            builder = builder.executor(executor);
        }
        let scheduler = builder.start().unwrap();
        workers.start().unwrap();
        (workers, scheduler)
    }

    #[test]
    fn copies_share_the_runs() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("t.db");
        // Neither ends its run before the other has one: the number of the copy is the result.
        let on_run = r#"echo >>"$DULY_DB.run"; while [ $(wc -l <"$DULY_DB.run") -lt 2 ]; do sleep 0.01; done
            say "{\"type\":\"done\",$id,\"result\":$DULY_WORKER_COPY}""#;
        let options = two_copies(r#""handlers":["h"],"concurrency":1"#, on_run);
        let (mut workers, scheduler) = workers(&file, options, "term=300ms");
        for name in ["a", "b"] {
            scheduler.add(NewTask::once(name, "2020-01-01T00:00:00Z".parse().unwrap()).handler("h")).unwrap();
        }
        let result = |task| scheduler.history(task, 1).unwrap().pop().and_then(|run| run.result);
        eventually("both have ended", || result("a").is_some() && result("b").is_some());
        let mut results = [result("a").unwrap(), result("b").unwrap()];
        results.sort();
        assert_eq!(results, ["1", "2"]);
        assert!(workers.are_settled() && workers.problems().is_empty() && workers.running() == 0);
        workers.end();
        workers.threads.drain(..).for_each(|thread| joined(thread, "a worker").unwrap());
        assert!(workers.have_ended() && !workers.was_cut_short());
    }

    #[test]
    fn a_copy_with_other_handlers_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("t.db");
        let options = two_copies(r#""handlers":["'$DULY_WORKER_COPY'"],"concurrency":1"#, ":");
        let (workers, scheduler) = workers(&file, options, "term=300ms,backoff=1ms,starts=2");
        eventually("one of them is given up", || !workers.problems().is_empty());
        let problems = workers.problems();
        assert!(problems.len() == 1 && problems[0].contains("expected those of copy"), "{problems:?}");
        assert!(problems[0].starts_with("copy "), "{problems:?}");
        drop((workers, scheduler));
    }

    #[test]
    fn wrong_options_are_refused() {
        let refused = |options: Vec<WorkerOptions>| {
            Workers::new(options, Times::default(), place(Path::new("t.db")), || ()).err().unwrap()
        };
        let options = two_copies("", "");
        assert_eq!(refused(vec![options.clone(), options.clone()]), "two workers have the name \"two\"");
        let none = WorkerOptions { copies: 0, ..options };
        assert_eq!(refused(vec![none]), "worker \"two\": copies: expected 1 to 64, found 0");
    }
}
