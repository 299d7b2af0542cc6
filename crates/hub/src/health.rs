//! Whether the hub is alive and ready, and its version. Needs no authentication and reveals nothing else.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{RawQuery, State},
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::Hub;

/// A probe that waits longer than this has usually given up.
const PATIENCE: Duration = Duration::from_secs(2);

/// Alive: the process answers.
pub async fn live() -> &'static str {
    "ok"
}

/// Ready: the store can be read, access can be decided, and the hub isn't stopping. `?verbose` also lists the parts
/// that are ready.
pub async fn ready(State(hub): State<Arc<Hub>>, RawQuery(query): RawQuery) -> Response {
    let checks = [
        ("store", store_answers(&hub).await),
        ("access", hub.access.is_ready()),
        ("running", is_running(&hub)),
    ];
    let is_ready = checks.iter().all(|(_, good)| *good);
    let is_verbose = query.is_some_and(|query| query.split('&').any(|parameter| parameter == "verbose"));
    if is_ready && !is_verbose {
        return "ok".into_response();
    }
    let lines: Vec<String> = checks
        .iter()
        .map(|(name, good)| format!("[{}] {name}\n", if *good { '+' } else { '-' }))
        .collect();
    if is_ready {
        return (lines.concat() + "ready\n").into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, lines.concat() + "not ready\n").into_response()
}

fn is_running(hub: &Hub) -> bool {
    !hub.shutdown.is_cancelled()
}

async fn store_answers(hub: &Hub) -> bool {
    matches!(timeout(PATIENCE, hub.store.check()).await, Ok(Ok(())))
}

/// The Kubernetes version whose API this is a subset of, because clients parse it. Our own version is in the build
/// part.
pub async fn version() -> Json<Value> {
    Json(json!({
        "major": "1",
        "minor": "33",
        "gitVersion": concat!("v1.33.0+farwater.", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, go_architecture()),
    }))
}

fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
