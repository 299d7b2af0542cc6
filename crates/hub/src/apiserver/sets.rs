//! ServiceSets: checks before one is written, its members, and a plan of what it would do.

use axum::response::Response;
use bytes::Bytes;
use farwater_api::{
    ServiceSet, ServiceSetSpec,
    refusal::OWNED,
    service_set::{MEMBERS_KIND, PLAN_KIND, SURVEY_KIND, SetPlan, VERSIONS_KIND},
};
use farwater_fleet::stamping::{FREE_FIELDS, Template, template_of};
use farwater_store::{Resource, delivery::member_of_service};
use serde_json::{Value, json};

use super::{
    admission,
    body::Encoding,
    call::{Call, store_failed},
    computed::our_api_version,
    intake, managed_namespaces,
    options::WriteOptions,
    respond,
    service_admission::{Inadmissible, check_set_dependencies, check_shape},
};
use crate::{
    kinds::{
        meta,
        stamped::check_template,
        status::{ApiError, FieldError},
        strategy::{self, Part},
    },
    resources::Name,
    sets::{
        plan_sets::{self, Place, Selected},
        set_versions,
    },
};

/// Members in one answer, unless the request wants fewer.
const PAGE: u32 = 500;

/// Whether the request is for a service, which a set may own.
fn is_service(call: &Call) -> bool {
    call.kind.group == farwater_api::GROUP && call.kind.plural == "servicedeployments"
}

pub fn is_set(call: &Call) -> bool {
    call.kind.group == farwater_api::GROUP && call.kind.plural == "servicesets"
}

/// The fields of a service that its set owns; only the set changes them.
fn fixed(object: &Value) -> Value {
    json!([
        template_of(&object["spec"]),
        object["metadata"]["labels"],
        object["metadata"]["ownerReferences"]
    ])
}

/// Refuses changes of what a set or a ManagedNamespace owns, except of the fields that belong to users.
pub async fn check_change(call: &Call, object: &Value, old: &Value) -> Result<(), ApiError> {
    if is_set(call)
        && let Some(why) = managed_namespaces::describe_maker(old)
        && of_maker(object) != of_maker(old)
    {
        return Err(managed_namespaces::refuse(call, old, &why));
    }
    if !is_service(call) || fixed(object) == fixed(old) {
        return Ok(());
    }
    refuse_if_stamped(call, old).await
}

/// The fields of a set that a ManagedNamespace owns.
fn of_maker(object: &Value) -> Value {
    json!([
        object["spec"],
        object["metadata"]["labels"],
        object["metadata"]["ownerReferences"]
    ])
}

/// Refuses to delete what a set or a ManagedNamespace owns.
pub async fn check_delete(call: &Call, object: &Value) -> Result<(), ApiError> {
    if is_set(call) && !object["metadata"]["deletionTimestamp"].is_string() {
        return managed_namespaces::check_delete(call, object).await;
    }
    if !is_service(call) || object["metadata"]["deletionTimestamp"].is_string() {
        return Ok(());
    }
    refuse_if_stamped(call, object).await
}

async fn refuse_if_stamped(call: &Call, object: &Value) -> Result<(), ApiError> {
    let uid = meta::text(object, "uid");
    let member = member_of_service(&mut *call.hub.store.tables().await.map_err(store_failed)?, uid).await;
    if member.map_err(store_failed)?.is_none() {
        return Ok(());
    }
    let free = FREE_FIELDS.join(", ");
    if let Some(why) = managed_namespaces::describe_maker(object) {
        let why = format!("{why}, or leave this cluster out of its selector; {free} are free");
        return Err(managed_namespaces::refuse(call, object, &why));
    }
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let set = owners
        .filter(|owner| owner["kind"] == "ServiceSet")
        .find_map(|owner| owner["name"].as_str());
    let why = format!(
        "ServiceSet {} has made it: change that, or leave this cluster out of its selector; {free} are free",
        set.unwrap_or("another one")
    );
    let error = call.forbidden(meta::text(object, "name"), &why);
    Err(match set {
        Some(set) => error.because(
            OWNED,
            format!("serviceset/{set} -n {}", meta::text(object, "namespace")),
        ),
        None => error,
    })
}

/// The objects of a set's services that are checked for names, one per variant.
pub fn variants(object: &Value) -> Vec<Value> {
    let Ok(spec) = serde_json::from_value::<ServiceSetSpec>(object["spec"].clone()) else {
        return Vec::new();
    };
    let variant = |(_, template): (String, farwater_api::service_set::TemplateSpec)| {
        let mut spec = template.0;
        // Another selector sends secrets to other places.
        spec.insert("clusterSelector".to_owned(), object["spec"]["clusterSelector"].clone());
        json!({"metadata": object["metadata"], "spec": spec})
    };
    Template::variants(&spec).map(variant).collect()
}

