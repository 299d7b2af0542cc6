//! Requests to the cluster's API server.
//!
//! Over HTTP/2 all requests share one connection. Watches have connections of their own, so that they can't use up the
//! streams that requests need.
//!
//! kube's client is not used: its code for credentials from programs takes a megabyte, most of it always in memory.

mod client;
mod credentials;
mod error;
mod files;
mod kubeconfig;
mod list;
mod log;
mod look;
mod pod;
mod resource;
mod tls;

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use farwater_api::{FIELD_MANAGER, protocol::ServiceAccount};
use http::Method;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use serde_json::Value;
use tokio::{sync::Semaphore, time::timeout};

use self::{
    client::{Client, Server},
    kubeconfig::Access,
};
use crate::{limits::Limits, sync::lock};
use error::{broken_off, is_about_secret, not_json, refusal, retry_after};

pub use error::{ApiError, ConnectError, Fault};
pub use resource::{Resource, escape};

/// Applies at a time. More gain nothing, and each takes 15 KB here, which stay with the process.
const APPLIES: usize = 64;
/// Longest that one request other than a watch may take: webhooks may need 30 s.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most attempts of a request that the API server asks to be retried.
pub const TRIES: u32 = 4;
/// If the API server asks for a longer pause, the attempt ends and is repeated after it.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Largest answer that is read: a page of 500 objects' metadata, or one object.
const MAX_ANSWER: usize = 32 << 20;
/// Streams per connection that watches use. API servers allow 100 or more.
const WATCHES_PER_CONNECTION: usize = 80;
/// How long opening a watch waits for another one that is being opened on the same connection.
const TURN: Duration = Duration::from_secs(5);
/// Objects per page of a list of metadata.
pub const PAGE: usize = 500;
/// Objects per page of a list of whole objects: one may have a MiB.
const WHOLE_PAGE: usize = 20;

pub const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
pub const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const JSON: &str = "application/json";
/// All kinds of all groups in one answer, in either of its versions.
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                         application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// How a manifest is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplyMode {
    /// Take over fields of other managers.
    pub force: bool,
    pub dry_run: bool,
}

/// When the objects that an object owns are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Propagation {
    /// After the owner.
    Background,
    /// Before the owner: it stays until all of them are gone.
    Foreground,
}

/// The user of a request: the agent itself (none), or a service's account.
pub type As<'a> = Option<&'a ServiceAccount>;

pub struct Kubernetes {
    server: Arc<Server>,
    pub limits: Arc<Limits>,
    requests: Client,
    watches: Mutex<Vec<(Client, Arc<()>)>>,
    /// Limits applies of all services together; in addition each service may always have one in flight.
    pub applies: Semaphore,
    /// The latest time until which the API server asked for a pause.
    left_alone_until: Mutex<Option<Instant>>,
}

/// A connection for one watch; dropping it frees the place.
pub struct WatchLease {
    client: Client,
    _place: Arc<()>,
}

impl Kubernetes {
    /// Connects without the agent's own limits.
    #[cfg(test)]
    pub fn connect(kubeconfig: Option<&Path>) -> Result<Self, ConnectError> {
        Self::connect_within(kubeconfig, Arc::default())
    }

    /// Connects with limits for all requests that are made for services.
    pub fn connect_within(kubeconfig: Option<&Path>, limits: Arc<Limits>) -> Result<Self, ConnectError> {
        let access = match kubeconfig {
            Some(path) => kubeconfig::read(path)?,
            None => pod::access(|name| std::env::var(name).ok())?,
        };
        Self::new(&access, limits)
    }

    fn new(access: &Access, limits: Arc<Limits>) -> Result<Self, ConnectError> {
        let server = Arc::new(Server::new(access, Arc::clone(&limits))?);
        Ok(Self {
            limits,
            requests: Client::new(&server),
            server,
            watches: Mutex::default(),
            applies: Semaphore::new(APPLIES),
            left_alone_until: Mutex::default(),
        })
    }

