//! Alarms of `duly run`: a look finds them, one thread for each channel delivers them, and a ping says that there are none.
//! The scheduler does not wait for any of it.

mod command;
mod message;
mod outage;
mod sender;
mod stop;
mod url;
mod watch;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use duly::text::database_name::shown;
use duly::{Client, Error, Timestamp};

use crate::alarms::message::Origin;
use crate::alarms::outage::Outages;
use crate::alarms::sender::{Receiver, Sender, State};
use crate::alarms::stop::Stop;
use crate::alarms::url::Url;
use crate::alarms::watch::Watch;
use crate::cli::alarm_args::AlarmOptions;
use crate::exec::guard::Guard;
use crate::exec::machine;

/// Time limit for the last attempts.
const LAST: Duration = Duration::from_secs(5);

/// The running threads.
pub(crate) struct Alarms {
    stop: Arc<Stop>,
}

impl Alarms {
    /// Starts the threads that the options need, if any, for a database that exists. `since`: when the program started. `guard`: ends a
    /// command if this process is killed.
    pub(crate) fn start(
        file: &Path,
        options: AlarmOptions,
        since: Timestamp,
        guard: &Guard,
    ) -> Result<Option<Alarms>, Error> {
        let AlarmOptions { command, url, ping, limits, look, pace, retry, ping_interval, request } = options;
        let command = command.map(|argv| ("command", Receiver::Command(argv, guard.clone())));
        let url = url.map(|target| ("url", Receiver::Url(Url::new(target, request))));
        let receivers: Vec<(&'static str, Receiver)> = command.into_iter().chain(url).collect();
        if receivers.is_empty() && ping.is_none() {
            return Ok(None);
        }
        let stop = Arc::new(Stop::default());
        if !receivers.is_empty() {
            let channels = receivers.iter().map(|(channel, _)| *channel).collect();
            let outages = Arc::new(Outages::new(channels, pace.gather));
            // An address is no name of a file, and stays as it is.
            let database = shown(&file.canonicalize().unwrap_or_else(|_| file.to_owned()));
            let origin = Origin { host: machine::host(), database };
            for (channel, receiver) in receivers {
                let (origin, outages, stop) = (origin.clone(), outages.clone(), stop.clone());
                let client = Client::open_existing(file)?;
                let state = State::default();
                let sender = Sender { client, channel, receiver, origin, outages, stop, pace, retry, state };
                spawn(&sender.stop.clone(), &format!("duly-{channel}"), move || sender.run())?;
            }
            let client = Client::open_existing(file)?;
            let watch = Watch { client, outages, stop: stop.clone(), interval: look, limits: limits.clone(), since };
            spawn(&stop, "duly-alarms", move || watch.run())?;
        }
        if let Some(target) = ping {
            let (client, shared) = (Client::open_existing(file)?, stop.clone());
            let url = Url::new(target, request);
            spawn(&stop, "duly-ping", move || watch::ping(&client, &url, (ping_interval, &limits), &shared))?;
        }
        Ok(Some(Alarms { stop }))
    }

    /// Looks once more, and makes a last attempt to deliver what is left. What is not delivered then waits in the database.
    pub(crate) fn finish(self) {
        self.stop.request(LAST);
    }
}

/// Ends the count of a thread, also after a panic.
struct Counted(Arc<Stop>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn spawn(stop: &Arc<Stop>, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    stop.begin();
    let counted = Counted(stop.clone());
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _counted = counted;
        run();
    });
    let cannot = |source: io::Error| Error::Store { doing: "start a thread for alarms", source: source.into() };
    thread.map(drop).map_err(cannot)
}
