//! Connections beside the polls, over real sockets.

use std::{net::SocketAddr, time::Duration};

use farwater_api::{
    ADMIN_NAMESPACE,
    plan::PlanQuery,
    protocol::{CONNECTION_HEADER, CONNECTION_PATH, Hint, MAX_CONNECTION_MESSAGE, close},
};
use farwater_hub::clusters::propose_plans::propose;
use futures::{SinkExt as _, StreamExt as _};
use http::StatusCode;
use serde_json::Value;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Error, Message, client::IntoClientRequest as _},
};

use crate::{
    agent::{Agent, call},
    delivering::applied,
    rig::{CONNECTIONS, PATIENCE, Rig, WEB, key, repository},
};

struct Connection(WebSocketStream<TcpStream>);

/// `None`: it was closed without a word.
#[derive(Debug, PartialEq)]
enum Heard {
    Hint(Hint),
    Closed(Option<u16>),
}

impl Connection {
    async fn try_open(address: SocketAddr, agent: &Agent) -> Result<Self, StatusCode> {
        let mut request = format!("ws://{address}{CONNECTION_PATH}")
            .into_client_request()
            .unwrap();
        request
            .headers_mut()
            .insert("authorization", format!("Bearer {}", agent.access).parse().unwrap());
        match client_async(request, TcpStream::connect(address).await.unwrap()).await {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(Error::Http(answer)) => Err(answer.status()),
            Err(error) => panic!("{error}"),
        }
    }

    /// Opens one and hears the first message.
    async fn open(address: SocketAddr, agent: &Agent) -> Self {
        let mut connection = Self::try_open(address, agent).await.unwrap();
        let welcome = connection.hear().await;
        let Heard::Hint(Hint::Welcome { keep_alive_seconds, .. }) = welcome else {
            panic!("{welcome:?}")
        };
        // nginx and other load balancers close a connection on which nothing has come for a minute.
        assert!(keep_alive_seconds <= 45.0, "{keep_alive_seconds}");
        connection
    }

    async fn hear(&mut self) -> Heard {
        timeout(PATIENCE, self.next()).await.expect("the hub says something")
    }

    async fn next(&mut self) -> Heard {
        loop {
            match self.0.next().await {
                Some(Ok(Message::Text(text))) => return Heard::Hint(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Close(frame))) => return Heard::Closed(frame.map(|frame| frame.code.into())),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Heard::Closed(None),
            }
        }
    }

    /// All is done that could be, and the hub has nothing to say of it. It says what it knows before it reads the next message, so
    /// that all is said before the answer to the second.
    async fn is_silent(&mut self, rig: &Rig) {
        rig.wait_until("all is done", async || rig.is_at_rest().await).await;
        for number in [1, 2] {
            self.0.send(Message::Ping(vec![number].into())).await.unwrap();
            loop {
                match timeout(PATIENCE, self.0.next()).await.expect("the hub answers a ping") {
                    Some(Ok(Message::Pong(payload))) if payload[..] == [number] => break,
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    heard => panic!("{heard:?}"),
                }
            }
        }
    }

    async fn closed(mut self) -> Option<u16> {
        loop {
            if let Heard::Closed(code) = self.hear().await {
                return code;
            }
        }
    }

    /// Waits for a hint at the agent's desired state, as it is then.
    async fn hinted(&mut self, rig: &Rig, agent: &Agent) {
        let begun = Instant::now();
        loop {
            let heard = self.hear().await;
            let number = agent.desired(rig).await.statement.number();
            if heard == Heard::Hint(Hint::Poll { desired: Some(number) }) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{heard:?}, not {number:?}");
        }
    }
}

async fn joined(rig: &Rig, name: &str) -> Agent {
    rig.cluster(name).await;
    let agent = Agent::join(rig, name).await;
    agent.wait_polled(rig).await;
    agent
}

async fn is_invited(rig: &Rig, agent: &Agent) -> bool {
    let answer = agent.poll(rig, None).await;
    assert_eq!(answer.status, StatusCode::OK);
    answer
        .headers
        .get(CONNECTION_HEADER)
        .is_some_and(|within| within.to_str().unwrap().parse::<f64>().unwrap() < 1.0)
}

