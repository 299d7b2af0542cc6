//! `GET /agent/v1/desired`: the poll.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse as _, Response},
};
use farwater_api::{
    Digest,
    protocol::{Action, DesiredState, Entry, Statement},
};
use farwater_store::{
    StoreError,
    delivery::{self as tables, Desired},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::{Delivery, answer, answer::Refusal, clusters::ClusterState, token::authenticate};

/// Below this, compressing costs more than it saves.
const MIN_COMPRESSED_BYTES: usize = 1024;
const ZSTD_LEVEL: i32 = 3;

/// Unchanged, it is answered from memory: no database, no JSON, no public-key check.
pub async fn get_desired(State(delivery): State<Arc<Delivery>>, headers: HeaderMap) -> Result<Response, Refusal> {
    let cluster = authenticate(&delivery, &headers)?;
    let etag = cluster.etag.clone().ok_or_else(not_computed)?;
    let mut response = if headers.get(header::IF_NONE_MATCH) == Some(&etag) {
        let mut response = StatusCode::NOT_MODIFIED.into_response();
        response.headers_mut().insert(header::ETAG, etag);
        response
    } else {
        send_desired(&delivery, &cluster, &headers).await?
    };
    let (name, value) = answer::poll_interval(cluster.poll_interval.as_secs());
    response.headers_mut().insert(name, value);
    Ok(response)
}

fn not_computed() -> Refusal {
    Refusal::Unavailable("the cluster's desired state is not computed yet".to_owned())
}

async fn send_desired(delivery: &Delivery, cluster: &ClusterState, headers: &HeaderMap) -> Result<Response, Refusal> {
    let row = {
        let mut connection = delivery.store.tables().await?;
        let row = tables::load_desired(&mut connection, &cluster.uid).await?;
        // A raised epoch takes the signature away until the state is computed anew.
        row.filter(|row| !row.signature.is_empty()).ok_or_else(not_computed)?
    };
    let state = decode(row, delivery.identity.installation())?;
    let etag = HeaderValue::from_str(&state.statement.etag())
        .map_err(|error| Refusal::Unavailable(format!("the desired state has no usable tag: {error}")))?;
    let json = serde_json::to_vec(&state)
        .map_err(|error| Refusal::Unavailable(format!("the desired state can't be written: {error}")))?;
    let mut response = Response::new(Body::empty());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::ETAG, etag);
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("authorization, accept-encoding"));
    let body = if json.len() >= MIN_COMPRESSED_BYTES && accepts_zstd(headers) {
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("zstd"));
        zstd::bulk::compress(&json, ZSTD_LEVEL)
            .map_err(|error| Refusal::Unavailable(format!("the desired state can't be compressed: {error}")))?
    } else {
        json
    };
    *response.body_mut() = Body::from(body);
    Ok(response)
}

fn accepts_zstd(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        parts.next() == Some("zstd") && parts.all(|parameter| parameter.replace(' ', "") != "q=0")
    })
}

/// A row that can't be read is an error: an empty list of services would be a lie.
pub fn decode(row: Desired, installation: &str) -> Result<DesiredState, StoreError> {
    let entries = entries(&row)?;
    let statement = Statement {
        installation: installation.to_owned(),
        cluster_uid: row.cluster_uid,
        epoch: row.epoch,
        generation: row.generation,
        tag: row.tag,
        key_id: row.key_id,
    };
    Ok(DesiredState { statement, signature: row.signature, entries })
}

/// The entries of a row.
pub fn entries(row: &Desired) -> Result<Vec<Entry>, StoreError> {
    let damaged =
        |problem: String| StoreError::Row { what: format!("desired state of cluster {}", row.cluster_uid), problem };
    let json = zstd::decode_all(row.body.as_slice()).map_err(|error| damaged(error.to_string()))?;
    serde_json::from_slice(&json).map_err(|error| damaged(error.to_string()))
}

/// The bundle that an entry names.
pub fn bundle(entry: &Entry) -> Option<Digest> {
    match &entry.action {
        Action::Apply(deployment) => Some(deployment.bundle),
        Action::Hold { .. } | Action::Remove { .. } => None,
    }
}

/// The compressed JSON of entries, as it is stored.
pub fn encode(entries: &[Entry]) -> Result<Vec<u8>, StoreError> {
    let json = serde_json::to_vec(entries).map_err(StoreError::abort)?;
    zstd::bulk::compress(&json, ZSTD_LEVEL).map_err(StoreError::abort)
}

/// The ETag of a row; none where it waits to be signed.
pub fn etag(row: &Desired) -> Option<HeaderValue> {
    if row.signature.is_empty() {
        return None;
    }
    HeaderValue::from_str(&format!("\"{}.{}.{}\"", row.epoch, row.generation, row.tag.to_hex())).ok()
}
