//! Get and list.

use std::time::Duration;

use axum::response::Response;
use farwater_store::{JsonResource, ListQuery, Page, Resource};
use serde_json::{Value, json};

use super::{
    admission,
    call::{Call, store_failed},
    options::{self, Continue, ListOptions, VersionMatch},
    respond::{self, Form},
};
use crate::kinds::{meta, selector::Filter, status::ApiError};

/// How long a read waits for a version that is newer than ours, as in kube-apiserver's watch cache.
const BEHIND: Duration = Duration::from_secs(3);
/// Maximum bytes of a list's JSON; kubectl and client-go request pages of 500 objects. Parsed objects take several
/// times as much memory.
const MAX_PAGE: usize = 256 << 20;
const MAX_PARSED: usize = 64 << 20;
/// Rows read at a time if the store can't evaluate the filter.
const CHUNK: usize = 500;

pub async fn get(call: &Call) -> Result<Response, ApiError> {
    reach(call, options::version(&call.query)?).await?;
    let resource = call.load(&call.info.name).await?;
    let object = admission::decorated(&call.hub, call.kind, &resource.object);
    Ok(respond::object(200, call.kind, &object, call.form, call.now))
}

/// Waits until the state is at least as new as requested.
async fn reach(call: &Call, version: Option<u64>) -> Result<(), ApiError> {
    let Some(version) = version.filter(|v| *v > call.hub.store.position()) else {
        return Ok(());
    };
    if call.hub.store.wait_for(version, BEHIND).await {
        return Ok(());
    }
    Err(ApiError::version_too_large(version, call.hub.store.position()))
}

pub async fn list(call: &Call) -> Result<Response, ApiError> {
    let options = ListOptions::parse(&call.query, call.kind, false)?;
    let after = begin(call, &options).await?;
    // Hold the turn until the answer is complete, so that only lists that have not begun are waiting.
    let _turn = call.hub.list_turns.next(options.limit).await;
    // Items of typed lists don't repeat the list's apiVersion and kind, so they differ from what is stored.
    if call.kind.ours && passes_on(call, &options.filter) {
        let page = find_json(call, &options.filter, after, options.limit).await?;
        let meta = list_meta(&options, page.version, page.next)?;
        return Ok(respond::json_list(call.kind, &page.items, &meta));
    }
    page_after(call, &options, after).await?.answer(call)
}

/// A page of a list, and the list's `metadata`.
pub struct ListPage {
    pub items: Vec<Resource>,
    meta: Value,
}

impl ListPage {
    pub fn answer(self, call: &Call) -> Result<Response, ApiError> {
        let items = self
            .items
            .iter()
            .map(|r| admission::decorated(&call.hub, call.kind, &r.object));
        respond::list(call.kind, items, &self.meta, call.form, call.now)
    }
}

/// Reads the objects that a deletecollection selects.
pub async fn page(call: &Call, options: &ListOptions) -> Result<ListPage, ApiError> {
    let after = begin(call, options).await?;
    page_after(call, options, after).await
}

async fn page_after(call: &Call, options: &ListOptions, after: Option<(String, String)>) -> Result<ListPage, ApiError> {
    let Page { items, version, next } = find(call, &options.filter, after, options.limit).await?;
    Ok(ListPage {
        items,
        meta: list_meta(options, version, next)?,
    })
}

/// Where a list continues, once the state is as new as requested.
async fn begin(call: &Call, options: &ListOptions) -> Result<Option<(String, String)>, ApiError> {
    reach(call, options.version).await?;
    let after = options.after.as_ref().map(Continue::key);
    // In this namespace, the key would be at an arbitrary position.
    let elsewhere = |(namespace, _): &(String, String)| call.kind.namespaced && *namespace != call.info.namespace;
    if !call.info.namespace.is_empty() && after.as_ref().is_some_and(elsewhere) {
        return Err(ApiError::bad_request(
            "continue key is not valid: it is of another namespace's list",
        ));
    }
    Ok(after)
}

fn list_meta(options: &ListOptions, found: u64, next: Option<(String, String)>) -> Result<Value, ApiError> {
    let version = options.after.as_ref().map_or(found, Continue::version);
    if options.version_match == Some(VersionMatch::Exact) && options.version != Some(found) {
        // Only the present state is complete; Kubernetes answers this way once its history is compacted.
        return Err(ApiError::expired(
            "The provided resource version is no longer available; list without resourceVersionMatch=Exact",
        ));
    }
    let mut meta = json!({"resourceVersion": version.to_string()});
    if let Some(next) = next {
        meta["continue"] = json!(Continue::new(version, next).token());
    }
    Ok(meta)
}

fn query(call: &Call, filter: &Filter, after: Option<(String, String)>, limit: usize, max_bytes: usize) -> ListQuery {
    let namespace = Some(call.info.namespace.clone()).filter(|n| !n.is_empty() && call.kind.namespaced);
    ListQuery {
        namespace: namespace.or_else(|| filter.namespace().map(str::to_owned)),
        name: filter.name().map(str::to_owned),
        labels: filter.labels.clone(),
        limit,
        after,
        max_bytes,
        ..ListQuery::all(call.kind.store.clone())
    }
}

/// Whether objects are passed on without being parsed.
pub fn passes_on(call: &Call, filter: &Filter) -> bool {
    call.form == Form::Plain && admission::is_read_as_stored(call.kind) && !filter.needs_object()
}

/// Up to `limit` objects (0: all) after `after`, for a filter that the store evaluates.
pub async fn find_json(
    call: &Call,
    filter: &Filter,
    after: Option<(String, String)>,
    limit: usize,
) -> Result<Page<JsonResource>, ApiError> {
    call.hub
        .store
        .list_json(&query(call, filter, after, limit, MAX_PAGE))
        .await
        .map_err(store_failed)
}

/// Up to `limit` objects (0: all) after `after`.
pub async fn find(
    call: &Call,
    filter: &Filter,
    mut after: Option<(String, String)>,
    limit: usize,
) -> Result<Page, ApiError> {
    let mut found = Page {
        items: Vec::new(),
        version: 0,
        next: None,
    };
    loop {
        let wanted = limit.saturating_sub(found.items.len());
        let at_a_time = match (limit, filter.needs_object()) {
            (0, _) => 0,
            (_, false) => wanted,
            (_, true) => wanted.max(CHUNK),
        };

        let page = call
            .hub
            .store
            .list(&query(call, filter, after, at_a_time, MAX_PARSED))
            .await
            .map_err(store_failed)?;
        if found.version == 0 {
            found.version = page.version;
        }

        let count = page.items.len();
        for (n, resource) in page.items.into_iter().enumerate() {
            if !filter.needs_object() || filter.matches(&resource.object, &meta::labels(&resource.object)) {
                let key = (resource.key.namespace.clone(), resource.key.name.clone());
                found.items.push(resource);
                if limit > 0 && found.items.len() == limit {
                    found.next = if n + 1 < count { Some(key) } else { page.next };
                    return Ok(found);
                }
            }
        }

        if limit == 0 || page.next.is_none() {
            return Ok(found);
        }
        after = page.next;
    }
}
