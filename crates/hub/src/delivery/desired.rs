//! `GET /agent/v1/desired`: the poll.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse as _, Response},
};
use farwater_api::{
    Digest,
    change_window::Windows,
    health_rule::HealthRules,
    protocol::{
        Action, AgentSettings, CONNECTION_HEADER, Entry, Number, PLAN_HEADER, RENEW_KEYS_HEADER, SUCCESSION_HEADER,
        Statement, Verbatim,
    },
};
use farwater_store::{
    StoreError,
    delivery::{self as tables, Desired},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::{
    answer::{self, Refusal},
    keys,
    token::authenticate,
};
use crate::{memory::clusters::ClusterState, replica::Replica};

/// Below this size, compression costs more than it saves.
const MIN_COMPRESSED_BYTES: usize = 1024;
const ZSTD_LEVEL: i32 = 3;

/// An unchanged state is answered from memory: no database, no JSON, no check of a public key.
pub async fn get_desired(State(replica): State<Arc<Replica>>, headers: HeaderMap) -> Result<Response, Refusal> {
    let cluster = authenticate(&replica, &headers)?;
    let etag = cluster.etag.clone().ok_or_else(not_computed)?;
    let mut response = if headers.get(header::IF_NONE_MATCH) == Some(&etag) {
        let mut response = StatusCode::NOT_MODIFIED.into_response();
        response.headers_mut().insert(header::ETAG, etag);
        response
    } else {
        send_desired(&replica, &cluster, &headers).await?
    };

    let (name, value) = answer::poll_interval(cluster.poll_interval.as_secs());
    response.headers_mut().insert(name, value);

    if let Some(within) = replica.memory.connections.invite(&cluster)
        && let Ok(value) = HeaderValue::from_str(&format!("{:.3}", within.as_secs_f64()))
    {
        response
            .headers_mut()
            .insert(HeaderName::from_static(CONNECTION_HEADER), value);
    }
    if cluster.plan() != 0 {
        replica.memory.plans.note_told(&cluster.uid);
        response
            .headers_mut()
            .insert(HeaderName::from_static(PLAN_HEADER), HeaderValue::from_static("1"));
    }

    // Only while there is a succession to follow.
    let last = replica.identity.trusted().position;
    if cluster.position != last {
        let value = HeaderValue::from(last.sequence);
        response
            .headers_mut()
            .insert(HeaderName::from_static(SUCCESSION_HEADER), value);
    }
    if keys::wants_keys(&cluster, Timestamp::now().as_second()) {
        response.headers_mut().insert(
            HeaderName::from_static(RENEW_KEYS_HEADER),
            HeaderValue::from_static("1"),
        );
    }

    Ok(response)
}

fn not_computed() -> Refusal {
    Refusal::Unavailable("the cluster's desired state is not computed yet".to_owned())
}

async fn send_desired(replica: &Replica, cluster: &ClusterState, headers: &HeaderMap) -> Result<Response, Refusal> {
    let row = {
        let mut connection = replica.store.tables().await?;
        let row = tables::load_desired(&mut connection, &cluster.uid).await?;
        row.ok_or_else(not_computed)?
    };
    // A raised epoch clears the signature until the state is computed again.
    let etag = etag(&row).ok_or_else(not_computed)?;
    let json = compose(&row, replica.identity.installation())?;
    let mut response = Response::new(Body::empty());
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::ETAG, etag);
    response
        .headers_mut()
        .insert(header::VARY, HeaderValue::from_static("authorization, accept-encoding"));
    let body = if json.len() >= MIN_COMPRESSED_BYTES && accepts_zstd(headers) {
        response
            .headers_mut()
            .insert(header::CONTENT_ENCODING, HeaderValue::from_static("zstd"));
        zstd::bulk::compress(&json, ZSTD_LEVEL)
            .map_err(|error| Refusal::Unavailable(format!("the desired state can't be compressed: {error}")))?
    } else {
        json
    };
    *response.body_mut() = Body::from(body);
    Ok(response)
}

fn accepts_zstd(headers: &HeaderMap) -> bool {
    let values = headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        parts.next() == Some("zstd") && parts.all(|parameter| parameter.replace(' ', "") != "q=0")
    })
}

/// Builds a [`DesiredState`](farwater_api::protocol::DesiredState) that contains the row's content as it was written:
/// with many services, parsing each would be most of the answer's cost. An unreadable row is an error, because an empty
/// list of services would be wrong.
fn compose(row: &Desired, installation: &str) -> Result<Vec<u8>, StoreError> {
    #[derive(Serialize)]
    struct State<'a> {
        statement: Verbatim<Statement>,
        signature: &'a str,
        #[serde(flatten)]
        parts: &'a RawContent<'a>,
    }

    let unreadable = |error: serde_json::Error| damaged(row, error.to_string());
    let json = unpack(row)?;
    let parts = match is_list(&json) {
        true => RawContent {
            entries: serde_json::from_slice(&json).map_err(unreadable)?,
            agent: None,
            health: None,
            windows: None,
        },
        false => serde_json::from_slice(&json).map_err(unreadable)?,
    };
    if !is_list(parts.entries.get().as_bytes()) {
        return Err(damaged(row, "its entries are no list".to_owned()));
    }

    let digest = |part: Option<&RawValue>| part.map(|part| serde_json::from_str(part.get())).transpose();
    let statement = Statement {
        installation: installation.to_owned(),
        cluster_uid: row.cluster_uid.clone(),
        epoch: row.epoch,
        generation: row.generation,
        tag: row.tag,
        agent: digest(parts.agent)
            .map_err(unreadable)?
            .map(|part: Value| Digest::of_json(&part)),
        health: digest(parts.health)
            .map_err(unreadable)?
            .map(|part: Value| Digest::of_json(&part)),
        windows: digest(parts.windows)
            .map_err(unreadable)?
            .map(|part: Value| Digest::of_json(&part)),
        key_id: row.key_id.clone(),
    };

    let state = State {
        statement: statement.into(),
        signature: &row.signature,
        parts: &parts,
    };
    serde_json::to_vec(&state).map_err(unreadable)
}

