//! The address of a database of PostgreSQL: `postgres://user@host/database?schema=duly`.
//!
//! The text is read here and not by the crate: it knows fewer parameters than the users of libpq, and its messages name no value.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use postgres::Config;
use postgres::config::{ChannelBinding, SslNegotiation, TargetSessionAttrs};

use crate::error::{Error, excerpt};
use crate::store::postgres::password_file::{self, Entry};
use crate::store::postgres::tls::{Mode, Tls};

/// The schema of the tables, unless the address names another.
const SCHEMA: &str = "duly";

const PORT: u16 = 5432;

/// How long one address of one host may take to accept a connection, unless the address of the database says otherwise.
const CONNECT: Duration = Duration::from_secs(10);

/// A lost link is known after about 6 s: idle by the keepalives, and while sending by the user timeout.
const IDLE: Duration = Duration::from_secs(3);
const INTERVAL: Duration = Duration::from_secs(1);
const RETRIES: u32 = 3;
const USER_TIMEOUT: Duration = Duration::from_secs(6);

/// How long the server may work on one statement.
const STATEMENT: Duration = Duration::from_secs(10);

/// The same for a statement that has no limit on the server.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Where Debian's packages, and PostgreSQL's own default, put the sockets.
const SOCKETS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// What an address may say after `?`.
const PARAMETERS: &str = "schema, sslmode, sslrootcert, sslcert, sslkey, sslnegotiation, channel_binding, user, password, passfile, \
                          dbname, host, hostaddr, port, options, application_name, connect_timeout, keepalives, keepalives_idle, \
                          keepalives_interval, keepalives_count, tcp_user_timeout, statement_timeout, target_session_attrs, load_balance_hosts";

/// An address that was read and checked.
#[derive(Clone)]
pub(crate) struct Address {
    places: Vec<Place>,
    user: Option<String>,
    database: Option<String>,
    schema: String,
    tls: Tls,
    /// In milliseconds, if the address says it.
    statement: Option<NonZeroU32>,
    /// Whether the hosts are tried in any order.
    shuffled: bool,
    /// Whether no host is named, so that one of this machine is meant.
    unnamed: bool,
}

/// One server of an address.
#[derive(Clone)]
pub(crate) struct Place {
    /// A name, an IP address, or the folder of a Unix socket.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) config: Config,
}

impl Place {
    pub(crate) fn is_socket(&self) -> bool {
        self.host.starts_with('/')
    }
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        Self::read(text, &|name| std::env::var(name).ok())
    }

    pub(crate) fn read(text: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let mut parts = Parts::default();
        parts.read(text).map_err(|reason| Error::InvalidConfig { field: "address of the database", reason })?;
        let environment = |name: &str| environment(name).filter(|value| !value.is_empty());
        parts.finish(&environment).map_err(|reason| Error::InvalidConfig { field: "address of the database", reason })
    }

    /// Returns the servers, in the order in which they are to be tried.
    pub(crate) fn places(&self) -> Vec<&Place> {
        let mut places: Vec<&Place> = self.places.iter().collect();
        if self.shuffled {
            fastrand::shuffle(&mut places);
        }
        places
    }

    /// Returns the same address with another schema.
    #[cfg(test)]
    pub(crate) fn in_schema(&self, schema: &str) -> Self {
        Address { schema: schema.to_owned(), ..self.clone() }
    }

    /// How long the server may work on one statement.
    pub(crate) fn statement_timeout(&self) -> Duration {
        self.statement_timeout_or(STATEMENT)
    }

    fn statement_timeout_or(&self, usual: Duration) -> Duration {
        self.statement.map_or(usual, |millis| Duration::from_millis(millis.get().into()))
    }

    /// How long an answer may take: as long as a statement, and what a lost link takes to be known.
    pub(crate) fn answer_limit(&self) -> Duration {
        self.answer_limit_for(self.statement_timeout())
    }

    /// As [`Address::answer_limit`], to a statement that has no limit on the server.
    pub(crate) fn long_answer_limit(&self) -> Duration {
        self.answer_limit_for(self.statement_timeout_or(LONG))
    }

    /// As [`Address::answer_limit`], to a statement that may take this long.
    pub(crate) fn answer_limit_for(&self, statement: Duration) -> Duration {
        let link = self.places.first().and_then(|place| place.config.get_tcp_user_timeout().copied());
        statement.saturating_add(link.filter(|link| !link.is_zero()).unwrap_or(USER_TIMEOUT))
    }

    pub(crate) fn tls(&self) -> &Tls {
        &self.tls
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    /// Returns the name of the schema for a statement.
    pub(crate) fn quoted_schema(&self) -> String {
        format!("\"{}\"", self.schema)
    }
}

