//! Rollouts of ServiceSets: which member's newer content and spec count, and when.
//!
//! A member's service states its new spec at once, but that spec counts only when the member's turn has come. Until
//! then its entry is made of the earlier assignment and the spec that belongs to it. One decision,
//! `fleet::rollout::decide`, says whose turn it is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use farwater_api::{
    Digest, RolloutPhase, ServiceDeployment, ServiceDeploymentSpec, ServiceSet, SourceKind,
    notification_rule::EventKind,
    service_set::{MAX_SURVEYED_MEMBERS, Progress, RolloutStatus, RolloutSurvey},
};
use farwater_fleet::{
    assignment::{Candidate, Why},
    conditions::{holding, whole_seconds},
    notify::{RolloutNews, member_state},
    parameters::is_handed,
    rollout::{
        ChangeId, Clock, Cluster, Content, Counted, Counts, Decision, Evidence, Member, Outlook, Policy, Published,
        Reach, Rest, Resting, Standing, Stands, State, Track, decide, place, progress, standing, survey, worst,
    },
    stamping::{Template, template_digest},
    windows::{Closed, Subject},
};
use farwater_store::{
    Key, Resource, StoreError, Tx,
    delivery::{
        MemberRollout, MemberVersions, RestingMembers, RollingMember, awake_members, hold_spec, load_parameters,
        load_rollout, page_of_told_members, retain_documents, rolling_members, save_look, save_rest, save_rollout,
        save_specs, save_track, told_members, track_of_service,
    },
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    approvals::{OVERRIDE, Said},
    candidates::{Ingredient, find_ingredients},
    dependencies,
    pipelines::Part,
    resources::{self, Name},
    set_versions::{self, Note},
    sets::Scope,
    sources::SourceSpec,
    stamp_services::cluster_name,
    track_clusters::silence_deadline,
    versions,
};
use crate::{
    apiserver::{check_template, labels},
    delivery::{
        Delivery,
        parameters::{Newest, load_versions},
    },
    notify::{Commit, MemberNews, Postings, RolloutChange},
};

/// Stored state of a set's rollout.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Written {
    state: State,
    outlook: Outlook,
    /// Counts that were notified last.
    counts: Counts,
    /// Digest of the policy by which members rest.
    policy: Option<Digest>,
}

fn read<T: DeserializeOwned>(row: &MemberRollout, what: &str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Row {
        what: format!("{what} of service {}, a member of a set", row.service_uid),
        problem: error.to_string(),
    })
}

fn read_some<T: DeserializeOwned>(row: &MemberRollout, what: &str, text: &str) -> Result<Option<T>, StoreError> {
    if text.is_empty() { Ok(None) } else { read(row, what, text).map(Some) }
}

/// Returns a service that is not being deleted, with the spec that counts now.
pub fn effective(mut service: ServiceDeployment, row: Option<&MemberRollout>) -> Result<ServiceDeployment, StoreError> {
    let Some(row) = row.filter(|row| !row.held_spec.is_empty()) else { return Ok(service) };
    let spec: ServiceDeploymentSpec = read(row, "held spec", &row.held_spec)?;
    let own = std::mem::replace(&mut service.spec, spec);
    service.spec.suspend = own.suspend;
    service.spec.suspension = own.suspension;
    service.spec.pin = own.pin;
    service.spec.deletion_policy = own.deletion_policy;
    Ok(service)
}

/// Returns the spec to keep while `new` waits for its turn; empty: nothing has to be kept.
pub fn spec_to_hold(row: &MemberRollout, old: &Value, new: &Value) -> Result<String, StoreError> {
    let track: Track = read(row, "track", &row.track)?;
    if track.released.is_none() {
        return Ok(String::new());
    }
    let counts = if row.held_spec.is_empty() { old.clone() } else { read(row, "held spec", &row.held_spec)? };
    Ok(if template_digest(&counts) == template_digest(new) { String::new() } else { counts.to_string() })
}

/// `parameters`: MAC of the parameter document. It is part of the change only if the parameters don't come from the
/// spec alone.
fn change(
    spec: &ServiceDeploymentSpec,
    candidate: &Candidate,
    parameters: Option<Digest>,
) -> Result<ChangeId, StoreError> {
    let template = template_digest(&serde_json::to_value(spec).map_err(StoreError::abort)?);
    let Candidate { bundle, path, origin, configuration, .. } = candidate;
    let parameters = parameters.filter(|_| is_handed(spec));
    Ok(ChangeId::of(&Content { template, bundle: *bundle, path, origin: origin.as_deref(), parameters, configuration }))
}

/// Describes what an entry to apply was made of, as a member's row stores it.
pub fn published(
    spec: &ServiceDeploymentSpec,
    assigned: &Candidate,
    entry: Digest,
    parameters: Option<Digest>,
) -> Result<String, StoreError> {
    let published = Published { entry, change: change(spec, assigned, parameters)? };
    serde_json::to_string(&published).map_err(StoreError::abort)
}

/// MACs of a member's parameter documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Documents {
    /// The document that counts. None: the newest one counts, or the spec alone has all parameters.
    counts: Option<Digest>,
    /// Documents of the changes that the member was released for and may be rolled back to.
    of_changes: BTreeMap<ChangeId, Digest>,
}

impl Documents {
    fn of(row: &MemberRollout) -> Result<Self, StoreError> {
        Ok(read_some(row, "documents", &row.documents)?.unwrap_or_default())
    }

    fn write(&self) -> Result<String, StoreError> {
        if *self == Self::default() {
            return Ok(String::new());
        }
        serde_json::to_string(self).map_err(StoreError::abort)
    }

    fn macs(&self) -> BTreeSet<String> {
        self.counts.iter().chain(self.of_changes.values()).map(Digest::to_string).collect()
    }
}

/// Returns the MAC of the document that counts for a member; None: the newest one counts.
pub fn counting_document(row: &MemberRollout) -> Result<Option<Digest>, StoreError> {
    Ok(Documents::of(row)?.counts)
}

/// Fingerprint of what the sources of a service have.
fn fingerprint(ingredients: &[Ingredient]) -> String {
    let one = |ingredient: &Ingredient| {
        let found = ingredient.found.as_ref()?;
        let revision = found.revision.as_ref().map(|revision| {
            let taken = &revision.taken;
            json!([
                revision.reference,
                revision.commit,
                taken.submodules,
                taken.lfs,
                taken.artifact,
                taken.configuration
            ])
        });
        let chart = found.chart.as_ref().map(|chart| json!([chart.chart, chart.wanted, chart.version, chart.digest]));
        Some(json!([found.object.uid, revision, chart]))
    };
    let all: Vec<Option<Value>> = ingredients.iter().map(one).collect();
    Digest::of_json(&json!(all)).to_hex()
}

