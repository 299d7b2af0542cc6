//! Create, update and patch.

use axum::response::Response;
use bytes::Bytes;
use farwater_fieldmanager::FieldManager;
use farwater_store::{Change, Key, Kind, Resource, StoreError, Write, WriteError};
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{
    admission, apply, attributes, authorize,
    body::{self, Encoding},
    call::{Call, store_failed},
    intake::{self, Intake},
    managed,
    options::WriteOptions,
    patch::{Patch, PatchType},
    respond,
};
use crate::kinds::removal;
use crate::{
    auth::Attributes,
    kinds::{
        meta::{self, timestamp},
        status::{ApiError, FieldError},
        strategy::{self, Part},
        views,
    },
};

/// How often a write that names no version is retried after another write came first.
pub const ATTEMPTS: usize = 20;
/// Generated names are retried a few times; 27^5 of them rarely collide.
const NAME_ATTEMPTS: usize = 8;

pub async fn create(call: &Call, body: Bytes) -> Result<Response, ApiError> {
    let options = WriteOptions::parse(&call.query, "CreateOptions")?;
    let encoding = Encoding::of(&respond::content_type(&call.headers))?;
    let Intake { object, mut warnings } = intake::read(&body, encoding, call.kind, options.validation)?;
    warnings.extend(warn(call, &object, None).await?);
    let made = make(call, object, &options)
        .await
        .map_err(|e| e.with_warnings(&warnings))?;
    Ok(answer(call, 201, &made, &warnings))
}

async fn make(call: &Call, mut object: Value, options: &WriteOptions) -> Result<Value, ApiError> {
    if !meta::text(&object, "resourceVersion").is_empty() {
        return Err(ApiError::bad_request(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    drop_server_fields(&mut object);
    let object = managed::track(call, options, None, object)?;
    create_object(call, object, options.dry_run).await
}

/// Fields of a new object that a client may not choose.
pub fn drop_server_fields(object: &mut Value) {
    const FIELDS: [&str; 6] = [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "resourceVersion",
    ];
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|field, _| !FIELDS.contains(&field.as_str()));
    }
}

/// The answer to a completed write.
pub fn answer(call: &Call, code: u16, object: &Value, warnings: &[String]) -> Response {
    let object = admission::decorated(&call.hub, call.kind, object);
    let mut response = respond::object(code, call.kind, &object, call.form, call.now);
    respond::add_warnings(&mut response, warnings);
    response
}

/// Creates an object that has managers, and none of the server's fields.
pub async fn create_object(call: &Call, mut object: Value, dry_run: bool) -> Result<Value, ApiError> {
    check_namespace(call, &mut object)?;
    require_namespace(call, meta::text(&object, "name")).await?;
    object["metadata"]["uid"] = json!(uuid::Uuid::new_v4().to_string());
    object["metadata"]["creationTimestamp"] = timestamp(call.now);
    let generate = meta::text(&object, "generateName").to_owned();
    if !meta::text(&object, "name").is_empty() || generate.is_empty() {
        return create_once(call, object, dry_run).await;
    }
    let mut attempts = NAME_ATTEMPTS;
    loop {
        attempts -= 1;
        object["metadata"]["name"] = json!(generated_name(&generate));
        match create_once(call, object.clone(), dry_run).await {
            Err(error) if error.reason == "AlreadyExists" && attempts > 0 => {}
            result => return result,
        }
    }
}

async fn create_once(call: &Call, mut object: Value, dry_run: bool) -> Result<Value, ApiError> {
    strategy::prepare_create(&mut object, call.kind);
    admission::sign(call, &mut object, None);
    check_rules(call, &object, None, Part::Main)?;
    admission::admit(call, &object, None).await?;
    let name = meta::text(&object, "name").to_owned();
    let key = call.key(&name);
    if dry_run {
        return match call.hub.store.get(&key).await.map_err(store_failed)? {
            Some(_) => Err(ApiError::already_exists(&call.kind.group, &call.kind.plural, &name)),
            None => Ok(object),
        };
    }
    insert(call, key, object)
        .await
        .map(|resource| (*resource.object).clone())
}

/// `base` and five characters that form no words and aren't mistaken for others.
fn generated_name(base: &str) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    const LONGEST_BASE: usize = 58;
    let base: String = base.chars().take(LONGEST_BASE).collect();
    let mut random = rand::rng();
    let suffix: String = (0..5)
        .map(|_| char::from(LETTERS[random.random_range(0..LETTERS.len())]))
        .collect();
    base + &suffix
}

