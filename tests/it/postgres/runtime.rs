//! A client within an async runtime of the application.

use duly::{Client, Context, NewTask, Scheduler};

use crate::fixtures::{overdue, patience, wait_for_status};
use crate::postgres::database;

/// All that a client does, and its end, on the threads that drive a runtime.
#[test]
fn a_client_works_on_a_thread_of_a_runtime() {
    let Some(address) = database() else { return };
    let current = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let several =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    for (name, runtime) in [("current", &current), ("several", &several)] {
        runtime.block_on(async {
            let client = Client::open(&address).expect("a client");
            client.add(NewTask::manual(name).handler("work")).expect("a task");
            let (copy, task) = (client.clone(), name.to_owned());
            let run = tokio::spawn(async move { copy.trigger(&task).expect("a run") }).await.expect("an end");
            assert!(client.run(run).expect("a look").is_some());
            assert!(client.history(name, 1).is_ok());
        });
    }
}

#[test]
fn a_scheduler_starts_and_ends_on_a_thread_of_a_runtime() {
    let Some(address) = database() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let handler = |_: &Context| Ok::<_, std::io::Error>(());
        let scheduler = Scheduler::builder(&address).handler("work", handler).start().expect("a scheduler");
        scheduler.add(overdue("task")).expect("a task");
        wait_for_status(scheduler.client(), "task", duly::RunStatus::Succeeded);
        assert_eq!(scheduler.shutdown(patience()).expect("its end").unfinished, 0);
        // Its end is a drop.
        drop(Scheduler::builder(&address).handler("work", handler).start().expect("a scheduler"));
    });
}
