//! An async handler on a runtime whose time is paused: what sleeps takes no time.

use std::time::{Duration, Instant};

use duly::testing::Stepper;
use duly::{BoxError, Context, NewTask, RunStatus};

#[test]
fn a_runtime_with_paused_time_takes_no_time() {
    let home = tempfile::tempdir().unwrap();
    let noon = "2027-03-14T12:00:00Z".parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let mut stepper = Stepper::builder(home.path().join("test.db"), noon)
        .async_handler("slow", |_: Context| async move {
            tokio::time::sleep(Duration::from_secs(86_400)).await;
            Ok::<_, BoxError>(())
        })
        .runtime(runtime)
        .start()
        .unwrap();
    stepper.client().add(NewTask::once("slow", noon).handler("slow")).unwrap();
    let before = Instant::now();
    assert_eq!(stepper.run_until_idle(Duration::from_secs(60)).unwrap().len(), 1);
    assert!(before.elapsed() < Duration::from_secs(3600));
    assert_eq!(stepper.client().history("slow", 1).unwrap()[0].status, RunStatus::Succeeded);
}
