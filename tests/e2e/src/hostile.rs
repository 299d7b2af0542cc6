//! An overloaded, slow and forgetful API server. The agent's load on it must be bounded, and the agent must not report
//! success too early.

mod witness;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use farwater_api::ServiceDeployment;
use farwater_testkit::{
    Launch, Plane,
    api_faults::{ApiFaults, Faults, Seen},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::ListParams};
use serde::Serialize;

use crate::{Fleet, condition};
use witness::Witness;

const CLUSTER: &str = "hostile";
const SERVICE: &str = "many";
/// Objects per file. Folders with thousands of files are tested elsewhere.
const PER_FILE: usize = 100;
/// Page size of the agent's lists.
const PAGE: usize = 500;
/// Minimum number of checks of a synced service, so that a wrong report would show up.
const LOOKS: u64 = 10;
/// Longer than the agent's pause between two watches that it reopens.
const QUIET: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub struct Hostility {
    pub seed: u64,
    pub objects: usize,
    /// Maximum number of objects on a page of the API server.
    pub page: usize,
    /// Maximum delay of each request.
    pub latency: Duration,
    /// Duration of watches.
    pub cut: Duration,
    /// Time without changes at the end.
    pub rest: Duration,
    /// Maximum time until all objects are applied.
    pub patience: Duration,
}

impl Hostility {
    /// Settings as with a large number of objects.
    pub fn of(seed: u64, objects: usize, patience: Duration) -> Self {
        Self {
            seed,
            objects,
            page: PAGE,
            latency: Duration::from_secs(2),
            cut: Duration::from_secs(5),
            rest: Duration::from_secs(10),
            patience,
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    pub objects: usize,
    pub page: usize,
    /// Seconds until all objects were applied for the first time, and until a change of all was applied.
    pub seconds: Vec<f64>,
    pub seen: Seen,
    /// Number of reads of one object.
    pub reads: u64,
    /// Number of comparisons with the cluster while the service was reported as synced.
    pub looks: u64,
    /// Wrong reports of a synced service.
    pub lies: Vec<String>,
    /// Lists during `rest_seconds` without changes.
    pub lists_at_rest: u64,
    pub rest_seconds: u64,
}

impl Outcome {
    pub fn check(&self) -> Result<()> {
        ensure!(self.lies.is_empty(), "{:#?}", self.lies);
        ensure!(
            self.looks >= LOOKS,
            "only {} looks at a service that was called synced",
            self.looks
        );
        ensure!(self.seen.expired_later > 0, "no watch lost its version while it ran");
        ensure!(
            self.seen.early.is_empty(),
            "requests came earlier than they were told to: {:#?}",
            self.seen.early
        );
        // A cut watch continues where it was. A watch that lost its version lists again, and once more if a page was
        // finally refused.
        let expired = self.seen.expired + self.seen.expired_later;
        let bound = 3 + 2 * expired;
        ensure!(
            self.seen.wide_lists <= bound,
            "watches began with {} lists for {:?}",
            self.seen.wide_lists,
            self.seen
        );
        // Each attempt looks up its objects, and repeats refused requests.
        let bound = 200 + 2 * expired;
        ensure!(
            self.seen.lists <= bound,
            "{} lists for {:?}",
            self.seen.lists,
            self.seen
        );
        // An object that the API server finally refused is read before the next attempt.
        let bound = self.objects as u64 / 10;
        ensure!(
            self.reads <= bound,
            "{} objects were read one by one for {:?}",
            self.reads,
            self.seen
        );
        ensure!(
            self.objects <= self.page || self.seen.pages > 0,
            "no list had a second page"
        );
        ensure!(
            self.lists_at_rest <= 2 * self.rest_seconds,
            "{} lists while nothing changed",
            self.lists_at_rest
        );
        Ok(())
    }
}

fn files(objects: usize, value: &str) -> Vec<(String, String)> {
    let map =
        |n| format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m{n:05}}}\ndata: {{value: {value}}}\n");
    let starts = (0..objects).step_by(PER_FILE);
    let file = |from: usize| (from..objects.min(from + PER_FILE)).map(map).collect::<String>();
    starts.map(|from| (format!("app/{from:05}.yaml"), file(from))).collect()
}

async fn values(plane: &kube::Client, namespace: &str) -> Result<BTreeMap<String, String>> {
    let api: Api<ConfigMap> = Api::namespaced(plane.clone(), namespace);
    let mut found = BTreeMap::new();
    let mut page = ListParams::default().limit(500);
    loop {
        let list = api.list(&page).await?;
        for map in list.items {
            let name = map.metadata.name.unwrap_or_default();
            if name != "kube-root-ca.crt" {
                found.insert(name, map.data.unwrap_or_default().remove("value").unwrap_or_default());
            }
        }
        match list.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => page = page.continue_token(&next),
            None => return Ok(found),
        }
    }
}

