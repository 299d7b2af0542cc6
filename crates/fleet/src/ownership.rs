//! Who owns an object of a cluster.
//!
//! The label makes watches cheap and proves nothing: Kubernetes copies labels (Service → EndpointSlice) and people
//! copy manifests. The proof is an annotation that names its own object, so a copy of it proves nothing either.

use std::{fmt, ops::Deref, sync::Arc};

use farwater_api::{
    Digest,
    objects::{ObjectId, ObjectRef},
};

/// An object's identity as an owned key. Two versions of one kind are the same object. A clone shares it: an agent knows each object
/// by its key in half a dozen places.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Arc<Identity>);

/// What an [`ObjectKey`] is.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    pub group: String,
    pub kind: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
}

impl ObjectKey {
    pub fn new(group: &str, kind: &str, namespace: &str, name: &str) -> Self {
        let [group, kind, namespace, name] = [group, kind, namespace, name].map(str::to_owned);
        Self(Arc::new(Identity { group, kind, namespace, name }))
    }

    pub fn id(&self) -> ObjectId<'_> {
        ObjectId { group: &self.group, kind: &self.kind, namespace: &self.namespace, name: &self.name }
    }
}

impl Deref for ObjectKey {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        &self.0
    }
}

impl From<&ObjectRef> for ObjectKey {
    fn from(object: &ObjectRef) -> Self {
        Self::new(&object.group, &object.kind, &object.namespace, &object.name)
    }
}

/// `Kind.group namespace/name`, the group and the namespace left out where they are empty.
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        f.write_str(" ")?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// Value of [`farwater_api::SERVICE_LABEL`]: 40 hex digits of the uid's sha256. Names exceed a label's 63 characters.
pub fn service_label(service_uid: &str) -> String {
    let mut hex = Digest::of(service_uid).to_hex();
    hex.truncate(40);
    hex
}

/// Value of [`farwater_api::OWNER_ANNOTATION`]: the service's uid, then the object itself.
pub fn owner_annotation(service_uid: &str, object: &ObjectKey) -> String {
    format!("{service_uid} {object}")
}

/// The uid of the service that `annotation` proves to own `object`; `None` where it is malformed or names another
/// object, as a copied manifest does.
pub fn proven_owner<'a>(annotation: &'a str, object: &ObjectKey) -> Option<&'a str> {
    let (uid, named) = annotation.split_once(' ')?;
    (!uid.is_empty() && named == object.to_string()).then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

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
