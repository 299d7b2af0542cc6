//! The last states of deleted objects, in Secrets of the agent's namespace. They never leave the cluster.
//!
//! They are written before the first delete. If an object's state can't be read or written, it is not deleted. An
//! object that is too large to be stored is deleted, and counted.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use farwater_api::{
    Digest,
    deletion::{Deletion, MAX_LISTED},
    objects::ObjectRef,
    protocol::{ServiceAccount, ServiceIdentity},
};
use farwater_fleet::{ownership::service_label, plan::GroupVersionKind, prune::Candidate};
use futures::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    kinds::{Kinds, Served},
    kubernetes::{ApiError, Kubernetes},
    secrets::{self, Held},
};

const PURPOSE: &str = "tombstone";
const PREFIX: &str = "farwater-tombstone-";
/// Deletions stored for one service: the last one can be undone, and the remainder of a large one must not push it out.
const PER_SERVICE: usize = 3;
/// Most Secrets of all services: at most 45 MB of the cluster's database, in practice a few hundred kilobytes.
const PER_CLUSTER: usize = 64;
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);
/// Bytes of objects' JSON in one Secret. They fit compressed, whatever they contain.
const PART_BYTES: usize = 600 << 10;
/// Most parts of one deletion: some 10 MB of JSON, i.e. some thousands of objects.
const PARTS: usize = 16;
const PARALLEL: usize = 16;
const MAX_DECOMPRESSED: usize = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum TombstoneError {
    #[error("read the last state of {object}")]
    Read { object: ObjectRef, source: ApiError },
    #[error("keep the last states of objects before their deletion")]
    Store(#[source] ApiError),
    #[error("keep the last states of objects before their deletion")]
    Encode(#[source] std::io::Error),
    #[error("read the kept states of a deletion: {0}")]
    Damaged(String),
}

/// The last state of an object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    pub object: ObjectRef,
    pub state: Value,
}

/// Part 0 describes the deletion. It is written last.
#[derive(Serialize, Deserialize)]
struct Head {
    service: ServiceIdentity,
    deletion: Deletion,
    parts: usize,
}

/// The number of stored deletions is limited in each series, so that recreated objects don't push out deletions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    Deleted,
    Replaced,
}

/// The names of all tombstones, as last listed: each of a thousand new services may have had a predecessor, and one
/// list serves them all.
#[derive(Debug, Default)]
pub struct Listed(tokio::sync::Mutex<Option<(Instant, Answer)>>);

type Answer = Result<Vec<Name>, ApiError>;

impl Listed {
    /// How long a list is used: another agent may have written tombstones before this one took over.
    const LASTS: Duration = Duration::from_secs(10);
    /// How long a failure is used: for the services that waited for the same list, so that they don't wait one after
    /// the other.
    const FAILURE_LASTS: Duration = Duration::from_secs(1);

    async fn names(&self, kubernetes: &Kubernetes) -> Result<Vec<Name>, ApiError> {
        // Locked during the list, so that a tombstone that is written later is not missing from it.
        let mut listed = self.0.lock().await;
        if let Some((when, known)) = &*listed
            && when.elapsed()
                < if known.is_ok() {
                    Self::LASTS
                } else {
                    Self::FAILURE_LASTS
                }
        {
            return known.clone();
        }
        let found = names(kubernetes).await;
        *listed = Some((Instant::now(), found.clone()));
        found
    }

    async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

pub struct Tombstones<'a> {
    pub kubernetes: &'a Kubernetes,
    pub kinds: &'a Kinds,
    pub listed: &'a Listed,
    /// The hub's installation: tombstones of another hub's services are not restored.
    pub installation: String,
    pub service: &'a ServiceIdentity,
}

/// The name of a Secret: service, time and part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    label: String,
    /// Milliseconds since 1970.
    time: u64,
    part: usize,
}

impl Name {
    fn text(&self) -> String {
        format!("{PREFIX}{}-{:013}-{}", self.label, self.time, self.part)
    }

    fn parse(text: &str) -> Option<Self> {
        let (rest, part) = text.strip_prefix(PREFIX)?.rsplit_once('-')?;
        let (label, time) = rest.rsplit_once('-')?;
        Some(Self {
            label: label.to_owned(),
            time: time.parse().ok()?,
            part: part.parse().ok()?,
        })
    }
}

/// Stored states.
struct Saved {
    parts: usize,
    /// Number of states that did not fit, so that they can't be restored.
    lost: u32,
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

impl Tombstones<'_> {
    /// Label of the service's name, so that a recreated service of that name can restore what the former one's deletion
    /// took.
    fn label(&self, series: Series) -> String {
        let name = format!("{}/{}/{}", self.installation, self.service.namespace, self.service.name);
        match series {
            Series::Deleted => service_label(&name),
            Series::Replaced => service_label(&format!("{name}/replaced")),
        }
    }

