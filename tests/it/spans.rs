//! The span `duly.attempt` of each attempt: what its handler emits is within it, and nothing else is.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use duly::{BoxError, Context, Error, Failure, RunStatus, Scheduler};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::fixtures::{TestDb, eventually, overdue, patience, retry_soon, seconds, wait_for_status};

/// A span with its fields, and the events within it.
#[derive(Debug, Default)]
struct Seen {
    name: String,
    fields: BTreeMap<String, String>,
    events: Vec<String>,
    handles: usize,
}

/// Records the spans of duly, and the events of the target `app`. One for all tests of this process.
#[derive(Debug, Default)]
struct Recorder {
    next: AtomicU64,
    spans: Mutex<BTreeMap<u64, Seen>>,
    /// Events outside of every span.
    outside: Mutex<Vec<String>>,
}

static RECORDER: OnceLock<&'static Recorder> = OnceLock::new();

thread_local! {
    /// The spans that this thread has entered.
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

struct Global(&'static Recorder);

fn recorder() -> &'static Recorder {
    RECORDER.get_or_init(|| {
        let recorder: &'static Recorder = Box::leak(Box::default());
        tracing::subscriber::set_global_default(Global(recorder)).unwrap();
        recorder
    })
}

impl Recorder {
    fn spans(&self) -> MutexGuard<'_, BTreeMap<u64, Seen>> {
        self.spans.lock().unwrap()
    }

    /// Returns each span of a task as `attempt outcome: events; events`, oldest first. Waits until they are closed.
    fn of_task(&self, task: &str) -> Vec<String> {
        let is_of_task = |seen: &&Seen| seen.fields.get("task").is_some_and(|name| name == task);
        eventually("the spans are closed", || self.spans().values().filter(is_of_task).all(|seen| seen.handles == 0));
        let line = |seen: &Seen| {
            assert_eq!(seen.name, "duly.attempt");
            let field = |name: &str| seen.fields.get(name).map_or("-", String::as_str);
            format!("{} {}: {}", field("attempt"), field("outcome"), seen.events.join("; "))
        };
        self.spans().values().filter(is_of_task).map(line).collect()
    }
}

struct Fields<'a>(&'a mut BTreeMap<String, String>);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl Subscriber for Global {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        ["duly", "app"].contains(&metadata.target())
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        assert!(span.is_root(), "an attempt has no parent");
        let mut seen = Seen { name: span.metadata().name().to_owned(), handles: 1, ..Seen::default() };
        span.record(&mut Fields(&mut seen.fields));
        let id = 1 + self.0.next.fetch_add(1, Ordering::SeqCst);
        self.0.spans().insert(id, seen);
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        values.record(&mut Fields(&mut self.0.spans().get_mut(&id.into_u64()).unwrap().fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = BTreeMap::new();
        event.record(&mut Fields(&mut fields));
        let message = fields.remove("message").unwrap_or_default();
        match ENTERED.with_borrow(|entered| entered.last().copied()) {
            Some(id) => self.0.spans().get_mut(&id).unwrap().events.push(message),
            None => self.0.outside.lock().unwrap().push(message),
        }
    }

    fn enter(&self, id: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(id.into_u64()));
    }

    fn exit(&self, id: &Id) {
        assert_eq!(ENTERED.with_borrow_mut(Vec::pop), Some(id.into_u64()));
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.0.spans().get_mut(&id.into_u64()).unwrap().handles += 1;
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut spans = self.0.spans();
        let seen = spans.get_mut(&id.into_u64()).unwrap();
        seen.handles -= 1;
        seen.handles == 0
    }
}

fn say(message: &str) {
    tracing::info!(target: "app", "{message}");
}

