//! Postings: news of a thread, saved in the transaction of the change that it is about.

use std::time::Duration;

use farwater_api::notification_rule::{EventKind, EventSeverity};
use farwater_fleet::{
    notify::{
        CommitNews, CommitState, Course, News, RolloutNews, ServiceNews, commit_thread, commit_threads, has_lapsed,
        is_news, rollout_thread, service_thread,
    },
    rollout::Standing,
    webhooks::hint::Address,
};
use farwater_store::{
    Connection, Resource, StoreError,
    delivery::{Thread, load_thread, save_thread, threads_below},
};
use jiff::Timestamp;

use super::{Notifications, Target};
use crate::{kinds::meta::labels, resources::Name};

/// Part of the text of a commit status that is not final.
const RUNNING: &str = r#""state":"Running""#;

/// News of a thread, for one provider.
#[derive(Clone, Debug)]
pub struct Posting {
    provider_uid: String,
    thread: String,
    news: News,
    /// Whether it may be the first of its thread.
    begins: bool,
    /// Least wait before it is sent.
    wait: Duration,
}

impl Posting {
    async fn save(&self, connection: &mut Connection) -> Result<(), StoreError> {
        let next = serde_json::to_string(&self.news).map_err(StoreError::abort)?;
        let known = load_thread(connection, &self.provider_uid, &self.thread).await?;
        let texts = known
            .as_ref()
            .map(|known| (known.waiting.as_str(), known.told.as_str()));
        if !is_news(texts, &next, self.begins) {
            return Ok(());
        }
        let known = known.unwrap_or_else(|| Thread {
            provider_uid: self.provider_uid.clone(),
            thread: self.thread.clone(),
            ..Thread::default()
        });
        let now = Timestamp::now().as_millisecond();
        let wait = i64::try_from(self.wait.as_millis()).unwrap_or(i64::MAX);
        // Lapsed news are not sent, so the next news start a new batch.
        let starts_new_batch = known.waiting.is_empty() || is_lapsed(&known);
        let (since, due) = match starts_new_batch {
            true => (now, known.due.max(now.saturating_add(wait))),
            false => (known.since, known.due),
        };
        save_thread(
            connection,
            &Thread {
                waiting: next,
                version: known.version + 1,
                since,
                due,
                ..known
            },
        )
        .await
    }
}

/// Whether the pending news only says that something is over.
pub fn is_end(row: &Thread) -> bool {
    matches!(
        serde_json::from_str(&row.waiting),
        Ok(News::Service(ServiceNews { is_well: true, .. }))
    )
}

/// Whether the pending news has become irrelevant.
pub fn is_lapsed(row: &Thread) -> bool {
    has_lapsed((&row.waiting, &row.told), is_end(row))
}

/// The news of one change for all providers.
#[derive(Clone, Debug, Default)]
pub struct Postings {
    postings: Vec<Posting>,
    superseded: Vec<Superseded>,
    providers: Vec<Name>,
}

/// A rollout that was replaced by another one.
#[derive(Clone, Debug)]
struct Superseded {
    provider_uid: String,
    set_uid: String,
    number: u64,
    /// The new commit.
    commit: Option<String>,
}

/// Commit of a set's first source that is a Git repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    pub repository: String,
    pub reference: String,
    pub commit: String,
}

/// A cluster whose commit status has changed.
#[derive(Clone, Debug)]
pub struct MemberNews {
    pub cluster_uid: String,
    /// `namespace/name`
    pub cluster: String,
    pub state: CommitState,
    pub standing: Standing,
}

/// The news of a decision about a rollout that is open, or was until then.
#[derive(Debug)]
pub struct RolloutChange<'a> {
    pub set_uid: &'a str,
    pub news: RolloutNews,
    pub commit: Option<&'a Commit>,
    pub members: Vec<MemberNews>,
    /// Number of the rollout before, if it was still open.
    pub before: Option<u64>,
}