    /// Stores the states of the objects that a plan is about to delete.
    pub async fn keep(
        &self,
        account: &ServiceAccount,
        digest: Digest,
        candidates: &[Candidate],
        series: Series,
    ) -> Result<Deletion, TombstoneError> {
        let name = Name {
            label: self.label(series),
            time: now_ms(),
            part: 0,
        };
        let Saved { parts, lost } = self.save_states(account, &name, candidates).await?;
        let deletion = Deletion {
            digest,
            time: i64::try_from(name.time / 1000).unwrap_or(i64::MAX),
            count: u32::try_from(candidates.len()).unwrap_or(u32::MAX),
            objects: candidates
                .iter()
                .take(MAX_LISTED)
                .map(|candidate| candidate.object.clone())
                .collect(),
            lost,
            approved_plan: None,
            undone: None,
        };

        let head = Head {
            service: self.service.clone(),
            deletion: deletion.clone(),
            parts,
        };
        let head = serde_json::to_vec(&head).map_err(|error| TombstoneError::Encode(error.into()))?;
        self.save(&name, &head).await?;
        self.listed.forget().await;
        Ok(deletion)
    }

    /// Stores the objects' states in parts after the head, which is part 0.
    async fn save_states(
        &self,
        account: &ServiceAccount,
        head: &Name,
        candidates: &[Candidate],
    ) -> Result<Saved, TombstoneError> {
        let name = |part| Name { part, ..head.clone() };
        let (mut parts, mut lost, mut bytes, mut objects) = (0, 0, 0, Vec::new());
        let reads: Vec<_> = candidates
            .iter()
            .map(|candidate| self.read(account, candidate))
            .collect();
        let mut states = stream::iter(reads).buffered(PARALLEL);
        while let Some(state) = states.next().await {
            // Gone, or another object has its name: ours need not be deleted.
            let Some(state) = state? else { continue };
            let json = serde_json::to_vec(&state).map_err(|error| TombstoneError::Encode(error.into()))?;
            if bytes > 0 && bytes + json.len() > PART_BYTES {
                parts += 1;
                self.save(&name(parts), &array(std::mem::take(&mut objects))).await?;
                bytes = 0;
            }
            if parts == PARTS || json.len() > PART_BYTES {
                lost += 1;
                continue;
            }
            bytes += json.len();
            objects.push(json);
        }

        if !objects.is_empty() {
            parts += 1;
            self.save(&name(parts), &array(objects)).await?;
        }
        Ok(Saved { parts, lost })
    }

    /// The last deletion of a service of this name. None: there is none.
    pub async fn newest(&self) -> Result<Option<Deletion>, TombstoneError> {
        let all = self
            .listed
            .names(self.kubernetes)
            .await
            .map_err(TombstoneError::Store)?;
        match self.heads(all, &[Series::Deleted]).first() {
            Some(name) => Ok(self.read_part::<Head>(name).await?.map(|head| head.deletion)),
            None => Ok(None),
        }
    }

    /// The deletions of these series, newest first.
    fn heads(&self, all: Vec<Name>, series: &[Series]) -> Vec<Name> {
        let labels: Vec<String> = series.iter().map(|series| self.label(*series)).collect();
        all.into_iter()
            .rev()
            .filter(|name| labels.contains(&name.label) && name.part == 0)
            .collect()
    }

    async fn read(&self, account: &ServiceAccount, candidate: &Candidate) -> Result<Option<State>, TombstoneError> {
        let object = candidate.object.clone();
        let failed = |source| TombstoneError::Read {
            object: candidate.object.clone(),
            source,
        };
        let gvk = GroupVersionKind::from(&object);
        let Served::As(resource) = self.kinds.find(self.kubernetes, &gvk).await.map_err(failed)? else {
            return Ok(None);
        };
        match self
            .kubernetes
            .get(Some(account), &resource.path_of(&object), false)
            .await
        {
            Ok(state) if state["metadata"]["uid"] == *candidate.uid => Ok(Some(State { object, state })),
            Ok(_) => Ok(None),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    async fn save(&self, name: &Name, bytes: &[u8]) -> Result<(), TombstoneError> {
        let compressed = secrets::compress(bytes).map_err(TombstoneError::Encode)?;
        secrets::save(self.kubernetes, PURPOSE, &name.text(), &compressed, Held::NotYet)
            .await
            .map_err(TombstoneError::Store)
    }

    /// The states that one deletion took. None: they are no longer stored.
    pub async fn load(&self, digest: Digest) -> Result<Option<Vec<State>>, TombstoneError> {
        let all = names(self.kubernetes).await.map_err(TombstoneError::Store)?;
        for head in self.heads(all, &[Series::Deleted, Series::Replaced]) {
            let Some(found) = self.read_part::<Head>(&head).await? else {
                continue;
            };
            if found.deletion.digest != digest {
                continue;
            }
            let mut states = Vec::new();
            for part in 1..=found.parts {
                let name = Name { part, ..head.clone() };
                let part = self.read_part::<Vec<State>>(&name).await?;
                states.extend(part.ok_or_else(|| TombstoneError::Damaged(format!("{} is missing", name.text())))?);
            }
            return Ok(Some(states));
        }
        Ok(None)
    }

    async fn read_part<T: serde::de::DeserializeOwned>(&self, name: &Name) -> Result<Option<T>, TombstoneError> {
        let text = name.text();
        let Some(bytes) = secrets::load(self.kubernetes, &text)
            .await
            .map_err(TombstoneError::Store)?
        else {
            return Ok(None);
        };
        let damaged = |error: &dyn std::error::Error| TombstoneError::Damaged(format!("{text}: {error}"));
        let bytes = zstd::bulk::decompress(&bytes, MAX_DECOMPRESSED).map_err(|error| damaged(&error))?;
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| damaged(&error))
    }
}

/// Joins values that are JSON already into an array.
fn array(values: Vec<Vec<u8>>) -> Vec<u8> {
    let mut out = b"[".to_vec();
    for (n, value) in values.into_iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        out.extend(value);
    }
    out.push(b']');
    out
}

