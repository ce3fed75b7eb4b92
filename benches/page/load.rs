//! The lateness of a task that is due every second, without and with a load on the page.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use duly::{Context, NewTask, Overlap, Scheduler};

use crate::{LATER, http};

const IDLE: usize = 1_000;
const DRIPPING: usize = 200;
const SLOW: usize = 8;

/// Milliseconds from the due instant to the first line of the handler.
static LATE: Mutex<Vec<f64>> = Mutex::new(Vec::new());

/// The handler of the task that is due every second.
pub(crate) fn tick(run: &Context) -> Result<(), std::fmt::Error> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock that is set");
    LATE.lock().expect("the list").push(now.as_secs_f64() * 1e3 - run.scheduled_for().as_millis() as f64);
    Ok(())
}

/// Prints the lateness without and with load, and adds to `missed`.
pub(crate) fn lateness(scheduler: &Scheduler, address: SocketAddr, seconds: u64, missed: &mut Vec<String>) {
    let task = NewTask::interval("tick", Duration::from_secs(1)).handler("tick").overlap(Overlap::Allow);
    scheduler.add(task).expect("a task");
    let without = measured(seconds);
    let (stop, requests) = (AtomicBool::new(false), AtomicUsize::new(0));
    let with = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for path in http::PATHS.lines().cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    http::get(address, path);
                    requests.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| hold(IDLE, Duration::from_millis(500), &stop, address, |_, _| Ok(())));
        scope.spawn(|| {
            // A request line that never ends, a byte at a time.
            hold(DRIPPING, Duration::from_millis(100), &stop, address, |stream, round| {
                stream.write_all(if round == 0 { b"GET /" } else { b"x" })
            });
        });
        scope.spawn(|| {
            hold(SLOW, Duration::from_millis(100), &stop, address, |stream, round| {
                if round == 0 {
                    return stream.write_all(http::head(address, "/timeline?span=week").as_bytes());
                }
                stream.read(&mut [0; 64]).map(drop)
            });
        });
        let with = measured(seconds);
        stop.store(true, Ordering::Relaxed);
        with
    });
    let requests = requests.load(Ordering::Relaxed) as f64 / seconds as f64;
    println!(
        "\nlateness of a task due every second, {seconds} s each, in ms; the load: {requests:.0} requests a second of two threads, \
         {IDLE} idle, {DRIPPING} dripping, {SLOW} slowly reading connections"
    );
    println!("{:<20} {:>10} {:>10}", "", "median", "most");
    for (name, [median, most]) in [("without load", without), ("with load", with)] {
        println!("{name:<20} {median:>10.2} {most:>10.2}");
    }
    for (part, later) in [("median", with[0] - without[0]), ("most", with[1] - without[1])] {
        if later > LATER.as_secs_f64() * 1e3 {
            missed.push(format!("lateness under load, {part}: expected at most {LATER:?} more, found {later:.1} ms"));
        }
    }
}

/// Returns the median and the maximum of the next seconds.
fn measured(seconds: u64) -> [f64; 2] {
    thread::sleep(Duration::from_millis(1500));
    LATE.lock().expect("the list").clear();
    thread::sleep(Duration::from_secs(seconds));
    let mut late = LATE.lock().expect("the list").clone();
    late.sort_unstable_by(f64::total_cmp);
    assert!(late.len() as u64 + 1 >= seconds && late[0] >= 0.0, "each of them, none early: {late:?}");
    [late[late.len() / 2], late[late.len() - 1]]
}

/// Keeps `count` connections, calls `act` on each once in a pause, and replaces each that ends.
fn hold(
    count: usize,
    pause: Duration,
    stop: &AtomicBool,
    address: SocketAddr,
    act: impl Fn(&mut TcpStream, usize) -> std::io::Result<()>,
) {
    let mut streams: Vec<Option<(TcpStream, usize)>> = (0..count).map(|_| None).collect();
    while !stop.load(Ordering::Relaxed) {
        for slot in &mut streams {
            match slot {
                Some((stream, round)) => {
                    let lives = act(stream, *round).is_ok() && !has_ended(stream);
                    *round += 1;
                    if !lives {
                        *slot = None;
                    }
                }
                None => *slot = connected(address).ok().map(|stream| (stream, 0)),
            }
        }
        thread::sleep(pause);
    }
}

fn connected(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    Ok(stream)
}

/// Reports whether the server has closed the connection.
fn has_ended(stream: &TcpStream) -> bool {
    let ended = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let _ = stream.set_nonblocking(false);
    match ended {
        Ok(read) => read == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}