    /// A GET; `accept` chooses between whole objects and metadata.
    pub async fn get(&self, who: As<'_>, path: &str, metadata_only: bool) -> Result<Value, ApiError> {
        let accept = if metadata_only { METADATA } else { JSON };
        parse(&self.call(who, Method::GET, path, accept, None).await?)
    }

    /// Whether the API server is ready. An account that may not ask assumes that it is.
    pub async fn check_ready(&self) -> Result<(), ApiError> {
        match self.call(None, Method::GET, "/readyz", JSON, None).await {
            Ok(_) => Ok(()),
            Err(ApiError::Status { code, .. }) if code < 500 => Ok(()),
            Err(ApiError::Status { .. }) => Err(ApiError::Unusable("the API server is not ready yet".to_owned())),
            Err(error) => Err(error),
        }
    }

    /// Discovery below `/api` or `/apis`, as an APIGroupDiscoveryList.
    pub async fn discover(&self, path: &str) -> Result<Value, ApiError> {
        let found: Value = parse(&self.call(None, Method::GET, path, DISCOVERY, None).await?)?;
        match found["kind"].as_str() {
            Some("APIGroupDiscoveryList") => Ok(found),
            _ => Err(ApiError::Unusable(
                "it has no aggregated discovery, which Kubernetes has since 1.27".to_owned(),
            )),
        }
    }

    /// Reads all pages of a list of metadata or of whole objects, one item at a time. Returns the list's
    /// resourceVersion.
    pub async fn list(
        &self,
        who: As<'_>,
        collection: &str,
        selector: &str,
        metadata_only: bool,
        mut each: impl FnMut(Value),
    ) -> Result<String, ApiError> {
        let (accept, limit) = if metadata_only {
            (METADATA_LIST, PAGE)
        } else {
            (JSON, WHOLE_PAGE)
        };
        let mut page = String::new();
        loop {
            let path = format!("{collection}?limit={limit}&labelSelector={}{page}", escape(selector));
            let list = list::read(&self.call(who, Method::GET, &path, accept, None).await?, &mut each);
            let metadata = list.map_err(|e| not_json(&e))?;
            match metadata.next.filter(|next| !next.is_empty()) {
                Some(next) => page = format!("&continue={}", escape(&next)),
                None => return Ok(metadata.resource_version),
            }
        }
    }

    /// Server-side apply of a manifest in JSON as our field manager.
    pub async fn apply(&self, who: As<'_>, path: &str, body: Vec<u8>, mode: ApplyMode) -> Result<Value, ApiError> {
        let dry_run = if mode.dry_run { "&dryRun=All" } else { "" };
        let path = format!(
            "{path}?fieldManager={FIELD_MANAGER}&force={}&fieldValidation=Strict{dry_run}",
            mode.force
        );
        parse(
            &self
                .call(
                    who,
                    Method::PATCH,
                    &path,
                    JSON,
                    Some(("application/apply-patch+yaml", body)),
                )
                .await?,
        )
    }

    /// Writes an object as a whole.
    pub async fn replace(&self, who: As<'_>, path: &str, object: &Value, dry_run: bool) -> Result<Value, ApiError> {
        let dry_run = if dry_run { "&dryRun=All" } else { "" };
        let path = format!("{path}?fieldManager={FIELD_MANAGER}&fieldValidation=Strict{dry_run}");
        parse(
            &self
                .call(who, Method::PUT, &path, JSON, Some((JSON, to_bytes(object)?)))
                .await?,
        )
    }

    /// Sends a merge patch (an object) or a JSON patch (an array). Returns metadata.
    pub async fn patch(&self, who: As<'_>, path: &str, patch: &Value) -> Result<Value, ApiError> {
        let kind = if patch.is_array() {
            "application/json-patch+json"
        } else {
            "application/merge-patch+json"
        };
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        parse(
            &self
                .call(who, Method::PATCH, &path, METADATA, Some((kind, to_bytes(patch)?)))
                .await?,
        )
    }

