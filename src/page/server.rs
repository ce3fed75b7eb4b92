//! The thread of the page: accepts connections and answers requests, on a runtime of its own.

use std::collections::BTreeSet;
use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioTimer;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::client::Client;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::model::event::Observer;
use crate::model::vitals::Vitals;
use crate::page::connection::{Connection, Connections};
use crate::page::guard::Guard;
use crate::page::limits::{Limits, MAX_ACTIONS, MAX_ANSWERS, MAX_HEAD_BYTES, MAX_HEADERS};
use crate::page::metrics::Metrics;
use crate::page::options::Page;
use crate::page::state::State;
use crate::page::{changes, routes};
use crate::store::Store;

/// Pause after a connection could not be accepted, as when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How many ports are tried.
const PORTS: usize = 10;
/// Time for database work at the end of the server. What takes longer ends by itself.
const END_LIMIT: Duration = Duration::from_millis(200);

/// A page that is being served. Dropping it ends its connections and its thread.
pub(crate) struct Server {
    address: SocketAddr,
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A page that has its address, and is not served yet.
pub(crate) struct Listening {
    page: Page,
    metrics: Metrics,
    listeners: Vec<std::net::TcpListener>,
}

type Listeners = std::io::Result<Vec<std::net::TcpListener>>;

impl Page {
    /// Listens on the address, and adds the observer that counts for the metrics.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if it is no address of the loopback interface; [`Error::Refused`] if it is in use.
    pub(crate) fn listen(
        self,
        observers: &mut Vec<Arc<dyn Observer>>,
        clock: &Arc<dyn Clock>,
        handlers: &BTreeSet<String>,
    ) -> Result<Listening> {
        let listeners =
            listen(&self.addresses()?, std::net::TcpListener::bind).map_err(|error| self.refused(&error))?;
        let metrics = Metrics::new(clock.clone(), handlers, self.has_metrics_per_task());
        observers.push(Arc::new(metrics.clone()));
        Ok(Listening { page: self, metrics, listeners })
    }

