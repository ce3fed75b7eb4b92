//! Look-ups that a standby serves, or a server that refuses writes.

use crate::store::fault::Fault;
use crate::store::postgres::address::Address;
use crate::store::postgres::connect::Haste;
use crate::store::postgres::server::Server;
use crate::store::postgres::session;
use crate::store::sqlite::file::Durability;

impl Server {
    /// As [`Server::connect`]. Look-ups are served by a standby where there is no primary.
    pub(crate) fn connect_to_look(address: &Address) -> Result<Self, Fault> {
        let mut server = Server::new(address, Durability::Full);
        server.looks = true;
        server.reconnect(Haste::default())?;
        Ok(server)
    }

    /// Returns whether the server that serves is a standby or refuses writes.
    pub(crate) fn only_looks(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.session.only_looks)
    }

    /// Lets no standby serve from now on, as a scheduler needs it.
    pub(crate) fn require_primary(&mut self) {
        self.looks = false;
    }

    /// Looks for a server that accepts writes, if this one does not.
    pub(super) fn leave_standby(&mut self) -> Result<(), Fault> {
        if !self.only_looks() {
            return Ok(());
        }
        self.looks = false;
        let connected = self.reconnect(Haste::default());
        self.looks = true;
        connected.map_err(|fault| match session::is_standby(&fault) {
            true => session::unusable(&self.address, format!("{fault}; it serves look-ups only")),
            false => fault,
        })
    }
}
