//! Encryption of connections, as libpq's `sslmode` asks for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::BoxError;

/// When a connection is encrypted, and what is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Disable,
    /// Encrypted if the server accepts no other connection.
    Allow,
    /// Encrypted if the server can.
    Prefer,
    /// Encrypted. The certificate is verified only if `sslrootcert` is given, as in libpq.
    Require,
    /// Encrypted, with a certificate that a known authority has signed.
    VerifyCa,
    /// The same, and the certificate is that of the host's name.
    VerifyFull,
}

impl Mode {
    pub(crate) const NAMES: &str = "disable, allow, prefer, require, verify-ca or verify-full";

    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "disable" => Mode::Disable,
            "allow" => Mode::Allow,
            "prefer" => Mode::Prefer,
            "require" => Mode::Require,
            "verify-ca" => Mode::VerifyCa,
            "verify-full" => Mode::VerifyFull,
            _ => return None,
        })
    }
}

/// The parameters of an address that concern encryption.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    pub(crate) mode: Mode,
    /// The file with the certificates of authorities; without it, those of the system.
    pub(crate) root: Option<PathBuf>,
    /// The client's own certificate and its key.
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

impl Tls {
    /// Returns what encrypts a connection. It reads the files anew, so that renewed certificates are used.
    pub(crate) fn connector(&self) -> Result<MakeRustlsConnect, BoxError> {
        // The application may have chosen another provider for the process: this one is given, not looked up.
        let provider = Arc::new(ring::default_provider());
        let verifier = self.verifier(&provider)?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let chain = certificates(certificate, "sslcert")?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable("sslkey", key, &error))?;
                config.with_client_auth_cert(chain, key)?
            }
            _ => config.with_no_client_auth(),
        };
        Ok(MakeRustlsConnect::new(config))
    }

    fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<Verifier>, BoxError> {
        let check = match self.mode {
            Mode::VerifyFull => Check::NameToo,
            Mode::VerifyCa => Check::Signed,
            Mode::Require if self.root.is_some() => Check::Signed,
            Mode::Disable | Mode::Allow | Mode::Prefer | Mode::Require => Check::Nothing,
        };
        if check == Check::Nothing {
            return Ok(Arc::new(Verifier { check, known: Vec::new(), signed: None, provider: provider.clone() }));
        }
        let known = match &self.root {
            Some(file) => certificates(file, "sslrootcert")?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(known.iter().cloned());
        // A certificate that cannot be an authority's can still be the server's own.
        let signed = if roots.is_empty() {
            None
        } else {
            Some(WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?)
        };
        if known.is_empty() {
            return Err("this system has no certificates of authorities: name a file with sslrootcert".into());
        }
        let known = if self.root.is_some() { known } else { Vec::new() };
        Ok(Arc::new(Verifier { check, known, signed, provider: provider.clone() }))
    }
}

fn certificates(file: &Path, parameter: &str) -> Result<Vec<CertificateDer<'static>>, BoxError> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if found.is_empty() => {
            Err(format!("{parameter}: {} has no certificate in PEM form", file.display()).into())
        }
        Ok(found) => Ok(found),
        Err(error) => Err(unreadable(parameter, file, &error)),
    }
}

fn unreadable(parameter: &str, file: &Path, error: &rustls::pki_types::pem::Error) -> BoxError {
    format!("{parameter}: cannot read {}: {error}", file.display()).into()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Nothing,
    Signed,
    NameToo,
}

/// Verifies the server's certificate as far as the mode asks.
#[derive(Debug)]
struct Verifier {
    check: Check,
    /// The certificates of `sslrootcert`. The server's own may be one of them.
    known: Vec<CertificateDer<'static>>,
    signed: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let ours = self.known.iter().any(|known| known == server);
        match (self.check, &self.signed) {
            (Check::Nothing, _) => Ok(ServerCertVerified::assertion()),
            // A self-signed certificate, as in PostgreSQL's manual: it is no authority's signature that makes it known.
            (Check::Signed, _) if ours => Ok(ServerCertVerified::assertion()),
            (Check::NameToo, _) if ours => verify_server_name(&ParsedCertificate::try_from(server)?, name)
                .map(|()| ServerCertVerified::assertion()),
            (_, None) => Err(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)),
            (check, Some(signed)) => match signed.verify_server_cert(server, between, name, ocsp, now) {
                Err(rustls::Error::InvalidCertificate(
                    CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
                )) if check == Check::Signed => Ok(ServerCertVerified::assertion()),
                verified => verified,
            },
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