    /// Returns the error for an address that cannot be listened on.
    fn refused(&self, error: &std::io::Error) -> Error {
        let advice = match error.kind() {
            ErrorKind::AddrInUse => "; end the program that uses it, or choose another port (0: a free one)",
            _ => "",
        };
        Error::Refused { request: format!("listen on {}", self.address()), reason: format!("{error}{advice}") }
    }
}

/// Listens on all addresses, with one port. A port that the system chooses for the first address may be taken on another one: then
/// it chooses again.
fn listen(
    addresses: &[SocketAddr],
    mut bind: impl FnMut(SocketAddr) -> std::io::Result<std::net::TcpListener>,
) -> Listeners {
    let chooses = addresses.first().is_some_and(|first| first.port() == 0);
    for _ in 1..PORTS {
        match listen_once(addresses, &mut bind) {
            Err(error) if chooses && is_taken(&error) => {}
            listeners => return listeners,
        }
    }
    listen_once(addresses, &mut bind)
}

/// An address after the first that this machine does not have is left out: it may have no IPv6.
fn listen_once(
    addresses: &[SocketAddr],
    bind: &mut impl FnMut(SocketAddr) -> std::io::Result<std::net::TcpListener>,
) -> Listeners {
    let mut listeners: Vec<std::net::TcpListener> = Vec::new();
    for &(mut address) in addresses {
        if let Some(first) = listeners.first() {
            address.set_port(first.local_addr()?.port());
        }
        match bind(address) {
            Ok(listener) => listeners.push(listener),
            Err(error) if !listeners.is_empty() && !is_taken(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(listeners)
}

fn is_taken(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied)
}

impl Listening {
    /// Starts the thread that serves the page.
    ///
    /// # Errors
    /// If the reader cannot be made read-only, or the thread cannot start.
    pub(crate) fn serve(self, mut reader: Box<dyn Store>, writer: Client, vitals: Arc<Vitals>) -> Result<Server> {
        let Listening { page, metrics, listeners } = self;
        let limits = Limits::default();
        let token = reader.random_token()?;
        reader.refuse_writes()?;
        let reader = Client::new(reader, metrics.clock(), None);
        let guard = Guard::new(&addresses(&listeners)?, limits);
        let state = Arc::new(State::new(page, [reader, writer], metrics, vitals, token));
        let router = guard.around(routes::router(state.clone()));
        Server::start(listeners, limits, router, changes::watch(state))
    }
}

fn addresses(listeners: &[std::net::TcpListener]) -> Result<Vec<SocketAddr>> {
    let addresses = listeners.iter().map(std::net::TcpListener::local_addr).collect::<std::io::Result<_>>();
    addresses.map_err(|error| Error::store("serve the status page", error))
}

impl Server {
    /// Starts the thread. `beside` runs beside the connections.
    pub(super) fn start(
        listeners: Vec<std::net::TcpListener>,
        limits: Limits,
        router: Router,
        beside: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Self> {
        let cannot = |error| Error::store("serve the status page", error);
        let address = addresses(&listeners)?[0];
        let (stop, mut stopped) = watch::channel(());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // One more: the look for changes.
            .max_blocking_threads(MAX_ANSWERS + MAX_ACTIONS + 1)
            .thread_name("duly-page-data")
            .build()
            .map_err(cannot)?;
        let accept = async move {
            let connections = Connections::default();
            tokio::spawn(beside);
            for listener in listeners {
                listener.set_nonblocking(true)?;
                let listener = TcpListener::from_std(listener)?;
                tokio::spawn(accept(listener, router.clone(), connections.clone(), limits));
            }
            // Ends when the sender is dropped.
            let _ = stopped.changed().await;
            std::io::Result::Ok(())
        };
        let serve = move || {
            if let Err(error) = runtime.block_on(accept) {
                log::error!("the status page is not served: {error}");
            }
            runtime.shutdown_timeout(END_LIMIT);
        };
        let thread = thread::Builder::new().name("duly-page".into()).spawn(serve).map_err(cannot)?;
        Ok(Server { address, stop: Some(stop), thread: Some(thread) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, router: Router, connections: Connections, limits: Limits) {
    let service = TowerToHyperService::new(router);
    let mut is_refused = false;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                if !is_refused {
                    log::warn!("the status page cannot accept a connection: {error}; it tries again every 100 ms");
                }
                is_refused = true;
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        is_refused = false;
        let place = connections.add(limits.connections);
        let (id, service, answering) = (place.id(), service.clone(), place.answering.clone());
        let service = service_fn(move |mut request: hyper::Request<_>| {
            request.extensions_mut().insert(answering.clone());
            service.call(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head)
            .max_buf_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .serve_connection(Connection::new(stream, limits.write), service);
        let task = tokio::spawn(async move {
            // A client that is slow or breaks off is no fault.
            let _ = connection.await;
            drop(place);
        });
        connections.started(id, task.abort_handle());
        // Connections that were closed give their descriptors back before the next one is accepted.
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::{PORTS, listen};
    use crate::page::address::loopback;
    use std::io::{Error, ErrorKind};
    use std::net::TcpListener;

    #[test]
    fn a_chosen_port_that_is_taken_on_the_second_address_is_chosen_anew() {
        for (taken, text, kind) in [
            (PORTS - 1, "localhost:0", None),
            (PORTS, "localhost:0", Some(ErrorKind::AddrInUse)),
            // A port that the user names is the only one.
            (1, "localhost:8629", Some(ErrorKind::AddrInUse)),
        ] {
            let mut calls = 0;
            let listeners = listen(&loopback(text).unwrap(), |address| {
                calls += 1;
                let is_taken = calls % 2 == 0 && calls / 2 <= taken;
                if is_taken { Err(Error::from(ErrorKind::AddrInUse)) } else { TcpListener::bind((address.ip(), 0)) }
            });
            assert_eq!(listeners.as_ref().err().map(Error::kind), kind, "{text}, {taken} taken");
            assert!(kind.is_some() || listeners.is_ok_and(|listeners| !listeners.is_empty()));
        }
    }
}
