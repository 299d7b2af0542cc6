//! Rotation of the hub's keys: requested while it runs, done by its next start. Only a start writes the keys in use.
//!
//! New keys are created beside the old ones. The write of `trust.json` puts them into use and is the only moment that
//! counts; then their files replace the old ones. A start that finds this half done continues it. Replaced private keys
//! are deleted.

use std::path::Path;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use farwater_api::{Digest, protocol::SigningKey, succession::MAX_AUTHORITIES};
use jiff::Timestamp;

use super::{
    IdentityError, Keys,
    certificates::Authority,
    files::{read_private, replace},
    make_signing_key, parse_installation, parse_signing_key,
    trust::{Former, MAX_FORMER, MAX_LINKS, Request, Trust, decide_authorities},
};

const SIGNING: &str = "signing.key";
const NEXT_SIGNING: &str = "signing.next.key";
const RETIRE: &str = "retire old keys first: farwater admin keys revoke";

/// The keys that can be rotated.
pub(super) struct Material {
    pub signing: Ed25519KeyPair,
    pub authority: Authority,
    pub trust: Trust,
}

impl Material {
    /// Loads the keys in use, creates them at the first start, and does what was requested. `mounted`: the authority
    /// that the hub is served under, if that is not its own.
    pub fn open(
        keys: &Keys,
        installation: &str,
        mounted: Option<Digest>,
        now: Timestamp,
    ) -> Result<Self, IdentityError> {
        let material = Self::load(keys, installation, mounted, now)?;
        let Some(next) = material.prepare(keys, installation, mounted, now)? else {
            Request::remove(keys)?;
            return Ok(material);
        };
        next.write(keys)?;
        let material = Self::load(keys, installation, mounted, now)?;
        Request::remove(keys)?;
        let head = material.trust.head();
        tracing::info!(
            succession = head.position.sequence,
            signing_key = head.signing_key.id,
            authorities = ?head.authorities,
            "the hub has switched to new keys; agents follow by themselves"
        );
        Ok(material)
    }

    fn load(keys: &Keys, installation: &str, mounted: Option<Digest>, now: Timestamp) -> Result<Self, IdentityError> {
        let trust = Trust::read(keys, installation)?;
        if let Some(trust) = &trust {
            finish(keys, trust)?;
        }
        let authority = Authority::open(keys, now)?;
        let signing = keys.load(SIGNING, make_signing_key, parse_signing_key)?;
        let (key, own) = (public(&signing), authority.pin());
        let trust = match trust {
            Some(trust) => trust,
            None => {
                let first = Trust::first(key.clone(), own, mounted.unwrap_or(own), now);
                first.write(keys)?;
                first
            }
        };
        let other = |name, problem| {
            Err(IdentityError::Corrupt {
                path: keys.path(name),
                problem,
            })
        };
        if trust.head().signing_key != key {
            return other(SIGNING, "is not the key that trust.json beside it names");
        }
        if trust.own_authority() != own {
            return other("ca.crt", "is not the authority that trust.json beside it names");
        }
        Ok(Self {
            signing,
            authority,
            trust,
        })
    }

    /// The next content of `trust.json`; None: it stays. The keys that it names are beside those in use.
    fn prepare(
        &self,
        keys: &Keys,
        installation: &str,
        mounted: Option<Digest>,
        now: Timestamp,
    ) -> Result<Option<Trust>, IdentityError> {
        let request = Request::read(keys, &self.trust)?.unwrap_or_default();
        let (mut next, head) = (self.trust.clone(), self.trust.head());
        let (sequence, own) = (head.position.sequence, self.authority.pin());

        let mut replaced = None;
        if request.authority && mounted.is_some() {
            tracing::warn!("the hub serves a mounted certificate; its own authority stays unchanged");
        } else if request.authority {
            let (pin, former) = stage_authority(keys, &self.authority, sequence, now)?;
            next = next.replace_authority(pin, former);
            replaced = Some(own);
        }

        let signing_key = match request.signing_key {
            true => public(&stage_signing_key(keys)?),
            false => head.signing_key.clone(),
        };

        let served = mounted.unwrap_or(next.own_authority());
        let authorities = decide_authorities(&head.authorities, replaced, served, &request);
        if !head.authorities.contains(&served) && replaced.is_none() {
            tracing::warn!(
                authority = %served,
                "the authority of the hub's certificate was not announced to agents; agents that can't connect need it in \
                 --ca-file, or must join again"
            );
        }

        if signing_key != head.signing_key || authorities != head.authorities {
            next = next.extend(installation, &self.signing, (signing_key, authorities), now);
        }
        if request.revoke {
            next = next.cut(sequence);
        }

        Ok((next != self.trust).then_some(next))
    }
}