/// Observed state of a member's service in its rollout.
pub struct Look {
    row: MemberRollout,
    /// Number of the rollout that released the current assignment.
    rollout: u64,
    wanted: Option<ChangeId>,
    track: Track,
    looked_at: String,
    newest: Newest,
    documents: Documents,
    back: Option<Back>,
}

/// An earlier state that a member is rolled back to.
struct Back {
    candidate: Candidate,
    /// The spec of that state; empty: the service's own.
    spec: String,
    /// MAC of its parameters in that state.
    document: Option<Digest>,
}

/// Inputs of [`Look::of`].
pub struct Looking<'a> {
    /// The service's own spec.
    pub spec: &'a ServiceDeploymentSpec,
    /// The candidate of its sources, or of the version that its set is pinned at. None: there is none.
    pub candidate: Option<&'a Candidate>,
    pub assigned: Option<&'a Candidate>,
    pub ingredients: &'a [Ingredient],
    /// Newest parameters of its own spec.
    pub newest: Newest,
}

impl Look {
    pub async fn of(
        delivery: &Delivery,
        row: MemberRollout,
        Looking { spec, candidate, assigned, ingredients, newest }: Looking<'_>,
    ) -> Result<Self, StoreError> {
        let track: Track = read(&row, "track", &row.track)?;
        let documents = Documents::of(&row)?;
        let candidate = candidate.filter(|_| !matches!(newest, Newest::Unresolved | Newest::Wrong));
        let wanted = candidate.map(|candidate| change(spec, candidate, newest.mac())).transpose()?;
        let back = match (track.released, assigned) {
            (Some(released), Some(assigned)) if Some(released) != wanted => {
                find_back(delivery, (&row, &documents), spec, assigned, released).await?
            }
            _ => None,
        };
        let looked_at = fingerprint(ingredients);
        Ok(Self { wanted, looked_at, back, rollout: track.number, track, row, newest, documents })
    }

    /// The earlier assignment that the member is rolled back to; None: no rollback.
    pub fn back(&self) -> Option<&Candidate> {
        self.back.as_ref().map(|back| &back.candidate)
    }

    /// Whether its turn has not come.
    pub fn is_held(&self) -> bool {
        self.wanted.is_none() || self.wanted != self.track.released
    }

    /// Whether the held spec differs from `own`. They are equal in one case: the set wrote the service after this
    /// reconcile read it and before it read the member's row. Then the row holds the very spec that was read.
    fn holds_other(&self, own: &Value) -> Result<bool, StoreError> {
        let held: Option<Value> = read_some(&self.row, "held spec", &self.row.held_spec)?;
        Ok(held.is_some_and(|held| template_digest(&held) != template_digest(own)))
    }

    /// Returns what to save, given the decision `why`. `object`: the service as it was read.
    pub fn end(self, why: &Why, pinned: bool, object: &Value) -> Result<Looked, StoreError> {
        let held = self.is_held();
        let is_settled = *why == Why::Current && !pinned;
        let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
        let row = &self.row;
        let release = match &self.back {
            // The spec that is rolled back is not kept as one to go back to.
            Some(back) if is_settled && row.held_spec != back.spec => Some(Specs::Back(back.spec.clone())),
            None if is_settled && !held && self.holds_other(&object["spec"])? => {
                Some(Specs::Own { generation, spec: object["spec"].to_string() })
            }
            _ => None,
        };

        let documents = self.next_documents(is_settled);
        // If no document was named, the newest one counted. The document named now is then the same, or it comes with
        // what is assigned.
        let is_handed_anew = self.documents.counts.is_some_and(|counts| documents.counts != Some(counts));

        let before = self.row.held_spec.clone();
        let (set_uid, service_uid, track) = (row.set_uid.clone(), row.service_uid.clone(), row.track.clone());
        let (rollout, is_unresolved) = (self.rollout, self.newest == Newest::Unresolved);
        let macs = (!row.documents.is_empty() || self.newest != Newest::Own).then(|| documents.macs());

        let next = self.next(why, pinned, &documents)?;
        let released = release.is_some() || is_handed_anew;
        Ok(Looked { set_uid, service_uid, held, rollout, next, before, release, released, is_unresolved, macs, track })
    }

    /// The document that counts from now on, and those to keep.
    fn next_documents(&self, is_settled: bool) -> Documents {
        let Track { released, good, back, .. } = self.track;
        let mut next = self.documents.clone();
        next.of_changes.retain(|change, _| [released, good, back].contains(&Some(*change)));
        match &self.back {
            _ if !is_settled => {}
            Some(back) => next.counts = back.document,
            None if !self.is_held() => {
                next.counts = self.newest.mac();
                next.of_changes.extend(self.wanted.zip(self.newest.mac()));
            }
            None => {}
        }
        next
    }

    /// The row to write; None: it is unchanged.
    fn next(self, why: &Why, pinned: bool, documents: &Documents) -> Result<Option<MemberRollout>, StoreError> {
        let stands = match why {
            Why::Suspended => Some(Stands::Suspended),
            _ if pinned => Some(Stands::Pinned),
            Why::NotGranted(message) => Some(Stands::Denied(message.clone())),
            Why::Waiting(message) => Some(Stands::Waiting(message.clone())),
            // Windows are checked again in each reconcile of the set.
            Why::Current | Why::Rollout | Why::Frozen(_) | Why::Trouble(_) => None,
        };
        let stands = stands.map(|stands| serde_json::to_string(&stands)).transpose().map_err(StoreError::abort)?;
        let next = MemberRollout {
            wanted: self.wanted.map(|wanted| wanted.to_string()).unwrap_or_default(),
            looked_at: self.looked_at,
            stands: stands.unwrap_or_default(),
            pin: self.row.set_pin,
            documents: documents.write()?,
            looked_mac: self.newest.mac().map(|mac| mac.to_string()).unwrap_or_default(),
            ..self.row.clone()
        };
        Ok((next != self.row).then_some(next))
    }
}

/// Result of a reconcile of a member's service.
#[derive(Debug)]
pub struct Looked {
    pub set_uid: String,
    service_uid: String,
    pub held: bool,
    /// Number of the rollout that released the current assignment.
    pub rollout: u64,
    next: Option<MemberRollout>,
    /// The spec that counted; empty: the service's own.
    before: String,
    /// Set if another spec counts from now on.
    release: Option<Specs>,
    /// Whether another spec or other parameters count from now on.
    pub released: bool,
    /// Whether its newest parameters have to be resolved.
    pub is_unresolved: bool,
    /// MACs of the documents to keep. None: the member has no documents.
    macs: Option<BTreeSet<String>>,
    /// The member's track as it was read.
    track: String,
}

