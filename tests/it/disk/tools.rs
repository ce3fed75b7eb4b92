//! Tools that make a disk fail: strace, which injects errors into system calls; a file size limit; a disk of two megabytes
//! in a mount namespace.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::fixtures::{TestDb, end, eventually, reap};
use crate::sidecar::signal;

/// Reports that a tool is missing or not permitted, and what covers the case instead. In CI it must not be missing.
pub(crate) fn skip_without(tool: &str, instead: &str) {
    let is_installed = succeeds(tool, &["--version"]);
    assert!(is_installed || std::env::var("DULY_CI").as_deref() != Ok("1"), "{tool} is missing");
    println!("skipped: {tool} is {}; {instead}", if is_installed { "not allowed here" } else { "missing" });
}

pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let done = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

/// Whether strace exists and may trace a process that it starts.
pub(crate) fn has_strace() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| succeeds("strace", &["-qq", "-o", "/dev/null", "true"]))
}

/// Whether strace may attach to a running process.
pub(crate) fn may_attach() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        let mut sleeper = Command::new("sleep").arg("60").spawn().expect("a process");
        let pid = sleeper.id().to_string();
        let watching =
            Command::new("strace").args(["-o", "/dev/null", "-p", &pid]).stderr(Stdio::piped()).spawn().ok().map(
                |mut strace| {
                    use std::io::{BufRead, BufReader};
                    let line = BufReader::new(strace.stderr.take().expect("a pipe")).lines().next();
                    end(&mut strace);
                    line.is_some_and(|line| line.is_ok_and(|line| line.ends_with(" attached")))
                },
            );
        end(&mut sleeper);
        watching == Some(true)
    })
}

/// Returns strace's arguments: these calls on the files of the database fail with this error. `when` selects which of them.
pub(crate) fn arguments(db: &TestDb, log: &Path, calls: &str, error: &str, when: &str) -> Vec<String> {
    let log = log.display().to_string();
    let mut arguments = ["-f", "-qq", "-o", &log, "-e", &format!("trace={calls}")].map(str::to_owned).to_vec();
    arguments.extend(["-e".to_owned(), format!("inject={calls}:error={error}{when}")]);
    for end in ["", "-wal", "-shm"] {
        arguments.extend(["-P".to_owned(), format!("{}{end}", db.file().display())]);
    }
    arguments
}

/// Returns how many calls have failed.
pub(crate) fn injected(log: &Path) -> usize {
    std::fs::read_to_string(log).unwrap_or_default().matches("(INJECTED)").count()
}

/// An strace that is attached to a running process until it is dropped.
pub(crate) struct Strace {
    child: Child,
    log: PathBuf,
}

impl Strace {
    pub(crate) fn attach(db: &TestDb, pid: u32, calls: &str, error: &str) -> Self {
        let log = db.home().join(format!("strace-{}", fastrand::u64(..)));
        let arguments = arguments(db, &log, calls, error, "");
        let child = Command::new("strace").args(arguments).args(["-p", &pid.to_string()]).spawn().expect("strace");
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

    /// Returns how many calls have failed.
    pub(crate) fn failures(&self) -> usize {
        injected(&self.log)
    }

    /// Returns how many of them this thread has made.
    pub(crate) fn failures_of(&self, thread: u32) -> usize {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let of_it = |line: &&str| line.starts_with(&format!("{thread} ")) && line.contains("(INJECTED)");
        log.lines().filter(of_it).count()
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        // Detaches; the process continues.
        signal("INT", &self.child.id().to_string());
        reap(&mut self.child);
    }
}

/// Starts a program that ignores the signal SIGXFSZ, which would end it when a file may not grow.
pub(crate) const IGNORE_XFSZ: [&str; 3] = ["-c", "trap '' XFSZ; exec \"$@\"", "sh"];

/// Whether the limit of a running process can be set.
pub(crate) fn can_limit() -> bool {
    succeeds("prlimit", &["--version"])
}

/// Limits the size of a process's files. `None`: no limit.
pub(crate) fn limit_files(pid: u32, bytes: Option<u64>) {
    let limit = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
    let limited = succeeds("prlimit", &["--pid", &pid.to_string(), &format!("--fsize={limit}:")]);
    assert!(limited, "prlimit");
}

pub(crate) fn this_program() -> PathBuf {
    std::env::current_exe().expect("this program")
}

/// Runs one test of this program in another process. Fails unless a test of that name ran and passed.
pub(crate) fn run_test(program: &mut Command, test: &str) {
    let output = program.args([test, "--exact", "--nocapture"]).output().expect("a process");
    let stdout = String::from_utf8_lossy(&output.stdout);
    print!("{stdout}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains("1 passed"), "{test}, in its own process: {}", output.status);
}

/// Runs one test in another process, in which it may mount disks of its own. Returns whether this is that process. Without
/// namespaces `instead` is printed.
pub(crate) fn may_mount(test: &str, instead: &str) -> bool {
    const INSIDE: &str = "DULY_MAY_MOUNT";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !succeeds("unshare", &["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]) {
        skip_without("unshare", instead);
        return false;
    }
    run_test(Command::new("unshare").arg("-rm").arg(this_program()).env(INSIDE, "1"), test);
    false
}

pub(crate) struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Mounts it where the database is.
    pub(crate) fn mount(db: &TestDb) -> Self {
        let folder = db.file().parent().expect("a folder").to_owned();
        let disk = folder.to_str().expect("a name");
        assert!(succeeds("mount", &["-t", "tmpfs", "-o", "size=2m", "none", disk]), "a small disk");
        SmallDisk { folder }
    }

    /// Leaves no block, and none of the log that could be used again.
    pub(crate) fn fill(&self, db: &TestDb) {
        db.plain().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("a checkpoint");
        let mut file = File::create_new(self.folder.join("filling")).expect("a file");
        for size in [4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    pub(crate) fn clear(&self) {
        std::fs::remove_file(self.folder.join("filling")).expect("the file that fills it");
    }

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
