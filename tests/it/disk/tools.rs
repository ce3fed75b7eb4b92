//! What makes a disk fail: strace, which answers system calls in the kernel's place; a limit on the size of files; a disk of
//! two megabytes in a mount namespace of its own.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::fixtures::{TestDb, eventually};
use crate::sidecar::signal;

/// Says that a tool is missing, or not allowed to do what it is for, and what is tried instead. In CI it is not to be missing.
pub(crate) fn without(tool: &str, instead: &str) {
    let there = succeeds(tool, &["--version"]);
    assert!(there || std::env::var("DULY_CI").as_deref() != Ok("1"), "{tool} is missing");
    println!("skipped: {tool} is {}; {instead}", if there { "not allowed here" } else { "missing" });
}

pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let done = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

/// Whether strace is there and may watch a process that it starts.
pub(crate) fn has_strace() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| succeeds("strace", &["-qq", "-o", "/dev/null", "true"]))
}

/// Whether strace may watch a process that is at work already.
pub(crate) fn may_attach() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        let mut sleeper = Command::new("sleep").arg("60").spawn().expect("a process");
        let pid = sleeper.id().to_string();
        let watching =
            Command::new("strace").args(["-o", "/dev/null", "-p", &pid]).stderr(Stdio::piped()).spawn().ok().map(
                |mut strace| {
                    use std::io::{BufRead, BufReader};
                    let said = BufReader::new(strace.stderr.take().expect("a pipe")).lines().next();
                    let _ = strace.kill();
                    let _ = strace.wait();
                    said.is_some_and(|line| line.is_ok_and(|line| line.ends_with(" attached")))
                },
            );
        let _ = sleeper.kill();
        let _ = sleeper.wait();
        watching == Some(true)
    })
}

/// What strace is told: these calls on the files of the database fail with this error. `when`: which of them.
pub(crate) fn orders(db: &TestDb, log: &Path, calls: &str, error: &str, when: &str) -> Vec<String> {
    let log = log.display().to_string();
    let mut orders = ["-f", "-qq", "-o", &log, "-e", &format!("trace={calls}")].map(str::to_owned).to_vec();
    orders.extend(["-e".to_owned(), format!("inject={calls}:error={error}{when}")]);
    for end in ["", "-wal", "-shm"] {
        orders.extend(["-P".to_owned(), format!("{}{end}", db.file().display())]);
    }
    orders
}

/// How many calls strace has answered in the kernel's place.
pub(crate) fn injected(log: &Path) -> usize {
    std::fs::read_to_string(log).unwrap_or_default().matches("(INJECTED)").count()
}

/// A strace that watches a process which is at work, until it is dropped.
pub(crate) struct Strace {
    child: Child,
    log: PathBuf,
}

impl Strace {
    pub(crate) fn attach(db: &TestDb, pid: u32, calls: &str, error: &str) -> Self {
        let log = db.home().join(format!("strace-{}", fastrand::u64(..)));
        let orders = orders(db, &log, calls, error, "");
        let child = Command::new("strace").args(orders).args(["-p", &pid.to_string()]).spawn().expect("strace");
        let traced = || {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
            let watched = |task: std::io::Result<std::fs::DirEntry>| {
                let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
                Some(!status.contains("TracerPid:\t0\n"))
            };
            tasks.filter_map(watched).all(|watched| watched)
        };
        eventually("strace watches", traced);
        Strace { child, log }
    }

    /// How many calls have failed.
    pub(crate) fn failures(&self) -> usize {
        injected(&self.log)
    }

    /// How many of them this thread has made.
    pub(crate) fn failures_of(&self, thread: u32) -> usize {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let of_it = |line: &&str| line.starts_with(&format!("{thread} ")) && line.contains("(INJECTED)");
        log.lines().filter(of_it).count()
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        // It lets go of the process, which lives on.
        signal("INT", &self.child.id().to_string());
        let _ = self.child.wait();
    }
}

/// What starts a program that lives on when a file may not grow: it is told so, and not killed.
pub(crate) const SPARED: [&str; 3] = ["-c", "trap '' XFSZ; exec \"$@\"", "sh"];

/// Whether that can be told to a process which is at work.
pub(crate) fn can_limit() -> bool {
    succeeds("prlimit", &["--version"])
}

/// Lets no file of a process grow beyond so many bytes. `None`: any file, again.
pub(crate) fn limit_files(pid: u32, bytes: Option<u64>) {
    let limit = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
    let limited = succeeds("prlimit", &["--pid", &pid.to_string(), &format!("--fsize={limit}:")]);
    assert!(limited, "prlimit");
}

/// Has one test carried out by another process, in which it may mount disks of its own. Answers whether this is that process.
/// Where namespaces are not allowed, `instead` is said, and nobody is.
pub(crate) fn may_mount(test: &str, instead: &str) -> bool {
    const INSIDE: &str = "DULY_MAY_MOUNT";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !succeeds("unshare", &["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]) {
        without("unshare", instead);
        return false;
    }
    let this = std::env::current_exe().expect("this program");
    let status = Command::new("unshare")
        .arg("-rm")
        .arg(this)
        .args([test, "--exact", "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .expect("unshare");
    assert!(status.success(), "{test}, within: {status}");
    false
}

/// A disk of two megabytes.
pub(crate) struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Puts it where the db has its database.
    pub(crate) fn mount(db: &TestDb) -> Self {
        let folder = db.file().parent().expect("a folder").to_owned();
        let disk = folder.to_str().expect("a name");
        assert!(succeeds("mount", &["-t", "tmpfs", "-o", "size=2m", "none", disk]), "a small disk");
        SmallDisk { folder }
    }

    /// Leaves no byte free.
    pub(crate) fn fill(&self) {
        let mut file = File::create_new(self.folder.join("filling")).expect("a file");
        for size in [4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Gives the space back.
    pub(crate) fn clear(&self) {
        std::fs::remove_file(self.folder.join("filling")).expect("the file that fills it");
    }

    /// Nothing there can be written from now on.
    pub(crate) fn seal(&self) {
        let disk = self.folder.to_str().expect("a name");
        assert!(succeeds("mount", &["-o", "remount,bind,ro", disk]), "a disk that is read-only");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        succeeds("umount", &["-l", self.folder.to_str().expect("a name")]);
    }
}