/// The spec that counts from now on.
#[derive(Debug)]
pub enum Specs {
    /// The service's own, as it was read.
    Own { generation: i64, spec: String },
    /// An earlier one; empty: the service's own.
    Back(String),
}

impl Looked {
    pub fn is_known(&self) -> bool {
        self.next.is_none() && self.release.is_none() && !self.is_unresolved
    }

    /// Whether its track is unchanged, so that it is still released for the same change.
    pub async fn is_current(&self, tx: &mut Tx) -> Result<bool, StoreError> {
        Ok(track_of_service(tx, &self.service_uid).await?.as_ref() == Some(&self.track))
    }

    /// `key`: key of the service.
    pub async fn save(self, tx: &mut Tx, key: &Key) -> Result<(), StoreError> {
        if let Some(next) = &self.next {
            save_look(tx, next).await?;
        }
        if let Some(mut macs) = self.macs {
            // A newer document may have been saved since this reconcile read it: keep that one too.
            let newest = load_parameters(tx, &self.service_uid).await?;
            macs.extend(newest.map(|row| row.mac).filter(|mac| !mac.is_empty()));
            retain_documents(tx, &self.service_uid, &macs).await?;
        }
        match self.release {
            None => Ok(()),
            Some(Specs::Back(spec)) => hold_spec(tx, &self.service_uid, &spec).await,
            Some(Specs::Own { generation, spec }) => {
                // A spec that was written since the read waits for a turn of its own. Until then the one that was read
                // counts.
                let now = tx.get(key).await?.filter(|now| now.uid == self.service_uid);
                let is_newest = now.is_none_or(|now| now.object["metadata"]["generation"] == generation);
                let held = if is_newest { "" } else { &*spec };
                save_specs(tx, &self.service_uid, (held, &self.before)).await
            }
        }
    }
}

/// Finds the earlier state that a member is rolled back to, in its history. None: it has that state, or the history no
/// longer does.
async fn find_back(
    delivery: &Delivery,
    (row, documents): (&MemberRollout, &Documents),
    own: &ServiceDeploymentSpec,
    assigned: &Candidate,
    released: ChangeId,
) -> Result<Option<Back>, StoreError> {
    let held: Option<ServiceDeploymentSpec> = read_some(row, "held spec", &row.held_spec)?;
    if change(held.as_ref().unwrap_or(own), assigned, documents.counts)? == released {
        return Ok(None);
    }

    let document = documents.of_changes.get(&released).copied();
    let back: Option<ServiceDeploymentSpec> = read_some(row, "spec to go back to", &row.back_spec)?;
    let specs = [(Some(own), ""), (held.as_ref(), &row.held_spec), (back.as_ref(), &row.back_spec)];
    let history = versions::load_candidates(&mut *delivery.store.tables().await?, &row.service_uid).await?;
    for (spec, text) in specs {
        let Some(spec) = spec else { continue };
        for candidate in &history {
            if change(spec, candidate, document)? == released {
                let document = document.filter(|_| is_handed(spec));
                return Ok(Some(Back { candidate: candidate.clone(), spec: text.to_owned(), document }));
            }
        }
    }
    tracing::warn!(service = row.service_name, %released, "the version to roll back to is no longer in its history");
    Ok(None)
}

/// Returns the evidence to save for an agent's report; None: the report is no news. `now`: seconds since 1970, by the
/// clock that measures soaks.
pub fn note_report(
    row: &MemberRollout,
    report: &farwater_api::objects::ServiceReport,
    spec: &ServiceDeploymentSpec,
    now: i64,
) -> Result<Option<String>, StoreError> {
    let published: Option<Published> = read_some(row, "published entry", &row.published)?;
    let mut known: Option<Evidence> = read_some(row, "evidence", &row.evidence)?;
    if !Evidence::note(&mut known, published, report, &spec.tests, now) {
        return Ok(None);
    }
    known.map(|known| serde_json::to_string(&known)).transpose().map_err(StoreError::abort)
}

/// Progress of a rollout after one decision.
pub struct Advance {
    pub status: RolloutStatus,
    pub counts: Counts,
    /// Number of the last good version.
    pub last_good: Option<u64>,
    /// When to decide again, in seconds since 1970.
    pub next_look: Option<i64>,
    /// Number of members that wait for a change window, and the window of the first.
    pub frozen: Option<(usize, Closed)>,
}

/// The change windows for the members of a set.
struct Gate {
    /// Namespace of the set.
    namespace: String,
    /// Labels of each of its services.
    labels: BTreeMap<String, String>,
    /// The override that lets changes start despite windows; None: there is none.
    overridden: Option<Said>,
}

impl Gate {
    fn of(name: &Name, resource: &Resource, set: &ServiceSet) -> Self {
        let labels = Template::labels(&name.name, &set.spec);
        let overridden = OVERRIDE.counting(&resource.object, Timestamp::now());
        Self { namespace: name.namespace.clone(), labels, overridden }
    }

    fn closed(&self, delivery: &Delivery, row: &MemberRollout) -> Option<Closed> {
        if self.overridden.is_some() { None } else { self.stated(delivery, row) }
    }

