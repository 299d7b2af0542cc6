//! Converts Kubernetes' protobuf bodies to JSON, for the kinds that typed clients send.
//!
//! kubectl since 1.32 and every typed client of client-go since 0.32 send built-in kinds in this form and don't fall
//! back. The envelope is four bytes and a `runtime.Unknown`; its apiVersion and kind say which message it contains. Go
//! writes absent and empty fields alike, so empty text, zero times and empty lists are absent here.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use k8s_pb::{
    api::{
        authentication::v1 as authn, authorization::v1 as authz, coordination::v1 as coordination, core::v1 as core,
        events::v1 as events, rbac::v1 as rbac,
    },
    apimachinery::pkg::{apis::meta::v1 as meta, runtime::Unknown},
};
use prost::Message;
use serde_json::{Map, Value, json};

const MAGIC: &[u8] = b"k8s\0";

/// The object in the envelope, with its apiVersion and kind.
pub fn decode(bytes: &[u8]) -> Result<Value, String> {
    let envelope = bytes
        .strip_prefix(MAGIC)
        .ok_or("the body is not Kubernetes' protobuf: it doesn't begin with k8s\\0")?;
    let unknown = Unknown::decode(envelope).map_err(|e| format!("protobuf parse error: {e}"))?;
    let type_meta = unknown.type_meta.unwrap_or_default();
    let (version, kind) = (
        type_meta.api_version.unwrap_or_default(),
        type_meta.kind.unwrap_or_default(),
    );
    if unknown.content_encoding.is_some_and(|e| !e.is_empty()) {
        return Err("encoded protobuf envelopes are not supported".into());
    }
    let raw = unknown.raw.unwrap_or_default();
    let mut value = decode_kind(&version, &kind, &raw)?;
    value["apiVersion"] = json!(version);
    value["kind"] = json!(kind);
    Ok(value)
}

fn decode_kind(version: &str, kind: &str, raw: &[u8]) -> Result<Value, String> {
    fn message<M: Message + Default>(raw: &[u8]) -> Result<M, String> {
        M::decode(raw).map_err(|e| format!("protobuf parse error: {e}"))
    }
    match (version, kind) {
        // Typed clients send delete options in the version of the object to delete.
        (_, "DeleteOptions") => message(raw).map(delete_options),
        ("v1", "ConfigMap") => message(raw).map(config_map),
        ("v1", "Secret") => message(raw).map(secret),
        ("v1", "Namespace") => message(raw).map(namespace),
        ("v1", "ServiceAccount") => message(raw).map(service_account),
        ("v1", "Event") => message(raw).map(event),
        ("events.k8s.io/v1", "Event") => message(raw).map(new_event),
        ("coordination.k8s.io/v1", "Lease") => message(raw).map(lease),
        ("rbac.authorization.k8s.io/v1", "Role") => message(raw).map(role),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => message(raw).map(cluster_role),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => {
            message(raw).map(|b: rbac::RoleBinding| binding(b.metadata, b.subjects, b.role_ref))
        }
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => {
            message(raw).map(|b: rbac::ClusterRoleBinding| binding(b.metadata, b.subjects, b.role_ref))
        }
        ("authorization.k8s.io/v1", "SelfSubjectAccessReview") => message(raw).map(access_review),
        ("authorization.k8s.io/v1", "SelfSubjectRulesReview") => message(raw).map(rules_review),
        ("authentication.k8s.io/v1", "SelfSubjectReview") => {
            message(raw).map(|r: authn::SelfSubjectReview| with_metadata(r.metadata).done())
        }
        ("authentication.k8s.io/v1", "TokenRequest") => message(raw).map(token_request),
        _ => Err(format!(
            "no protobuf form of {kind:?} in {version:?} is known here; send JSON"
        )),
    }
}

