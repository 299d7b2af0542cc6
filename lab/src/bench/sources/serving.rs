//! Serving bundles from the hub's cache, compared with nginx and the same files, over TLS to the same client.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{Digest, ServiceDeployment};
use farwater_fleetsim::{Poller, bundles};
use farwater_testkit::{Process, authority::Authority, nginx::Nginx, wait_for_all};

use super::{
    field::{BRANCH, Field, PATIENCE, config_map, folder},
    tls_client::{Answers, Target},
};
use crate::bench::{Figure, median, usage};

const SOURCE: &str = "bundles";
/// Approximate size of a compressed bundle.
const BYTES: usize = 16 << 10;
const CONNECTIONS: usize = 16;
/// Minimum share of nginx's rate: M3 of the design.
const SHARE: f64 = 0.9;

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let (count, rounds, lasts) = if quick { (16, 2, 1) } else { (256, 5, 10) };
    let lasts = Duration::from_secs(lasts);
    let mut field = Field::start().await?;
    let mut poller = fill(&field, count).await?;
    let authority = Authority::new("a bench's own")?;
    field.until_quiet().await?;
    let found: BTreeSet<Digest> = bundles(&poller.desired().await?).into_values().collect();
    ensure!(
        found.len() == count,
        "the cluster got {} of {count} bundles",
        found.len()
    );

    // nginx serves the same bytes at the same paths.
    let root = field.path().join("files");
    std::fs::create_dir_all(root.join("agent/v1/bundles")).context("make a folder for nginx")?;
    let mut paths = Vec::new();
    for digest in found {
        let path = format!("/agent/v1/bundles/{digest}");
        poller
            .download(digest, &root.join(path.trim_start_matches('/')))
            .await?;
        paths.push(path);
    }
    let mut nginx = Nginx::of_folder(&root, &authority.issue(&["127.0.0.1"], 24)?).await?;
    let token = poller.token().await?;
    let hub_authority =
        std::fs::read_to_string(field.hub.dir().join("keys/ca.crt")).context("read the hub's authority")?;
    let ours = Target::new("the hub", field.hub.port(), &hub_authority, &token)?;
    let theirs = Target::new("nginx", nginx.port(), authority.pem(), &token)?;
    let mut bytes = 0;
    for path in &paths {
        let ours = ours.fetch(path).await?;
        ensure!(ours == theirs.fetch(path).await?, "the two answer {path} differently");
        bytes += ours.len();
    }
    let size = bytes / count;
    ensure!((BYTES / 2..BYTES * 2).contains(&size), "a bundle has {size} bytes");

    let paths = Arc::new(paths);
    let (mut of_ours, mut of_theirs) = (Rates::default(), Rates::default());
    for _ in 0..rounds {
        of_theirs.add(&theirs, nginx.process(), &paths, lasts).await?;
        of_ours.add(&ours, field.hub.process(), &paths, lasts).await?;
    }
    let workload = format!("{count} bundles of {size} bytes over TLS 1.3, {CONNECTIONS} connections, page cache warm");
    let figure = |metric, value: f64, unit| Figure::new(metric, &workload, value.round(), unit);
    let (ours, theirs) = (of_ours.medians(), of_theirs.medians());
    Ok(vec![
        // Per second of processor time, because on a small machine the client takes part of the wall-clock time.
        figure("bundles_per_processor_second", ours[0], "1/s").beside("nginx, sendfile".to_owned(), theirs[0], SHARE),
        figure("bundles_per_second", ours[1], "1/s").compared("nginx, one process", theirs[1]),
    ])
}

/// Creates a service for each bundle, all on one cluster.
async fn fill(field: &Field, count: usize) -> Result<Poller> {
    let repository = field.git.create(SOURCE)?;
    // Hex digits of random bytes compress to half of their size.
    let files: Vec<(String, String)> = (0..count)
        .map(|n| {
            let noise: Vec<u8> = (0..BYTES).map(|_| rand::random()).collect();
            (format!("s{n}/map.yaml"), config_map(&hex::encode(noise)))
        })
        .collect();
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    let commit = repository.commit(BRANCH, &files)?;
    field.repository(SOURCE, "24h").await?;
    let poller = Poller::join(&field.hub, "east").await?;
    let services = (0..count).map(|n| (format!("s{n}"), "east".to_owned(), folder(SOURCE, &format!("s{n}"))));
    field.services(services).await?;
    let check = |service: &ServiceDeployment| {
        let assigned = service
            .status
            .as_ref()
            .and_then(|status| status.assigned_revision.as_deref());
        ensure!(
            assigned.is_some_and(|revision| revision.ends_with(&commit)),
            "{assigned:?} is assigned"
        );
        Ok(())
    };
    wait_for_all("the services to be assigned", PATIENCE, &field.api(), check).await?;
    Ok(poller)
}

/// Answers per second of the server's processor time, and per second of wall-clock time.
#[derive(Default)]
struct Rates {
    per_processor_second: Vec<f64>,
    per_second: Vec<f64>,
}

impl Rates {
    async fn add(
        &mut self,
        target: &Target,
        server: &mut Process,
        paths: &Arc<Vec<String>>,
        lasts: Duration,
    ) -> Result<()> {
        let before = usage::processor_time(server.id())?;
        let Answers { count, bytes } = target.load(paths, CONNECTIONS, lasts).await?;
        let spent = usage::processor_time(server.id())?.saturating_sub(before);
        eprintln!(
            "  {}: {count} answers of {bytes} bytes in {lasts:?}, {spent:?} of processor time",
            target.name
        );
        self.per_processor_second.push(count as f64 / spent.as_secs_f64());
        self.per_second.push(count as f64 / lasts.as_secs_f64());
        Ok(())
    }

    fn medians(self) -> [f64; 2] {
        [median(self.per_processor_second), median(self.per_second)]
    }
}