    /// The closed window of a member, even if it is overridden.
    fn stated(&self, delivery: &Delivery, row: &MemberRollout) -> Option<Closed> {
        let state = delivery.clusters.get(&row.cluster_uid)?;
        delivery.windows.closed(Subject {
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
struct Sight {
    rows: Vec<RollingMember>,
    /// Number of resting members; they are counted, not read.
    resting: Resting,
    /// Digest of the policy.
    basis: Digest,
    target: Target,
    written: Option<String>,
    before: Written,
}

/// Decodes the column `rests`; None: the member does not rest.
fn rest_of(code: i64) -> Option<Rest> {
    match code {
        1 => Some(Rest::Done),
        2 => Some(Rest::Deferred),
        _ => None,
    }
}

fn code_of(rest: Option<Rest>) -> i64 {
    match rest {
        None => 0,
        Some(Rest::Done) => 1,
        Some(Rest::Deferred) => 2,
    }
}

impl Sight {
    /// Reads the members that don't rest, or all members if the others may not be enough for a decision.
    async fn load(
        delivery: &Delivery,
        name: &Name,
        (resource, set): (&Resource, &ServiceSet),
        policy: &Policy,
        scope: &Scope,
    ) -> Result<Self, StoreError> {
        // Another version of the hub may let other members rest; raise this number when the rules change.
        const EDITION: u32 = 1;
        let basis = Digest::of_json(&json!([EDITION, set.spec.rollout]));
        if let Scope::Some(clusters) = scope
            && delivery.sets.is_read(name)
        {
            let clusters: Vec<&str> = clusters.iter().map(String::as_str).collect();
            let read = awake_members(&mut *delivery.store.tables().await?, &resource.uid, &clusters).await?;
            let sight = Self::of(delivery, name, (resource, set), read, basis).await?;
            let states = sight.rows.iter().map(|member| delivery.clusters.get(&member.row.cluster_uid));
            let labels: Vec<_> =
                states.map(|state| state.map(|state| Arc::clone(&state.labels)).unwrap_or_default()).collect();
            let asked = (&sight.before.state, sight.target.digest);
            let suffice = sight.resting.suffice(policy, asked, labels.iter().map(|labels| &**labels));
            if (suffice && sight.before.policy == Some(basis)) || sight.resting == Resting::default() {
                return Ok(sight);
            }
        }
        let rows = rolling_members(&mut *delivery.store.tables().await?, &resource.uid).await?;
        Self::of(delivery, name, (resource, set), (rows, Vec::new()), basis).await
    }

    /// The target is loaded after the members, so that the sources already had what the members have.
    async fn of(
        delivery: &Delivery,
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
        let written = load_rollout(&mut *delivery.store.tables().await?, &resource.uid).await?;
        let before = written.as_deref().map(|text| read_written(name, text)).transpose()?.unwrap_or_default();
        let target = Target::find(delivery, name, set).await?;
        Ok(Self { rows, resting, basis, target, written, before })
    }
}

/// Decides whose turn it is, and saves that. `scope`: clusters that may have changed without a write to their members'
/// rows.
///
/// None: nothing was decided. Either the policy can't be read, because an older or newer hub wrote it, or the set was
/// changed since it was read, which requeues it.
pub async fn advance(
    delivery: &Delivery,
    name: &Name,
    (resource, set): (&Resource, &ServiceSet),
    scope: &Scope,
) -> Result<Option<Advance>, StoreError> {
    let Ok(policy) = Policy::of(&set.spec.rollout) else { return Ok(None) };
    let sight = Sight::load(delivery, name, (resource, set), &policy, scope).await?;
    let Sight { rows, resting, target, before, .. } = &sight;
    let clock = delivery.clock.read();
    let gate = Gate::of(name, resource, set);
    let members = Members::read(delivery, &policy, (rows, resting), &target.sources, (clock, &gate))?;

    let of_set = members.of_set();
    let decision = decide(&policy, &before.state, target.digest, (&of_set, resting), clock);
    let of = (name, resource.uid.as_str(), set);
    let begins_by_it = |index: &usize| gate.stated(delivery, &rows[*index].row).is_some();
    let overridden = gate.overridden.as_ref().filter(|_| decision.released.iter().any(begins_by_it));
    let words = (target.revision.as_str(), overridden);

    let note = set_versions::note(delivery, of, (&before.state, &decision), words).await?;
    let news = News { policy: &policy, before: &before.state, decision: &decision, members: &of_set, clock };
    let postings = news.find(delivery, name, resource, target);

    let generation = set.metadata.generation;
    let is_saved =
        save(delivery, (resource, generation), (&sight, &members.steps), &decision, (note, postings)).await?;
    if !is_saved {
        return Ok(None);
    }

    delivery.sets.note_read(name);
    if before.state.target != decision.state.target {
        // A commit that concerns no member leaves the set's status as it is, so wake pipelines and dependents here.
        delivery.pipelines.note(Part::Set, name);
        dependencies::wake_dependents_of_set(delivery, name).await?;
    }

    // These members were resolved for another version than the one the set is pinned at now.
    for outdated in rows.iter().filter(|member| !member.row.is_of_pin()) {
        delivery.services.add(Name::new(&name.namespace, &outdated.row.service_name));
    }
    for index in decision.released.iter().chain(&decision.retracted) {
        delivery.services.add(Name::new(&name.namespace, &rows[*index].row.service_name));
    }

    let last_good = decision.state.last_good.map(|good| good.number);
    let frozen = members.frozen();
    let (counts, next_look) = (decision.counts, decision.next_look);
    Ok(Some(Advance { status: tell(&decision), counts, last_good, next_look, frozen }))
}

/// The state of a set's rollout apart from its members; the basis of reports about them.
struct Ground {
    policy: Policy,
    written: Written,
    sources: Vec<String>,
    /// Revision of the version that the set is pinned at. None: it has no pin, or the version is unknown.
    kept: Option<String>,
    clock: Clock,
    gate: Gate,
}

impl Ground {
    /// None: nothing was decided yet, or the policy can't be read.
    async fn load(
        delivery: &Delivery,
        name: &Name,
        (resource, set): (&Resource, &ServiceSet),
    ) -> Result<Option<Self>, StoreError> {
        let Ok(policy) = Policy::of(&set.spec.rollout) else { return Ok(None) };
        let (kept, written) = load_decided(delivery, &resource.uid, set).await?;
        let Some(written) = written else { return Ok(None) };
        let written = read_written(name, &written)?;
        let clock = delivery.clock.read();
        let set = kept.as_ref().unwrap_or(set);
        let Target { sources, .. } = Target::find(delivery, name, set).await?;
        let kept = match &set.spec.pin {
            Some(pin) => set_versions::load_revision(delivery, &resource.uid, pin.version).await?,
            None => None,
        };
        let gate = Gate::of(name, resource, set);
        Ok(Some(Self { policy, written, sources, kept, clock, gate }))
    }

    /// Reads members with the steps that their rows name.
    fn members<'r>(&self, delivery: &Delivery, rows: &'r [RollingMember]) -> Result<Members<'r>, StoreError> {
        let all = (rows, &Resting::default());
        let mut members = Members::read(delivery, &self.policy, all, &self.sources, (self.clock, &self.gate))?;
        // A member that is new or was placed by another policy counts as one of the rest until the next decision.
        let rest = u16::try_from(self.policy.steps.len() + 1).unwrap_or(u16::MAX);
        let steps = rows.iter().map(|member| u16::try_from(member.row.step).unwrap_or(rest).min(rest));
        members.steps = steps.collect();
        Ok(members)
    }
}

/// A member's progress, as it is reported.
#[derive(Debug, Default)]
pub struct Told {
    pub step: String,
    pub standing: String,
    pub progress: Progress,
    /// Start of this state, in seconds since 1970; None: unknown.
    pub since: Option<i64>,
    pub versions: Versions,
}

/// Revisions of a member.
#[derive(Debug, Default)]
pub struct Versions {
    /// The assigned revision; empty: none is assigned.
    pub revision: String,
    /// The version that it should get: the newest of its sources, or the one that its set is pinned at. Empty: the same
    /// as `revision`, or none.
    pub wanted: String,
    author: String,
}

impl Versions {
    /// `kept`: revision of the version that the set is pinned at. A member's own revision of that version is known once
    /// it is assigned.
    fn read(
        member: &Member<'_>,
        row: &MemberRollout,
        versions: &MemberVersions,
        kept: Option<&str>,
    ) -> Result<Self, StoreError> {
        /// Other fields of a candidate are not needed here, and a large set has many candidates.
        #[derive(Default, Deserialize)]
        struct Named {
            revision: String,
            #[serde(default)]
            author: String,
        }
        let parse = |text: &Option<String>, what: &str| -> Result<Option<Named>, StoreError> {
            Ok(text.as_deref().map(|text| read_some(row, what, text)).transpose()?.flatten())
        };
        let assigned = parse(&versions.assigned, "assignment")?.unwrap_or_default();
        if let Some(kept) = kept {
            let is_there = member.wanted.is_some() && member.wanted == member.track.released;
            let wanted = if is_there || kept == assigned.revision { String::new() } else { kept.to_owned() };
            return Ok(Self { revision: assigned.revision, wanted, author: assigned.author });
        }
        let wanted = parse(&versions.candidate, "candidate")?.filter(|wanted| wanted.revision != assigned.revision);
        let wanted = wanted.unwrap_or_default();
        let author = if wanted.revision.is_empty() { assigned.author } else { wanted.author };
        Ok(Self { revision: assigned.revision, wanted: wanted.revision, author })
    }
}

/// Returns the progress of the members on some clusters, by the cluster's uid.
pub async fn tell_members(
    delivery: &Delivery,
    name: &Name,
    (resource, set): (&Resource, &ServiceSet),
    cluster_uids: &[&str],
) -> Result<BTreeMap<String, Told>, StoreError> {
    let Some(ground) = Ground::load(delivery, name, (resource, set)).await? else { return Ok(BTreeMap::new()) };
    let (rows, versions) = told_members(&mut *delivery.store.tables().await?, &resource.uid, cluster_uids).await?;

    let Ground { policy, written, kept, clock, .. } = &ground;
    let members = ground.members(delivery, &rows)?;
    let mut told = BTreeMap::new();
    for ((member, row), versions) in members.of_set().iter().zip(&rows).zip(&versions) {
        let (progress, since) = progress(policy, &written.state, member, *clock);
        let standing = standing(policy, &written.state, &written.outlook, member, *clock).to_string();
        let (step, versions) =
            (policy.step_name(member.step).to_owned(), Versions::read(member, &row.row, versions, kept.as_deref())?);
        told.insert(member.cluster.to_owned(), Told { step, standing, progress, since, versions });
    }
    Ok(told)
}

/// Members of one page of a count: some hundred kilobytes.
const COUNTED_AT_ONCE: u32 = 500;

/// A count of all members of a set.
#[derive(Debug, Default)]
pub struct Count {
    /// Without members by name.
    pub survey: RolloutSurvey,
    /// Uids of clusters that are not done, the worst first.
    pub open: Vec<String>,
    /// Uid of the cluster that the next step waits for; None: it waits for none.
    pub waits_for: Option<String>,
}

/// A counted member, kept from one page to the next.
struct Seen {
    cluster_uid: String,
    name: String,
    step: u16,
    progress: Progress,
    released: Option<u64>,
    versions: Versions,
}

/// Counts all members, page by page.
pub async fn count(
    delivery: &Delivery,
    name: &Name,
    (resource, set): (&Resource, &ServiceSet),
) -> Result<Count, StoreError> {
    let Some(ground) = Ground::load(delivery, name, (resource, set)).await? else { return Ok(Count::default()) };
    let Ground { policy, written, kept, clock, .. } = &ground;
    let (mut seen, mut after): (Vec<Seen>, String) = (Vec::new(), String::new());
    loop {
        let page = (&*after, COUNTED_AT_ONCE);
        let (rows, versions) = page_of_told_members(&mut *delivery.store.tables().await?, &resource.uid, page).await?;
        let Some(last) = rows.last() else { break };
        after.clone_from(&last.row.cluster_uid);
        let members = ground.members(delivery, &rows)?;
        for ((member, row), versions) in members.of_set().iter().zip(&rows).zip(&versions) {
            let (progress, _) = progress(policy, &written.state, member, *clock);
            seen.push(Seen {
                cluster_uid: member.cluster.to_owned(),
                name: member.name.to_owned(),
                step: member.step,
                progress,
                released: member.track.released.map(|_| member.track.number),
                versions: Versions::read(member, &row.row, versions, kept.as_deref())?,
            });
        }
        if rows.len() < COUNTED_AT_ONCE as usize {
            break;
        }
    }

    let counted: Vec<Counted<'_>> = seen
        .iter()
        .map(|Seen { name, step, progress, released, versions, .. }| Counted {
            name,
            step: *step,
            progress: *progress,
            released: *released,
            revision: &versions.revision,
            wanted: &versions.wanted,
            author: &versions.author,
        })
        .collect();

    let survey = RolloutSurvey {
        counted_at: Some(whole_seconds(Timestamp::now())),
        ..survey(policy, &written.outlook, &counted)
    };

    let waits_for = written.outlook.waits_for.as_ref();
    let waits_for = waits_for.and_then(|waited| seen.iter().find(|member| member.name == *waited));
    let waits_for = waits_for.map(|member| member.cluster_uid.clone());
    let open = worst(&counted, MAX_SURVEYED_MEMBERS).into_iter().map(|index| seen[index].cluster_uid.clone());
    Ok(Count { survey, open: open.collect(), waits_for })
}

/// Returns the set with its pinned version (or what is wrong with the pin), and the decision that was saved last.
async fn load_decided(
    delivery: &Delivery,
    set_uid: &str,
    set: &ServiceSet,
) -> Result<(Result<ServiceSet, String>, Option<String>), StoreError> {
    let mut tables = delivery.store.tables().await?;
    let kept = set_versions::apply_pin(&mut tables, set_uid, set.clone()).await?;
    Ok((kept, load_rollout(&mut tables, set_uid).await?))
}

/// Whether a set's rollout was decided for what its sources have now, and its status shows that decision.
pub async fn is_looked_at(
    delivery: &Delivery,
    name: &Name,
    set_uid: &str,
    set: &ServiceSet,
) -> Result<bool, StoreError> {
    let (kept, written) = load_decided(delivery, set_uid, set).await?;
    let (Ok(set), Some(written)) = (kept, written) else { return Ok(false) };
    let target = Target::find(delivery, name, &set).await?;
    let state = read_written(name, &written)?.state;
    let told = set.status.as_ref().and_then(|status| status.rollout.as_ref()).map_or(0, |rollout| rollout.number);
    Ok(state.target == Some(target.digest) && told == state.number)
}

/// Whether a whole set is healthy at what its sources have now.
#[derive(Debug, Default)]
pub struct Whole {
    /// Why it is not; None: it is.
    pub lacks: Option<String>,

    /// Its rollout has halted or is rolling back.
    pub failed: bool,
    /// The set must be requeued: a commit that concerns none of its members requeues it in no other way.
    pub is_behind: bool,
    pub heard: Heard,
}

/// Health of the members whose clusters are heard. Silent clusters are passed over, as in rollouts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heard {
    /// Number of members, silent ones included.
    all: usize,
    heard: usize,
    healthy: usize,
    /// When the last of them became healthy, in seconds since 1970.
    pub since: i64,
    /// When the cluster that was heard least recently was heard, in seconds since 1970; 0: one was not heard since the
    /// hub started.
    pub at: i64,
}

impl Heard {
    /// The reason why not all members that are heard are healthy, as a phrase about the set; None: they are.
    pub fn lacks(&self) -> Option<String> {
        match self {
            Self { all: 0, .. } => None,
            Self { heard: 0, .. } => Some("has no cluster that is heard".to_owned()),
            Self { heard, healthy, .. } if healthy < heard => {
                Some(format!("is healthy on {healthy} of {heard} clusters that are heard"))
            }
            _ => None,
        }
    }
}

pub async fn look_at_heard(delivery: &Delivery, set_uid: &str) -> Result<Heard, StoreError> {
    let rows = rolling_members(&mut *delivery.store.tables().await?, set_uid).await?;
    let Clock { now, started } = delivery.clock.read();

    let mut found = Heard { all: rows.len(), at: i64::MAX, ..Heard::default() };
    for RollingMember { row, .. } in &rows {
        let state = delivery.clusters.get(&row.cluster_uid);
        let Some(state) = state.filter(|state| silence_deadline(state, started) > now) else { continue };
        let evidence: Option<Evidence> = read_some(row, "evidence", &row.evidence)?;
        let since = evidence.as_ref().and_then(Evidence::healthy_since);
        found.heard += 1;
        found.healthy += usize::from(row.ready == 1);
        found.since = found.since.max(since.unwrap_or(now));
        found.at = found.at.min(state.heard().unwrap_or(0));
    }
    Ok(found)
}

/// Judges by the saved decision, not by the status alone, which may be older. `set`: read before the call.
pub async fn look_at_whole(
    delivery: &Delivery,
    name: &Name,
    set_uid: &str,
    set: &ServiceSet,
) -> Result<Whole, StoreError> {
    let lacks =
        |what: String| Ok(Whole { lacks: Some(format!("ServiceSet {} {what}", name.name)), ..Whole::default() });
    if set.metadata.deletion_timestamp.is_some() {
        return lacks("is being deleted".to_owned());
    }
    if let Some(pin) = &set.spec.pin {
        return lacks(format!("is kept at its version {}", pin.version));
    }

    let status = set.status.clone().unwrap_or_default();
    let written = load_rollout(&mut *delivery.store.tables().await?, set_uid).await?;
    let state = written.map(|text| read_written(name, &text)).transpose()?.unwrap_or_default().state;
    let target = Target::find(delivery, name, set).await?.digest;
    let rollout = status.rollout.unwrap_or_default();

    let is_known = state.target == Some(target)
        && rollout.number == state.number
        && status.observed_generation == set.metadata.generation;
    if !is_known {
        let is_behind = state.target != Some(target);
        let what = "was not looked at since it or its source changed".to_owned();
        return Ok(Whole { is_behind, ..lacks(what)? });
    }

    if state.open {
        let failed = matches!(rollout.phase, RolloutPhase::Halted | RolloutPhase::RollingBack);
        let what = format!("is not through with rollout {}: it is {}", rollout.number, rollout.phase);
        return Ok(Whole { failed, ..lacks(what)? });
    }
    if state.last_good.is_none_or(|good| good.target != target) || rollout.updated == 0 {
        return lacks("has no cluster that is done".to_owned());
    }

    // Only silent clusters are passed over.
    if rollout.waiting + rollout.progressing + rollout.failed > 0 {
        return lacks("has clusters that are suspended or held".to_owned());
    }
    if let Some(stalled) = holding(&status.conditions, "Stalled") {
        return lacks(format!("is not ready: {}", stalled.message));
    }

    let heard = look_at_heard(delivery, set_uid).await?;
    match heard.lacks() {
        Some(what) => lacks(what),
        None => Ok(Whole { heard, ..Whole::default() }),
    }
}

fn read_written(name: &Name, text: &str) -> Result<Written, StoreError> {
    serde_json::from_str(text)
        .map_err(|error| StoreError::Row { what: format!("rollout of ServiceSet {name}"), problem: error.to_string() })
}

/// The target of all members of a set.
struct Target {
    /// Fingerprints of its services' sources, one per variant.
    sources: Vec<String>,
    /// Digest of all that its members share.
    digest: Digest,
    /// Revision of the template's own source; empty: it has none yet.
    revision: String,
    /// Commit of the first source that is a Git repository. None: there is none, or the set is pinned.
    commit: Option<Commit>,
}

impl Target {
    async fn find(delivery: &Delivery, name: &Name, set: &ServiceSet) -> Result<Self, StoreError> {
        let (mut sources, mut revision, mut commit, mut specs) = (Vec::new(), None, None, Vec::new());
        for (_, template) in Template::variants(&set.spec) {
            let Ok(spec) = check_template(&template) else { continue };
            let ingredients = find_ingredients(delivery, &name.namespace, &spec).await?;
            revision.get_or_insert_with(|| ingredients.first().map(Ingredient::describe_revision).unwrap_or_default());
            commit = commit.or_else(|| ingredients.iter().find_map(commit_of));
            let found = fingerprint(&ingredients);
            if !sources.contains(&found) {
                sources.push(found);
            }
            specs.push(spec);
        }

        let handed = load_versions(delivery, &name.namespace, &specs).await?;
        let handed: Vec<_> =
            handed.iter().map(|input| json!([input.key.kind.as_str(), input.key.name, input.version])).collect();

        let spec = &set.spec;
        // A pinned version does not change with its sources, so they are no part of the digest.
        let content = match &spec.pin {
            Some(pin) => {
                let uid = set.metadata.uid.as_deref().unwrap_or_default();
                revision = set_versions::load_revision(delivery, uid, pin.version).await?;
                commit = None;
                json!({"version": pin.version})
            }
            None => json!(sources),
        };

        let digest = Digest::of_json(&json!([spec.template, spec.parameters, spec.overrides, content, handed]));
        Ok(Self { sources, digest, revision: revision.unwrap_or_default(), commit })
    }
}

/// `main@1f3870be…`
fn describe_commit(commit: &Commit) -> String {
    match commit.reference.as_str() {
        "" => commit.commit.clone(),
        reference => format!("{reference}@{}", commit.commit),
    }
}

fn commit_of(ingredient: &Ingredient) -> Option<Commit> {
    let found = ingredient.found.as_ref().filter(|_| ingredient.reference.kind == SourceKind::GitRepository)?;
    let SourceSpec::Git(spec) = &found.object.spec else { return None };
    let revision = found.revision.as_ref()?;
    Some(Commit {
        repository: spec.url.clone(),
        reference: revision.reference.clone(),
        commit: revision.commit.clone(),
    })
}

/// The parts of a decision that notifications report.
struct News<'a> {
    policy: &'a Policy,
    before: &'a State,
    decision: &'a Decision,
    members: &'a [Member<'a>],
    clock: Clock,
}

