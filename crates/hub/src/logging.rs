//! The log: on standard error, and over OTLP if that is configured.

use std::io::IsTerminal as _;

use farwater_telemetry::otlp::{self, Otlp};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer as _, filter::filter_fn, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::config::{Config, LogFormat, LogLevel};

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

/// Starts logging. If the program that runs the hub has done so already, its settings stay.
pub fn init(config: &Config, otlp: Option<&Otlp>) {
    let layer = fmt::layer().with_writer(std::io::stderr);
    let written = match config.log_format {
        LogFormat::Json => layer.json().flatten_event(true).with_current_span(false).boxed(),
        LogFormat::Text => layer
            .with_target(false)
            .with_ansi(std::io::stderr().is_terminal())
            .boxed(),
    };
    let sent = otlp
        .and_then(Otlp::log_layer)
        .map(|layer| layer.with_filter(filter_fn(otlp::is_sent)));
    let level = LevelFilter::from(config.log_level);
    let _ = tracing_subscriber::registry()
        .with(written)
        .with(sent)
        .with(level)
        .try_init();
}