    /// Sends a strategic merge patch of an object of a built-in kind, whose list elements are found by their merge
    /// keys.
    pub async fn patch_strategic(&self, path: &str, patch: &Value) -> Result<Value, ApiError> {
        let kind = "application/strategic-merge-patch+json";
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        parse(
            &self
                .call(None, Method::PATCH, &path, METADATA, Some((kind, to_bytes(patch)?)))
                .await?,
        )
    }

    pub async fn create(&self, who: As<'_>, collection: &str, object: &Value) -> Result<Value, ApiError> {
        self.make(who, collection, object, false).await
    }

    /// Creates an object. With `dry_run` the API server only checks it.
    pub async fn make(&self, who: As<'_>, collection: &str, object: &Value, dry_run: bool) -> Result<Value, ApiError> {
        let dry_run = if dry_run { "&dryRun=All" } else { "" };
        let path = format!("{collection}?fieldManager={FIELD_MANAGER}{dry_run}");
        parse(
            &self
                .call(who, Method::POST, &path, JSON, Some((JSON, to_bytes(object)?)))
                .await?,
        )
    }

    /// Deletes the object with exactly this uid and resourceVersion. True: it is gone. False: finalizers delay it.
    pub async fn delete(
        &self,
        who: As<'_>,
        path: &str,
        exactly: Option<(&str, &str)>,
        propagation: Propagation,
    ) -> Result<bool, ApiError> {
        let mut options =
            serde_json::json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation});
        if let Some((uid, version)) = exactly {
            options["preconditions"] = serde_json::json!({"uid": uid, "resourceVersion": version});
        }
        match self
            .call(who, Method::DELETE, path, JSON, Some((JSON, to_bytes(&options)?)))
            .await
        {
            Ok(body) => Ok(parse(&body)?["kind"] == "Status"),
            Err(e) if e.is_not_found() => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Sends a request. Reads, and writes of the agent itself, are retried as the API server asks. A service's task
    /// retries its own writes, because it may have got a newer assignment meanwhile.
    async fn call(
        &self,
        who: As<'_>,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<(&str, Vec<u8>)>,
    ) -> Result<Bytes, ApiError> {
        let tries = if method == Method::GET || who.is_none() {
            TRIES
        } else {
            1
        };
        let mut tried = 0;
        loop {
            let body = body.as_ref().map(|(kind, bytes)| (*kind, bytes.clone()));
            let error = match self
                .call_once(who, method.clone(), path, accept, body, MAX_ANSWER)
                .await
            {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            tried += 1;
            match error.pause(tried) {
                None if error.code() == 401 && tried == 1 && self.server.log_in_again() => {}
                // A write whose answer was lost may have succeeded, and its repetition would be refused for that.
                Some(pause) if tried < tries && (method == Method::GET || !matches!(error, ApiError::Lost(_))) => {
                    tokio::time::sleep(pause).await;
                }
                _ => return Err(error),
            }
        }
    }

    async fn call_once(
        &self,
        who: As<'_>,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<(&str, Vec<u8>)>,
        largest: usize,
    ) -> Result<Bytes, ApiError> {
        let about_secret = is_about_secret(path);
        let answer = async {
            let response = self.requests.send(who, method, path, accept, body).await?;
            let status = response.status();
            let retry_after = retry_after(&response);
            let body = Limited::new(response.into_body(), largest).collect().await;
            let body = body.map_err(|error| broken_off(&*error, largest))?.to_bytes();
            if status.is_success() {
                return Ok(body);
            }
            self.leave_alone(retry_after.unwrap_or_default());
            Err(refusal(status, retry_after, &body, about_secret))
        };
        timeout(PATIENCE, answer)
            .await
            .map_err(|_| ApiError::Silent(PATIENCE))?
    }

    /// Time until the longest pause that the API server asked for is over. Retries without a deadline of their own wait
    /// as long.
    pub fn asked_pause(&self) -> Duration {
        let until = *lock(&self.left_alone_until);
        let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        a_little_more(left)
    }

    fn leave_alone(&self, time: Duration) {
        let mut until = lock(&self.left_alone_until);
        *until = (*until).max(Some(Instant::now() + time));
    }

    /// A place on a connection for a watch.
    pub fn lease_watch(&self) -> WatchLease {
        let mut watches = lock(&self.watches);
        let free = watches
            .iter()
            .find(|(_, place)| Arc::strong_count(place) <= WATCHES_PER_CONNECTION);
        if let Some((client, place)) = free {
            return WatchLease {
                client: client.clone(),
                _place: place.clone(),
            };
        }
        let (client, place) = (Client::new(&self.server), Arc::new(()));
        watches.push((client.clone(), place.clone()));
        WatchLease { client, _place: place }
    }
}

impl WatchLease {
    /// Opens a watch of metadata. The body has one JSON event per line. The server ends it after 30 to 60 minutes.
    pub async fn open(&self, who: As<'_>, collection: &str, selector: &str, from: &str) -> Result<Incoming, ApiError> {
        let path = format!(
            "{collection}?watch=1&allowWatchBookmarks=true&labelSelector={}&resourceVersion={}",
            escape(selector),
            escape(from)
        );
        let answer = async {
            // The first watch opens the connection that the others use. A slow one delays the others only for a limited
            // time.
            let turn = timeout(TURN, self.client.opening.acquire()).await;
            let response = self.client.send(who, Method::GET, &path, METADATA, None).await?;
            drop(turn);
            let status = response.status();
            if status.is_success() {
                return Ok(response.into_body());
            }
            let after = retry_after(&response);
            let body = Limited::new(response.into_body(), 64 << 10)
                .collect()
                .await
                .map(|b| b.to_bytes());
            Err(refusal(status, after, &body.unwrap_or_default(), false))
        };
        timeout(PATIENCE, answer)
            .await
            .map_err(|_| ApiError::Silent(PATIENCE))?
    }
}

/// Adds a random part, so that retries don't all come at the same time, and never before the requested time.
fn a_little_more(wait: Duration) -> Duration {
    wait.mul_f64(rand::random_range(1.05..=1.3))
}

fn parse(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|e| not_json(&e))
}

