//! Pipelines, and what their stages are made of: whose change has which pipeline looked at.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use farwater_api::{PipelineSpec, pipeline::GateType};
use farwater_fleet::promotion::Promotable;

use super::{queue::WorkQueue, resources::Name};

/// What a stage has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    Repository,
    Set,
    Service,
}

/// A gate that asks others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskingGate {
    pub pipeline: Name,
    pub stage: String,
    pub gate: GateType,
}

#[derive(Default)]
pub struct Pipelines {
    pub queue: Arc<WorkQueue<Name>>,
    /// Those that are to ask now.
    pub asking: Arc<WorkQueue<AskingGate>>,
    /// Those with something that is pushed for people to merge.
    pub proposals: Arc<WorkQueue<Name>>,
    known: RwLock<HashMap<Name, BTreeSet<(Part, String)>>>,
    /// By a repository's uid: for what it was last told to hurry.
    hurried: Mutex<HashMap<String, Promotable>>,
}

impl Pipelines {
    pub fn know(&self, name: &Name, spec: &PipelineSpec) {
        let mut parts = BTreeSet::new();
        for stage in &spec.stages {
            parts.insert((Part::Repository, stage.source_ref.name.clone()));
            parts.extend(stage.pull_request.iter().map(|pull| (Part::Repository, pull.source_ref.name.clone())));
            parts.extend(stage.sets.iter().map(|set| (Part::Set, set.clone())));
            parts.extend(stage.services.iter().map(|service| (Part::Service, service.clone())));
        }
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), parts);
    }

    pub fn forget(&self, name: &Name) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Whether a repository was not told yet to hurry for exactly this.
    pub fn is_first_hurry(&self, uid: &str, promoted: &Promotable) -> bool {
        let mut hurried = self.hurried.lock().unwrap_or_else(PoisonError::into_inner);
        hurried.insert(uid.to_owned(), promoted.clone()).as_ref() != Some(promoted)
    }

    /// A repository that is gone is never told again.
    pub fn forget_hurry(&self, uid: &str) {
        self.hurried.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// Something of what a stage may be made of has changed, its status too.
    pub fn note(&self, part: Part, changed: &Name) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        // In most fleets there are few or none.
        for (name, parts) in known.iter().filter(|(name, _)| name.namespace == changed.namespace) {
            if parts.contains(&(part, changed.name.clone())) {
                self.queue.add(name.clone());
            }
        }
    }
}
