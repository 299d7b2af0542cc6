//! Turns a body into an object that can be compared with what is stored: kind and version, unknown and duplicate
//! fields, types, defaults.

use serde_json::{Value, json};

use super::{
    body::{self, Body, Encoding},
    options::FieldValidation,
};
use crate::kinds::{
    ResourceKind, depth, meta, schema,
    status::{ApiError, FieldError},
    strategy, views,
};

/// An object as the kind's decoder reads it, with warnings about errors that did not make it unreadable.
#[derive(Debug)]
pub struct Intake {
    pub object: Value,
    pub warnings: Vec<String>,
}

/// Decodes the body of a create or an update.
pub fn read(bytes: &[u8], encoding: Encoding, kind: &ResourceKind, rule: FieldValidation) -> Result<Intake, ApiError> {
    let mut body = body::decode(bytes, encoding).map_err(|why| {
        let message = format!(
            "the object provided is unrecognized (must be of type {}): couldn't get version/kind; {why}",
            kind.kind
        );
        ApiError::bad_request(message)
    })?;
    check_depth(&body.value, kind)?;
    check_type(&mut body.value, kind)?;
    let (object, complaints) = shape(body, kind).map_err(|why| cannot_be_handled(kind, &why))?;
    let intake = judge(object, complaints, rule, |list| cannot_be_handled(kind, list))?;
    Ok(stored(intake, kind, ""))
}

/// Reads the object that a patch results in. `complaints`: the patch's own duplicate fields.
pub fn read_patched(
    object: Value,
    complaints: &[String],
    kind: &ResourceKind,
    rule: FieldValidation,
) -> Result<Intake, ApiError> {
    let invalid = |why: &str| {
        let cause = FieldError::invalid("patch", &json!(""), why);
        ApiError::invalid(&kind.group, &kind.kind, "", vec![cause])
    };
    check_depth(&object, kind)?;
    let mut body = Body {
        value: object,
        duplicates: Vec::new(),
    };
    check_type(&mut body.value, kind)?;
    let (object, found) = shape(body, kind).map_err(|why| invalid(&why))?;
    let mut all: Vec<String> = complaints.to_vec();
    all.extend(found.into_iter().filter(|f| !complaints.contains(f)));
    let intake = judge(object, all, rule, |list| invalid(list))?;
    Ok(stored(intake, kind, " after mutating admission happens"))
}

/// The object as it is stored. `when`: Kubernetes' words for the moment at which it checks for duplicate owners.
fn stored(mut intake: Intake, kind: &ResourceKind, when: &str) -> Intake {
    intake.object = views::store(kind, intake.object);
    strategy::normalize(&mut intake.object, kind);
    let duplicates = meta::drop_duplicate_owners(&mut intake.object);
    if !duplicates.is_empty() {
        intake.warnings.push(format!(
            ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and \
             may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            duplicates.join(", ")
        ));
    }
    intake
}

/// Called before any other code walks the object. Parsers stop at 127 levels, but a patch may nest an object more
/// deeply.
pub fn check_depth(object: &Value, kind: &ResourceKind) -> Result<(), ApiError> {
    if depth::fits(object) {
        return Ok(());
    }
    let message = format!("the {} can't be stored: {}", kind.kind, depth::too_deep());
    Err(ApiError::new(422, "Invalid", message))
}

fn judge(
    object: Value,
    complaints: Vec<String>,
    rule: FieldValidation,
    refuse: impl FnOnce(&str) -> ApiError,
) -> Result<Intake, ApiError> {
    match rule {
        FieldValidation::Strict if !complaints.is_empty() => {
            // A limit, so that the answer does not grow with the body.
            let list = complaints.iter().take(64).cloned().collect::<Vec<_>>().join(", ");
            Err(refuse(&format!("strict decoding error: {list}")))
        }
        FieldValidation::Ignore => Ok(Intake {
            object,
            warnings: Vec::new(),
        }),
        _ => Ok(Intake {
            object,
            warnings: complaints,
        }),
    }
}

fn cannot_be_handled(kind: &ResourceKind, why: &str) -> ApiError {
    let name = &kind.kind;
    ApiError::bad_request(format!(
        "{name} in version {:?} cannot be handled as a {name}: {why}",
        kind.version
    ))
}

/// apiVersion and kind must be the endpoint's. Built-in kinds may leave them out, as in Kubernetes.
fn check_type(object: &mut Value, kind: &ResourceKind) -> Result<(), ApiError> {
    let unrecognized = |why: &str| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {why}",
            kind.kind
        ))
    };
    let Some(map) = object.as_object_mut() else {
        return Err(unrecognized(
            "couldn't get version/kind; json parse error: it is not an object",
        ));
    };

    let expected = kind.api_version();
    for (field, name, wanted) in [("kind", "Kind", &kind.kind), ("apiVersion", "apiVersion", &expected)] {
        match map.get(field).map(|v| v.as_str().unwrap_or_default()) {
            None | Some("") if kind.ours => return Err(unrecognized(&format!("Object '{name}' is missing"))),
            None | Some("") => {
                map.insert(field.to_owned(), json!(wanted));
            }
            Some(_) => {}
        }
    }

    let (version, name) = (
        map["apiVersion"].as_str().unwrap_or_default(),
        map["kind"].as_str().unwrap_or_default(),
    );
    if version != expected {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({expected})"
        )));
    }
    if name != kind.kind {
        return Err(cannot_be_handled(kind, &format!("the kind in the data is {name:?}")));
    }

    Ok(())
}