async fn metric(rig: &Rig, wanted: usize) {
    rig.wait_until("as many are connected", async || {
        rig.replica.memory.connections.open() == wanted
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connected_agent_is_told_of_its_own_clusters_changes_and_of_no_others() {
    let (server, git) = repository().await;
    let rig = Rig::start().await;
    let address = rig.serve().await;
    let (east, west) = (joined(&rig, "east").await, joined(&rig, "west").await);
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let web = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let (_, old) = east.wait_entry(&rig, &web, |entry| applied(entry).is_some()).await;
    rig.wait_idle().await;

    assert!(is_invited(&rig, &east).await);
    let (mut at_east, mut at_west) = (
        Connection::open(address, &east).await,
        Connection::open(address, &west).await,
    );
    // What may have changed between its poll and the connection.
    at_east.hinted(&rig, &east).await;
    at_west.hinted(&rig, &west).await;
    assert!(!is_invited(&rig, &east).await, "it has come");
    at_west.is_silent(&rig).await;

    git.change(
        "main",
        &[("apps/web/web.yaml", Some(&WEB.replace("name: web", "name: other")))],
    )
    .unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    at_east.hinted(&rig, &east).await;
    let (_, new) = east
        .wait_entry(&rig, &web, |entry| entry.digest() != old.digest())
        .await;
    assert_ne!(new.digest(), old.digest());
    at_west.is_silent(&rig).await;

    // Another commit that concerns nobody.
    git.change("main", &[("README", Some("y"))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    rig.wait_idle().await;
    at_east.is_silent(&rig).await;

    // What an agent hears of with its polls, it hears of now: new keys of its own.
    rig.edit("Cluster", ADMIN_NAMESPACE, "west", |cluster| {
        cluster["metadata"]["annotations"]["farwater.dev/renew-keys"] = "now".into();
    })
    .await;
    assert_eq!(at_west.hear().await, Heard::Hint(Hint::Poll { desired: None }));

    // And somebody who waits for a plan.
    let service = rig
        .store
        .get(&key("ServiceDeployment", ADMIN_NAMESPACE, "web"))
        .await
        .unwrap()
        .unwrap();
    propose(&rig.replica, &service, PlanQuery::default()).await.unwrap();
    assert_eq!(at_east.hear().await, Heard::Hint(Hint::Poll { desired: None }));
    at_west.is_silent(&rig).await;

    let mut cluster = rig.get("Cluster", ADMIN_NAMESPACE, "east").await.unwrap();
    assert_eq!(
        cluster["status"]["connected"],
        Value::Null,
        "it is not written to the resource"
    );
    rig.replica.merge_last_heard(&mut cluster);
    assert_eq!(cluster["status"]["connected"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_are_connected_as_may_be_and_an_agent_has_one_connection() {
    let rig = Rig::start().await;
    let address = rig.serve().await;
    let (east, west, north) = (
        joined(&rig, "east").await,
        joined(&rig, "west").await,
        joined(&rig, "north").await,
    );
    assert_eq!(CONNECTIONS, 2);
    let first = Connection::open(address, &east).await;
    let at_west = Connection::open(address, &west).await;
    assert!(!is_invited(&rig, &north).await, "there is no room");
    assert_eq!(
        Connection::try_open(address, &north).await.err(),
        Some(StatusCode::SERVICE_UNAVAILABLE)
    );

    let mut second = Connection::open(address, &east).await;
    assert_eq!(first.closed().await, Some(close::REPLACED));
    second.hinted(&rig, &east).await;
    second.is_silent(&rig).await;
    metric(&rig, 2).await;

    drop(at_west);
    metric(&rig, 1).await;
    assert!(is_invited(&rig, &north).await);
    let mut at_north = Connection::open(address, &north).await;
    at_north.hinted(&rig, &north).await;

    // A plain request is none of these, and neither is one without a token.
    let plain = call(
        &rig,
        north.get(CONNECTION_PATH).body(axum::body::Body::empty()).unwrap(),
    )
    .await;
    assert_eq!(plain.refusal(), "400 Invalid");
    let stranger = Agent::new();
    assert_eq!(
        Connection::try_open(address, &stranger).await.err(),
        Some(StatusCode::UNAUTHORIZED)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_would_be_refused_a_poll_has_no_connection_either() {
    let rig = Rig::start().await;
    let address = rig.serve().await;

    // Two processes: the connection of the one before ends as soon as another is heard, and both when they are told apart.
    let east = joined(&rig, "east").await;
    let (mut first, mut second) = (east.copy(&"a".repeat(16)), east.copy(&"b".repeat(16)));
    first.renew(&rig).await;
    let at_first = Connection::open(address, &first).await;
    second.renew(&rig).await;
    assert_eq!(at_first.closed().await, Some(close::REPLACED));
    second.wait_polled(&rig).await;
    let at_second = Connection::open(address, &second).await;
    first.poll(&rig, None).await;
    assert_eq!(first.poll(&rig, None).await.refusal(), "403 Quarantined");
    assert_eq!(at_second.closed().await, Some(close::REFUSED));
    assert_eq!(
        Connection::try_open(address, &second).await.err(),
        Some(StatusCode::FORBIDDEN)
    );

    // One that joins anew takes the place of the one before.
    let west = joined(&rig, "west").await;
    let at_west = Connection::open(address, &west).await;
    let mut joined_again = Agent::new();
    joined_again.cluster_id.clone_from(&west.cluster_id);
    let token = crate::agent::invite(&rig, "west").await;
    let answer = call(
        &rig,
        crate::agent::post("/agent/v1/join", &joined_again.join_request(&token)),
    )
    .await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(at_west.closed().await, Some(close::REFUSED));

    // A cluster that leaves.
    let north = joined(&rig, "north").await;
    let at_north = Connection::open(address, &north).await;
    rig.delete("Cluster", ADMIN_NAMESPACE, "north").await;
    assert_eq!(at_north.closed().await, Some(close::REFUSED));
    metric(&rig, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_silent_or_noisy_is_cut_off() {
    let rig = Rig::start().await;
    let address = rig.serve().await;
    let east = joined(&rig, "east").await;
    let poll_every = async |interval: &str, seconds: u64| {
        rig.edit("Cluster", ADMIN_NAMESPACE, "east", |cluster| {
            cluster["spec"]["pollInterval"] = interval.into()
        })
        .await;
        rig.wait_until("the interval is known", async || {
            let uid = &east.joined.as_ref().unwrap().cluster.uid;
            rig.replica.memory.clusters.get(uid).unwrap().poll_interval == Duration::from_secs(seconds)
        })
        .await;
    };
    // However rarely it polls, a ping comes early enough for load balancers.
    poll_every("10m", 600).await;
    drop(Connection::open(address, &east).await);
    metric(&rig, 0).await;
    poll_every("1s", 1).await;

    // It answers pings as long as it reads.
    let mut connection = Connection::open(address, &east).await;
    let heard = || {
        let uid = &east.joined.as_ref().unwrap().cluster.uid;
        rig.replica.memory.clusters.get(uid).unwrap().heard()
    };
    connection.hinted(&rig, &east).await;
    let begun = Instant::now();
    // An answer to a ping is a heartbeat. After the second the first was looked for.
    for _ in 0..2 {
        let before = heard();
        while heard() == before {
            let said = timeout(Duration::from_millis(50), connection.next()).await;
            assert!(said.is_err() && begun.elapsed() < PATIENCE, "{said:?}");
        }
    }
    metric(&rig, 1).await;
    let begun = Instant::now();
    metric(&rig, 0).await;
    // With the interval that the clusters of tests have else, it would take a minute.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(connection.closed().await, None);

    let mut connection = Connection::open(address, &east).await;
    for _ in 0..20 {
        let _ = connection.0.send(Message::text("news")).await;
    }
    assert_eq!(connection.closed().await, Some(close::POLICY));

    let mut connection = Connection::open(address, &east).await;
    let _ = connection
        .0
        .send(Message::text("x".repeat(MAX_CONNECTION_MESSAGE + 1)))
        .await;
    assert_eq!(connection.closed().await, None);
    metric(&rig, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_stops_says_when_to_come_back() {
    let rig = Rig::start().await;
    let address = rig.serve().await;
    let (east, west) = (joined(&rig, "east").await, joined(&rig, "west").await);
    let mut at_east = Connection::open(address, &east).await;
    at_east.hinted(&rig, &east).await;
    let closing = tokio::spawn({
        let replica = std::sync::Arc::clone(&rig.replica);
        async move { replica.memory.connections.close(PATIENCE).await }
    });
    assert_eq!(at_east.hear().await, Heard::Hint(Hint::Return { within_seconds: 1.0 }));
    assert_eq!(at_east.closed().await, Some(close::GOING_AWAY));
    closing.await.unwrap();
    assert!(!is_invited(&rig, &west).await);
    assert_eq!(
        Connection::try_open(address, &west).await.err(),
        Some(StatusCode::SERVICE_UNAVAILABLE)
    );
}
