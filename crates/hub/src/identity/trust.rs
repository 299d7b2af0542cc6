//! `keys/trust.json`: the keys that agents should trust, from the first start to now.
//!
//! This file decides which keys are in use: new keys are beside the old ones, come into use with one write of this
//! file, and then replace the old ones. A crash leaves one of the two states; the next start continues from there.

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, UnparsedPublicKey};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    Digest,
    protocol::{SigningKey, Verbatim},
    succession::{MAX_AUTHORITIES, MAX_SUCCESSIONS, Position, SignedSuccession, Succession, Trusted},
};
use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use super::{
    IdentityError, Keys,
    files::{FileError, from_pem, read_private, remove, write_private},
};

pub(super) const FILE: &str = "trust.json";
/// About 500 bytes each, so that the file stays below the maximum that is read.
pub(super) const MAX_LINKS: usize = 400;
/// Each is one more certificate between an agent that pins it and the server's; verifiers accept six.
pub(super) const MAX_FORMER: usize = 5;

/// Whether a signature in base64 over a message was made by a key.
pub(super) fn verifies(key: &SigningKey, message: &[u8], signature: &str) -> bool {
    let (Some(key), Ok(signature)) = (key.bytes(), BASE64.decode(signature)) else {
        return false;
    };
    UnparsedPublicKey::new(&ED25519, key)
        .verify(message, &signature)
        .is_ok()
}

/// A former authority, and its successor as issued by it: the way from an old pin to the server's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Former {
    /// Number of the last succession in which agents pin it.
    pub until: u64,
    /// PEM.
    pub certificate: String,
    pub successor: String,
}

/// Where the chain begins: at the first keys, or after the revoked ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Base {
    position: Position,
    signing_key: SigningKey,
    authorities: Vec<Digest>,
    /// Seconds since 1970.
    made: i64,
}

impl Base {
    fn trusted(&self) -> Trusted {
        let (position, signing_key) = (self.position, self.signing_key.clone());
        Trusted {
            position,
            signing_key,
            authorities: self.authorities.clone(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    base: Base,
    successions: Vec<SignedSuccession>,
    /// Digest of `ca.crt`, whether the hub is served under it or not.
    own_authority: Digest,
    /// Oldest first.
    former: Vec<Former>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trust {
    content: Content,
    head: Trusted,
}

impl Trust {
    pub fn first(signing_key: SigningKey, own_authority: Digest, served: Digest, now: Timestamp) -> Self {
        let base = Base {
            position: Position::default(),
            signing_key,
            authorities: vec![served],
            made: now.as_second(),
        };
        let head = base.trusted();
        Self {
            content: Content {
                base,
                successions: Vec::new(),
                own_authority,
                former: Vec::new(),
            },
            head,
        }
    }

    /// None: there is no such file, because an older hub created the keys and they were never changed.
    pub fn read(keys: &Keys, installation: &str) -> Result<Option<Self>, IdentityError> {
        let path = keys.path(FILE);
        let Some(text) = read_private(&path)? else {
            return Ok(None);
        };
        let corrupt = |problem| IdentityError::Corrupt {
            path: path.clone(),
            problem,
        };
        let content: Content = serde_json::from_str(&text).map_err(|_| corrupt("was not written by a hub"))?;
        let head = content
            .base
            .trusted()
            .walk(installation, &content.successions, verifies);
        let head = head.map_err(|_| corrupt("holds a succession that doesn't follow from the one before"))?;
        let links = head.position.sequence.checked_sub(content.base.position.sequence);
        if links != Some(content.successions.len() as u64) {
            return Err(corrupt("holds a succession twice"));
        }
        Ok(Some(Self { content, head }))
    }

    pub fn write(&self, keys: &Keys) -> Result<(), FileError> {
        let json = serde_json::to_vec_pretty(&self.content).expect("it is plain JSON");
        write_private(&keys.path(FILE), &json)
    }

    /// The keys that agents should trust now.
    pub fn head(&self) -> &Trusted {
        &self.head
    }

    pub fn own_authority(&self) -> Digest {
        self.content.own_authority
    }

    pub fn former(&self) -> &[Former] {
        &self.content.former
    }

    pub fn is_full(&self) -> bool {
        self.content.successions.len() >= MAX_LINKS
    }

    /// The same with one more succession, signed by the current key.
    pub fn extend(
        mut self,
        installation: &str,
        signer: &Ed25519KeyPair,
        (signing_key, authorities): (SigningKey, Vec<Digest>),
        now: Timestamp,
    ) -> Self {
        let succession = Verbatim::from(Succession {
            installation: installation.to_owned(),
            sequence: self.head.position.sequence + 1,
            previous: self.head.position.link,
            signing_key: signing_key.clone(),
            authorities: authorities.clone(),
            made: now.as_second(),
        });
        let position = Position {
            sequence: succession.sequence,
            link: Some(succession.link()),
        };
        let signature = BASE64.encode(signer.sign(&succession.message()).as_ref());
        self.content
            .successions
            .push(SignedSuccession { succession, signature });
        self.head = Trusted {
            position,
            signing_key,
            authorities,
        };
        self
    }

    /// The same with another own authority.
    pub fn replace_authority(mut self, own: Digest, former: Former) -> Self {
        self.content.own_authority = own;
        self.content.former.push(former);
        self
    }

    /// The same without the successions up to this number, and without the certificates that only older agents need.
    pub fn cut(mut self, sequence: u64) -> Self {
        let content = &mut self.content;
        let links = content
            .successions
            .iter()
            .take_while(|link| link.succession.sequence <= sequence)
            .count();
        if let Some(SignedSuccession { succession, .. }) = content.successions.drain(..links).next_back() {
            let link = Some(succession.link());
            let succession = succession.into_value();
            content.base = Base {
                position: Position {
                    sequence: succession.sequence,
                    link,
                },
                signing_key: succession.signing_key,
                authorities: succession.authorities,
                made: succession.made,
            };
        }
        content.former.retain(|former| former.until >= sequence);
        self
    }

    pub fn standing(&self, position: &Position) -> Standing {
        let (base, head) = (self.content.base.position, self.head.position);
        if position.sequence < base.sequence {
            return Standing::Revoked;
        }
        let known = match position.sequence - base.sequence {
            0 => Some(base),
            behind => usize::try_from(behind - 1)
                .ok()
                .and_then(|n| self.content.successions.get(n))
                .map(|link| Position {
                    sequence: link.succession.sequence,
                    link: Some(link.succession.link()),
                }),
        };
        match known {
            Some(known) if known != *position => Standing::Foreign,
            None => Standing::Foreign,
            Some(known) if known == head => Standing::Current,
            Some(_) => Standing::Behind,
        }
    }

    /// The successions after a number; None: older ones were revoked.
    pub fn after(&self, sequence: u64) -> Option<&[SignedSuccession]> {
        let skipped = sequence.checked_sub(self.content.base.position.sequence)?;
        let skipped = usize::try_from(skipped)
            .unwrap_or(usize::MAX)
            .min(self.content.successions.len());
        let rest = &self.content.successions[skipped..];
        Some(&rest[..rest.len().min(MAX_SUCCESSIONS)])
    }

    /// Every signing key that an agent may still trust, with the time since when it was used; the current one last.
    pub fn signing_keys(&self) -> Vec<(&SigningKey, i64)> {
        let base = &self.content.base;
        let links = self
            .content
            .successions
            .iter()
            .map(|link| (&link.succession.signing_key, link.succession.made));
        let mut keys: Vec<_> = std::iter::once((&base.signing_key, base.made)).chain(links).collect();
        keys.dedup_by(|later, earlier| later.0 == earlier.0);
        keys
    }

    /// When an authority was first named.
    pub fn named(&self, authority: Digest) -> Option<i64> {
        let base = &self.content.base;
        let links = self
            .content
            .successions
            .iter()
            .map(|link| (&link.succession.authorities, link.succession.made));
        let mut all = std::iter::once((&base.authorities, base.made)).chain(links);
        all.find(|(named, _)| named.contains(&authority)).map(|(_, made)| made)
    }

    /// The certificates that a server presents between its own and the current authority: they lead from each former
    /// pin to the current one.
    pub fn between(&self) -> Vec<CertificateDer<'static>> {
        let der = |pem: &String| from_pem("CERTIFICATE", pem).map(|der| CertificateDer::from(der.to_vec()));
        let former = &self.content.former;
        let successors = former.iter().rev().filter_map(|former| der(&former.successor));
        successors
            .chain(former.iter().filter_map(|former| der(&former.certificate)))
            .collect()
    }
}

/// How far an agent has followed the successions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Current,
    /// It will follow by itself.
    Behind,
    /// The successions from there to the current keys were revoked.
    Revoked,
    /// It has followed a succession that these keys don't contain: they are an older copy, or were changed twice.
    Foreign,
}

/// The administrator's request, until a start of the hub carries it out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Number of the last succession at the time of the request. A request from before the current succession is done.
    pub after: u64,
    #[serde(default)]
    pub signing_key: bool,
    #[serde(default)]
    pub authority: bool,
    /// Authorities to name to agents besides the current ones.
    #[serde(default)]
    pub announced: Vec<Digest>,
    #[serde(default)]
    pub revoke: bool,
}

impl Request {
    const FILE: &str = "request.json";

