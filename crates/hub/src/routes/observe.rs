//! Each request gets an id, a line in the log and a place in the metrics.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use axum::{
    extract::{ConnectInfo, Request, State},
    middleware::Next,
    response::Response,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{
    Hub,
    auth::{User, wanted_name},
    metrics::Route,
};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_ID: usize = 64;
/// Maximum length of a logged path; two of Kubernetes' longest names fit.
const MAX_PATH: usize = 768;
/// Maximum length of an impersonated name in the log: any service account's name fits.
const MAX_NAME: usize = 340;

/// The user that sent a request, passed to the log with the answer.
#[derive(Clone)]
pub struct Asker(String);

impl Asker {
    /// Logs an impersonated name whether it was allowed or not.
    pub fn of(user: &User, headers: &HeaderMap) -> Self {
        Self(match wanted_name(headers) {
            Some(wanted) => format!("{} as {}", user.name, wanted.chars().take(MAX_NAME).collect::<String>()),
            None => user.name.clone(),
        })
    }
}

pub async fn observe(State(hub): State<Arc<Hub>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(&request);
    let method = request.method().clone();
    // Without the query, because selectors and the like are content.
    let path: String = request.uri().path().chars().take(MAX_PATH).collect();
    let route = Route::of(&path);
    let peer = request
        .extensions()
        .get::<ConnectInfo<SocketAddr>>()
        .map(|ConnectInfo(peer)| *peer);
    request.headers_mut().insert(REQUEST_ID, id.clone());

    let in_flight = hub.metrics.in_flight(route);
    let mut response = next.run(request).await;
    drop(in_flight);

    let (code, took) = (response.status().as_u16(), started.elapsed());
    if let (408 | 413 | 429 | 503, Some(peer)) = (code, peer) {
        hub.refusals.note(peer.ip());
    }
    hub.metrics.count_request(route, &method, code, took);
    let user = response
        .extensions_mut()
        .remove::<Asker>()
        .map(|Asker(name)| name)
        .unwrap_or_default();
    let shown = id.to_str().unwrap_or_default();
    let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
    let ms = took.as_secs_f64() * 1000.0;
    // Polls, probes, scrapes and webhooks are most of the traffic; only their failures are logged.
    let is_routine = matches!(route, Route::Agent | Route::Health | Route::Metrics | Route::Webhook) && code < 400;
    if is_routine {
        tracing::debug!(request_id = shown, %method, path, route = route.as_str(), user, code, ms, peer, "request");
    } else {
        tracing::info!(request_id = shown, %method, path, route = route.as_str(), user, code, ms, peer, "request");
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The client's own id if it is valid, so that both logs can be joined; otherwise a new one.
fn request_id(request: &Request) -> HeaderValue {
    let given = request
        .headers()
        .get(REQUEST_ID)
        .filter(|value| is_id(value.as_bytes()));
    given.cloned().unwrap_or_else(|| {
        HeaderValue::from_str(&uuid::Uuid::new_v4().simple().to_string()).unwrap_or(HeaderValue::from_static("none"))
    })
}

fn is_id(bytes: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=MAX_ID).contains(&bytes.len()) && bytes.iter().all(allowed)
}
