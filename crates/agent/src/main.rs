//! `farwater-agent`: see the library for what it does.

use std::{env, io::IsTerminal as _, process::ExitCode};

use clap::Parser as _;
use farwater_agent::{LogFormat, Options, run};
use farwater_telemetry::otlp::{self, Otlp};
use tokio_util::sync::CancellationToken;
use tracing::Level;
use tracing_subscriber::{
    Layer as _,
    filter::{Targets, filter_fn},
    fmt,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

/// One thread and the system's allocator: measured at less than half the memory of the usual choices.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = Options::parse();
    let otlp = Otlp::start("farwater-agent", env!("CARGO_PKG_VERSION"));
    start_log(options.log_format, otlp.as_ref().ok().and_then(Option::as_ref));
    let otlp = match otlp {
        Ok(otlp) => otlp,
        Err(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "stopped");
            return ExitCode::from(2);
        }
    };

    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        wait_for_signal().await;
        stop.cancel();
    });

    let code = match run(options, shutdown).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = error.text(), "stopped");
            ExitCode::from(2)
        }
    };
    if let Some(otlp) = otlp {
        let _ = tokio::task::spawn_blocking(|| otlp.close()).await;
    }
    code
}

/// Logs to standard error, and over OTLP if that is configured.
fn start_log(format: LogFormat, otlp: Option<&Otlp>) {
    let wanted = env::var("FARWATER_LOG").map(|text| text.parse::<Targets>());
    let filter = match &wanted {
        Ok(Ok(targets)) => targets.clone(),
        _ => Targets::new().with_default(Level::INFO),
    };
    let layer = fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let written = match format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().flatten_event(true).with_current_span(false).boxed(),
    };
    let sent = otlp
        .and_then(Otlp::log_layer)
        .map(|layer| layer.with_filter(filter_fn(otlp::is_sent)));
    tracing_subscriber::registry()
        .with(written)
        .with(sent)
        .with(filter)
        .init();
    if let Ok(Err(error)) = &wanted {
        tracing::warn!(%error, "FARWATER_LOG is invalid: using `info`");
    }
}

async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
