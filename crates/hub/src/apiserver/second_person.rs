//! Approvals of prunes and overrides of freezes that need two people, as required by a ClusterGrant or the Namespace.

use std::collections::BTreeMap;

use farwater_api::{ADMIN_NAMESPACE, APPROVALS, Cluster, GROUP, refusal::NOT_PROPOSED};
use farwater_fleet::approvals::{self, Approved, Lacking, Person, Proposal};
use farwater_store::{Store, StoreError};
use jiff::Timestamp;
use serde_json::Value;

use super::{
    admission,
    call::{Call, store_failed},
    sets,
};
use crate::{
    kinds::{
        meta,
        status::{ApiError, FieldError},
    },
    resources::{
        Name, OVERRIDE_PROPOSED_AT, OVERRIDE_PROPOSED_BY, PRUNE_PROPOSED_AT, PRUNE_PROPOSED_BY, Stored as _,
        namespace_key,
    },
    services::load_grants,
};

/// Refuses an approval without another person's proposal, and a proposal where one person is enough. What exists already
/// is not checked again.
pub async fn check(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    if !admission::is_service(call) && !sets::is_set(call) {
        return Ok(());
    }
    for approved in Approved::ALL {
        if changed(object, old, approved.proposal()).is_some() {
            check_proposal(call, object, approved).await?;
        }
        let Some(text) = changed(object, old, approved.annotation()) else {
            continue;
        };
        let Some(asker) = asks_for_two(call, object, approved).await.map_err(store_failed)? else {
            continue;
        };
        // A proposal in this same write is not another person's.
        let proposal = old.and_then(|old| proposal(old, approved));
        let person = Person {
            name: &admission::author(call),
            namespace: meta::text(object, "namespace"),
        };
        let checked = match old.is_some_and(|old| old["spec"] != object["spec"]) {
            true => Err(Lacking::Changed),
            false => approvals::check(text, person, proposal, Timestamp::now()),
        };
        checked.map_err(|lacking| refuse(call, object, approved, (text, &asker), &lacking))?;
    }
    Ok(())
}

/// The text of an annotation that the write sets or changes. None: it leaves the annotation as it is, or removes it.
fn changed<'a>(object: &'a Value, old: Option<&Value>, name: &str) -> Option<&'a str> {
    annotation(object, name).filter(|text| old.and_then(|old| annotation(old, name)) != Some(*text))
}

/// Refuses a proposal that no rule asks for: it would approve nothing, and its author would wait for a second person.
async fn check_proposal(call: &Call, object: &Value, approved: Approved) -> Result<(), ApiError> {
    if asks_for_two(call, object, approved)
        .await
        .map_err(store_failed)?
        .is_some()
    {
        return Ok(());
    }
    let why = format!(
        "no ClusterGrant and no annotation {APPROVALS} of Namespace {} requires two people for this: one person approves it \
         with {}",
        meta::text(object, "namespace"),
        approved.annotation()
    );
    let field = format!("metadata.annotations[{}]", approved.proposal());
    let cause = FieldError::forbidden(field, &why);
    let (group, kind) = (&call.kind.group, &call.kind.kind);
    Err(ApiError::invalid(group, kind, meta::text(object, "name"), vec![cause]))
}

fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][name].as_str()
}

async fn asks_for_two(call: &Call, object: &Value, approved: Approved) -> Result<Option<String>, StoreError> {
    let (store, namespace) = (&call.hub.store, meta::text(object, "namespace"));
    let found = store.get(&namespace_key(namespace)).await?;
    let annotations = found
        .map(|found| strings(&found.object["metadata"]["annotations"]))
        .unwrap_or_default();
    let labels = cluster_labels(store, namespace, &object["spec"]["clusterRef"]).await?;
    let grants = load_grants(store).await?;
    Ok(approvals::asks_for_two(
        approved,
        (namespace, &annotations),
        labels.as_ref(),
        &grants,
    ))
}

/// Labels of the administrators' cluster that a service is on. None: each grant counts. This holds for a set, for a
/// cluster that doesn't exist, and for a reference that may mean a tenant's own cluster, because tenants decide about
/// its labels and existence.
async fn cluster_labels(
    store: &Store,
    namespace: &str,
    reference: &Value,
) -> Result<Option<BTreeMap<String, String>>, StoreError> {
    let Some(name) = reference["name"].as_str() else {
        return Ok(None);
    };
    let stated = reference["namespace"].as_str();
    if stated.is_some_and(|stated| stated != ADMIN_NAMESPACE) {
        return Ok(None);
    }
    let is_of_tenant = stated.is_none() && namespace != ADMIN_NAMESPACE;
    if is_of_tenant && store.get(&Cluster::key(&Name::new(namespace, name))).await?.is_some() {
        return Ok(None);
    }
    let cluster = store.get(&Cluster::key(&Name::new(ADMIN_NAMESPACE, name))).await?;
    Ok(cluster.map(|cluster| strings(&cluster.object["metadata"]["labels"])))
}

fn strings(map: &Value) -> BTreeMap<String, String> {
    let entries = map.as_object().into_iter().flatten();
    entries
        .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn proposal(object: &Value, approved: Approved) -> Option<Proposal<'_>> {
    let (by, at) = match approved {
        Approved::Prune => (PRUNE_PROPOSED_BY, PRUNE_PROPOSED_AT),
        Approved::FreezeOverride => (OVERRIDE_PROPOSED_BY, OVERRIDE_PROPOSED_AT),
    };
    let status = &object["status"];
    Some(Proposal {
        by: status[by].as_str()?,
        at: status[at].as_str()?.parse().ok()?,
        text: annotation(object, approved.proposal())?,
    })
}

fn refuse(call: &Call, object: &Value, approved: Approved, said: (&str, &str), lacking: &Lacking) -> ApiError {
    let ((text, asker), name) = (said, meta::text(object, "name"));
    let what = match approved {
        Approved::Prune => "the approval of a prune",
        Approved::FreezeOverride => "the override of a freeze",
    };
    let next = match lacking {
        Lacking::SamePerson { .. } | Lacking::NoPerson { .. } | Lacking::Changed => String::new(),
        Lacking::Proposal | Lacking::OtherText { .. } | Lacking::Old { .. } => format!(
            "; propose it with `kubectl annotate --overwrite {}.{GROUP} {name} -n {} {}={text:?}`",
            call.kind.plural,
            meta::text(object, "namespace"),
            approved.proposal()
        ),
    };
    let error = call.forbidden(name, &format!("{what} needs two people, by {asker}: {lacking}{next}"));
    match next.is_empty() {
        false => error.because(NOT_PROPOSED, asker),
        true => error,
    }
}
