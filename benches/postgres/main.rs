//! Measures duly on PostgreSQL beside a bare queue, a minimal durable one, in alternating rounds on one server that it starts in a
//! temporary folder.
//!
//! `cargo bench --features postgres --bench postgres [-- NAMES] [--jobs N] [--rounds N]`. docs/performance.md explains the results.
//! `run` beside it compares duly with other queues on PostgreSQL.

mod bare;
#[path = "../speed/measure.rs"]
#[allow(dead_code, reason = "the bench of the file measures more")]
mod measure;
mod others;
mod proxy;
#[path = "../../tests/it/postgres/server.rs"]
#[allow(dead_code, reason = "the tests do more with it")]
mod server;
mod single;
mod workloads;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};

use bare::Bare;
use measure::{median, percentile, wall_nanos};
use proxy::Proxy;
use workloads::Other;

const USAGE: &str = "cargo bench --features postgres --bench postgres [-- NAMES] [--jobs N] [--rounds N]";

/// As of a small server of one's own; all that is committed is on the disk.
const SETTINGS: &str = "-c fsync=on -c full_page_writes=on -c synchronous_commit=on -c shared_buffers=512MB -c max_wal_size=4GB \
                        -c checkpoint_timeout=30min";

/// What the proxy adds to a round trip.
const DISTANCE: Duration = Duration::from_millis(3);
/// How many connections or schedulers share the work.
const SHARED: [usize; 2] = [1, 4];
/// The interval of the job whose lateness is measured, in milliseconds.
const EVERY: i64 = 100;
const DAY: i64 = 86_400_000;

type Workload = fn(&mut Place, &Options, &mut Vec<Line>);

const WORKLOADS: [(&str, Workload); 6] =
    [("drain", drain), ("mixed", mixed), ("far", far), ("lateness", lateness), ("add", add), ("others", others)];

pub(crate) struct Options {
    jobs: usize,
    rounds: usize,
    names: Vec<String>,
}

impl Options {
    fn read(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Options { jobs: 10_000, rounds: 5, names: Vec::new() };
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                // Cargo passes it.
                "--bench" => {}
                "--jobs" | "--rounds" => {
                    let number = arguments.next().unwrap_or_default();
                    let read = number.parse().ok().filter(|number| *number > 0);
                    let read = read.ok_or(format!("{argument}: expected a number from 1, found {number:?}"))?;
                    *(if argument == "--jobs" { &mut options.jobs } else { &mut options.rounds }) = read;
                }
                name if WORKLOADS.iter().any(|(known, _)| *known == name) => options.names.push(argument),
                _ => {
                    let known = WORKLOADS.map(|(name, _)| name).join(", ");
                    return Err(format!("expected one of {known}, found {argument:?}; usage: {USAGE}"));
                }
            }
        }
        Ok(options)
    }
}

/// A server, and the schemas for each measurement.
pub(crate) struct Place {
    address: String,
    /// The folder of its socket; `None` if the server is another program's.
    folder: Option<PathBuf>,
    session: Client,
    schemas: usize,
}

impl Place {
    fn new(address: String, folder: Option<&Path>) -> Self {
        let session = Client::connect(&address, NoTls).expect("a connection");
        Place { address, folder: folder.map(Path::to_owned), session, schemas: 0 }
    }

    /// Returns the name of a new schema. The one before is dropped, and what was written is on the disk.
    fn schema(&mut self) -> String {
        self.session.batch_execute(&format!("DROP SCHEMA IF EXISTS bench_{} CASCADE", self.schemas)).expect("an end");
        self.session.batch_execute("CHECKPOINT").expect("a checkpoint");
        self.schemas += 1;
        format!("bench_{}", self.schemas)
    }

    /// Returns the bytes that were ever written to the log.
    fn log(&mut self) -> f64 {
        let row = self.session.query_one("SELECT (pg_current_wal_insert_lsn() - '0/0')::float8", &[]);
        row.expect("a position").get(0)
    }

