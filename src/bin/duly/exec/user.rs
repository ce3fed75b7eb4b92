//! Commands that run as another user.
//!
//! std cannot set supplementary groups, and between fork and exec only unsafe code could. The scheduler therefore starts this
//! program once more, in the role [`ROLE`]: it becomes the user, and replaces itself by the command. Process, session, group and
//! the lock on the input file are then those of the command.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use duly::{BoxError, Failure};

use crate::exec::payload::{PAYLOAD_FILE, Payload};
use crate::exec::system::{LOCK, is_shortage};

/// First argument of the program in its role as the starter of a command of another user.
const ROLE: &str = "--exec-as";
/// Exit code if the program cannot become the user; that of a missing program is 127, of any other failed start 126, as of `env`.
const CANNOT_BECOME: u8 = 125;
/// Prefix of the variables of the command in the environment of the starter, which begins as root: by its own name, a variable
/// such as `LD_LIBRARY_PATH` would load code of the user into it.
const PREFIX: &str = "DULY_AS_";

/// An account of this machine, as it was when the command was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    name: String,
    uid: u32,
    gid: u32,
    /// The supplementary groups, and `gid`.
    groups: Vec<u32>,
    home: String,
    shell: String,
}

impl Account {
    /// Looks up the user that a task names. Only root can start commands of other users.
    pub(crate) fn of_task(name: &str) -> Result<Self, BoxError> {
        if !system::is_root() {
            let error = format!("the task names user {name:?}, but duly does not run as root");
            return Err(Failure::give_up(error).into());
        }
        // Unknown users are tried again: a directory service may answer later.
        let found = system::look_up(name).map_err(|error| {
            let reason = format!("cannot look up user {name:?}: {error}");
            if is_short_of_resources(&error) { BoxError::from(Failure::not_started(reason)) } else { reason.into() }
        })?;
        found.ok_or_else(|| format!("the task names user {name:?}: there is no such user here").into())
    }

    /// Returns the variables that describe the user.
    pub(crate) fn variables(&self) -> [(&'static str, &str); 4] {
        [("HOME", &self.home), ("USER", &self.name), ("LOGNAME", &self.name), ("SHELL", &self.shell)]
    }

    /// Returns the starter of a command, as this user. Of `command` it takes the variables. `file`: the payload file, whose path the
    /// user may be unable to reach.
    pub(crate) fn starter(&self, command: &Command, payload: &Payload, file: Option<&Path>) -> Command {
        let groups: Vec<String> = self.groups.iter().map(u32::to_string).collect();
        let mut starter = system::this_program();
        starter
            .args([ROLE, &self.name, &self.uid.to_string(), &self.gid.to_string(), &groups.join(",")])
            .arg(payload.cwd.as_deref().unwrap_or(&self.home))
            .arg(file.unwrap_or(Path::new("")))
            .args(&payload.argv)
            .env_clear();
        for (name, value) in command.get_envs().filter_map(|(name, value)| Some((name, value?))) {
            let mut prefixed = OsString::from(PREFIX);
            prefixed.push(name);
            starter.env(prefixed, value);
        }
        starter
    }
}

/// Whether a user could not be looked up for want of resources. A directory service that does not answer for now (`EAGAIN`) is no
/// shortage: it concerns the tasks of its users alone, and counts as an unknown user does.
fn is_short_of_resources(error: &io::Error) -> bool {
    is_shortage(error) && error.kind() != io::ErrorKind::WouldBlock
}

/// Returns whether the machine has a user of this name, if that can be known.
pub(crate) fn exists(name: &str) -> Option<bool> {
    system::look_up(name).ok().map(|account| account.is_some())
}

/// Returns the name of the user of this process, if the machine knows it.
pub(crate) fn login_name() -> Option<&'static str> {
    static NAME: LazyLock<Option<String>> = LazyLock::new(system::login_name);
    NAME.as_deref()
}

