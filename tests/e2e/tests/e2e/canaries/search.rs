//! Searches for the secrets in all outputs and all stored files.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{ADMIN_NAMESPACE, GROUP, VERSION};
use farwater_e2e::{Fleet, collector::Collector, files_that};
use farwater_testkit::prometheus;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Secret};
use kube::{Api, Client, api::ListParams, client::Body};
use serde_json::Value;

use super::canary::Marks;

/// All our kinds except contexts: a user who may read a context may see its content.
const KINDS: [&str; 15] = [
    "agentpolicies",
    "changewindows",
    "clustergrants",
    "clusters",
    "gitrepositories",
    "healthrules",
    "helmrepositories",
    "managednamespaces",
    "notificationproviders",
    "notificationrules",
    "ocirepositories",
    "pipelines",
    "receivers",
    "servicedeployments",
    "servicesets",
];

/// Number of concurrent requests to the hub. Watches run for a second each.
const AT_ONCE: usize = 16;
/// Exit code of the CLI for a usage error.
const USAGE: i32 = 2;

/// API paths with answers: lists, their subresources, and subresources of single objects.
async fn paths(fleet: &Fleet) -> Result<Vec<String>> {
    let group = format!("/apis/{GROUP}/{VERSION}");
    let mut paths = vec!["/metrics".to_owned()];
    for kind in KINDS {
        paths.push(format!("{group}/{kind}?limit=500"));
        paths.push(format!(
            "{group}/{kind}?watch=true&resourceVersion=0&timeoutSeconds=1&allowWatchBookmarks=true"
        ));
    }
    let own = format!("{group}/namespaces/{ADMIN_NAMESPACE}");
    for name in names(fleet, "servicedeployments").await? {
        for tail in ["", "/parameters", "/objects", "/history", "/hooks", "/digest"] {
            paths.push(format!("{own}/servicedeployments/{name}{tail}"));
        }
    }
    for name in names(fleet, "servicesets").await? {
        for tail in ["/rollout", "/members?limit=500", "/history"] {
            paths.push(format!("{own}/servicesets/{name}{tail}"));
        }
    }
    Ok(paths)
}

/// Paths for the admin namespace's objects of one kind.
pub async fn names(fleet: &Fleet, kind: &str) -> Result<Vec<String>> {
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{ADMIN_NAMESPACE}/{kind}");
    let list: Value = fleet.client.request(Request::get(path).body(Vec::new())?).await?;
    let items = list["items"].as_array().context("a list")?;
    Ok(items
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned))
        .collect())
}

/// Checks that a user who may read these Secrets of the hub finds the values there. Otherwise it would prove nothing
/// that they are not found elsewhere.
pub async fn check_found(fleet: &Fleet, marks: &Marks, secrets: &str) -> Result<()> {
    let all: Api<Secret> = fleet.api();
    for name in secrets.split(' ') {
        let secret = serde_json::to_string(&all.get(name).await?)?;
        ensure!(
            marks.find(secret.as_bytes()).is_some(),
            "nothing is found in Secret {name}"
        );
    }
    Ok(())
}

/// Searches the answers of hub and agent, and the data that they send by themselves.
pub async fn check_answers(fleet: &Fleet, marks: &Marks, agent: &str, collector: &Collector) -> Result<()> {
    let ask = async |path: String| {
        let answer = fleet.client.send(Request::get(&path).body(Body::empty())?).await?;
        let said = answer.into_body().collect().await?.to_bytes();
        marks.check(&path, &String::from_utf8_lossy(&said))
    };
    stream::iter(paths(fleet).await?)
        .map(ask)
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    let own = prometheus::get(&format!("http://{agent}/metrics")).await?;
    ensure!(own.contains("farwater_agent_"), "{own}");
    marks.check("the agent's metrics", &own)?;
    let events: Api<Event> = fleet.api();
    marks.check(
        "events",
        &serde_json::to_string(&events.list(&ListParams::default()).await?.items)?,
    )?;
    let told = collector.told();
    let has_log = |of: &str| told.logs.iter().any(|(service, _)| service == of);
    ensure!(has_log("farwater-hub") && has_log("farwater-agent") && !told.spans.is_empty());
    for body in &told.bodies {
        marks.check("what is told to a collector", &String::from_utf8_lossy(body))?;
    }
    Ok(())
}

