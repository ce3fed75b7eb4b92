//! The address of the page: of the loopback interface only, since the page has no users and no passwords.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::error::{Error, Result};

/// Returns the addresses that `text` names. `localhost` is both loopback addresses.
///
/// # Errors
/// [`Error::InvalidConfig`] if it is no address with a port, or another interface's.
pub(super) fn loopback(text: &str) -> Result<Vec<SocketAddr>> {
    let refused = |reason: String| Error::InvalidConfig { field: "page", reason };
    if let Some(port) = text.strip_prefix("localhost:") {
        let port = port.parse().map_err(|_| refused(format!("expected a port of 0 to 65535, found {port:?}")))?;
        let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        return Ok(addresses.map(|ip| SocketAddr::new(ip, port)).into());
    }
    let address: SocketAddr =
        text.parse().map_err(|_| refused(format!("expected an address such as 127.0.0.1:8629, found {text:?}")))?;
    if !address.ip().is_loopback() {
        let reason = format!(
            "expected an address of the loopback interface, such as 127.0.0.1:{0}, found {address}: the page has no passwords; \
             other machines reach it through ssh -L {0}:127.0.0.1:{0}, or a proxy with authentication",
            address.port()
        );
        return Err(refused(reason));
    }
    Ok(vec![address])
}

#[cfg(test)]
mod tests {
    use super::loopback;

    #[test]
    fn only_loopback_addresses_are_accepted() {
        for text in ["127.0.0.1:8629", "[::1]:0", "127.9.9.9:1"] {
            assert_eq!(loopback(text).unwrap().len(), 1, "{text}");
        }
        assert_eq!(loopback("localhost:8629").unwrap().len(), 2);
        for text in
            ["0.0.0.0:8629", "192.168.1.1:80", "[::]:80", "127.0.0.1", "localhost", "localhost:x", "example.org:80", ""]
        {
            let error = loopback(text).unwrap_err().to_string();
            assert!(error.contains("expected a"), "{text}: {error}");
        }
    }
}
