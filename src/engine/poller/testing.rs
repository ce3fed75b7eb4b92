//! A poller for tests.

use std::path::Path;
use std::time::Duration;

use crate::clock::{Now, Timestamp};
use crate::engine::poller::{Parts, Poller};
use crate::model::settings::Settings;
use crate::store::Store;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::file::{Durability, Missing};

pub(super) const NOON: Now =
    Now { wall: Timestamp::from_millis(1_805_025_600_000), monotonic: Duration::from_secs(100) };

/// Opens a database, and creates it if it is missing.
pub(super) fn store(database: &Path) -> SqliteStore {
    SqliteStore::open(database, Missing::Create, Durability::MayRepeatAfterPowerLoss).unwrap()
}

/// Returns the poller of the owner `a-1`, which has the handler `work`, at noon.
pub(super) fn poller(database: &Path) -> Poller {
    with_owner("a-1", Box::new(store(database)), database)
}

/// As [`poller`], of another owner, on another store. `database`: the path beside which its lock file is.
pub(super) fn with_owner(owner: &str, store: Box<dyn Store>, database: &Path) -> Poller {
    let parts = Parts {
        store,
        database: database.to_owned(),
        owner: owner.to_owned(),
        handlers: ["work".to_owned()].into(),
        settings: Settings::default(),
        observers: Vec::new(),
        random: fastrand::Rng::with_seed(1),
    };
    Poller::new(parts, NOON).unwrap()
}
