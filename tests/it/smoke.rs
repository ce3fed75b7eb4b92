use duly::testing::Stepper;
use duly::*;
use std::time::Duration;
#[test]
fn smoke() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("a.db");
    let mut s = Stepper::builder(&file, "2027-03-14T12:59:00Z".parse().unwrap()).accept("post").start().unwrap();
    s.client().add(NewTask::cron("c", "0 13 * * *").handler("post")).unwrap();
    s.client().add(NewTask::interval("i", Duration::from_secs(60)).handler("post").overlap(Overlap::BufferAll)).unwrap();
    s.client().add(NewTask::delay("d", Duration::from_secs(60)).handler("post")).unwrap();
    assert!(s.step().unwrap().is_empty());
    println!("sleeps {:?}", s.sleeps());
    s.clock().advance(Duration::from_secs(60));
    let c = s.step().unwrap();
    println!("{c:#?}");
    for c in &c { s.finish(c, Outcome::failed("x")); }
    s.step().unwrap();
    let out = s.run_until("2027-03-14T14:00:00Z".parse().unwrap()).unwrap();
    println!("{}", out.len());
    for r in s.client().newest_runs(10).unwrap() { println!("{r:?}"); }
}
#[test]
fn threads() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("a.db");
    let n = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let m = n.clone();
    let c = Client::open(&file).unwrap();
    c.add_all((0..10000).map(|i| NewTask::once(format!("t{i}"), "2025-01-01T00:00:00Z".parse().unwrap()).handler("h"))).unwrap();
    let t = std::time::Instant::now();
    let s = Scheduler::builder(&file).handler("h", move |_: &Context| { m.fetch_add(1, std::sync::atomic::Ordering::Relaxed); Ok::<_, Error>(()) }).workers(2).start().unwrap();
    while n.load(std::sync::atomic::Ordering::Relaxed) < 10000 { std::thread::yield_now(); }
    println!("{:?}", t.elapsed());
    println!("{:?}", s.shutdown(Duration::from_secs(5)));
    println!("{:?}", t.elapsed());
}