    fn proxy(&self) -> Proxy {
        Proxy::before(self.folder.as_deref().expect("a server of its own"), DISTANCE)
    }
}

/// One measured figure. `bare` is NaN where the bare queue has none.
struct Line {
    what: String,
    bare: f64,
    duly: f64,
    unit: &'static str,
    goal: Goal,
}

#[derive(Clone, Copy)]
enum Goal {
    None,
    /// Of the ratio to the bare queue.
    Ratio(f64),
    /// Of what duly's figure exceeds that of the bare queue by, at most.
    Later(f64),
    /// Of duly's figure, at most.
    AtMost(f64),
    /// Of duly's figure, more than this.
    MoreThan(f64),
}

impl Line {
    fn print(&self) {
        let Line { what, bare, duly, unit, goal } = self;
        let ratio = duly / bare;
        let (wanted, is_met) = match *goal {
            Goal::None => (String::new(), true),
            Goal::Ratio(least) => (format!(">= {least} of bare"), ratio >= least),
            Goal::Later(most) => (format!("<= {most} {unit} later"), duly - bare <= most),
            Goal::AtMost(most) => (format!("<= {most}"), *duly <= most),
            Goal::MoreThan(least) => (format!("> {least:.0}"), *duly > least),
        };
        let met = if wanted.is_empty() {
            ""
        } else if is_met {
            "yes"
        } else {
            "MISSED"
        };
        let (bare, duly, ratio) = (figure(*bare), figure(*duly), figure(ratio));
        println!("| {what} | {bare} | {duly} | {unit} | {ratio} | {wanted} | {met} |");
    }
}

