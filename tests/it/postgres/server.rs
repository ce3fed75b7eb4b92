//! Starts servers in temporary folders, which end with this process.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Takes `$1`, the folder of the programs, and `$2`, the next script. PostgreSQL refuses to run as root.
const AS_USER: &str = include_str!("server/as_user.sh");

/// Starts the server, prints its folder and waits for the end of its input, which is the end of the test process, however it ends.
/// Each line of its input is a crash of the server, which starts again. The folder is below /tmp: the path of a socket has at most 107
/// bytes.
const GUARD: &str = include_str!("server/guard.sh");

/// The process that stops the server when its input ends: with this process.
pub(crate) struct Guard {
    pub(crate) process: Child,
    pub(crate) answers: BufReader<ChildStdout>,
}

/// Returns the address of a server whose socket is in this folder.
pub(crate) fn address(folder: &Path) -> String {
    format!("postgres://postgres@{}/postgres", folder.display().to_string().replace('/', "%2F"))
}

/// Returns the folder of the programs that make and start a server.
pub(crate) fn programs() -> Option<PathBuf> {
    folder_of(&["initdb", "pg_ctl"])
}

/// Returns the first folder that holds all these programs.
pub(crate) fn folder_of(programs: &[&str]) -> Option<PathBuf> {
    folders().into_iter().find(|folder| programs.iter().all(|program| folder.join(program).is_file()))
}

/// Returns the folders that may hold PostgreSQL's programs, the newest release first after those of `PATH`.
pub(crate) fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    let release = |folder: &Path| folder.file_name()?.to_str()?.parse::<u32>().ok();
    let mut releases: Vec<PathBuf> =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|e| e.path()).collect();
    releases.sort_by_key(|folder| std::cmp::Reverse(release(folder)));
    folders.extend(releases.into_iter().map(|folder| folder.join("bin")));
    folders
}

/// Starts a server with these settings. Returns its folder.
pub(crate) fn start(programs: &Path, settings: &str) -> Option<(PathBuf, Guard)> {
    start_script(Command::new("sh"), programs, GUARD, settings)
}

/// Starts a script that prints the folder of its servers and obeys its input, `$1` of which is the folder of the programs. `shell`: a shell
/// without its arguments.
#[cfg(unix)]
pub(crate) fn start_script(
    mut shell: Command,
    programs: &Path,
    script: &str,
    settings: &str,
) -> Option<(PathBuf, Guard)> {
    use std::os::unix::process::CommandExt;

    // In a process group of its own: an interrupt at the terminal ends the tests, and by that the guard's input.
    let mut guard = shell
        .args(["-c", AS_USER, "guard"])
        .arg(programs)
        .arg(script)
        .env("DULY_SERVER_SETTINGS", settings)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("a shell");
    let mut answers = BufReader::new(guard.stdout.take().expect("its output"));
    let mut folder = String::new();
    answers.read_line(&mut folder).expect("its output");
    if !folder.starts_with('/') {
        drop(guard.stdin.take());
        let mut errors = String::new();
        let _ = guard.stderr.take().expect("its errors").read_to_string(&mut errors);
        panic!("the PostgreSQL server of {} does not start: {folder}{errors}", programs.display());
    }
    Some((PathBuf::from(folder.trim_end()), Guard { process: guard, answers }))
}

#[cfg(not(unix))]
pub(crate) fn start_script(
    _shell: Command,
    _programs: &Path,
    _script: &str,
    _settings: &str,
) -> Option<(PathBuf, Guard)> {
    None
}