/// An object under construction, without empty fields.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn put(mut self, name: &str, value: Option<Value>) -> Self {
        if let Some(value) = value {
            self.0.insert(name.to_owned(), value);
        }
        self
    }

    fn text(self, name: &str, value: Option<String>) -> Self {
        self.put(name, value.filter(|v| !v.is_empty()).map(Value::from))
    }

    fn flag(self, name: &str, value: Option<bool>) -> Self {
        self.put(name, value.map(Value::from))
    }

    fn number(self, name: &str, value: Option<i64>) -> Self {
        self.put(name, value.map(Value::from))
    }

    /// A number that Go writes as 0 when it is absent.
    fn count(self, name: &str, value: Option<i64>) -> Self {
        self.number(name, value.filter(|v| *v != 0))
    }

    fn list<T>(self, name: &str, items: Vec<T>, convert: impl Fn(T) -> Value) -> Self {
        let items: Vec<Value> = items.into_iter().map(convert).collect();
        self.put(name, (!items.is_empty()).then(|| items.into()))
    }

    fn texts(self, name: &str, items: Vec<String>) -> Self {
        self.list(name, items, Value::from)
    }

    fn map<T>(self, name: &str, map: BTreeMap<String, T>, convert: impl Fn(T) -> Value) -> Self {
        let map: Map<String, Value> = map.into_iter().map(|(k, v)| (k, convert(v))).collect();
        self.put(name, (!map.is_empty()).then(|| map.into()))
    }

    fn time(self, name: &str, value: Option<meta::Time>) -> Self {
        let value = value.and_then(|t| time(t.seconds));
        self.put(name, value)
    }

    fn micro_time(self, name: &str, value: Option<meta::MicroTime>) -> Self {
        let value = value.and_then(|t| micro_time(t.seconds, t.nanos));
        self.put(name, value)
    }

    fn done(self) -> Value {
        self.0.into()
    }
}

fn time(seconds: Option<i64>) -> Option<Value> {
    let time = Timestamp::from_second(seconds.filter(|seconds| *seconds != 0)?).ok()?;
    Some(json!(format!("{time:.0}")))
}

fn micro_time(seconds: Option<i64>, nanos: Option<i32>) -> Option<Value> {
    let (seconds, nanos) = (seconds.unwrap_or_default(), nanos.unwrap_or_default());
    if seconds == 0 && nanos == 0 {
        return None;
    }
    Some(json!(format!("{:.6}", Timestamp::new(seconds, nanos).ok()?)))
}

fn bytes(value: Vec<u8>) -> Value {
    json!(STANDARD.encode(value))
}

fn with_metadata(metadata: Option<meta::ObjectMeta>) -> Fields {
    Fields::default().put("metadata", metadata.map(object_meta))
}

fn object_meta(m: meta::ObjectMeta) -> Value {
    Fields::default()
        .text("name", m.name)
        .text("generateName", m.generate_name)
        .text("namespace", m.namespace)
        .text("uid", m.uid)
        .text("resourceVersion", m.resource_version)
        .count("generation", m.generation)
        .time("creationTimestamp", m.creation_timestamp)
        .time("deletionTimestamp", m.deletion_timestamp)
        .number("deletionGracePeriodSeconds", m.deletion_grace_period_seconds)
        .map("labels", m.labels, Value::from)
        .map("annotations", m.annotations, Value::from)
        .list("ownerReferences", m.owner_references, owner_reference)
        .texts("finalizers", m.finalizers)
        .list("managedFields", m.managed_fields, managed_fields)
        .done()
}

/// The fields are JSON inside the message. Anything else is refused when the object is read.
fn managed_fields(m: meta::ManagedFieldsEntry) -> Value {
    let fields = m.fields_v1.and_then(|fields| fields.raw);
    let fields = fields.map(|raw| serde_json::from_slice(&raw).unwrap_or_else(|_| json!("not JSON")));
    Fields::default()
        .text("manager", m.manager)
        .text("operation", m.operation)
        .text("apiVersion", m.api_version)
        .time("time", m.time)
        .text("fieldsType", m.fields_type)
        .put("fieldsV1", fields)
        .text("subresource", m.subresource)
        .done()
}

