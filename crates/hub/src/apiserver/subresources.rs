//! Subresources that are no part of the object: tokens of service accounts, invitations of clusters, what agents report
//! about a service's objects and hooks, and a service's earlier versions.

use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use farwater_api::Digest;
use serde_json::{Value, json};

use super::{
    body::{self, Encoding},
    bundles,
    call::{Call, store_failed},
    impact,
    options::WriteOptions,
    parameters, plans, promotions, respond, sets,
};
use crate::{
    apiserver::computed::{answer_list, our_api_version},
    services::{digest_report, hook_runs, versions},
};
use crate::{
    auth::{TokenError, TokenOwner},
    delivery::{
        join::{self, InviteError},
        status::load_objects,
    },
    kinds::{
        REGISTRY,
        meta::timestamp,
        schema,
        status::{ApiError, FieldError},
    },
    resources::Name,
};

pub async fn answer(call: &Call, body: Bytes) -> Result<Response, ApiError> {
    match (call.info.resource.as_str(), call.info.subresource.as_str()) {
        ("serviceaccounts", "token") => create_token(call, &body).await,
        ("clusters", "join") => invite_cluster(call).await,
        ("servicedeployments", "bundle") => bundles::show(call).await,
        ("servicedeployments", "objects") => list_objects(call).await,
        ("servicedeployments", "digest") => explain_digest(call).await,
        ("servicedeployments", "history") => list_versions(call).await,
        ("servicedeployments", "plan") if call.info.verb == "create" => plans::ask(call, &body).await,
        ("servicedeployments", "plan") => plans::look(call).await,
        ("servicedeployments", "hooks") => list_hooks(call).await,
        ("servicedeployments", "parameters") => parameters::explain(call).await,
        ("gitrepositories", "impact") => impact::measure(call, &body).await,
        ("pipelines", "approve") => promotions::approve(call, &body).await,
        ("servicesets", "members") => sets::list_members(call).await,
        ("managednamespaces" | "servicesets", "plan") if call.info.verb == "create" => {
            sets::plan(call, Some(&body)).await
        }
        ("managednamespaces" | "servicesets", "plan") => sets::plan(call, None).await,
        ("servicesets", "rollout") => sets::survey_rollout(call).await,
        ("servicesets", "versions") => sets::list_versions(call).await,
        _ => Err(ApiError::no_such_path()),
    }
}

/// `farwater cluster join`: a one-time token for the cluster's agent.
async fn invite_cluster(call: &Call) -> Result<Response, ApiError> {
    if WriteOptions::parse(&call.query, "CreateOptions")?.dry_run {
        return Err(ApiError::unsupported_parameter(
            "dryRun",
            "a token is either made or not",
        ));
    }
    let name = &call.info.name;
    let cluster = Name::new(&call.info.namespace, name);
    let invitation = join::create_invitation(&call.hub.replica, &cluster)
        .await
        .map_err(|error| match error {
            InviteError::Missing(_) => call.not_found(name),
            InviteError::Random => ApiError::internal(error),
            InviteError::Store(error) => store_failed(error),
        })?;
    let mut answer = serde_json::to_value(&invitation).map_err(ApiError::internal)?;
    answer["apiVersion"] = json!(our_api_version());
    answer["kind"] = json!("ClusterJoin");
    Ok(respond::json(201, &answer))
}

/// The state of each object of a service, from its agent's last report.
async fn list_objects(call: &Call) -> Result<Response, ApiError> {
    let service = call.load(&call.info.name).await?;
    let objects = load_objects(&call.hub.replica, &service.uid)
        .await
        .map_err(store_failed)?;
    Ok(answer_list("ObjectReportList", &service, &objects))
}

/// The inputs of the digest of a service's entry.
async fn explain_digest(call: &Call) -> Result<Response, ApiError> {
    let service = call.load(&call.info.name).await?;
    let report = digest_report::load(&call.hub.replica, &service)
        .await
        .map_err(store_failed)?;
    let Some(report) = report else {
        let why = "the service has no entry in a cluster's desired state yet; why says what it lacks";
        return Err(ApiError::conflict(
            &call.kind.group,
            &call.kind.plural,
            &call.info.name,
            why,
        ));
    };
    let mut answer = serde_json::to_value(&report).map_err(ApiError::internal)?;
    answer["apiVersion"] = json!(our_api_version());
    answer["kind"] = json!("DigestReport");
    answer["metadata"] = json!({"resourceVersion": service.version.to_string()});
    Ok(respond::json(200, &answer))
}

