//! Look-ups that a standby serves, or a server that refuses writes.

use std::time::Duration;

use postgres::config::TargetSessionAttrs;

use crate::clock::since_boot;
use crate::store::fault::Fault;
use crate::store::postgres::address::Address;
use crate::store::postgres::connect::Haste;
use crate::store::postgres::server::{Access, Link, Server};
use crate::store::sqlite::file::Durability;

/// How long a standby serves look-ups before a server that accepts writes is searched for again.
const SEARCH: Duration = Duration::from_secs(5);
/// How long each server may take in such a search: a look-up waits for it.
const SHORTLY: Haste = Haste { limit: Some(Duration::from_secs(2)) };

impl Server {
    /// As [`Server::connect`]. Look-ups are served by a standby while no server accepts writes.
    pub(crate) fn connect_to_look(address: &Address) -> Result<Self, Fault> {
        let mut server = Server::new(address, Durability::Full);
        server.looks = true;
        server.ensure_session(Access::Read)?;
        Ok(server)
    }

    /// Lets no standby serve from now on, as a scheduler needs it.
    pub(crate) fn require_primary(&mut self) {
        self.looks = false;
    }

    /// Returns whether the server that serves is a standby, which shows no locks of sessions.
    pub(crate) fn is_standby(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.session.is_standby)
    }

    /// Connects if there is no session, or if a standby serves and something is written, or the time has come to search for a server that
    /// accepts writes. No transaction is open.
    pub(super) fn ensure_session(&mut self, access: Access) -> Result<(), Fault> {
        let serves = self.link.is_some();
        if serves && self.search_at.is_none() {
            return Ok(());
        }
        if access == Access::Write || !self.looks {
            return self.reconnect(Haste::default());
        }
        if serves && self.search_at.is_some_and(|at| since_boot() < at) {
            return Ok(());
        }
        match self.reconnect(if serves { SHORTLY } else { Haste::default() }) {
            // The standby goes on serving.
            Err(_) if self.link.is_some() => self.search_at = Some(since_boot() + SEARCH),
            Err(fault) if fault.is_about_a_read_only_server() => {
                let link = self.link(Haste::default(), TargetSessionAttrs::Any)?;
                self.use_link(link, Some(since_boot() + SEARCH))?;
            }
            done => done?,
        }
        Ok(())
    }

    /// Has the next look-up search for a server that accepts writes.
    #[cfg(test)]
    pub(crate) fn search_now(&mut self) {
        self.search_at = self.search_at.map(|_| Duration::ZERO);
    }

    /// Serves by a new connection. `search_at`: when a server that accepts writes is searched for, if this one does not.
    pub(super) fn use_link(&mut self, link: Link, search_at: Option<Duration>) -> Result<(), Fault> {
        self.link = Some(link);
        if let Err(fault) = self.refuse_pooler() {
            self.link = None;
            return Err(fault);
        }
        let was_lost = std::mem::take(&mut self.lost) && !self.is_mute;
        let only_looked = std::mem::replace(&mut self.search_at, search_at).is_some();
        match (only_looked, search_at.is_some()) {
            (false, true) if was_lost => log::warn!(
                "connected to {} again: a standby, or a server that refuses writes, serves look-ups until another server accepts writes",
                self.address
            ),
            (true, false) => log::info!("connected to {}: a server that accepts writes serves again", self.address),
            _ if was_lost => log::info!("connected to {} again", self.address),
            _ => {}
        }
        Ok(())
    }
}