/// Searches the CLI's output for these commands, and for commands about every service, set and pipeline.
pub async fn check_command_line(fleet: &Fleet, marks: &Marks, more: &[&[&str]]) -> Result<String> {
    const ALL: &str = "sd,sds,fwc,fwgit,fwhelm,fwoci,fwpl,fwrecv,notificationproviders,notificationrules";
    let mut lines: Vec<Vec<String>> = Vec::new();
    let mut add = |line: &[&str]| lines.push(line.iter().map(ToString::to_string).collect());
    for form in ["yaml", "json", "wide", "name"] {
        add(&["get", ALL, "-o", form]);
    }
    add(&["get", "secrets,servicecontexts,events"]);
    add(&["tree"]);
    add(&["doctor"]);
    for name in names(fleet, "servicedeployments").await? {
        for line in [
            &["why", &name][..],
            &["why", &name, "-o", "json"],
            &["objects", &name, "-o", "json"],
        ] {
            add(line);
        }
    }
    for name in names(fleet, "servicesets").await? {
        let set = format!("serviceset/{name}");
        add(&["history", &set, "-o", "wide"]);
        add(&["history", &set, "-o", "json"]);
        for form in ["text", "json"] {
            add(&["rollout", "status", &name, "-o", form]);
            add(&["plan", &set, "-o", form]);
        }
    }
    for name in names(fleet, "pipelines").await? {
        add(&["pipeline", "status", &name]);
        add(&["pipeline", "status", &name, "-o", "json"]);
    }
    more.iter().for_each(|line| add(line));
    let mut said = String::new();
    for line in &lines {
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        let ran = fleet.cli().run(&words)?;
        ensure!(ran.code != USAGE, "{words:?} is no command: {ran:?}");
        said += &format!("{words:?} {}\n{}\n{}\n", ran.code, ran.stdout, ran.stderr);
    }
    marks.check("the command line", &said)?;
    Ok(said)
}

/// Searches the files of hub and agent with their logs, files that plugins leave, the agent's own Secrets, and its
/// other objects in the cluster. `meant`: the tests' ConfigMaps with an intended value.
pub async fn check_kept(fleet: &Fleet, marks: &Marks, client: Client, meant: &[&str]) -> Result<()> {
    let all = fleet.hub.dir().parent().context("a folder")?;
    let mut found = files_that(all, &|bytes| marks.find(bytes).is_some())?;
    for entry in fs::read_dir(std::env::temp_dir())?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("farwater-plugin-") {
            // An object of another test may be deleted meanwhile.
            found.extend(files_that(&entry.path(), &|bytes| marks.find(bytes).is_some()).unwrap_or_default());
        }
    }
    ensure!(found.is_empty(), "in the clear: {found:?}");
    for log in ["hub.log", "agent-east.log"] {
        let is_loud = |bytes: &[u8]| bytes.windows(5).any(|window| window == b"DEBUG");
        ensure!(
            files_that(all, &is_loud)?.iter().any(|found| found.ends_with(log)),
            "{log} was not searched"
        );
    }

    let own: Api<Secret> = Api::namespaced(client.clone(), "farwater-system");
    let kept = own.list(&ListParams::default()).await?.items;
    let of_parameters = |name: &str| name.starts_with("farwater-parameters-");
    ensure!(
        kept.iter()
            .any(|secret| secret.metadata.name.as_deref().is_some_and(of_parameters))
    );
    for secret in kept {
        for value in secret.data.into_iter().flatten().map(|(_, value)| value.0) {
            marks.check(&format!("{:?}", secret.metadata.name), &String::from_utf8_lossy(&value))?;
        }
    }
    for kind in [
        "api/v1/events",
        "api/v1/namespaces",
        "apis/coordination.k8s.io/v1/leases",
    ] {
        let all = client
            .request_text(Request::get(format!("/{kind}")).body(Vec::new())?)
            .await?;
        marks.check(kind, &all)?;
    }
    let maps: Api<ConfigMap> = Api::all(client);
    let mut shown = BTreeSet::new();
    for map in maps.list(&ListParams::default()).await?.items {
        let is_ours = map
            .metadata
            .namespace
            .as_deref()
            .is_some_and(|place| place.starts_with(&fleet.unique));
        if is_ours && marks.check("the cluster", &serde_json::to_string(&map)?).is_err() {
            shown.extend(map.metadata.name);
        }
    }
    let meant: BTreeSet<String> = meant.iter().map(ToString::to_string).collect();
    ensure!(shown == meant, "in the cluster in the clear: {shown:?}");
    Ok(())
}
