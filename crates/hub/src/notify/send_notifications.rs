//! send_notifications: pending notifications → providers.
//!
//! A notification stays in its thread until the provider is known to have taken it. A hub that is killed in between
//! sends it again, under the same id. A provider that can't be reached is retried less and less often, and
//! notifications that have waited for a day are dropped.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use farwater_api::{
    Digest, NotificationProvider, NotificationProviderStatus, NotificationRule, notification_provider::MAX_PROVIDERS,
    requested_at,
};
use farwater_fleet::{
    conditions::{self, Verdict},
    notify::{GIVE_UP, News, SERVICE_THREADS, ServiceNews},
};
use farwater_store::{
    Resource, StoreError, Tx,
    delivery::{
        Thread, delay_threads, delete_old_threads, delete_orphaned_threads, delete_thread, delete_threads, due_threads,
        give_up_threads, load_thread, next_due, save_thread, waiting_threads,
    },
};
use jiff::Timestamp;

use crate::{
    notify::{Channel, Content, Fault, Letter, Sent, every, gap, is_end, is_lapsed},
    queue::Next,
    replica::Replica,
    resources::{self, Name, Stored as _},
};

/// Threads that are read at a time. All services of a fleet are one message.
const MOST: u32 = 10_000;
/// A thread without news for this long is deleted. If its rollout continues after that, it begins a new message.
const KEEP: Duration = Duration::from_secs(30 * 24 * 3600);
/// Least wait until due threads are loaded again.
const SOON: Duration = Duration::from_millis(50);
/// A pass ends after this, so that a hub that shuts down does not wait for a provider with many threads.
const PASS: Duration = Duration::from_secs(5);
/// A service that fails for less than this may be healthy before the message is read.
const STEADY: Duration = Duration::from_secs(2);
/// Threads per transaction, because other writers wait for it.
const AT_ONCE: usize = 200;

/// Reasons of `Ready` that say what became of the last messages. They stay until another message is sent.
const FAILED: &str = "DeliveryFailed";
const REFUSED: &str = "MessageRefused";
const GIVEN_UP: &str = "GivenUp";
const OUTCOMES: [&str; 3] = [FAILED, REFUSED, GIVEN_UP];

/// Loads providers and rules, before anything new is written, and queues every provider once. Deletes the threads of
/// providers that were deleted while no hub was running.
pub async fn load(replica: &Replica) -> Result<(), StoreError> {
    let kind = NotificationProvider::kind();
    let cleaned = replica
        .store
        .transact(move |tx| Box::pin(async move { delete_orphaned_threads(tx, kind.as_str()).await }));
    cleaned.await?;
    let (mut providers, mut rules) = (Vec::new(), Vec::new());
    resources::list_pages::<NotificationProvider>(&replica.store, None, |resource| providers.push(resource)).await?;
    resources::list_pages::<NotificationRule>(&replica.store, None, |resource| rules.push(resource)).await?;

    let name = |resource: &Resource| Name::new(&resource.key.namespace, &resource.key.name);
    let provider = |resource: Resource| {
        let typed: NotificationProvider = resources::parse(&resource)?;
        Ok((name(&resource), resource.uid, typed.spec))
    };
    let rule = |resource: Resource| {
        let typed: NotificationRule = resources::parse(&resource)?;
        Ok((name(&resource), typed.spec))
    };

    let providers = providers
        .into_iter()
        .map(provider)
        .collect::<Result<Vec<_>, StoreError>>()?;
    let rules = rules.into_iter().map(rule).collect::<Result<Vec<_>, StoreError>>()?;
    replica.notifications.learn(providers, rules);
    Ok(())
}

/// Deletes the pending notifications of a provider that is gone.
pub async fn forget(replica: &Replica, provider_uid: &str) -> Result<(), StoreError> {
    replica.notifications.paces().forget(provider_uid);
    let uid = provider_uid.to_owned();
    replica
        .store
        .transact(move |tx| Box::pin(async move { delete_threads(tx, &uid).await }))
        .await
}

