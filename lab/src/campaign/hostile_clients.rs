//! Clients that attack the hub in several ways, one after the other, while 200 agents poll and an administrator sends
//! requests. Rounds alternate between one address and many.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use farwater_fleetsim::{Poller, allow_files};
use farwater_testkit::{Hub, temporary_folder};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, api::ListParams};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::Round;
use crate::bench::usage;

const AGENTS: usize = 200;
/// Interval between two polls of one agent. All agents together poll 40 times a second.
const PAUSE: Duration = Duration::from_secs(5);
/// Time for measuring polls, without an attack and during each attack.
const MEASURED: Duration = Duration::from_secs(40);
const SLOW: usize = 256;
const CONNECTIONS: usize = 10_000;
const WATCHES: usize = 500;
/// Events per second, and their size in bytes.
const EVENTS: u64 = 2;
const EVENT: usize = 256 << 10;
const TENANT: &str = "attackers";
const MAPS: &str = "/api/v1/namespaces/attackers/configmaps";
/// Requests per second of an attacker. It is limited, because attackers on this machine take the hub's processor time.
const RESETS: u64 = 500;
const HEADS: u64 = 100;
/// Maximum ratio of the polls' p99 during an attack to that without one.
const SLOWER: f64 = 2.0;
/// Below this p99 in milliseconds, the ratio is meaningless on a busy machine.
const LEAST: f64 = 25.0;
const ANSWERED: Duration = Duration::from_secs(5);
/// Maximum growth of the hub's memory in bytes, ten seconds after the last attack. It is 30 KB for each of 10,000
/// connections, the unread data of one user, and as much again for the allocator, which keeps freed memory.
const KEPT: u64 = 512 << 20;
/// Maximum further growth in bytes after the largest attacks are repeated.
const KEPT_AGAIN: u64 = 64 << 20;
/// Number of repetitions of these attacks.
const REPEATED: usize = 3;
/// Duration of a repetition.
const AGAIN: Duration = Duration::from_secs(20);
/// Time in which the hub frees the memory of an attack.
const GIVEN_BACK: Duration = Duration::from_secs(10);

/// Address and TLS configuration of attackers.
#[derive(Clone)]
struct Door {
    hub: SocketAddr,
    tls: ClientConfig,
    /// Source addresses of this machine.
    peers: u8,
}

impl Door {
    fn new(hub: &Hub, peers: u8) -> Result<Self> {
        let authority = std::fs::read(hub.dir().join("keys/ca.crt")).context("read the hub's authority")?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&authority).context("read the hub's authority")?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let hub = SocketAddr::from((Ipv4Addr::LOCALHOST, hub.port()));
        Ok(Self { hub, tls, peers })
    }

    async fn tcp(&self, number: usize) -> Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        let peer = u8::try_from(number % usize::from(self.peers))? + 1;
        socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 1, peer), 0)))?;
        Ok(socket.connect(self.hub).await?)
    }

    async fn connect(&self, number: usize, alpn: &str) -> Result<TlsStream<TcpStream>> {
        let stream = self.tcp(number).await?;
        let name = ServerName::try_from("127.0.0.1".to_owned())?;
        let mut tls = self.tls.clone();
        tls.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        TlsConnector::from(Arc::new(tls))
            .connect(name, stream)
            .await
            .context("shake hands")
    }

    async fn send(&self, number: usize, text: &str) -> Result<TlsStream<TcpStream>> {
        let mut stream = self.connect(number, "http/1.1").await?;
        stream.write_all(text.as_bytes()).await?;
        stream.flush().await?;
        Ok(stream)
    }
}

