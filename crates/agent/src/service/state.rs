//! What a service's task remembers between two attempts, grouped by the phases that write it.

use std::collections::{BTreeMap, BTreeSet};

use farwater_api::{
    Digest,
    objects::{ObjectRef, Outcome},
    service_deployment::{Contents, HeldPrune},
};
use farwater_fleet::plan::{Live, ObjectKey, veil::Veil};
use tokio::time::Instant;

use super::{Status, barrier::Barrier};

/// How far the newest entry has come.
#[derive(Default)]
pub(super) struct Progress {
    /// The last attempted entry, with outcome and message.
    pub last: Option<(Digest, Outcome, String)>,
    /// The last begun entry: no window stops it any more.
    pub begun: Option<Digest>,
    /// Whether everything of the last attempted entry has been healthy.
    pub arrived: bool,
    /// Where the last attempt stopped: later waves wait. None: it did not stop.
    pub barrier: Option<Barrier>,
    /// When to check again whether a change that waits for a window may begin.
    pub window_at: Option<Instant>,
}

/// The service's objects as the cluster last showed them.
#[derive(Default)]
pub(super) struct Observed {
    /// The known live objects, kept up to date by watches.
    pub live: BTreeMap<ObjectKey, Live>,
    pub statuses: BTreeMap<ObjectKey, Status>,
    /// Notes from annotations that appear in no other status field.
    pub remarks: BTreeMap<ObjectKey, String>,
    /// Objects that a removal has left in the cluster.
    pub left_behind: BTreeSet<ObjectRef>,
}

/// Facts about the last applied objects.
#[derive(Default)]
pub(super) struct LastApplied {
    /// They contain values from the cluster's Secrets.
    pub reads_cluster: bool,
    /// Secret values in them.
    pub veil: Veil,
    /// Those whose drift is ignored.
    pub unobserved: BTreeSet<ObjectKey>,
}

/// Deletions that wait for an approval.
#[derive(Default)]
pub(super) struct Held {
    pub prune: Option<HeldPrune>,
    /// The contents of held namespaces and definitions, and the plan that they were counted for.
    pub previewed: Option<(Digest, Vec<Contents>)>,
}