/// The object's namespace is the request's.
pub fn check_namespace(call: &Call, object: &mut Value) -> Result<(), ApiError> {
    let given = meta::text(object, "namespace");
    if !call.kind.namespaced {
        // Kubernetes removes it silently.
        object["metadata"]
            .as_object_mut()
            .map(|metadata| metadata.remove("namespace"));
        return Ok(());
    }
    if !given.is_empty() && given != call.info.namespace {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(ApiError::bad_request(message));
    }
    object["metadata"]["namespace"] = json!(call.info.namespace);
    Ok(())
}

fn namespace_key(namespace: &str) -> Key {
    Key {
        kind: Kind::new("namespaces", ""),
        namespace: String::new(),
        name: namespace.to_owned(),
    }
}

/// Whether objects may be created in a namespace: it exists and isn't being removed.
fn open_namespace(
    found: Option<&Resource>,
    group: &str,
    plural: &str,
    namespace: &str,
    name: &str,
) -> Result<(), ApiError> {
    let Some(found) = found else {
        return Err(ApiError::not_found("", "namespaces", namespace));
    };
    if found.object["metadata"].get("deletionTimestamp").is_none() {
        return Ok(());
    }
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut error = ApiError::forbidden(group, plural, name, &why);
    if let Some(details) = &mut error.details {
        details.causes.push(FieldError {
            reason: "NamespaceTerminating",
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".into(),
        });
    }
    Err(error)
}

/// Checked first, so that a missing namespace is the first error that people read.
async fn require_namespace(call: &Call, name: &str) -> Result<(), ApiError> {
    if !call.kind.namespaced {
        return Ok(());
    }
    let namespace = &call.info.namespace;
    let found = call
        .hub
        .store
        .get(&namespace_key(namespace))
        .await
        .map_err(store_failed)?;
    open_namespace(found.as_ref(), &call.kind.group, &call.kind.plural, namespace, name)
}

/// Writes a new object. Its namespace is checked in the same transaction, so that an emptied namespace stays empty.
async fn insert(call: &Call, key: Key, object: Value) -> Result<Resource, ApiError> {
    let name = key.name.clone();
    let exists = || ApiError::already_exists(&call.kind.group, &call.kind.plural, &name);
    let write = Write {
        key,
        change: Change::Create(object),
    };
    if !call.kind.namespaced {
        return call.hub.store.write(write).await.map_err(|error| match error {
            WriteError::Exists => exists(),
            other => store_failed(other.into()),
        });
    }

    let (kind, namespace) = (call.kind, call.info.namespace.clone());
    let result = call
        .hub
        .store
        .transact(move |tx| {
            Box::pin(async move {
                let found = tx.get(&namespace_key(&namespace)).await?;
                open_namespace(found.as_ref(), &kind.group, &kind.plural, &namespace, &write.key.name)
                    .map_err(StoreError::abort)?;
                Ok(tx.write(write).await?)
            })
        })
        .await;

    result.map_err(|error| match &error {
        StoreError::Refused(refused) if matches!(**refused, WriteError::Exists) => exists(),
        StoreError::Aborted(why) => match why.downcast_ref::<ApiError>() {
            Some(why) => why.clone(),
            None => store_failed(error),
        },
        _ => store_failed(error),
    })
}

fn check_rules(call: &Call, object: &Value, old: Option<&Value>, part: Part) -> Result<(), ApiError> {
    let errors = strategy::validate(object, old, call.kind, part);
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(
        call.kind.stored_group(),
        &call.kind.kind,
        meta::text(object, "name"),
        errors,
    ))
}

/// The part of the object that the request is for.
pub fn part_of(call: &Call) -> Part {
    match call.info.subresource.as_str() {
        "status" => Part::Status,
        "finalize" => Part::Finalize,
        _ => Part::Main,
    }
}

