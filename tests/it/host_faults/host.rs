//! A host: namespaces of its own for the network, processes, mounts and the name, a boot id, a clock and a folder.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::dst_nights;
use crate::evidence::{UNSHARE, scheduler_in};
use crate::fixtures::eventually;
use crate::host_faults::cluster::PORTS;
use crate::host_faults::network::Network;
use crate::kills::process;

/// The first process of a host. Each line of its input starts a scheduler; at the end of its input the host is powered off.
const INIT: &str = r#"
    hostname "$1" && mount --bind "$2" /proc/sys/kernel/random/boot_id || exit 1
    shift 2
    while read -r number; do DULY_TEST_SCHEDULER=$number "$@" & done
"#;

pub(crate) struct Host {
    pub(crate) number: usize,
    init: Child,
    /// The number of its newest scheduler.
    pub(crate) scheduler: u32,
    folder: PathBuf,
}

/// Sets the clock of a host to `seconds` from the true time.
pub(crate) fn set_clock(folder: &Path, number: usize, seconds: i64) {
    process::set_clock(folder, &format!("clock-{number}"), seconds * 1_000);
}

impl Host {
    /// Switches it on, with a new boot id. No scheduler is started.
    pub(crate) fn boot(network: &Network, number: usize, folder: &Path) -> Host {
        let random = fastrand::u128(..);
        let boot = folder.join(format!("boot-{random:032x}"));
        let id = format!("{random:032x}");
        let id = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]].join("-");
        std::fs::write(&boot, id + "\n").expect("a boot id");
        let log = File::options().append(true).create(true).open(folder.join(format!("log-{number}"))).expect("a log");
        let server = format!("10.77.{number}.1:{},10.77.{number}.1:{}", PORTS[0], PORTS[1]);
        let mut init = network.at_host(number, "unshare");
        init.args(UNSHARE).args(["--mount", "--uts", "sh", "-c", INIT, "sh", &name(number)]).arg(&boot).arg("env");
        if let Some(library) = dst_nights::library() {
            let clock = folder.join(format!("clock-{number}")).display().to_string();
            init.arg(format!("LD_PRELOAD={}", library.display())).arg(format!("FAKETIME_TIMESTAMP_FILE={clock}"));
            init.args(["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"]);
        }
        init.arg(format!("DULY_STATE_DIR={}", folder.join(name(number)).display())).arg(env!("CARGO_BIN_EXE_duly"));
        init.args(["--db", &format!("postgres://postgres@{server}/postgres")]);
        init.args(["run", "--poll", "200ms", "--lease", "30s", "--drain", "1s"]);
        init.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        Host { number, init: init.spawn().expect("a host"), scheduler: 0, folder: folder.to_owned() }
    }

    /// Starts a scheduler, which the journal calls `scheduler`.
    pub(crate) fn start(&mut self, scheduler: u32) {
        self.scheduler = scheduler;
        writeln!(self.init.stdin.as_ref().expect("its input"), "{scheduler}").expect("a host that is on");
        eventually("the scheduler runs", || self.pid().is_some());
    }

    fn pid(&self) -> Option<u32> {
        scheduler_in(self.init.id())
    }

    /// Whether its scheduler exists.
    pub(crate) fn is_up(&self) -> bool {
        self.pid().is_some()
    }

    /// Sends a signal to the scheduler alone. Its guard and its commands do not get it.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Sends SIGKILL to the scheduler, and waits for its end.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
        eventually("the scheduler has ended", || !self.is_up());
    }

    /// Ends all its processes at once.
    pub(crate) fn power_off(&mut self) {
        crate::fixtures::end(&mut self.init);
    }

    /// The end of what its schedulers have logged.
    pub(crate) fn log(&self) -> String {
        let log = std::fs::read_to_string(self.folder.join(format!("log-{}", self.number))).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.power_off();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", name(self.number), self.log());
        }
    }
}

/// The name of a host.
pub(crate) fn name(number: usize) -> String {
    format!("host-{number}")
}
