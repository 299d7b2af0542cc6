//! The connections of a fake hub, which sends what a test wants, breaks off, falls silent, or refuses.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use farwater_api::protocol::{Hint, Number};
use futures::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::Full;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::broadcast;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};

use super::refuse;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behaviour {
    /// The hub doesn't support connections.
    #[default]
    None,
    Serve,
    /// A proxy answers as if it were a plain request.
    Swallow,
    /// The hub answers 503.
    Refuse,
    /// The protocol is switched, and then nothing is sent.
    Mute,
}

#[derive(Clone)]
pub struct Connections {
    state: Arc<Mutex<State>>,
    orders: broadcast::Sender<Order>,
}

#[derive(Default)]
struct State {
    behaviour: Behaviour,
    welcome: Option<Hint>,
    /// Number of attempts so far.
    asked: u64,
    open: u64,
}

#[derive(Clone)]
enum Order {
    Say(String),
    /// Ends the connection without a message.
    Cut,
    /// Sends nothing from now on, not even pings.
    Silence,
}

/// Pause between the hub's pings.
const PING: Duration = Duration::from_millis(200);

impl Default for Connections {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            orders: broadcast::channel(4096).0,
        }
    }
}

impl Connections {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn behave(&self, behaviour: Behaviour) {
        self.state().behaviour = behaviour;
    }

    /// Sets the first message of new connections, and sends it now.
    pub fn welcome(&self, keep_alive_seconds: f64, poll_seconds: f64) {
        let hint = Hint::Welcome {
            keep_alive_seconds,
            poll_seconds,
        };
        self.state().welcome = Some(hint.clone());
        self.say(&hint);
    }

    pub fn invites(&self) -> bool {
        let state = self.state();
        state.behaviour != Behaviour::None && state.open == 0
    }

    pub fn asked(&self) -> u64 {
        self.state().asked
    }

    pub fn open_now(&self) -> u64 {
        self.state().open
    }

    pub fn hint(&self, generation: u64) {
        self.say(&Hint::Poll {
            desired: Some(Number { epoch: 1, generation }),
        });
    }

    pub fn say(&self, hint: &Hint) {
        self.say_text(&serde_json::to_string(hint).unwrap());
    }

    pub fn say_text(&self, text: &str) {
        let _ = self.orders.send(Order::Say(text.to_owned()));
    }

    pub fn cut(&self) {
        let _ = self.orders.send(Order::Cut);
    }

    pub fn fall_silent(&self) {
        let _ = self.orders.send(Order::Silence);
    }

    pub(super) fn open(&self, headers: &HeaderMap, upgrade: OnUpgrade) -> Response<Full<Bytes>> {
        let mut state = self.state();
        state.asked += 1;
        let key = headers
            .get(header::SEC_WEBSOCKET_KEY)
            .expect("a WebSocket's request has a key");
        assert_eq!(headers[header::UPGRADE], "websocket");
        match state.behaviour {
            Behaviour::None => return refuse(StatusCode::NOT_FOUND, "PathUnknown", None),
            Behaviour::Refuse => return refuse(StatusCode::SERVICE_UNAVAILABLE, "Unavailable", None),
            Behaviour::Swallow => return Response::new(Full::default()),
            Behaviour::Serve | Behaviour::Mute => {}
        }
        let welcome = state.welcome.clone().filter(|_| state.behaviour == Behaviour::Serve);
        state.open += 1;
        let (connections, orders) = (self.clone(), self.orders.subscribe());
        tokio::spawn(async move {
            if let Ok(stream) = upgrade.await {
                let socket = WebSocketStream::from_raw_socket(TokioIo::new(stream), Role::Server, None).await;
                serve(socket, welcome, orders).await;
            }
            connections.state().open -= 1;
        });
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let accept = derive_accept_key(key.as_bytes());
        response
            .headers_mut()
            .insert(header::SEC_WEBSOCKET_ACCEPT, accept.parse().unwrap());
        response
            .headers_mut()
            .insert(header::UPGRADE, "websocket".parse().unwrap());
        response
            .headers_mut()
            .insert(header::CONNECTION, "upgrade".parse().unwrap());
        response
    }
}

async fn serve(
    mut socket: WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>,
    welcome: Option<Hint>,
    mut orders: broadcast::Receiver<Order>,
) {
    let mut silent = welcome.is_none();
    if let Some(hint) = welcome {
        let text = serde_json::to_string(&hint).unwrap();
        if socket.send(Message::text(text)).await.is_err() {
            return;
        }
    }
    loop {
        let sent = tokio::select! {
            order = orders.recv() => match order {
                Ok(Order::Say(text)) if !silent => socket.send(Message::text(text)).await,
                Ok(Order::Silence) => { silent = true; Ok(()) }
                Ok(Order::Say(_)) => Ok(()),
                Ok(Order::Cut) | Err(_) => return,
            },
            message = socket.next() => match message {
                Some(Ok(Message::Pong(_))) => Ok(()),
                Some(Ok(other)) => panic!("an agent says nothing, not {other:?}"),
                Some(Err(_)) | None => return,
            },
            () = tokio::time::sleep(PING), if !silent => socket.send(Message::Ping(Bytes::new())).await,
        };
        if sent.is_err() {
            return;
        }
    }
}
