//! The agent's identity: its keys, its cluster, its hub and the hub's signing keys.

use std::{collections::BTreeSet, fmt, path::Path};

use aws_lc_rs::{
    agreement::{PrivateKey, X25519},
    encoding::{AsBigEndian, Curve25519SeedBin},
    rand,
    signature::{self, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::{
    Digest,
    protocol::{
        Assertion, ClusterIdentity, DesiredState, JoinAnswer, PlanRequest, PlanStatement, SealedSecrets,
        SignedAssertion, SigningKey, Statement, Verbatim, tag,
    },
    succession::{Broken, Handover, MAX_HANDOVERS, Position, SignedHandover, SignedSuccession, Trusted},
};
use rustls::crypto::{
    aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_256,
    hpke::{EncapsulatedSecret, Hpke as _, HpkePrivateKey},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::clock::system_seconds;

/// The most services that one cluster's desired state may hold.
const MAX_SERVICES: usize = 10_000;

/// Most former sealing keys that are kept. What the hub sealed to them is replaced at the next use; files that people
/// encrypted to them in Git stay so until they are encrypted again. Ten years of a new key each quarter, at 50 bytes
/// each.
const MAX_FORMER_SEALING: usize = 40;

/// A text that is never printed.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The agent's own keys, generated before the join. The private parts are never sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Keys {
    /// Ed25519, PKCS#8, base64.
    signing: Secret,
    /// X25519 scalar, base64. Secrets are sealed to it.
    sealing: Secret,
    /// Former sealing keys, newest first: documents sealed to them must open while the hub is away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    former_sealing: Vec<Secret>,
}

/// A document that was sealed to this agent.
pub struct Opened {
    pub plain: Zeroizing<Vec<u8>>,
    /// Sealed to a former key.
    pub is_former: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("make keys: no randomness")]
    Generate,
    #[error("read the agent's {0} key: it is damaged")]
    Damaged(&'static str),
}

impl Keys {
    pub fn generate() -> Result<Self, KeyError> {
        let signing = Ed25519KeyPair::generate()
            .and_then(|k| k.to_pkcs8())
            .map_err(|_| KeyError::Generate)?;
        let sealing = PrivateKey::generate(&X25519).map_err(|_| KeyError::Generate)?;
        let scalar: Curve25519SeedBin<'_> = sealing.as_be_bytes().map_err(|_| KeyError::Generate)?;
        Ok(Self {
            signing: Secret(STANDARD.encode(signing.as_ref())),
            sealing: Secret(STANDARD.encode(scalar.as_ref())),
            former_sealing: Vec::new(),
        })
    }

    /// A statement that names the next keys, signed by the present ones.
    fn hand_over(&self, next: &Self, installation: &str, cluster_uid: &str) -> Result<SignedHandover, KeyError> {
        let handover = Verbatim::from(Handover {
            installation: installation.to_owned(),
            cluster_uid: cluster_uid.to_owned(),
            from: self.public_key()?,
            public_key: next.public_key()?,
            sealing_key: next.sealing_public_key()?,
        });
        let (signature, proof) = (self.sign(&handover.message())?, next.sign(&handover.proof_message())?);
        Ok(SignedHandover {
            handover,
            signature,
            proof,
        })
    }

    /// The next keys, which also open what is sealed to the present ones.
    fn succeeded_by(&self, next: &Self) -> Self {
        let mut former = vec![self.sealing.clone()];
        former.extend(self.former_sealing.iter().cloned());
        former.truncate(MAX_FORMER_SEALING);
        Self {
            former_sealing: former,
            ..next.clone()
        }
    }

    fn pair(&self) -> Result<Ed25519KeyPair, KeyError> {
        let damaged = KeyError::Damaged("signing");
        let Ok(bytes) = STANDARD.decode(&self.signing.0) else {
            return Err(damaged);
        };
        Ed25519KeyPair::from_pkcs8(&bytes).map_err(|_| damaged)
    }

    pub fn sign(&self, message: &[u8]) -> Result<String, KeyError> {
        Ok(STANDARD.encode(self.pair()?.sign(message).as_ref()))
    }

    pub fn public_key(&self) -> Result<String, KeyError> {
        Ok(STANDARD.encode(self.pair()?.public_key().as_ref()))
    }

    pub fn sealing_public_key(&self) -> Result<String, KeyError> {
        let damaged = || KeyError::Damaged("sealing");
        let key = PrivateKey::from_private_key(&X25519, &scalar(&self.sealing)?).map_err(|_| damaged())?;
        Ok(STANDARD.encode(key.compute_public_key().map_err(|_| damaged())?.as_ref()))
    }

    /// The keys for SOPS files: present and former ones.
    fn sops_keys(&self) -> Result<Vec<farwater_sops::Identity>, KeyError> {
        let key = |key| farwater_sops::Identity::new(&scalar(key)?).map_err(|_| KeyError::Damaged("sealing"));
        std::iter::once(&self.sealing)
            .chain(&self.former_sealing)
            .map(key)
            .collect()
    }

    /// Opens a document that was sealed to this agent with exactly this `info`. None: it was not.
    pub fn open(&self, sealed: &SealedSecrets, info: &[u8]) -> Result<Option<Opened>, KeyError> {
        let decode = |text: &str| STANDARD.decode(text).ok();
        let (Some(encapsulated), Some(ciphertext)) = (decode(&sealed.encapsulated), decode(&sealed.ciphertext)) else {
            return Ok(None);
        };
        let encapsulated = EncapsulatedSecret(encapsulated);
        for (n, key) in std::iter::once(&self.sealing).chain(&self.former_sealing).enumerate() {
            let key = HpkePrivateKey::from(scalar(key)?);
            let opened = DH_KEM_X25519_HKDF_SHA256_AES_256.open(&encapsulated, info, &[], &ciphertext, &key);
            if let Ok(plain) = opened {
                return Ok(Some(Opened {
                    plain: Zeroizing::new(plain),
                    is_former: n > 0,
                }));
            }
        }
        Ok(None)
    }
}

fn scalar(key: &Secret) -> Result<Vec<u8>, KeyError> {
    STANDARD.decode(&key.0).map_err(|_| KeyError::Damaged("sealing"))
}

/// The process of an agent that makes requests.
#[derive(Clone, Debug, Default)]
pub struct Presence {
    /// Random id of the process. Empty: the hub can't tell it from another one.
    pub instance: String,
    /// The host that it runs on, for people.
    pub host: String,
    /// Another agent acts, and this one stands by.
    pub standby: bool,
}

impl Presence {
    pub fn of(host: &str, standby: bool) -> Result<Self, KeyError> {
        let mut instance = [0u8; 8];
        rand::fill(&mut instance).map_err(|_| KeyError::Generate)?;
        // As much as the hub accepts.
        let host = host.chars().filter(|c| !c.is_control()).take(100).collect();
        Ok(Self {
            instance: hex::encode(instance),
            host,
            standby,
        })
    }
}

/// The state that a joined agent must keep.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    pub hub: String,
    /// Pin of the hub's authority, as configured. None: only the authorities of a file vouch for the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_pin: Option<Digest>,
    /// Authorities that the hub has named since. They replace the pin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<Digest>,
    /// The last of the hub's successions that it has followed.
    #[serde(default, skip_serializing_if = "Position::is_first")]
    pub position: Position,
    pub cluster: ClusterIdentity,
    pub installation: String,
    pub signing_keys: Vec<SigningKey>,
    /// The hub's former key that signed the last accepted state, if the key has changed since. Valid only for the
    /// stored state, not for new ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_key: Option<SigningKey>,
    /// uid of `kube-system`. Using an identity for another cluster is a mistake.
    pub cluster_id: String,
    pub keys: Keys,
    /// Its own next keys, from before they are announced to the hub until they are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_keys: Option<Keys>,
    /// Handovers from former keys to the present ones, because a restored hub may know an older key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handovers: Vec<SignedHandover>,
}

/// Why a desired state is not accepted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Untrusted {
    #[error(
        "verify what the hub says: signed by key {key:?}, which is not the hub's ({known}, succession {sequence}); a hub whose keys/ was \
         restored needs the newest copy"
    )]
    UnknownKey { key: String, known: String, sequence: u64 },
    #[error("verify what the hub says: the signature is wrong")]
    Signature,
    #[error("verify what the hub says: made for installation {0:?}")]
    Installation(String),
    #[error("verify what the hub says: made for cluster {0:?}")]
    Cluster(String),
    #[error("verify what the hub says: its entries are not those that were signed")]
    Tag,
    #[error("verify desired state: it holds {0} services, at most {MAX_SERVICES} are accepted")]
    TooMany(usize),
    #[error("verify desired state: service {0} is listed twice")]
    Twice(String),
    #[error("verify desired state: epoch {epoch} generation {generation} is older than the one accepted before")]
    Older { epoch: u64, generation: u64 },
    #[error("verify desired state: two different ones are signed as epoch {epoch} generation {generation}")]
    Equivocal { epoch: u64, generation: u64 },
}