pub async fn send_notifications(replica: Arc<Replica>, name: Name) -> Result<Next, StoreError> {
    let found = resources::load::<NotificationProvider>(&replica.store, &name).await?;
    let Some((resource, provider)) = found else {
        return Ok(Next::OnChange);
    };

    let sender = Sender {
        replica: &replica,
        name: &name,
        resource: &resource,
        provider: &provider,
    };
    if !replica.notifications.is_provider_in_force(&name) {
        let message =
            format!("the hub uses the first {MAX_PROVIDERS} providers of a namespace by name; this one comes later");
        sender
            .write_status(Some(Verdict::stalled("TooManyProviders", message)), sender.asked())
            .await?;
        return Ok(Next::OnChange);
    }

    if provider.spec.suspend {
        let verdict = Verdict::new("Ready", None, "Suspended", "suspended; notifications wait");
        sender.write_status(Some(vec![verdict]), sender.asked()).await?;
        return Ok(Next::OnChange);
    }

    let channel = match Channel::open(&replica, &name, &provider.spec).await? {
        Ok(channel) => channel,
        Err((reason, message)) => {
            sender
                .write_status(Some(Verdict::stalled(reason, message)), sender.asked())
                .await?;
            return Ok(Next::OnChange);
        }
    };
    sender.run(&channel).await
}

struct Sender<'a> {
    replica: &'a Replica,
    name: &'a Name,
    resource: &'a Resource,
    provider: &'a NotificationProvider,
}

/// Result of a pass over a provider's threads.
#[derive(Default)]
struct Outcome {
    sent: usize,
    /// The last message that was refused because of its content.
    refused: Option<Fault>,
    /// The provider takes no message at all.
    failed: Option<Fault>,
}