impl Postings {
    pub fn of_rollout(targets: &[Target], change: &RolloutChange<'_>) -> Self {
        let mut all = Self::default();
        for target in targets {
            all.providers.push(target.provider.clone());
            let superseded = change.before.map(|number| Superseded {
                provider_uid: target.uid.clone(),
                set_uid: change.set_uid.to_owned(),
                number,
                commit: change.commit.map(|commit| commit.commit.clone()),
            });
            all.superseded.extend(superseded);
            if target.spec.r#type.is_git_host() {
                all.add_commit(target, change);
                continue;
            }
            let news = RolloutNews {
                summary: target.summary.clone(),
                ..change.news.clone()
            };
            all.postings.push(Posting {
                provider_uid: target.uid.clone(),
                thread: rollout_thread(change.set_uid, news.number),
                begins: news.course.severity() >= target.severity,
                news: News::Rollout(news),
                wait: Duration::ZERO,
            });
        }
        all
    }

    fn add_commit(&mut self, target: &Target, change: &RolloutChange<'_>) {
        let Some(commit) = change.commit.filter(|commit| is_of(target, &commit.repository)) else {
            return;
        };
        let options = target.spec.commit_status.clone().unwrap_or_default();
        let of_set = CommitNews::of_rollout(&change.news, &commit.commit, &options.context);
        let posting = |thread: String, news: CommitNews| Posting {
            provider_uid: target.uid.clone(),
            begins: target.severity == EventSeverity::Info || news.state == CommitState::Failed,
            thread,
            news: News::Commit(news),
            wait: Duration::ZERO,
        };
        if options.per_cluster {
            let one = |member: &MemberNews| {
                let thread = commit_thread(change.set_uid, &commit.commit, Some(&member.cluster_uid));
                posting(
                    thread,
                    of_set.of_member(&member.cluster, member.state, &member.standing),
                )
            };
            self.postings.extend(change.members.iter().map(one));
        }
        self.postings
            .push(posting(commit_thread(change.set_uid, &commit.commit, None), of_set));
    }

    pub async fn save(&self, connection: &mut Connection) -> Result<(), StoreError> {
        for superseded in &self.superseded {
            superseded.save(connection).await?;
        }
        for posting in &self.postings {
            posting.save(connection).await?;
        }
        Ok(())
    }

    /// Call this after the commit.
    pub fn wake(self, notifications: &Notifications) {
        notifications.wake(self.providers);
    }
}

/// A service fails, or has recovered.
pub fn service_posting(notifications: &Notifications, target: &Target, uid: &str, news: ServiceNews) -> Postings {
    let wait = {
        let mut paces = notifications.paces();
        let others = paces.of(&target.uid).until_services();
        paces.gather.max(others)
    };
    let posting = Posting {
        provider_uid: target.uid.clone(),
        thread: service_thread(uid),
        begins: !news.is_well,
        news: News::Service(ServiceNews {
            summary: target.summary.clone(),
            ..news
        }),
        wait,
    };
    Postings {
        postings: vec![posting],
        superseded: Vec::new(),
        providers: vec![target.provider.clone()],
    }
}

/// A service is gone: people who were notified of its failure need not look after it any more.
pub fn farewell_postings(notifications: &Notifications, resource: &Resource) -> Vec<Postings> {
    let (namespace, name) = (&resource.key.namespace, &resource.key.name);
    let of = (EventKind::ServiceDeployment, name.as_str());
    let targets = notifications.targets(namespace, of, &labels(&resource.object));
    let targets = targets.into_iter().filter(|target| !target.spec.r#type.is_git_host());
    let news = ServiceNews {
        namespace: namespace.clone(),
        name: name.clone(),
        cluster: resource.object["spec"]["clusterRef"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        is_well: true,
        message: "was deleted".to_owned(),
        summary: String::new(),
    };
    targets
        .map(|target| service_posting(notifications, &target, &resource.uid, news.clone()))
        .collect()
}

/// Whether this is a provider's repository. Hosts have several names, inside and outside; paths are the same.
fn is_of(target: &Target, repository: &str) -> bool {
    let stated = target.spec.address.as_deref().and_then(Address::parse);
    stated.is_some_and(|stated| Address::parse(repository).is_some_and(|found| found.path == stated.path))
}

/// The newest news of a thread.
fn newest(row: &Thread) -> Option<News> {
    let text = if row.waiting.is_empty() {
        &row.told
    } else {
        &row.waiting
    };
    serde_json::from_str(text).ok()
}

impl Superseded {
    async fn save(&self, connection: &mut Connection) -> Result<(), StoreError> {
        let thread = rollout_thread(&self.set_uid, self.number);
        let mut rows: Vec<Thread> = load_thread(connection, &self.provider_uid, &thread)
            .await?
            .into_iter()
            .collect();
        rows.extend(threads_below(connection, &self.provider_uid, &commit_threads(&self.set_uid), RUNNING).await?);
        for row in rows {
            let news = match newest(&row) {
                Some(News::Rollout(news)) => News::Rollout(RolloutNews {
                    course: Course::Superseded,
                    ..news
                }),
                Some(News::Commit(news))
                    if news.state == CommitState::Running && self.commit.as_ref() != Some(&news.commit) =>
                {
                    News::Commit(news.superseded())
                }
                _ => continue,
            };
            let (provider_uid, thread) = (row.provider_uid, row.thread);
            Posting {
                provider_uid,
                thread,
                news,
                begins: false,
                wait: Duration::ZERO,
            }
            .save(connection)
            .await?;
        }
        Ok(())
    }
}