/// Without the password.
impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("postgres://")?;
        if let Some(user) = &self.user {
            write!(f, "{}@", encoded(user))?;
        }
        for (at, place) in self.places.iter().enumerate().filter(|_| !self.unnamed) {
            let comma = if at == 0 { "" } else { "," };
            let host = if place.host.contains(':') { format!("[{}]", place.host) } else { encoded(&place.host) };
            write!(f, "{comma}{host}")?;
            if place.port != PORT {
                write!(f, ":{}", place.port)?;
            }
        }
        write!(f, "/{}", self.database.as_deref().map(encoded).unwrap_or_default())?;
        if self.schema != SCHEMA {
            write!(f, "?schema={}", encoded(&self.schema))?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Returns what follows the scheme of an address.
fn rest(text: &str) -> Option<&str> {
    text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://"))
}

/// What an address says, before the environment fills what it does not.
#[derive(Default)]
struct Parts {
    user: Option<String>,
    password: Option<Vec<u8>>,
    database: Option<String>,
    hosts: Vec<String>,
    addresses: Vec<String>,
    ports: Vec<u16>,
    schema: Option<String>,
    mode: Option<Mode>,
    root: Option<String>,
    certificate: Option<String>,
    key: Option<String>,
    password_file: Option<String>,
    options: Option<String>,
    connect_timeout: Option<Duration>,
    statement: Option<NonZeroU32>,
    shuffled: bool,
    config: Option<Config>,
}

impl Parts {
    fn config(&mut self) -> &mut Config {
        self.config.get_or_insert_with(|| {
            let mut config = Config::new();
            config.application_name("duly").target_session_attrs(TargetSessionAttrs::ReadWrite);
            config.keepalives_idle(IDLE).keepalives_interval(INTERVAL).keepalives_retries(RETRIES);
            config.tcp_user_timeout(USER_TIMEOUT);
            config
        })
    }

    fn read(&mut self, text: &str) -> Result<(), String> {
        let rest = rest(text).ok_or("expected postgres://user@host/database")?;
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, database) = rest.split_once('/').unwrap_or((rest, ""));
        if database.contains('@') {
            return Err("in a user or password, write / as %2F, @ as %40, : as %3A, ? as %3F and % as %25".to_owned());
        }
        let hosts = match hosts.rsplit_once('@') {
            None => hosts,
            Some((credentials, hosts)) => {
                let (user, password) = credentials.split_once(':').map_or((credentials, None), |(u, p)| (u, Some(p)));
                self.user = Some(decoded(user, "user")?).filter(|user| !user.is_empty());
                self.password = password.map(|password| bytes(password, "password")).transpose()?;
                hosts
            }
        };
        if !hosts.is_empty() {
            self.read_hosts(hosts)?;
        }
        self.database = Some(decoded(database, "database")?).filter(|database| !database.is_empty());
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').ok_or_else(|| {
                format!("parameter {:?} has no value: expected name=value", excerpt(&encoded(parameter), 40))
            })?;
            let name = decoded(name, "name of a parameter")?;
            if name == "password" {
                self.password = Some(bytes(value, "password")?);
            } else {
                self.parameter(&name, &decoded(value, &name)?)?;
            }
        }
        Ok(())
    }

    fn read_hosts(&mut self, hosts: &str) -> Result<(), String> {
        for host in hosts.split(',') {
            let (host, after) = match host.strip_prefix('[') {
                Some(address) => address.split_once(']').ok_or("an IPv6 address ends with ]")?,
                None => host.split_at(host.find(':').unwrap_or(host.len())),
            };
            let number = after.strip_prefix(':').unwrap_or(after);
            self.hosts.push(decoded(host, "host")?);
            // Without the text: it may be a part of a password.
            self.ports.push(if number.is_empty() { PORT } else { port(number).ok_or(NO_PORT)? });
        }
        Ok(())
    }

    fn parameter(&mut self, name: &str, value: &str) -> Result<(), String> {
        let wrong = |expected: &str| format!("{name}: expected {expected}, found {:?}", excerpt(value, 60));
        let number = || value.parse::<u32>().map_err(|_| wrong("a whole number"));
        let seconds = || number().map(|n| Duration::from_secs(n.into()));
        match name {
            "schema" => self.schema = Some(schema(value).ok_or_else(|| wrong(SCHEMA_NAME))?),
            "sslmode" => self.mode = Some(Mode::named(value).ok_or_else(|| wrong(Mode::NAMES))?),
            // As JDBC writes it, and libpq reads it.
            "ssl" if value == "true" => self.mode = Some(Mode::Require),
            "sslrootcert" => self.root = Some(value.to_owned()),
            "sslcert" => self.certificate = Some(value.to_owned()),
            "sslkey" => self.key = Some(value.to_owned()),
            "sslnegotiation" => {
                let negotiation = match value {
                    "postgres" => SslNegotiation::Postgres,
                    "direct" => SslNegotiation::Direct,
                    _ => return Err(wrong("postgres or direct")),
                };
                self.config().ssl_negotiation(negotiation);
            }
            "channel_binding" => {
                let binding = match value {
                    "disable" => ChannelBinding::Disable,
                    "prefer" => ChannelBinding::Prefer,
                    "require" => ChannelBinding::Require,
                    _ => return Err(wrong("disable, prefer or require")),
                };
                self.config().channel_binding(binding);
            }
            "user" => self.user = Some(value.to_owned()),
            "passfile" => self.password_file = Some(value.to_owned()),
            "dbname" => self.database = Some(value.to_owned()),
            "host" => self.hosts = value.split(',').map(str::to_owned).collect(),
            "hostaddr" => self.addresses = value.split(',').map(str::to_owned).collect(),
            "port" => {
                let ports = value.split(',').map(|text| if text.is_empty() { Some(PORT) } else { port(text) });
                self.ports = ports.collect::<Option<_>>().ok_or_else(|| wrong("numbers from 1 to 65535"))?;
            }
            "options" => self.options = Some(value.to_owned()),
            "application_name" => {
                self.config().application_name(value);
            }
            "connect_timeout" => self.connect_timeout = Some(seconds()?),
            "keepalives" => {
                let value = number()? != 0;
                self.config().keepalives(value);
            }
            "keepalives_idle" => {
                let value = seconds()?;
                self.config().keepalives_idle(value);
            }
            "keepalives_interval" => {
                let value = seconds()?;
                self.config().keepalives_interval(value);
            }
            "keepalives_count" | "keepalives_retries" => {
                let value = number()?;
                self.config().keepalives_retries(value);
            }
            // Milliseconds, as in libpq.
            "tcp_user_timeout" => {
                let timeout = Duration::from_millis(number()?.into());
                self.config().tcp_user_timeout(timeout);
            }
            // Milliseconds, as tcp_user_timeout.
            "statement_timeout" => {
                self.statement = NonZeroU32::new(number()?);
                self.statement.ok_or_else(|| wrong("a number of milliseconds"))?;
            }
            "target_session_attrs" if matches!(value, "read-write" | "primary") => {}
            "target_session_attrs" => return Err(wrong("read-write: duly writes")),
            "load_balance_hosts" if matches!(value, "disable" | "random") => self.shuffled = value == "random",
            "load_balance_hosts" => return Err(wrong("disable or random")),
            // The client has no GSSAPI.
            "gssencmode" if matches!(value, "disable" | "prefer") => {}
            _ => return Err(format!("unknown parameter {:?}: expected one of {PARAMETERS}", excerpt(name, 60))),
        }
        Ok(())
    }

    fn finish(mut self, environment: &dyn Fn(&str) -> Option<String>) -> Result<Address, String> {
        let list = |name: &str| environment(name).map(|value| value.split(',').map(str::to_owned).collect::<Vec<_>>());
        let in_environment = |name: &str, expected: &str, found: &str| {
            format!("{name} of the environment: expected {expected}, found {:?}", excerpt(found, 60))
        };
        if self.hosts.is_empty() && self.addresses.is_empty() {
            self.hosts = list("PGHOST").unwrap_or_default();
            self.addresses = list("PGHOSTADDR").unwrap_or_default();
        }
        if self.ports.is_empty()
            && let Some(ports) = list("PGPORT")
        {
            let read = ports.iter().map(|text| port(text)).collect::<Option<_>>();
            self.ports = read.ok_or_else(|| in_environment("PGPORT", "1 to 65535", &ports.join(",")))?;
        }
        let user = self.user.take().or_else(|| environment("PGUSER"));
        let database = self.database.take().or_else(|| environment("PGDATABASE"));
        let mode = match (self.mode, environment("PGSSLMODE")) {
            (Some(mode), _) => mode,
            (None, None) => Mode::Prefer,
            (None, Some(text)) => Mode::named(&text).ok_or_else(|| in_environment("PGSSLMODE", Mode::NAMES, &text))?,
        };
        let path = |given: Option<String>, name: &str| given.or_else(|| environment(name)).map(PathBuf::from);
        let tls = Tls {
            mode,
            root: path(self.root.take(), "PGSSLROOTCERT").filter(|root| root != Path::new("system")),
            certificate: path(self.certificate.take(), "PGSSLCERT"),
            key: path(self.key.take(), "PGSSLKEY"),
        };
        if tls.certificate.is_some() != tls.key.is_some() {
            return Err("sslcert and sslkey belong together: one of them is missing".to_owned());
        }
        if let Some(options) = self.options.take().or_else(|| environment("PGOPTIONS")) {
            self.config().options(&options);
        }
        let timeout = environment("PGCONNECT_TIMEOUT").and_then(|text| text.parse().ok()).map(Duration::from_secs);
        let timeout = self.connect_timeout.or(timeout).unwrap_or(CONNECT);
        // 0 is no limit, as in libpq.
        if !timeout.is_zero() {
            self.config().connect_timeout(timeout);
        }
        if let Some(user) = &user {
            self.config().user(user);
        }
        if let Some(database) = &database {
            self.config().dbname(database);
        }
        let unnamed = self.hosts.is_empty() && self.addresses.is_empty();
        let login = Login { user, database, environment };
        let places = self.places(&login)?;
        let Login { user, database, .. } = login;
        let schema = self.schema.unwrap_or_else(|| SCHEMA.to_owned());
        let statement = self.statement;
        Ok(Address { places, user, database, schema, tls, statement, shuffled: self.shuffled, unnamed })
    }

    /// Returns the servers, each with its own settings: a password may be for one of them.
    fn places(&mut self, login: &Login<'_>) -> Result<Vec<Place>, String> {
        if self.hosts.is_empty() && self.addresses.is_empty() {
            let port = self.ports.first().copied().unwrap_or(PORT);
            let socket = |folder: &&&str| Path::new(folder).join(format!(".s.PGSQL.{port}")).exists();
            self.hosts.push(SOCKETS.iter().find(socket).map_or("localhost", |folder| folder).to_owned());
        }
        let count = self.hosts.len().max(self.addresses.len());
        let fits = |length: usize| length == 0 || length == count;
        if !fits(self.hosts.len()) || !fits(self.addresses.len()) || !(fits(self.ports.len()) || self.ports.len() == 1)
        {
            let (hosts, addresses, ports) = (self.hosts.len(), self.addresses.len(), self.ports.len());
            return Err(format!(
                "{hosts} hosts, {addresses} values of hostaddr and {ports} ports: expected one for each host"
            ));
        }
        let base = self.config().clone();
        let password = self.password.take().or_else(|| (login.environment)("PGPASSWORD").map(String::into_bytes));
        let file = self.password_file.take().map(PathBuf::from).or_else(|| password_file::usual(login.environment));
        let name = |name: &Option<String>| name.clone().or_else(|| (login.environment)("USER")).unwrap_or_default();
        let user = name(&login.user);
        let database = login.database.clone().unwrap_or_else(|| user.clone());
        (0..count)
            .map(|at| {
                let named = |host: &&String| !(host.is_empty() || host.starts_with('/') && self.addresses.len() > at);
                let host = self.hosts.get(at).filter(named).or_else(|| self.addresses.get(at));
                let host = host.cloned().unwrap_or_else(|| "localhost".to_owned());
                let port = self.ports.get(at).or_else(|| self.ports.first()).copied().unwrap_or(PORT);
                let mut config = base.clone();
                if !host.starts_with('/') {
                    config.host(&host).port(port);
                }
                if let Some(address) = self.addresses.get(at) {
                    let expected = || format!("hostaddr: expected an IP address, found {:?}", excerpt(address, 60));
                    config.hostaddr(address.parse().map_err(|_| expected())?);
                }
                let entry = Entry { host: &host, port, database: &database, user: &user };
                let kept =
                    || file.as_ref().and_then(|file| password_file::look_up(file, &entry)).map(String::into_bytes);
                if let Some(password) = password.clone().or_else(kept) {
                    config.password(password);
                }
                Ok(Place { host, port, config })
            })
            .collect()
    }
}

