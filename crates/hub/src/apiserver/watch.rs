//! Watch: changes as a stream of JSON lines.
//!
//! A watch without a version begins with the present state as ADDED events. That state is read in pages at different
//! moments. Changes that a page already showed are left out afterwards, so that no object goes back in time.
//!
//! Each page is read in a turn like any list, and the turn is released before the page is sent, so that a slow client
//! delays only its own watch.

use std::{collections::HashMap, pin::pin, sync::Arc, time::Duration};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use farwater_store::{JsonResource, Key, Operation, Page, Resource, Watch, WatchError, WatchEvent};
use futures::{StreamExt as _, stream};
use http::{HeaderValue, header};
use jiff::Timestamp;
use rand::RngExt as _;
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{admission, call::Call, decide_again, options::ListOptions, read, respond};
use crate::{
    answers::UserAnswers,
    kinds::{meta, selector::Filter, status::ApiError},
    room::Held,
    turns::{Share, Turn},
};

/// How often a watch that asked for bookmarks gets one, as in kube-apiserver.
const BOOKMARKS: Duration = Duration::from_secs(60);
/// Maximum number of events that wait for a slow client. Beyond that they wait in the ring, and a client that is slower
/// still has to list again.
const BUFFER: usize = 64;
/// Objects read at a time for the initial state.
const PAGE: usize = 500;
const CATCH_UP: Duration = Duration::from_secs(5);
/// How long a decision about the sender's token, account and rights counts. With the time for deciding again, a watch
/// ends within 5 s of the change that ends its right.
const DECIDED: Duration = Duration::from_secs(3);
/// A watch ends if its right could not be decided for this long.
const UNDECIDED: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(500);
/// How long a client may read nothing while there is little memory for unread events.
const SHORT: Duration = Duration::from_secs(10);
/// The same while there is enough memory.
const STALLED: Duration = Duration::from_secs(300);
/// Maximum duration of a watch in seconds, even if the client asks for more. After that the client continues where it
/// was.
const LONGEST: u64 = 3600;

/// How a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// With the present state as ADDED events.
    State,
    /// With the next change.
    Now,
    /// After this version.
    Version(u64),
}

/// The semantics of resourceVersion and sendInitialEvents (Kubernetes API concepts, "Semantics for watch").
fn start_of(options: &ListOptions, send_initial_given: bool) -> Start {
    match options.version {
        _ if options.send_initial => Start::State,
        None | Some(0) if send_initial_given => Start::Now,
        None | Some(0) => Start::State,
        Some(version) => Start::Version(version),
    }
}

/// The type of an event for a watcher with this filter; None: it is not shown.
fn event_type(event: &WatchEvent, filter: &Filter) -> Option<&'static str> {
    let is = match event.operation {
        Operation::Deleted => false,
        _ => filter.matches(&event.object, &meta::labels(&event.object)),
    };
    let was = match event.operation {
        Operation::Created => false,
        // The old object isn't kept, only its labels. Of the selectable fields only a phase ever changes. An unneeded
        // DELETED is harmless, a missing one is not.
        _ => {
            let lasting = filter
                .fields
                .iter()
                .filter(|f| f.field != "status.phase")
                .cloned()
                .collect();
            Filter {
                fields: lasting,
                ..filter.clone()
            }
            .matches(&event.object, &event.old_labels)
        }
    };
    match (was, is) {
        (false, false) => None,
        (false, true) => Some("ADDED"),
        (true, true) => Some("MODIFIED"),
        (true, false) => Some("DELETED"),
    }
}

pub fn watch(call: Call, turn: Turn) -> Result<Response, ApiError> {
    let options = ListOptions::parse(&call.query, call.kind, true)?;
    let given = call.query.get("sendInitialEvents").is_some();
    let start = start_of(&options, given);
    // Only an initial state has to be read.
    let turn = (start == Start::State).then_some(turn);

    let place = Arc::clone(&call.hub.watches).try_acquire_owned();
    let place = place.map_err(|_| ApiError::too_many_watches(call.hub.config.max_watches))?;
    let share = call
        .hub
        .watch_shares
        .take(call.user.share_name())
        .ok_or_else(ApiError::too_many_watches_of_user)?;
    let (sender, receiver) = mpsc::channel(BUFFER);

    let lasts = options.timeout_seconds.map_or_else(
        // Between half an hour and an hour, so that watches that began together don't end together.
        || Duration::from_secs(rand::rng().random_range(1800..3600)),
        |seconds| Duration::from_secs(seconds.min(LONGEST)),
    );
    let deadline = Instant::now() + lasts;
    let passes_on = read::passes_on(&call, &options.filter);
    let decided = Instant::now();
    let answers = call.hub.answers.of(&call.user);

    let feed = Feed {
        call: Arc::new(call),
        options,
        passes_on,
        sender,
        answers,
        columns_sent: false,
        deadline,
        decided,
        _place: (place, share),
    };
    tokio::spawn(feed.run(start, turn));

    let lines = stream::unfold(receiver, |mut receiver| async move {
        receiver
            .recv()
            .await
            .map(|line: Bytes| (Ok::<_, std::convert::Infallible>(line), receiver))
    });
    let mut response = Response::new(Body::from_stream(lines));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    Ok(response)
}

