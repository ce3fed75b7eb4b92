//! The thread of the page: accepts connections and answers requests, on a runtime of its own.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::client::Client;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::model::event::Observer;
use crate::model::vitals::Vitals;
use crate::page::kept::Monitor;
use crate::page::metrics::Metrics;
use crate::page::options::Page;
use crate::page::routes;
use crate::page::state::State;
use crate::store::Store;

/// Time limit for the request line and the headers of a request.
const HEAD_LIMIT: Duration = Duration::from_secs(5);

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

impl Page {
    /// Listens on the address, and adds the observer that counts for the metrics.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if it is no address of the loopback interface; an error if it is in use.
    pub(crate) fn listen(
        self,
        observers: &mut Vec<Arc<dyn Observer>>,
        clock: &Arc<dyn Clock>,
        handlers: &BTreeSet<String>,
    ) -> Result<Listening> {
        let addresses = self.addresses()?;
        let listeners = addresses.iter().map(std::net::TcpListener::bind).collect::<Result<Vec<_>, _>>();
        let listeners = listeners.map_err(|error| Error::store("listen for the status page", error))?;
        let metrics = Metrics::new(clock.clone(), handlers, self.has_metrics_per_task());
        observers.push(Arc::new(metrics.clone()));
        Ok(Listening { page: self, metrics, listeners })
    }
}

impl Listening {
    /// Starts the thread that serves the page.
    ///
    /// # Errors
    /// If the thread cannot start.
    pub(crate) fn serve(self, reader: Box<dyn Store>, writer: Client, vitals: Arc<Vitals>) -> Result<Server> {
        let Listening { page, metrics, listeners } = self;
        let cannot = |error| Error::store("serve the status page", error);
        let address = listeners[0].local_addr().map_err(cannot)?;
        let token = format!("{:032x}", u128::from_be_bytes(std::array::from_fn(|_| fastrand::u8(..))));
        let (clock, monitor) = (metrics.clock(), Monitor::new());
        let reader = Client::new(reader, clock.clone(), None);
        let state = Arc::new(State { page, reader, writer, metrics, monitor, clock, vitals, token });
        let (stop, stopped) = watch::channel(());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        let thread = thread::Builder::new()
            .name("duly-page".into())
            .spawn(move || runtime.block_on(serve(listeners, state, stopped)))
            .map_err(cannot)?;
        Ok(Server { address, stop: Some(stop), thread: Some(thread) })
    }
}

impl Server {
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

async fn serve(listeners: Vec<std::net::TcpListener>, state: Arc<State>, mut stopped: watch::Receiver<()>) {
    let service = TowerToHyperService::new(routes::router(state));
    for listener in listeners {
        let service = service.clone();
        let Ok(listener) = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener)) else {
            return;
        };
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD_LIMIT)
                    .serve_connection(TokioIo::new(stream), service.clone());
                tokio::spawn(connection);
            }
        });
    }
    // Ends when the sender is dropped.
    let _ = stopped.changed().await;
}
