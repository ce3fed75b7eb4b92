//! Requests to a URL: alarms as JSON, and pings. Time, redirects and the size of an answer are limited.

use std::time::Duration;

use ureq::config::Config;
use ureq::{Agent, Error};

use crate::cli::alarm_args::Target;

/// Time limit for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Largest header of an answer, in bytes. Its body is not read.
const MAX_HEADER: usize = 16 * 1024;
/// Most redirects of a ping.
const MAX_REDIRECTS: u32 = 3;

/// Requests one URL.
#[derive(Debug)]
pub(crate) struct Url {
    agent: Agent,
    target: Target,
}

impl Url {
    /// `limit`: for a whole request, also if the answer arrives byte by byte.
    pub(crate) fn new(target: Target, limit: Duration) -> Self {
        let config = Config::builder()
            .timeout_global(Some(limit))
            .timeout_connect(Some(CONNECT))
            .max_redirects(MAX_REDIRECTS)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .max_response_header_size(MAX_HEADER)
            .max_idle_connections(0)
            .user_agent(concat!("duly/", env!("CARGO_PKG_VERSION")))
            .build();
        Url { agent: config.new_agent(), target }
    }

    /// Posts JSON. Redirects are not followed: the request would become one without a body.
    pub(crate) fn post(&self, json: &str) -> Result<(), String> {
        let mut request = self.agent.post(&self.target.url).header("content-type", "application/json");
        if let Some(authorization) = &self.target.authorization {
            request = request.header("authorization", authorization);
        }
        let answer = request.config().max_redirects(0).build().send(json.as_bytes());
        judged(answer.map(|answer| answer.status().as_u16()))
    }

    /// Requests the URL.
    pub(crate) fn get(&self) -> Result<(), String> {
        let mut request = self.agent.get(&self.target.url);
        if let Some(authorization) = &self.target.authorization {
            request = request.header("authorization", authorization);
        }
        judged(request.call().map(|answer| answer.status().as_u16()))
    }

    /// Returns what a log may show.
    pub(crate) fn shown(&self) -> &str {
        &self.target.shown
    }
}

fn judged(answer: Result<u16, Error>) -> Result<(), String> {
    match answer {
        Ok(200..=299) => Ok(()),
        Ok(status @ 300..=399) => {
            Err(format!("the answer was {status}, a redirect that is not followed: give its target"))
        }
        Ok(status) => Err(format!("the answer was {status}, expected 200 to 299")),
        Err(Error::Timeout(_)) => Err("no answer in time".to_owned()),
        // The text of the error may hold a URL.
        Err(Error::BadUri(_) | Error::RequireHttpsOnly(_) | Error::ConnectProxyFailed(_)) => {
            Err("the request cannot be sent: see the URL, its redirects and the proxy".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}