/// The versions that were assigned to a service, newest first.
async fn list_versions(call: &Call) -> Result<Response, ApiError> {
    let service = call.load(&call.info.name).await?;
    let entries = versions::load_entries(&call.hub.replica, &service.uid)
        .await
        .map_err(store_failed)?;
    Ok(answer_list("HistoryEntryList", &service, &entries))
}

/// Hooks and tests that were run for its versions; `?run=DIGEST` gives one with its log and its JUnit file.
async fn list_hooks(call: &Call) -> Result<Response, ApiError> {
    let run = call.query.get("run").map(|text| {
        text.parse::<Digest>()
            .map_err(|error| ApiError::bad_request(format!("the parameter run is no digest: {error}")))
    });
    let run = run.transpose()?;
    let service = call.load(&call.info.name).await?;
    let runs = hook_runs::load_runs(&call.hub.replica, &service.uid, run.as_ref())
        .await
        .map_err(store_failed)?;
    Ok(answer_list("HookRunList", &service, &runs))
}

fn invalid(name: &str, cause: FieldError) -> ApiError {
    ApiError::invalid("authentication.k8s.io", "TokenRequest", name, vec![cause])
}

fn read_token_request(call: &Call, bytes: &[u8]) -> Result<Value, ApiError> {
    let wrong = |why: String| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type TokenRequest): {why}"
        ))
    };
    let encoding = Encoding::of(&respond::content_type(&call.headers))?;
    let mut request = body::decode(bytes, encoding).map_err(wrong)?.value;
    let schema = REGISTRY.body_schema("io.k8s.api.authentication.v1.TokenRequest");
    schema::prune(&mut request, &schema, "", &mut Vec::new());
    schema::decode(&mut request, &schema, "TokenRequest").map_err(wrong)?;
    Ok(request)
}

fn check_token_request(request: &Value, account: &str) -> Result<(), FieldError> {
    let given = &request["metadata"]["name"];
    if given
        .as_str()
        .is_some_and(|given| !given.is_empty() && given != account)
    {
        let why = "must match the service account name if specified";
        return Err(FieldError::invalid("metadata.name", given, why));
    }
    if request["spec"]["audiences"].as_array().is_some_and(|a| !a.is_empty()) {
        let why = "tokens of this server are for this server alone";
        return Err(FieldError::forbidden("spec.audiences", why));
    }
    if request["spec"]["boundObjectRef"].is_object() {
        let why = "tokens are bound to their service account alone";
        return Err(FieldError::forbidden("spec.boundObjectRef", why));
    }
    Ok(())
}

/// `kubectl create token`.
async fn create_token(call: &Call, bytes: &[u8]) -> Result<Response, ApiError> {
    if WriteOptions::parse(&call.query, "CreateOptions")?.dry_run {
        return Err(ApiError::unsupported_parameter(
            "dryRun",
            "a token is either made or not",
        ));
    }
    let mut request = read_token_request(call, bytes)?;
    let account = call.load(&call.info.name).await?;
    let name = &call.info.name;

    check_token_request(&request, name).map_err(|cause| invalid(name, cause))?;
    let seconds = &request["spec"]["expirationSeconds"];
    // A negative duration counts as 0, which is far below the minimum.
    let ttl = seconds
        .as_i64()
        .map(|s| Duration::from_secs(u64::try_from(s).unwrap_or(0)));
    let owner = TokenOwner {
        namespace: call.info.namespace.clone(),
        name: name.clone(),
        uid: account.uid.clone(),
    };
    let issued = call
        .hub
        .access
        .issue_token(&owner, ttl, call.now)
        .await
        .map_err(|error| match error {
            TokenError::TooShort | TokenError::TooLong => invalid(
                "",
                FieldError::invalid("spec.expirationSeconds", seconds, &error.to_string()),
            ),
            TokenError::Store(error) => store_failed(error),
            TokenError::Random => ApiError::internal(error),
        })?;

    request["apiVersion"] = json!("authentication.k8s.io/v1");
    request["kind"] = json!("TokenRequest");
    request["metadata"] = json!({
        "name": name, "namespace": call.info.namespace, "creationTimestamp": timestamp(call.now),
    });
    request["status"] = json!({"token": *issued.token});
    if let Some(expires) = issued.expires {
        let seconds = expires.as_second() - call.now.as_second();
        request["spec"]["expirationSeconds"] = json!(seconds);
        request["status"]["expirationTimestamp"] = timestamp(expires);
    }

    Ok(respond::json(201, &request))
}