/// Rules that the schema does not state, for the template and each of its overrides.
pub fn check_spec(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    if old.is_some_and(|old| old["spec"] == object["spec"]) {
        return Ok(());
    }
    let Ok(spec) = serde_json::from_value::<ServiceSetSpec>(object["spec"].clone()) else {
        return Ok(());
    };
    let mut errors = Vec::new();
    for (at, template) in Template::variants(&spec) {
        let Ok(service) = check_template(&template) else {
            continue;
        };
        let (field, why) = match check_shape(&service) {
            Ok(()) => continue,
            Err(Inadmissible::Sources { field, why }) => (field, why),
            Err(Inadmissible::Tests { field, why }) => (format!("tests{field}"), why),
            Err(other) => (String::new(), other.to_string()),
        };
        errors.push(FieldError::invalid_unquoted(format!("spec.{at}.{field}"), &why));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(
        &call.kind.group,
        &call.kind.kind,
        meta::text(object, "name"),
        errors,
    ))
}

/// Refuses a set whose services would wait for one another forever.
pub async fn check_dependencies(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    if old.is_some_and(|old| old["spec"] == object["spec"]) {
        return Ok(());
    }
    let Ok(spec) = serde_json::from_value::<ServiceSetSpec>(object["spec"].clone()) else {
        return Ok(());
    };
    let name = Name::new(&call.info.namespace, meta::text(object, "name"));
    match check_set_dependencies(&call.hub.store, &name, &spec).await {
        Ok(()) => Ok(()),
        Err(Inadmissible::Store(error)) => Err(store_failed(error)),
        Err(error) => {
            let error = FieldError::invalid_unquoted("spec.template.spec.dependsOn".to_owned(), &error.to_string());
            Err(ApiError::invalid(
                &call.kind.group,
                &call.kind.kind,
                &name.name,
                vec![error],
            ))
        }
    }
}

/// Refuses a pin to a version that the set never had, or no longer has.
pub async fn check_pin(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    let pin = |object: &Value| object["spec"]["pin"]["version"].as_u64();
    let Some(version) = pin(object).filter(|version| old.and_then(pin) != Some(*version)) else {
        return Ok(());
    };
    let uid = old.map(|old| meta::text(old, "uid")).unwrap_or_default();
    let mut tables = call.hub.store.tables().await.map_err(store_failed)?;
    let known = set_versions::list(&mut tables, uid).await.map_err(store_failed)?;
    if known.iter().any(|known| known.number == version) {
        return Ok(());
    }
    let why = set_versions::describe_missing(version, &known);
    let error = FieldError::invalid_unquoted("spec.pin.version".to_owned(), &why);
    Err(ApiError::invalid(
        &call.kind.group,
        &call.kind.kind,
        meta::text(object, "name"),
        vec![error],
    ))
}

/// `versions`: what the rollouts of a set deployed, newest first.
pub async fn list_versions(call: &Call) -> Result<Response, ApiError> {
    let set = call.load(&call.info.name).await?;
    let mut tables = call.hub.store.tables().await.map_err(store_failed)?;
    let versions = set_versions::list(&mut tables, &set.uid).await.map_err(store_failed)?;
    let metadata = json!({"resourceVersion": set.version.to_string()});
    let list = json!({"apiVersion": our_api_version(), "kind": VERSIONS_KIND, "metadata": metadata, "items": versions});
    Ok(respond::json(200, &list))
}

/// `members?limit=N&continue=PLACE`: the members of a set, in no meaningful order. With `step=NAME`: those of a step,
/// by the names of their services. `members?service=NAME`: the member with a service of this name.
pub async fn list_members(call: &Call) -> Result<Response, ApiError> {
    let set = call.load(&call.info.name).await?;
    let limit = match call.query.get("limit").unwrap_or_default() {
        "" => PAGE,
        text => text
            .parse::<u32>()
            .map_err(|error| ApiError::bad_request(format!("the parameter limit is no number: {error}")))?
            .clamp(1, PAGE),
    };

    let selected = match call.query.get("step").unwrap_or_default() {
        "" => Selected::All,
        step => Selected::Step(find_step(&set, step)?),
    };
    let after = Place::parse(call.query.get("continue").unwrap_or_default(), selected)
        .ok_or_else(|| ApiError::bad_request("the parameter continue is none that a list of this step has given"))?;

    let (key, replica) = (Name::new(&call.info.namespace, &call.info.name), &call.hub.replica);
    let (members, next) = match call.query.get("service") {
        Some(service) => (
            plan_sets::member(replica, (&key, &set), service)
                .await
                .map_err(store_failed)?
                .into_iter()
                .collect(),
            None,
        ),
        None => plan_sets::members(replica, (&key, &set), selected, (&after, limit))
            .await
            .map_err(store_failed)?,
    };

    let mut metadata = json!({"resourceVersion": set.version.to_string()});
    if let Some(next) = next {
        metadata["continue"] = next.into();
    }
    Ok(respond::json(
        200,
        &json!({"apiVersion": our_api_version(), "kind": MEMBERS_KIND, "metadata": metadata, "items": members}),
    ))
}