/// Counts attacks. With an even seed they come from one address.
pub async fn round(seed: u64) -> Result<Round> {
    allow_files()?;
    let dir = temporary_folder("farwater-hostile-")?;
    let mut hub = Hub::start(dir.path()).await?;
    hub.tolerate("");
    let peers = if seed.is_multiple_of(2) { 1 } else { 100 };
    let door = Door::new(&hub, peers)?;
    let admin = hub.client().await?;
    let token = account_of_a_tenant(&admin).await?;
    let names: Vec<String> = (0..AGENTS).map(|n| format!("cluster-{n}")).collect();
    let mut agents: Vec<Poller> = stream::iter(&names)
        .map(|name| Poller::join(&hub, name))
        .buffered(16)
        .try_collect()
        .await?;
    let process = hub.process().id();

    let quiet = measure(&mut agents, &admin).await;
    let before = usage::memory(process)?.resident;
    eprintln!("without an attack: {quiet:?}");
    let (mut figures, mut failures) = (vec![json!({"attack": "none", "polls": quiet.to_json()})], Vec::new());
    let bound = (quiet.p99 * SLOWER).max(LEAST);
    for attack in Attack::ALL {
        let held = attack
            .begin(&door, &token)
            .await
            .with_context(|| format!("begin {attack:?}"))?;
        let seen = measure(&mut agents, &admin).await;
        drop(held);
        eprintln!("{attack:?}: {seen:?}");
        figures.push(json!({"attack": format!("{attack:?}"), "polls": seen.to_json()}));
        if seen.p99 > bound || seen.refused > 0 {
            failures.push(format!(
                "{attack:?}: the polls' p99 is {:.1} ms, the limit {bound:.1}; {} refused",
                seen.p99, seen.refused
            ));
        }
        if seen.administrator > ANSWERED {
            failures.push(format!(
                "{attack:?}: an administrator waited for {:?}",
                seen.administrator
            ));
        }
    }
    tokio::time::sleep(GIVEN_BACK).await;
    let after = usage::memory(process)?.resident;
    if after > before + KEPT {
        failures.push(format!("the hub keeps {} MB after all attacks", (after - before) >> 20));
    }
    // The allocator keeps more memory after the first rounds, but the amount is stable after that.
    let mut kept = vec![after];
    for _ in 0..REPEATED {
        for attack in [Attack::IdleConnections, Attack::StalledWatches] {
            let held = attack
                .begin(&door, &token)
                .await
                .with_context(|| format!("begin {attack:?} again"))?;
            tokio::time::sleep(AGAIN).await;
            drop(held);
        }
        tokio::time::sleep(GIVEN_BACK).await;
        kept.push(usage::memory(process)?.resident);
    }
    if let [.., before_last, last] = kept[..]
        && last > before_last + KEPT_AGAIN
    {
        failures.push(format!(
            "the hub keeps {} MB more after the same attacks",
            (last - before_last) >> 20
        ));
    }
    let figures = json!({
        "seed": seed, "addresses": peers, "agents": AGENTS, "attacks": figures,
        "residentBeforeMb": before >> 20, "residentAfterMb": kept.iter().map(|bytes| bytes >> 20).collect::<Vec<_>>(),
    });
    Ok(Round {
        count: Attack::ALL.len() as u64,
        failures,
        figures,
    })
}

