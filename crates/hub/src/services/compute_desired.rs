//! compute_desired: dirty clusters → signed desired states.
//!
//! A state is computed when something changes, never per request. It is published under a new generation only if its
//! tag differs, so that recomputing it has no effect.

mod entries;
mod publish;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use farwater_api::{health_rule::HealthRules, protocol::Verbatim};
use farwater_fleet::{assignment::Why, placement::NamedGrant};
use farwater_store::{
    StoreError,
    delivery::{Assignment, ClusterRows, Desired, DirtyMark, load_cluster_rows, load_dirty, load_revision},
};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{
    ClusterFacts, load_grants,
    parameters::{Fresh, InputCache},
    released_entry,
    rows::TypedRow as _,
    select_health_rules,
};
use crate::{
    clusters::advance_agents, delivery::desired::Content, errors::chain, guards::follow_windows::Handing,
    memory::timeline::NewEntry, replica::Replica, resources::Name, sources::git,
};
use entries::resolve_entries;
pub use entries::{facts_of, load_facts};
use publish::{Done, MemberChange, next_desired, publish};

/// Clusters per round, to bound the transaction that publishes them.
const BATCH: u32 = 200;
/// How long a cluster rests after it was computed. Its first change is computed at once. All changes that arrive during
/// the rest are computed together, because each computation reads all services of the cluster.
const GATHER: Duration = Duration::from_millis(100);
/// A cluster rests this many times as long as its computation took, if that is longer than [`GATHER`], up to
/// [`LONGEST`]. While services arrive by the hundred, reading all of a cluster's services for each few of them would
/// otherwise be most of the work.
const REST: u32 = 4;
const LONGEST: Duration = Duration::from_secs(1);
/// Least pause between two rounds. The pause is as long as the last round took, up to [`GATHER`], so that clusters that
/// change one after the other are published in batches. After a round that left clusters for later, the pause begins
/// with this and doubles with each such round.
const PAUSE: Duration = Duration::from_millis(5);
/// Services that are read and held in memory at a time.
const READ_AT_ONCE: usize = 500;
/// How long after a fetch, in seconds, the services of a source are published together: large bundles take time to
/// build.
const HALFWAY_SECONDS: i64 = 5;
/// Backstop for a lost wake-up: marks are checked this often.
const IDLE: Duration = Duration::from_secs(5);

pub async fn run(replica: Arc<Replica>, shutdown: CancellationToken) {
    let (mut resting, mut almost) = (Resting::default(), PAUSE);
    loop {
        let begun = Instant::now();
        resting.wake(begun);
        // Before clusters are loaded, an unknown cluster may well exist, so its mark must stay.
        let computed = if replica.memory.clusters.is_loaded() {
            compute_batch(&replica, &mut resting).await
        } else {
            Ok(Round::default())
        };

        // How long to wait, and whether a new mark ends the wait.
        let (longest, is_woken) = match computed {
            Ok(Round { done: 0, held, .. }) => {
                let end = resting.first_end().filter(|_| held);
                (
                    end.map_or(IDLE, |end| end.saturating_duration_since(Instant::now())),
                    true,
                )
            }
            Ok(round) => (round.pause(begun.elapsed(), &mut almost), false),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "compute desired states");
                (IDLE, false)
            }
        };

        let wait = async {
            tokio::select! { () = replica.signals.dirty.notified(), if is_woken => {} () = tokio::time::sleep(longest) => {} }
        };
        if shutdown.run_until_cancelled(wait).await.is_none() {
            return;
        }
    }
}

/// Clusters that were computed a moment ago, and until when their further changes are gathered.
#[derive(Default)]
struct Resting(HashMap<String, Instant>);

impl Resting {
    /// `took`: how long the computation took.
    fn begin(&mut self, cluster_uid: String, took: Duration) {
        self.0
            .insert(cluster_uid, Instant::now() + (took * REST).clamp(GATHER, LONGEST));
    }

    fn wake(&mut self, now: Instant) {
        self.0.retain(|_, end| *end > now);
    }

    fn first_end(&self) -> Option<Instant> {
        self.0.values().min().copied()
    }
}

/// Result of a round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    done: usize,
    /// Clusters of `done` that are left for a later round: a source of theirs has moved, and not all of its services
    /// are assigned.
    later: usize,
    /// Other clusters are marked, but rest.
    held: bool,
}

impl Round {
    /// Pause before the next round. `took`: how long this round took; `almost`: the pause if this round left clusters
    /// for later.
    fn pause(self, took: Duration, almost: &mut Duration) -> Duration {
        if self.later > 0 {
            let next = (*almost * 2).min(GATHER);
            return std::mem::replace(almost, next);
        }
        *almost = PAUSE;
        took.clamp(PAUSE, GATHER)
    }
}

