//! Signatures by OpenPGP keys (RFC 9580). rPGP parses packets and computes; which of a certificate's keys may sign, and
//! whether they are still valid, is decided here.

use std::io::Cursor;

use pgp::{
    composed::{Deserializable as _, DetachedSignature, SignedPublicKey},
    crypto::hash::HashAlgorithm,
    packet::{Signature, SignatureType},
    types::{KeyDetails as _, Tag, Timestamp},
};

use super::{KeysError, SKEW};

/// Most signature packets of one commit.
const MAX_SIGNATURES: usize = 8;
const BLOCK: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";

/// A given certificate: a primary key with its statements about itself and its subkeys.
pub(super) struct Certificate(SignedPublicKey);

pub(super) fn read_keys(entry: &str, bytes: &[u8]) -> Result<Vec<Certificate>, KeysError> {
    let fail = |why: String| KeysError::OpenPgp {
        entry: entry.to_owned(),
        why,
    };
    let read = |found: pgp::errors::Result<SignedPublicKey>| found.map(Certificate).map_err(|e| fail(e.to_string()));
    let Ok(text) = std::str::from_utf8(bytes) else {
        let found = SignedPublicKey::from_bytes_many(Cursor::new(bytes)).map_err(|error| fail(error.to_string()))?;
        return found.map(read).collect();
    };
    let mut keys = Vec::new();
    // A file may contain several blocks.
    for block in text.split(BLOCK).skip(1) {
        let block = format!("{BLOCK}{block}");
        let (found, _) =
            SignedPublicKey::from_armor_many(Cursor::new(block.as_bytes())).map_err(|error| fail(error.to_string()))?;
        for key in found {
            keys.push(read(key)?);
        }
    }
    match keys.is_empty() {
        true => Err(fail("it holds no key".to_owned())),
        false => Ok(keys),
    }
}

/// The error continues a sentence about the signed object. `now`: seconds since 1970.
pub(super) fn check(keys: &[Certificate], armored: &str, payload: &[u8], now: u64) -> Result<(), String> {
    const UNREADABLE: &str = "has an OpenPGP signature that can't be read";
    let (found, _) = DetachedSignature::from_armor_many(Cursor::new(armored.as_bytes())).map_err(|_| UNREADABLE)?;
    let mut reason = None;
    for signature in found.take(MAX_SIGNATURES) {
        let signature = signature.map_err(|_| UNREADABLE)?.signature;
        match check_one(keys, &signature, payload, now) {
            Ok(()) => return Ok(()),
            Err(why) => reason = Some(why),
        }
    }
    Err(reason.unwrap_or_else(|| UNREADABLE.to_owned()))
}

fn check_one(keys: &[Certificate], signature: &Signature, payload: &[u8], now: u64) -> Result<(), String> {
    if signature.typ() != Some(SignatureType::Binary) || !is_strong(signature) {
        return Err("has an OpenPGP signature of a kind or with a hash that doesn't count".to_owned());
    }
    let made = signature
        .created()
        .map(seconds)
        .ok_or("has an OpenPGP signature without a time")?;
    if made > now + SKEW {
        return Err("was signed in the future".to_owned());
    }
    let lifetime = signature
        .signature_expiration_time()
        .map(|life| std::time::Duration::from(life).as_secs());
    if lifetime.is_some_and(|life| life != 0 && made + life < now) {
        return Err("has an OpenPGP signature that has expired".to_owned());
    }

    let mut refused = None;
    for Certificate(key) in keys {
        for signer in signers(key) {
            if !signer.verifies(signature, payload) {
                continue;
            }
            match signer.problem(made, now) {
                None => return Ok(()),
                Some(problem) => {
                    let print = key.fingerprint();
                    refused = Some(format!("is signed by the key {print:X}, which {problem}"));
                }
            }
        }
    }
    Err(refused.unwrap_or_else(|| {
        let ids: Vec<String> = signature
            .issuer_fingerprint()
            .iter()
            .map(|print| format!("{print:X}"))
            .collect();
        let known = keys.iter().any(|Certificate(key)| {
            let own = [format!("{:X}", key.fingerprint())];
            let subkeys = key
                .public_subkeys
                .iter()
                .map(|subkey| format!("{:X}", subkey.key.fingerprint()));
            own.into_iter().chain(subkeys).any(|print| ids.contains(&print))
        });
        match (known, ids.first()) {
            (true, _) => "is not what its signature was made for".to_owned(),
            (false, Some(id)) => format!("is signed by a key that is not among the given ones: {id}"),
            (false, None) => "is signed by a key that is not among the given ones".to_owned(),
        }
    }))
}

/// A key that may sign.
enum Signer<'k> {
    Primary(&'k SignedPublicKey),
    Subkey(&'k SignedPublicKey, &'k pgp::composed::SignedPublicSubKey),
}

