//! `GET /agent/v1/connection`: a WebSocket over which an agent gets hints when to poll.
//!
//! One small task per connection. It is woken when its cluster has changed, compares the memory with what it sent last,
//! and sends the difference. So it does not matter how often it is woken or which wake-ups it misses: the next
//! comparison finds the newest state.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    response::Response,
};
use farwater_api::protocol::{Hint, MAX_CONNECTION_MESSAGE, Number, close};
use futures::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        handshake::derive_accept_key,
        protocol::{CloseFrame, Role, WebSocketConfig},
    },
};

use super::{answer::Refusal, desired, keys, token::identify};
use crate::{
    memory::{
        clusters::{ClusterState, MIN_SKEW},
        connections::Live,
        counters::Ended,
    },
    replica::Replica,
};

/// Most load balancers close a silent connection after a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(45);
/// How often a connected agent polls, in case a hint was lost.
const CONNECTED_POLL: Duration = Duration::from_secs(300);
/// Time limit for the switch to the other protocol, and for sending one message.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for the other side to close as well.
const CLOSE: Duration = Duration::from_secs(1);
/// Maximum messages of an agent between two pings; one answer is expected.
const MAX_MESSAGES: u32 = 16;
/// Buffer for reading, kept for each connection.
const READ_BUFFER: usize = 64;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

pub async fn get_connection(State(replica): State<Arc<Replica>>, mut request: Request) -> Result<Response, Refusal> {
    let (cluster, instance) = identify(&replica, request.headers())?;
    let accept = read_handshake(request.headers())?;
    let live = replica.memory.connections.admit(&cluster, instance).ok_or_else(|| {
        Refusal::Unavailable("the hub has reached its limit of connections; polls still work".to_owned())
    })?;
    let upgrade = hyper::upgrade::on(&mut request);
    let serving = serve(Arc::clone(&replica), cluster, live, upgrade);
    replica.memory.connections.tasks.spawn(serving);
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    Ok(response)
}

/// Reads the handshake of RFC 6455, section 4.2.1, and returns the key of the answer.
fn read_handshake(headers: &HeaderMap) -> Result<HeaderValue, Refusal> {
    let names = |name: &header::HeaderName, wanted: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values
            .flat_map(|value| value.split(','))
            .any(|token| token.trim().eq_ignore_ascii_case(wanted))
    };
    let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(|_| {
        names(&header::UPGRADE, "websocket")
            && names(&header::CONNECTION, "upgrade")
            && names(&header::SEC_WEBSOCKET_VERSION, "13")
    });
    let key = key.ok_or_else(|| {
        let message = "this address is for WebSockets, version 13, over HTTP/1.1; proxies in between must pass them on";
        Refusal::Invalid(message.to_owned())
    })?;
    HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(|error| Refusal::Invalid(error.to_string()))
}

async fn serve(replica: Arc<Replica>, cluster: Arc<ClusterState>, live: Arc<Live>, upgrade: OnUpgrade) {
    let ended = match timeout(PATIENCE, upgrade).await {
        Ok(Ok(stream)) => {
            let config = WebSocketConfig::default()
                .read_buffer_size(READ_BUFFER)
                .write_buffer_size(0)
                .max_write_buffer_size(4 * MAX_CONNECTION_MESSAGE)
                .max_message_size(Some(MAX_CONNECTION_MESSAGE))
                .max_frame_size(Some(MAX_CONNECTION_MESSAGE));
            let socket = WebSocketStream::from_raw_socket(TokioIo::new(stream), Role::Server, Some(config)).await;
            replica.memory.counters.connected.inc();
            let mut connection = Connection {
                replica: &replica,
                live: &live,
                socket,
                told: SentHints::default(),
            };
            connection.talk(&cluster.uid).await
        }
        _ => Ended::Broken,
    };
    cluster.disconnect(&live);
    replica.memory.counters.count_ended(ended);
    tracing::debug!(cluster = %cluster.name, reason = ended.as_str(), "an agent's connection has ended");
}

struct Connection<'a> {
    replica: &'a Replica,
    live: &'a Arc<Live>,
    socket: Socket,
    told: SentHints,
}