/// Returns this program, even if an upgrade has replaced its file.
pub(crate) fn this_program() -> Command {
    system::this_program()
}

/// Closes the descriptors after standard error, which this process has inherited. It must have opened none itself.
pub(crate) fn close_inherited() -> io::Result<()> {
    system::close_inherited(|_| false)
}

/// In the role of the starter: becomes the user, and replaces this process by the command. Returns only if that fails, with a
/// message and the exit code; `None` in any other role.
pub(crate) fn become_user(words: impl Iterator<Item = OsString>) -> Option<(String, u8)> {
    let mut words = words.skip(1);
    if words.next()? != ROLE {
        return None;
    }
    let words: Vec<OsString> = words.collect();
    let [name, uid, gid, groups, cwd, file, program, arguments @ ..] = &words[..] else {
        return Some((format!("{ROLE} is for duly itself"), CANNOT_BECOME));
    };
    let name = name.to_string_lossy();
    let number = |text: &str| text.parse::<u32>().ok();
    let all = groups.to_str().and_then(|groups| groups.split(',').map(number).collect::<Option<Vec<u32>>>());
    let (Some(uid), Some(gid), Some(groups)) = (uid.to_str().and_then(number), gid.to_str().and_then(number), all)
    else {
        return Some((format!("{ROLE} is for duly itself"), CANNOT_BECOME));
    };
    let own = |(name, value): (OsString, OsString)| Some((name.to_str()?.strip_prefix(PREFIX)?.to_owned(), value));
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(std::env::vars_os().filter_map(own));
    // Beside its input and output, the command keeps its locked file.
    if let Err(error) = system::close_inherited(|descriptor| descriptor == LOCK) {
        return Some((format!("cannot close the descriptors of root: {error}"), CANNOT_BECOME));
    }
    if let Err(error) = system::give_standard(uid, gid) {
        return Some((format!("cannot give its input and output to user {name:?}: {error}"), CANNOT_BECOME));
    }
    if !file.is_empty() {
        match system::pass_on(Path::new(file), uid, gid) {
            Ok(path) => command.env(PAYLOAD_FILE, path),
            Err(error) => return Some((format!("cannot open the payload file: {error}"), CANNOT_BECOME)),
        };
    }
    if let Err(error) = system::change(uid, gid, &groups) {
        return Some((format!("cannot become user {name:?}: {error}"), CANNOT_BECOME));
    }
    // As the user, who may have no access.
    if let Err(error) = std::env::set_current_dir(cwd) {
        let cwd = cwd.to_string_lossy();
        return Some((format!("user {name:?} cannot enter the cwd {cwd:?} of the task: {error}"), CANNOT_BECOME));
    }
    let error = system::replace(&mut command);
    let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    Some((format!("cannot start {:?} as user {name:?}: {error}", program.to_string_lossy()), code))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use std::ffi::CString;
    use std::fs::{DirEntry, File};
    use std::io;
    use std::os::unix::fs::{chown, fchown};
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::Command;

    use nix::unistd::{Gid, Uid, User, close, geteuid, getgrouplist, setgid, setgroups, setuid};

    use crate::exec::user::Account;

    /// Shells of accounts without a login. A program that starts `$SHELL` would only end.
    const NO_LOGIN: [&str; 2] = ["/nologin", "/false"];

    pub(super) fn is_root() -> bool {
        geteuid().is_root()
    }

    /// Returns the account of this name. An error does not mean that there is none.
    pub(super) fn look_up(name: &str) -> io::Result<Option<Account>> {
        let Ok(login) = CString::new(name) else { return Ok(None) };
        let Some(user) = User::from_name(name)? else { return Ok(None) };
        let groups = getgrouplist(&login, user.gid)?;
        Ok(Some(Account {
            name: user.name,
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            groups: groups.into_iter().map(Gid::as_raw).collect(),
            home: Some(user.dir.to_string_lossy().into_owned()).filter(|home| !home.is_empty()).unwrap_or("/".into()),
            shell: Some(user.shell.to_string_lossy().into_owned())
                .filter(|shell| !shell.is_empty() && !NO_LOGIN.iter().any(|name| shell.ends_with(name)))
                .unwrap_or("/bin/sh".into()),
        }))
    }

    pub(super) fn login_name() -> Option<String> {
        User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.name)
    }

    /// Closes the descriptors after standard error. The starter has opened none; the scheduler may have inherited some, which are
    /// for root. `keeps`: which of them stay open.
    pub(super) fn close_inherited(keeps: impl Fn(i32) -> bool) -> io::Result<()> {
        let listed = std::fs::read_dir("/proc/self/fd")?;
        let number = |entry: io::Result<DirEntry>| Ok(entry?.file_name().to_str().and_then(|name| name.parse().ok()));
        let open: Vec<Option<i32>> = listed.map(number).collect::<io::Result<_>>()?;
        for descriptor in open.into_iter().flatten().filter(|one| *one > 2 && !keeps(*one)) {
            // That of the list is closed already.
            let _ = close(descriptor);
        }
        Ok(())
    }

    /// Gives the standard input and output to the user, so that `/dev/stdin`, `/dev/stdout` and `/dev/stderr` can be opened.
    pub(super) fn give_standard(uid: u32, gid: u32) -> io::Result<()> {
        (0..=2).try_for_each(|descriptor| chown(format!("/proc/self/fd/{descriptor}"), Some(uid), Some(gid)))
    }

    /// Returns this program, even if an upgrade has replaced its file.
    pub(super) fn this_program() -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("duly");
        command
    }

    /// Opens a file for the command, which inherits it, and returns a path by which the user may open it again: the folder of the
    /// file is private to root.
    pub(super) fn pass_on(path: &Path, uid: u32, gid: u32) -> io::Result<String> {
        use std::os::fd::{AsRawFd, IntoRawFd};
        let file = File::open(path)?;
        fchown(&file, Some(uid), Some(gid))?;
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty())?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        // Stays open: the command inherits it.
        let _ = file.into_raw_fd();
        Ok(path)
    }

    /// The user last: the groups cannot be changed afterwards.
    pub(super) fn change(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
        let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
        setgroups(&groups)?;
        setgid(Gid::from_raw(gid))?;
        Ok(setuid(Uid::from_raw(uid))?)
    }

    pub(super) fn replace(command: &mut Command) -> io::Error {
        command.exec()
    }
}

