//! Addresses are read as libpq reads them, wrong ones are refused with their reason, and no message shows a password.

use std::collections::HashMap;
use std::time::Duration;

use postgres::config::{Host, TargetSessionAttrs};

use crate::store::postgres::address::Address;
use crate::store::postgres::tls::Mode;

fn read_in(environment: &[(&str, &str)], text: &str) -> Result<Address, String> {
    let environment: HashMap<&str, &str> = environment.iter().copied().collect();
    let get = |name: &str| environment.get(name).map(|value| (*value).to_owned());
    Address::read(text, &get).map_err(|error| error.to_string())
}

fn read(text: &str) -> Address {
    read_in(&[], text).unwrap()
}

fn refused(text: &str) -> String {
    read_in(&[], text).unwrap_err()
}

#[test]
fn all_parts_are_read() {
    let address =
        read("postgres://me:s%40cret@one:6000,[::1],%2Frun%2Fpg:7000/app%20db?schema=jobs&sslmode=verify-full");
    let places = address.places();
    let found: Vec<(&str, u16)> = places.iter().map(|place| (place.host.as_str(), place.port)).collect();
    assert_eq!(found, [("one", 6000), ("::1", 5432), ("/run/pg", 7000)]);
    assert!(places[2].is_socket() && !places[0].is_socket());
    let config = &places[0].config;
    assert_eq!((config.get_user(), config.get_dbname()), (Some("me"), Some("app db")));
    assert_eq!(config.get_password(), Some(&b"s@cret"[..]));
    assert_eq!(config.get_hosts(), [Host::Tcp("one".to_owned())]);
    assert_eq!((address.schema(), address.quoted_schema().as_str()), ("jobs", "\"jobs\""));
    assert_eq!(address.tls().mode, Mode::VerifyFull);
}

#[test]
fn a_link_is_watched_and_a_primary_is_wanted_unless_said_otherwise() {
    let address = read("postgres://host/db");
    let config = &address.places()[0].config;
    assert_eq!(config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    assert_eq!(config.get_application_name(), Some("duly"));
    assert_eq!(config.get_keepalives_idle(), Duration::from_secs(3));
    assert_eq!(
        (config.get_keepalives_interval(), config.get_keepalives_retries()),
        (Some(Duration::from_secs(1)), Some(3))
    );
    assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_secs(6)));
    assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(10)));
    assert_eq!(
        (address.statement_timeout(), address.answer_limit()),
        (Duration::from_secs(10), Duration::from_secs(16))
    );
    let other = read(
        "postgres://host/db?application_name=a&keepalives_idle=9&tcp_user_timeout=1500&connect_timeout=0&statement_timeout=2000&\
         target_session_attrs=read-write&options=-c%20x.y%3D1",
    );
    let config = &other.places()[0].config;
    assert_eq!((config.get_application_name(), config.get_options()), (Some("a"), Some("-c x.y=1")));
    assert_eq!(config.get_keepalives_idle(), Duration::from_secs(9));
    assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_millis(1500)), "milliseconds, as in libpq");
    assert_eq!(config.get_connect_timeout(), None);
    assert_eq!(other.answer_limit(), Duration::from_millis(3500));
}

