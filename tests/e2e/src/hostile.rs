//! An API server that is overloaded, slow and forgetful: what an agent does against it is bounded, and it never says that it is done
//! before it is.

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
/// Objects in one file: a folder of thousands of files is another subject.
const PER_FILE: usize = 100;
/// Of a list of the agent's.
const PAGE: usize = 500;
/// At a service that is called synced, so that a lie would be seen.
const LOOKS: u64 = 10;
/// An agent that opens watches again does not rest so long between two of them.
const QUIET: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub struct Hostility {
    pub seed: u64,
    pub objects: usize,
    /// Objects on a page that the API server gives at most.
    pub page: usize,
    /// Each request waits up to this long.
    pub latency: Duration,
    /// Watches end after this long.
    pub cut: Duration,
    /// How long all stands still in the end.
    pub rest: Duration,
    /// For all objects to be applied.
    pub patience: Duration,
}

impl Hostility {
    /// As it is with very many objects.
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
    /// Until all were applied for the first time, and until a change of all was.
    pub seconds: Vec<f64>,
    pub seen: Seen,
    /// How often one of the objects was read.
    pub reads: u64,
    /// How often it was compared with the cluster that the service was called synced.
    pub looks: u64,
    /// When it was and was not.
    pub lies: Vec<String>,
    /// While everything stood still for so many seconds.
    pub lists_at_rest: u64,
    pub rest_seconds: u64,
}

impl Outcome {
    pub fn check(&self) -> Result<()> {
        ensure!(self.lies.is_empty(), "{:#?}", self.lies);
        ensure!(self.looks >= LOOKS, "only {} looks at a service that was called synced", self.looks);
        ensure!(self.seen.expired_later > 0, "no watch lost its version while it ran");
        ensure!(self.seen.early.is_empty(), "requests came earlier than they were told to: {:#?}", self.seen.early);
        // A watch that was cut goes on where it was. One that lost its place lists, and once more where a page was refused for good.
        let expired = self.seen.expired + self.seen.expired_later;
        let bound = 3 + 2 * expired;
        ensure!(self.seen.wide_lists <= bound, "watches began with {} lists for {:?}", self.seen.wide_lists, self.seen);
        // Each attempt looks up what it has to, and what is refused is asked for again.
        let bound = 200 + 2 * expired;
        ensure!(self.seen.lists <= bound, "{} lists for {:?}", self.seen.lists, self.seen);
        // What the API server refused to the end is read before it is tried again.
        let bound = self.objects as u64 / 10;
        ensure!(self.reads <= bound, "{} objects were read one by one for {:?}", self.reads, self.seen);
        ensure!(self.objects <= self.page || self.seen.pages > 0, "no list had a second page");
        ensure!(self.lists_at_rest <= 2 * self.rest_seconds, "{} lists while nothing changed", self.lists_at_rest);
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

/// Applies so many objects through a server that refuses 30 % with 429 or 503, takes its time, forgets versions, also of
/// watches that run, and cuts these; changes them all once; and lets it rest. All the while somebody looks whether it is as it is said.
pub async fn run(plane: &Plane, hostility: Hostility) -> Result<Outcome> {
    let Hostility { seed, objects, page, rest, patience, .. } = hostility;
    let quiet = Faults { page: Some(page), ..Faults::default() };
    let mut fleet = Fleet::start().await?;
    let place = fleet.state_dir("proxy").with_extension("place");
    std::fs::create_dir_all(&place)?;
    let proxy = ApiFaults::start(plane, &place, seed).await?;
    fleet.join_in(CLUSTER, plane, proxy.kubeconfig(), Launch::default(), |_| ()).await?;
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
            lies.push(format!("synced at {value} with {} objects, {wrong} of them old", found.len()));
        }
        seconds.push(begun.elapsed().as_secs_f64());
    }
    proxy.set(Faults { expired_later: 1.0, ..quiet.clone() });
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
    let reads = proxy.asked().get(&("GET".to_owned(), "configmaps".to_owned())).copied().unwrap_or_default();
    farwater_testkit::wait_for("the service to be looked at often enough", patience, || async {
        Ok((witness.testify().0 >= LOOKS).then_some(()))
    })
    .await?;
    let (looks, seen_lies) = witness.testify();
    lies.extend(seen_lies);
    drop(witness);
    fleet.agent(CLUSTER)?.kill9();
    Ok(Outcome { objects, page, seconds, seen, reads, looks, lies, lists_at_rest, rest_seconds: rest.as_secs() })
}

async fn until_synced(fleet: &Fleet, commit: &str, patience: Duration) -> Result<()> {
    let services: Api<ServiceDeployment> = fleet.api();
    farwater_testkit::wait_for(&format!("{SERVICE} to be synced"), patience, || async {
        let status = services.get(SERVICE).await?.status.unwrap_or_default();
        let applied = status.applied_revision.as_deref().is_some_and(|revision| revision.ends_with(commit));
        let synced = applied && condition(&status.conditions, "Ready") == Some("True");
        ensure!(synced, "at {:?}, {:?}", status.applied_revision, status.conditions);
        Ok(Some(()))
    })
    .await
}
