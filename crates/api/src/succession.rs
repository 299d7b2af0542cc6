//! Successions and handovers: statements, each signed by the previous key, that change the keys of the hub and of
//! agents without a new join.
//!
//! A *succession* names all that agents pin of the hub from then on: the signing key and the authorities. Successions
//! are numbered, and each names the previous one. An agent that was away for years therefore walks from its pinned keys
//! to the current ones, and detects a gap, a forgery and a fork. A *handover* belongs to an agent: its old key names
//! the new ones, and the new key proves that the agent holds it. Neither needs a time or a nonce: each is valid only
//! from one key to the next, and has no effect a second time.

use serde::{Deserialize, Serialize};

use crate::{
    Digest,
    protocol::{SigningKey, Verbatim},
};

/// Maximum number of authorities in one succession: the current and the announced ones.
pub const MAX_AUTHORITIES: usize = 4;
/// Maximum number of successions in one answer. An agent that is further behind sends another request.
pub const MAX_SUCCESSIONS: usize = 64;
/// Maximum number of handovers that an agent keeps and a hub reads: at one in 90 days, they last four years.
pub const MAX_HANDOVERS: usize = 16;

/// Last succession of the hub that was followed. 0: the keys of the installation's first start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    pub sequence: u64,
    /// [`Verbatim::link`] of the last succession. None at 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Digest>,
}

impl Position {
    pub fn is_first(&self) -> bool {
        *self == Self::default()
    }
}

/// Keys of the hub from here on: the hub holds this signing key, and one of these authorities certifies it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Succession {
    pub installation: String,
    /// Number of the succession: 1, 2, 3 …
    pub sequence: u64,
    /// [`Verbatim::link`] of the previous succession. None for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Digest>,
    /// Signing key. Unchanged if only an authority changes.
    pub signing_key: SigningKey,
    /// sha256 of each authority's certificate.
    pub authorities: Vec<Digest>,
    /// Time in seconds since 1970, for people.
    pub made: i64,
}

/// Signed messages begin with their purpose, so that one kind of statement never counts as another.
impl Verbatim<Succession> {
    /// Message that the previous key signs.
    pub fn message(&self) -> Vec<u8> {
        self.message_for(b"farwater-succession-v1\n")
    }

    /// Digest by which the next succession names this one.
    pub fn link(&self) -> Digest {
        Digest::of(self.message())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedSuccession {
    pub succession: Verbatim<Succession>,
    /// Ed25519 over its message by the key of the previous succession, base64.
    pub signature: String,
}

/// Answer of `GET /agent/v1/successions/<sequence>`: the following ones, at most [`MAX_SUCCESSIONS`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Successions {
    pub successions: Vec<SignedSuccession>,
}

/// Trusted keys and authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trusted {
    pub position: Position,
    pub signing_key: SigningKey,
    pub authorities: Vec<Digest>,
}

/// Why a succession is not followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("follow the hub's successions: number {0} is of installation {1:?}")]
    Installation(u64, String),
    #[error("follow the hub's successions: number {found} came where {expected} was expected")]
    Gap { expected: u64, found: u64 },
    #[error("follow the hub's successions: number {0} is not signed by the key before it, {1}")]
    Forged(u64, String),
    #[error(
        "follow the hub's successions: there are two different ones of number {0}: the hub's keys were restored from an older copy \
         and changed again, or stolen. Restore the newest copy of keys/, or join again with a new token"
    )]
    Fork(u64),
    #[error("follow the hub's successions: number {0} {1}")]
    Invalid(u64, &'static str),
}