impl Connection<'_> {
    async fn talk(&mut self, uid: &str) -> Ended {
        match self.follow(uid).await {
            Ok(never) => match never {},
            Err(ended) => {
                self.close(ended).await;
                ended
            }
        }
    }

    async fn follow(&mut self, uid: &str) -> Result<std::convert::Infallible, Ended> {
        let mut keep_alive = Duration::ZERO;
        let mut ping_at = Instant::now();
        let (mut answered, mut messages) = (true, 0);
        loop {
            let cluster = self.standing(uid)?;
            for hint in self.told.next(&cluster, self.replica) {
                if let Hint::Welcome { .. } = hint {
                    keep_alive = self.told.keep_alive;
                    ping_at = Instant::now() + keep_alive;
                } else {
                    self.replica.memory.counters.hints.inc();
                }
                self.say(&hint).await?;
            }

            tokio::select! {
                message = self.socket.next() => match message {
                    Some(Ok(Message::Close(_))) | None => return Err(Ended::Closed),
                    Some(Err(_)) => return Err(Ended::Broken),
                    Some(Ok(_)) => {
                        answered = true;
                        cluster.hear(self.replica.clock.now().as_second());
                        messages += 1;
                        if messages > MAX_MESSAGES {
                            return Err(Ended::Noisy);
                        }
                    }
                },
                () = self.live.wake.notified() => {}
                () = sleep_until(ping_at) => {
                    if !std::mem::take(&mut answered) {
                        return Err(Ended::Silent);
                    }
                    (messages, ping_at) = (0, Instant::now() + keep_alive);
                    self.send(Message::Ping(Default::default())).await?;
                }
                () = self.replica.memory.connections.closing.cancelled() => return Err(Ended::HubStops),
            }
        }
    }

    /// Whether the agent would be answered if it polled now, and this is its only connection.
    fn standing(&self, uid: &str) -> Result<Arc<ClusterState>, Ended> {
        let cluster = self.replica.memory.clusters.get(uid).ok_or(Ended::Refused)?;
        if cluster.key_print != self.live.key_print || cluster.quarantine().is_some() {
            return Err(Ended::Refused);
        }
        let is_mine = cluster.connection().is_some_and(|live| Arc::ptr_eq(&live, self.live));
        if is_mine && cluster.is_current(&self.live.instance) {
            Ok(cluster)
        } else {
            Err(Ended::Replaced)
        }
    }

    async fn say(&mut self, hint: &Hint) -> Result<(), Ended> {
        let text = serde_json::to_string(hint).map_err(|_| Ended::Broken)?;
        self.send(Message::text(text)).await
    }

    async fn send(&mut self, message: Message) -> Result<(), Ended> {
        match timeout(PATIENCE, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Ended::Broken),
            Err(_) => Err(Ended::Silent),
        }
    }

    async fn close(&mut self, ended: Ended) {
        let Some(code) = ended.code() else { return };
        if ended == Ended::HubStops {
            let within = self.replica.memory.connections.return_within();
            let hint = Hint::Return {
                within_seconds: within.as_secs_f64(),
            };
            // An agent that misses this hint returns as after any other loss.
            let _ = self.say(&hint).await;
        }
        let frame = CloseFrame {
            code: code.into(),
            reason: ended.as_str().into(),
        };
        if self.send(Message::Close(Some(frame))).await.is_ok() {
            let _ = timeout(CLOSE, async { while let Some(Ok(_)) = self.socket.next().await {} }).await;
        }
    }
}

impl Ended {
    /// Code of the close frame; None: the other side would not receive it.
    fn code(self) -> Option<u16> {
        match self {
            Self::HubStops => Some(close::GOING_AWAY),
            Self::Noisy => Some(close::POLICY),
            Self::Replaced => Some(close::REPLACED),
            Self::Refused => Some(close::REFUSED),
            Self::Closed | Self::Broken | Self::Silent => None,
        }
    }
}

/// The hints that were sent to the agent last.
#[derive(Default)]
struct SentHints {
    number: Option<Number>,
    /// The hub asked the agent to fetch the hub's keys, or to make new ones.
    keys: bool,
    /// Number of the request for a plan that the hub asked the agent to fetch.
    plan: u64,
    keep_alive: Duration,
    poll: Duration,
}

impl SentHints {
    /// The hints about what has changed since.
    fn next(&mut self, cluster: &ClusterState, replica: &Replica) -> impl Iterator<Item = Hint> + use<> {
        let keep_alive = KEEP_ALIVE.min(cluster.poll_interval * 3 / 2);
        // Poll often while the clock is off: the agent's next poll shows whether it was set right.
        let is_skewed = cluster.ahead().is_some_and(|ahead| ahead.abs() >= MIN_SKEW);
        let poll = if is_skewed {
            cluster.poll_interval
        } else {
            CONNECTED_POLL.max(cluster.poll_interval)
        };
        let welcome = (self.keep_alive, self.poll) != (keep_alive, poll);
        (self.keep_alive, self.poll) = (keep_alive, poll);
        let welcome = welcome.then_some(Hint::Welcome {
            keep_alive_seconds: keep_alive.as_secs_f64(),
            poll_seconds: poll.as_secs_f64(),
        });
        // None while the state is being computed: the number will be another one then.
        let number = cluster.etag.as_ref().and_then(desired::number);
        let news = number.filter(|number| self.number != Some(*number));
        self.number = number.or(self.number);
        let keys = cluster.position != replica.identity.trusted().position
            || keys::wants_keys(cluster, Timestamp::now().as_second());
        let plan = cluster.plan();
        let asked = (keys && !self.keys) || plan > self.plan;
        (self.keys, self.plan) = (keys, plan.max(self.plan));
        let news = news.map(|number| Hint::Poll { desired: Some(number) });
        let asked = asked.then_some(Hint::Poll { desired: None });
        welcome.into_iter().chain(news).chain(asked)
    }
}