/// An object of the initial state.
struct StateLine {
    key: Key,
    version: u64,
    line: Bytes,
}

/// Why a feed stops.
enum Ended {
    /// The client is gone, or the watch's time is over.
    Silently,
    /// The client gets the error as an event, because the answer has begun.
    With(ApiError),
}

struct Feed {
    call: Arc<Call>,
    options: ListOptions,
    /// Whether events are sent as they are stored.
    passes_on: bool,
    sender: mpsc::Sender<Bytes>,
    /// Memory for unread events.
    answers: UserAnswers,
    columns_sent: bool,
    deadline: Instant,
    /// When the sender's rights were decided last.
    decided: Instant,
    /// A place of `max-watches`, and one of the user's.
    _place: (OwnedSemaphorePermit, Share),
}

impl Feed {
    async fn run(mut self, start: Start, turn: Option<Turn>) {
        if let Err(Ended::With(error)) = self.follow(start, turn).await {
            let _ = self.send("ERROR", error.to_value()).await;
        }
    }

    async fn follow(&mut self, start: Start, turn: Option<Turn>) -> Result<(), Ended> {
        let store = self.call.hub.store.clone();
        let mut shown = HashMap::new();
        let mut complete_at = None;
        let from = match start {
            Start::Version(version) => version,
            Start::Now => store.position(),
            Start::State => {
                let (first, last) = self.send_state(&mut shown, turn).await?;
                complete_at = Some(last);
                first
            }
        };

        let watch = store.watch(Some(self.call.kind.store.clone()), from);
        let mut watch = watch.map_err(|error| Ended::With(too_old(&error)))?;

        if let Some(last) = complete_at {
            // Changes between the first page and the last belong to the state that the bookmark ends.
            if !store.wait_for(last, CATCH_UP).await {
                return Err(Ended::With(ApiError::version_too_large(last, store.position())));
            }
            while watch.position() < last {
                match watch.next().await {
                    Some(Ok(event)) => self.send_event(&event, &mut shown).await?,
                    Some(Err(error)) => return Err(Ended::With(too_old(&error))),
                    None => return Err(Ended::Silently),
                }
            }
            if self.options.send_initial && self.options.bookmarks {
                self.send_bookmark(watch.position(), true).await?;
            }
        }

        self.stream(watch, shown).await
    }

    async fn stream(&mut self, mut watch: Watch, mut shown: HashMap<Key, u64>) -> Result<(), Ended> {
        let shutdown = self.call.hub.shutdown.clone();
        let mut bookmark = Instant::now() + BOOKMARKS;
        loop {
            tokio::select! {
                event = watch.next() => match event {
                    Some(Ok(event)) => self.send_event(&event, &mut shown).await?,
                    Some(Err(error)) => return Err(Ended::With(too_old(&error))),
                    None => return Err(Ended::Silently),
                },
                () = sleep_until(self.decided + DECIDED) => self.keep_decided().await?,
                () = self.sender.closed() => return Err(Ended::Silently),
                () = shutdown.cancelled() => return Err(Ended::Silently),
                () = sleep_until(bookmark), if self.options.bookmarks => {
                    self.send_bookmark(watch.position(), false).await?;
                    bookmark = Instant::now() + BOOKMARKS;
                }
                () = sleep_until(self.deadline) => {
                    if self.options.bookmarks {
                        self.send_bookmark(watch.position(), false).await?;
                    }
                    return Err(Ended::Silently);
                }
            }
        }
    }

