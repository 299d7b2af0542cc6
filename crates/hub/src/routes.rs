//! Which part answers which path, and what applies to all of them: limits, ids, the log, and authentication.

mod observe;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request, State},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::get,
};
use bytes::Bytes;
use farwater_telemetry::exposition;
use futures::StreamExt as _;
use http::{HeaderMap, Method, StatusCode, header};
use tower_http::timeout::RequestBodyTimeoutLayer;

use crate::{
    Hub, apiserver,
    auth::{Attributes, User},
    bodies::Bodies,
    endpoint::Endpoint,
    health,
    metrics::Route,
    replica::Replica,
    server::{Closer, KnownClient},
    status::{failure, forbidden, not_found, try_later, unauthenticated},
    turns::{Shares, Turn, Turns, peer_name},
    web,
};

/// Maximum pause between two pieces of a request's body.
const BODY_PAUSE: Duration = Duration::from_secs(30);
/// Bytes of all bodies that are read or handled at a time, of agents and of unauthenticated clients.
const AGENT_BODIES: usize = 256 << 20;
const UNKNOWN_BODIES: usize = 4 << 20;
/// Time for the first part of a body: agents may have slow lines, other clients send a few hundred bytes.
const AGENT_GRACE: Duration = Duration::from_secs(30);
const UNKNOWN_GRACE: Duration = Duration::from_secs(5);
/// Maximum requests of unauthenticated clients from one address that are handled at a time. Their bodies have arrived
/// before, so each takes milliseconds; all agents of a company may share one address.
const PER_PEER: usize = 16;

/// Everything that the hub's address serves.
pub fn router(hub: &Arc<Hub>) -> Router {
    let agents = AgentDoor::new(hub);
    Endpoint::router(endpoints())
        .merge(
            crate::delivery::router(Arc::clone(&hub.replica)).layer(middleware::from_fn_with_state(agents, take_turn)),
        )
        .merge(crate::receivers::router(Arc::clone(&hub.replica)))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn(refuse_impersonation))
        .merge(Endpoint::router(api_endpoints()))
        .layer(RequestBodyTimeoutLayer::new(BODY_PAUSE))
        .layer(middleware::from_fn_with_state(Arc::clone(hub), observe::observe))
        .with_state(Arc::clone(hub))
}

/// For the loopback listener: metrics without a token, and nothing else.
pub fn metrics_router(hub: &Arc<Hub>) -> Router {
    Router::new()
        .route("/metrics", get(open_metrics))
        .with_state(Arc::clone(hub))
}

fn endpoints() -> Vec<Endpoint<Arc<Hub>>> {
    vec![
        Endpoint::get("/healthz", health::live),
        Endpoint::get("/livez", health::live),
        Endpoint::get("/readyz", health::ready),
        Endpoint::get("/version", health::version),
        Endpoint::get("/version/", health::version),
        Endpoint::get("/metrics", metrics),
        Endpoint::get("/", web::root),
        Endpoint::get("/ui", web::root),
        Endpoint::get("/ui/", web::index),
        Endpoint::get("/ui/{*path}", web::file),
    ]
}

fn api_endpoints() -> Vec<Endpoint<Arc<Hub>>> {
    let paths = [
        "/api",
        "/api/",
        "/api/{*path}",
        "/apis",
        "/apis/",
        "/apis/{*path}",
        "/openapi",
        "/openapi/{*path}",
    ];
    paths.into_iter().map(|path| Endpoint::any(path, serve_api)).collect()
}

/// Method and path of everything that the hub's address serves. Discovery lists the paths under `/api` and `/apis`.
pub fn served_paths() -> Vec<(&'static str, &'static str)> {
    let own = endpoints()
        .into_iter()
        .chain(api_endpoints())
        .map(|endpoint| (endpoint.method, endpoint.path));
    let agents = crate::delivery::endpoints()
        .into_iter()
        .map(|endpoint| (endpoint.method, endpoint.path));
    let hosts = crate::receivers::endpoints()
        .into_iter()
        .map(|endpoint| (endpoint.method, endpoint.path));
    own.chain(agents).chain(hosts).collect()
}

/// Whether requests to this path yield to agents and to health probes.
pub fn gives_way(path: &str) -> bool {
    matches!(
        Route::of(path),
        Route::Api | Route::Discovery | Route::Web | Route::Webhook
    )
}

