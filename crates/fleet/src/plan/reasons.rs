//! Why the plan leaves an object out, keeps it or forgets it.

use std::fmt;

use farwater_api::objects::ObjectRef;

use super::{ObjectKey, options::BadOption};
use crate::placement::some_of;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    pub object: ObjectRef,
    pub wave: i32,
    pub reason: SkipReason,
}

/// Why an object of the source is not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    Refused(Refusal),
    Waiting(Wait),
    /// It is to stay as it is.
    Left(Left),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// The annotation in the source.
    Source(String),
    /// The annotation of the live object.
    Live(String),
    /// It is only to be created, and existed.
    Exists,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    NamespaceNotAllowed {
        namespace: String,
        allowed: Vec<String>,
    },
    KindNotAllowed,
    KindDenied,
    Duplicate {
        first: String,
        second: String,
    },
    OwnedBy {
        service: String,
        uid: String,
    },
    /// It exists, belongs to no service, and is not to be adopted.
    Unowned,
    Forbidden(String),
    Malformed(String),
    /// One of its annotations has an invalid value.
    BadOption(BadOption),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The cluster doesn't serve the kind.
    Kind,
    /// The live object is being deleted.
    Deletion,
    Lookup(String),
    /// Another writer keeps changing it back. None: the writer is unknown.
    Fight(Option<Box<Writer>>),
}

/// The writer of an object and the time: an entry of its `managedFields`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    pub manager: String,
    /// `Update` or `Apply`.
    pub operation: String,
    pub subresource: Option<String>,
    /// RFC 3339, in UTC.
    pub time: Option<String>,
}

/// `kube-controller-manager (scale)`. For an update of the object itself there is no suffix.
impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.manager)?;
        match &self.subresource {
            Some(subresource) => write!(f, " ({subresource})"),
            None if self.operation == "Apply" => f.write_str(" (Apply)"),
            None => Ok(()),
        }
    }
}

impl SkipReason {
    /// Whether the cluster lacks what the source states. A fought-over object exists and was applied, and an excluded
    /// object is as it should be.
    pub fn is_unapplied(&self) -> bool {
        !matches!(self, Self::Waiting(Wait::Fight(_)) | Self::Left(_))
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Waiting(wait) => wait.fmt(f),
            Self::Left(left) => left.fmt(f),
        }
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(annotation) => write!(f, "left alone: its annotation {annotation} says so"),
            Self::Live(annotation) => write!(f, "left alone: {annotation}, on the live object, says so"),
            Self::Exists => f.write_str("left alone: it existed, and is only to be made where it is missing"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NamespaceNotAllowed { namespace, allowed } => {
                write!(
                    f,
                    "the grant does not allow namespace {namespace:?}; it allows {}",
                    some_of(allowed)
                )
            }
            Self::KindNotAllowed => f.write_str("the grant's allowedKinds do not name this kind"),
            Self::KindDenied => f.write_str("the grant's deniedKinds name this kind"),
            Self::Duplicate { first, second } => write!(f, "stated twice: in {first} and in {second}"),
            Self::OwnedBy { service, .. } => write!(f, "owned by service {service}"),
            Self::Unowned => f.write_str("it exists, belongs to no service, and the adopt policy is Never"),
            Self::BadOption(bad) => bad.fmt(f),
            Self::Forbidden(message) | Self::Malformed(message) => f.write_str(message),
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind => f.write_str(
                "waits for its kind, which the cluster does not serve: check apiVersion and kind, or install its definition",
            ),
            Self::Deletion => f.write_str("waits for the deletion of the object that has its name"),
            Self::Lookup(message) => write!(f, "waits for a look-up: {message}"),
            Self::Fight(writer) => {
                let who = writer.as_ref().map_or_else(|| "something else".to_owned(), ToString::to_string);
                write!(f, "{who} keeps changing it back")?;
                if let Some(time) = writer.as_ref().and_then(|writer| writer.time.as_ref()) {
                    write!(f, " (last at {time})")?;
                }
                f.write_str(
                    ": repaired less often until that stops; leave it the field (farwater.dev/ignore-differences) or the object (farwater.dev/drift: Report)",
                )
            }
        }
    }
}

/// Why an object that left the source stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keep {
    PruneOff,
    IncompleteRender,
    /// An annotation of the live object protects it.
    Protected(String),
    /// A protected object would be deleted with it.
    Holds(ObjectKey),
    /// Stated objects would be deleted with it: names some of them, or their number per service.
    HoldsStated(String),
    /// Like [`Self::HoldsStated`], for services that are being removed with their objects.
    HoldsLeaving(String),
    /// It is being deleted already.
    Deleting,
    Lookup(String),
    /// Another service states it and takes it over.
    Claimed(String),
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PruneOff => f.write_str("left the source and stays: prune is off"),
            Self::Protected(annotation) => write!(f, "left the source and stays: its annotation {annotation} says so"),
            Self::Holds(held) => write!(
                f,
                "left the source and stays: {held}, which is protected, would go with it"
            ),
            Self::HoldsStated(what) => write!(f, "left the source and stays: {what} would be deleted with it"),
            Self::HoldsLeaving(what) => write!(f, "left the source and waits until {what} are gone"),
            Self::IncompleteRender => f.write_str("not in the source as far as it could be read: stays"),
            Self::Deleting => f.write_str("left the source and is being deleted"),
            Self::Lookup(message) => write!(f, "left the source and stays until it can be looked up: {message}"),
            Self::Claimed(service) => write!(f, "left the source; service {service} takes it over"),
        }
    }
}

/// Why an entry leaves the inventory without a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forget {
    Gone,
    /// Another object has its name now.
    Replaced,
    /// The live object's annotation doesn't prove that it is ours.
    NotOurs,
}
