//! Ownership of an object of a cluster.
//!
//! The label makes watches cheap and proves nothing: Kubernetes copies labels (Service → EndpointSlice) and people
//! copy manifests. The proof is an annotation that names its own object, so a copy of it proves nothing either.

use std::{fmt, sync::Arc};

use farwater_api::{
    Digest,
    objects::{ObjectId, ObjectRef},
};

/// An object's identity as an owned key. Two versions of one kind are the same object. Clones share the text, and
/// comparing two keys compares two texts: an agent has each key in half a dozen maps.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Arc<str>);

/// Separates group, kind, namespace and name. No name contains it, and it sorts before all characters of names, so keys
/// sort by their parts.
const BETWEEN: char = '\0';

impl ObjectKey {
    pub fn new(group: &str, kind: &str, namespace: &str, name: &str) -> Self {
        let parts = [group, kind, namespace, name];
        let mut text = String::with_capacity(parts.iter().map(|part| part.len() + 1).sum());
        for (n, part) in parts.into_iter().enumerate() {
            if n > 0 {
                text.push(BETWEEN);
            }
            // The API server refuses such a name. Here it only must not equal another object's key.
            text.extend(
                part.chars()
                    .map(|c| if c == BETWEEN { char::REPLACEMENT_CHARACTER } else { c }),
            );
        }
        Self(text.into())
    }

    fn part(&self, n: usize) -> &str {
        self.0.split(BETWEEN).nth(n).unwrap_or_default()
    }

    pub fn group(&self) -> &str {
        self.part(0)
    }

    pub fn kind(&self) -> &str {
        self.part(1)
    }

    /// Empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.part(2)
    }

    pub fn name(&self) -> &str {
        self.part(3)
    }

    pub fn id(&self) -> ObjectId<'_> {
        ObjectId {
            group: self.group(),
            kind: self.kind(),
            namespace: self.namespace(),
            name: self.name(),
        }
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectKey({self})")
    }
}

impl From<&ObjectRef> for ObjectKey {
    fn from(object: &ObjectRef) -> Self {
        Self::new(&object.group, &object.kind, &object.namespace, &object.name)
    }
}

/// `Kind.group namespace/name`, without an empty group or namespace.
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ObjectId {
            group,
            kind,
            namespace,
            name,
        } = self.id();
        f.write_str(kind)?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        f.write_str(" ")?;
        if !namespace.is_empty() {
            write!(f, "{namespace}/")?;
        }
        f.write_str(name)
    }
}

/// Value of [`farwater_api::SERVICE_LABEL`]: 40 hex digits of the uid's SHA-256, because names may exceed a label's 63
/// characters.
pub fn service_label(service_uid: &str) -> String {
    let mut hex = Digest::of(service_uid).to_hex();
    hex.truncate(40);
    hex
}

/// Value of [`farwater_api::OWNER_ANNOTATION`]: the service's uid, then the object itself.
pub fn owner_annotation(service_uid: &str, object: &ObjectKey) -> String {
    format!("{service_uid} {object}")
}

/// The uid of the service that `annotation` proves to own `object`. None: the annotation is malformed or names another
/// object, as in a copied manifest.
pub fn proven_owner<'a>(annotation: &'a str, object: &ObjectKey) -> Option<&'a str> {
    let (uid, named) = annotation.split_once(' ')?;
    (!uid.is_empty() && named == object.to_string()).then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_its_parts_and_in_their_order() {
        let parts = ["", "a", "a-b", "a.b", "b"];
        let mut keys = Vec::new();
        for group in parts {
            for kind in parts {
                for namespace in parts {
                    for name in parts {
                        let key = ObjectKey::new(group, kind, namespace, name);
                        assert_eq!(
                            (key.group(), key.kind(), key.namespace(), key.name()),
                            (group, kind, namespace, name)
                        );
                        keys.push(key);
                    }
                }
            }
        }
        assert!(keys.is_sorted());
        keys.dedup();
        assert_eq!(keys.len(), parts.len().pow(4));
        assert_eq!(ObjectKey::new("", "Secret", "a", "b\0c").name(), "b\u{fffd}c");
        assert_ne!(
            ObjectKey::new("", "Secret", "a\0b", "c"),
            ObjectKey::new("", "Secret", "a", "b\0c")
        );
    }

    fn key(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new("apps", "Deployment", namespace, name)
    }

    #[test]
    fn an_annotation_proves_only_the_object_that_it_names() {
        let annotation = owner_annotation("uid-1", &key("web", "a"));
        assert_eq!(annotation, "uid-1 Deployment.apps web/a");
        assert_eq!(proven_owner(&annotation, &key("web", "a")), Some("uid-1"));
        for other in [key("web", "b"), key("shop", "a"), key("", "a")] {
            assert_eq!(proven_owner(&annotation, &other), None);
        }
        for malformed in ["", "uid-1", " Deployment.apps web/a", "Deployment.apps web/a"] {
            assert_eq!(proven_owner(malformed, &key("web", "a")), None, "{malformed:?}");
        }
    }

    #[test]
    fn a_service_label_fits_and_differs() {
        assert_eq!(service_label("a").len(), 40);
        assert_ne!(service_label("a"), service_label("b"));
    }
}
