//! Kinds as the API server serves them, and the paths of their objects.

use farwater_api::objects::ObjectRef;
use farwater_fleet::plan::{GroupVersionKind, Scope};

/// How the objects of a kind are served.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub namespaced: bool,
}

impl Resource {
    pub fn scope(&self) -> Scope {
        if self.namespaced {
            Scope::Namespaced
        } else {
            Scope::Cluster
        }
    }

    pub fn gvk(&self) -> GroupVersionKind {
        GroupVersionKind {
            group: self.group.clone(),
            version: self.version.clone(),
            kind: self.kind.clone(),
        }
    }

    /// Path of the collection. An empty namespace means all namespaces.
    pub fn collection(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if self.namespaced && !namespace.is_empty() {
            format!("{root}/namespaces/{}/{}", escape(namespace), self.plural)
        } else {
            format!("{root}/{}", self.plural)
        }
    }

    pub fn path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{}", self.collection(namespace), escape(name))
    }

    /// Path of an object of this kind.
    pub fn path_of(&self, object: &ObjectRef) -> String {
        self.path(&object.namespace, &object.name)
    }
}

/// Percent-encodes all characters that a Kubernetes name can contain and a path segment can't.
pub fn escape(text: &str) -> String {
    let out = percent_encode(text, b"-._~:");
    // A segment of dots would be another path.
    if out == "." || out == ".." {
        out.replace('.', "%2E")
    } else {
        out
    }
}

/// Keeps letters, digits and the bytes in `kept`.
pub(super) fn percent_encode(text: &str, kept: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || kept.contains(&byte) {
            out.push(byte as char);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
