//! Counts the objects that would be deleted with a namespace or a definition, for the approver.

use farwater_api::{
    objects::ObjectRef,
    protocol::ServiceAccount,
    service_deployment::{Contents, KindCount},
};
use farwater_fleet::prune::Candidate;
use futures::{StreamExt as _, stream};
use serde_json::Value;

use crate::kubernetes::{ApiError, Kubernetes, Resource, escape};

/// Namespaces and definitions whose contents are counted.
const COUNTED: usize = 3;
/// Kinds that are listed for each of them.
const KINDS: usize = 8;
const PARALLEL: usize = 8;
/// Kinds whose objects come and go by themselves.
const NOISE: [&str; 2] = ["Event", "Lease"];

/// The contents of the first namespaces and definitions of a delete set, as the service's account sees them.
pub async fn count_contents(
    kubernetes: &Kubernetes,
    account: &ServiceAccount,
    candidates: &[Candidate],
) -> Vec<Contents> {
    let mut contents = Vec::new();
    for candidate in candidates {
        let object = &candidate.object;
        let found = match (object.group.as_str(), object.kind.as_str()) {
            ("", "Namespace") => count_namespace(kubernetes, account, object).await,
            ("apiextensions.k8s.io", "CustomResourceDefinition") => count_kind(kubernetes, account, object).await,
            _ => continue,
        };
        match found {
            Ok(found) => contents.push(found),
            Err(error) => {
                tracing::debug!(%object, %error, "can't count what goes with it");
                contents.push(Contents {
                    object: object.clone(),
                    counts: Vec::new(),
                    unknown: 1,
                });
            }
        }
        if contents.len() == COUNTED {
            break;
        }
    }
    contents
}

async fn count_namespace(
    kubernetes: &Kubernetes,
    account: &ServiceAccount,
    object: &ObjectRef,
) -> Result<Contents, ApiError> {
    let mut resources = Vec::new();
    let core = kubernetes.get(None, "/api/v1", false).await?;
    resources.extend(listable("", "v1", &core));
    let groups = kubernetes.get(None, "/apis", false).await?;
    for group in groups["groups"].as_array().into_iter().flatten() {
        let (Some(name), Some(version)) = (group["name"].as_str(), group["preferredVersion"]["version"].as_str())
        else {
            continue;
        };
        let path = format!("/apis/{}/{}", escape(name), escape(version));
        // If an aggregated API is away its kinds are missing; the others are still worth counting.
        if let Ok(list) = kubernetes.get(None, &path, false).await {
            resources.extend(listable(name, version, &list));
        }
    }

    let counts: Vec<_> = resources
        .iter()
        .map(|resource| async move {
            (
                resource,
                count(kubernetes, account, &resource.collection(&object.name)).await,
            )
        })
        .collect();
    let counts: Vec<_> = stream::iter(counts).buffer_unordered(PARALLEL).collect().await;

    let mut contents = Contents {
        object: object.clone(),
        counts: Vec::new(),
        unknown: 0,
    };
    for (resource, count) in counts {
        match count {
            Ok(0) => {}
            Ok(count) => contents.counts.push(KindCount {
                kind: kind_name(&resource.group, &resource.kind),
                count,
            }),
            Err(_) => contents.unknown += 1,
        }
    }

    contents
        .counts
        .sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.kind.cmp(&b.kind)));
    contents.counts.truncate(KINDS);
    Ok(contents)
}

/// Namespaced kinds that can be listed and deleted.
fn listable(group: &str, version: &str, list: &Value) -> Vec<Resource> {
    let can = |resource: &Value, verb: &str| {
        resource["verbs"]
            .as_array()
            .is_some_and(|verbs| verbs.iter().any(|known| known == verb))
    };
    let resources = list["resources"].as_array().into_iter().flatten();
    let wanted = resources.filter(|resource| {
        let kind = resource["kind"].as_str().unwrap_or_default();
        resource["namespaced"] == true
            && can(resource, "list")
            && can(resource, "delete")
            && !NOISE.contains(&kind)
            && group != "metrics.k8s.io"
    });
    wanted
        .filter_map(|resource| {
            Some(Resource {
                group: group.to_owned(),
                version: version.to_owned(),
                kind: resource["kind"].as_str()?.to_owned(),
                plural: resource["name"].as_str().filter(|name| !name.contains('/'))?.to_owned(),
                namespaced: true,
            })
        })
        .collect()
}

async fn count_kind(
    kubernetes: &Kubernetes,
    account: &ServiceAccount,
    object: &ObjectRef,
) -> Result<Contents, ApiError> {
    let path = format!(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}",
        escape(&object.name)
    );
    let definition = kubernetes.get(Some(account), &path, false).await?;
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let versions = spec["versions"].as_array().into_iter().flatten();
    let served = versions
        .filter(|version| version["served"] == true)
        .map(|version| text(&version["name"]))
        .next();
    let resource = Resource {
        group: text(&spec["group"]),
        version: served.unwrap_or_default(),
        kind: text(&spec["names"]["kind"]),
        plural: text(&spec["names"]["plural"]),
        namespaced: spec["scope"] == "Namespaced",
    };
    let count = count(kubernetes, account, &resource.collection("")).await?;
    let counts = (count > 0).then(|| KindCount {
        kind: kind_name(&resource.group, &resource.kind),
        count,
    });
    Ok(Contents {
        object: object.clone(),
        counts: counts.into_iter().collect(),
        unknown: 0,
    })
}

fn kind_name(group: &str, kind: &str) -> String {
    if group.is_empty() {
        kind.to_owned()
    } else {
        format!("{kind}.{group}")
    }
}

/// Counts by requesting one object: the API server returns the number of the others.
async fn count(kubernetes: &Kubernetes, account: &ServiceAccount, collection: &str) -> Result<u32, ApiError> {
    let list = kubernetes
        .get(Some(account), &format!("{collection}?limit=1"), false)
        .await?;
    let first = list["items"].as_array().map_or(0, Vec::len);
    let more = list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
    Ok(u32::try_from(first as u64 + more).unwrap_or(u32::MAX))
}