pub async fn update(call: &Call, body: Bytes) -> Result<Response, ApiError> {
    let options = WriteOptions::parse(&call.query, "UpdateOptions")?;
    let encoding = Encoding::of(&respond::content_type(&call.headers))?;
    let Intake { object, warnings } = intake::read(&body, encoding, call.kind, options.validation)?;
    check_identity(call, &object)?;
    let mut found = None;
    if call.kind.created_by_update && call.info.subresource.is_empty() {
        found = call
            .hub
            .store
            .get(&call.key(&call.info.name))
            .await
            .map_err(store_failed)?;
        if found.is_none()
            && let Some(created) = create_absent(call, &object, &warnings, &options).await?
        {
            return Ok(created);
        }
    }
    run(call, &options, false, found, |_| {
        Ok(Intake {
            object: object.clone(),
            warnings: warnings.clone(),
        })
    })
    .await
}

/// PUT creates a missing object for the kinds that Kubernetes creates so, if the sender may. None: it exists now.
async fn create_absent(
    call: &Call,
    object: &Value,
    warnings: &[String],
    options: &WriteOptions,
) -> Result<Option<Response>, ApiError> {
    let mut object = object.clone();
    object["metadata"]
        .as_object_mut()
        .map(|metadata| metadata.remove("resourceVersion"));
    authorize_create(call).await?;
    match make(call, object, options).await {
        Err(error) if error.reason == "AlreadyExists" => Ok(None),
        Err(error) => Err(error.with_warnings(warnings)),
        Ok(created) => Ok(Some(answer(call, 201, &created, warnings))),
    }
}

/// The right to replace or to patch is not the right to create.
pub async fn authorize_create(call: &Call) -> Result<(), ApiError> {
    let create = Attributes {
        verb: "create".to_owned(),
        ..attributes(&call.info)
    };
    authorize(&call.hub, &call.user, &create).await
}

/// An object sent as a replacement must have the same name, and may have the same namespace.
pub fn check_identity(call: &Call, object: &Value) -> Result<(), ApiError> {
    let (name, namespace) = (meta::text(object, "name"), meta::text(object, "namespace"));
    if name.is_empty() {
        let why = "was undeterminable: name must be provided";
        return Err(ApiError::bad_request(format!(
            "the name of the object ({} based on URL) {why}",
            call.info.name
        )));
    }
    if name != call.info.name {
        let message = format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.info.name
        );
        return Err(ApiError::bad_request(message));
    }
    if call.kind.namespaced && !namespace.is_empty() && namespace != call.info.namespace {
        let message = format!(
            "the namespace of the object ({namespace}) does not match the namespace on the request ({})",
            call.info.namespace
        );
        return Err(ApiError::bad_request(message));
    }
    Ok(())
}

pub async fn patch(call: &Call, body: Bytes) -> Result<Response, ApiError> {
    let content_type = respond::content_type(&call.headers);
    if content_type == PatchType::APPLY {
        return apply::apply(call, body).await;
    }
    let kind = PatchType::of(&content_type, call.kind.ours)?;
    let options = WriteOptions::parse(&call.query, "PatchOptions")?;
    let decoded = body::decode(&body, Encoding::Json)
        .map_err(|why| ApiError::bad_request(format!("error decoding patch: {why}")))?;
    let complaints: Vec<String> = decoded
        .duplicates
        .iter()
        .map(|path| format!("duplicate field {path:?}"))
        .collect();
    let patch = Patch::decode(kind, decoded.value)?;
    run(call, &options, true, None, |old| {
        let patched = patch.apply(&views::show(call.kind, old), &call.kind.schema)?;
        intake::read_patched(patched, &complaints, call.kind, options.validation)
    })
    .await
}

