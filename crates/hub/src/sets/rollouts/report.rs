//! Reports about a rollout: its members with their versions, and counts of them.

use std::collections::BTreeMap;

use farwater_api::{
    ServiceSet,
    service_set::{MAX_SURVEYED_MEMBERS, Progress, RolloutSurvey},
};
use farwater_fleet::{
    conditions::whole_seconds,
    rollout::{Clock, Counted, Member, Policy, Resting, progress, standing, survey, worst},
};
use farwater_store::{
    Resource, StoreError,
    delivery::{MemberRollout, MemberVersions, RollingMember, load_rollout, page_of_told_members, told_members},
};
use jiff::Timestamp;
use serde::Deserialize;

use super::{
    members::Members,
    observe::{Gate, Target},
    row::{Written, read_some, read_written},
};
use crate::{replica::Replica, resources::Name, sets::set_versions};

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
    pub(super) async fn load(
        replica: &Replica,
        name: &Name,
        (resource, set): (&Resource, &ServiceSet),
    ) -> Result<Option<Self>, StoreError> {
        let Ok(policy) = Policy::of(&set.spec.rollout) else {
            return Ok(None);
        };
        let (kept, written) = load_decided(replica, &resource.uid, set).await?;
        let Some(written) = written else { return Ok(None) };
        let written = read_written(name, &written)?;
        let clock = replica.clock.read();
        let set = kept.as_ref().unwrap_or(set);
        let Target { sources, .. } = Target::find(replica, name, set).await?;
        let kept = match &set.spec.pin {
            Some(pin) => set_versions::load_revision(replica, &resource.uid, pin.version).await?,
            None => None,
        };
        let gate = Gate::of(name, resource, set);
        Ok(Some(Self {
            policy,
            written,
            sources,
            kept,
            clock,
            gate,
        }))
    }

    /// Reads members with the steps that their rows name.
    pub(super) fn members<'r>(&self, replica: &Replica, rows: &'r [RollingMember]) -> Result<Members<'r>, StoreError> {
        let all = (rows, &Resting::default());
        let mut members = Members::read(replica, &self.policy, all, &self.sources, (self.clock, &self.gate))?;
        // A member that is new or was placed by another policy counts as one of the rest until the next decision.
        let rest = u16::try_from(self.policy.steps.len() + 1).unwrap_or(u16::MAX);
        let steps = rows
            .iter()
            .map(|member| u16::try_from(member.row.step).unwrap_or(rest).min(rest));
        members.steps = steps.collect();
        Ok(members)
    }
}

/// A member's progress, as it is reported.
#[derive(Debug, Default)]
pub struct MemberProgress {
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
    pub(super) fn read(
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
            Ok(text
                .as_deref()
                .map(|text| read_some(row, what, text))
                .transpose()?
                .flatten())
        };
        let assigned = parse(&versions.assigned, "assignment")?.unwrap_or_default();
        if let Some(kept) = kept {
            let is_there = member.wanted.is_some() && member.wanted == member.track.released;
            let wanted = if is_there || kept == assigned.revision {
                String::new()
            } else {
                kept.to_owned()
            };
            return Ok(Self {
                revision: assigned.revision,
                wanted,
                author: assigned.author,
            });
        }
        let wanted = parse(&versions.candidate, "candidate")?.filter(|wanted| wanted.revision != assigned.revision);
        let wanted = wanted.unwrap_or_default();
        let author = if wanted.revision.is_empty() {
            assigned.author
        } else {
            wanted.author
        };
        Ok(Self {
            revision: assigned.revision,
            wanted: wanted.revision,
            author,
        })
    }
}