fn owner_reference(o: meta::OwnerReference) -> Value {
    Fields::default()
        .text("apiVersion", o.api_version)
        .text("kind", o.kind)
        .text("name", o.name)
        .text("uid", o.uid)
        .flag("controller", o.controller)
        .flag("blockOwnerDeletion", o.block_owner_deletion)
        .done()
}

fn delete_options(o: meta::DeleteOptions) -> Value {
    let preconditions = o.preconditions.map(|p| {
        Fields::default()
            .text("uid", p.uid)
            .text("resourceVersion", p.resource_version)
            .done()
    });
    Fields::default()
        .number("gracePeriodSeconds", o.grace_period_seconds)
        .put("preconditions", preconditions)
        .flag("orphanDependents", o.orphan_dependents)
        .text("propagationPolicy", o.propagation_policy)
        .texts("dryRun", o.dry_run)
        .flag(
            "ignoreStoreReadErrorWithClusterBreakingPotential",
            o.ignore_store_read_error_with_cluster_breaking_potential,
        )
        .done()
}

fn config_map(c: core::ConfigMap) -> Value {
    with_metadata(c.metadata)
        .flag("immutable", c.immutable)
        .map("data", c.data, Value::from)
        .map("binaryData", c.binary_data, bytes)
        .done()
}