impl Identity {
    pub fn new(hub: &str, ca_pin: Option<Digest>, cluster_id: &str, keys: Keys, answer: JoinAnswer) -> Self {
        // Authorities that the hub names are valid only if the pinned authority vouched for the connection.
        let authorities = ca_pin.map(|_| answer.authorities).unwrap_or_default();
        Self {
            hub: hub.to_owned(),
            ca_pin,
            authorities,
            position: answer.position,
            cluster: answer.cluster,
            installation: answer.installation,
            signing_keys: answer.signing_keys,
            former_key: None,
            cluster_id: cluster_id.to_owned(),
            keys,
            next_keys: None,
            handovers: Vec::new(),
        }
    }

    /// Digests of the authorities that vouch for the hub. Empty: only those of a file do.
    pub fn pins(&self) -> Vec<Digest> {
        match self.ca_pin {
            Some(_) if !self.authorities.is_empty() => self.authorities.clone(),
            pin => pin.into_iter().collect(),
        }
    }

    /// Whether the hub has this authority, now or as once configured.
    pub fn is_of_authority(&self, pin: Digest) -> bool {
        self.ca_pin == Some(pin) || self.authorities.contains(&pin)
    }

    /// Follows the hub's successions. `accepted`: the key that signed the last accepted state.
    pub fn follow(&self, successions: &[SignedSuccession], accepted: Option<&str>) -> Result<Self, Broken> {
        let Some(signing_key) = self.signing_keys.first().cloned() else {
            return Ok(self.clone());
        };
        let trusted = Trusted {
            position: self.position,
            signing_key,
            authorities: self.pins(),
        };
        let verifies = |key: &SigningKey, message: &[u8], signature: &str| {
            let (key, signature) = (STANDARD.decode(&key.public_key), STANDARD.decode(signature));
            let (Ok(key), Ok(signature)) = (key, signature) else {
                return false;
            };
            UnparsedPublicKey::new(&signature::ED25519, key)
                .verify(message, &signature)
                .is_ok()
        };
        let Trusted {
            position,
            signing_key,
            authorities,
        } = trusted.walk(&self.installation, successions, verifies)?;
        let mut known = self.signing_keys.iter().chain(&self.former_key);
        let former = known
            .find(|key| Some(&*key.id) == accepted && key.id != signing_key.id)
            .cloned();
        Ok(Self {
            position,
            signing_keys: vec![signing_key],
            authorities,
            former_key: former,
            ..self.clone()
        })
    }