#[test]
fn each_attempt_of_a_closure_has_a_span_with_its_fields_and_its_end() {
    let (recorder, db) = (recorder(), TestDb::new());
    let work = |run: &Context| {
        say("begins");
        match run.attempt() {
            1 => Err(BoxError::from("no")),
            2 => panic!("oh"),
            _ => Ok(()),
        }
    };
    let scheduler = Scheduler::builder(db.file()).handler("work", work).start().unwrap();
    scheduler.add(retry_soon(overdue("span-closure"), 5)).unwrap();
    let run = wait_for_status(&scheduler, "span-closure", RunStatus::Succeeded);
    assert_eq!(recorder.of_task("span-closure"), ["1 failed: begins", "2 panicked: begins", "3 succeeded: begins"]);
    let fields = |attempt: &str| {
        let spans = recorder.spans();
        let is_this = |seen: &&Seen| seen.fields["task"] == "span-closure" && seen.fields["attempt"] == attempt;
        spans.values().find(is_this).unwrap().fields.clone()
    };
    assert_eq!(fields("3").remove("error"), None);
    assert_eq!(fields("2").remove("error").as_deref(), Some("the handler panicked: oh"));
    let run = run.id.to_string();
    let expected = [
        ("task", "span-closure"),
        ("run", &run),
        ("attempt", "1"),
        ("handler", "work"),
        ("idempotency_key", "span-closure/2020-01-01T00:00:00.000Z"),
        ("outcome", "failed"),
        ("error", "no"),
    ];
    assert_eq!(fields("1"), expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
}

#[test]
fn the_span_of_a_snoozed_or_cancelled_attempt_has_the_outcome_that_is_stored() {
    let (recorder, db) = (recorder(), TestDb::new());
    let work = |run: &Context| match run.attempt() {
        1 => Err::<(), _>(Failure::snooze(seconds(0))),
        2 => Err(Failure::cancel("not needed any more")),
        _ => unreachable!(),
    };
    let scheduler = Scheduler::builder(db.file()).handler("work", work).start().unwrap();
    scheduler.add(retry_soon(overdue("span-snooze"), 2)).unwrap();
    // It may start only once, so it is dead.
    scheduler.add(overdue("span-once").at_most_once()).unwrap();
    let run = wait_for_status(&scheduler, "span-snooze", RunStatus::Cancelled);
    wait_for_status(&scheduler, "span-once", RunStatus::Dead);
    assert_eq!(recorder.of_task("span-snooze"), ["1 snoozed: ", "2 cancelled: "]);
    assert_eq!(recorder.of_task("span-once"), ["1 failed: "]);
    let stored = scheduler.attempts(run.id).unwrap();
    assert_eq!(stored.iter().map(|one| one.outcome.as_str()).collect::<Vec<_>>(), ["snoozed", "cancelled"]);
    assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
}

#[cfg(feature = "tokio")]
mod of_async_handlers {
    use std::sync::Arc;

    use tokio::sync::Barrier;

    use super::{
        BoxError, Context, Error, RunStatus, Scheduler, TestDb, eventually, overdue, patience, recorder, say,
        wait_for_status,
    };

    struct SaysWhenDropped;

    impl Drop for SaysWhenDropped {
        fn drop(&mut self) {
            say("dropped");
        }
    }

    #[test]
    fn two_attempts_on_one_thread_of_the_runtime_are_not_mixed_up() {
        let (recorder, db) = (recorder(), TestDb::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let meeting = Arc::new(Barrier::new(3));
        let meets = meeting.clone();
        let talk = move |run: Context| {
            say("called");
            let meets = meets.clone();
            async move {
                let _last = SaysWhenDropped;
                for round in 0..3 {
                    say(&format!("{} {round}", run.task()));
                    meets.wait().await;
                }
                if run.task() == "span-b" { Err(BoxError::from("enough")) } else { Ok(()) }
            }
        };
        runtime.block_on(async {
            let scheduler = Scheduler::builder(db.file()).async_handler("talk", talk).start().unwrap();
            let tasks = ["span-a", "span-b"].map(|name| overdue(name).handler("talk").at_most_once());
            scheduler.add_all(tasks).unwrap();
            for round in 0..3 {
                say(&format!("outside {round}"));
                meeting.wait().await;
            }
            assert_eq!(scheduler.shutdown_async(patience()).await.unwrap().unfinished, 0);
        });
        assert_eq!(recorder.of_task("span-a"), ["1 succeeded: called; span-a 0; span-a 1; span-a 2; dropped"]);
        assert_eq!(recorder.of_task("span-b"), ["1 failed: called; span-b 0; span-b 1; span-b 2; dropped"]);
        let outside = recorder.outside.lock().unwrap().clone();
        assert_eq!(outside.iter().filter(|said| said.starts_with("outside ")).count(), 3);
        assert!(!outside.iter().any(|said| said.starts_with("span-") || said == "dropped"), "{outside:?}");
    }

    #[test]
    fn the_span_of_an_attempt_that_panics_or_is_dropped_ends() {
        let (recorder, db) = (recorder(), TestDb::new());
        let runtime = crate::async_handlers::runtime();
        let panics = |_: Context| async {
            let _last = SaysWhenDropped;
            tokio::task::yield_now().await;
            if true {
                panic!("oh");
            }
            Ok::<_, Error>(())
        };
        let hangs = |_: Context| async {
            let _last = SaysWhenDropped;
            std::future::pending::<Result<(), Error>>().await
        };
        let builder = crate::async_handlers::builder(&db, &runtime);
        let scheduler = builder.async_handler("panics", panics).async_handler("hangs", hangs).start().unwrap();
        scheduler.add(overdue("span-panics").handler("panics").at_most_once()).unwrap();
        scheduler.add(overdue("span-hangs").handler("hangs").at_most_once()).unwrap();
        wait_for_status(&scheduler, "span-panics", RunStatus::Dead);
        let is_hanging = |seen: &super::Seen| seen.fields["task"] == "span-hangs";
        eventually("the other has begun", || recorder.spans().values().any(is_hanging));
        runtime.shutdown_background();
        wait_for_status(&scheduler, "span-hangs", RunStatus::Dead);
        assert_eq!(recorder.of_task("span-panics"), ["1 panicked: dropped"]);
        assert_eq!(recorder.of_task("span-hangs"), ["1 failed: dropped"]);
        assert_eq!(scheduler.shutdown(patience()).unwrap().unfinished, 0);
    }
}