pub fn to_bytes(value: &Value) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(value).map_err(|e| ApiError::Unusable(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::{error::is_about_secret, *};

    #[test]
    fn names_stay_one_segment_of_a_path() {
        assert_eq!(escape("system:node"), "system:node");
        assert_eq!(escape("../../secrets?x=1"), "..%2F..%2Fsecrets%3Fx%3D1");
        assert_eq!(escape(".."), "%2E%2E");
    }

    #[test]
    fn a_refusal_is_about_a_secret_whatever_was_asked_for_it() {
        let secrets = "/api/v1/namespaces/a/secrets";
        for path in ["", "?fieldManager=farwater", "/b", "/b?force=true"] {
            assert!(is_about_secret(&format!("{secrets}{path}")), "{path}");
        }
        assert!(!is_about_secret(
            "/api/v1/namespaces/a/configmaps/b?fieldManager=/secrets/"
        ));
    }

    #[test]
    fn what_may_be_repeated_is_never_sooner_than_was_asked_for() {
        let status = |code, retry_after: Option<u64>| ApiError::Status {
            code,
            reason: String::new(),
            message: String::new(),
            retry_after: retry_after.map(Duration::from_secs),
            fault: Fault::Other,
        };
        for asked in [status(429, Some(3)), status(503, Some(3)), status(500, Some(3))] {
            assert!(
                asked.is_passing() && asked.pause(1).unwrap() >= Duration::from_secs(3),
                "{asked:?}"
            );
        }
        for soon in [status(429, None), ApiError::Lost(String::new())] {
            assert!(
                soon.is_passing() && soon.pause(2).unwrap() < Duration::from_secs(1),
                "{soon:?}"
            );
        }
        for later in [status(429, Some(11)), status(504, None), ApiError::Silent(PATIENCE)] {
            assert!(later.is_passing() && later.pause(1).is_none(), "{later:?}");
        }
        for never in [
            status(403, None),
            status(409, Some(1)),
            status(500, None),
            ApiError::Unusable(String::new()),
        ] {
            assert!(!never.is_passing() && never.pause(1).is_none(), "{never:?}");
        }
    }
}
