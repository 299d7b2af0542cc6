//! Asks what a branch would change in the fleet before it is merged.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{
    ADMIN_NAMESPACE, GROUP, VERSION,
    impact::{IMPACT_KIND, Impact, ImpactQuery},
};
use http::Request;
use serde_json::{Value, json};

use super::{CHOSEN, Fleet, SOAK, SOURCE, path, rounded};
use crate::bench::{
    Figure, median, milliseconds,
    sources::field::{BRANCH, config_map},
};

/// Number of clusters. Each has a service of each set: 10,000 services.
const CLUSTERS: usize = 100;
const SETS: usize = 100;
/// Number of sets whose folders the branch changes.
const TOUCHED: usize = 10;
const ASKED: usize = 9;
const GOAL: Duration = Duration::from_secs(1);

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let sets = if quick { SETS / 5 } else { SETS };
    let mut fleet = Fleet::start(sets).await?;
    fleet.make_clusters(0..CLUSTERS, CHOSEN).await?;
    fleet.make_sets(SOAK).await?;
    fleet.until_matched(CLUSTERS).await?;
    fleet.field.until_quiet().await?;
    let served = fleet.repository.branch(BRANCH).context("read the served branch")?;
    fleet.repository.set_ref("refs/heads/next", &served)?;
    let services = sets * CLUSTERS;
    let mut figures = Vec::new();
    for touched in [TOUCHED, sets] {
        let files: Vec<(String, String)> = (0..touched)
            .map(|n| (path(n), config_map(&touched.to_string())))
            .collect();
        let files: Vec<(&str, Option<&str>)> = files
            .iter()
            .map(|(path, text)| (path.as_str(), Some(text.as_str())))
            .collect();
        fleet.repository.change("next", &files)?;
        let mut times = Vec::new();
        for _ in 0..ASKED {
            let begun = Instant::now();
            let impact = ask(&fleet).await?;
            times.push(milliseconds(begun.elapsed()));
            let changing = impact.changing.services;
            ensure!(
                changing == u64::try_from(touched * CLUSTERS)?,
                "{changing} services of {touched} sets would change"
            );
        }
        let workload = format!(
            "a branch that changes {} of {services} services, median of {ASKED}",
            touched * CLUSTERS
        );
        figures.push(Figure::new("impact", &workload, rounded(median(times)), "ms").at_most(milliseconds(GOAL)));
    }
    Ok(figures)
}

async fn ask(fleet: &Fleet) -> Result<Impact> {
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{ADMIN_NAMESPACE}/gitrepositories/{SOURCE}/impact");
    let query = ImpactQuery {
        reference: "next".to_owned(),
    };
    let body = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": IMPACT_KIND, "spec": query});
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&body)?)?;
    let mut answer: Value = fleet.field.client.request(request).await?;
    serde_json::from_value(answer["status"].take()).context("read an impact")
}
