//! What two looks at a database and its files show that one cannot: it may be moved between the look at its place and the look at them.

use crate::store::fault::Fault;

/// Returns the fault of the files of a database that two looks have found, after each of which the database was in its place. If it is moved
/// between two looks, also back again, its log is missing at one of them and was not removed.
pub(crate) fn looked_twice(
    mut files: impl FnMut() -> Result<(), Fault>,
    mut in_place: impl FnMut() -> Result<(), Fault>,
) -> Result<(), Fault> {
    if files().is_ok() {
        return Ok(());
    }
    in_place()?;
    let found = files();
    in_place()?;
    found
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use rusqlite::Connection;

    use crate::host::platform;
    use crate::store::sqlite::connection::looks::looked_twice;
    use crate::store::sqlite::damage::Files;
    use crate::store::sqlite::schema::unusable;

    /// What two looks find of a database that is moved, or moved back, before each of them.
    #[test]
    fn a_database_that_is_moved_between_two_looks_has_not_lost_its_log() {
        let home = tempfile::tempdir().unwrap();
        let [folder, away] = ["folder", "away"].map(|name| home.path().join(name));
        std::fs::create_dir(&folder).unwrap();
        let [file, log] = ["d.db", "d.db-wal"].map(|name| folder.join(name));
        let connection = Connection::open(&file).unwrap();
        connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (a)").unwrap();
        let files = Files::of(&file, platform::identity_at(&file));
        let there = |is_there: bool| {
            if is_there != folder.exists() {
                let (from, to) = if is_there { (&away, &folder) } else { (&folder, &away) };
                std::fs::rename(from, to).unwrap();
            }
        };
        let moved = || file.metadata().map(drop).map_err(|_| unusable(&file, "moved".into()));
        // Where the folder is at each look: at the files, at the place, at the files, at the place.
        let found = |places: [bool; 4]| {
            let mut places = places.into_iter();
            let places = RefCell::new(&mut places);
            let step = || there(places.borrow_mut().next().unwrap_or(true));
            let look = || {
                step();
                files.check(&connection)
            };
            let place = || {
                step();
                moved()
            };
            looked_twice(look, place).map_err(|fault| format!("{fault}"))
        };
        assert_eq!(found([true; 4]), Ok(()));
        for moved in [[false, false, true, true], [false, true, false, false]] {
            let found = found(moved).unwrap_err();
            assert!(found.ends_with("moved"), "{moved:?}: {found}");
        }
        assert_eq!(found([false, true, true, true]), Ok(()), "moved away and back");
        there(true);
        std::fs::remove_file(&log).unwrap();
        let found = found([true; 4]).unwrap_err();
        assert!(found.contains("d.db-wal, which is part of it, was removed"), "{found}");
    }
}
