//! Registers an owner on a server: it takes the lock of its session first.

use crate::clock::Timestamp;
use crate::error::Result;
use crate::store::Store;
use crate::store::postgres::owner_session::OwnerConnection;
use crate::store::postgres::reach::client::Request;
use crate::store::postgres::{PostgresStore, owners};
use crate::store::turn_io::{Registered, Registration};

impl PostgresStore {
    /// Registers an owner after it has taken the lock of its session.
    pub(super) fn try_register(
        &mut self,
        new: &Registration,
        random: fastrand::Rng,
        now: Timestamp,
    ) -> Result<Registered> {
        self.bench.lock().rows.server.count_anew();
        self.rewound = None;
        self.ended.clear();
        self.end_session();
        // Before its id can be read: an owner that is registered and has no session looks dead.
        let session = OwnerConnection::take(self.bench.lock().rows.server.address(), &new.owner, new.lease);
        self.session = Some(session.map_err(|fault| self.memory.error(fault, "take the lock of this scheduler"))?);
        let registered =
            self.change(now, Request::Register, |memory, now| Store::register(memory, new, random.clone(), now));
        let given = self.given(now);
        registered.map(|mut registered| {
            let server = &mut self.bench.lock().rows.server;
            // That of the commit: a later statement may connect to a promoted standby that lacks the registration.
            let timeline = server.timeline().cloned();
            if let Some(session) = &mut self.session {
                session.keep_to_timeline(timeline.clone());
            }
            server.keep_to_timeline(timeline);
            owners::annotate_registered(server, &mut registered, given);
            registered
        })
    }
}
