//! The kinds that are served: ours from their Rust types, the built-in ones from Kubernetes' published types.

mod custom;
pub mod depth;
pub mod managers;
pub mod meta;
pub mod published;
pub mod removal;
pub mod schema;
pub mod selector;
pub mod stamped;
pub mod status;
pub mod strategy;
pub mod views;

use std::{collections::BTreeMap, sync::LazyLock};

use farwater_fieldmanager::FieldManager;
use farwater_store::Kind;
use k8s_openapi::{
    Metadata, Resource,
    api::{
        authentication::v1::{SelfSubjectReview, TokenRequest},
        authorization::v1::{SelfSubjectAccessReview, SelfSubjectRulesReview},
        coordination::v1::Lease,
        core::v1::{ConfigMap, Event, Namespace, Secret, ServiceAccount},
        events::v1::Event as NewEvent,
        rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ListMeta, ObjectMeta, Status},
};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

pub use custom::referenced;
use custom::{REFERENCE, custom, inline};
use meta::NameRule;
use selector::Selectable;
use views::View;

/// The format of `metav1.MicroTime` in the schemas that requests are read by.
pub const MICRO_TIME: &str = "micro-time";

/// One column of a table: of our kinds by JSONPath, of built-in kinds by name (see `table`).
#[derive(Clone, Debug)]
pub struct Column {
    pub name: String,
    pub kind: String,
    pub description: String,
    pub priority: i64,
    pub path: String,
}

#[derive(Clone, Debug)]
pub struct Subresource {
    pub name: &'static str,
    pub verbs: &'static [&'static str],
    /// Group, version and kind of the request and the answer. None: the resource's own kind.
    pub kind: Option<(&'static str, &'static str, &'static str)>,
}

#[derive(Clone, Debug)]
pub struct ResourceKind {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    /// Treated as a custom resource: structural validation, defaults, no strategic merge patch.
    pub ours: bool,
    /// False: only `create` or only `list` exists, and nothing is kept.
    pub stored: bool,
    pub verbs: &'static [&'static str],
    pub subresources: Vec<Subresource>,
    pub names: NameRule,
    /// The whole object's schema without references.
    pub schema: Value,
    pub schema_name: String,
    /// Columns of our kinds; empty for built-in kinds.
    pub columns: Vec<Column>,
    /// The fields that field selectors may name.
    pub fields: Selectable,
    /// A delete is answered with the object instead of a Status.
    pub answers_deleted: bool,
    /// PUT creates a missing object.
    pub created_by_update: bool,
    /// PUT may omit the version that it replaces.
    pub updated_blindly: bool,
    /// Set for a kind that shows what another kind stores.
    pub view: Option<&'static View>,
    pub store: Kind,
    /// Owners of fields, by subresource; the resource itself has the empty name.
    pub managers: BTreeMap<&'static str, FieldManager>,
}

impl ResourceKind {
    /// The group that errors about an object's fields name.
    pub fn stored_group(&self) -> &str {
        self.view.map_or(&self.group, |view| view.stored_group)
    }

    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Whether objects are stored under this kind.
    pub fn is_kept(&self) -> bool {
        self.stored && self.view.is_none()
    }

    pub fn is_listed(&self) -> bool {
        self.verbs.contains(&"list")
    }

    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    pub fn list_schema_name(&self) -> String {
        format!("{}List", self.schema_name)
    }
}

pub struct Registry {
    pub kinds: Vec<ResourceKind>,
    /// Every schema by its name, as in `components.schemas`.
    pub definitions: Map<String, Value>,
}

/// The kinds don't change while the program runs.
pub static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::build);

const STORED_VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
/// In Kubernetes' order for custom resources.
const CUSTOM_VERBS: &[&str] = &[
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "create",
    "update",
    "watch",
];
/// Without `deletecollection`.
const NAMESPACE_VERBS: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];
const META_FIELDS: &[&str] = &["metadata.name", "metadata.namespace"];
const CLUSTER_FIELDS: &[&str] = &["metadata.name"];
const SECRET_FIELDS: &[&str] = &["metadata.name", "metadata.namespace", "type"];
const NAMESPACE_FIELDS: &[&str] = &["metadata.name", "status.phase"];
const EVENT_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];
const NEW_EVENT_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];
const STATUS: Subresource = Subresource {
    name: "status",
    verbs: &["get", "patch", "update"],
    kind: None,
};