/// Number of the step with this name.
fn find_step(set: &Resource, name: &str) -> Result<u16, ApiError> {
    let spec: ServiceSetSpec = serde_json::from_value(set.object["spec"].clone()).map_err(ApiError::internal)?;
    let steps = spec.rollout.steps.iter().map(|step| step.name.as_str());
    let names: Vec<&str> = ["canary"].into_iter().chain(steps).chain(["rest"]).collect();
    let found = names
        .iter()
        .position(|known| *known == name)
        .and_then(|index| u16::try_from(index).ok());
    found.ok_or_else(|| ApiError::bad_request(format!("there is no step {name:?}: the set has {}", names.join(", "))))
}

/// `rollout`: the rollout's members, counted.
pub async fn survey_rollout(call: &Call) -> Result<Response, ApiError> {
    let set = call.load(&call.info.name).await?;
    let (key, replica) = (Name::new(&call.info.namespace, &call.info.name), &call.hub.replica);
    let count = plan_sets::survey(replica, (&key, &set));
    let survey = replica
        .memory
        .surveys
        .get(&set.uid, count)
        .await
        .map_err(store_failed)?;
    Ok(respond::json(
        200,
        &json!({
            "apiVersion": our_api_version(), "kind": SURVEY_KIND,
            "metadata": {
                "namespace": call.info.namespace, "name": call.info.name, "resourceVersion": set.version.to_string(),
            },
            "status": *survey,
        }),
    ))
}

/// `get` plans the stored set; `create` plans the set that was sent.
pub async fn plan(call: &Call, body: Option<&Bytes>) -> Result<Response, ApiError> {
    let name = &call.info.name;
    let (uid, object) = match body {
        None => {
            let set = call.load(name).await?;
            (set.uid.clone(), (*set.object).clone())
        }
        Some(bytes) => {
            let options = WriteOptions::parse(&call.query, "CreateOptions")?;
            let encoding = Encoding::of(&respond::content_type(&call.headers))?;
            let mut object = intake::read(bytes, encoding, call.kind, options.validation)?.object;
            object["metadata"]["name"] = json!(name);
            object["metadata"]["namespace"] = json!(call.info.namespace);
            let found = call.hub.store.get(&call.key(name)).await.map_err(store_failed)?;
            let old = found.as_ref().map(|found| &*found.object);
            let errors = strategy::validate(&object, None, call.kind, Part::Main);
            if !errors.is_empty() {
                return Err(ApiError::invalid(&call.kind.group, &call.kind.kind, name, errors));
            }
            admission::admit(call, &object, old).await?;
            (found.map(|found| found.uid).unwrap_or_default(), object)
        }
    };

    let (uid, set) = match managed_namespaces::is_managed(call) {
        true => managed_namespaces::plan_of(call, &object).await?,
        false => (
            uid,
            serde_json::from_value::<ServiceSet>(object).map_err(ApiError::internal)?,
        ),
    };

    let key = Name::new(&call.info.namespace, set.metadata.name.as_deref().unwrap_or(name));
    let planned = plan_sets::plan(&call.hub.replica, &key, &uid, &set)
        .await
        .map_err(store_failed)?;
    let plan: SetPlan = planned.map_err(|problems| {
        let wrong = problems
            .iter()
            .map(|problem| FieldError::invalid_unquoted(format!("spec.{}", problem.field), &problem.why));
        ApiError::invalid(&call.kind.group, &call.kind.kind, name, wrong.collect())
    })?;

    let code = if body.is_some() { 201 } else { 200 };
    Ok(respond::json(
        code,
        &json!({
            "apiVersion": our_api_version(), "kind": PLAN_KIND,
            "metadata": {"namespace": call.info.namespace, "name": name}, "status": plan,
        }),
    ))
}
