//! Inputs of a decision about a set's rollout: members, target and windows.

use std::{collections::BTreeMap, sync::Arc};

use farwater_api::{Digest, ServiceSet, SourceKind};
use farwater_fleet::{
    rollout::{Policy, Resting},
    stamping::Template,
    windows::{Closed, Subject},
};
use farwater_store::{
    Resource, StoreError,
    delivery::{MemberRollout, RestingMembers, RollingMember, awake_members, load_rollout, rolling_members},
};
use jiff::Timestamp;
use serde_json::json;

use super::{
    look::fingerprint,
    row::{Written, read_written, rest_of},
};
use crate::{
    guards::approvals::{OVERRIDE, Override},
    kinds::stamped::check_template,
    memory::sets::Scope,
    notify::Commit,
    replica::Replica,
    resources::Name,
    services::{
        candidates::{Ingredient, find_ingredients},
        parameters::load_versions,
    },
    sets::set_versions,
    sources::SourceSpec,
};

/// The change windows for the members of a set.
pub(super) struct Gate {
    /// Namespace of the set.
    pub(super) namespace: String,
    /// Labels of each of its services.
    pub(super) labels: BTreeMap<String, String>,
    /// The override that lets changes start despite windows; None: there is none.
    pub(super) overridden: Option<Override>,
}

impl Gate {
    pub(super) fn of(name: &Name, resource: &Resource, set: &ServiceSet) -> Self {
        let labels = Template::labels(&name.name, &set.spec);
        let overridden = OVERRIDE.counting(&resource.object, Timestamp::now());
        Self {
            namespace: name.namespace.clone(),
            labels,
            overridden,
        }
    }

    pub(super) fn closed(&self, replica: &Replica, row: &MemberRollout) -> Option<Closed> {
        if self.overridden.is_some() {
            None
        } else {
            self.stated(replica, row)
        }
    }

    /// The closed window of a member, even if it is overridden.
    pub(super) fn stated(&self, replica: &Replica, row: &MemberRollout) -> Option<Closed> {
        let state = replica.memory.clusters.get(&row.cluster_uid)?;
        replica.memory.windows.closed(Subject {
            namespace: &self.namespace,
            name: &row.service_name,
            labels: &self.labels,
            cluster_namespace: &state.namespace,
            cluster_name: &state.name,
            cluster_labels: &state.labels,
        })
    }
}

/// Inputs of a decision.
pub(super) struct Sight {
    pub(super) rows: Vec<RollingMember>,
    /// Number of resting members; they are counted, not read.
    pub(super) resting: Resting,
    /// Digest of the policy.
    pub(super) basis: Digest,
    pub(super) target: Target,
    pub(super) written: Option<String>,
    pub(super) before: Written,
}

impl Sight {
    /// Reads the members that don't rest, or all members if the others may not be enough for a decision.
    pub(super) async fn load(
        replica: &Replica,
        name: &Name,
        (resource, set): (&Resource, &ServiceSet),
        policy: &Policy,
        scope: &Scope,
    ) -> Result<Self, StoreError> {
        // Another version of the hub may let other members rest; raise this number when the rules change.
        const EDITION: u32 = 1;
        let basis = Digest::of_json(&json!([EDITION, set.spec.rollout]));
        if let Scope::Some(clusters) = scope
            && replica.memory.sets.is_read(name)
        {
            let clusters: Vec<&str> = clusters.iter().map(String::as_str).collect();
            let read = awake_members(&mut *replica.store.tables().await?, &resource.uid, &clusters).await?;
            let sight = Self::of(replica, name, (resource, set), read, basis).await?;
            let states = sight
                .rows
                .iter()
                .map(|member| replica.memory.clusters.get(&member.row.cluster_uid));
            let labels: Vec<_> = states
                .map(|state| state.map(|state| Arc::clone(&state.labels)).unwrap_or_default())
                .collect();
            let asked = (&sight.before.state, sight.target.digest);
            let suffice = sight
                .resting
                .suffice(policy, asked, labels.iter().map(|labels| &**labels));
            if (suffice && sight.before.policy == Some(basis)) || sight.resting == Resting::default() {
                return Ok(sight);
            }
        }
        let rows = rolling_members(&mut *replica.store.tables().await?, &resource.uid).await?;
        Self::of(replica, name, (resource, set), (rows, Vec::new()), basis).await
    }

