//! A connection in addition to the polls, by which the hub says when to poll.
//!
//! Polls alone change anything: a hint that is lost, duplicated, late or forged only changes the time of the next poll.
//! The hub invites to a connection in the answer to a poll, so an agent without a connection polls and is invited
//! again.

use std::{convert::Infallible, time::Duration};

use farwater_api::protocol::{Hint, Number};
use futures::StreamExt as _;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    Agent,
    hub::{HubError, Socket, chain},
    sync::full_jitter,
};

/// Limit for the hub's first message: a proxy in between may have accepted the connection instead.
const WELCOME: Duration = Duration::from_secs(15);
/// How much later than promised a message may come.
const LATENESS: Duration = Duration::from_secs(5);
/// Longest pause after a lost or failed connection: at first, and finally.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// A connection that held for this time counts as good.
const STEADY: Duration = Duration::from_secs(60);
/// Allowed ranges in seconds for what the hub announces.
const KEEP_ALIVE: [f64; 2] = [0.2, 600.0];
const POLL_EVERY: [f64; 2] = [0.2, 3600.0];
const RETURN: [f64; 2] = [0.0, 600.0];

/// The state of the connection, by which the agent polls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// Interval of polls while the connection holds. None: there is no connection.
    pub poll_every: Option<Duration>,
    /// Time within which to poll after the connection was lost.
    pub poll_within: Duration,
    /// Number of the newest desired state that the hub announced over this connection.
    pub newest: Option<Number>,
    /// Number of polls that it requested for other reasons.
    pub asked: u64,
}

#[derive(Debug, Default)]
pub struct Connection {
    link: watch::Sender<Link>,
    /// Time within which to open a connection.
    invitation: watch::Sender<Duration>,
}

impl Connection {
    pub fn follow(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// Records that the hub invites to a connection.
    pub fn invite(&self, within: Duration) {
        self.invitation.send_replace(within);
    }
}

/// Why a connection ended.
enum Ended {
    /// Closed by the hub, or by a proxy in between.
    Closed(String),
    /// The hub is stopping.
    Return(Duration),
    Silent,
    Broken(String),
}

impl Ended {
    fn text(&self) -> String {
        match self {
            Self::Closed(reason) => format!("closed: {reason}"),
            Self::Return(_) => "the hub stops".to_owned(),
            Self::Silent => "nothing was heard for longer than the hub promised".to_owned(),
            Self::Broken(error) => error.clone(),
        }
    }
}

/// Keeps a connection open as long as the hub invites to it.
pub async fn run(agent: &Agent) -> Infallible {
    let connection = &agent.connection;
    let mut invitations = connection.invitation.subscribe();
    let (mut longest, mut told) = (FIRST_PAUSE, String::new());

    loop {
        if invitations.changed().await.is_err() {
            // Can't happen: the agent itself holds the other end.
            std::future::pending::<()>().await;
        }
        let within = *invitations.borrow_and_update();
        sleep(full_jitter(within)).await;
        let begun = Instant::now();
        match open(agent).await {
            Ok(mut socket) => {
                agent.metrics.count_connection(true);
                let ended = listen(agent, &mut socket).await;
                if begun.elapsed() >= STEADY {
                    longest = FIRST_PAUSE;
                }
                let back = if let Ended::Return(within) = ended {
                    within
                } else {
                    longest
                };
                connection
                    .link
                    .send_modify(|link| (link.poll_every, link.poll_within) = (None, back));
                agent.metrics.set_connected(false);
                tracing::info!(reason = ended.text(), "the connection to the hub has ended; polling");
                told.clear();
            }
            Err(error) => {
                agent.metrics.count_connection(false);
                let text = chain(&error);
                if text != told {
                    tracing::warn!(
                        error = text,
                        "no connection to the hub that would tell of changes at once; polling"
                    );
                    told = text;
                }
            }
        }
        // An invitation that arrives meanwhile is used after the pause.
        sleep(full_jitter(longest)).await;
        longest = (longest * 2).min(LONGEST_PAUSE);
    }
}

async fn open(agent: &Agent) -> Result<Socket, HubError> {
    let identity = agent.identity();
    agent.hub.connect(&agent.caller(&identity)).await
}

async fn listen(agent: &Agent, socket: &mut Socket) -> Ended {
    let link = &agent.connection.link;
    link.send_modify(|link| link.newest = None);
    let mut patience = WELCOME;
    let mut back = None;

    loop {
        let message = match timeout(patience, socket.next()).await {
            Err(_) => return Ended::Silent,
            Ok(None) => return back.map_or_else(|| Ended::Broken("the stream has ended".to_owned()), Ended::Return),
            Ok(Some(Err(error))) => return back.map_or_else(|| Ended::Broken(chain(&error)), Ended::Return),
            Ok(Some(Ok(message))) => message,
        };
        match message {
            Message::Text(text) => match serde_json::from_str(&text).unwrap_or(Hint::Unknown) {
                Hint::Welcome {
                    keep_alive_seconds,
                    poll_seconds,
                } => {
                    patience = within(keep_alive_seconds, KEEP_ALIVE) + LATENESS;
                    let poll_every = Some(within(poll_seconds, POLL_EVERY));
                    tracing::info!(
                        poll_every = poll_seconds,
                        "connected to the hub, which tells of changes at once"
                    );
                    agent.metrics.set_connected(true);
                    link.send_modify(|link| link.poll_every = poll_every);
                }
                Hint::Poll { desired } => {
                    agent.metrics.count_hint();
                    tracing::debug!(?desired, "the hub hints at something to poll for");
                    link.send_modify(|link| match desired {
                        Some(number) => link.newest = link.newest.max(Some(number)),
                        None => link.asked += 1,
                    });
                }
                Hint::Return { within_seconds } => back = Some(within(within_seconds, RETURN)),
                Hint::Unknown => {}
            },
            Message::Close(frame) => {
                let reason = frame.map_or_else(String::new, |frame| frame.reason.chars().take(64).collect());
                return back.map_or(Ended::Closed(reason), Ended::Return);
            }
            // The library answers pings when the connection is next read.
            _ => {}
        }
    }
}

fn within(seconds: f64, [least, most]: [f64; 2]) -> Duration {
    // NaN is in no range.
    Duration::from_secs_f64(if seconds.is_nan() {
        most
    } else {
        seconds.clamp(least, most)
    })
}