/// All names in the cluster, the oldest of each service first.
async fn names(kubernetes: &Kubernetes) -> Result<Vec<Name>, ApiError> {
    let mut names: Vec<Name> = secrets::names(kubernetes, PURPOSE)
        .await?
        .iter()
        .filter_map(|name| Name::parse(name))
        .collect();
    names.sort();
    Ok(names)
}

/// Deletes what exceeds the limits. A failure only costs space.
pub async fn collect(kubernetes: &Kubernetes) {
    let now = now_ms();
    let found = match names(kubernetes).await {
        Ok(found) => found,
        Err(error) => return tracing::warn!(%error, "can't list the kept states of deletions"),
    };
    for name in surplus(found, now) {
        if let Err(error) = secrets::remove(kubernetes, &name.text()).await {
            tracing::warn!(%error, name = name.text(), "can't remove the kept states of a deletion");
        }
    }
}

/// The surplus: deletions that are too old, deletions of a service with enough newer ones, or the oldest if there are
/// too many in all.
fn surplus(names: Vec<Name>, now: u64) -> Vec<Name> {
    let mut deletions: BTreeMap<(u64, String), Vec<Name>> = BTreeMap::new();
    for name in names {
        deletions.entry((name.time, name.label.clone())).or_default().push(name);
    }
    let oldest = now.saturating_sub(u64::try_from(KEPT_FOR.as_millis()).unwrap_or(u64::MAX));
    let (mut of_service, mut of_cluster): (BTreeMap<String, usize>, usize) = (BTreeMap::new(), 0);
    let mut gone = Vec::new();
    for ((time, label), parts) in deletions.into_iter().rev() {
        let count = of_service.entry(label).or_default();
        let is_first = of_cluster == 0;
        if time < oldest || *count >= PER_SERVICE || (!is_first && of_cluster + parts.len() > PER_CLUSTER) {
            gone.extend(parts);
            continue;
        }
        *count += 1;
        of_cluster += parts.len();
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(label: &str, time: u64, part: usize) -> Name {
        Name {
            label: label.to_owned(),
            time,
            part,
        }
    }

    #[test]
    fn names_say_whose_when_and_which_part() {
        let one = name(&service_label("team/web"), 1_700_000_000_123, 12);
        assert_eq!(Name::parse(&one.text()), Some(one.clone()));
        assert!(one.text().len() <= 253);
        assert_eq!(Name::parse("farwater-inventory-x-0"), None);
        assert_eq!(Name::parse("farwater-tombstone-x-y-z"), None);
    }

    #[test]
    fn what_is_kept_is_bounded_by_service_by_cluster_and_by_age() {
        let day = 24 * 3600 * 1000;
        let now = 100 * day;
        let times = |gone: Vec<Name>| gone.into_iter().map(|name| (name.label, name.time)).collect::<Vec<_>>();
        let own = (1..=5).map(|n| name("a", now - n, 0)).collect();
        assert_eq!(
            times(surplus(own, now)),
            [("a".to_owned(), now - 4), ("a".to_owned(), now - 5)]
        );
        let old = vec![name("a", now - 31 * day, 0), name("b", now - 29 * day, 0)];
        assert_eq!(times(surplus(old, now)), [("a".to_owned(), now - 31 * day)]);
        let many: Vec<_> = (0..40)
            .flat_map(|n| [name(&format!("s{n}"), now - n, 0), name(&format!("s{n}"), now - n, 1)])
            .collect();
        let gone = surplus(many, now);
        assert_eq!(gone.len(), 80 - PER_CLUSTER);
        assert!(gone.iter().all(|name| name.time <= now - 32), "the oldest go");
        let large = (0..=PARTS).map(|part| name("a", now, part)).collect();
        assert_eq!(surplus(large, now), []);
    }
}