#[test]
fn parameters_name_hosts_too() {
    let address = read("postgres:///db?host=one,two&port=6000&hostaddr=10.0.0.1,10.0.0.2&user=me&password=%25");
    let found: Vec<(&str, u16)> = address.places().iter().map(|place| (place.host.as_str(), place.port)).collect();
    assert_eq!(found, [("one", 6000), ("two", 6000)]);
    assert_eq!(address.places()[1].config.get_hostaddrs(), ["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(address.places()[1].config.get_password(), Some(&b"%"[..]));
    assert_eq!(read("postgres:///db?host=/run/pg").places()[0].host, "/run/pg");
}

#[test]
fn the_environment_fills_what_is_missing() {
    let environment = [
        ("PGHOST", "db.example"),
        ("PGPORT", "6543"),
        ("PGUSER", "worker"),
        ("PGDATABASE", "app"),
        ("PGPASSWORD", "secret"),
        ("PGSSLMODE", "require"),
        ("PGCONNECT_TIMEOUT", "3"),
        ("PGOPTIONS", ""),
    ];
    let address = read_in(&environment, "postgres://").unwrap();
    assert_eq!(address.to_string(), "postgres://worker@db.example:6543/app");
    let config = &address.places()[0].config;
    assert_eq!((config.get_password(), config.get_options()), (Some(&b"secret"[..]), None));
    assert_eq!((config.get_connect_timeout(), address.tls().mode), (Some(&Duration::from_secs(3)), Mode::Require));
    let address = read_in(&environment, "postgres://me:own@other/else?sslmode=disable").unwrap();
    assert_eq!((address.to_string().as_str(), address.tls().mode), ("postgres://me@other/else", Mode::Disable));
    assert_eq!(address.places()[0].config.get_password(), Some(&b"own"[..]));
    let wrong = read_in(&[("PGSSLMODE", "never")], "postgres://host/db").unwrap_err();
    assert!(wrong.contains("PGSSLMODE") && wrong.contains("verify-full") && wrong.contains("\"never\""), "{wrong}");
}

#[test]
fn the_password_file_is_read_if_it_is_private() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("pgpass");
    let lines = "# a comment\nother:5432:db:me:no\none:*:db:me:fi\\:rst\\\\\n*:6000:*:*:second\nlocalhost:*:*:*:of the socket\n";
    std::fs::write(&file, lines).unwrap();
    let path = file.to_str().unwrap();
    let password = |text: &str| {
        let address = read_in(&[("PGPASSFILE", path), ("USER", "me")], text).unwrap();
        address.places()[0].config.get_password().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(password("postgres://one/db"), None, "others may read the file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    assert_eq!(password("postgres://one/db").as_deref(), Some("fi:rst\\"));
    assert_eq!(password("postgres://two:6000/any").as_deref(), Some("second"));
    assert_eq!(password("postgres://%2Frun%2Fpg/any").as_deref(), Some("of the socket"));
    assert_eq!(password("postgres://two/db"), None);
    assert_eq!(password("postgres://me:given@one/db").as_deref(), Some("given"));
}

#[test]
fn no_text_shows_the_password() {
    let address = read("postgres://me:hunter2@host:6000/db?schema=jobs&password=hunter3");
    assert_eq!(address.to_string(), "postgres://me@host:6000/db?schema=jobs");
    assert!(!format!("{address:?}").contains("hunter"));
    let wrong = [
        "postgres://me:hunter2/x@host/db",
        "postgres://me:hunter2?x@host/db",
        "postgres://me:hunter%zz@host/db",
        "postgres://me:hunter2@host/db?password=hunter%0",
        "postgres://me:hunter2@host:port/db",
        "postgres://me:hunter2@host/db?sslmode=on",
    ];
    for text in wrong {
        assert!(!refused(text).contains("hunter"), "{}", refused(text));
    }
}

#[test]
fn a_wrong_parameter_is_named_with_what_would_do() {
    let unknown = refused("postgres://host/db?shcema=x");
    assert!(unknown.contains("\"shcema\"") && unknown.contains("schema, sslmode"), "{unknown}");
    for (parameter, expected) in [
        ("sslmode=on", "disable, allow, prefer, require, verify-ca or verify-full"),
        ("schema=pg_x", "does not begin with pg_"),
        ("schema=", "1 to 63 bytes"),
        ("schema=a%22b", "without quotes"),
        ("port=0", "1 to 65535"),
        ("connect_timeout=soon", "whole number"),
        ("statement_timeout=0", "number of milliseconds"),
        ("target_session_attrs=any", "read-write"),
        ("channel_binding=maybe", "disable, prefer or require"),
        ("hostaddr=host", "an IP address"),
        ("sslcert=/tmp/c", "belong together"),
    ] {
        let message = refused(&format!("postgres://host/db?{parameter}"));
        assert!(message.contains(expected), "{parameter}: {message}");
    }
    assert!(refused("postgres://one,two,three:1/db?port=1,2").contains("3 hosts"));
    assert!(refused(&format!("postgres://host/db?schema={}", "x".repeat(64))).contains("63 bytes"));
    assert_eq!(read(&format!("postgres://host/db?schema={}", "x".repeat(63))).schema().len(), 63);
}

#[test]
fn a_schema_whose_name_means_another_one_is_refused() {
    let Err(error) = Address::parse("postgres://host/db?schema=%24user") else { panic!("it is accepted") };
    assert!(error.to_string().contains("other than $user"), "{error}");
}
