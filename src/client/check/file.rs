//! The database as a file: who may read and write it, and the size of its log.

use std::path::{Path, PathBuf};

use crate::client::check::{Problem, ProblemKind, problem};
use crate::host::folder;
use crate::host::owner_lock;
use crate::host::platform::{self, Writable};

/// An idle scheduler cuts its log beyond 16 MiB: with a much larger log it is never idle, or a reader never ends.
const LARGE_LOG: u64 = 64 * 1024 * 1024;

/// Returns the problems of the database as a file.
pub(super) fn problems(path: &Path, log_bytes: u64, any_alive: bool) -> Vec<Problem> {
    let mut found = Vec::new();
    if log_bytes > LARGE_LOG {
        let text = format!("the write-ahead log has {} MiB", log_bytes >> 20);
        let advice = "end the program that has been reading the file for hours; an idle scheduler cuts the log";
        found.push(problem(ProblemKind::Log, text, advice));
    }
    found.extend(modes(path));
    // A scheduler that is alive has the same user as the file: root's was refused.
    let foreign = folder::foreign(path).filter(|_| !any_alive);
    found.extend(foreign.map(|fault| problem(ProblemKind::FileMode, fault.found, &fault.advice)));
    found
}

/// Returns the database, the files beside it and the folders that other users may write.
fn modes(path: &Path) -> Vec<Problem> {
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let files = [path.to_owned(), beside("-wal"), beside("-shm")];
    let open = files.iter().filter_map(|file| {
        let (user, letters) = match platform::writable(&std::fs::metadata(file).ok()?) {
            Writable::Owner => return None,
            Writable::Group => ("its group", "g-w"),
            Writable::Anyone => ("anyone", "go-w"),
        };
        let text = format!("{user} may write {}, and so run commands as you", file.display());
        Some(problem(ProblemKind::FileMode, text, &format!("chmod {letters} it")))
    });
    // A folder that others cannot enter hides its files.
    let is_hidden =
        path.parent().is_some_and(|folder| std::fs::metadata(folder).is_ok_and(|it| !platform::is_open(&it)));
    // Of a file that others may write, that is said.
    let is_read = |file: &PathBuf| {
        std::fs::metadata(file).is_ok_and(|it| platform::is_read(&it) && platform::writable(&it) != Writable::Anyone)
    };
    let read = (!is_hidden && files.iter().any(is_read)).then(|| {
        let text = format!("anyone may read {}: payloads, outputs, and the variables of commands", path.display());
        problem(ProblemKind::FileMode, text, "chmod o-r it, and the files -wal and -shm beside it")
    });
    // The caller may be another user than the scheduler's, such as root: the folder must belong to the owner of the database.
    let user = std::fs::metadata(path).ok().and_then(|metadata| folder::owner(&metadata));
    let folders =
        folder::unsafe_private(&owner_lock::folder(path), user).into_iter().chain(folder::unsafe_parent(path));
    open.chain(read).chain(folders.map(|fault| problem(ProblemKind::FileMode, fault.found, &fault.advice))).collect()
}