/// The limits for requests of agents.
#[derive(Clone)]
struct AgentDoor {
    replica: Arc<Replica>,
    known: AgentClass,
    /// Clients without a valid access token: agents that join or request one, and all others.
    unknown: AgentClass,
    /// Unauthenticated requests, by address. Clusters may share an address.
    peers: Arc<Shares>,
}

#[derive(Clone)]
struct AgentClass {
    turns: Turns,
    bodies: Bodies,
    max_body: usize,
}

impl AgentDoor {
    fn new(hub: &Hub) -> Self {
        let turns = hub.config.max_agent_requests;
        let class = |turns: usize, bodies: Bodies, max_body: usize| AgentClass {
            turns: Turns::of_agents(turns.max(1)),
            bodies,
            max_body,
        };
        Self {
            replica: Arc::clone(&hub.replica),
            known: class(
                turns,
                Bodies::new(AGENT_BODIES, AGENT_GRACE),
                crate::delivery::MAX_AGENT_BODY,
            ),
            unknown: class(
                turns / 8,
                Bodies::new(UNKNOWN_BODIES, UNKNOWN_GRACE),
                crate::delivery::MAX_REQUEST_BYTES,
            ),
            peers: Arc::new(Shares::new(PER_PEER)),
        }
    }
}

/// Reads the body before the request takes a turn. Unauthenticated clients have turns of their own.
async fn take_turn(State(door): State<AgentDoor>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let cluster = crate::delivery::token::cluster_of(&door.replica, &parts.headers);
    let is_known = cluster.is_some();
    let peer = parts
        .extensions
        .get::<ConnectInfo<SocketAddr>>()
        .map(|ConnectInfo(peer)| peer_name(peer.ip()));
    let (class, client) = match cluster {
        Some(cluster) => (&door.known, cluster),
        None => (&door.unknown, peer.unwrap_or_default()),
    };

    let body = match class.bodies.read(&client, body, class.max_body).await {
        Ok(body) => body,
        Err(error) => return crate::delivery::refuse_body(error, &parts.headers),
    };

    let _share = match is_known {
        true => None,
        false => match door.peers.wait(&client).await {
            Some(share) => Some(share),
            None => {
                let message = "too many requests from this address";
                return try_later(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
            }
        },
    };

    // The turn ends with the head of the answer.
    match class.turns.begin().await {
        Ok(_turn) => {
            let mut response = next
                .run(Request::from_parts(parts, Body::from(body.bytes.clone())))
                .await;
            if is_known {
                response.extensions_mut().insert(KnownClient);
            }
            response
        }
        Err(refusal) => refusal,
    }
}

async fn serve_api(State(hub): State<Arc<Hub>>, request: Request) -> Response {
    let user = match hub.access.authenticate(request.headers()).await {
        Ok(user) => user,
        Err(error) => return unauthenticated(&error),
    };
    let asker = observe::Asker::of(&user, request.headers());
    let route = Route::of(request.uri().path());
    let is_watch = is_watch(request.uri().query());
    // Clients take a throttled discovery for a broken server, and discovery is cheap.
    let mut response = if route == Route::Discovery {
        let (parts, _) = request.into_parts();
        apiserver::serve(
            Arc::clone(&hub),
            user,
            Turn::free(),
            Request::from_parts(parts, Bytes::new()),
        )
        .await
    } else {
        serve_resource(&hub, user, request).await
    };
    response.extensions_mut().insert(asker);
    response.extensions_mut().insert(KnownClient);
    if is_watch && response.status().is_success() {
        end_with_hub(&hub, response)
    } else {
        response
    }
}

/// Reads the body before the request takes a turn, so that a slow client takes no turn from others.
async fn serve_resource(hub: &Arc<Hub>, user: User, request: Request) -> Response {
    let client = user.share_name();
    let Some(_share) = hub.user_shares.wait(client).await else {
        let message = "this user has half of all requests that the server works on; try again";
        return try_later(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
    };
    let (parts, body) = request.into_parts();
    let bodies = if user.is_master() {
        &hub.reserved_bodies
    } else {
        &hub.bodies
    };
    let body = match bodies.read(client, body, apiserver::MAX_BODY).await {
        Ok(body) => body,
        Err(error) => return apiserver::refuse_body(error),
    };
    let turn = if user.is_master() {
        hub.turns.begin_or(&hub.reserved_turns).await
    } else {
        hub.turns.begin().await
    };
    let turn = match turn {
        Ok(turn) => turn,
        Err(refusal) => return refusal,
    };
    let is_read = parts.method == Method::GET || parts.uri.query().is_some_and(|query| query.contains("dryRun"));
    let connection = parts.extensions.get::<Closer>().cloned();
    let answers = hub.answers.of(&user);
    let response = apiserver::serve(
        Arc::clone(hub),
        user,
        turn,
        Request::from_parts(parts, body.bytes.clone()),
    )
    .await;
    answers.hold(response, is_read, connection).await
}

/// A stream of events ends when the hub stops; otherwise it would delay the end until it is cut off.
fn end_with_hub(hub: &Hub, response: Response) -> Response {
    let counted = hub.metrics.watch();
    let ending = hub.shutdown.clone().cancelled_owned();
    response.map(|body| {
        Body::from_stream(
            body.into_data_stream()
                .take_until(ending)
                .inspect(move |_| _ = &counted),
        )
    })
}

fn is_watch(query: Option<&str>) -> bool {
    let parameters = query.unwrap_or_default().split('&');
    parameters.into_iter().any(|parameter| match parameter.split_once('=') {
        Some((name, value)) => name == "watch" && !matches!(value, "0" | "false"),
        None => parameter == "watch",
    })
}

/// Only the API supports impersonation. Ignoring the headers elsewhere would use the sender's own rights under another
/// name.
async fn refuse_impersonation(request: Request, next: Next) -> Response {
    let asked = request
        .headers()
        .keys()
        .find(|name| name.as_str().starts_with("impersonate-"));
    match asked {
        Some(name) => forbidden(&format!(
            "impersonation is for the API alone: remove the header {name:?}"
        )),
        None => next.run(request).await,
    }
}

async fn metrics(State(hub): State<Arc<Hub>>, headers: HeaderMap) -> Response {
    let user = match hub.access.authenticate(&headers).await {
        Ok(user) => user,
        Err(error) => return unauthenticated(&error),
    };
    let request = Attributes::non_resource("get", "/metrics");
    match hub.access.authorize(&user, &request).await {
        Ok(decision) if decision.is_allowed() => encode_metrics(&hub, &headers).await,
        Ok(_) => forbidden(&format!("forbidden: {}", request.forbidden_message(&user))),
        Err(error) => try_later(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            &error.to_string(),
        ),
    }
}

async fn open_metrics(State(hub): State<Arc<Hub>>, headers: HeaderMap) -> Response {
    encode_metrics(&hub, &headers).await
}

/// In OpenMetrics' form if the client requests it, as Prometheus does; otherwise in the older form, which promtool
/// reads.
async fn encode_metrics(hub: &Hub, headers: &HeaderMap) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text";
    let accepted = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let is_open = accepted
        .flat_map(|value| value.split(','))
        .any(|kind| kind.trim().starts_with(OPEN_METRICS));
    match hub.metrics.scrape().await {
        Ok(text) if is_open => {
            let kind = format!("{OPEN_METRICS}; version=1.0.0; charset=utf-8");
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Ok(text) => (
            [(header::CONTENT_TYPE, exposition::CONTENT_TYPE)],
            exposition::from_open_metrics(&text),
        )
            .into_response(),
        Err(_) => failure(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            "the metrics could not be written",
        ),
    }
}

/// Clients without a token must not learn whether a path exists.
async fn unknown(State(hub): State<Arc<Hub>>, headers: HeaderMap) -> Response {
    match hub.access.authenticate(&headers).await {
        Ok(_) => not_found(),
        Err(error) => unauthenticated(&error),
    }
}

async fn wrong_method() -> Response {
    let message = "the server does not allow this method on the requested resource";
    failure(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_are_told_from_the_query() {
        let check = |query: &str, expected: bool| assert_eq!(is_watch(Some(query)), expected, "{query}");
        check("watch=true&resourceVersion=1", true);
        check("resourceVersion=1&watch=1", true);
        check("watch", true);
        check("watch=false", false);
        check("watched=true", false);
        check("", false);
    }
}
