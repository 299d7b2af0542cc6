//! The keys of a hub's data directory, for people.

use std::path::Path;

use farwater_api::{Digest, protocol::SigningKey, succession::Position};
use jiff::Timestamp;
use serde::Serialize;

use super::{
    IdentityError,
    certificates::certificate_end,
    files::{from_pem, read_private},
    read_seal_key,
    rotate::read_trust,
    trust::{Request, Standing, Trust},
};

/// One key or certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyRow {
    pub kind: &'static str,
    /// Id of a signing key, or digest of a certificate as agents pin it.
    pub id: String,
    pub state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends: Option<Timestamp>,
}

pub struct KeyList {
    pub rows: Vec<KeyRow>,
    /// Number of successions since the first start.
    pub sequence: u64,
    /// The changes that the hub's next start will make; None: none are requested.
    pub requested: Option<Request>,
    trust: Trust,
}

impl KeyList {
    /// Reads the keys of a hub that may be running.
    pub fn read(data_dir: &Path) -> Result<Self, IdentityError> {
        let (keys, trust) = read_trust(data_dir)?;
        let certificate =
            |name: &str| read_private(&keys.path(name)).map(|text| der(text.as_deref().map(String::as_str)));
        let (own, server) = (certificate("ca.crt")?, certificate("tls.crt")?);
        let mut rows = signing_keys(&trust);
        rows.extend(authorities(&trust, own.as_deref()));
        let seal = KeyRow {
            kind: "seal-key",
            id: read_seal_key(data_dir)?.id(),
            state: "in use",
            since: None,
            ends: None,
        };
        rows.push(seal);
        rows.extend(server.map(|der| KeyRow {
            kind: "server-certificate",
            id: Digest::of(&der).to_string(),
            state: if is_own(&trust) { "in use" } else { "not served" },
            since: None,
            ends: end(&der),
        }));
        let (sequence, requested) = (trust.head().position.sequence, Request::read(&keys, &trust)?);
        Ok(Self {
            rows,
            sequence,
            requested,
            trust,
        })
    }

    /// The standing of a cluster's agent.
    pub fn standing(&self, position: &Position) -> Standing {
        self.trust.standing(position)
    }
}

/// Whether the hub is served with a certificate of its own authority.
fn is_own(trust: &Trust) -> bool {
    trust.head().authorities.contains(&trust.own_authority())
}

fn signing_keys(trust: &Trust) -> Vec<KeyRow> {
    let row = |(key, since): (&SigningKey, i64)| KeyRow {
        kind: "signing-key",
        id: key.id.clone(),
        state: if *key == trust.head().signing_key {
            "in use"
        } else {
            "replaced"
        },
        since: Timestamp::from_second(since).ok(),
        ends: None,
    };
    trust.signing_keys().into_iter().rev().map(row).collect()
}

fn authorities(trust: &Trust, own: Option<&[u8]>) -> Vec<KeyRow> {
    let (head, since) = (trust.head(), |pin| {
        trust.named(pin).and_then(|made| Timestamp::from_second(made).ok())
    });
    let mut rows: Vec<_> = head
        .authorities
        .iter()
        .map(|pin| {
            let (state, ends) = match *pin == trust.own_authority() {
                true => ("in use", own.and_then(end)),
                false => ("of others", None),
            };
            KeyRow {
                kind: "ca",
                id: pin.to_string(),
                state,
                since: since(*pin),
                ends,
            }
        })
        .collect();
    if !is_own(trust) {
        let (id, ends) = (trust.own_authority().to_string(), own.and_then(end));
        rows.push(KeyRow {
            kind: "ca",
            id,
            state: "not served",
            since: None,
            ends,
        });
    }
    rows.extend(trust.former().iter().rev().filter_map(|former| {
        let der = der(Some(&former.certificate))?;
        let pin = Digest::of(&der);
        let (id, since, ends) = (pin.to_string(), since(pin), end(&der));
        Some(KeyRow {
            kind: "ca",
            id,
            state: "replaced",
            since,
            ends,
        })
    }));
    rows
}

fn der(pem: Option<&str>) -> Option<Vec<u8>> {
    Some(from_pem("CERTIFICATE", pem?)?.to_vec())
}

fn end(der: &[u8]) -> Option<Timestamp> {
    Timestamp::from_second(certificate_end(der)?).ok()
}
