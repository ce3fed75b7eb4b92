//! `sslmode` means what it means for libpq: against servers with a certificate of an authority, with one of their own, and without TLS.

use std::path::Path;
use std::process::Command;

use crate::store::postgres::address::Address;
use crate::store::postgres::server::Server;
use crate::store::postgres::testing::{TestServer, done, skipped};

/// Makes an authority, a certificate for `localhost` and one for a client, both signed by it, and one that signs itself.
fn certificates(folder: &Path) -> bool {
    let openssl = |arguments: &str| {
        let mut command = Command::new("openssl");
        command.args(arguments.split_whitespace()).current_dir(folder).output()
    };
    if skipped(openssl("version").is_err(), "openssl") {
        return false;
    }
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    let new = |name: &str, more: &str| format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name} {more}");
    let signed = |name: &str| {
        format!(
            "x509 -req -in {name}.csr -CA authority.crt -CAkey authority.key -CAcreateserial -out {name}.crt -days 9 -extfile {name}.ext"
        )
    };
    std::fs::write(folder.join("localhost.ext"), "subjectAltName = DNS:localhost\n").unwrap();
    std::fs::write(folder.join("postgres.ext"), "extendedKeyUsage = clientAuth\n").unwrap();
    for arguments in [
        format!("req -x509 {key} -keyout authority.key -out authority.crt -subj /CN=authority -days 9"),
        format!(
            "req -x509 {key} -keyout own.key -out own.crt -subj /CN=own -days 9 -addext subjectAltName=DNS:localhost"
        ),
        new("localhost", ""),
        signed("localhost"),
        new("postgres", ""),
        signed("postgres"),
    ] {
        done(&openssl(&arguments).unwrap());
    }
    true
}

/// Serves with a certificate of the folder.
fn serve(postgres: &mut TestServer, folder: &Path, name: &str) {
    postgres.down("fast");
    for file in [format!("{name}.crt"), format!("{name}.key"), "authority.crt".to_owned()] {
        let to = postgres.home().join("data").join(&file);
        std::fs::copy(folder.join(&file), &to).unwrap();
        done(&Command::new("chmod").arg("600").arg(&to).output().unwrap());
        let data = postgres.home().join("data");
        done(&Command::new("chown").arg("--reference").arg(&data).arg(&to).output().unwrap());
    }
    postgres.configure(&format!(
        "ssl = on\nssl_cert_file = '{name}.crt'\nssl_key_file = '{name}.key'\nssl_ca_file = 'authority.crt'"
    ));
    postgres.up();
}

/// Connects, and returns whether the connection is encrypted.
fn connects(postgres: &TestServer, host: &str, parameters: &str) -> Result<bool, String> {
    let text = format!("postgres://postgres@{host}:{}/postgres?{parameters}", postgres.port);
    let mut server = Server::connect(&Address::parse(&text).unwrap()).map_err(|fault| fault.to_string())?;
    let rows = server.query("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &[]);
    Ok(rows.unwrap()[0].get(0))
}

#[test]
fn each_mode_encrypts_and_verifies_as_libpq_does() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    if !certificates(folder) {
        return;
    }
    let Some(mut postgres) = TestServer::start("") else { return };
    let file = |name: &str| folder.join(name).display().to_string();

    assert_eq!(connects(&postgres, "localhost", "sslmode=prefer"), Ok(false));
    assert_eq!(connects(&postgres, "localhost", "sslmode=allow"), Ok(false));
    let refused = connects(&postgres, "localhost", "sslmode=require").unwrap_err();
    assert!(refused.contains("server does not support TLS"), "{refused}");

    serve(&mut postgres, folder, "localhost");
    assert_eq!(connects(&postgres, "localhost", "sslmode=disable"), Ok(false));
    assert_eq!(connects(&postgres, "localhost", "sslmode=allow"), Ok(false));
    assert_eq!(connects(&postgres, "localhost", ""), Ok(true), "prefer, as libpq");
    assert_eq!(connects(&postgres, "127.0.0.1", "sslmode=require"), Ok(true), "nothing is verified");
    let (root, other) = (format!("sslrootcert={}", file("authority.crt")), format!("sslrootcert={}", file("own.crt")));
    for mode in ["require", "verify-ca", "verify-full"] {
        assert_eq!(connects(&postgres, "localhost", &format!("sslmode={mode}&{root}")), Ok(true), "{mode}");
        let refused = connects(&postgres, "localhost", &format!("sslmode={mode}&{other}")).unwrap_err();
        assert!(refused.contains("invalid peer certificate"), "{mode}: {refused}");
    }
    assert_eq!(connects(&postgres, "127.0.0.1", &format!("sslmode=verify-ca&{root}")), Ok(true), "of any name");
    let refused = connects(&postgres, "127.0.0.1", &format!("sslmode=verify-full&{root}")).unwrap_err();
    assert!(refused.contains("not valid for name"), "{refused}");
    let refused = connects(&postgres, "localhost", "sslmode=verify-full").unwrap_err();
    assert!(refused.contains("invalid peer certificate") || refused.contains("sslrootcert"), "{refused}");
    let refused = connects(&postgres, "localhost", "sslmode=verify-full&sslrootcert=/missing").unwrap_err();
    assert!(refused.contains("sslrootcert: cannot read /missing"), "{refused}");

    // Only encrypted connections of clients with a certificate.
    let hba = postgres.home().join("data/pg_hba.conf");
    std::fs::write(&hba, "local all all trust\nhostssl all all all cert\n").unwrap();
    postgres.down("fast");
    postgres.up();
    let own = format!("sslcert={}&sslkey={}", file("postgres.crt"), file("postgres.key"));
    for mode in ["allow", "prefer", "require", "verify-full"] {
        assert_eq!(connects(&postgres, "localhost", &format!("sslmode={mode}&{root}&{own}")), Ok(true), "{mode}");
    }
    assert!(connects(&postgres, "localhost", "sslmode=disable").unwrap_err().contains("SQLSTATE 28000"));
    assert!(connects(&postgres, "localhost", "sslmode=require").is_err(), "without a certificate");

    // A certificate that signs itself, as in PostgreSQL's manual, is its own authority.
    std::fs::write(&hba, "local all all trust\nhost all all all trust\n").unwrap();
    serve(&mut postgres, folder, "own");
    assert_eq!(connects(&postgres, "localhost", &format!("sslmode=verify-full&{other}")), Ok(true));
    assert!(connects(&postgres, "127.0.0.1", &format!("sslmode=verify-full&{other}")).is_err());
    assert_eq!(connects(&postgres, "127.0.0.1", &format!("sslmode=verify-ca&{other}")), Ok(true));
}
