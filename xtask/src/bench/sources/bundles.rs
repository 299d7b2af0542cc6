//! Bundles from the node's cache, beside nginx that sends the same files: requests per second of processor time, over TLS.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use farwater_api::{Digest, protocol::Action};
use farwater_testkit::{Hub, authority::Authority, dial::Dial, git::GitServer, nginx::Nginx, temporary_folder};
use futures::future::try_join_all;
use http::{Request, header};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;

use super::{Figure, agents::Agent, create_ours, create_services, folder_of, rest, until_served, usage};

const BUNDLES: usize = 1_000;
/// Bytes of a file that can't be compressed: of the bundle, too.
const BYTES: usize = 16_000;
const REQUESTS: usize = 40_000;
const CONNECTIONS: usize = 8;
/// Hub and nginx take turns: what else goes on in the machine meets both.
const ROUNDS: usize = 5;
/// Of nginx' requests per second of processor time, from the design (M3).
const GOAL: f64 = 0.9;
const COMPUTED: Duration = Duration::from_secs(600);

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let (bundles, requests) = if quick { (BUNDLES / 10, REQUESTS / 10) } else { (BUNDLES, REQUESTS) };
    let dir = temporary_folder("farwater-bench-")?;
    let (mut hub, git) = tokio::try_join!(Hub::start(dir.path()), GitServer::start())?;
    let repository = git.create("infra")?;
    let mut random = StdRng::seed_from_u64(3);
    let files: Vec<(String, String)> = (0..bundles).map(|n| (file_of(n), text(&mut random))).collect();
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let commit = repository.commit("main", &files)?;
    let client = hub.client().await?;
    let spec = json!({"url": git.url("infra"), "interval": "24h"});
    create_ours(&client, "gitrepositories", "GitRepository", "infra", spec).await?;
    until_served(&client, "infra", &commit).await?;
    eprintln!("{bundles} bundles of {BYTES} bytes are made");
    let agent = Agent::join(&hub, 0).await?;
    create_services(&client, "infra", bundles, bundles).await?;
    let digests = desired(&agent, bundles).await?;
    rest(&mut hub).await?;

    // The very files that the hub reads.
    let cache = hub.dir().join("cache/bundles");
    let sizes: Vec<u64> =
        digests.iter().map(|digest| Ok(fs::metadata(file(&cache, digest))?.len())).collect::<Result<_>>()?;
    let authority = Authority::new("authority of a bench")?;
    let nginx = Nginx::serve(&cache, &authority.issue(&["127.0.0.1"], 24)?).await?;
    let token = format!("Bearer {}", agent.token().await?);
    let hubs = Side {
        dial: Dial::new(&hub.url(), &fs::read_to_string(hub.dir().join("keys/ca.crt"))?)?,
        process: hub.process().id(),
        paths: digests.iter().map(|digest| format!("/agent/v1/bundles/{digest}")).collect(),
        token: Some(token),
    };
    let nginxes = Side {
        dial: Dial::new(&nginx.url(), authority.pem())?,
        process: nginx.process(),
        paths: digests.iter().map(|digest| format!("/{}.tar.zst", digest.to_hex())).collect(),
        token: None,
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        ours.push(hubs.rate(requests / ROUNDS, &sizes).await?);
        theirs.push(nginxes.rate(requests / ROUNDS, &sizes).await?);
        eprintln!("round {round} of {ROUNDS}");
    }
    let mean = sizes.iter().sum::<u64>() / sizes.len() as u64;
    let workload =
        format!("{bundles} bundles of {mean} bytes, TLS, HTTP/1.1, {CONNECTIONS} connections, page cache warm");
    let middle = |rates: Vec<f64>| super::super::median(rates).round();
    let figure = Figure::new("bundles_per_second_of_processor_time", &workload, middle(ours), "1/s");
    Ok(vec![figure.beside("nginx with sendfile".to_owned(), middle(theirs), GOAL)])
}

/// One of the two servers.
struct Side {
    dial: Dial,
    process: u32,
    paths: Vec<String>,
    token: Option<String>,
}

impl Side {
    /// Requests that it answers per second of its processor time. Each connection has one under way.
    async fn rate(&self, requests: usize, sizes: &[u64]) -> Result<f64> {
        let before = usage::processor_time(self.process)?;
        let asking = (0..CONNECTIONS).map(|n| async move {
            let mut connection = self.dial.connect().await?;
            for n in (n..requests).step_by(CONNECTIONS) {
                // Some are asked for more often than others.
                let place = (n * n) % self.paths.len();
                let mut request = Request::get(&self.paths[place]).header(header::HOST, "127.0.0.1");
                if let Some(token) = &self.token {
                    request = request.header(header::AUTHORIZATION, token);
                }
                let length = connection.send(request.body(Bytes::new())?).await?;
                ensure!(length == sizes[place], "{} has {length} bytes", self.paths[place]);
            }
            Ok(())
        });
        try_join_all(asking).await?;
        let busy = usage::processor_time(self.process)?.saturating_sub(before);
        Ok(requests as f64 / busy.as_secs_f64().max(0.001))
    }
}

fn file_of(n: usize) -> String {
    format!("{}/map.yaml", folder_of(n))
}

/// A ConfigMap of random letters, of which six bits each are left after compression.
fn text(random: &mut StdRng) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-";
    let length = BYTES * 8 / 6;
    let letters: String = (0..length).map(|_| char::from(LETTERS[random.random_range(0..LETTERS.len())])).collect();
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: map}}\ndata: {{text: \"{letters}\"}}\n")
}

fn file(cache: &Path, digest: &Digest) -> PathBuf {
    cache.join(format!("{}.tar.zst", digest.to_hex()))
}

/// The bundles that the agent's cluster is told to have, once it is all of them.
async fn desired(agent: &Agent, count: usize) -> Result<Vec<Digest>> {
    let begun = Instant::now();
    loop {
        let state = agent.poll(None).await?.context("an unconditional poll has an answer")?;
        let bundles = state.entries.iter().filter_map(|entry| match &entry.action {
            Action::Apply(deployment) => Some(deployment.bundle),
            _ => None,
        });
        let bundles: Vec<Digest> = bundles.collect();
        if bundles.len() == count {
            return Ok(bundles);
        }
        ensure!(begun.elapsed() < COMPUTED, "{} of {count} bundles are desired", bundles.len());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