fn secret(s: core::Secret) -> Value {
    with_metadata(s.metadata)
        .flag("immutable", s.immutable)
        .map("data", s.data, bytes)
        .map("stringData", s.string_data, Value::from)
        .text("type", s.r#type)
        .done()
}

fn namespace(n: core::Namespace) -> Value {
    let spec = n
        .spec
        .map(|s| Fields::default().texts("finalizers", s.finalizers).done());
    let status = n.status.map(|s| {
        Fields::default()
            .text("phase", s.phase)
            .list("conditions", s.conditions, |c| {
                Fields::default()
                    .text("type", c.r#type)
                    .text("status", c.status)
                    .time("lastTransitionTime", c.last_transition_time)
                    .text("reason", c.reason)
                    .text("message", c.message)
                    .done()
            })
            .done()
    });
    with_metadata(n.metadata).put("spec", spec).put("status", status).done()
}

fn service_account(s: core::ServiceAccount) -> Value {
    with_metadata(s.metadata)
        .list("secrets", s.secrets, object_reference)
        .list("imagePullSecrets", s.image_pull_secrets, |r| {
            Fields::default().text("name", r.name).done()
        })
        .flag("automountServiceAccountToken", s.automount_service_account_token)
        .done()
}

fn object_reference(r: core::ObjectReference) -> Value {
    Fields::default()
        .text("kind", r.kind)
        .text("namespace", r.namespace)
        .text("name", r.name)
        .text("uid", r.uid)
        .text("apiVersion", r.api_version)
        .text("resourceVersion", r.resource_version)
        .text("fieldPath", r.field_path)
        .done()
}

fn event_source(s: core::EventSource) -> Value {
    Fields::default()
        .text("component", s.component)
        .text("host", s.host)
        .done()
}

fn event_series(count: Option<i32>, last: Option<meta::MicroTime>) -> Value {
    Fields::default()
        .count("count", count.map(i64::from))
        .micro_time("lastObservedTime", last)
        .done()
}

fn new_event(e: events::Event) -> Value {
    with_metadata(e.metadata)
        .micro_time("eventTime", e.event_time)
        .put("series", e.series.map(|s| event_series(s.count, s.last_observed_time)))
        .text("reportingController", e.reporting_controller)
        .text("reportingInstance", e.reporting_instance)
        .text("action", e.action)
        .text("reason", e.reason)
        .put("regarding", e.regarding.map(object_reference))
        .put("related", e.related.map(object_reference))
        .text("note", e.note)
        .text("type", e.r#type)
        .put("deprecatedSource", e.deprecated_source.map(event_source))
        .time("deprecatedFirstTimestamp", e.deprecated_first_timestamp)
        .time("deprecatedLastTimestamp", e.deprecated_last_timestamp)
        .count("deprecatedCount", e.deprecated_count.map(i64::from))
        .done()
}

fn lease(l: coordination::Lease) -> Value {
    let spec = l.spec.map(|s| {
        Fields::default()
            // Pointers: absent and empty are different.
            .put("holderIdentity", s.holder_identity.map(Value::from))
            .number("leaseDurationSeconds", s.lease_duration_seconds.map(i64::from))
            .micro_time("acquireTime", s.acquire_time)
            .micro_time("renewTime", s.renew_time)
            .number("leaseTransitions", s.lease_transitions.map(i64::from))
            .put("strategy", s.strategy.map(Value::from))
            .put("preferredHolder", s.preferred_holder.map(Value::from))
            .done()
    });
    with_metadata(l.metadata).put("spec", spec).done()
}

fn event(e: core::Event) -> Value {
    let series = e.series.map(|s| event_series(s.count, s.last_observed_time));
    with_metadata(e.metadata)
        .put("involvedObject", e.involved_object.map(object_reference))
        .text("reason", e.reason)
        .text("message", e.message)
        .put("source", e.source.map(event_source))
        .time("firstTimestamp", e.first_timestamp)
        .time("lastTimestamp", e.last_timestamp)
        .count("count", e.count.map(i64::from))
        .text("type", e.r#type)
        .micro_time("eventTime", e.event_time)
        .put("series", series)
        .text("action", e.action)
        .put("related", e.related.map(object_reference))
        .text("reportingComponent", e.reporting_component)
        .text("reportingInstance", e.reporting_instance)
        .done()
}

fn policy_rule(r: rbac::PolicyRule) -> Value {
    Fields::default()
        .texts("verbs", r.verbs)
        .texts("apiGroups", r.api_groups)
        .texts("resources", r.resources)
        .texts("resourceNames", r.resource_names)
        .texts("nonResourceURLs", r.non_resource_ur_ls)
        .done()
}

fn role(r: rbac::Role) -> Value {
    with_metadata(r.metadata).list("rules", r.rules, policy_rule).done()
}

fn label_selector(s: meta::LabelSelector) -> Value {
    Fields::default()
        .map("matchLabels", s.match_labels, Value::from)
        .list("matchExpressions", s.match_expressions, |e| {
            Fields::default()
                .text("key", e.key)
                .text("operator", e.operator)
                .texts("values", e.values)
                .done()
        })
        .done()
}

fn cluster_role(r: rbac::ClusterRole) -> Value {
    let aggregation = r.aggregation_rule.map(|a| {
        Fields::default()
            .list("clusterRoleSelectors", a.cluster_role_selectors, label_selector)
            .done()
    });
    with_metadata(r.metadata)
        .list("rules", r.rules, policy_rule)
        .put("aggregationRule", aggregation)
        .done()
}

fn binding(metadata: Option<meta::ObjectMeta>, subjects: Vec<rbac::Subject>, role: Option<rbac::RoleRef>) -> Value {
    let role = role.map(|r| {
        Fields::default()
            .text("apiGroup", r.api_group)
            .text("kind", r.kind)
            .text("name", r.name)
            .done()
    });
    with_metadata(metadata)
        .list("subjects", subjects, |s| {
            Fields::default()
                .text("kind", s.kind)
                .text("apiGroup", s.api_group)
                .text("name", s.name)
                .text("namespace", s.namespace)
                .done()
        })
        .put("roleRef", role)
        .done()
}

fn access_review(r: authz::SelfSubjectAccessReview) -> Value {
    let spec = r.spec.map(|s| {
        let resource = s.resource_attributes.map(|a| {
            Fields::default()
                .text("namespace", a.namespace)
                .text("verb", a.verb)
                .text("group", a.group)
                .text("version", a.version)
                .text("resource", a.resource)
                .text("subresource", a.subresource)
                .text("name", a.name)
                // Selectors are left out: RBAC doesn't evaluate them, so the answer is the one for the whole
                // collection.
                .done()
        });
        let path = s.non_resource_attributes;
        let path = path.map(|a| Fields::default().text("path", a.path).text("verb", a.verb).done());
        Fields::default()
            .put("resourceAttributes", resource)
            .put("nonResourceAttributes", path)
            .done()
    });
    with_metadata(r.metadata).put("spec", spec).done()
}

fn rules_review(r: authz::SelfSubjectRulesReview) -> Value {
    let spec = r.spec.map(|s| Fields::default().text("namespace", s.namespace).done());
    with_metadata(r.metadata).put("spec", spec).done()
}

fn token_request(r: authn::TokenRequest) -> Value {
    let spec = r.spec.map(|s| {
        let bound = s.bound_object_ref.map(|b| {
            Fields::default()
                .text("kind", b.kind)
                .text("apiVersion", b.api_version)
                .text("name", b.name)
                .text("uid", b.u_id)
                .done()
        });
        Fields::default()
            .texts("audiences", s.audiences)
            .number("expirationSeconds", s.expiration_seconds)
            .put("boundObjectRef", bound)
            .done()
    });
    with_metadata(r.metadata).put("spec", spec).done()
}

#[cfg(test)]
mod tests {
    use k8s_pb::apimachinery::pkg::runtime::TypeMeta;

    use super::*;

    fn envelope(version: &str, kind: &str, message: &impl Message) -> Vec<u8> {
        let type_meta = TypeMeta {
            api_version: Some(version.into()),
            kind: Some(kind.into()),
        };
        let raw = Some(message.encode_to_vec());
        let unknown = Unknown {
            type_meta: Some(type_meta),
            raw,
            ..Unknown::default()
        };
        [MAGIC, &unknown.encode_to_vec()].concat()
    }

    #[test]
    fn what_go_writes_for_absent_is_absent() {
        let metadata = meta::ObjectMeta {
            name: Some("a".into()),
            namespace: Some(String::new()),
            creation_timestamp: Some(meta::Time {
                seconds: Some(0),
                nanos: Some(0),
            }),
            ..meta::ObjectMeta::default()
        };
        let map = core::ConfigMap {
            metadata: Some(metadata),
            data: [("k".to_owned(), String::new())].into(),
            binary_data: [("b".to_owned(), vec![0xff])].into(),
            immutable: Some(false),
        };
        let expected = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"},
            "data": {"k": ""}, "binaryData": {"b": "/w=="}, "immutable": false,
        });
        assert_eq!(decode(&envelope("v1", "ConfigMap", &map)), Ok(expected));
    }

    #[test]
    fn managers_are_json_inside_of_the_message() {
        let entry = |raw: &[u8]| meta::ManagedFieldsEntry {
            manager: Some("m".into()),
            operation: Some("Update".into()),
            api_version: Some("v1".into()),
            fields_type: Some("FieldsV1".into()),
            fields_v1: Some(meta::FieldsV1 {
                raw: Some(raw.to_vec()),
            }),
            ..meta::ManagedFieldsEntry::default()
        };
        let managed_fields = vec![entry(br#"{"f:data":{}}"#), entry(b"{")];
        let metadata = meta::ObjectMeta {
            managed_fields,
            ..meta::ObjectMeta::default()
        };
        let map = core::ConfigMap {
            metadata: Some(metadata),
            ..core::ConfigMap::default()
        };
        let decoded = decode(&envelope("v1", "ConfigMap", &map)).unwrap();
        let entries = &decoded["metadata"]["managedFields"];
        assert_eq!(entries[0]["fieldsV1"], json!({"f:data": {}}));
        assert_eq!(
            (&entries[0]["manager"], &entries[1]["fieldsV1"]),
            (&json!("m"), &json!("not JSON"))
        );
    }

    #[test]
    fn unknown_kinds_and_broken_bytes_are_refused() {
        let error = decode(&envelope("v1", "Pod", &core::ConfigMap::default())).unwrap_err();
        assert!(error.contains("Pod"), "{error}");
        assert!(decode(b"k8s\0\xff\xff\xff").is_err());
        assert!(decode(b"{}").is_err());
    }
}