/// Returns the progress of the members on some clusters, by the cluster's uid.
pub async fn tell_members(
    replica: &Replica,
    name: &Name,
    (resource, set): (&Resource, &ServiceSet),
    cluster_uids: &[&str],
) -> Result<BTreeMap<String, MemberProgress>, StoreError> {
    let Some(ground) = Ground::load(replica, name, (resource, set)).await? else {
        return Ok(BTreeMap::new());
    };
    let (rows, versions) = told_members(&mut *replica.store.tables().await?, &resource.uid, cluster_uids).await?;

    let Ground {
        policy,
        written,
        kept,
        clock,
        ..
    } = &ground;
    let members = ground.members(replica, &rows)?;
    let mut told = BTreeMap::new();
    for ((member, row), versions) in members.of_set().iter().zip(&rows).zip(&versions) {
        let (progress, since) = progress(policy, &written.state, member, *clock);
        let standing = standing(policy, &written.state, &written.outlook, member, *clock).to_string();
        let (step, versions) = (
            policy.step_name(member.step).to_owned(),
            Versions::read(member, &row.row, versions, kept.as_deref())?,
        );
        told.insert(
            member.cluster.to_owned(),
            MemberProgress {
                step,
                standing,
                progress,
                since,
                versions,
            },
        );
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
struct CountedMember {
    cluster_uid: String,
    name: String,
    step: u16,
    progress: Progress,
    released: Option<u64>,
    versions: Versions,
}

impl CountedMember {
    fn counted(&self) -> Counted<'_> {
        Counted {
            name: &self.name,
            step: self.step,
            progress: self.progress,
            released: self.released,
            revision: &self.versions.revision,
            wanted: &self.versions.wanted,
            author: &self.versions.author,
        }
    }
}

/// Counts all members.
pub async fn count(
    replica: &Replica,
    name: &Name,
    (resource, set): (&Resource, &ServiceSet),
) -> Result<Count, StoreError> {
    let Some(ground) = Ground::load(replica, name, (resource, set)).await? else {
        return Ok(Count::default());
    };
    let seen = read_seen(replica, &resource.uid, &ground).await?;
    let outlook = &ground.written.outlook;
    let counted: Vec<Counted<'_>> = seen.iter().map(CountedMember::counted).collect();
    let survey = RolloutSurvey {
        counted_at: Some(whole_seconds(Timestamp::now())),
        ..survey(&ground.policy, outlook, &counted)
    };

    let waits_for = outlook.waits_for.as_ref();
    let waits_for = waits_for.and_then(|waited| seen.iter().find(|member| member.name == *waited));
    let waits_for = waits_for.map(|member| member.cluster_uid.clone());
    let open = worst(&counted, MAX_SURVEYED_MEMBERS)
        .into_iter()
        .map(|index| seen[index].cluster_uid.clone());
    Ok(Count {
        survey,
        open: open.collect(),
        waits_for,
    })
}

/// Reads all members, page by page.
async fn read_seen(replica: &Replica, set_uid: &str, ground: &Ground) -> Result<Vec<CountedMember>, StoreError> {
    let state = &ground.written.state;
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = (&*after, COUNTED_AT_ONCE);
        let (rows, versions) = page_of_told_members(&mut *replica.store.tables().await?, set_uid, page).await?;
        let Some(last) = rows.last() else { break };
        after.clone_from(&last.row.cluster_uid);
        let members = ground.members(replica, &rows)?;
        for ((member, row), versions) in members.of_set().iter().zip(&rows).zip(&versions) {
            let (progress, _) = progress(&ground.policy, state, member, ground.clock);
            seen.push(CountedMember {
                cluster_uid: member.cluster.to_owned(),
                name: member.name.to_owned(),
                step: member.step,
                progress,
                released: member.track.released.map(|_| member.track.number),
                versions: Versions::read(member, &row.row, versions, ground.kept.as_deref())?,
            });
        }
        if rows.len() < COUNTED_AT_ONCE as usize {
            break;
        }
    }
    Ok(seen)
}

/// Returns the set with its pinned version (or what is wrong with the pin), and the decision that was saved last.
async fn load_decided(
    replica: &Replica,
    set_uid: &str,
    set: &ServiceSet,
) -> Result<(Result<ServiceSet, String>, Option<String>), StoreError> {
    let mut tables = replica.store.tables().await?;
    let kept = set_versions::apply_pin(&mut tables, set_uid, set.clone()).await?;
    Ok((kept, load_rollout(&mut tables, set_uid).await?))
}

/// Whether a set's rollout was decided for what its sources have now, and its status shows that decision.
pub async fn is_looked_at(replica: &Replica, name: &Name, set_uid: &str, set: &ServiceSet) -> Result<bool, StoreError> {
    let (kept, written) = load_decided(replica, set_uid, set).await?;
    let (Ok(set), Some(written)) = (kept, written) else {
        return Ok(false);
    };
    let target = Target::find(replica, name, &set).await?;
    let state = read_written(name, &written)?.state;
    let told = set
        .status
        .as_ref()
        .and_then(|status| status.rollout.as_ref())
        .map_or(0, |rollout| rollout.number);
    Ok(state.target == Some(target.digest) && told == state.number)
}
