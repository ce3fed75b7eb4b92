//! The lines of the log: text with time and level, JSON, or the level prefix of the systemd journal.

use std::io::Write;
use std::sync::Mutex;

use duly::{Clock, SystemClock, Timestamp};
use log::{Level, LevelFilter, Log, Metadata, Record};
use serde::Serialize;
use simplelog::{Config, ConfigBuilder, WriteLogger};
use time::macros::format_description;

use crate::cli::values::LogFormat;
use crate::output::log_queue::Lines;

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    level: &'a str,
    message: &'a str,
}

impl LogFormat {
    /// Formats a message, with a line end. Only a JSON message of several lines becomes one line.
    pub(crate) fn line(self, at: Timestamp, level: Level, message: &str) -> String {
        match self {
            LogFormat::Text => format!("{at} [{level}] {message}\n"),
            LogFormat::Json => {
                let level = level.as_str().to_lowercase();
                let line = Line { time: at.to_string(), level: &level, message };
                // Strings can be serialized always.
                serde_json::to_string(&line).map(|line| line + "\n").unwrap_or_default()
            }
            LogFormat::Journald => {
                let number = match level {
                    Level::Error => 3,
                    Level::Warn => 4,
                    Level::Info => 6,
                    Level::Debug | Level::Trace => 7,
                };
                message.lines().map(|line| format!("<{number}>{line}\n")).collect()
            }
        }
    }

    /// Formats the last line of the program, an error, without a line end.
    pub(crate) fn last(self, at: Timestamp, error: &str) -> String {
        match self {
            LogFormat::Text => error.to_owned(),
            _ => self.line(at, Level::Error, error).trim_end().to_owned(),
        }
    }
}

/// Targets that are logged begin with this. Libraries log at debug level what may be secret, such as the path of a URL.
const TARGET: &str = "duly";

/// Returns how simplelog writes [`LogFormat::Text`].
fn text() -> Config {
    let time = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    ConfigBuilder::new()
        .set_time_format_custom(time)
        .set_time_level(LevelFilter::Error)
        .set_thread_level(LevelFilter::Off)
        .set_target_level(LevelFilter::Off)
        .set_location_level(LevelFilter::Off)
        .add_filter_allow_str(TARGET)
        .build()
}

/// Installs a logger that writes to a queue of lines. Without effect if one is installed already.
pub(crate) fn install(format: LogFormat, level: LevelFilter, lines: Lines) {
    if format == LogFormat::Text {
        let _ = WriteLogger::init(level, text(), lines);
        return;
    }
    let logger = Logger { format, level, clock: SystemClock::new(), lines: Mutex::new(lines) };
    if log::set_boxed_logger(Box::new(logger)).is_ok() {
        log::set_max_level(level);
    }
}

/// Writes a log of JSON or of the journal.
struct Logger {
    format: LogFormat,
    level: LevelFilter,
    clock: SystemClock,
    lines: Mutex<Lines>,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= self.level && metadata.target().starts_with(TARGET)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let line = self.format.line(self.clock.now().wall, record.level(), &record.args().to_string());
        // The queue never fails. After a panic in it, a partial line at most is lost.
        let mut lines = self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let _ = lines.write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::LogFormat;
    use log::Level;

    #[test]
    fn each_format_has_its_lines() {
        let at = "2027-03-14T07:00:00.042Z".parse().unwrap();
        let line = |format: LogFormat, level, text| format.line(at, level, text);
        assert_eq!(line(LogFormat::Text, Level::Warn, "a \"b\""), "2027-03-14T07:00:00.042Z [WARN] a \"b\"\n");
        let json = line(LogFormat::Json, Level::Error, "a \"b\"\nc");
        assert_eq!(
            json,
            "{\"time\":\"2027-03-14T07:00:00.042Z\",\"level\":\"error\",\"message\":\"a \\\"b\\\"\\nc\"}\n"
        );
        assert_eq!(line(LogFormat::Journald, Level::Error, "a\nb"), "<3>a\n<3>b\n");
        assert_eq!(line(LogFormat::Journald, Level::Info, "a"), "<6>a\n");
        assert_eq!(LogFormat::Text.last(at, "error: a"), "error: a");
        assert_eq!(LogFormat::Journald.last(at, "error: a"), "<3>error: a");
    }
}
