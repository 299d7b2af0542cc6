//! Private keys, as `ssh-keygen` and OpenSSL write them. ssh-key and rustls' PEM reader read the formats, and aws-lc-rs
//! makes the signatures.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use aws_lc_rs::{
    rand::SystemRandom,
    rsa::KeyPair as RsaKeyPair,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
        EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA512,
    },
};
use rsa::pkcs1::EncodeRsaPrivateKey as _;
use rustls_pki_types::{PrivateKeyDer, pem::PemObject as _};
use ssh_key::{
    Kdf, Mpint, PrivateKey,
    private::{KeypairData, RsaKeypair},
};

use super::agent::put;
use crate::{
    credentials::SshAccess,
    minted::{Fingerprint, fingerprint},
};

/// A key's own rounds of hashing decide what unlocking it costs; `ssh-keygen` takes 16, or 24 in newer versions.
const MAX_ROUNDS: u32 = 256;
/// Most unlocked keys that are kept. With more, all are dropped.
const MAX_KEPT: usize = 1000;
/// Flags of a request to sign (draft-ietf-sshm-ssh-agent, 3.6.1).
const SHA2_256: u32 = 2;
const SHA2_512: u32 = 4;

/// A key that can sign.
pub(crate) struct Identity {
    /// The public key in ssh's wire format.
    blob: Vec<u8>,
    signer: Signer,
}

enum Signer {
    Ed25519(Ed25519KeyPair),
    Ecdsa(EcdsaKeyPair, &'static Curve),
    Rsa(RsaKeyPair),
}

struct Curve {
    name: &'static str,
    algorithm: &'static EcdsaSigningAlgorithm,
}

static CURVES: [Curve; 3] = [
    Curve {
        name: "nistp256",
        algorithm: &ECDSA_P256_SHA256_FIXED_SIGNING,
    },
    Curve {
        name: "nistp384",
        algorithm: &ECDSA_P384_SHA384_FIXED_SIGNING,
    },
    Curve {
        name: "nistp521",
        algorithm: &ECDSA_P521_SHA512_FIXED_SIGNING,
    },
];

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(…)")
    }
}

/// Unlocked keys, because unlocking takes a tenth of a second and more.
#[derive(Debug, Default)]
pub(crate) struct Identities(Mutex<HashMap<Fingerprint, Arc<Identity>>>);

impl Identities {
    /// Unlocks the key of a Secret. The error is for the Secret's author.
    pub async fn unlock(&self, access: &SshAccess) -> Result<Arc<Identity>, String> {
        let passphrase = access.passphrase.as_ref().map(|text| text.reveal()).unwrap_or_default();
        let place = fingerprint(&["identity", access.identity.reveal(), passphrase]);
        let known = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&place)
            .cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let access = access.clone();
        let read = tokio::task::spawn_blocking(move || {
            let passphrase = access.passphrase.as_ref().map(|text| text.reveal());
            Identity::read(access.identity.reveal(), passphrase)
        });
        let identity = Arc::new(read.await.map_err(|_| "the hub is stopping".to_owned())??);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(place, Arc::clone(&identity));
        Ok(identity)
    }
}

