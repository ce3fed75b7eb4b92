//! The bytes of a connection, and the deadline of every answer: the only place through which anything is asked of a server.
//!
//! The crate `postgres` opens connections itself, and waits for ever for an answer that does not come. It lends out the bytes of a
//! connection only to encrypt them. Every connection of duly is therefore one that the crate takes for encrypted: [`Connector`] encrypts it
//! or not, as the address asks, and [`Stream`] knows whether an answer is due. A wait for notifications is none.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use postgres::config::{SslMode, SslNegotiation};
use postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use postgres::{Config, Socket};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::clock;

/// Asks whether the server encrypts: its length, and the number of the request.
const MAY_I_ENCRYPT: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// How long a connection of this process to itself may take.
const NEAR: Duration = Duration::from_secs(1);

/// How long a server may be silent while an answer is due. Shared by the connections that follow each other.
#[derive(Clone, Debug)]
pub(crate) struct Limit(Arc<AtomicU64>);

impl Limit {
    pub(crate) fn new(limit: Duration) -> Self {
        Limit(Arc::new(AtomicU64::new(whole(limit))))
    }

    fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    /// Sets the limit of this connection and of those that follow. Returns what it was.
    pub(crate) fn set(&self, limit: Duration) -> Duration {
        Duration::from_millis(self.0.swap(whole(limit), Ordering::Relaxed))
    }
}

fn now() -> Instant {
    Instant::from_std(clock::instant())
}

fn whole(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
}

/// The server said nothing for too long, or the connection was not made.
#[derive(Debug)]
pub(crate) struct Trouble(String);

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Trouble {}

/// Returns whether a cause of this type is within an error.
pub(crate) fn is_of<T: std::error::Error + 'static>(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<T>())
}

/// Makes the streams of connections.
pub(crate) struct Connector {
    mode: SslMode,
    negotiation: SslNegotiation,
    tls: Option<MakeRustlsConnect>,
    /// The Unix socket, if it is not TCP.
    socket: Option<PathBuf>,
    /// How long the server may take from the first byte until it has accepted the session.
    startup: Duration,
    limit: Limit,
    /// Where the crate connects to in place of a Unix socket: it lends out the bytes of TCP only. Nothing is ever sent there.
    placeholder: Option<TcpListener>,
}

impl Connector {
    pub(crate) fn new(config: &Config, mode: SslMode, tls: Option<MakeRustlsConnect>, limit: &Limit) -> Self {
        let startup = config.get_connect_timeout().copied().unwrap_or_else(|| limit.get());
        let (negotiation, limit) = (config.get_ssl_negotiation(), limit.clone());
        Connector { mode, negotiation, tls, socket: None, startup, limit, placeholder: None }
    }

    /// Has the streams be those of a Unix socket. Fails if this process can open no TCP connection to itself: sockets of TCP may be
    /// forbidden, and packets to 127.0.0.1 dropped.
    pub(crate) fn over_socket(mut self, socket: PathBuf, config: &mut Config) -> io::Result<Self> {
        let placeholder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        drop(TcpStream::connect_timeout(&placeholder.local_addr()?, NEAR)?);
        config.host("localhost").hostaddr(Ipv4Addr::LOCALHOST.into()).port(placeholder.local_addr()?.port());
        (self.socket, self.placeholder) = (Some(socket), Some(placeholder));
        Ok(self)
    }

    /// Has the crate lend out the bytes of each connection, and make each in time.
    pub(crate) fn arrange(&self, config: &mut Config) {
        config.connect_timeout(self.startup).ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
    }
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Stream;
    type TlsConnect = Opening;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<Opening> {
        let tls = self.tls.as_mut().map(|tls| MakeTlsConnect::<Wire>::make_tls_connect(tls, domain)).transpose();
        Ok(Opening {
            tls: tls.map_err(io::Error::other)?,
            socket: self.socket.clone(),
            mode: self.mode,
            negotiation: self.negotiation,
            startup: self.startup,
            limit: self.limit.clone(),
        })
    }
}

/// A connection that is being made.
pub(crate) struct Opening {
    mode: SslMode,
    negotiation: SslNegotiation,
    tls: Option<<MakeRustlsConnect as MakeTlsConnect<Wire>>::TlsConnect>,
    socket: Option<PathBuf>,
    startup: Duration,
    limit: Limit,
}