    /// Decides the watch's right again if the last decision is too old. Until that succeeds, nothing is sent.
    async fn keep_decided(&mut self) -> Result<(), Ended> {
        let shutdown = self.call.hub.shutdown.clone();
        while self.decided.elapsed() >= DECIDED {
            match decide_again(&self.call).await {
                Ok(()) => self.decided = Instant::now(),
                Err(error) if error.code == 503 && self.decided.elapsed() < UNDECIDED => tokio::select! {
                    () = sleep(RETRY) => {}
                    () = self.sender.closed() => return Err(Ended::Silently),
                    () = shutdown.cancelled() => return Err(Ended::Silently),
                },
                Err(error) => return Err(Ended::With(error)),
            }
        }
        Ok(())
    }

    /// Sends the present state as ADDED events. Returns the versions of its first and its last page. The request's own
    /// turn is used for the first page.
    async fn send_state(&mut self, shown: &mut HashMap<Key, u64>, mut turn: Option<Turn>) -> Result<(u64, u64), Ended> {
        let (mut first, mut after) = (None, None);
        let hub = Arc::clone(&self.call.hub);

        if let Some(version) = self.options.version.filter(|v| *v > hub.store.position())
            && !hub.store.wait_for(version, CATCH_UP).await
        {
            return Err(Ended::With(ApiError::version_too_large(version, hub.store.position())));
        }

        loop {
            let turns = async {
                let own = match turn.take() {
                    Some(own) => own,
                    None => hub.turns.next().await,
                };
                (own, hub.list_turns.next(PAGE).await)
            };
            let turns = tokio::select! {
                turns = turns => turns,
                () = self.sender.closed() => return Err(Ended::Silently),
            };

            self.keep_decided().await?;
            let page = self.state_page(after).await.map_err(Ended::With)?;
            drop(turns);

            let bytes = page.items.iter().map(|item| item.line.len()).sum();
            let held = self.answers.take(bytes).await;
            let Some(mut held) = held else {
                return Err(Ended::With(ApiError::too_many_unread()));
            };

            let start = *first.get_or_insert(page.version);
            for StateLine { key, version, line } in page.items {
                if version > start {
                    shown.insert(key, version);
                }
                let of_line = held.split(line.len());
                self.place(line.len(), of_line).await?.send(line);
            }

            match page.next {
                Some(next) => after = Some(next),
                None => return Ok((start, page.version)),
            }
        }
    }

    async fn state_page(&mut self, after: Option<(String, String)>) -> Result<Page<StateLine>, ApiError> {
        let (call, filter) = (Arc::clone(&self.call), &self.options.filter);
        if self.passes_on {
            let Page { items, version, next } = read::find_json(&call, filter, after, PAGE).await?;
            let line = |item: JsonResource| StateLine {
                line: line("ADDED", &item.json),
                key: item.key,
                version: item.version,
            };
            return Ok(Page {
                items: items.into_iter().map(line).collect(),
                version,
                next,
            });
        }
        let Page { items, version, next } = read::find(&call, filter, after, PAGE).await?;
        let line = |item: Resource| StateLine {
            line: self.object_line("ADDED", &item.object),
            key: item.key,
            version: item.version,
        };
        Ok(Page {
            items: items.into_iter().map(line).collect(),
            version,
            next,
        })
    }

    async fn send_event(&mut self, event: &WatchEvent, shown: &mut HashMap<Key, u64>) -> Result<(), Ended> {
        let namespace = &self.call.info.namespace;
        if self.call.kind.namespaced && !namespace.is_empty() && event.key.namespace != *namespace {
            return Ok(());
        }
        if let Some(version) = shown.get(&event.key) {
            if event.version <= *version {
                return Ok(());
            }
            shown.remove(&event.key);
        }
        // A slow client may have delayed this for any time, so decide again.
        self.keep_decided().await?;
        let Some(kind) = event_type(event, &self.options.filter) else {
            return Ok(());
        };
        // Reserve before the line is made, so that a waiting client only holds an object that all clients share.
        let place = self.place(event.json().len(), Held::default()).await?;
        place.send(match self.passes_on {
            true => line(kind, event.json().as_bytes()),
            false => self.object_line(kind, &event.object),
        });
        Ok(())
    }

    fn object_line(&mut self, event: &str, object: &Value) -> Bytes {
        let object = admission::decorated(&self.call.hub, self.call.kind, object);
        let shown = respond::shown(
            self.call.kind,
            &object,
            self.call.form,
            !self.columns_sent,
            Timestamp::now(),
        );
        self.columns_sent = true;
        line(event, shown.to_string().as_bytes())
    }