/// Creates a tenant that may edit its own namespace. Returns its token.
async fn account_of_a_tenant(admin: &Client) -> Result<String> {
    for (path, object) in [
        ("/api/v1/namespaces".to_owned(), json!({"metadata": {"name": TENANT}})),
        (
            format!("/api/v1/namespaces/{TENANT}/serviceaccounts"),
            json!({"metadata": {"name": "attacker"}}),
        ),
        (
            format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{TENANT}/rolebindings"),
            json!({
                "metadata": {"name": "attacker"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
                "subjects": [{"kind": "ServiceAccount", "name": "attacker", "namespace": TENANT}],
            }),
        ),
    ] {
        let request = Request::post(path).header("content-type", "application/json");
        admin
            .request_text(request.body(serde_json::to_vec(&object)?)?)
            .await
            .context("prepare the tenant")?;
    }
    let path = format!("/api/v1/namespaces/{TENANT}/serviceaccounts/attacker/token");
    let request = Request::post(path).header("content-type", "application/json");
    let answer: Value = admin.request(request.body(b"{\"spec\":{}}".to_vec())?).await?;
    answer["status"]["token"]
        .as_str()
        .map(str::to_owned)
        .context("no token")
}

/// Measurements, in milliseconds.
#[derive(Debug)]
struct Seen {
    polls: usize,
    refused: usize,
    p50: f64,
    p99: f64,
    /// Longest time that an administrator waited for an answer.
    administrator: Duration,
}

impl Seen {
    fn to_json(&self) -> Value {
        let rounded = |value: f64| (value * 10.0).round() / 10.0;
        json!({
            "count": self.polls, "refused": self.refused, "p50Ms": rounded(self.p50), "p99Ms": rounded(self.p99),
            "administratorMs": self.administrator.as_millis() as u64,
        })
    }
}

/// Lets agents poll and an administrator list namespaces, and measures both.
async fn measure(agents: &mut [Poller], admin: &Client) -> Seen {
    let end = Instant::now() + MEASURED;
    let asking = async {
        let api = Api::<Namespace>::all(admin.clone());
        let mut longest = Duration::ZERO;
        while Instant::now() < end {
            let begun = Instant::now();
            // A refused request counts as a waiting one.
            let answered = api.list(&ListParams::default()).await.is_ok();
            longest = longest.max(if answered {
                begun.elapsed()
            } else {
                Duration::from_secs(60)
            });
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        longest
    };
    let count = agents.len() as u32;
    let polling = agents.iter_mut().enumerate().map(|(number, agent)| async move {
        let (mut times, mut refused) = (Vec::new(), 0);
        tokio::time::sleep(PAUSE * number as u32 / count).await;
        while Instant::now() < end {
            let begun = Instant::now();
            match agent.poll().await {
                Ok(_) => times.push(begun.elapsed().as_secs_f64() * 1000.0),
                Err(_) => refused += 1,
            }
            tokio::time::sleep(PAUSE.saturating_sub(begun.elapsed())).await;
        }
        (times, refused)
    });
    let (administrator, polled) = tokio::join!(asking, futures::future::join_all(polling));
    let refused = polled.iter().map(|(_, refused)| refused).sum();
    let mut times: Vec<f64> = polled.into_iter().flat_map(|(times, _)| times).collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get(((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1)));
    let [p50, p99] = [0.5, 0.99].map(|share| at(share).copied().unwrap_or(f64::INFINITY));
    Seen {
        polls: times.len(),
        refused,
        p50,
        p99,
        administrator,
    }
}

#[derive(Clone, Copy, Debug)]
enum Attack {
    /// Endless bodies from unauthenticated clients and from an account without rights.
    SlowBodies,
    IdleConnections,
    /// Watches that the client doesn't read.
    StalledWatches,
    /// Requests that the client cancels at once.
    RapidResets,
    OversizedHeads,
}

/// A running attack. It ends when this is dropped.
struct Held {
    _streams: Vec<TlsStream<TcpStream>>,
    tasks: JoinSet<()>,
    stop: Arc<AtomicBool>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.abort_all();
    }
}

impl Attack {
    const ALL: [Self; 5] = [
        Self::SlowBodies,
        Self::IdleConnections,
        Self::StalledWatches,
        Self::RapidResets,
        Self::OversizedHeads,
    ];

    async fn begin(self, door: &Door, token: &str) -> Result<Held> {
        let (stop, mut tasks) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        let many = async |count: usize, text: String| -> Result<Vec<TlsStream<TcpStream>>> {
            let text = &text;
            // The hub may have closed some of them, which is correct.
            let opened = stream::iter(0..count).map(|number| async move { door.send(number, text).await.ok() });
            Ok(opened
                .buffer_unordered(32)
                .filter_map(std::future::ready)
                .collect()
                .await)
        };
        let post = |path: &str, token: &str| {
            format!(
                "POST {path} HTTP/1.1\r\nhost: hub\r\ncontent-type: application/json\r\nauthorization: Bearer {token}\r\n\
                 content-length: 1000\r\n\r\n{{"
            )
        };
        let streams = match self {
            Self::SlowBodies => {
                let mut streams = many(SLOW, post("/agent/v1/join", "none")).await?;
                streams.extend(many(SLOW, post("/apis/authorization.k8s.io/v1/selfsubjectreviews", token)).await?);
                streams
            }
            Self::IdleConnections => many(CONNECTIONS, "GET /healthz HTTP/1.1\r\nhost: hub\r\n\r\n".to_owned()).await?,
            Self::StalledWatches => {
                let watch =
                    format!("GET {MAPS}?watch=true HTTP/1.1\r\nhost: hub\r\nauthorization: Bearer {token}\r\n\r\n");
                let (door, stop, token) = (door.clone(), Arc::clone(&stop), token.to_owned());
                tasks.spawn(async move {
                    let mut number = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let _ = write_map(&door, number, &token).await;
                        number += 1;
                        tokio::time::sleep(Duration::from_millis(1000 / EVENTS)).await;
                    }
                });
                many(WATCHES, watch).await?
            }
            Self::RapidResets => {
                for number in 0..4 {
                    let (door, stop) = (door.clone(), Arc::clone(&stop));
                    tasks.spawn(async move {
                        while !stop.load(Ordering::Relaxed) {
                            let _ = reset(&door, number, &stop).await;
                        }
                    });
                }
                Vec::new()
            }
            Self::OversizedHeads => {
                let door = door.clone();
                let head = format!(
                    "GET /version HTTP/1.1\r\nhost: hub\r\nx-filler: {}\r\n\r\n",
                    "a".repeat(64 << 10)
                );
                let stop = Arc::clone(&stop);
                tasks.spawn(async move {
                    let mut number = 0;
                    while !stop.load(Ordering::Relaxed) {
                        if let Ok(mut stream) = door.send(number, &head).await {
                            let _ = stream.read(&mut [0; 64]).await;
                        }
                        number += 1;
                        tokio::time::sleep(Duration::from_millis(1000 / HEADS)).await;
                    }
                });
                Vec::new()
            }
        };
        Ok(Held {
            _streams: streams,
            tasks,
            stop,
        })
    }
}

/// Creates a large event for the tenant's watches, which soon fills the socket buffers.
async fn write_map(door: &Door, number: usize, token: &str) -> Result<()> {
    let body = json!({"metadata": {"name": format!("map-{number}")}, "data": {"a": "a".repeat(EVENT)}}).to_string();
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nhost: hub\r\ncontent-type: application/json\r\nauthorization: Bearer {token}\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = door.send(number, &(head + &body)).await?;
    // The head of the answer is enough: it says that the ConfigMap was created.
    stream.read_exact(&mut [0; 12]).await?;
    Ok(())
}

/// Sends requests over one connection and cancels each before its answer, until the connection ends.
async fn reset(door: &Door, number: usize, stop: &AtomicBool) -> Result<()> {
    let stream = door.connect(number, "h2").await?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    while !stop.load(Ordering::Relaxed) {
        sender.ready().await?;
        let request = Request::get("https://hub/api/v1/namespaces").body(Full::<Bytes>::default())?;
        let mut answer = Box::pin(sender.send_request(request));
        let _ = tokio::time::timeout(Duration::from_micros(200), &mut answer).await;
        drop(answer);
        tokio::time::sleep(Duration::from_millis(4 * 1000 / RESETS)).await;
    }
    driver.abort();
    Ok(())
}