impl Sender<'_> {
    async fn run(&self, channel: &Channel) -> Result<Next, StoreError> {
        let uid = &self.resource.uid;
        let mut outcome = Outcome::default();
        let answered = self.asked();

        if let Some(asked) = &answered {
            match self.test(channel, asked).await {
                Ok(_) => outcome.sent += 1,
                Err(fault) => outcome.failed = Some(fault),
            }
        }

        let pause = self.replica.notifications.paces().of(uid).pause();
        if outcome.failed.is_none() {
            match pause {
                Some(_) if outcome.sent == 0 => {}
                _ => self.send_due(channel, &mut outcome).await?,
            }
        }

        let verdicts = self.judge(&outcome, pause.is_some()).await?;
        self.write_status(verdicts, answered).await?;
        self.clean().await?;

        let next = next_due(&mut *self.replica.store.tables().await?, uid).await?;
        let pause = self.replica.notifications.paces().of(uid).pause().unwrap_or_default();
        Ok(next.map_or(Next::OnChange, |due| {
            let wait = u64::try_from(due - Timestamp::now().as_millisecond()).unwrap_or(0);
            Next::After(Duration::from_millis(wait).max(pause).max(SOON))
        }))
    }

    /// The request for a test message, if it was not answered yet.
    fn asked(&self) -> Option<String> {
        let handled = self
            .provider
            .status
            .as_ref()
            .and_then(|status| status.last_handled_reconcile_at.as_deref());
        requested_at(&self.provider.metadata)
            .filter(|asked| Some(*asked) != handled)
            .map(str::to_owned)
    }

    /// Sends a test message, because a person asks for it.
    async fn test(&self, channel: &Channel, asked: &str) -> Result<Sent, Fault> {
        let letter = Letter {
            id: id(&self.resource.uid, &["test", asked]),
            thread: "test".to_owned(),
            sequence: 1,
            content: Content::Test,
            before: None,
            remote: String::new(),
        };
        channel.send(&letter).await
    }

    async fn send_due(&self, channel: &Channel, outcome: &mut Outcome) -> Result<(), StoreError> {
        let now = Timestamp::now().as_millisecond();
        let rows = due_threads(&mut *self.replica.store.tables().await?, &self.resource.uid, now, MOST).await?;
        let (services, rows): (Vec<_>, Vec<_>) = rows
            .into_iter()
            .partition(|row| row.thread.starts_with(SERVICE_THREADS));

        if !services.is_empty() {
            // Include those that became due meanwhile, so that an outage is one message.
            let (tables, uid) = (&mut *self.replica.store.tables().await?, &self.resource.uid);
            let since = now.saturating_sub(i64::try_from(STEADY.as_millis()).unwrap_or(i64::MAX));
            let services = waiting_threads(tables, uid, SERVICE_THREADS, since).await?;
            let (lapsed, services) = services.into_iter().partition(is_lapsed);
            self.settle(lapsed, None).await?;
            self.send_services(channel, services, outcome).await?;
        }

        let begun = Instant::now();
        for row in rows {
            if outcome.failed.is_some() || begun.elapsed() > PASS {
                return Ok(());
            }
            if outcome.sent > 0 {
                tokio::time::sleep(gap(self.provider.spec.r#type)).await;
            }
            // The thread may have changed while others were sent.
            let uid = &self.resource.uid;
            let row = load_thread(&mut *self.replica.store.tables().await?, uid, &row.thread).await?;
            match row.filter(|row| !row.waiting.is_empty()) {
                Some(row) if is_lapsed(&row) => self.settle(vec![row], None).await?,
                Some(row) => self.send_one(channel, row, outcome).await?,
                None => {}
            }
        }
        Ok(())
    }

    async fn send_one(&self, channel: &Channel, row: Thread, outcome: &mut Outcome) -> Result<(), StoreError> {
        let Ok(news) = serde_json::from_str::<News>(&row.waiting) else {
            // A newer hub wrote it.
            tracing::warn!(provider = %self.name, thread = row.thread, "can't read a pending notification; dropping it");
            return self.settle(vec![row], None).await;
        };

        let content = match &news {
            News::Rollout(news) => Content::Rollout(news),
            News::Commit(news) if self.provider.spec.r#type.is_git_host() => Content::Commit(news),
            News::Service(news) => Content::Services(std::slice::from_ref(news)),
            // The provider was one of a Git host when this was saved.
            News::Commit(_) => return self.settle(vec![row], None).await,
        };

        let letter = Letter {
            id: id(&row.provider_uid, &[&row.thread, &row.version.to_string()]),
            thread: row.thread.clone(),
            sequence: row.version,
            content,
            before: serde_json::from_str(&row.told).ok(),
            remote: row.remote.clone(),
        };

        match channel.send(&letter).await {
            Ok(Sent::Taken { remote }) => {
                outcome.sent += 1;
                self.settle(vec![row], Some(remote)).await
            }
            Ok(Sent::Skipped) => self.settle(vec![row], None).await,
            Err(fault) if fault.of_message => {
                tracing::warn!(provider = %self.name, thread = row.thread, error = %fault, "a message is not taken, and left out");
                outcome.refused = Some(fault);
                self.settle(vec![row], None).await
            }
            Err(fault) => {
                outcome.failed = Some(fault);
                Ok(())
            }
        }
    }

    /// Sends all services that fail or recover as one message.
    async fn send_services(
        &self,
        channel: &Channel,
        rows: Vec<Thread>,
        outcome: &mut Outcome,
    ) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }

        let mut services: Vec<ServiceNews> = Vec::with_capacity(rows.len());
        let mut parts: Vec<String> = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Ok(News::Service(news)) = serde_json::from_str(&row.waiting) {
                services.push(news);
            }
            parts.push(format!("{} {}", row.thread, row.version));
        }

        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let id = id(&self.resource.uid, &parts);
        let letter = Letter {
            thread: format!("services/{id}"),
            id,
            sequence: 1,
            content: Content::Services(&services),
            before: None,
            remote: String::new(),
        };

        let notifications = &self.replica.notifications;
        match channel.send(&letter).await {
            Ok(_) => {
                outcome.sent += 1;
                notifications.paces().of(&self.resource.uid).note_services();
            }
            Err(fault) if fault.of_message => outcome.refused = Some(fault),
            Err(fault) => {
                outcome.failed = Some(fault);
                return Ok(());
            }
        }

        self.settle(rows, Some(String::new())).await?;
        // Services that failed in the last moments go into the next message.
        let wait = notifications.paces().of(&self.resource.uid).until_services();
        let due = Timestamp::now().as_millisecond() + i64::try_from(wait.as_millis()).unwrap_or(0);
        let uid = self.resource.uid.clone();
        let delayed = self
            .replica
            .store
            .transact(move |tx| Box::pin(async move { delay_threads(tx, &uid, SERVICE_THREADS, due).await }));
        delayed.await
    }

    /// Clears what was sent, unless something newer is pending. `taken`: the provider's id of the message; None: it was
    /// dropped.
    async fn settle(&self, sent: Vec<Thread>, taken: Option<String>) -> Result<(), StoreError> {
        let kind = self.provider.spec.r#type;
        let haste = self.replica.notifications.paces().haste.max(1);
        let mut rest = sent.into_iter();
        loop {
            let some: Vec<Thread> = rest.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                return Ok(());
            }
            let taken = taken.clone();
            let settled = self.replica.store.transact(move |tx| {
                Box::pin(async move {
                    for sent in some {
                        let every = i64::try_from((every(kind, sent.version) / haste).as_millis()).unwrap_or(i64::MAX);
                        settle_one(tx, sent, taken.as_deref(), every).await?;
                    }
                    Ok(())
                })
            });
            settled.await?;
        }
    }

    /// The conditions to write; None: they stay as they are.
    async fn judge(&self, outcome: &Outcome, was_paused: bool) -> Result<Option<Vec<Verdict>>, StoreError> {
        let uid = &self.resource.uid;

        if let Some(fault) = &outcome.failed {
            let wait = self.replica.notifications.paces().of(uid).fail(fault.after);
            tracing::warn!(provider = %self.name, error = %fault, retry = ?wait, "a notification could not be sent");
            let before = Timestamp::now().as_millisecond() - i64::try_from(GIVE_UP.as_millis()).unwrap_or(i64::MAX);
            let of = uid.clone();
            let given_up = self
                .replica
                .store
                .transact(move |tx| Box::pin(async move { give_up_threads(tx, &of, before).await }))
                .await?;
            return Ok(Some(match given_up {
                0 => Verdict::reconciling(FAILED, fault.why.clone()),
                count => {
                    tracing::error!(provider = %self.name, count, "notifications that waited for a day are dropped");
                    let messages = if count == 1 {
                        "1 message".to_owned()
                    } else {
                        format!("{count} messages")
                    };
                    Verdict::stalled(GIVEN_UP, format!("gave up on {messages} after 24 hours: {}", fault.why))
                }
            }));
        }

        if outcome.sent > 0 {
            self.replica.notifications.paces().of(uid).succeed();
        }

        if let Some(fault) = &outcome.refused {
            return Ok(Some(Verdict::stalled(
                REFUSED,
                format!("the last message was left out: {}", fault.why),
            )));
        }

        let previous = self.provider.status.clone().unwrap_or_default();
        let is_outcome = previous
            .conditions
            .iter()
            .any(|one| one.type_ == "Ready" && OUTCOMES.contains(&one.reason.as_str()));
        let is_same = previous.observed_generation == self.provider.metadata.generation;
        // The result of the last message counts until the next one.
        if is_outcome && outcome.sent == 0 && (is_same || was_paused) {
            return Ok(None);
        }
        Ok(Some(Verdict::ready("Ready", "pending notifications are sent")))
    }

    async fn write_status(&self, verdicts: Option<Vec<Verdict>>, answered: Option<String>) -> Result<(), StoreError> {
        let previous = self.provider.status.clone().unwrap_or_default();
        let generation = self.provider.metadata.generation.unwrap_or(0);
        let conditions = match verdicts {
            Some(verdicts) => conditions::resolve(&previous.conditions, verdicts, generation, Timestamp::now()),
            None => previous.conditions,
        };
        let status = NotificationProviderStatus {
            observed_generation: Some(generation),
            conditions,
            last_handled_reconcile_at: answered.or(previous.last_handled_reconcile_at),
        };
        resources::write_status::<NotificationProvider>(&self.replica.store, self.name, &self.resource.uid, &status)
            .await
    }

    async fn clean(&self) -> Result<(), StoreError> {
        if !self
            .replica
            .notifications
            .paces()
            .of(&self.resource.uid)
            .is_to_be_cleaned()
        {
            return Ok(());
        }
        let before = Timestamp::now().as_millisecond() - i64::try_from(KEEP.as_millis()).unwrap_or(i64::MAX);
        let uid = self.resource.uid.clone();
        self.replica
            .store
            .transact(move |tx| Box::pin(async move { delete_old_threads(tx, &uid, before).await }))
            .await
    }
}

/// `every`: milliseconds between two messages of a thread.
async fn settle_one(tx: &mut Tx, sent: Thread, taken: Option<&str>, every: i64) -> Result<(), StoreError> {
    let found = load_thread(tx, &sent.provider_uid, &sent.thread).await?;
    // The provider is gone.
    let Some(mut row) = found else { return Ok(()) };
    let is_newest = row.version == sent.version;
    // The thread is over: no further message follows.
    if is_newest && (taken.is_some() || row.told.is_empty()) && is_end(&sent) {
        return delete_thread(tx, &sent.provider_uid, &sent.thread).await;
    }
    if is_newest {
        row.waiting = String::new();
    }
    if let Some(remote) = taken {
        let now = Timestamp::now().as_millisecond();
        (row.since, row.due, row.told_at) = (now, now.saturating_add(every), now);
        (row.told, row.remote) = (sent.waiting, remote.to_owned());
        if row.waiting == row.told {
            row.waiting = String::new();
        }
    }
    save_thread(tx, &row).await
}

/// Equal for equal messages.
fn id(provider_uid: &str, parts: &[&str]) -> String {
    format!(
        "msg_{}",
        &Digest::of(format!("{provider_uid}\n{}", parts.join("\n"))).to_hex()[..32]
    )
}