impl News<'_> {
    fn find(&self, delivery: &Delivery, name: &Name, resource: &Resource, target: &Target) -> Postings {
        let commit = target.commit.as_ref();
        let notifications = &delivery.notifications;
        // The end of this rollout was notified already.
        let moves = self.before.open || self.decision.state.open;
        if !moves || !notifications.is_anybody_told(&name.namespace) {
            return Postings::default();
        }

        let targets =
            notifications.targets(&name.namespace, (EventKind::ServiceSet, &name.name), &labels(&resource.object));
        if targets.is_empty() {
            return Postings::default();
        }

        let Decision { state, outlook, .. } = self.decision;
        let halted_by = outlook.halted_by.clone();
        let failed = halted_by.as_ref().and_then(|name| self.members.iter().position(|member| member.name == name));
        let news = RolloutNews {
            namespace: name.namespace.clone(),
            set: name.name.clone(),
            number: state.number,
            course: self.decision.phase.into(),
            step: if outlook.step.is_some() && state.open { outlook.step_name.clone() } else { String::new() },
            clusters: self.decision.counts,
            cause: failed.map(|index| self.standing(index).to_string()).unwrap_or_default(),
            halted_by,
            revision: commit.map_or_else(|| target.revision.clone(), describe_commit),
            summary: String::new(),
        };

        let options =
            |target: &crate::notify::Target| target.spec.commit_status.as_ref().is_some_and(|of| of.per_cluster);
        let members = if targets.iter().any(options) { self.find_members() } else { Vec::new() };

        let change = RolloutChange {
            set_uid: &resource.uid,
            news,
            commit,
            members,
            before: (self.before.open && self.before.number != state.number).then_some(self.before.number),
        };
        Postings::of_rollout(&targets, &change)
    }

    /// Members whose state has changed.
    fn find_members(&self) -> Vec<MemberNews> {
        let changed = self.decision.tracks.iter();
        let one = |(index, track): &(usize, Track)| {
            let member = &self.members[*index];
            let state = member_state(track, member.wanted)?;
            let (cluster_uid, cluster) = (member.cluster.to_owned(), member.name.to_owned());
            Some(MemberNews { cluster_uid, cluster, state, standing: self.standing(*index) })
        };
        changed.filter_map(one).collect()
    }

    /// Standing of a member after the decision.
    fn standing(&self, index: usize) -> Standing {
        let Decision { tracks, state, outlook, .. } = self.decision;
        let track = tracks.iter().find(|(other, _)| *other == index).map(|(_, track)| *track);
        let mut member = self.members[index].clone();
        member.track = track.unwrap_or(member.track);
        standing(self.policy, state, outlook, &member, self.clock)
    }
}

