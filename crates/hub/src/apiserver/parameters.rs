//! `servicedeployments/NAME/parameters`: a service's parameters, and where each value comes from.
//!
//! Secret values are in no answer, not even to administrators. Other values are shown to senders who may read the
//! object that they come from.

use std::collections::BTreeMap;

use axum::response::Response;
use farwater_api::{
    ServiceDeployment,
    parameters::{Origin, PARAMETERS_KIND, ParameterValue, ParametersAnswer},
};
use farwater_fleet::parameters::{Resolution, value_name};
use farwater_store::delivery::{Assignment, load_assignment};
use serde_json::json;

use super::{
    admission::{NamedKind, may_get},
    call::{Call, store_failed},
    computed::our_api_version,
    respond,
};
use crate::{
    kinds::status::ApiError,
    resources::{self, Name},
    services::{
        ClusterFacts,
        parameters::{InputCache, load},
        rows::TypedRow as _,
    },
};

pub async fn explain(call: &Call) -> Result<Response, ApiError> {
    let service = call.load(&call.info.name).await?;
    let row = {
        let mut tables = call.hub.replica.store.tables().await.map_err(store_failed)?;
        load_assignment(&mut tables, &service.uid).await.map_err(store_failed)?
    };

    let answer = match find_cluster(call, row.as_ref()).await? {
        Some(cluster) => {
            let typed: ServiceDeployment = resources::parse(&service).map_err(store_failed)?;
            let name = Name::new(&service.key.namespace, &service.key.name);
            let mut cache = InputCache::default();
            let loaded = load(
                &call.hub.replica,
                &service.uid,
                &name,
                &typed.spec,
                &cluster,
                &mut cache,
            )
            .await
            .map_err(store_failed)?;
            let mut answer = hide_unreadable(call, &cluster, loaded.0).await?;
            let assigned = row.as_ref().map(Assignment::read_assigned).transpose();
            if let Some(assigned) = assigned.map_err(store_failed)?.flatten() {
                tell_promoted(&mut answer, &typed.spec.source_ref.name, &assigned.configuration);
            }
            answer
        }
        None => ParametersAnswer {
            problems: vec!["the service has no cluster yet; why says what it lacks".to_owned()],
            ..ParametersAnswer::default()
        },
    };

    let shown = json!({
        "apiVersion": our_api_version(),
        "kind": PARAMETERS_KIND,
        "metadata": {
            "namespace": service.key.namespace, "name": service.key.name, "resourceVersion": service.version.to_string(),
        },
        "status": answer,
    });
    Ok(respond::json(200, &shown))
}

async fn find_cluster(call: &Call, row: Option<&Assignment>) -> Result<Option<ClusterFacts>, ApiError> {
    let replica = &call.hub.replica;
    let Some(state) = row.and_then(|row| replica.memory.clusters.get(&row.cluster_uid)) else {
        return Ok(None);
    };
    ClusterFacts::load(replica, &Name::new(&state.namespace, &state.name))
        .await
        .map_err(store_failed)
}

/// Replaces stated texts by promoted ones. They belong to the service's assignment, which the sender may read.
fn tell_promoted(answer: &mut ParametersAnswer, repository: &str, texts: &BTreeMap<String, String>) {
    for (name, text) in texts {
        let name = value_name(&["configuration", name]);
        let origin = Origin {
            kind: "GitRepository".to_owned(),
            name: repository.to_owned(),
            key: "promoted".to_owned(),
            ..Origin::default()
        };
        let known = answer.values.iter().position(|value| value.name == name);
        let known = known.map(|at| answer.values.remove(at));
        let instead_of = known
            .into_iter()
            .flat_map(|known| std::iter::once(known.origin).chain(known.instead_of));
        let instead_of = instead_of.collect();
        let value = ParameterValue {
            name,
            origin,
            value: Some(text.clone().into()),
            secret: false,
            instead_of,
        };
        let at = answer.values.partition_point(|other| other.name < value.name);
        answer.values.insert(at, value);
    }
}

/// Removes the values that the sender may not read.
async fn hide_unreadable(
    call: &Call,
    cluster: &ClusterFacts,
    resolution: Resolution,
) -> Result<ParametersAnswer, ApiError> {
    let Resolution {
        bytes,
        mut values,
        problems,
        ..
    } = resolution;
    let mut readable: BTreeMap<(NamedKind, String), bool> = BTreeMap::new();
    for value in values.iter_mut().filter(|value| value.value.is_some()) {
        let Origin { kind, name, .. } = &value.origin;
        let may = match NamedKind::of(kind) {
            None => false,
            Some(kind) => match readable.get(&(kind, name.clone())) {
                Some(may) => *may,
                None => {
                    let namespace = match kind {
                        NamedKind::Cluster => &cluster.name.namespace,
                        _ => &call.info.namespace,
                    };
                    let may = may_get(call, kind, namespace, name).await?;
                    readable.insert((kind, name.clone()), may);
                    may
                }
            },
        };
        if !may {
            value.value = None;
        }
    }
    Ok(ParametersAnswer {
        problems: problems.iter().map(ToString::to_string).collect(),
        bytes,
        values,
    })
}
