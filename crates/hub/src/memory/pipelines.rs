//! Pipelines and the parts of their stages: which change requeues which pipeline.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use farwater_api::{PipelineSpec, pipeline::GateType};
use farwater_fleet::promotion::Promotable;

use crate::{queue::WorkQueue, resources::Name};

/// A part of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    Repository,
    Set,
    Service,
}

/// A gate that asks an external system.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskingGate {
    pub pipeline: Name,
    pub stage: String,
    pub gate: GateType,
}

#[derive(Default)]
pub struct Pipelines {
    pub queue: Arc<WorkQueue<Name>>,
    /// Gates that have to ask now.
    pub asking: Arc<WorkQueue<AskingGate>>,
    /// Pipelines with something to push for people to merge.
    pub proposals: Arc<WorkQueue<Name>>,
    known: RwLock<HashMap<Name, BTreeSet<(Part, String)>>>,
    /// By a repository's uid: the commit and texts for which it was last fetched at once.
    hurried: Mutex<HashMap<String, Promotable>>,
}

impl Pipelines {
    pub fn know(&self, name: &Name, spec: &PipelineSpec) {
        let mut parts = BTreeSet::new();
        for stage in &spec.stages {
            parts.insert((Part::Repository, stage.source_ref.name.clone()));
            parts.extend(
                stage
                    .pull_request
                    .iter()
                    .map(|pull| (Part::Repository, pull.source_ref.name.clone())),
            );
            parts.extend(stage.sets.iter().map(|set| (Part::Set, set.clone())));
            parts.extend(stage.services.iter().map(|service| (Part::Service, service.clone())));
        }
        self.known
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.clone(), parts);
    }

    pub fn forget(&self, name: &Name) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Whether the repository was not yet fetched at once for exactly this.
    pub fn is_first_hurry(&self, uid: &str, promoted: &Promotable) -> bool {
        let mut hurried = self.hurried.lock().unwrap_or_else(PoisonError::into_inner);
        hurried.insert(uid.to_owned(), promoted.clone()).as_ref() != Some(promoted)
    }

    /// The repository is gone.
    pub fn forget_hurry(&self, uid: &str) {
        self.hurried.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// A part of a stage has changed, or its status: requeues the pipelines that have it.
    pub fn note_change(&self, part: Part, changed: &Name) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        // Most fleets have few pipelines, or none.
        for (name, parts) in known.iter().filter(|(name, _)| name.namespace == changed.namespace) {
            if parts.contains(&(part, changed.name.clone())) {
                self.queue.add(name.clone());
            }
        }
    }
}
