//! The sealed documents of a fake hub: the Secrets and the parameters that an entry names.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::{
    Digest,
    parameters::Parameters,
    protocol::{Action, Entry, SealedSecrets, Secrets},
};
use rustls::crypto::{
    aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_256,
    hpke::{Hpke as _, HpkePublicKey},
};

use super::{CLUSTER, INSTALLATION};

/// Documents by MAC. Secrets and parameters have different MACs, because their contents differ.
#[derive(Default)]
pub struct Documents(BTreeMap<Digest, Vec<u8>>);

impl Documents {
    pub fn add_secrets(&mut self, secrets: &Secrets) -> Digest {
        self.add(serde_json::to_vec(secrets).unwrap())
    }

    pub fn add_parameters(&mut self, parameters: &Parameters) -> Digest {
        self.add(serde_json::to_vec(parameters).unwrap())
    }

    fn add(&mut self, content: Vec<u8>) -> Digest {
        let mac = Digest::of(&content);
        self.0.insert(mac, content);
        mac
    }

    /// `path`: the part after `/agent/v1/`. None: no entry names it.
    pub fn seal(&self, path: &str, entries: &BTreeMap<String, Entry>, sealing_key: &str) -> Option<SealedSecrets> {
        let [kind, service, mac] = path.split('/').collect::<Vec<_>>().try_into().ok()?;
        let mac: Digest = mac.parse().ok()?;
        let Action::Apply(deployment) = &entries.get(service)?.action else {
            return None;
        };
        let (named, info) = match kind {
            "secrets" => (
                deployment.secrets,
                SealedSecrets::info(INSTALLATION, CLUSTER, service, &mac),
            ),
            "parameters" => (
                deployment.parameters,
                SealedSecrets::info_of_parameters(INSTALLATION, CLUSTER, service, &mac),
            ),
            _ => return None,
        };
        let content = self.0.get(&mac).filter(|_| named == Some(mac))?;
        let key = HpkePublicKey(STANDARD.decode(sealing_key).unwrap());
        let (encapsulated, ciphertext) = DH_KEM_X25519_HKDF_SHA256_AES_256
            .seal(&info, &[], content, &key)
            .unwrap();
        Some(SealedSecrets {
            encapsulated: STANDARD.encode(encapsulated.0),
            ciphertext: STANDARD.encode(ciphertext),
        })
    }
}