/// Prunes, decodes, fills in defaults; returns the object and complaints in Kubernetes' words.
fn shape(body: Body, kind: &ResourceKind) -> Result<(Value, Vec<String>), String> {
    let Body {
        value: mut object,
        duplicates,
    } = body;
    let mut complaints: Vec<String> = duplicates
        .iter()
        .map(|path| format!("duplicate field {path:?}"))
        .collect();
    let mut unknown = Vec::new();
    schema::prune(&mut object, &kind.schema, "", &mut unknown);
    complaints.extend(unknown.iter().map(|path| format!("unknown field {path:?}")));
    let properties = &kind.schema["properties"];
    if let Some(map) = object.as_object_mut() {
        map.retain(|_, value| !value.is_null());
        let metadata = map.entry("metadata").or_insert_with(|| json!({}));
        schema::decode(metadata, &properties["metadata"], "ObjectMeta")?;
        if !kind.ours {
            for (name, value) in map.iter_mut().filter(|(name, _)| *name != "metadata") {
                schema::decode(value, &properties[name], &format!("{}.{name}", kind.kind))?;
            }
        }
    }
    if kind.ours {
        schema::drop_nulls(&mut object, &kind.schema);
        schema::default(&mut object, &kind.schema);
    }
    Ok((object, complaints))
}

/// Reads the object that an apply results in. Its fields and types were checked when the configuration was. A custom
/// resource isn't decoded again, so an object whose last field was removed stays null; a status is stored by itself and
/// stays empty.
pub fn read_applied(mut object: Value, kind: &ResourceKind) -> Result<Intake, ApiError> {
    let failed = |why| ApiError::unknown(format!("failed to convert new object: {why}"));
    if kind.ours {
        schema::decode(
            &mut object["metadata"],
            &kind.schema["properties"]["metadata"],
            "ObjectMeta",
        )
        .map_err(failed)?;
        schema::default(&mut object, &kind.schema);
        if let Some(status) = object.get_mut("status").filter(|status| status.is_null()) {
            *status = json!({});
        }
    } else {
        object = shape(
            Body {
                value: object,
                duplicates: Vec::new(),
            },
            kind,
        )
        .map_err(failed)?
        .0;
    }
    Ok(stored(
        Intake {
            object,
            warnings: Vec::new(),
        },
        kind,
        " after mutating admission happens",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::REGISTRY;

    fn read_as(plural: &str, body: &str, rule: FieldValidation) -> Result<Intake, String> {
        let group = if plural == "configmaps" {
            ("", "v1")
        } else {
            ("farwater.dev", "v1alpha1")
        };
        let kind = REGISTRY.find(group.0, group.1, plural).unwrap();
        read(body.as_bytes(), Encoding::Json, kind, rule).map_err(|e| e.message)
    }

    const SERVICE: &str = r#"{"apiVersion":"farwater.dev/v1alpha1","kind":"ServiceDeployment",
        "metadata":{"name":"x","foo":1},"spec":{"clusterRef":{"name":"a","name":"a"},
        "targetNamespace":"ab","sourceRef":{"name":"a","zz":1},"bogus":1}}"#;

    #[test]
    fn strict_decoding_names_every_unknown_and_duplicate_field() {
        assert_eq!(
            read_as("servicedeployments", SERVICE, FieldValidation::Strict).unwrap_err(),
            "ServiceDeployment in version \"v1alpha1\" cannot be handled as a ServiceDeployment: strict decoding error: \
             duplicate field \"spec.clusterRef.name\", unknown field \"metadata.foo\", unknown field \"spec.bogus\", \
             unknown field \"spec.sourceRef.zz\""
        );
        let intake = read_as("servicedeployments", SERVICE, FieldValidation::Warn).unwrap();
        assert_eq!(intake.warnings.len(), 4);
        assert_eq!(
            intake.object["spec"]["sourceRef"],
            json!({"kind": "GitRepository", "name": "a"})
        );
        assert_eq!(intake.object["spec"]["prune"], true);
        assert!(
            read_as("servicedeployments", SERVICE, FieldValidation::Ignore)
                .unwrap()
                .warnings
                .is_empty()
        );
    }

    #[test]
    fn an_object_of_another_kind_is_refused() {
        for (plural, body, expected) in [
            (
                "servicedeployments",
                "{}",
                "the object provided is unrecognized (must be of type ServiceDeployment): Object 'Kind' is missing",
            ),
            (
                "servicedeployments",
                r#"{"apiVersion":"v1","kind":"ConfigMap"}"#,
                "the API version in the data (v1) does not match the expected API version (farwater.dev/v1alpha1)",
            ),
            (
                "configmaps",
                r#"{"data":{"a":5}}"#,
                "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go \
                 struct field ConfigMap.data.a of type string",
            ),
            (
                "configmaps",
                r#"{"metadata":{"labels":5}}"#,
                "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go \
                 struct field ObjectMeta.labels of type map[string]string",
            ),
        ] {
            assert_eq!(read_as(plural, body, FieldValidation::Warn).unwrap_err(), expected);
        }
        assert!(read_as("configmaps", "[]", FieldValidation::Warn).is_err());
        assert_eq!(
            read_as("configmaps", "{}", FieldValidation::Warn).unwrap().object["kind"],
            "ConfigMap"
        );
    }
}
