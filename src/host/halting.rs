//! Halting owners whose claims may be of an earlier history, and which owners have not compared theirs.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use crate::host::attempt_slots::{self, BegunAttempts, Content};
use crate::host::owner_lock::{Standing, folder, is_drawn, list, standing};
use crate::host::platform;

/// Halts an owner: it begins no claim any more. Returns what it had begun and not ended before, and some
/// attempts that have ended; `None`: it cannot be known.
pub(crate) fn halt(database: &Path, owner: &str) -> Option<BegunAttempts> {
    let options = &mut OpenOptions::new();
    let file = platform::open_regular(&folder(database).join(owner), options.read(true).write(true)).ok()?;
    attempt_slots::halt(&file).ok()?;
    match attempt_slots::read(&file, database) {
        Content::Slots { begun, .. } => begun,
        Content::Copy => None,
    }
}

/// Halts each owner that is not known to be dead: it begins no claim of the present history any more. Returns
/// what all owners had begun and not ended before, and some attempts that have ended; `None`: it cannot be known.
/// `registering`: an owner that has no claims yet. Fails if this process cannot look.
pub(crate) fn halt_all(database: &Path, registering: Option<&str>) -> io::Result<Vec<(String, Option<BegunAttempts>)>> {
    let read = |owner: String| match standing(database, &owner) {
        Standing::Dead(dead) => Some((owner, dead.begun().as_deref().cloned())),
        Standing::Unknown(_) if !is_drawn(&owner) => None,
        Standing::Alive { .. } | Standing::TakenOver(_) | Standing::Unknown(_) => {
            let begun = halt(database, &owner);
            Some((owner, begun))
        }
        Standing::Missing => None,
    };
    let owners = list(database)?.into_iter().filter(|owner| Some(owner.as_str()) != registering);
    Ok(owners.filter_map(read).collect())
}

/// A living owner that has not compared its claims with the rows after a change of the schema.
#[derive(Debug)]
pub(crate) struct Laggard {
    pub(crate) owner: String,
    /// It begins no claim any more, and what it has begun is in its slots.
    pub(crate) is_halted: bool,
}

/// Returns the living owners, other than this one, that have not compared their claims with rows whose schema has this cookie. On Windows
/// that cannot be known, and does not count. Fails if this process cannot look now, which shows nothing of any owner.
pub(crate) fn behind(database: &Path, observer: &str, cookie: i64) -> io::Result<Vec<Laggard>> {
    let mut behind = Vec::new();
    let others = list(database)?.into_iter().filter(|owner| cfg!(unix) && owner != observer && is_drawn(owner));
    for owner in others {
        let file = platform::open_regular(&folder(database).join(&owner), OpenOptions::new().read(true));
        let look = |file: File| Ok((attempt_slots::is_behind(&file, cookie)?, attempt_slots::is_halted(&file)?));
        let (is_behind, is_halted) = match file.and_then(look) {
            Err(error) if platform::is_shortage(&error) => return Err(error),
            looked => looked.unwrap_or((true, false)),
        };
        if is_behind && matches!(standing(database, &owner), Standing::Alive { .. } | Standing::Unknown(_)) {
            behind.push(Laggard { owner, is_halted });
        }
    }
    Ok(behind)
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::{behind, halt_all};
    use crate::host::owner_lock::{OwnerLock, folder, new_owner};

    #[test]
    fn a_file_in_the_folder_that_is_no_owners_is_not_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        std::fs::write(&database, "").unwrap();
        let owner = new_owner(&mut fastrand::Rng::new());
        let lock = OwnerLock::take(&database, &owner).unwrap();
        std::fs::create_dir(folder(&database).join("backup")).unwrap();
        let found =
            || behind(&database, "", 1).unwrap().into_iter().map(|one| (one.owner, one.is_halted)).collect::<Vec<_>>();
        assert_eq!(found(), [(owner.clone(), false)]);
        let halted: Vec<String> = halt_all(&database, None).unwrap().into_iter().map(|(owner, _)| owner).collect();
        assert_eq!(halted, std::slice::from_ref(&owner));
        assert_eq!(found(), [(owner, true)], "what it has begun may not be stored");
        lock.compared(1);
        assert_eq!(found(), []);
    }
}