impl Registry {
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&ResourceKind> {
        self.kinds
            .iter()
            .find(|k| k.group == group && k.version == version && k.plural == plural)
    }

    pub fn stored_as(&self, kind: &Kind) -> Option<&ResourceKind> {
        self.kinds.iter().find(|k| k.stored && k.store == *kind)
    }

    /// Group and version of everything served, the core group first.
    pub fn groups(&self) -> Vec<(&str, &str)> {
        let mut groups: Vec<(&str, &str)> = Vec::new();
        for kind in &self.kinds {
            let group = (kind.group.as_str(), kind.version.as_str());
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        groups
    }

    pub fn in_group<'a>(&'a self, group: &'a str, version: &'a str) -> impl Iterator<Item = &'a ResourceKind> {
        self.kinds
            .iter()
            .filter(move |k| k.group == group && k.version == version)
    }

    fn build() -> Self {
        let mut schemas = SchemaSettings::openapi3().into_generator();
        for name in [
            schemas.subschema_for::<ObjectMeta>(),
            schemas.subschema_for::<ListMeta>(),
            schemas.subschema_for::<Status>(),
            schemas.subschema_for::<DeleteOptions>(),
        ] {
            drop(name);
        }

        let mut kinds = built_in_kinds(&mut schemas);
        drop(schemas.subschema_for::<TokenRequest>());
        let mut definitions = schemas.take_definitions(false);
        published::complete(&mut definitions);
        for kind in &mut kinds {
            kind.schema = inline(
                &json!({"$ref": format!("{REFERENCE}{}", kind.schema_name)}),
                &definitions,
                0,
            );
        }

        for crd in farwater_api::custom_resource_definitions() {
            kinds.push(custom(&crd, &mut definitions));
        }
        kinds.push(custom(&farwater_api::granted_cluster::definition(), &mut definitions).computed());
        published::add_lists(&kinds, &mut definitions);
        let kinds = kinds.into_iter().map(ResourceKind::with_managers);
        Self {
            kinds: kinds.collect(),
            definitions,
        }
    }

    /// Schema of the kind that is sent to a subresource such as `serviceaccounts/token`, without references.
    pub fn body_schema(&self, schema_name: &str) -> Value {
        inline(
            &json!({"$ref": format!("{REFERENCE}{schema_name}")}),
            &self.definitions,
            0,
        )
    }
}

/// The table of Kubernetes' kinds that the hub serves.
fn built_in_kinds(schemas: &mut SchemaGenerator) -> Vec<ResourceKind> {
    vec![
        built_in::<ConfigMap>(schemas).short("cm").namespaced(),
        built_in::<Event>(schemas)
            .short("ev")
            .namespaced()
            .names(NameRule::PathSegment)
            .fields(EVENT_FIELDS)
            .created_by_update(),
        built_in::<Namespace>(schemas)
            .short("ns")
            .names(NameRule::Label)
            .answers_deleted()
            .fields(NAMESPACE_FIELDS)
            .verbs(NAMESPACE_VERBS)
            .with(Subresource {
                name: "finalize",
                verbs: &["update"],
                kind: None,
            })
            .with(STATUS),
        built_in::<Secret>(schemas).namespaced().fields(SECRET_FIELDS),
        built_in::<ServiceAccount>(schemas)
            .short("sa")
            .namespaced()
            .answers_deleted()
            .with(Subresource {
                name: "token",
                verbs: &["create"],
                kind: Some(("authentication.k8s.io", "v1", "TokenRequest")),
            }),
        built_in::<Lease>(schemas)
            .namespaced()
            .created_by_update()
            .updated_knowingly(),
        built_in::<NewEvent>(schemas)
            .short("ev")
            .namespaced()
            .fields(NEW_EVENT_FIELDS)
            .created_by_update()
            .shows(&views::EVENTS, Kind::new("events", "")),
        built_in::<ClusterRoleBinding>(schemas)
            .names(NameRule::PathSegment)
            .created_by_update(),
        built_in::<ClusterRole>(schemas)
            .names(NameRule::PathSegment)
            .created_by_update(),
        built_in::<RoleBinding>(schemas)
            .namespaced()
            .names(NameRule::PathSegment)
            .created_by_update(),
        built_in::<Role>(schemas)
            .namespaced()
            .names(NameRule::PathSegment)
            .created_by_update(),
        built_in::<SelfSubjectAccessReview>(schemas).virtual_kind(),
        built_in::<SelfSubjectRulesReview>(schemas).virtual_kind(),
        built_in::<SelfSubjectReview>(schemas).virtual_kind(),
    ]
}