fn public(pair: &Ed25519KeyPair) -> SigningKey {
    SigningKey::new(pair.public_key().as_ref())
}

/// The next signing key: the one that an earlier start has left, or a new one.
fn stage_signing_key(keys: &Keys) -> Result<Ed25519KeyPair, IdentityError> {
    keys.for_next().load(NEXT_SIGNING, make_signing_key, parse_signing_key)
}

/// The same for the authority, with the certificates that lead from the current one to it.
fn stage_authority(
    keys: &Keys,
    current: &Authority,
    sequence: u64,
    now: Timestamp,
) -> Result<(Digest, Former), IdentityError> {
    let next = Authority::stage(&keys.for_next(), now)?;
    let successor = current.vouch_for(&next, now)?;
    Ok((
        next.pin(),
        Former {
            until: sequence,
            certificate: current.pem().to_owned(),
            successor,
        },
    ))
}

/// Moves the files of keys that are in use according to `trust.json` to the places of keys in use.
fn finish(keys: &Keys, trust: &Trust) -> Result<(), IdentityError> {
    let next = keys.path(NEXT_SIGNING);
    let staged = read_private(&next)?.and_then(|text| parse_signing_key(&text).ok());
    if staged.is_some_and(|pair| public(&pair) == trust.head().signing_key) {
        replace(&next, &keys.path(SIGNING))?;
    }
    Authority::finish(keys, trust.own_authority())
}

/// A requested change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    SigningKey,
    Authority,
    /// Digests of authorities that will issue the hub's served certificate.
    Announce(Vec<Digest>),
    /// Revokes the successions that lead from older keys to the current ones.
    Revoke,
}

/// Requests a change of a hub's keys, which its next start makes. Requested twice, it is made once.
pub fn request_change(data_dir: &Path, change: Change) -> Result<Request, IdentityError> {
    let (keys, trust) = read_trust(data_dir)?;
    let mut request = Request::read(&keys, &trust)?.unwrap_or_default();
    request.after = trust.head().position.sequence;

    let refuse = |why: String| Err(IdentityError::Refused(why));
    if change != Change::Revoke && trust.is_full() {
        return refuse(format!(
            "the hub keeps {MAX_LINKS} changes of keys, the maximum; {RETIRE}"
        ));
    }

    match change {
        Change::SigningKey => request.signing_key = true,
        Change::Authority => {
            if !trust.head().authorities.contains(&trust.own_authority()) {
                return refuse(
                    "the hub serves a mounted certificate: announce its next authority instead, with farwater admin keys announce".into(),
                );
            }
            if trust.former().len() >= MAX_FORMER && !request.revoke {
                return refuse(format!(
                    "the hub still serves {MAX_FORMER} former authorities to agents that pin them, the maximum; {RETIRE}"
                ));
            }
            request.authority = true;
        }
        Change::Announce(pins) => {
            request.announced.extend(pins);
            request.announced.sort();
            request.announced.dedup();
            let known = &trust.head().authorities;
            let more = request.announced.iter().filter(|pin| !known.contains(pin)).count();
            if known.len() + more > MAX_AUTHORITIES {
                return refuse(format!(
                    "agents accept {MAX_AUTHORITIES} authorities at a time; {RETIRE}"
                ));
            }
        }
        Change::Revoke => request.revoke = true,
    }

    request.write(&keys)?;
    Ok(request)
}

/// Reads the keys of a hub that may be running.
pub(super) fn read_trust(data_dir: &Path) -> Result<(Keys, Trust), IdentityError> {
    let keys = Keys {
        directory: data_dir.join("keys"),
        established: true,
    };
    let not_started = || IdentityError::NotStarted {
        path: data_dir.to_owned(),
    };
    let installation = read_private(&keys.path("installation"))?.ok_or_else(not_started)?;
    let installation = parse_installation(&installation).map_err(|problem| IdentityError::Corrupt {
        path: keys.path("installation"),
        problem,
    })?;
    let trust = Trust::read(&keys, &installation)?.ok_or_else(not_started)?;
    Ok((keys, trust))
}

#[cfg(test)]
#[path = "rotate_tests.rs"]
mod tests;