    /// The request that is still to be carried out; None: there is none.
    pub(super) fn read(keys: &Keys, trust: &Trust) -> Result<Option<Self>, IdentityError> {
        let path = keys.path(Self::FILE);
        let Some(text) = read_private(&path)? else {
            return Ok(None);
        };
        let request: Self = serde_json::from_str(&text).map_err(|_| IdentityError::Request { path })?;
        Ok(Some(request).filter(|request| request.after == trust.head().position.sequence))
    }

    pub(super) fn write(&self, keys: &Keys) -> Result<(), FileError> {
        let json = serde_json::to_vec_pretty(self).expect("it is plain JSON");
        write_private(&keys.path(Self::FILE), &json)
    }

    pub(super) fn remove(keys: &Keys) -> Result<(), FileError> {
        remove(&keys.path(Self::FILE))
    }
}

/// The authorities that the next succession names. If the hub is served under an authority that agents don't know, it
/// replaces the known ones, because nothing else is possible. An announced authority is added.
pub(super) fn decide_authorities(
    known: &[Digest],
    replaced: Option<Digest>,
    served: Digest,
    request: &Request,
) -> Vec<Digest> {
    let mut authorities = vec![served];
    if !request.revoke && (known.contains(&served) || replaced.is_some()) {
        authorities.extend(known.iter().filter(|known| Some(**known) != replaced));
    }
    authorities.extend(&request.announced);
    let mut unique: Vec<Digest> = Vec::new();
    for authority in authorities {
        if !unique.contains(&authority) {
            unique.push(authority);
        }
    }
    unique.truncate(MAX_AUTHORITIES);
    // The order has no meaning: equal sets are no change.
    let same = unique.len() == known.len() && unique.iter().all(|authority| known.contains(authority));
    if same { known.to_vec() } else { unique }
}

#[cfg(test)]
#[path = "trust_tests.rs"]
mod tests;