/// Members, with the values that [`Member`] borrows.
struct Members<'r> {
    rows: &'r [RollingMember],
    names: Vec<String>,
    partitions: Vec<Option<String>>,
    steps: Vec<u16>,
    reaches: Vec<Reach>,
    tracks: Vec<Track>,
    wanted: Vec<Option<ChangeId>>,
    published: Vec<Option<Published>>,
    evidence: Vec<Option<Evidence>>,
    stands: Vec<Option<Stands>>,
}

impl<'r> Members<'r> {
    fn read(
        delivery: &Delivery,
        policy: &Policy,
        (rows, resting): (&'r [RollingMember], &Resting),
        sources: &[String],
        (clock, gate): (Clock, &Gate),
    ) -> Result<Self, StoreError> {
        let mut all = Self {
            rows,
            names: Vec::with_capacity(rows.len()),
            partitions: Vec::with_capacity(rows.len()),
            steps: Vec::new(),
            reaches: Vec::with_capacity(rows.len()),
            tracks: Vec::with_capacity(rows.len()),
            wanted: Vec::with_capacity(rows.len()),
            published: Vec::with_capacity(rows.len()),
            evidence: Vec::with_capacity(rows.len()),
            stands: Vec::with_capacity(rows.len()),
        };

        let mut labels: Vec<Arc<BTreeMap<String, String>>> = Vec::with_capacity(rows.len());
        for RollingMember { row, seen, touched, handed_anew, .. } in rows {
            let state = delivery.clusters.get(&row.cluster_uid);
            let of_cluster = state.as_ref().map(|state| Arc::clone(&state.labels)).unwrap_or_default();
            all.names.push(cluster_name(delivery, &row.cluster_uid).unwrap_or_else(|| row.cluster_uid.clone()));
            all.partitions.push(policy.partition_by.as_ref().and_then(|key| of_cluster.get(key).cloned()));
            labels.push(of_cluster);
            all.reaches.push(match &state {
                None => Reach::Silent { since: 0, has_entry: false },
                Some(state) => match state.heard() {
                    heard if silence_deadline(state, 0) > clock.now => Reach::Heard { at: heard.unwrap_or_default() },
                    _ if silence_deadline(state, clock.started) > clock.now => Reach::NotYet,
                    heard => {
                        let since = heard.unwrap_or_default();
                        Reach::Silent { since, has_entry: row.published_at > 0 && since >= row.published_at }
                    }
                },
            });
            all.tracks.push(read(row, "track", &row.track)?);
            // A result for another spec, or for older sources or parameters, does not count.
            let is_behind = seen.is_none_or(|seen| seen < row.generation)
                || (*touched && !sources.contains(&row.looked_at))
                || *handed_anew
                || !row.is_of_pin();
            let wanted = if is_behind || row.wanted.is_empty() { None } else { Some(&row.wanted) };
            let damaged = |error: farwater_fleet::rollout::ParseChangeError| StoreError::Row {
                what: format!("wanted change of service {}", row.service_uid),
                problem: error.to_string(),
            };
            all.wanted.push(wanted.map(|text| text.parse().map_err(damaged)).transpose()?);
            all.published.push(read_some(row, "published entry", &row.published)?);
            all.evidence.push(read_some(row, "evidence", &row.evidence)?);
            let stands: Option<Stands> = read_some(row, "standing", &row.stands)?;
            all.stands.push(match stands {
                None | Some(Stands::Waiting(_)) => gate.closed(delivery, row).map(Stands::Window).or(stands),
                stands => stands,
            });
        }

        let clusters: Vec<Cluster<'_>> = rows
            .iter()
            .enumerate()
            .map(|(index, member)| Cluster {
                name: &all.names[index],
                labels: &labels[index],
                // A cluster that has nothing yet ranks with the healthy ones.
                is_healthy: member.row.ready == 1 || all.tracks[index].released.is_none(),
                reach: all.reaches[index],
                is_canary: member.row.step == 0,
                has_begun: all.wanted[index].is_some() && all.tracks[index].released == all.wanted[index],
            })
            .collect();

        all.steps = place(policy, &clusters, resting);
        Ok(all)
    }

    /// Counts the members that a closed window keeps from starting, with the window of the first.
    fn frozen(&self) -> Option<(usize, Closed)> {
        let waiting = self.stands.iter().enumerate().filter_map(|(index, stands)| match stands {
            Some(Stands::Window(closed)) => {
                let is_there = self.published[index].map(|published| published.change) == self.wanted[index];
                (self.wanted[index].is_some() && !is_there).then_some(closed)
            }
            _ => None,
        });
        let waiting: Vec<&Closed> = waiting.collect();
        waiting.first().map(|first| (waiting.len(), (*first).clone()))
    }

    fn of_set(&self) -> Vec<Member<'_>> {
        (0..self.rows.len())
            .map(|index| Member {
                cluster: &self.rows[index].row.cluster_uid,
                name: &self.names[index],
                step: self.steps[index],
                partition: self.partitions[index].as_deref(),
                wanted: self.wanted[index],
                track: self.tracks[index],
                published: self.published[index],
                evidence: self.evidence[index].as_ref(),
                reach: self.reaches[index],
                stands: self.stands[index].clone(),
            })
            .collect()
    }
}