/// Applies so many objects through an API server that refuses 30 % with 429 or 503, delays answers, forgets versions
/// even of running watches, and cuts watches. Then changes all objects once, and leaves it idle. Meanwhile a witness
/// compares reports with the cluster.
pub async fn run(plane: &Plane, hostility: Hostility) -> Result<Outcome> {
    let Hostility {
        seed,
        objects,
        page,
        rest,
        patience,
        ..
    } = hostility;
    let quiet = Faults {
        page: Some(page),
        ..Faults::default()
    };
    let mut fleet = Fleet::start().await?;
    let place = fleet.state_dir("proxy").with_extension("place");
    std::fs::create_dir_all(&place)?;
    let proxy = ApiFaults::start(plane, &place, seed).await?;
    fleet
        .join_in(CLUSTER, plane, proxy.kubeconfig(), Launch::default(), |_| ())
        .await?;
    let client = plane.client().await?;
    proxy.set(Faults {
        refused: 0.3,
        latency: hostility.latency,
        expired: 0.2,
        expired_later: 0.2,
        cut: Some(hostility.cut),
        ..quiet.clone()
    });
    let first = files(objects, "one");
    let borrowed = |files: &[(String, String)]| -> Vec<(String, String)> { files.to_vec() };
    let text = borrowed(&first);
    let text: Vec<_> = text.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let repository = fleet.repository("infra", &text).await?;
    fleet.deploy(SERVICE, CLUSTER, "infra", "app").await?;
    let namespace = fleet.namespace(SERVICE);
    let witness = Witness::start(&fleet, client.clone(), objects);
    let (mut seconds, mut lies) = (Vec::new(), Vec::new());
    for value in ["one", "two"] {
        let begun = Instant::now();
        if value == "two" {
            let next = files(objects, value);
            let next: Vec<_> = next.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
            repository.commit("main", &next)?;
            fleet.reconcile("infra").await?;
        }
        let commit = repository.branch("main").context("a branch")?;
        witness.expect(&commit, value);
        if let Err(error) = until_synced(&fleet, &commit, patience).await {
            let log = fleet.agent(CLUSTER)?.log_tail();
            return Err(error.context(format!("{value:?}, {:?}\n{log}", proxy.seen())));
        }
        let found = values(&client, &namespace).await?;
        let wrong = found.values().filter(|found| *found != value).count();
        if found.len() != objects || wrong > 0 {
            lies.push(format!(
                "synced at {value} with {} objects, {wrong} of them old",
                found.len()
            ));
        }
        seconds.push(begun.elapsed().as_secs_f64());
    }
    proxy.set(Faults {
        expired_later: 1.0,
        ..quiet.clone()
    });
    farwater_testkit::wait_for("a watch that runs to lose its version", patience, || async {
        Ok((proxy.seen().expired_later > 0).then_some(()))
    })
    .await?;
    let seen = proxy.seen();
    proxy.set(quiet);
    farwater_testkit::wait_for("watches that were cut to be opened again", patience, || async {
        let before = proxy.seen().lists;
        tokio::time::sleep(QUIET).await;
        Ok((proxy.seen().lists == before).then_some(()))
    })
    .await?;
    let before = proxy.seen().lists;
    tokio::time::sleep(rest).await;
    let lists_at_rest = proxy.seen().lists - before;
    let reads = proxy
        .asked()
        .get(&("GET".to_owned(), "configmaps".to_owned()))
        .copied()
        .unwrap_or_default();
    farwater_testkit::wait_for("the service to be looked at often enough", patience, || async {
        Ok((witness.testify().0 >= LOOKS).then_some(()))
    })
    .await?;
    let (looks, seen_lies) = witness.testify();
    lies.extend(seen_lies);
    drop(witness);
    fleet.agent(CLUSTER)?.kill9();
    Ok(Outcome {
        objects,
        page,
        seconds,
        seen,
        reads,
        looks,
        lies,
        lists_at_rest,
        rest_seconds: rest.as_secs(),
    })
}

async fn until_synced(fleet: &Fleet, commit: &str, patience: Duration) -> Result<()> {
    let services: Api<ServiceDeployment> = fleet.api();
    farwater_testkit::wait_for(&format!("{SERVICE} to be synced"), patience, || async {
        let status = services.get(SERVICE).await?.status.unwrap_or_default();
        let applied = status
            .applied_revision
            .as_deref()
            .is_some_and(|revision| revision.ends_with(commit));
        let synced = applied && condition(&status.conditions, "Ready") == Some("True");
        ensure!(synced, "at {:?}, {:?}", status.applied_revision, status.conditions);
        Ok(Some(()))
    })
    .await
}