    /// Adds new keys of its own, which are not announced to the hub yet.
    pub fn prepare_keys(&self) -> Result<Self, KeyError> {
        let next_keys = match &self.next_keys {
            Some(present) => present.clone(),
            None => Keys::generate()?,
        };
        Ok(Self {
            next_keys: Some(next_keys),
            ..self.clone()
        })
    }

    /// The keys for SOPS files, present ones first. The next ones are included, because the hub may show them to people
    /// before the agent uses them.
    pub fn sops_keys(&self) -> Result<Vec<farwater_sops::Identity>, KeyError> {
        let mut keys = self.keys.sops_keys()?;
        if let Some(next) = &self.next_keys {
            keys.extend(next.sops_keys()?);
        }
        Ok(keys)
    }

    /// The statement that announces the next keys. None: there are none.
    pub fn handover(&self) -> Result<Option<SignedHandover>, KeyError> {
        let Some(next) = &self.next_keys else { return Ok(None) };
        self.keys
            .hand_over(next, &self.installation, &self.cluster.uid)
            .map(Some)
    }

    /// Makes the next keys the present ones, because the hub accepts them.
    pub fn promote_keys(&self) -> Result<Self, KeyError> {
        let (Some(handover), Some(next)) = (self.handover()?, &self.next_keys) else {
            return Ok(self.clone());
        };
        let mut handovers = self.handovers.clone();
        handovers.push(handover);
        handovers.drain(..handovers.len().saturating_sub(MAX_HANDOVERS));
        Ok(Self {
            keys: self.keys.succeeded_by(next),
            next_keys: None,
            handovers,
            ..self.clone()
        })
    }

    /// An assertion signed by `keys`: the present or the next ones.
    pub fn assertion(
        &self,
        keys: &Keys,
        time: i64,
        kubernetes_version: &str,
        presence: &Presence,
    ) -> Result<SignedAssertion, KeyError> {
        let mut nonce = [0u8; 16];
        rand::fill(&mut nonce).map_err(|_| KeyError::Generate)?;
        let assertion = Assertion {
            cluster_uid: self.cluster.uid.clone(),
            installation: self.installation.clone(),
            time,
            system_time: Some(system_seconds()),
            nonce: hex::encode(nonce),
            agent_version: crate::VERSION.to_owned(),
            kubernetes_version: kubernetes_version.to_owned(),
            instance: presence.instance.clone(),
            host: presence.host.clone(),
            standby: presence.standby,
            position: self.position,
        };
        let assertion = STANDARD.encode(serde_json::to_vec(&assertion).expect("an assertion is plain JSON"));
        let signature = keys.sign(&SignedAssertion::message(&assertion))?;
        Ok(SignedAssertion { assertion, signature })
    }

