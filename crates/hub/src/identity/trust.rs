//! `keys/trust.json`: what agents were told to go by, from the first start to today.
//!
//! It is the last word on which keys are in use: new keys lie beside the old ones, become the hub's by one write of this file, and
//! take the old ones' place after it. A crash leaves one of the two states; the next start goes on from there.

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
/// Of 500 bytes each, so that the file stays below what is read.
pub(super) const MAX_LINKS: usize = 400;
/// Each is one more certificate between an agent that pins it and the server's; verifiers take six.
pub(super) const MAX_FORMER: usize = 5;

/// Whether a key has made a signature, in base64, over a message.
pub(super) fn verifies(key: &SigningKey, message: &[u8], signature: &str) -> bool {
    let (Some(key), Ok(signature)) = (key.bytes(), BASE64.decode(signature)) else { return false };
    UnparsedPublicKey::new(&ED25519, key).verify(message, &signature).is_ok()
}

/// An authority of before, and the one after it as issued by it: what leads from a pin of long ago to the server's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Former {
    /// Agents that have followed up to this succession pin it.
    pub until: u64,
    /// PEM.
    pub certificate: String,
    pub successor: String,
}

/// Where the chain begins: at the first keys, or at what was left when older ones were taken out of use.
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
        Trusted { position, signing_key, authorities: self.authorities.clone() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    base: Base,
    successions: Vec<SignedSuccession>,
    /// Of `ca.crt`, whether the hub is served under it or not.
    own_authority: Digest,
    /// The oldest first.
    former: Vec<Former>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trust {
    content: Content,
    head: Trusted,
}

impl Trust {
    pub fn first(signing_key: SigningKey, own_authority: Digest, served: Digest, now: Timestamp) -> Self {
        let base =
            Base { position: Position::default(), signing_key, authorities: vec![served], made: now.as_second() };
        let head = base.trusted();
        Self { content: Content { base, successions: Vec::new(), own_authority, former: Vec::new() }, head }
    }

    /// None where there is no such file: the keys have never changed, and were made by a hub that knew no other way.
    pub fn read(keys: &Keys, installation: &str) -> Result<Option<Self>, IdentityError> {
        let path = keys.path(FILE);
        let Some(text) = read_private(&path)? else { return Ok(None) };
        let corrupt = |problem| IdentityError::Corrupt { path: path.clone(), problem };
        let content: Content = serde_json::from_str(&text).map_err(|_| corrupt("was not written by a hub"))?;
        let head = content.base.trusted().walk(installation, &content.successions, verifies);
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

    /// What agents shall go by today.
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

    /// The same with one more succession, signed by the key of today.
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
        let position = Position { sequence: succession.sequence, link: Some(succession.link()) };
        let signature = BASE64.encode(signer.sign(&succession.message()).as_ref());
        self.content.successions.push(SignedSuccession { succession, signature });
        self.head = Trusted { position, signing_key, authorities };
        self
    }

    /// The same with another authority of the hub's own.
    pub fn replace_authority(mut self, own: Digest, former: Former) -> Self {
        self.content.own_authority = own;
        self.content.former.push(former);
        self
    }

    /// The same without what leads to a succession from before it.
    pub fn cut(mut self, sequence: u64) -> Self {
        let content = &mut self.content;
        let links = content.successions.iter().take_while(|link| link.succession.sequence <= sequence).count();
        if let Some(SignedSuccession { succession, .. }) = content.successions.drain(..links).next_back() {
            let link = Some(succession.link());
            let succession = succession.into_value();
            content.base = Base {
                position: Position { sequence: succession.sequence, link },
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
                .map(|link| Position { sequence: link.succession.sequence, link: Some(link.succession.link()) }),
        };
        match known {
            Some(known) if known != *position => Standing::Foreign,
            None => Standing::Foreign,
            Some(known) if known == head => Standing::Current,
            Some(_) => Standing::Behind,
        }
    }

    /// Those after a number; none where older ones were taken out of use.
    pub fn after(&self, sequence: u64) -> Option<&[SignedSuccession]> {
        let skipped = sequence.checked_sub(self.content.base.position.sequence)?;
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX).min(self.content.successions.len());
        let rest = &self.content.successions[skipped..];
        Some(&rest[..rest.len().min(MAX_SUCCESSIONS)])
    }

    /// Every signing key that some agent may go by, with the time from which it was used; today's last.
    pub fn signing_keys(&self) -> Vec<(&SigningKey, i64)> {
        let base = &self.content.base;
        let links = self.content.successions.iter().map(|link| (&link.succession.signing_key, link.succession.made));
        let mut keys: Vec<_> = std::iter::once((&base.signing_key, base.made)).chain(links).collect();
        keys.dedup_by(|later, earlier| later.0 == earlier.0);
        keys
    }

    /// When an authority was first named.
    pub fn named(&self, authority: Digest) -> Option<i64> {
        let base = &self.content.base;
        let links = self.content.successions.iter().map(|link| (&link.succession.authorities, link.succession.made));
        let mut all = std::iter::once((&base.authorities, base.made)).chain(links);
        all.find(|(named, _)| named.contains(&authority)).map(|(_, made)| made)
    }

    /// What a server presents between its own certificate and today's authority: from each pin of before a way leads to it.
    pub fn between(&self) -> Vec<CertificateDer<'static>> {
        let der = |pem: &String| from_pem("CERTIFICATE", pem).map(|der| CertificateDer::from(der.to_vec()));
        let former = &self.content.former;
        let successors = former.iter().rev().filter_map(|former| der(&former.successor));
        successors.chain(former.iter().filter_map(|former| der(&former.certificate))).collect()
    }
}

/// How far an agent has come, seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Current,
    /// It goes on by itself.
    Behind,
    /// What leads from there to today's keys was taken out of use.
    Revoked,
    /// It has followed a succession that these keys know nothing of: they are an older copy, or were changed twice.
    Foreign,
}

/// What the administrator has asked for, until a start of the hub does it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// The last succession at that time: what was asked for before the present one is done.
    pub after: u64,
    #[serde(default)]
    pub signing_key: bool,
    #[serde(default)]
    pub authority: bool,
    /// Named to agents beside today's.
    #[serde(default)]
    pub announced: Vec<Digest>,
    #[serde(default)]
    pub revoke: bool,
}

impl Request {
    const FILE: &str = "request.json";

    /// What is still to be done.
    pub(super) fn read(keys: &Keys, trust: &Trust) -> Result<Option<Self>, IdentityError> {
        let path = keys.path(Self::FILE);
        let Some(text) = read_private(&path)? else { return Ok(None) };
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

/// Which authorities the next succession names. One that agents don't know and that the hub is served under replaces what they
/// know, as nothing else can be done; an authority that is announced stands beside it.
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
    // The order says nothing: what is the same is no news.
    let same = unique.len() == known.len() && unique.iter().all(|authority| known.contains(authority));
    if same { known.to_vec() } else { unique }
}

#[cfg(test)]
#[path = "trust_tests.rs"]
mod tests;