impl Identity {
    /// Reads a key: OpenSSH's own form, PKCS#1, SEC 1 or PKCS#8. Only the first may be encrypted.
    pub fn read(pem: &str, passphrase: Option<&str>) -> Result<Self, String> {
        if pem.contains("-----BEGIN OPENSSH PRIVATE KEY-----") {
            return Self::read_openssh(pem, passphrase);
        }
        if pem.contains("ENCRYPTED") {
            return Err(
                "identity is encrypted in an old form; `ssh-keygen -p -f FILE` writes it in the present one".into(),
            );
        }
        let unknown = || "identity is no private key: neither OpenSSH's form, PKCS#1, SEC 1 nor PKCS#8".to_owned();
        let signer = match PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| unknown())? {
            PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()).ok().map(Signer::Rsa),
            PrivateKeyDer::Sec1(der) => CURVES.iter().find_map(|curve| {
                let pair = EcdsaKeyPair::from_private_key_der(curve.algorithm, der.secret_sec1_der()).ok()?;
                Some(Signer::Ecdsa(pair, curve))
            }),
            PrivateKeyDer::Pkcs8(der) => read_pkcs8(der.secret_pkcs8_der()),
            _ => None,
        };
        Self::of(signer.ok_or_else(unknown)?).ok_or_else(unknown)
    }

    fn read_openssh(pem: &str, passphrase: Option<&str>) -> Result<Self, String> {
        // Editors and YAML leave trailing spaces that the parser doesn't accept.
        let lines: Vec<_> = pem.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let broken = |_| "identity is no key that can be read".to_owned();
        let key = PrivateKey::from_openssh(format!("{}\n", lines.join("\n"))).map_err(broken)?;

        let key = match (key.kdf(), passphrase) {
            (Kdf::Bcrypt { rounds, .. }, _) if *rounds > MAX_ROUNDS => {
                return Err(format!(
                    "identity wants {rounds} rounds of hashing; at most {MAX_ROUNDS} are made"
                ));
            }
            (Kdf::None, _) => key,
            (_, None) => return Err("identity is encrypted and the Secret has no password for it".to_owned()),
            (_, Some(passphrase)) => key
                .decrypt(passphrase)
                .map_err(|_| "the Secret's password doesn't open identity".to_owned())?,
        };

        let unusable = || {
            format!(
                "identity is a key of the kind {}, which is not supported",
                key.algorithm()
            )
        };
        let signer = match key.key_data() {
            KeypairData::Ed25519(pair) => {
                let (seed, public) = (zeroize::Zeroizing::new(pair.private.to_bytes()), pair.public.0);
                Ed25519KeyPair::from_seed_and_public_key(&*seed, &public)
                    .ok()
                    .map(Signer::Ed25519)
            }
            KeypairData::Ecdsa(pair) => {
                let curve = CURVES.iter().find(|curve| curve.name == pair.curve().as_str());
                curve.and_then(|curve| {
                    let (private, public) = (pair.private_key_bytes(), pair.public_key_bytes());
                    let pair = EcdsaKeyPair::from_private_key_and_public_key(curve.algorithm, private, public).ok()?;
                    Some(Signer::Ecdsa(pair, curve))
                })
            }
            KeypairData::Rsa(pair) => read_rsa(pair),
            _ => None,
        };
        Self::of(signer.ok_or_else(unusable)?).ok_or_else(unusable)
    }

    fn of(signer: Signer) -> Option<Self> {
        let mut blob = Vec::new();
        match &signer {
            Signer::Ed25519(pair) => {
                put(&mut blob, b"ssh-ed25519")?;
                put(&mut blob, pair.public_key().as_ref())?;
            }
            Signer::Ecdsa(pair, curve) => {
                put(&mut blob, format!("ecdsa-sha2-{}", curve.name).as_bytes())?;
                put(&mut blob, curve.name.as_bytes())?;
                put(&mut blob, pair.public_key().as_ref())?;
            }
            Signer::Rsa(pair) => {
                put(&mut blob, b"ssh-rsa")?;
                put_number(
                    &mut blob,
                    pair.public_key().exponent().big_endian_without_leading_zero(),
                )?;
                put_number(&mut blob, pair.public_key().modulus().big_endian_without_leading_zero())?;
            }
        }
        Some(Self { blob, signer })
    }

    pub fn blob(&self) -> &[u8] {
        &self.blob
    }

    /// A signature in ssh's wire format: the algorithm's name and its bytes. SHA-1 is not supported.
    pub fn sign(&self, data: &[u8], flags: u32) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        let (name, bytes) = match &self.signer {
            Signer::Ed25519(pair) => ("ssh-ed25519".to_owned(), pair.sign(data).as_ref().to_vec()),
            Signer::Ecdsa(pair, curve) => {
                let fixed = pair.sign(&random, data).ok()?;
                let (r, s) = fixed.as_ref().split_at(fixed.as_ref().len() / 2);
                let mut bytes = Vec::new();
                put_number(&mut bytes, r)?;
                put_number(&mut bytes, s)?;
                (format!("ecdsa-sha2-{}", curve.name), bytes)
            }
            Signer::Rsa(pair) => {
                let (name, padding) = match flags {
                    flags if flags & SHA2_512 != 0 => ("rsa-sha2-512", &RSA_PKCS1_SHA512),
                    flags if flags & SHA2_256 != 0 => ("rsa-sha2-256", &RSA_PKCS1_SHA256),
                    _ => return None,
                };
                let mut bytes = vec![0; pair.public_modulus_len()];
                pair.sign(padding, &random, data, &mut bytes).ok()?;
                (name.to_owned(), bytes)
            }
        };

        let mut signature = Vec::new();
        put(&mut signature, name.as_bytes())?;
        put(&mut signature, &bytes)?;
        Some(signature)
    }

    #[cfg(test)]
    pub fn for_tests() -> Self {
        Self::of(Signer::Ed25519(Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap())).unwrap()
    }
}

/// Converts a key's numbers for aws-lc-rs. Not by `TryFrom`, because ssh-key 0.6 uses one of the primes for both.
fn read_rsa(pair: &RsaKeypair) -> Option<Signer> {
    let number = |number: &Mpint| number.as_positive_bytes().map(rsa::BigUint::from_bytes_be);
    let (public, private) = (&pair.public, &pair.private);
    let primes = vec![number(&private.p)?, number(&private.q)?];
    let key = rsa::RsaPrivateKey::from_components(number(&public.n)?, number(&public.e)?, number(&private.d)?, primes);
    let der = key.ok()?.to_pkcs1_der().ok()?;
    RsaKeyPair::from_der(der.as_bytes()).ok().map(Signer::Rsa)
}

fn read_pkcs8(der: &[u8]) -> Option<Signer> {
    let ed25519 = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der)
        .ok()
        .map(Signer::Ed25519);
    let rsa = || RsaKeyPair::from_pkcs8(der).ok().map(Signer::Rsa);
    let ecdsa = || {
        CURVES.iter().find_map(|curve| {
            EcdsaKeyPair::from_pkcs8(curve.algorithm, der)
                .ok()
                .map(|pair| Signer::Ecdsa(pair, curve))
        })
    };
    ed25519.or_else(rsa).or_else(ecdsa)
}

/// A positive number (RFC 4251, 5: `mpint`).
fn put_number(to: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    let start = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
    let bytes = &bytes[start..];
    let sign: &[u8] = if bytes.first().is_some_and(|byte| byte & 0x80 != 0) {
        &[0]
    } else {
        &[]
    };
    put(to, &[sign, bytes].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_positive_and_short() {
        let number = |bytes: &[u8]| {
            let mut to = Vec::new();
            put_number(&mut to, bytes).unwrap();
            to
        };
        assert_eq!(number(&[0, 0, 1]), [0, 0, 0, 1, 1]);
        assert_eq!(number(&[0x80]), [0, 0, 0, 2, 0, 0x80]);
        assert_eq!(number(&[0]), [0, 0, 0, 0]);
    }

    #[test]
    fn what_is_no_key_is_told_apart() {
        let check = |pem: &str, part: &str| {
            let error = Identity::read(pem, None).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        check("hello", "neither");
        check(
            "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----",
            "no key that can be read",
        );
        check(
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n",
            "ssh-keygen -p",
        );
    }
}