/// Recomputes some dirty clusters.
async fn compute_batch(replica: &Replica, resting: &mut Resting) -> Result<Round, StoreError> {
    let limit = BATCH.saturating_add(u32::try_from(resting.0.len()).unwrap_or(u32::MAX));
    let mut marks = load_dirty(&mut *replica.store.tables().await?, limit).await?;
    let all = marks.len();
    marks.retain(|mark| !resting.0.contains_key(&mark.cluster_uid));
    let mut round = Round {
        held: marks.len() < all,
        ..Round::default()
    };
    marks.truncate(BATCH as usize);
    if marks.is_empty() {
        return Ok(round);
    }

    let begun = SystemTime::now();
    let grants = load_grants(&replica.store).await?;
    let health = select_health_rules::load(&replica.store).await?.map(Verbatim::from);
    let (mut published, mut times) = (Vec::new(), Vec::new());
    let mut inputs = InputCache::default();

    for mark in marks {
        let started = Instant::now();
        match compute_cluster(replica, &mark, &grants, health.as_ref(), &mut inputs).await {
            Ok(Computed::Now { next, fresh, changes }) => {
                round.done += 1;
                times.push((mark.cluster_uid.clone(), started.elapsed()));
                published.push(Done {
                    mark,
                    next: next.map(|next| *next),
                    fresh,
                    changes,
                });
            }
            // The cluster keeps its mark for the next round.
            Ok(Computed::Later) => {
                round.done += 1;
                round.later += 1;
            }
            // A cluster that can't be computed keeps its mark and its current state, and does not hold up the others.
            Err(error) => {
                tracing::error!(cluster = mark.cluster_uid, error = %chain(&error), "compute a desired state")
            }
        }
    }

    let publishing = Instant::now();
    publish(replica, published, begun).await?;

    let each = publishing.elapsed() / u32::try_from(times.len()).unwrap_or(u32::MAX).max(1);
    for (cluster_uid, took) in times {
        resting.begin(cluster_uid, took + each);
    }
    Ok(round)
}

/// A cluster's next state.
struct Next {
    row: Desired,
    /// Its new entries, for traces; empty if traces are off.
    news: Vec<NewEntry>,
}

enum Computed {
    Now {
        /// The cluster's next state, if it differs from the current one.
        next: Option<Box<Next>>,
        fresh: Vec<Fresh>,
        changes: Vec<MemberChange>,
    },
    /// A source has moved, and not all of its services are assigned from it.
    Later,
}

impl Computed {
    const NOTHING: Self = Self::Now {
        next: None,
        fresh: Vec::new(),
        changes: Vec::new(),
    };
}

async fn compute_cluster(
    replica: &Replica,
    mark: &DirtyMark,
    grants: &[NamedGrant],
    health: Option<&Verbatim<HealthRules>>,
    inputs: &mut InputCache,
) -> Result<Computed, StoreError> {
    let Some(state) = replica.memory.clusters.get(&mark.cluster_uid) else {
        return Ok(Computed::NOTHING);
    };
    let name = Name::new(&state.namespace, &state.name);
    let Some(cluster) = ClusterFacts::load(replica, &name)
        .await?
        .filter(|c| c.uid == mark.cluster_uid)
    else {
        return Ok(Computed::NOTHING);
    };

    let known = load_cluster_rows(&mut *replica.store.tables().await?, &cluster.uid).await?;
    if is_halfway(replica, &known.assignments, &known.touched).await? {
        return Ok(Computed::Later);
    }

    let handing = Handing::new(&replica.memory.windows, &cluster);
    let (mut entries, fresh, changes, windows) =
        resolve_entries(replica, &cluster, &known, grants, (inputs, handing)).await?;

    let ClusterRows {
        released,
        desired,
        update,
        ..
    } = known;
    entries.extend(
        released
            .iter()
            .map(|row| Verbatim::from(released_entry(row, cluster.suspended))),
    );
    entries.sort_by(|a, b| a.service.uid.cmp(&b.service.uid));
    let agent = update
        .map(|row| advance_agents::read_text(&row.cluster_uid, &row.settings))
        .transpose()?
        .flatten();

    let content = Content {
        entries,
        agent,
        health: health.cloned(),
        windows,
    };
    let next = next_desired(replica, &cluster, content, desired)?;
    Ok(Computed::Now {
        next: next.map(Box::new),
        fresh,
        changes,
    })
}

