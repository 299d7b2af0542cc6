//! Signatures made by `cosign sign --key`, verified only with given public keys: no transparency log, no certificates.
//!
//! There are two layouts. The older one is a manifest at the tag `sha256-<hex>.sig`: each layer is a JSON payload that
//! names the signed manifest, and its annotation is the signature (cosign's `specs/SIGNATURE_SPEC.md`). The newer one
//! refers to the signed manifest: a bundle with a DSSE envelope around an in-toto statement, found by the referrers API
//! or, without one, at the tag `sha256-<hex>`.

use aws_lc_rs::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::Digest;
use serde::Deserialize;
use x509_parser::{pem::Pem, prelude::FromDer as _, x509::SubjectPublicKeyInfo};

use super::registry::Registry;
use crate::{
    access::SecretData,
    fetch_error::{FetchError, FetchReason},
    web::Step,
};

const SIMPLE_SIGNING: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
const SIGNATURE_TYPE: &str = "cosign container image signature";
/// The first version of the bundle that cosign attaches; later ones have the same prefix.
const BUNDLE_PREFIX: &str = "application/vnd.dev.sigstore.bundle";
const IN_TOTO: &str = "application/vnd.in-toto+json";
const SIGN_PREDICATE: &str = "https://sigstore.dev/cosign/sign/v1";
/// Most bytes of a payload. It has about 200 bytes, a bundle about 5 KB.
const MAX_PAYLOAD: usize = 64 << 10;
const MAX_INDEX: usize = 4 << 20;
/// Most signatures of one artifact that are checked.
const MAX_SIGNATURES: usize = 50;
const MAX_KEYS: usize = 32;

/// Public keys, one of which must have signed.
#[derive(Clone, Debug)]
pub struct Keys(Vec<Key>);

#[derive(Clone)]
struct Key {
    name: String,
    algorithm: &'static dyn VerificationAlgorithm,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Key").field(&self.name).finish()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    #[error("the Secret that verify.secretRef names has no key whose name ends with .pub")]
    None,
    #[error("the Secret has over {MAX_KEYS} public keys")]
    TooMany,
    #[error("{0} of the Secret is not a PEM public key")]
    Malformed(String),
    #[error(
        "{0} of the Secret is a key of a kind that is not taken; use ECDSA with P-256, Ed25519, or RSA with 2048 bits or more"
    )]
    Unsupported(String),
}