/// Who logs in to what, and the environment of the process.
struct Login<'a> {
    user: Option<String>,
    database: Option<String>,
    environment: &'a dyn Fn(&str) -> Option<String>,
}

const NO_PORT: &str = "the port is no number from 1 to 65535; in a user or password, write / as %2F, @ as %40, : as %3A, ? as %3F \
                       and % as %25";

const SCHEMA_NAME: &str = "a name of 1 to 63 bytes, other than $user, that does not begin with pg_, without quotes, backslashes and control characters";

fn schema(name: &str) -> Option<String> {
    let odd = |c: char| c.is_control() || matches!(c, '"' | '\'' | '\\');
    // A search_path reads $user as the name of the role, in quotes too.
    let is_kept = name.starts_with("pg_") || name == "information_schema" || name == "$user";
    let valid = (1..=63).contains(&name.len()) && !is_kept;
    (valid && !name.contains(odd)).then(|| name.to_owned())
}

fn port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0)
}

/// Returns the bytes of a text of which some are written as `%2F`. `of`: what the text is, for the message, which does not quote it.
fn bytes(text: &str, of: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut pieces = text.split('%');
    bytes.extend(pieces.next().unwrap_or_default().bytes());
    for piece in pieces {
        let number = piece.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = number.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|byte| *byte != 0);
        let wrong = || format!("{of}: expected two hexadecimal digits other than 00 after %; write % itself as %25");
        bytes.push(byte.ok_or_else(wrong)?);
        bytes.extend(piece[2..].bytes());
    }
    Ok(bytes)
}

fn decoded(text: &str, of: &str) -> Result<String, String> {
    String::from_utf8(bytes(text, of)?).map_err(|_| format!("{of}: expected UTF-8"))
}

fn encoded(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut written, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            written.push(char::from(byte));
        } else {
            let _ = write!(written, "%{byte:02X}");
        }
        written
    })
}
