//! `farwater doctor --context`: the cluster's side, with the objects that `cluster join` creates.

use anyhow::{Context as _, Result, ensure};
use farwater_e2e::Fleet;
use farwater_testkit::{Plane, PlaneOptions, farwater::program, process::bare_command};
use k8s_openapi::api::rbac::v1::Role;
use kube::{Api, api::DeleteParams};
use serde_json::Value;

/// Grade and finding of `doctor` for the cluster, by check.
fn examine(fleet: &Fleet, plane: &Plane) -> Result<impl Fn(&str) -> Result<(String, String)>> {
    let mut command = bare_command(program("farwater")?);
    command
        .args(["doctor", "--context", "admin", "-o", "json", "--cluster-kubeconfig"])
        .arg(plane.kubeconfig());
    command
        .env("FARWATER_KUBECONFIG", fleet.hub.kubeconfig())
        .env("HOME", fleet.hub.dir());
    let output = command.output()?;
    let answer: Value =
        serde_json::from_slice(&output.stdout).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok(move |name: &str| {
        let checks = answer["checks"].as_array().context("there are checks")?;
        let found = checks
            .iter()
            .find(|check| check["part"] == "cluster" && check["name"] == name);
        let found = found.with_context(|| format!("{name} is not looked at: {answer}"))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok((text(&found["grade"]), text(&found["found"])))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clusters_side_is_looked_at_and_what_is_missing_is_named() -> Result<()> {
    // An own plane, where no other test's agent runs.
    let plane = Plane::start_with(PlaneOptions::without_nodes()).await?;
    let fleet = Fleet::start().await?;
    let before = examine(&fleet, &plane)?;
    let (grade, found) = before("agent")?;
    ensure!(
        grade == "fail" && found.contains("no Deployment farwater-agent"),
        "{found}"
    );
    ensure!(before("clock")?.0 == "ok");
    let (grade, found) = before("rights")?;
    ensure!(
        grade == "fail" && found.contains("impersonate serviceaccounts"),
        "{found}"
    );

    // Without a node its pod never runs, and `doctor` reports that.
    let mut join = bare_command(program("farwater")?);
    join.args([
        "cluster",
        "join",
        "east",
        "--context",
        "admin",
        "--timeout",
        "1",
        "--cluster-kubeconfig",
    ]);
    join.arg(plane.kubeconfig())
        .env("FARWATER_KUBECONFIG", fleet.hub.kubeconfig())
        .env("HOME", fleet.hub.dir());
    ensure!(join.output()?.status.code() == Some(6));
    let joined = examine(&fleet, &plane)?;
    ensure!(joined("agent")?.0 == "fail");
    let (grade, found) = joined("agent's hub")?;
    ensure!(grade == "ok" && found.contains(&fleet.hub.url()), "{found}");
    let (grade, found) = joined("rights")?;
    ensure!(grade == "ok", "{found}");

    let roles: Api<Role> = Api::namespaced(plane.client().await?, farwater_api::AGENT_NAMESPACE);
    roles.delete("farwater-agent", &DeleteParams::default()).await?;
    let (grade, found) = examine(&fleet, &plane)?("rights")?;
    ensure!(
        grade == "fail" && found.contains("patch secrets in farwater-system"),
        "{found}"
    );
    // Another hub is reported as not the cluster's hub.
    let other = Fleet::start().await?;
    let (grade, found) = examine(&other, &plane)?("agent's hub")?;
    ensure!(grade == "fail" && found.contains("another hub"), "{found}");
    Ok(())
}