/// Whether a commit has reached some of the services that it concerns and not all. They are published together, because
/// one service may take over what another gives up. Services that can't be assigned are not waited for, and no service
/// for longer than [`HALFWAY_SECONDS`].
async fn is_halfway(replica: &Replica, rows: &[Assignment], touched: &HashSet<String>) -> Result<bool, StoreError> {
    let mut by_source: HashMap<&str, Vec<&Assignment>> = HashMap::new();
    for row in rows.iter().filter(|row| !row.source_uid.is_empty()) {
        by_source.entry(&row.source_uid).or_default().push(row);
    }
    for (source, rows) in by_source.into_iter().filter(|(_, rows)| rows.len() > 1) {
        let Some(revision) = load_revision(&mut *replica.store.tables().await?, source).await? else {
            continue;
        };
        if Timestamp::now().as_second() - revision.fetched > HALFWAY_SECONDS {
            continue;
        }
        if is_split(
            &rows,
            touched,
            &git::format_revision(&revision.reference, &revision.commit),
        )? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether some services are at a revision of their source while others that it concerns are not.
fn is_split(rows: &[&Assignment], touched: &HashSet<String>, revision: &str) -> Result<bool, StoreError> {
    let (mut here, mut waits) = (false, false);
    for row in rows {
        let why = row.read_decided()?.why;
        match row.read_candidate()? {
            Some(candidate) if candidate.revision == revision => here = true,
            _ => {
                waits |= touched.contains(&row.service_uid)
                    && !matches!(why, Why::Trouble(_) | Why::Rollout | Why::Frozen(_))
            }
        }
    }
    Ok(here && waits)
}

#[cfg(test)]
mod tests {
    use farwater_fleet::assignment::Trouble;
    use serde_json::json;

    use super::*;

    fn row(name: &str, revision: &str, why: &Why) -> Assignment {
        let digest = farwater_api::Digest::of("");
        let candidate =
            json!({"revision": revision, "contentId": digest, "bundle": digest, "bundleBytes": 1, "path": "."});
        Assignment {
            service_uid: name.to_owned(),
            namespace: "team-a".to_owned(),
            name: name.to_owned(),
            cluster_uid: "east".to_owned(),
            source_uid: "infra".to_owned(),
            generation: 1,
            stamp: String::new(),
            candidate: Some(candidate.to_string()),
            assigned: None,
            why: serde_json::to_string(why).unwrap(),
        }
    }

    #[test]
    fn services_that_a_commit_concerns_wait_for_one_another_and_for_no_others() {
        let split = |second: &Assignment, touched: &[&str]| {
            let touched = touched.iter().map(|name| (*name).to_owned()).collect();
            is_split(&[&row("a", "new", &Why::Current), second], &touched, "new").unwrap()
        };
        let old = row("b", "old", &Why::Current);
        assert!(split(&old, &["b"]));
        assert!(!split(&old, &[]), "it stays at the old one");
        assert!(!split(&row("b", "new", &Why::Current), &["b"]));
        let gone = Why::Trouble(Trouble::Secret {
            message: "x".to_owned(),
        });
        assert!(!split(&row("b", "old", &gone), &["b"]));
        let none_yet = is_split(&[&old, &old], &["b".to_owned()].into(), "new");
        assert!(!none_yet.unwrap());
    }

    #[test]
    fn rounds_pause_as_long_as_they_take_and_less_where_something_is_left() {
        let (quick, heavy) = (Duration::from_millis(3), Duration::from_millis(150));
        let mut almost = PAUSE;
        let mut pause = |done, later, took| {
            Round {
                done,
                later,
                held: false,
            }
            .pause(took, &mut almost)
        };
        assert_eq!(pause(1, 0, quick), PAUSE);
        assert_eq!(pause(BATCH as usize, 0, heavy), GATHER);
        let left: Vec<_> = (0..7).map(|_| pause(2, 1, heavy).as_millis()).collect();
        assert_eq!(left, [5, 10, 20, 40, 80, 100, 100]);
        assert_eq!(pause(2, 0, quick), PAUSE);
        assert_eq!(pause(2, 1, quick), PAUSE, "from the beginning again");
    }

    #[test]
    fn a_cluster_rests_as_it_was_heavy_and_no_other_waits_for_it() {
        let rest = |took| {
            let mut resting = Resting::default();
            let before = Instant::now();
            resting.begin("a".to_owned(), took);
            resting.first_end().unwrap() - before
        };
        let about = |duration: Duration| duration..duration + Duration::from_millis(50);
        assert!(about(GATHER).contains(&rest(Duration::from_millis(3))));
        assert!(about(Duration::from_millis(600)).contains(&rest(Duration::from_millis(150))));
        assert!(about(LONGEST).contains(&rest(Duration::from_secs(9))));
        let mut resting = Resting::default();
        resting.begin("a".to_owned(), Duration::ZERO);
        resting.wake(Instant::now());
        assert!(resting.0.contains_key("a") && !resting.0.contains_key("b"));
        resting.wake(Instant::now() + GATHER);
        assert!(resting.0.is_empty());
    }
}