    async fn send_bookmark(&mut self, version: u64, initial_end: bool) -> Result<(), Ended> {
        // A watch may begin ahead of the server; the changes up to that version are unknown yet.
        if version > self.call.hub.store.position() {
            return Ok(());
        }
        let kind = self.call.kind;
        let mut object = json!({
            "kind": kind.kind, "apiVersion": kind.api_version(), "metadata": {"resourceVersion": version.to_string()},
        });
        if initial_end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let shown = respond::shown(kind, &object, self.call.form, !self.columns_sent, Timestamp::now());
        self.send("BOOKMARK", shown).await
    }

    async fn send(&self, event: &str, object: Value) -> Result<(), Ended> {
        let line = line(event, object.to_string().as_bytes());
        self.place(line.len(), Held::default()).await?.send(line);
        Ok(())
    }

    /// Reserves a place for a line of `bytes`. `held`: memory that it has reserved already.
    async fn place(&self, bytes: usize, mut held: Held) -> Result<ReservedLine, Ended> {
        // A client that reads nothing keeps its place no longer than others, and memory only while there is enough.
        let room = async {
            let slot = self.sender.clone().reserve_owned().await.ok()?;
            self.answers.grow(&mut held, bytes).await.ok().map(|()| slot)
        };
        let end = self.deadline.min(Instant::now() + STALLED);
        let slot = {
            let mut room = pin!(room);
            loop {
                match timeout_at(end.min(Instant::now() + SHORT), &mut room).await {
                    Ok(slot) => break slot.ok_or(Ended::Silently)?,
                    Err(_) if Instant::now() >= end || self.answers.is_short() => return Err(Ended::Silently),
                    Err(_) => {}
                }
            }
        };
        Ok(ReservedLine { slot, held })
    }
}

/// A reserved place for a line.
struct ReservedLine {
    slot: mpsc::OwnedPermit<Bytes>,
    held: Held,
}

impl ReservedLine {
    fn send(self, line: Bytes) {
        self.slot.send(self.held.with(line));
    }
}

/// An event around an object's JSON.
fn line(event: &str, object: &[u8]) -> Bytes {
    [b"{\"type\":\"", event.as_bytes(), b"\",\"object\":", object, b"}\n"]
        .concat()
        .into()
}

fn too_old(error: &WatchError) -> ApiError {
    match error {
        WatchError::Compacted { from, oldest } => {
            ApiError::expired(format!("too old resource version: {from} ({oldest})"))
        }
        WatchError::Lagged { seen, oldest } => {
            ApiError::expired(format!("too old resource version: {seen} ({oldest})"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use farwater_store::Kind;

    use super::*;
    use crate::kinds::selector::Selectable;

    fn check(operation: Operation, old: &str, new: &str, expected: Option<&str>) {
        let labels: BTreeMap<_, _> = [("app".to_owned(), old.to_owned())].into();
        let key = Key {
            kind: Kind::new("configmaps", ""),
            namespace: "a".into(),
            name: "b".into(),
        };
        let object = Arc::new(json!({"metadata": {"name": "b", "labels": {"app": new}}}));
        let event = WatchEvent::new(key, 1, operation, object, labels);
        let filter = Filter::parse(Some("app=web"), None, Selectable::default()).unwrap();
        assert_eq!(event_type(&event, &filter), expected, "{operation:?} {old} -> {new}");
    }

    #[test]
    fn objects_enter_and_leave_a_selector() {
        check(Operation::Created, "", "web", Some("ADDED"));
        check(Operation::Created, "", "api", None);
        check(Operation::Updated, "api", "web", Some("ADDED"));
        check(Operation::Updated, "web", "web", Some("MODIFIED"));
        check(Operation::Updated, "web", "api", Some("DELETED"));
        check(Operation::Updated, "api", "api", None);
        check(Operation::Deleted, "web", "web", Some("DELETED"));
        check(Operation::Deleted, "api", "api", None);
    }

    #[test]
    fn the_version_says_how_a_watch_begins() {
        let options = |version, send_initial| ListOptions {
            version,
            send_initial,
            ..ListOptions::default()
        };
        for (options, given, expected) in [
            (options(None, false), false, Start::State),
            (options(Some(0), false), false, Start::State),
            (options(Some(7), false), false, Start::Version(7)),
            (options(Some(7), true), true, Start::State),
            (options(None, false), true, Start::Now),
        ] {
            assert_eq!(start_of(&options, given), expected);
        }
    }
}
