//! Server-side apply: merges a configuration of some fields into an object, or creates it.

use axum::response::Response;
use bytes::Bytes;
use farwater_store::Resource;
use serde_json::Value;

use super::{
    body::{self, Body, Encoding},
    call::{Call, store_failed},
    intake::{self, Intake},
    managed,
    options::{FieldValidation, WriteOptions},
    write,
};
use crate::kinds::{meta, status::ApiError, views};

pub async fn apply(call: &Call, bytes: Bytes) -> Result<Response, ApiError> {
    let options = WriteOptions::parse_apply(&call.query)?;
    let config = body::decode(&bytes, Encoding::Yaml)
        .map_err(|why| ApiError::bad_request(format!("error decoding YAML: {why}")))?;
    if !config.value.is_object() && !config.value.is_null() {
        return Err(ApiError::bad_request(
            "error decoding YAML: a configuration is an object",
        ));
    }
    intake::check_depth(&config.value, call.kind)?;
    for _ in 0..write::ATTEMPTS {
        let current = call
            .hub
            .store
            .get(&call.key(&call.info.name))
            .await
            .map_err(store_failed)?;
        if let Some(response) = apply_once(call, &options, &config, current).await? {
            return Ok(response);
        }
    }
    Err(write::modified(call))
}

/// One attempt; None: another write came first.
async fn apply_once(
    call: &Call,
    options: &WriteOptions,
    config: &Body,
    current: Option<Resource>,
) -> Result<Option<Response>, ApiError> {
    let live = current.as_ref().map(|current| &*current.object);
    let manager = managed::manager_of(call)?;
    let shown = live.map(|live| views::show(call.kind, live));
    let applied = manager
        .apply(
            shown.as_deref(),
            &config.value,
            &options.manager,
            options.force,
            call.now,
        )
        .map_err(|error| managed::refusal(&error))?;
    let mut warnings = judge_duplicates(config, options.validation)?;
    let Intake { object, warnings: told } = intake::read_applied(applied.object, call.kind)?;
    warnings.extend(told);
    warnings.extend(write::warn(call, &object, live).await?);
    let (code, written) = match current {
        Some(current) => (200, write::replace(call, &current, object, true, options.dry_run).await),
        None => (201, create(call, object, options.dry_run).await),
    };
    let written = written.map_err(|error| error.with_warnings(&warnings))?;
    Ok(written.map(|object| write::answer(call, code, &object, &warnings)))
}

/// Duplicate keys are reported last, as in Kubernetes.
fn judge_duplicates(config: &Body, rule: FieldValidation) -> Result<Vec<String>, ApiError> {
    let complaints = config
        .duplicates
        .iter()
        .map(|path| format!("key {path:?} already set in map"));
    let complaints: Vec<String> = complaints.take(64).collect();
    match rule {
        FieldValidation::Strict if !complaints.is_empty() => {
            let list = complaints.join(", ");
            Err(ApiError::bad_request(format!(
                "error strict decoding YAML: error converting YAML to JSON: {list}"
            )))
        }
        FieldValidation::Ignore => Ok(Vec::new()),
        _ => Ok(complaints),
    }
}

/// Creates a missing object, if the sender may; None: it exists now.
async fn create(call: &Call, mut object: Value, dry_run: bool) -> Result<Option<Value>, ApiError> {
    let uid = meta::text(&object, "uid");
    if !uid.is_empty() {
        let why = format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
        return Err(ApiError::conflict(
            &call.kind.group,
            &call.kind.plural,
            &call.info.name,
            &why,
        ));
    }
    write::check_namespace(call, &mut object)?;
    write::check_identity(call, &object)?;
    if !call.info.subresource.is_empty() {
        return Err(call.not_found(&call.info.name));
    }
    write::authorize_create(call).await?;
    write::drop_server_fields(&mut object);
    match write::create_object(call, object, dry_run).await {
        Err(error) if error.reason == "AlreadyExists" => Ok(None),
        made => made.map(Some),
    }
}