fn figure(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "-".to_owned(),
        100.0.. => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

/// The rates of drains, by the number of connections: of the bare queue, and of duly.
#[derive(Default)]
struct Rates {
    bare: Vec<f64>,
    duly: Vec<f64>,
}

fn drain(place: &mut Place, options: &Options, lines: &mut Vec<Line>) {
    let mut rates = SHARED.map(|_| Rates::default());
    let mut logs = SHARED.map(|_| Rates::default());
    let mut turns = SHARED.map(|_| Vec::new());
    let jobs = options.jobs as f64;
    for _ in 0..options.rounds {
        for (at, connections) in SHARED.into_iter().enumerate() {
            let (time, bytes) = drain_bare(place, connections, options.jobs);
            rates[at].bare.push(jobs / time.as_secs_f64());
            logs[at].bare.push(bytes / jobs);
            let (drained, bytes) = drain_duly(place, connections, options.jobs, Other::Nothing);
            rates[at].duly.push(jobs / drained.time.as_secs_f64());
            logs[at].duly.push(bytes / jobs);
            turns[at].push(drained.turns as f64 * 100.0 / jobs);
        }
    }
    let one = median(rates[0].duly.iter().copied());
    for (at, connections) in SHARED.into_iter().enumerate() {
        let goal = if at == 0 { Goal::Ratio(0.4) } else { Goal::MoreThan(one) };
        lines.push(line(&format!("drain, {connections}"), &rates[at], "/s", goal));
        lines.push(line(".. WAL of a run", &logs[at], "bytes", Goal::None));
        let duly = median(turns[at].iter().copied());
        lines.push(Line { what: ".. turns for 100 runs".into(), bare: f64::NAN, duly, unit: "", goal: Goal::None });
    }
}

/// Returns the time and the bytes of the log.
fn drain_bare(place: &mut Place, connections: usize, jobs: usize) -> (Duration, f64) {
    let schema = place.schema();
    Bare::create(&place.address, &schema).add_in_batches(jobs, wall_nanos() / 1_000_000);
    place.session.batch_execute(&format!("VACUUM ANALYZE {schema}.jobs")).expect("statistics");
    let before = place.log();
    let time = bare::drain(&place.address, &schema, connections, jobs);
    (time, place.log() - before)
}

fn drain_duly(place: &mut Place, schedulers: usize, jobs: usize, other: Other) -> (workloads::Drained, f64) {
    let schema = place.schema();
    let address = format!("{}?schema={schema}", place.address);
    let mut before = 0.0;
    let drained = workloads::drain(&address, &address, (schedulers, jobs), other, || before = place.log());
    (drained, place.log() - before)
}

/// Drains beside what does not concern the tasks, and tasks of many kinds, each beside a plain drain: `bare` is that of duly here.
fn mixed(place: &mut Place, options: &Options, lines: &mut Vec<Line>) {
    let kinds = [("beside a limit and a paused task", Other::Beside), ("mixed", Other::Mixed)];
    let mut rates = SHARED.map(|_| kinds.map(|_| Rates::default()));
    for _ in 0..options.rounds {
        for (at, schedulers) in SHARED.into_iter().enumerate() {
            let mut rate = |other| {
                let (drained, _) = drain_duly(place, schedulers, options.jobs, other);
                options.jobs as f64 / drained.time.as_secs_f64()
            };
            let plain = rate(Other::Nothing);
            for ((_, other), rates) in kinds.into_iter().zip(&mut rates[at]) {
                rates.bare.push(plain);
                rates.duly.push(rate(other));
            }
        }
    }
    for (rates, schedulers) in rates.iter().zip(SHARED) {
        for ((what, _), rates) in kinds.iter().zip(rates) {
            lines.push(line(&format!("drain, {schedulers}, {what}"), rates, "/s", Goal::Ratio(0.8)));
        }
    }
}

/// Drains through a proxy, which adds to each round trip.
fn far(place: &mut Place, options: &Options, lines: &mut Vec<Line>) {
    let mut rates = SHARED.map(|_| Rates::default());
    let mut trips = Vec::new();
    let jobs = options.jobs as f64;
    for _ in 0..options.rounds {
        for (at, connections) in SHARED.into_iter().enumerate() {
            let schema = place.schema();
            Bare::create(&place.address, &schema).add_in_batches(options.jobs, wall_nanos() / 1_000_000);
            let proxy = place.proxy();
            let time = bare::drain(&proxy.address(), &schema, connections, options.jobs);
            rates[at].bare.push(jobs / time.as_secs_f64());
            let (schema, proxy) = (place.schema(), place.proxy());
            let [far, direct] = [&proxy.address(), &place.address].map(|address| format!("{address}?schema={schema}"));
            let drained =
                workloads::drain(&far, &direct, (connections, options.jobs), Other::Nothing, || proxy.reset());
            rates[at].duly.push(jobs / drained.time.as_secs_f64());
            trips.push(proxy.round_trips_of_commit());
        }
    }
    let one = median(rates[0].duly.iter().copied());
    for (at, connections) in SHARED.into_iter().enumerate() {
        let goal = if at == 0 { Goal::None } else { Goal::MoreThan(one) };
        lines.push(line(&format!("drain, {connections}, 3 ms a round trip"), &rates[at], "/s", goal));
    }
    let most = percentile(trips, 100);
    let what = ".. round trips of a turn".to_owned();
    lines.push(Line { what, bare: f64::NAN, duly: most, unit: "", goal: Goal::AtMost(12.0) });
}

/// The lateness of a job every tenth of a second. duly and the bare queue alternate: each has its own half of the tenth.
fn lateness(place: &mut Place, options: &Options, lines: &mut Vec<Line>) {
    let times = (options.jobs / 50).clamp(20, 200);
    let (mut half, mut whole) = (Rates::default(), Rates::default());
    for _ in 0..options.rounds {
        let (first, second) = (place.schema(), format!("bench_late_{}", place.schemas));
        let mut bare = Bare::create(&place.address, &first);
        let address = format!("{}?schema={second}", place.address);
        drop(duly::Client::open(&address).expect("the database"));
        let start = wall_nanos() / 1_000_000 + 1_000;
        let (bare, duly) = std::thread::scope(|scope| {
            let bare = scope.spawn(move || bare.keep_time(start + EVERY / 2, EVERY, times));
            let duly = workloads::keep_time(&address, start, EVERY, times);
            (bare.join().expect("the bare queue"), duly)
        });
        assert!(bare.iter().chain(&duly).all(|late| *late >= 0.0), "none early: {duly:?}");
        assert_eq!(duly.len(), times, "each of them");
        for (found, percent) in [(&mut half, 50), (&mut whole, 99)] {
            found.bare.push(percentile(bare.iter().copied(), percent));
            found.duly.push(percentile(duly.iter().copied(), percent));
        }
        place.session.batch_execute(&format!("DROP SCHEMA {second} CASCADE")).expect("an end");
    }
    lines.push(line("lateness, p50", &half, "ms", Goal::Later(3.0)));
    lines.push(line("lateness, p99", &whole, "ms", Goal::None));
}

/// Twenty waiting runs of one task for each job, once.
fn others(place: &mut Place, options: &Options, _: &mut Vec<Line>) {
    let schema = place.schema();
    let address = format!("{}?schema={schema}", place.address);
    others::run(&address, &mut place.session, 20 * options.jobs);
}

/// Adds jobs that are due in a day, one by one and in batches.
fn add(place: &mut Place, options: &Options, lines: &mut Vec<Line>) {
    let (mut one, mut batches) = (Rates::default(), Rates::default());
    let few = (options.jobs / 5).max(1);
    for _ in 0..options.rounds {
        let at = wall_nanos() / 1_000_000 + DAY;
        let schema = place.schema();
        let mut bare = Bare::create(&place.address, &schema);
        one.bare.push(few as f64 / workloads::timed(|| bare.add_one_by_one(few, at)).as_secs_f64());
        batches
            .bare
            .push(options.jobs as f64 / workloads::timed(|| bare.add_in_batches(options.jobs, at)).as_secs_f64());
        let schema = place.schema();
        let address = format!("{}?schema={schema}", place.address);
        one.duly.push(few as f64 / workloads::add_one_by_one(&address, few, at).as_secs_f64());
        batches.duly.push(options.jobs as f64 / workloads::add_in_batches(&address, options.jobs, at).as_secs_f64());
    }
    lines.push(line("add, one by one", &one, "/s", Goal::None));
    lines.push(line("add, 100 to a commit", &batches, "/s", Goal::None));
}

fn line(what: &str, rates: &Rates, unit: &'static str, goal: Goal) -> Line {
    let of = |values: &[f64]| median(values.iter().copied());
    Line { what: what.to_owned(), bare: of(&rates.bare), duly: of(&rates.duly), unit, goal }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(first) = arguments.iter().position(|argument| argument == "single") {
        if let Err(error) = single::run(&arguments[first + 1..]) {
            eprintln!("{error}");
            std::process::exit(2);
        }
        return;
    }
    let options = Options::read(arguments.into_iter()).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(2);
    });
    let Some(programs) = server::programs() else {
        eprintln!("PostgreSQL is not installed: expected initdb and pg_ctl");
        std::process::exit(2);
    };
    let Some((folder, _guard)) = server::start(&programs, SETTINGS) else { return };
    let mut place = Place::new(server::address(&folder), Some(&folder));
    let mut lines = Vec::new();
    for (name, run) in WORKLOADS {
        if options.names.is_empty() || options.names.iter().any(|asked| asked == name) {
            let begin = Instant::now();
            run(&mut place, &options, &mut lines);
            eprintln!("{name}: measured in {:.0} s", begin.elapsed().as_secs_f64());
        }
    }
    let version: String = place.session.query_one("SHOW server_version", &[]).expect("a version").get(0);
    println!(
        "{} jobs, median of {} alternating rounds, PostgreSQL {version}, {} workers of each scheduler\n",
        options.jobs,
        options.rounds,
        workloads::WORKERS
    );
    println!("| workload | bare | duly | | ratio | goal | met |\n| --- | --- | --- | --- | --- | --- | --- |");
    lines.iter().for_each(Line::print);
}