    /// Checks signature, addressee and entries of a desired state, and that it is not older than `accepted`.
    pub fn verify(&self, state: &DesiredState, accepted: Option<&Statement>) -> Result<(), Untrusted> {
        let statement = &state.statement;
        self.verify_signature(&statement.key_id, &statement.message(), &state.signature, None)?;
        self.verify_content(state, accepted)
    }

    /// Checks signature, addressee and entry of a request for a plan.
    pub fn verify_request(&self, request: &PlanRequest) -> Result<(), Untrusted> {
        let statement = &request.statement;
        let message = statement.message_for(PlanStatement::PREFIX);
        self.verify_signature(&statement.key_id, &message, &request.signature, None)?;
        self.verify_addressee(&statement.installation, &statement.cluster_uid)?;
        if statement.entry == request.entry.digest() {
            Ok(())
        } else {
            Err(Untrusted::Tag)
        }
    }

    /// Like [`Self::verify`], for a state that was accepted before, perhaps when the hub had another key.
    pub fn verify_stored(&self, state: &DesiredState) -> Result<(), Untrusted> {
        let (statement, former) = (&state.statement, self.former_key.as_ref());
        self.verify_signature(&statement.key_id, &statement.message(), &state.signature, former)?;
        self.verify_content(state, None)
    }

    fn verify_content(&self, state: &DesiredState, accepted: Option<&Statement>) -> Result<(), Untrusted> {
        let statement = &state.statement;
        self.verify_addressee(&statement.installation, &statement.cluster_uid)?;
        if state.entries.len() > MAX_SERVICES {
            return Err(Untrusted::TooMany(state.entries.len()));
        }
        let mut uids = BTreeSet::new();
        if let Some(twice) = state.entries.iter().find(|entry| !uids.insert(&entry.service.uid)) {
            return Err(Untrusted::Twice(twice.service.uid.clone()));
        }
        let (agent, health) = (
            state.agent.as_ref().map(Verbatim::digest),
            state.health.as_ref().map(Verbatim::digest),
        );
        let windows = state.windows.as_ref().map(Verbatim::digest);
        let parts = (tag(&state.entries), agent, health, windows);
        if parts != content_of(statement) {
            return Err(Untrusted::Tag);
        }
        let Some(accepted) = accepted else { return Ok(()) };
        let (epoch, generation) = (statement.epoch, statement.generation);
        match (epoch, generation).cmp(&(accepted.epoch, accepted.generation)) {
            std::cmp::Ordering::Less => Err(Untrusted::Older { epoch, generation }),
            std::cmp::Ordering::Equal if content_of(accepted) != content_of(statement) => {
                Err(Untrusted::Equivocal { epoch, generation })
            }
            _ => Ok(()),
        }
    }

    fn verify_addressee(&self, installation: &str, cluster_uid: &str) -> Result<(), Untrusted> {
        if installation != self.installation {
            return Err(Untrusted::Installation(installation.to_owned()));
        }
        if cluster_uid != self.cluster.uid {
            return Err(Untrusted::Cluster(cluster_uid.to_owned()));
        }
        Ok(())
    }

    fn verify_signature(
        &self,
        key_id: &str,
        message: &[u8],
        signature: &str,
        former: Option<&SigningKey>,
    ) -> Result<(), Untrusted> {
        let key = self.signing_keys.iter().chain(former).find(|key| key.id == key_id);
        let key = key.ok_or_else(|| Untrusted::UnknownKey {
            key: key_id.chars().take(64).collect(),
            known: self.signing_keys.first().map(|key| key.id.clone()).unwrap_or_default(),
            sequence: self.position.sequence,
        })?;
        let decode = |text: &str| STANDARD.decode(text).map_err(|_| Untrusted::Signature);
        UnparsedPublicKey::new(&signature::ED25519, decode(&key.public_key)?)
            .verify(message, &decode(signature)?)
            .map_err(|_| Untrusted::Signature)
    }
}

/// Writes a file that only its owner may read. A crash leaves the old or the new one.
pub fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let temporary = path.with_extension("tmp");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    match path.parent() {
        Some(folder) => std::fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

fn content_of(statement: &Statement) -> (Digest, Option<Digest>, Option<Digest>, Option<Digest>) {
    (statement.tag, statement.agent, statement.health, statement.windows)
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
