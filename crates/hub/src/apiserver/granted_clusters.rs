//! `grantedclusters`: the clusters that a namespace may deploy to, decided when they are read. A tenant sees their
//! names and health. It may not read Clusters, so labels, versions and messages are left out.
//!
//! [`is_visible`] decides which clusters a tenant sees, and [`show`] what of them.

use std::borrow::Cow;

use axum::response::Response;
use farwater_api::{ADMIN_NAMESPACE, Cluster, granted_cluster::GrantedClusterStatus};
use farwater_fleet::{
    placement::{self, NamedGrant},
    stamping::cluster_namespaces,
};
use farwater_store::{Key, Kind, ListQuery, Resource};
use kube_core::Resource as _;
use serde_json::{Value, json};

use super::{
    call::{Call, store_failed},
    options::{Continue, ListOptions},
    respond,
};
use crate::{
    kinds::{meta, status::ApiError},
    services::load_grants,
};

/// Most clusters of one answer, and of one read.
const PAGE: usize = 500;

/// One cluster by its name. The same answer is given for a cluster that doesn't exist and for one that isn't granted.
pub async fn get(call: &Call) -> Result<Response, ApiError> {
    let tenant = call.info.namespace.as_str();
    let name = &call.info.name;
    let grants = grants_of(call, tenant).await?;
    for namespace in cluster_namespaces(tenant) {
        let key = Key {
            kind: stored_kind(),
            namespace: namespace.to_owned(),
            name: name.clone(),
        };
        let Some(cluster) = call.hub.store.get(&key).await.map_err(store_failed)? else {
            continue;
        };
        if is_visible(call, tenant, &cluster, &grants).await? {
            let shown = show(call, tenant, &cluster);
            return Ok(respond::object(200, call.kind, &shown, call.form, call.now));
        }
    }
    Err(call.not_found(name))
}

/// `?limit=N&continue=PLACE`.
pub async fn list(call: &Call) -> Result<Response, ApiError> {
    let tenant = call.info.namespace.as_str();
    if tenant.is_empty() {
        return Err(ApiError::bad_request(
            "granted clusters are those of one namespace: name it",
        ));
    }
    // Matches of a selector would reveal labels.
    if ["labelSelector", "fieldSelector"]
        .iter()
        .any(|name| call.query.get(name).is_some_and(|text| !text.is_empty()))
    {
        return Err(ApiError::bad_request("granted clusters take no selectors"));
    }
    let options = ListOptions::parse(&call.query, call.kind, false)?;
    // A list of a few may have to read all clusters.
    let _turn = call.hub.list_turns.next(0).await;
    let limit = if options.limit == 0 {
        PAGE
    } else {
        options.limit.min(PAGE)
    };
    let (found, more, version) = find(call, tenant, options.after.as_ref().map(Continue::key), limit).await?;
    let mut list_meta = json!({"resourceVersion": version.to_string()});
    if let Some(last) = found.last().filter(|_| more) {
        let place = (last.key.namespace.clone(), last.key.name.clone());
        list_meta["continue"] = Continue::new(version, place).token().into();
    }
    let items = found.iter().map(|cluster| Cow::Owned(show(call, tenant, cluster)));
    respond::list(call.kind, items, &list_meta, call.form, call.now)
}

/// Returns up to `limit` clusters after the place `after`, whether there are more, and the version of the list. Only
/// clusters that a short name of the tenant's services can mean: those of its own namespace, then the administrators'.
async fn find(
    call: &Call,
    tenant: &str,
    after: Option<(String, String)>,
    limit: usize,
) -> Result<(Vec<Resource>, bool, u64), ApiError> {
    let store = &call.hub.store;
    let grants = grants_of(call, tenant).await?;
    let clusters = |namespace: &str, limit: usize, after: Option<(String, String)>| ListQuery {
        namespace: Some(namespace.to_owned()),
        limit,
        after,
        ..ListQuery::all(stored_kind())
    };
    if grants.is_empty() && tenant != ADMIN_NAMESPACE {
        // No cluster can be granted, so only the version of the list is read.
        let page = store.list(&clusters(tenant, 1, None)).await.map_err(store_failed)?;
        return Ok((Vec::new(), false, page.version));
    }

    let (mut found, mut version) = (Vec::new(), 0);
    let namespaces = cluster_namespaces(tenant);
    let first = after
        .as_ref()
        .and_then(|(namespace, _)| namespaces.iter().position(|one| one == namespace));
    for namespace in &namespaces[first.unwrap_or(0)..] {
        let mut after = after.clone().filter(|(place, _)| place == namespace);
        loop {
            let page = store
                .list(&clusters(namespace, PAGE, after))
                .await
                .map_err(store_failed)?;
            version = if version == 0 { page.version } else { version };

            for cluster in page.items {
                if !is_visible(call, tenant, &cluster, &grants).await? {
                    continue;
                }
                if found.len() == limit {
                    return Ok((found, true, version));
                }
                found.push(cluster);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    Ok((found, false, version))
}

fn stored_kind() -> Kind {
    Kind::new(&Cluster::plural(&()), farwater_api::GROUP)
}

/// The grants of a tenant, as they are now.
async fn grants_of(call: &Call, tenant: &str) -> Result<Vec<NamedGrant>, ApiError> {
    let mut grants = load_grants(&call.hub.store).await.map_err(store_failed)?;
    grants.retain(|(_, grant)| grant.namespaces.iter().any(|namespace| namespace == tenant));
    Ok(grants)
}

/// Whether the cluster is granted, and no cluster of the tenant's own namespace has the same name: a short name means
/// that one.
async fn is_visible(call: &Call, tenant: &str, cluster: &Resource, grants: &[NamedGrant]) -> Result<bool, ApiError> {
    if !placement::is_granted(tenant, &meta::labels(&cluster.object), grants) {
        return Ok(false);
    }
    if cluster.key.namespace == tenant {
        return Ok(true);
    }
    let own = Key {
        namespace: tenant.to_owned(),
        ..cluster.key.clone()
    };
    Ok(call.hub.store.get(&own).await.map_err(store_failed)?.is_none())
}

fn show(call: &Call, tenant: &str, cluster: &Resource) -> Value {
    let mut heard = json!({"metadata": {"uid": cluster.uid}, "status": {}});
    call.hub.replica.merge_last_heard(&mut heard);
    let conditions = cluster.object["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions
        .filter(|condition| condition["type"] == "Ready")
        .find_map(|ready| ready["status"].as_str());
    let status = GrantedClusterStatus {
        ready: ready.unwrap_or("Unknown").to_owned(),
        connected: heard["status"]["connected"] == true,
        last_heard_time: serde_json::from_value(heard["status"]["lastHeardTime"].take()).unwrap_or_default(),
    };
    json!({
        "apiVersion": call.kind.api_version(), "kind": call.kind.kind,
        "metadata": {"name": cluster.key.name, "namespace": tenant, "uid": cluster.uid},
        "spec": {"clusterRef": {"name": cluster.key.name, "namespace": cluster.key.namespace}},
        "status": status,
    })
}