fn signers(key: &SignedPublicKey) -> impl Iterator<Item = Signer<'_>> {
    std::iter::once(Signer::Primary(key)).chain(key.public_subkeys.iter().map(|subkey| Signer::Subkey(key, subkey)))
}

impl Signer<'_> {
    fn verifies(&self, signature: &Signature, payload: &[u8]) -> bool {
        match self {
            Self::Primary(key) => signature.verify(&key.primary_key, payload).is_ok(),
            Self::Subkey(_, subkey) => signature.verify(&subkey.key, payload).is_ok(),
        }
    }

    /// Why a signature of this key is not accepted; continues "the key … which".
    fn problem(&self, made: u64, now: u64) -> Option<&'static str> {
        match self {
            Self::Primary(key) => {
                let statement = match judge_primary(key, now) {
                    Err(problem) => return Some(problem),
                    Ok(statement) => statement,
                };
                if seconds(key.primary_key.created_at()) > made {
                    return Some("is younger than the signature");
                }
                // Old keys don't state their purpose.
                let is_limited = has_flags(statement);
                (is_limited && !statement.key_flags().sign()).then_some("is not for signing")
            }
            Self::Subkey(key, subkey) => {
                if let Err(problem) = judge_primary(key, now) {
                    return Some(problem);
                }
                let is_bound = |signature: &&Signature| {
                    is_strong(signature) && signature.verify_subkey_binding(&key.primary_key, &subkey.key).is_ok()
                };
                let of = |typ| {
                    subkey
                        .signatures
                        .iter()
                        .filter(move |s| s.typ() == Some(typ))
                        .filter(is_bound)
                };
                if of(SignatureType::SubkeyRevocation).next().is_some() {
                    return Some("was revoked");
                }
                let Some(binding) = of(SignatureType::SubkeyBinding).max_by_key(|s| s.created().map(seconds)) else {
                    return Some("its primary key doesn't vouch for");
                };
                let vouches = |back: &Signature| {
                    is_strong(back) && back.verify_primary_key_binding(&subkey.key, &key.primary_key).is_ok()
                };
                if !binding.key_flags().sign() || !binding.embedded_signature().is_some_and(vouches) {
                    return Some("is not for signing");
                }
                let born = seconds(subkey.key.created_at());
                match (born > made, has_ended(binding, born, now)) {
                    (true, _) => Some("is younger than the signature"),
                    (false, true) => Some("has expired"),
                    (false, false) => None,
                }
            }
        }
    }
}

/// The last statement of a primary key about itself, if the key is still valid.
fn judge_primary(key: &SignedPublicKey, now: u64) -> Result<&Signature, &'static str> {
    let primary = &key.primary_key;
    // The key's owner can revoke it with any hash.
    let is_revocation = |s: &&Signature| s.typ() == Some(SignatureType::KeyRevocation) && s.verify_key(primary).is_ok();
    if key
        .details
        .revocation_signatures
        .iter()
        .any(|signature| is_revocation(&signature))
    {
        return Err("was revoked");
    }
    let direct = key
        .details
        .direct_signatures
        .iter()
        .filter(|s| is_strong(s) && s.verify_key(primary).is_ok());
    let of_users = key.details.users.iter().flat_map(|user| {
        let is_own = |s: &&Signature| {
            is_strong(s) && s.is_certification() && s.verify_certification(primary, Tag::UserId, &user.id).is_ok()
        };
        user.signatures.iter().filter(is_own)
    });
    let newest = direct
        .chain(of_users)
        .max_by_key(|signature| signature.created().map(seconds));
    let newest = newest.ok_or("says nothing valid of itself")?;
    match has_ended(newest, seconds(primary.created_at()), now) {
        true => Err("has expired"),
        false => Ok(newest),
    }
}

fn has_ended(statement: &Signature, born: u64, now: u64) -> bool {
    let life = statement
        .key_expiration_time()
        .map(|life| std::time::Duration::from(life).as_secs());
    life.is_some_and(|life| life != 0 && born + life < now)
}

fn has_flags(statement: &Signature) -> bool {
    let flags = statement.key_flags();
    flags.sign() || flags.certify() || flags.encrypt_comms() || flags.encrypt_storage() || flags.authentication()
}

/// Whether the hash is collision-resistant.
fn is_strong(signature: &Signature) -> bool {
    use HashAlgorithm::{Sha224, Sha256, Sha384, Sha512};
    let strong = [
        Sha224,
        Sha256,
        Sha384,
        Sha512,
        HashAlgorithm::Sha3_256,
        HashAlgorithm::Sha3_512,
    ];
    signature
        .hash_alg()
        .is_some_and(|algorithm| strong.contains(&algorithm))
}

fn seconds(time: Timestamp) -> u64 {
    u64::from(time.as_secs())
}