fn built_in<T: Resource + Metadata<Ty = ObjectMeta> + JsonSchema>(schemas: &mut SchemaGenerator) -> ResourceKind {
    drop(schemas.subschema_for::<T>());
    ResourceKind {
        group: T::GROUP.into(),
        version: T::VERSION.into(),
        kind: T::KIND.into(),
        plural: T::URL_PATH_SEGMENT.into(),
        singular: T::KIND.to_lowercase(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced: false,
        ours: false,
        stored: true,
        verbs: STORED_VERBS,
        subresources: Vec::new(),
        names: NameRule::Subdomain,
        schema: Value::Null,
        schema_name: T::schema_name().into_owned(),
        columns: Vec::new(),
        fields: Selectable {
            fields: META_FIELDS,
            common: true,
        },
        answers_deleted: false,
        created_by_update: false,
        updated_blindly: true,
        view: None,
        store: Kind::new(T::URL_PATH_SEGMENT, T::GROUP),
        managers: BTreeMap::new(),
    }
}

impl ResourceKind {
    fn short(mut self, name: &str) -> Self {
        self.short_names.push(name.into());
        self
    }

    fn namespaced(mut self) -> Self {
        self.namespaced = true;
        self
    }

    fn names(mut self, rule: NameRule) -> Self {
        self.names = rule;
        self
    }

    fn fields(mut self, fields: &'static [&'static str]) -> Self {
        self.fields = Selectable { fields, common: false };
        self
    }

    fn with(mut self, subresource: Subresource) -> Self {
        self.subresources.push(subresource);
        self
    }

    fn answers_deleted(mut self) -> Self {
        self.answers_deleted = true;
        self
    }

    fn created_by_update(mut self) -> Self {
        self.created_by_update = true;
        self
    }

    fn updated_knowingly(mut self) -> Self {
        self.updated_blindly = false;
        self
    }

    fn shows(mut self, view: &'static View, stored: Kind) -> Self {
        self.view = Some(view);
        self.store = stored;
        self
    }

    fn verbs(mut self, verbs: &'static [&'static str]) -> Self {
        self.verbs = verbs;
        self
    }

    /// Made when it is read, and not stored.
    fn computed(mut self) -> Self {
        self.stored = false;
        self.verbs = &["get", "list"];
        self.subresources.clear();
        self.categories.clear();
        self
    }

    fn virtual_kind(mut self) -> Self {
        self.stored = false;
        self.verbs = &["create"];
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns<'a>(schema: &'a Value, found: &mut Vec<&'a str>) {
        match schema {
            Value::Object(map) => {
                found.extend(map.get("pattern").and_then(Value::as_str));
                map.values().for_each(|v| patterns(v, found));
            }
            Value::Array(items) => items.iter().for_each(|v| patterns(v, found)),
            _ => {}
        }
    }

    #[test]
    fn every_pattern_of_our_kinds_compiles() {
        let mut found = Vec::new();
        REGISTRY.kinds.iter().for_each(|k| patterns(&k.schema, &mut found));
        assert!(!found.is_empty());
        for pattern in found {
            regex::Regex::new(pattern).unwrap();
        }
    }

    #[test]
    fn kinds_are_found_by_group_version_and_plural() {
        let kind = |group, plural| {
            let found = REGISTRY.find(group, if group == "farwater.dev" { "v1alpha1" } else { "v1" }, plural);
            found.map(|k| (k.kind.as_str(), k.namespaced))
        };
        assert_eq!(kind("", "secrets"), Some(("Secret", true)));
        assert_eq!(
            kind("rbac.authorization.k8s.io", "clusterroles"),
            Some(("ClusterRole", false))
        );
        assert_eq!(
            kind("farwater.dev", "servicedeployments"),
            Some(("ServiceDeployment", true))
        );
        assert_eq!(kind("farwater.dev", "clustergrants"), Some(("ClusterGrant", false)));
        assert_eq!(kind("", "pods"), None);
    }

    #[test]
    fn schemas_hold_no_references() {
        for kind in &REGISTRY.kinds {
            assert!(!kind.schema.to_string().contains("$ref"), "{}", kind.kind);
            let metadata = &kind.schema["properties"]["metadata"]["properties"];
            assert_eq!(
                metadata["labels"]["additionalProperties"]["type"], "string",
                "{}",
                kind.kind
            );
        }
    }
}