/// On other systems no task can name a user.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    use std::io;
    use std::path::Path;
    use std::process::Command;

    use crate::exec::user::Account;

    pub(super) fn is_root() -> bool {
        true
    }

    pub(super) fn look_up(_name: &str) -> io::Result<Option<Account>> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this is supported on Linux only"))
    }

    pub(super) fn login_name() -> Option<String> {
        None
    }

    pub(super) fn close_inherited(_keeps: impl Fn(i32) -> bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn give_standard(_uid: u32, _gid: u32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn this_program() -> Command {
        Command::new("duly")
    }

    pub(super) fn pass_on(_path: &Path, _uid: u32, _gid: u32) -> io::Result<String> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn change(_uid: u32, _gid: u32, _groups: &[u32]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn replace(_command: &mut Command) -> io::Error {
        io::ErrorKind::Unsupported.into()
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::io;

    use rustix::io::Errno;

    use crate::exec::user::is_short_of_resources;

    #[test]
    fn a_directory_service_that_does_not_answer_is_no_want_of_resources() {
        for (error, expected) in [
            (Errno::MFILE, true),
            (Errno::NOMEM, true),
            (Errno::AGAIN, false),
            (Errno::IO, false),
            (Errno::ACCESS, false),
        ] {
            assert_eq!(is_short_of_resources(&io::Error::from(error)), expected, "{error}");
        }
    }
}
