//! Schemas that no Rust type has by itself, as structural schemas of Kubernetes.

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::SourceKind;

/// Values of any form.
pub fn free_form(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Kinds of sources that have a remote.
pub fn fetched_source_kind(_: &mut SchemaGenerator) -> Schema {
    let kinds = SourceKind::ALL.map(SourceKind::as_str);
    json_schema!({"type": "string", "enum": kinds, "description": "The kinds of sources."})
}

/// Amounts by resource, as Kubernetes writes them.
pub fn quantities(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": 64, "additionalProperties": {"x-kubernetes-int-or-string": true},
    })
}

/// A number, or a percentage.
pub fn int_or_string(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-int-or-string": true})
}