/// Changes to a member's row.
struct MemberChange {
    service_uid: String,
    /// Track and step.
    track: Option<(String, i64)>,
    /// Code of `rests`, and the member's count of changes: saved only while that count is the same.
    rests: Option<(i64, i64)>,
}

fn find_changes(rows: &[RollingMember], steps: &[u16], decision: &Decision) -> Result<Vec<MemberChange>, StoreError> {
    let tracks: BTreeMap<usize, Track> = decision.tracks.iter().copied().collect();
    let mut changes = Vec::new();
    for (index, member) in rows.iter().enumerate() {
        let row = &member.row;
        let (step, changed) = (i64::from(steps[index]), tracks.get(&index));
        let track = match changed {
            Some(track) => Some((serde_json::to_string(track).map_err(StoreError::abort)?, step)),
            None => (step != row.step).then(|| (row.track.clone(), step)),
        };
        let rests = code_of(decision.rests[index]);
        // A new track wakes a resting member.
        let rested = if track.is_some() { 0 } else { member.rests };
        let rests = (rests != rested).then_some((rests, member.changes));
        if track.is_some() || rests.is_some() {
            changes.push(MemberChange { service_uid: row.service_uid.clone(), track, rests });
        }
    }
    Ok(changes)
}

/// Saves all in one transaction, so that the rollout's state and its members' tracks always match. False: the set was
/// changed since it was read (e.g. paused), so nothing decided from the old one is saved.
async fn save(
    delivery: &Delivery,
    (resource, generation): (&Resource, Option<i64>),
    (sight, steps): (&Sight, &[u16]),
    decision: &Decision,
    (note, postings): (Option<Note>, Postings),
) -> Result<bool, StoreError> {
    let Decision { state, outlook, counts, .. } = decision.clone();
    let next = Written { state, outlook, counts, policy: Some(sight.basis) };
    let next = serde_json::to_string(&next).map_err(StoreError::abort)?;
    let changes = find_changes(&sight.rows, steps, decision)?;
    if changes.is_empty() && sight.written.as_ref() == Some(&next) && note.is_none() {
        return Ok(true);
    }

    let (key, set_uid, told) = (resource.key.clone(), resource.uid.clone(), postings.clone());
    let saved = delivery.store.transact(move |tx| {
        Box::pin(async move {
            if !resources::is_current(tx, &key, (&set_uid, generation)).await? {
                return Ok(false);
            }
            for MemberChange { service_uid, track, rests } in &changes {
                if let Some((track, step)) = track {
                    save_track(tx, service_uid, (track, *step)).await?;
                }
                if let Some(rests) = rests {
                    save_rest(tx, service_uid, *rests).await?;
                }
            }
            save_rollout(tx, &set_uid, &next).await?;
            if let Some(note) = &note {
                set_versions::save(tx, &set_uid, note).await?;
            }
            told.save(tx).await?;
            Ok(true)
        })
    });

    let is_saved = saved.await?;
    if is_saved {
        postings.wake(&delivery.notifications);
    }
    Ok(is_saved)
}

fn tell(decision: &Decision) -> RolloutStatus {
    let (counts, outlook) = (decision.counts, &decision.outlook);
    let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    RolloutStatus {
        number: decision.state.number,
        phase: decision.phase,
        step: if outlook.step.is_some() { outlook.step_name.clone() } else { String::new() },
        updated: count(counts.updated),
        progressing: count(counts.progressing),
        soaking: count(counts.soaking),
        failed: count(counts.failed),
        deferred: count(counts.deferred),
        waiting: count(counts.waiting + counts.standing),
        halted_by: outlook.halted_by.clone(),
    }
}

#[cfg(test)]
mod tests;
