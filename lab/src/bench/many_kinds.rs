//! A typical cluster for agents: hundreds of other kinds, and services with one object of each of 20 kinds.

use anyhow::{Context as _, Result};
use farwater_testkit::wait_for;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use serde_json::json;

/// Numbers of services and CustomResourceDefinitions in a small cluster.
pub const SERVICES: usize = 10;
pub const DEFINITIONS: usize = 300;
/// Number of kinds in a service.
const KINDS: usize = 20;
/// How many of these are custom kinds. The others are Kubernetes' own.
const CUSTOM: usize = 12;
const GROUP: &str = "things.example.com";
const ESTABLISHED: std::time::Duration = std::time::Duration::from_secs(300);

pub fn workload(definitions: usize, services: usize) -> String {
    format!(
        "{definitions} CRDs, {services} services, {} objects of {KINDS} kinds",
        services * KINDS
    )
}

/// Creates so many kinds, including those of the services, and waits until they are served.
pub async fn define(client: &Client, count: usize) -> Result<()> {
    eprintln!("making {count} kinds");
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definitions = &definitions;
    let create = async |n| -> Result<()> {
        definitions
            .create(&PostParams::default(), &definition(n)?)
            .await
            .with_context(|| format!("create kind {n}"))?;
        Ok(())
    };
    stream::iter(0..count)
        .map(create)
        .buffer_unordered(8)
        .try_collect::<()>()
        .await?;
    wait_for("the kinds to be served", ESTABLISHED, || async {
        let all = definitions.list(&ListParams::default()).await?;
        let is_served = |one: &CustomResourceDefinition| {
            let conditions = one.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Established" && c.status == "True"))
        };
        Ok(all.items.iter().all(is_served).then_some(()))
    })
    .await
}

fn definition(n: usize) -> Result<CustomResourceDefinition> {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "size": {"type": "integer", "minimum": 0}, "colour": {"type": "string", "maxLength": 32},
        "parts": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
    }}}});
    Ok(serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("thing{n}s.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": format!("Thing{n}"), "plural": format!("thing{n}s"), "singular": format!("thing{n}")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    }))?)
}

pub fn service(n: usize) -> String {
    format!("web-{n}")
}

pub fn folder(n: usize) -> String {
    format!("apps/web-{n}")
}

/// One object of each kind in each service's folder.
pub fn files(services: usize) -> Vec<(String, String)> {
    (0..services)
        .map(|n| (format!("{}/all.yaml", folder(n)), objects()))
        .collect()
}

fn objects() -> String {
    let own = [
        ("v1", "ConfigMap", "data: {size: large}"),
        ("v1", "Secret", "stringData: {password: none}"),
        ("v1", "ServiceAccount", "automountServiceAccountToken: false"),
        ("v1", "Service", "spec: {selector: {app: web}, ports: [{port: 80}]}"),
        (
            "v1",
            "LimitRange",
            "spec: {limits: [{type: Container, max: {memory: 1Gi}}]}",
        ),
        ("rbac.authorization.k8s.io/v1", "Role", "rules: []"),
        (
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: web}",
        ),
        ("networking.k8s.io/v1", "NetworkPolicy", "spec: {podSelector: {}}"),
    ];
    let own = own.map(|(version, kind, rest)| (version.to_owned(), kind.to_owned(), rest));
    let custom = (0..CUSTOM).map(|n| {
        (
            format!("{GROUP}/v1"),
            format!("Thing{n}"),
            "spec: {size: 3, colour: green, parts: [{name: a}]}",
        )
    });
    let all = own.into_iter().chain(custom);
    all.map(|(version, kind, rest)| {
        format!("---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: web}}\n{rest}\n")
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_workload_is_what_its_name_says() {
        let files = files(SERVICES);
        let kinds: Vec<&str> = files
            .iter()
            .flat_map(|(_, text)| text.lines().filter_map(|line| line.strip_prefix("kind: ")))
            .collect();
        assert_eq!((files.len(), kinds.len()), (SERVICES, 200));
        assert_eq!(kinds.into_iter().collect::<BTreeSet<_>>().len(), KINDS);
        assert_eq!(
            workload(DEFINITIONS, SERVICES),
            "300 CRDs, 10 services, 200 objects of 20 kinds"
        );
    }
}