impl Keys {
    /// The keys of a Secret whose names end with `.pub`.
    pub fn read(data: &SecretData) -> Result<Self, KeysError> {
        let named: Vec<_> = data.iter().filter(|(name, _)| name.ends_with(".pub")).collect();
        if named.is_empty() {
            return Err(KeysError::None);
        }
        if named.len() > MAX_KEYS {
            return Err(KeysError::TooMany);
        }
        named
            .into_iter()
            .map(|(name, pem)| Key::read(name, pem))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// A digest that changes with the keys.
    pub fn print(&self) -> Digest {
        let keys: Vec<_> = self.0.iter().map(|key| hex::encode(&key.bytes)).collect();
        Digest::of(keys.join("\n"))
    }

    fn signed(&self, message: &[u8], signature: &[u8]) -> bool {
        self.0.iter().any(|key| {
            UnparsedPublicKey::new(key.algorithm, &key.bytes)
                .verify(message, signature)
                .is_ok()
        })
    }
}

impl Key {
    fn read(name: &str, pem: &[u8]) -> Result<Self, KeysError> {
        const RSA: &str = "1.2.840.113549.1.1.1";
        const EC: &str = "1.2.840.10045.2.1";
        const P256: &str = "1.2.840.10045.3.1.7";
        const ED25519: &str = "1.3.101.112";
        let malformed = || KeysError::Malformed(name.to_owned());
        let unsupported = || KeysError::Unsupported(name.to_owned());
        let pem = Pem::iter_from_buffer(pem)
            .next()
            .ok_or_else(malformed)?
            .map_err(|_| malformed())?;
        if pem.label != "PUBLIC KEY" {
            return Err(malformed());
        }
        let (_, info) = SubjectPublicKeyInfo::from_der(&pem.contents).map_err(|_| malformed())?;
        let bytes = info.subject_public_key.data.to_vec();
        let curve = info
            .algorithm
            .parameters
            .as_ref()
            .and_then(|any| any.as_oid().ok())
            .map(|oid| oid.to_id_string());
        let algorithm: &'static dyn VerificationAlgorithm =
            match (info.algorithm.algorithm.to_id_string().as_str(), curve.as_deref()) {
                (EC, Some(P256)) => &signature::ECDSA_P256_SHA256_ASN1,
                (ED25519, _) => &signature::ED25519,
                (RSA, _) => &signature::RSA_PKCS1_2048_8192_SHA256,
                _ => return Err(unsupported()),
            };
        Ok(Self {
            name: name.to_owned(),
            algorithm,
            bytes,
        })
    }
}

/// Verifies that one of the keys has signed a manifest.
pub(super) async fn verify(registry: &Registry, step: Step, digest: &Digest, keys: &Keys) -> Result<(), FetchError> {
    let step = step.then("verify an artifact of");
    let mut seen = 0;
    if verify_attached(registry, step, digest, keys, &mut seen).await?
        || verify_referring(registry, step, digest, keys, &mut seen).await?
    {
        return Ok(());
    }
    let evidence = match seen {
        0 => format!("{digest} has no signature"),
        1 => format!("{digest} has one signature, of another key or of something else"),
        seen => format!("{digest} has {seen} signatures, of other keys or of something else"),
    };
    Err(registry.fail(step, FetchReason::Unverified, evidence))
}

async fn verify_attached(
    registry: &Registry,
    step: Step,
    digest: &Digest,
    keys: &Keys,
    seen: &mut usize,
) -> Result<bool, FetchError> {
    let tag = format!("sha256-{}.sig", digest.to_hex());
    let Some(manifest) = registry.find_manifest(step, &tag).await? else {
        return Ok(false);
    };
    for layer in manifest
        .layers
        .iter()
        .filter(|layer| layer.media_type == SIMPLE_SIGNING)
        .take(MAX_SIGNATURES)
    {
        let Some(signature) = layer.annotation(SIGNATURE).and_then(|text| STANDARD.decode(text).ok()) else {
            continue;
        };
        *seen += 1;
        let payload = registry.blob(step, &layer.digest, MAX_PAYLOAD).await?;
        if keys.signed(&payload, &signature) && payload_digest(&payload) == Some(*digest) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[derive(Deserialize)]
struct Payload {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    image: Image,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct Image {
    #[serde(rename = "docker-manifest-digest")]
    digest: Digest,
}

/// The digest that a payload is for. None: it is no signature payload.
fn payload_digest(payload: &[u8]) -> Option<Digest> {
    let payload: Payload = serde_json::from_slice(payload).ok()?;
    (payload.critical.kind == SIGNATURE_TYPE).then_some(payload.critical.image.digest)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Referrers {
    #[serde(default)]
    manifests: Vec<Referrer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Referrer {
    digest: Digest,
    #[serde(default)]
    artifact_type: String,
}

async fn verify_referring(
    registry: &Registry,
    step: Step,
    digest: &Digest,
    keys: &Keys,
    seen: &mut usize,
) -> Result<bool, FetchError> {
    const ACCEPT: &str = "application/vnd.oci.image.index.v1+json";
    let mut listed = registry
        .find_bytes(step, &format!("referrers/{digest}"), ACCEPT, MAX_INDEX)
        .await?;
    if listed.is_none() {
        let tag = format!("manifests/sha256-{}", digest.to_hex());
        listed = registry.find_bytes(step, &tag, ACCEPT, MAX_INDEX).await?;
    }
    let Some(listed) = listed else { return Ok(false) };
    let listed: Referrers = serde_json::from_slice(&listed)
        .map_err(|error| registry.fail(step, FetchReason::Manifest, format!("its list of referrers: {error}")))?;
    let bundles = listed
        .manifests
        .iter()
        .filter(|one| one.artifact_type.starts_with(BUNDLE_PREFIX));
    for bundle in bundles.take(MAX_SIGNATURES) {
        let manifest = registry.manifest(step, &bundle.digest.to_string()).await?;
        for layer in manifest
            .layers
            .iter()
            .filter(|layer| layer.media_type.starts_with(BUNDLE_PREFIX))
        {
            *seen += 1;
            let bundle = registry.blob(step, &layer.digest, MAX_PAYLOAD).await?;
            if verify_bundle(&bundle, digest, keys) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle {
    dsse_envelope: Envelope,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Deserialize)]
struct EnvelopeSignature {
    sig: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    subject: Vec<Subject>,
    predicate_type: String,
}

#[derive(Deserialize)]
struct Subject {
    digest: SubjectDigest,
}

#[derive(Deserialize)]
struct SubjectDigest {
    #[serde(default)]
    sha256: String,
}

fn verify_bundle(bundle: &[u8], digest: &Digest, keys: &Keys) -> bool {
    let Ok(Bundle {
        dsse_envelope: envelope,
    }) = serde_json::from_slice(bundle)
    else {
        return false;
    };
    let Ok(payload) = STANDARD.decode(&envelope.payload) else {
        return false;
    };
    let message = pre_authentication(&envelope.payload_type, &payload);
    let signed = |one: &EnvelopeSignature| {
        STANDARD
            .decode(&one.sig)
            .is_ok_and(|signature| keys.signed(&message, &signature))
    };
    if envelope.payload_type != IN_TOTO || !envelope.signatures.iter().take(MAX_SIGNATURES).any(signed) {
        return false;
    }
    let Ok(statement) = serde_json::from_slice::<Statement>(&payload) else {
        return false;
    };
    statement.predicate_type == SIGN_PREDICATE
        && statement
            .subject
            .iter()
            .any(|subject| subject.digest.sha256 == digest.to_hex())
}

/// The signed message of a DSSE envelope (DSSE's `protocol.md`).
fn pre_authentication(kind: &str, payload: &[u8]) -> Vec<u8> {
    let mut message = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len()).into_bytes();
    message.extend_from_slice(payload);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the DSSE specification.
    #[test]
    fn an_envelopes_message_is_the_specifications() {
        let message = pre_authentication("http://example.com/HelloWorld", b"hello world");
        assert_eq!(message, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
    }

    #[test]
    fn keys_are_of_the_kinds_that_are_taken() {
        let read = |name: &str, pem: &str| {
            Keys::read(&[(name.to_owned(), pem.as_bytes().to_vec())].into()).map(|keys| keys.0.len())
        };
        for (kind, expected) in [
            (&rcgen::PKCS_ECDSA_P256_SHA256, Ok(1)),
            (&rcgen::PKCS_ED25519, Ok(1)),
            (
                &rcgen::PKCS_ECDSA_P384_SHA384,
                Err(KeysError::Unsupported("a.pub".into())),
            ),
        ] {
            let key = rcgen::KeyPair::generate_for(kind).unwrap();
            assert_eq!(read("a.pub", &key.public_key_pem()), expected);
            assert_eq!(
                read("a.pub", &key.serialize_pem()),
                Err(KeysError::Malformed("a.pub".into())),
                "a private key"
            );
            assert_eq!(read("a.key", &key.public_key_pem()), Err(KeysError::None));
        }
        for odd in ["", "x", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"] {
            assert_eq!(read("a.pub", odd), Err(KeysError::Malformed("a.pub".into())));
        }
    }
}