    /// The target is loaded after the members, so that the sources already had what the members have.
    pub(super) async fn of(
        replica: &Replica,
        name: &Name,
        (resource, set): (&Resource, &ServiceSet),
        (rows, counted): (Vec<RollingMember>, Vec<RestingMembers>),
        basis: Digest,
    ) -> Result<Self, StoreError> {
        let mut resting = Resting::default();
        for RestingMembers { rests, step, number } in counted {
            if let (Some(rest), Ok(step), Ok(number @ 1..)) = (rest_of(rests), step.try_into(), number.try_into()) {
                resting.add(step, rest, number);
            }
        }
        let written = load_rollout(&mut *replica.store.tables().await?, &resource.uid).await?;
        let before = written
            .as_deref()
            .map(|text| read_written(name, text))
            .transpose()?
            .unwrap_or_default();
        let target = Target::find(replica, name, set).await?;
        Ok(Self {
            rows,
            resting,
            basis,
            target,
            written,
            before,
        })
    }
}

/// The target of all members of a set.
pub(super) struct Target {
    /// Fingerprints of its services' sources, one per variant.
    pub(super) sources: Vec<String>,
    /// Digest of all that its members share.
    pub(super) digest: Digest,
    /// Revision of the template's own source; empty: it has none yet.
    pub(super) revision: String,
    /// Commit of the first source that is a Git repository. None: there is none, or the set is pinned.
    pub(super) commit: Option<Commit>,
}

impl Target {
    pub(super) async fn find(replica: &Replica, name: &Name, set: &ServiceSet) -> Result<Self, StoreError> {
        let (mut sources, mut revision, mut commit, mut specs) = (Vec::new(), None, None, Vec::new());
        for (_, template) in Template::variants(&set.spec) {
            let Ok(spec) = check_template(&template) else { continue };
            let ingredients = find_ingredients(replica, &name.namespace, &spec).await?;
            revision.get_or_insert_with(|| {
                ingredients
                    .first()
                    .map(Ingredient::describe_revision)
                    .unwrap_or_default()
            });
            commit = commit.or_else(|| ingredients.iter().find_map(commit_of));
            let found = fingerprint(&ingredients);
            if !sources.contains(&found) {
                sources.push(found);
            }
            specs.push(spec);
        }

        let handed = load_versions(replica, &name.namespace, &specs).await?;
        let handed: Vec<_> = handed
            .iter()
            .map(|input| json!([input.key.kind.as_str(), input.key.name, input.version]))
            .collect();

        let spec = &set.spec;
        // A pinned version does not change with its sources, so they are no part of the digest.
        let content = match &spec.pin {
            Some(pin) => {
                let uid = set.metadata.uid.as_deref().unwrap_or_default();
                revision = set_versions::load_revision(replica, uid, pin.version).await?;
                commit = None;
                json!({"version": pin.version})
            }
            None => json!(sources),
        };

        let digest = Digest::of_json(&json!([
            spec.template,
            spec.parameters,
            spec.overrides,
            content,
            handed
        ]));
        Ok(Self {
            sources,
            digest,
            revision: revision.unwrap_or_default(),
            commit,
        })
    }
}

/// `main@1f3870be…`
pub(super) fn describe_commit(commit: &Commit) -> String {
    match commit.reference.as_str() {
        "" => commit.commit.clone(),
        reference => format!("{reference}@{}", commit.commit),
    }
}

fn commit_of(ingredient: &Ingredient) -> Option<Commit> {
    let found = ingredient
        .found
        .as_ref()
        .filter(|_| ingredient.reference.kind == SourceKind::GitRepository)?;
    let SourceSpec::Git(spec) = &found.object.spec else {
        return None;
    };
    let revision = found.revision.as_ref()?;
    Some(Commit {
        repository: spec.url.clone(),
        reference: revision.reference.clone(),
        commit: revision.commit.clone(),
    })
}
