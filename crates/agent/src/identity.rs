//! Who this agent is: its keys, its cluster, its hub and the keys that the hub signs with.

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
        Assertion, ClusterIdentity, DesiredState, JoinAnswer, SealedSecrets, SignedAssertion, SigningKey, Statement,
        tag,
    },
};
use rustls::crypto::{
    aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_256,
    hpke::{EncapsulatedSecret, Hpke as _, HpkePrivateKey},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// The most services that one cluster's desired state may hold.
const MAX_SERVICES: usize = 10_000;

/// Text that is never printed.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The agent's own keys, made before the join and never sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Keys {
    /// Ed25519, PKCS#8, base64.
    signing: Secret,
    /// X25519 scalar, base64: what secrets are sealed to.
    sealing: Secret,
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
        let signing = Ed25519KeyPair::generate().and_then(|k| k.to_pkcs8()).map_err(|_| KeyError::Generate)?;
        let sealing = PrivateKey::generate(&X25519).map_err(|_| KeyError::Generate)?;
        let scalar: Curve25519SeedBin<'_> = sealing.as_be_bytes().map_err(|_| KeyError::Generate)?;
        Ok(Self {
            signing: Secret(STANDARD.encode(signing.as_ref())),
            sealing: Secret(STANDARD.encode(scalar.as_ref())),
        })
    }

    fn pair(&self) -> Result<Ed25519KeyPair, KeyError> {
        let damaged = KeyError::Damaged("signing");
        let Ok(bytes) = STANDARD.decode(&self.signing.0) else { return Err(damaged) };
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
        let key = PrivateKey::from_private_key(&X25519, &self.sealing_scalar()?).map_err(|_| damaged())?;
        Ok(STANDARD.encode(key.compute_public_key().map_err(|_| damaged())?.as_ref()))
    }

    fn sealing_scalar(&self) -> Result<Vec<u8>, KeyError> {
        STANDARD.decode(&self.sealing.0).map_err(|_| KeyError::Damaged("sealing"))
    }

    /// Opens what was sealed to this agent with exactly this `info`. `None`: it was not.
    pub fn open(&self, sealed: &SealedSecrets, info: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>, KeyError> {
        let key = HpkePrivateKey::from(self.sealing_scalar()?);
        let decode = |text: &str| STANDARD.decode(text).ok();
        let (Some(encapsulated), Some(ciphertext)) = (decode(&sealed.encapsulated), decode(&sealed.ciphertext)) else {
            return Ok(None);
        };
        let opened =
            DH_KEM_X25519_HKDF_SHA256_AES_256.open(&EncapsulatedSecret(encapsulated), info, &[], &ciphertext, &key);
        Ok(opened.ok().map(Zeroizing::new))
    }
}

/// What a joined agent must remember.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    pub hub: String,
    pub ca_pin: Digest,
    pub cluster: ClusterIdentity,
    pub installation: String,
    pub signing_keys: Vec<SigningKey>,
    /// uid of `kube-system`: an identity used against another cluster is a mistake.
    pub cluster_id: String,
    pub keys: Keys,
}

/// Why a desired state is not accepted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Untrusted {
    #[error("verify desired state: signed by unknown key {0:?}")]
    UnknownKey(String),
    #[error("verify desired state: the signature is wrong")]
    Signature,
    #[error("verify desired state: made for installation {0:?}")]
    Installation(String),
    #[error("verify desired state: made for cluster {0:?}")]
    Cluster(String),
    #[error("verify desired state: its entries are not those that were signed")]
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
    pub fn new(hub: &str, ca_pin: Digest, cluster_id: &str, keys: Keys, answer: JoinAnswer) -> Self {
        Self {
            hub: hub.to_owned(),
            ca_pin,
            cluster: answer.cluster,
            installation: answer.installation,
            signing_keys: answer.signing_keys,
            cluster_id: cluster_id.to_owned(),
            keys,
        }
    }

    pub fn assertion(&self, time: i64, kubernetes_version: &str) -> Result<SignedAssertion, KeyError> {
        let mut nonce = [0u8; 16];
        rand::fill(&mut nonce).map_err(|_| KeyError::Generate)?;
        let assertion = Assertion {
            cluster_uid: self.cluster.uid.clone(),
            installation: self.installation.clone(),
            time,
            nonce: hex::encode(nonce),
            agent_version: crate::VERSION.to_owned(),
            kubernetes_version: kubernetes_version.to_owned(),
        };
        let assertion = STANDARD.encode(serde_json::to_vec(&assertion).expect("an assertion is plain JSON"));
        let signature = self.keys.sign(&SignedAssertion::message(&assertion))?;
        Ok(SignedAssertion { assertion, signature })
    }

    /// Checks signature, addressee and entries of a desired state, and that it is not older than `accepted`.
    pub fn verify(&self, state: &DesiredState, accepted: Option<&Statement>) -> Result<(), Untrusted> {
        let statement = &state.statement;
        self.verify_signature(statement, &state.signature)?;
        if statement.installation != self.installation {
            return Err(Untrusted::Installation(statement.installation.clone()));
        }
        if statement.cluster_uid != self.cluster.uid {
            return Err(Untrusted::Cluster(statement.cluster_uid.clone()));
        }
        if state.entries.len() > MAX_SERVICES {
            return Err(Untrusted::TooMany(state.entries.len()));
        }
        let mut uids = BTreeSet::new();
        if let Some(twice) = state.entries.iter().find(|entry| !uids.insert(&entry.service.uid)) {
            return Err(Untrusted::Twice(twice.service.uid.clone()));
        }
        if tag(&state.entries) != statement.tag {
            return Err(Untrusted::Tag);
        }
        let Some(accepted) = accepted else { return Ok(()) };
        let (epoch, generation) = (statement.epoch, statement.generation);
        match (epoch, generation).cmp(&(accepted.epoch, accepted.generation)) {
            std::cmp::Ordering::Less => Err(Untrusted::Older { epoch, generation }),
            std::cmp::Ordering::Equal if accepted.tag != statement.tag => {
                Err(Untrusted::Equivocal { epoch, generation })
            }
            _ => Ok(()),
        }
    }

    fn verify_signature(&self, statement: &Statement, signature: &str) -> Result<(), Untrusted> {
        let key = self
            .signing_keys
            .iter()
            .find(|key| key.id == statement.key_id)
            .ok_or_else(|| Untrusted::UnknownKey(statement.key_id.chars().take(64).collect()))?;
        let decode = |text: &str| STANDARD.decode(text).map_err(|_| Untrusted::Signature);
        UnparsedPublicKey::new(&signature::ED25519, decode(&key.public_key)?)
            .verify(&statement.message(), &decode(signature)?)
            .map_err(|_| Untrusted::Signature)
    }
}

/// Writes a file that only its owner may read, so that a crash leaves the old one or the new one.
pub fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let temporary = path.with_extension("tmp");
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    match path.parent() {
        Some(folder) => std::fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