/// The content of a row, compressed. A replica of the previous version serves the content of a newer one as that wrote
/// it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Content {
    pub entries: Vec<Verbatim<Entry>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Verbatim<AgentSettings>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Verbatim<HealthRules>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<Verbatim<Windows>>,
}

/// The same, not parsed.
#[derive(Serialize, Deserialize)]
struct RawContent<'a> {
    #[serde(borrow)]
    entries: &'a RawValue,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    agent: Option<&'a RawValue>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    health: Option<&'a RawValue>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    windows: Option<&'a RawValue>,
}

fn damaged(row: &Desired, problem: String) -> StoreError {
    StoreError::Row {
        what: format!("desired state of cluster {}", row.cluster_uid),
        problem,
    }
}

fn unpack(row: &Desired) -> Result<Vec<u8>, StoreError> {
    zstd::decode_all(row.body.as_slice()).map_err(|error| damaged(row, error.to_string()))
}

/// Whether it has the first format, which was only a list of entries.
fn is_list(json: &[u8]) -> bool {
    json.trim_ascii_start().first() == Some(&b'[')
}

pub fn read_content(row: &Desired) -> Result<Content, StoreError> {
    let json = unpack(row)?;
    let read = match is_list(&json) {
        true => serde_json::from_slice(&json).map(|entries| Content {
            entries,
            agent: None,
            health: None,
            windows: None,
        }),
        false => serde_json::from_slice(&json),
    };
    read.map_err(|error| damaged(row, error.to_string()))
}

/// The bundle that an entry names; None: it names none.
pub fn bundle(entry: &Entry) -> Option<Digest> {
    match &entry.action {
        Action::Apply(deployment) => Some(deployment.bundle),
        Action::Hold { .. } | Action::Remove { .. } | Action::Unreadable(_) => None,
    }
}

/// Maximum bytes of a statement and its signature, without the content.
pub const STATEMENT_BYTES: usize = 4096;

/// Size of the content in bytes, as agents get it.
pub fn measure(content: &Content) -> usize {
    serde_json::to_vec(content).map_or(0, |json| json.len())
}

/// Encodes the content for a row.
pub fn encode(content: &Content) -> Result<Vec<u8>, StoreError> {
    let json = serde_json::to_vec(content).map_err(StoreError::abort)?;
    zstd::bulk::compress(&json, ZSTD_LEVEL).map_err(StoreError::abort)
}

/// The ETag of a row; None: it is not signed yet.
pub fn etag(row: &Desired) -> Option<HeaderValue> {
    if row.signature.is_empty() {
        return None;
    }
    HeaderValue::from_str(&format!("\"{}.{}.{}\"", row.epoch, row.generation, row.tag.to_hex())).ok()
}

/// Epoch and generation of the state with this ETag.
pub fn number(etag: &HeaderValue) -> Option<Number> {
    let mut parts = etag.to_str().ok()?.strip_prefix('"')?.split('.');
    Some(Number {
        epoch: parts.next()?.parse().ok()?,
        generation: parts.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use farwater_api::{HealthRuleSpec, health_rule::NamedRule, protocol::DesiredState};
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
        let rule = HealthRuleSpec {
            kind: "Boat".to_owned(),
            current: "x".repeat(1000),
            ..HealthRuleSpec::default()
        };
        let rules = (0..64)
            .map(|n| NamedRule {
                name: format!("rule-{n}"),
                rule: rule.clone(),
            })
            .collect();
        let agent = AgentSettings {
            image: Some("x".repeat(1000)),
            ..AgentSettings::default()
        };
        let content = Content {
            entries: Vec::new(),
            agent: Some(Verbatim::from(agent)),
            health: Some(Verbatim::from(HealthRules { rules })),
            windows: Some(Verbatim::from(Windows::default())),
        };
        let sent = compose(&row(&content), "i").unwrap().len();
        let measured = measure(&content);
        assert!(
            measured < sent && sent <= measured + STATEMENT_BYTES,
            "{measured} of {sent}"
        );
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
        assert_eq!(
            number(&etag(&row).unwrap()),
            Some(Number {
                epoch: 1,
                generation: 1
            })
        );
        let served = |row: &Desired| -> Value {
            // An agent parses it and gets all of it.
            let state: DesiredState = serde_json::from_slice(&compose(row, "i").unwrap()).unwrap();
            assert_eq!(
                Some(state.statement.etag().as_bytes()),
                etag(row).as_ref().map(HeaderValue::as_bytes)
            );
            serde_json::to_value(state).unwrap()
        };
        let state = served(&row);
        assert_eq!((&state["entries"], &state["agent"]), (&entries, &agent));
        assert_eq!(state["statement"]["agent"], Digest::of_json(&agent).to_string());
        // Rows in the first format.
        let body = zstd::bulk::compress(entries.to_string().as_bytes(), ZSTD_LEVEL).unwrap();
        assert_eq!(served(&Desired { body, ..row.clone() })["entries"], entries);
        for damage in [&b"{}"[..], b"", br#"{"entries": [}"#, br#"{"entries": null}"#, b"null"] {
            let body = zstd::bulk::compress(damage, ZSTD_LEVEL).unwrap();
            assert!(compose(&Desired { body, ..row.clone() }, "i").is_err(), "{damage:?}");
        }
    }
}
