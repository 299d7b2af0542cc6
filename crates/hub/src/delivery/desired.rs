//! `GET /agent/v1/desired`: the poll.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse as _, Response},
};
use farwater_api::{
    Digest,
    health_rule::HealthRules,
    protocol::{
        Action, AgentSettings, CONNECTION_HEADER, DesiredState, Entry, Number, PLAN_HEADER, RENEW_KEYS_HEADER,
        SUCCESSION_HEADER, Statement, Verbatim,
    },
};
use farwater_store::{
    StoreError,
    delivery::{self as tables, Desired},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Delivery, answer, answer::Refusal, clusters::ClusterState, keys, token::authenticate};

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
    if let Some(within) = delivery.connections.invite(&cluster)
        && let Ok(value) = HeaderValue::from_str(&format!("{:.3}", within.as_secs_f64()))
    {
        response.headers_mut().insert(HeaderName::from_static(CONNECTION_HEADER), value);
    }
    if cluster.plan() != 0 {
        delivery.plans.note_told(&cluster.uid);
        response.headers_mut().insert(HeaderName::from_static(PLAN_HEADER), HeaderValue::from_static("1"));
    }
    // Only while there is something to do.
    let last = delivery.identity.trusted().position;
    if cluster.position != last {
        let value = HeaderValue::from(last.sequence);
        response.headers_mut().insert(HeaderName::from_static(SUCCESSION_HEADER), value);
    }
    if keys::wants_keys(&cluster, Timestamp::now().as_second()) {
        response.headers_mut().insert(HeaderName::from_static(RENEW_KEYS_HEADER), HeaderValue::from_static("1"));
    }
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
    let Content { entries, agent, health } = read_content(&row)?;
    let statement = Statement {
        installation: installation.to_owned(),
        cluster_uid: row.cluster_uid,
        epoch: row.epoch,
        generation: row.generation,
        tag: row.tag,
        agent: agent.as_ref().map(Verbatim::digest),
        health: health.as_ref().map(Verbatim::digest),
        key_id: row.key_id,
    };
    Ok(DesiredState { statement: statement.into(), signature: row.signature, entries, agent, health })
}

/// What a row holds, compressed. A replica of the version before serves what a newer one wrote, as that wrote it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Content {
    pub entries: Vec<Verbatim<Entry>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Verbatim<AgentSettings>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Verbatim<HealthRules>>,
}

/// As it was first written: of entries alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredContent {
    Entries(Vec<Verbatim<Entry>>),
    Content(Box<Content>),
}

pub fn read_content(row: &Desired) -> Result<Content, StoreError> {
    let damaged =
        |problem: String| StoreError::Row { what: format!("desired state of cluster {}", row.cluster_uid), problem };
    let json = zstd::decode_all(row.body.as_slice()).map_err(|error| damaged(error.to_string()))?;
    Ok(match serde_json::from_slice(&json).map_err(|error| damaged(error.to_string()))? {
        StoredContent::Entries(entries) => Content { entries, agent: None, health: None },
        StoredContent::Content(content) => *content,
    })
}

/// The bundle that an entry names.
pub fn bundle(entry: &Entry) -> Option<Digest> {
    match &entry.action {
        Action::Apply(deployment) => Some(deployment.bundle),
        Action::Hold { .. } | Action::Remove { .. } | Action::Unreadable(_) => None,
    }
}

/// Most bytes of a statement with its signature, beside the content.
pub const STATEMENT_BYTES: usize = 4096;

/// Bytes of the content as agents get it.
pub fn measure(content: &Content) -> usize {
    serde_json::to_vec(content).map_or(0, |json| json.len())
}

/// As it is stored.
pub fn encode(content: &Content) -> Result<Vec<u8>, StoreError> {
    let json = serde_json::to_vec(content).map_err(StoreError::abort)?;
    zstd::bulk::compress(&json, ZSTD_LEVEL).map_err(StoreError::abort)
}

/// The ETag of a row; none where it waits to be signed.
pub fn etag(row: &Desired) -> Option<HeaderValue> {
    if row.signature.is_empty() {
        return None;
    }
    HeaderValue::from_str(&format!("\"{}.{}.{}\"", row.epoch, row.generation, row.tag.to_hex())).ok()
}

/// Of the state that an ETag is of.
pub fn number(etag: &HeaderValue) -> Option<Number> {
    let mut parts = etag.to_str().ok()?.strip_prefix('"')?.split('.');
    Some(Number { epoch: parts.next()?.parse().ok()?, generation: parts.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use farwater_api::{HealthRuleSpec, health_rule::NamedRule};
    use serde_json::json;

    use super::*;

    fn row(content: &Content) -> Desired {
        Desired {
            cluster_uid: "c".to_owned(),
            epoch: 1,
            generation: 1,
            tag: farwater_api::protocol::tag(&content.entries),
            key_id: "k".to_owned(),
            signature: "s".to_owned(),
            bundles: Vec::new(),
            body: encode(content).unwrap(),
        }
    }

    #[test]
    fn all_that_an_agent_gets_is_measured() {
        let rule = HealthRuleSpec { kind: "Boat".to_owned(), current: "x".repeat(1000), ..HealthRuleSpec::default() };
        let rules = (0..64).map(|n| NamedRule { name: format!("rule-{n}"), rule: rule.clone() }).collect();
        let agent = AgentSettings { image: Some("x".repeat(1000)), ..AgentSettings::default() };
        let content = Content {
            entries: Vec::new(),
            agent: Some(Verbatim::from(agent)),
            health: Some(Verbatim::from(HealthRules { rules })),
        };
        let sent = serde_json::to_vec(&decode(row(&content), "i").unwrap()).unwrap().len();
        let measured = measure(&content);
        assert!(measured < sent && sent <= measured + STATEMENT_BYTES, "{measured} of {sent}");
    }

    #[test]
    fn what_a_newer_replica_wrote_is_served_as_it_wrote_it() {
        let entries = json!([
            {"service": {"uid": "a", "namespace": "n", "name": "a"}, "action": {"type": "Hold", "reason": "x", "until": 7}},
            {"service": {"uid": "b", "namespace": "n", "name": "b"}, "action": {"type": "Migrate", "to": "west"}},
        ]);
        let agent = json!({"image": "agent:2", "deadlineSeconds": 300, "cpuLimit": "1"});
        let read: Content = serde_json::from_value(json!({"entries": entries, "agent": agent})).unwrap();
        let row = row(&read);
        assert_eq!(number(&etag(&row).unwrap()), Some(Number { epoch: 1, generation: 1 }));
        let served = serde_json::to_value(decode(row.clone(), "i").unwrap()).unwrap();
        assert_eq!((&served["entries"], &served["agent"]), (&entries, &agent));
        assert_eq!(served["statement"]["agent"], Digest::of_json(&agent).to_string());
        // As rows were first written.
        let body = zstd::bulk::compress(entries.to_string().as_bytes(), ZSTD_LEVEL).unwrap();
        let served = serde_json::to_value(decode(Desired { body, ..row }, "i").unwrap()).unwrap();
        assert_eq!(served["entries"], entries);
    }
}
