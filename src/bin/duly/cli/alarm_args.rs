//! Options of `run` for alarms, and the receivers that they name.

use std::time::Duration;

use duly::{AlarmPace, Limits};
use ureq::http::Uri;

use crate::cli::command_line::words;
use crate::cli::failure::Failure;
use crate::cli::values::duration;

/// The variables of the URLs: a URL may hold a secret, and other users see the arguments of a process. Commands do not get them.
pub(crate) const VARIABLES: [&str; 2] = ["DULY_ALERT_URL", "DULY_PING"];

/// Options for alarms. The hidden ones are for tests.
#[derive(Debug, clap::Args)]
pub(crate) struct AlarmArgs {
    /// Command that receives alarms: a dead run, a missed occurrence, a task that is skipped again and again, an overdue or invalid
    /// task, a lost scheduler, a database that cannot be written; and the end of each. Split into words as a shell does; started without a shell, with the alarm as JSON on standard input.
    #[arg(long, value_name = "ARGV")]
    pub(crate) alert_command: Option<String>,
    /// URL that receives the same alarms, each as a POST of JSON.
    #[arg(long, value_name = "URL", env = VARIABLES[0], hide_env_values = true)]
    pub(crate) alert_url: Option<String>,
    /// Report missed occurrences also if a later one ran in their place (misfire policies run_once and run_all).
    #[arg(long)]
    pub(crate) alert_missed: bool,
    /// URL that is requested every minute while duly check finds no problem, for a monitor that reports when the requests end.
    #[arg(long, value_name = "URL", env = VARIABLES[1], hide_env_values = true)]
    pub(crate) ping: Option<String>,
    #[arg(long, hide = true, default_value = "5s", value_parser = duration)]
    alarm_look: Duration,
    #[arg(long, hide = true, default_value = "10s", value_parser = duration)]
    alarm_gather: Duration,
    #[arg(long, hide = true, default_value = "1m", value_parser = duration)]
    alarm_interval: Duration,
    #[arg(long, hide = true, default_value = "1m", value_parser = duration)]
    alarm_lease: Duration,
    #[arg(long, hide = true, default_value = "1s", value_parser = duration)]
    alarm_retry: Duration,
    #[arg(long, hide = true, default_value = "1m", value_parser = duration)]
    ping_interval: Duration,
    #[arg(long, hide = true, default_value = "15s", value_parser = duration)]
    alarm_request: Duration,
}

/// The checked options.
#[derive(Clone, Debug)]
pub(crate) struct AlarmOptions {
    pub(crate) command: Option<Vec<String>>,
    pub(crate) url: Option<Target>,
    pub(crate) ping: Option<Target>,
    /// What counts as a problem.
    pub(crate) limits: Limits,
    /// Time between two looks.
    pub(crate) look: Duration,
    pub(crate) pace: AlarmPace,
    /// Delay after the first failed delivery.
    pub(crate) retry: Duration,
    /// Time between two pings.
    pub(crate) ping_interval: Duration,
    /// Time limit for a request to a URL.
    pub(crate) request: Duration,
}

/// A URL, apart from its credentials.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Without user and password.
    pub(crate) url: String,
    /// The value of the header Authorization.
    pub(crate) authorization: Option<String>,
    /// Scheme and host: what a log may show, since a path may hold a secret too.
    pub(crate) shown: String,
}

impl AlarmArgs {
    /// Checks the options.
    ///
    /// # Errors
    /// If a command or a URL cannot be used. The text of a URL, which may hold a secret, is not in the error.
    pub(crate) fn options(&self) -> Result<AlarmOptions, Failure> {
        let command = self.alert_command.as_deref().map(words).transpose();
        let command = command.map_err(|reason| Failure::Usage(format!("--alert-command: {reason}")))?;
        let target = |name: &str, url: &Option<String>| {
            let target = url.as_deref().map(target).transpose();
            target.map_err(|reason| Failure::Usage(format!("{name}: {reason}")))
        };
        Ok(AlarmOptions {
            command,
            url: target("--alert-url", &self.alert_url)?,
            ping: target("--ping", &self.ping)?,
            limits: Limits { caught_up: self.alert_missed, ..Limits::default() },
            look: self.alarm_look,
            pace: AlarmPace { gather: self.alarm_gather, interval: self.alarm_interval, lease: self.alarm_lease },
            retry: self.alarm_retry,
            ping_interval: self.ping_interval,
            request: self.alarm_request,
        })
    }
}

/// Parses a URL.
fn target(text: &str) -> Result<Target, String> {
    const EXPECTED: &str = "expected a URL such as https://example.org/hook";
    let uri: Uri = text.parse().map_err(|_| EXPECTED.to_owned())?;
    let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme)).ok_or(EXPECTED)?;
    let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or(EXPECTED)?;
    let (credentials, host) = match authority.as_str().rsplit_once('@') {
        Some((credentials, host)) => (Some(credentials), host),
        None => (None, authority.as_str()),
    };
    // A password with a / or # that is not percent-encoded ends the authority: a part of it would be the port.
    let port = host.strip_prefix(authority.host()).unwrap_or_default();
    if !port.is_empty() && authority.port_u16().is_none_or(|port| port == 0) {
        return Err(format!("{EXPECTED}; in a user and password, write / as %2F, # as %23 and ? as %3F"));
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    Ok(Target {
        url: format!("{scheme}://{host}{path}"),
        authorization: credentials.map(|text| format!("Basic {}", base64(&percent_decoded(text)))),
        shown: format!("{scheme}://{host}"),
    })
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let (bytes, mut decoded, mut at) = (text.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let code = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    decoded
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let number = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for place in 0..4 {
            let six = (number >> (18 - 6 * place)) & 63;
            text.push(if place <= chunk.len() { char::from(LETTERS[six as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{base64, target};

    #[test]
    fn credentials_of_a_url_are_kept_apart() {
        let found = target("https://anna:s%40cret@example.org:8443/hook?token=7").unwrap();
        assert_eq!(found.url, "https://example.org:8443/hook?token=7");
        assert_eq!(found.authorization.as_deref(), Some("Basic YW5uYTpzQGNyZXQ="));
        assert_eq!(found.shown, "https://example.org:8443");
        assert_eq!(target("http://example.org").unwrap().url, "http://example.org/");
        for refused in [
            "",
            "example.org",
            "ftp://example.org/",
            "/hook",
            "http://",
            "https:///hook",
            "http://h:/",
            "http://h:0/",
            "http://h:99999/",
        ] {
            assert!(target(refused).is_err(), "{refused:?}");
        }
    }

    /// A part of the password would be logged as the port, and sent to a host with the name of the user.
    #[test]
    fn a_password_that_is_not_encoded_is_refused() {
        for url in
            ["http://anna:s3/cret@example.org/", "http://anna:s3#cret@example.org/", "http://anna:s3?c@example.org/"]
        {
            let error = target(url).unwrap_err();
            assert!(error.contains("%23") && !error.contains("s3"), "{error}");
        }
        assert_eq!(target("http://[::1]:8080/x").unwrap().shown, "http://[::1]:8080");
        assert_eq!(target("http://u:p@[::1]/x").unwrap().shown, "http://[::1]");
    }

    #[test]
    fn base64_pads_the_end() {
        assert_eq!(
            ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes())),
            ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]
        );
    }
}