/// Replaces the present object by what `make` returns for it. `found`: that object, if it was read already.
async fn run(
    call: &Call,
    options: &WriteOptions,
    patch: bool,
    mut found: Option<Resource>,
    make: impl Fn(&Value) -> Result<Intake, ApiError> + Send,
) -> Result<Response, ApiError> {
    for _ in 0..ATTEMPTS {
        let current = match found.take() {
            Some(found) => found,
            None => call.load(&call.info.name).await?,
        };
        let Intake { object, mut warnings } = make(&current.object)?;
        warnings.extend(warn(call, &object, Some(&current.object)).await?);
        let object = managed::track(call, options, Some(&current.object), object)?;
        let written = replace(call, &current, object, patch, options.dry_run).await;
        if let Some(object) = written.map_err(|e| e.with_warnings(&warnings))? {
            return Ok(answer(call, 200, &object, &warnings));
        }
    }
    Err(modified(call))
}

/// Warnings about an object that is about to be written.
pub async fn warn(call: &Call, object: &Value, old: Option<&Value>) -> Result<Vec<String>, ApiError> {
    if !call.kind.ours {
        return Ok(Vec::new());
    }
    let mut warnings = meta::finalizer_warnings(object, old);
    warnings.extend(admission::advise(call, object, old).await?);
    Ok(warnings)
}

/// One attempt to replace an object by one that has its managers. None: another write came first, and this one may be
/// retried. A patch applies to any state; an update that names a version applies only to that.
pub async fn replace(
    call: &Call,
    current: &Resource,
    object: Value,
    patch: bool,
    dry_run: bool,
) -> Result<Option<Value>, ApiError> {
    let may_retry = patch || meta::text(&object, "resourceVersion").is_empty();
    let mut object = prepare(call, current, object, patch)?;
    if part_of(call) == Part::Main {
        admission::sign(call, &mut object, Some(&current.object));
    }
    FieldManager::keep_times(&current.object, &mut object);
    check_rules(call, &object, Some(&current.object), part_of(call))?;
    admission::admit(call, &object, Some(&current.object)).await?;
    if dry_run {
        return Ok(Some(object));
    }
    match store_change(call, current, object).await {
        Ok(object) => Ok(Some(object)),
        Err(WriteError::Conflict { .. }) if may_retry => Ok(None),
        Err(WriteError::Conflict { .. }) => Err(modified(call)),
        Err(WriteError::Missing | WriteError::Exists) => Err(call.not_found(&call.info.name)),
        Err(WriteError::Store(error)) => Err(store_failed(error)),
    }
}

pub fn modified(call: &Call) -> ApiError {
    ApiError::modified(&call.kind.group, &call.kind.plural, &call.info.name)
}

fn prepare(call: &Call, current: &Resource, mut object: Value, patch: bool) -> Result<Value, ApiError> {
    let (kind, name) = (call.kind, &call.info.name);
    check_namespace(call, &mut object)?;
    check_identity(call, &object)?;
    let uid = meta::text(&object, "uid");
    if !patch && !uid.is_empty() && uid != current.uid {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            current.uid
        );
        return Err(ApiError::conflict(&kind.group, &kind.plural, name, &why));
    }
    let version = meta::text(&object, "resourceVersion");
    if version.is_empty() && !kind.updated_blindly {
        let cause = FieldError::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
        return Err(ApiError::invalid(&kind.group, &kind.plural, name, vec![cause]));
    }
    if !version.is_empty() && version != current.version.to_string() {
        return Err(modified(call));
    }
    strategy::prepare_update(&mut object, &current.object, kind, part_of(call));
    object["metadata"]["resourceVersion"] = json!(current.version.to_string());
    Ok(object)
}

/// Writes the new state, or removes the object if it was only waiting for its last finalizer.
async fn store_change(call: &Call, current: &Resource, object: Value) -> Result<Value, WriteError> {
    let change = removal::settled(current, object.clone(), call.kind);
    let gone = matches!(change, Change::Delete { .. });
    let written = call
        .hub
        .store
        .write(Write {
            key: current.key.clone(),
            change,
        })
        .await?;
    Ok(if gone { object } else { (*written.object).clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_fit_a_label() {
        let name = generated_name(&"a".repeat(80));
        assert_eq!(name.len(), 63);
        assert_eq!(meta::check_label(&name), None);
        assert_ne!(generated_name("a-"), generated_name("a-"));
    }
}
