//! Connects to one of the servers of an address, encrypted as the address asks.

use std::error::Error as _;
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use postgres::config::{SslMode, TargetSessionAttrs};
use postgres::error::SqlState;
use postgres::{Config, Error};

use crate::error::{BoxError, Unreachable};
use crate::store::fault::{Class, Fault};
use crate::store::postgres::address::{Address, Place};
use crate::store::postgres::client::Client;
use crate::store::postgres::session;
use crate::store::postgres::stream::{Connector, Limit, is_of};
use crate::store::postgres::tls::Mode;

/// The startup option by which a session of duly's own is known: poolers refuse it or drop it.
const OWN: &str = "-c duly.store=on";

/// How a connection is to be made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Haste {
    /// A shorter limit of time than that of the address, for a caller that tries again.
    pub(crate) limit: Option<Duration>,
}

/// Connects to the first server that accepts a session, as `target` says: any, or one that writes.
/// `limit`: of every answer.
pub(crate) fn connect(
    address: &Address,
    haste: Haste,
    target: TargetSessionAttrs,
    limit: &Limit,
) -> Result<Client, Fault> {
    let places = address.places();
    let mut failures = Vec::new();
    for place in &places {
        match connect_to(address, place, (haste, target), limit) {
            Ok(client) => return Ok(client),
            Err(fault) => failures.push((*place, fault)),
        }
    }
    let told = failures.iter().map(|(place, fault)| format!("{}:{}: {fault}", place.host, place.port));
    let told = told.collect::<Vec<_>>().join("; ");
    if failures.iter().any(|(_, fault)| matches!(fault, Fault::Store(_, cause) if cause.is::<Unreachable>())) {
        let is_read_only = failures.iter().any(|(_, fault)| fault.is_about_a_read_only_server());
        let class = if is_read_only { Class::ReadOnly } else { Class::Other };
        return Err(Fault::Store(class, Unreachable(told).into()));
    }
    // A person must change the address, or the server.
    Err(session::unusable(address, told))
}

fn connect_to(
    address: &Address,
    place: &Place,
    (haste, target): (Haste, TargetSessionAttrs),
    limit: &Limit,
) -> Result<Client, Fault> {
    let modes: &[SslMode] = match address.tls().mode {
        _ if place.is_socket() => &[SslMode::Disable],
        Mode::Disable => &[SslMode::Disable],
        Mode::Allow => &[SslMode::Disable, SslMode::Require],
        Mode::Prefer => &[SslMode::Prefer, SslMode::Disable],
        Mode::Require | Mode::VerifyCa | Mode::VerifyFull => &[SslMode::Require],
    };
    let mut config = place.config.clone();
    if let Some(most) = haste.limit {
        let most = config.get_connect_timeout().map_or(most, |given| most.min(*given));
        config.connect_timeout(most);
    }
    config.target_session_attrs(target);
    let own = format!("{} {OWN}", config.get_options().unwrap_or_default());
    let without = config.clone();
    config.options(&own);
    let mut modes = modes.iter().peekable();
    let mut is_own = true;
    while let Some(mode) = modes.peek() {
        let error = match connect_once(address, place, (&config, **mode), limit)? {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        if is_own && refuses_options(&error) {
            is_own = false;
            config = without.clone();
            continue;
        }
        modes.next();
        if modes.peek().is_none() || !(refuses_mode(&error) || fails_to_encrypt(&error)) {
            return Err(error.into());
        }
    }
    Err(Fault::Store(Class::Other, "no way to connect is left".into()))
}

/// Returns an error of the files of certificates as the outer error.
fn connect_once(
    address: &Address,
    place: &Place,
    (config, mode): (&Config, SslMode),
    limit: &Limit,
) -> Result<Result<Client, Error>, Fault> {
    let tls = if mode == SslMode::Disable { None } else { Some(address.tls().connector()) };
    let tls = tls.transpose().map_err(|error: BoxError| Fault::Store(Class::Other, error))?;
    let mut connector = Connector::new(config, mode, tls, limit);
    let mut config = config.clone();
    if place.is_socket() {
        let socket = Path::new(&place.host).join(format!(".s.PGSQL.{}", place.port));
        connector = match connector.over_socket(socket, &mut config) {
            Ok(connector) => connector,
            Err(error) => {
                static WARNING: Once = Once::new();
                let folder = &place.host;
                WARNING.call_once(|| {
                    log::warn!("answers over the socket in {folder} have no deadline: no TCP on 127.0.0.1: {error}");
                });
                return Ok(Client::connect_plainly(config.host(&place.host).port(place.port).ssl_mode(mode)));
            }
        };
    }
    connector.arrange(&mut config);
    Ok(Client::connect(&config, connector))
}

/// A pooler knows no startup option.
fn refuses_options(error: &Error) -> bool {
    error.code() == Some(&SqlState::PROTOCOL_VIOLATION)
}

/// No line of `pg_hba.conf` fits a connection of this kind.
fn refuses_mode(error: &Error) -> bool {
    error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
}

fn fails_to_encrypt(error: &Error) -> bool {
    error.source().and_then(|source| source.downcast_ref()).is_some_and(is_of::<rustls::Error>)
}