impl TlsConnect<Socket> for Opening {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, tcp: Socket) -> Self::Future {
        Box::pin(async move {
            let (startup, limit) = (self.startup, self.limit.clone());
            let until = now() + startup;
            let bytes = timeout_at(until, self.open(tcp)).await;
            let bytes = bytes.unwrap_or_else(|_| Err(not_accepted(startup))).map_err(described)?;
            Ok(Stream::new(bytes, until, startup, limit))
        })
    }
}

impl Opening {
    async fn open(self, tcp: Socket) -> io::Result<Bytes> {
        let mut wire: Wire = match self.socket {
            None => Box::new(tcp),
            #[cfg(unix)]
            Some(path) => Box::new(tokio::net::UnixStream::connect(path).await?),
            #[cfg(not(unix))]
            Some(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        let Some(tls) = self.tls else { return Ok(Bytes::Plain(wire)) };
        if self.negotiation == SslNegotiation::Postgres {
            wire.write_all(&MAY_I_ENCRYPT).await?;
            let mut answer = [0];
            wire.read_exact(&mut answer).await?;
            match answer {
                [b'S'] => {}
                _ if self.mode == SslMode::Prefer => return Ok(Bytes::Plain(wire)),
                _ => return Err(io::Error::new(io::ErrorKind::Unsupported, "server does not support TLS")),
            }
        } else if self.mode == SslMode::Prefer {
            let text = "sslnegotiation=direct needs sslmode=require, verify-ca or verify-full";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        tls.connect(wire).await.map(|stream| Bytes::Encrypted(Box::new(stream)))
    }
}

/// The crate says of every error that it is one of the TLS handshake.
fn described(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::Unsupported || is_of::<rustls::Error>(&error) || is_of::<Trouble>(&error) {
        return error;
    }
    io::Error::new(error.kind(), Trouble(format!("error connecting to server: {error}")))
}

fn not_accepted(startup: Duration) -> io::Error {
    let text = format!(
        "the server accepts connections and has not begun a session within {startup:?} (connect_timeout): look whether it is frozen or \
         overloaded, and at proxies and firewalls before it"
    );
    io::Error::new(io::ErrorKind::TimedOut, Trouble(text))
}

fn not_answered(limit: Duration) -> io::Error {
    let text = format!(
        "no answer within {limit:?}: look whether the server is frozen or overloaded, and at proxies and firewalls before it"
    );
    io::Error::new(io::ErrorKind::TimedOut, Trouble(text))
}

trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

type Wire = Box<dyn Duplex>;

enum Bytes {
    Plain(Wire),
    Encrypted(Box<<MakeRustlsConnect as MakeTlsConnect<Wire>>::Stream>),
}

impl Bytes {
    fn pin(&mut self) -> Pin<&mut dyn Duplex> {
        match self {
            Bytes::Plain(wire) => Pin::new(wire),
            Bytes::Encrypted(stream) => Pin::new(stream.as_mut()),
        }
    }
}

/// Walks over the messages of one direction. Each begins with its type and its length, but for the first one of a client, which has no type.
#[derive(Debug, Default)]
struct Messages {
    head: [u8; 5],
    have: usize,
    /// Bytes of the message that follow.
    left: usize,
}

impl Messages {
    /// Those of a client: the type of the first is 0.
    fn of_client() -> Self {
        Messages { have: 1, ..Self::default() }
    }

    /// Calls `each` with the type of each message that begins in these bytes.
    fn walk(&mut self, mut bytes: &[u8], mut each: impl FnMut(u8)) {
        while !bytes.is_empty() {
            let passed = if self.left > 0 {
                let passed = self.left.min(bytes.len());
                self.left -= passed;
                passed
            } else {
                let passed = bytes.len().min(self.head.len() - self.have);
                self.head[self.have..self.have + passed].copy_from_slice(&bytes[..passed]);
                self.have += passed;
                passed
            };
            bytes = &bytes[passed..];
            if let (5, [kind, length @ ..]) = (self.have, self.head) {
                // The length counts itself.
                self.left = u32::from_be_bytes(length).saturating_sub(4) as usize;
                self.have = 0;
                each(kind);
            }
        }
    }
}

/// The answers that are due.
#[derive(Debug)]
struct Due {
    sent: Messages,
    received: Messages,
    answers: u32,
    /// Whether the server has accepted the session.
    begun: bool,
}

impl Due {
    fn new() -> Self {
        Due { sent: Messages::of_client(), received: Messages::default(), answers: 0, begun: false }
    }

    fn send(&mut self, bytes: &[u8]) {
        let Due { sent, answers, .. } = self;
        // The first message, Query, FunctionCall, Sync.
        sent.walk(bytes, |kind| *answers += u32::from(matches!(kind, 0 | b'Q' | b'F' | b'S')));
    }

    fn receive(&mut self, bytes: &[u8]) {
        let Due { received, answers, begun, .. } = self;
        received.walk(bytes, |kind| {
            *begun |= kind == b'Z';
            // ReadyForQuery. CopyInResponse: the server takes the Sync before it for a part of the copy, and now it is the client's turn.
            *answers = answers.saturating_sub(u32::from(matches!(kind, b'Z' | b'G')));
        });
    }
}

/// The bytes of a connection. Reading fails once the server has said nothing for too long while an answer is due, writing once it has taken
/// nothing for too long; from then on everything fails.
pub(crate) struct Stream {
    bytes: Bytes,
    due: Due,
    /// Until when a session must have begun.
    until: Instant,
    startup: Duration,
    limit: Limit,
    /// When bytes were last sent or received.
    since: Instant,
    /// Whether bytes wait until the server takes them.
    is_stuck: bool,
    is_over: bool,
    timer: Pin<Box<Sleep>>,
}

impl Stream {
    fn new(bytes: Bytes, until: Instant, startup: Duration, limit: Limit) -> Self {
        let (due, timer) = (Due::new(), Box::pin(sleep_until(until)));
        Stream { bytes, due, until, startup, limit, since: now(), is_stuck: false, is_over: false, timer }
    }

    fn over(&self) -> io::Error {
        if self.due.begun { not_answered(self.limit.get()) } else { not_accepted(self.startup) }
    }

    /// Is ready when the server has been silent for too long. Bytes that are there were read before: the runtime looks at them first.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let deadline = if self.due.begun { self.since + self.limit.get() } else { self.until };
            // One that is set for an earlier time is set anew when it rings: most answers come long before.
            if self.timer.deadline() > deadline {
                self.timer.as_mut().reset(deadline);
            }
            ready!(self.timer.as_mut().poll(context));
            if self.timer.deadline() == deadline {
                self.is_over = true;
                return Poll::Ready(self.over());
            }
            self.timer.as_mut().reset(deadline);
        }
    }

    fn sent<T>(&mut self, done: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.is_stuck = done.is_pending();
        if self.is_stuck { self.poll_deadline(context).map(Err) } else { done }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(Err(this.over()));
        }
        let before = to.filled().len();
        let done = this.bytes.pin().poll_read(context, to);
        match &done {
            Poll::Pending if this.due.answers > 0 => return this.poll_deadline(context).map(Err),
            Poll::Pending | Poll::Ready(Err(_)) => {}
            Poll::Ready(Ok(())) => {
                this.since = now();
                this.due.receive(&to.filled()[before..]);
            }
        }
        done
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(Err(this.over()));
        }
        if !this.is_stuck {
            this.since = now();
        }
        let done = this.bytes.pin().poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = &done {
            this.since = now();
            this.due.send(&bytes[..*count]);
        }
        this.sent(done, context)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(Err(this.over()));
        }
        let done = this.bytes.pin().poll_flush(context);
        // The connection reads before it writes: nothing else would have the timer wake it while it waits for this answer.
        if done.is_ready()
            && this.due.answers > 0
            && let Poll::Ready(error) = this.poll_deadline(context)
        {
            return Poll::Ready(Err(error));
        }
        this.sent(done, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(Err(this.over()));
        }
        let done = this.bytes.pin().poll_shutdown(context);
        this.sent(done, context)
    }
}

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        match &self.bytes {
            Bytes::Plain(_) => ChannelBinding::none(),
            Bytes::Encrypted(stream) => stream.channel_binding(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::ErrorKind;
    use std::pin::Pin;
    use std::task::{Poll, ready};
    use std::time::Duration;

    use tokio::io::{AsyncRead as _, AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _, ReadBuf, duplex};
    use tokio::time::timeout;

    use super::{Bytes, Due, Limit, Stream, now};

    /// Returns a message of the protocol.
    fn message(kind: &[u8], text: &str) -> Vec<u8> {
        let length = u32::try_from(text.len() + 4).unwrap().to_be_bytes();
        [kind, &length, text.as_bytes()].concat()
    }

    /// Passes the bytes in pieces of this length.
    fn pass(bytes: &[u8], length: usize, mut to: impl FnMut(&[u8])) {
        bytes.chunks(length).for_each(&mut to);
    }

    /// As the crate does: it reads first, then writes and flushes, and is woken for whatever comes next.
    #[test]
    fn a_question_after_a_while_has_a_deadline_like_the_first_one() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (near, mut far) = duplex(1024);
            let (startup, limit) = (Duration::from_secs(3600), Limit::new(Duration::from_millis(50)));
            let mut stream = Stream::new(Bytes::Plain(Box::new(near)), now() + startup, startup, limit);
            stream.write_all(&message(b"", "user\0me\0\0")).await.unwrap();
            far.write_all(&message(b"Z", "I")).await.unwrap();
            stream.read_exact(&mut [0; 6]).await.unwrap();
            let idle = timeout(Duration::from_millis(100), stream.read_u8()).await;
            assert!(idle.is_err(), "no answer is due");
            let question = message(b"Q", "SELECT 1\0");
            let mut asked = false;
            let asks = poll_fn(|context| {
                let mut bytes = [0; 64];
                let read = Pin::new(&mut stream).poll_read(context, &mut ReadBuf::new(&mut bytes));
                if read.is_ready() || asked {
                    return read;
                }
                asked = true;
                let written = ready!(Pin::new(&mut stream).poll_write(context, &question)).unwrap();
                assert_eq!(written, question.len());
                assert!(Pin::new(&mut stream).poll_flush(context).is_ready());
                Poll::Pending
            });
            let told = timeout(Duration::from_secs(60), asks).await.expect("it is woken").unwrap_err();
            assert_eq!(told.kind(), ErrorKind::TimedOut);
            drop(far);
        });
    }

    #[test]
    fn an_answer_is_due_from_a_question_until_the_server_is_ready_however_the_bytes_are_cut() {
        for length in 1..40 {
            let mut due = Due::new();
            pass(&message(b"", "user\0me\0\0"), length, |bytes| due.send(bytes));
            assert_eq!((due.answers, due.begun), (1, false), "the start of a session");
            pass(&[message(b"R", "okay"), message(b"S", "a\0b\0")].concat(), length, |bytes| due.receive(bytes));
            pass(&message(b"p", "QSF"), length, |bytes| due.send(bytes));
            assert_eq!((due.answers, due.begun), (1, false), "what is within a message is none");
            pass(&message(b"Z", "I"), length, |bytes| due.receive(bytes));
            assert_eq!((due.answers, due.begun), (0, true));
            pass(&message(b"A", "Z told"), length, |bytes| due.receive(bytes));
            assert_eq!(due.answers, 0, "a notification is no answer");
            // The statement that is forgotten, and the next one.
            let closed = [message(b"C", "S1\0"), message(b"S", ""), message(b"Q", "SELECT 1\0")].concat();
            pass(&closed, length, |bytes| due.send(bytes));
            pass(&[message(b"3", ""), message(b"Z", "I")].concat(), length, |bytes| due.receive(bytes));
            assert_eq!(due.answers, 1, "of the second");
            pass(&[message(b"D", "Z"), message(b"Z", "I"), message(b"A", "")].concat(), length, |b| due.receive(b));
            assert_eq!(due.answers, 0);
            // A copy: while the client sends, no answer is due.
            pass(&[message(b"B", ""), message(b"E", ""), message(b"S", "")].concat(), length, |bytes| due.send(bytes));
            pass(&message(b"G", "Z"), length, |bytes| due.receive(bytes));
            assert_eq!(due.answers, 0);
            pass(&[message(b"d", "S"), message(b"c", ""), message(b"S", "")].concat(), length, |bytes| due.send(bytes));
            assert_eq!(due.answers, 1);
            pass(&[message(b"C", "COPY 1\0"), message(b"Z", "I")].concat(), length, |bytes| due.receive(bytes));
            assert_eq!(due.answers, 0);
        }
    }
}