impl Trusted {
    /// Applies one more succession. `verifies` checks a key's signature of a message.
    fn follow(
        &self,
        installation: &str,
        next: &SignedSuccession,
        verifies: impl Fn(&SigningKey, &[u8], &str) -> bool,
    ) -> Result<Self, Broken> {
        let SignedSuccession { succession, signature } = next;
        let sequence = succession.sequence;
        if succession.installation != installation {
            return Err(Broken::Installation(
                sequence,
                succession.installation.chars().take(64).collect(),
            ));
        }
        if !verifies(&self.signing_key, &succession.message(), signature) {
            return Err(Broken::Forged(sequence, self.signing_key.id.clone()));
        }
        if succession.previous != self.position.link {
            return Err(Broken::Fork(self.position.sequence));
        }
        if !succession.signing_key.is_sound() {
            return Err(Broken::Invalid(sequence, "names a signing key that is none"));
        }
        if !(1..=MAX_AUTHORITIES).contains(&succession.authorities.len()) {
            return Err(Broken::Invalid(sequence, "names no authority, or too many"));
        }
        Ok(Self {
            position: Position {
                sequence,
                link: Some(succession.link()),
            },
            signing_key: succession.signing_key.clone(),
            authorities: succession.authorities.clone(),
        })
    }

    /// Follows all of them or none, and skips those followed before.
    pub fn walk(
        &self,
        installation: &str,
        successions: &[SignedSuccession],
        verifies: impl Fn(&SigningKey, &[u8], &str) -> bool,
    ) -> Result<Self, Broken> {
        let mut at = self.clone();
        for next in successions {
            let (known, found) = (at.position.sequence, next.succession.sequence);
            if found < known {
                continue;
            }
            if found == known {
                if at.position.link != Some(next.succession.link()) {
                    return Err(Broken::Fork(known));
                }
                continue;
            }
            if found - known > 1 {
                return Err(Broken::Gap {
                    expected: known + 1,
                    found,
                });
            }
            at = at.follow(installation, next, &verifies)?;
        }
        Ok(at)
    }
}

/// Statement in which an agent's old key names its new ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Handover {
    pub installation: String,
    pub cluster_uid: String,
    /// The old Ed25519 public key, base64.
    pub from: String,
    /// The new Ed25519 public key, base64.
    pub public_key: String,
    /// The new X25519 public key to which secrets are sealed, base64.
    pub sealing_key: String,
}

impl Verbatim<Handover> {
    /// Message that the old key signs.
    pub fn message(&self) -> Vec<u8> {
        self.message_for(b"farwater-handover-v1\n")
    }

    /// Message that the new key signs.
    pub fn proof_message(&self) -> Vec<u8> {
        self.message_for(b"farwater-handover-proof-v1\n")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedHandover {
    pub handover: Verbatim<Handover>,
    /// Signature by `from`, base64.
    pub signature: String,
    /// Signature by `publicKey`, base64.
    pub proof: String,
}

/// Body of `POST /agent/v1/keys`. It needs no access token, because the key that the hub knows has signed it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeysRequest {
    pub cluster_uid: String,
    /// Handovers, the oldest first. A restored hub may know an older key than the last one.
    pub handovers: Vec<SignedHandover>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeysAnswer {
    /// Hub's time in seconds since 1970. The new keys become valid once the agent requests a token
    /// with them.
    pub hub_time: i64,
}

/// Follows handovers from the public key that the hub knows. None if no handover begins there, or if one on the way is
/// not signed and proven. `verifies` checks a public key's signature of a message.
pub fn follow_handovers<'a>(
    (installation, cluster_uid): (&str, &str),
    known: &str,
    handovers: &'a [SignedHandover],
    verifies: impl Fn(&str, &[u8], &str) -> bool,
) -> Option<&'a Handover> {
    let begin = handovers.iter().position(|link| link.handover.from == known)?;
    let mut at = None;
    for SignedHandover {
        handover,
        signature,
        proof,
    } in handovers.iter().skip(begin)
    {
        let from = at.map_or(known, |last: &Handover| &last.public_key);
        let holds = handover.installation == installation
            && handover.cluster_uid == cluster_uid
            && handover.from == from
            && verifies(from, &handover.message(), signature)
            && verifies(&handover.public_key, &handover.proof_message(), proof);
        if !holds {
            return None;
        }
        at = Some(handover);
    }
    at
}

#[cfg(test)]
#[path = "succession_tests.rs"]
mod tests;
