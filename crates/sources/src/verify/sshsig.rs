//! Signatures by ssh keys (OpenSSH's PROTOCOL.sshsig).

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519, EcdsaVerificationAlgorithm,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA512, RsaPublicKeyComponents, UnparsedPublicKey,
};
use sha2::{Digest as _, Sha256};
use ssh_key::{
    Algorithm, HashAlg, PublicKey, SshSig,
    public::{EcdsaPublicKey, KeyData},
};

use super::KeysError;

/// The namespace of git's signatures.
const NAMESPACE: &str = "git";
/// Bytes of flags and counter after the signature of a security key.
const TRAILER: usize = 5;

/// Reads lines of `.pub` files and `authorized_keys`, and of `allowed_signers`, whose principals are ignored: all keys
/// count alike.
pub(super) fn read_keys(entry: &str, text: &str, keys: &mut Vec<PublicKey>) -> Result<(), KeysError> {
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let fail = |why: &str| KeysError::Ssh {
            entry: entry.to_owned(),
            line: n + 1,
            why: why.to_owned(),
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_kind = |word: &&str| {
            ["ssh-", "ecdsa-sha2-", "sk-"]
                .iter()
                .any(|start| word.starts_with(start))
        };
        let Some(at) = words.iter().position(is_kind) else {
            return Err(fail("no ssh public key"));
        };
        // Options that are not enforced must be refused.
        let means_git = |word: &&str| word.starts_with("namespaces=\"") && word.contains(NAMESPACE);
        if words.get(1..at).unwrap_or_default().iter().any(|word| !means_git(word)) {
            return Err(fail("options other than namespaces=\"git\" are not understood"));
        }
        let key = words.get(at + 1).map(|data| format!("{} {data}", words[at]));
        let key = key.and_then(|key| PublicKey::from_openssh(&key).ok());
        keys.push(key.ok_or_else(|| fail("no ssh public key that can be read"))?);
    }
    Ok(())
}

/// The error continues a sentence about the signed object.
pub(super) fn check(keys: &[PublicKey], signature: &str, payload: &[u8]) -> Result<(), String> {
    let signature = SshSig::from_pem(signature.trim_end()).map_err(|_| "has an ssh signature that can't be read")?;
    if signature.namespace() != NAMESPACE {
        return Err("has an ssh signature that was made for something else than Git".to_owned());
    }
    let signer = signature.public_key();
    if !keys.iter().any(|key| key.key_data() == signer) {
        let print = signer.fingerprint(HashAlg::Sha256);
        return Err(format!("is signed by a key that is not among the given ones: {print}"));
    }
    let data = SshSig::signed_data(NAMESPACE, signature.hash_alg(), payload);
    match data.ok().and_then(|data| verify(signer, &signature, &data)) {
        Some(()) => Ok(()),
        None => Err("is not what its signature was made for".to_owned()),
    }
}

fn verify(signer: &KeyData, signature: &SshSig, data: &[u8]) -> Option<()> {
    let (algorithm, bytes) = (signature.algorithm(), signature.signature_bytes());
    match (signer, algorithm) {
        (KeyData::Ed25519(key), Algorithm::Ed25519) => {
            UnparsedPublicKey::new(&ED25519, &key.0).verify(data, bytes).ok()
        }
        (KeyData::Ecdsa(key), Algorithm::Ecdsa { curve }) if key.curve() == curve => {
            let (algorithm, size) = parameters(key);
            let fixed = to_fixed(bytes, size)?;
            UnparsedPublicKey::new(algorithm, key.as_sec1_bytes())
                .verify(data, &fixed)
                .ok()
        }
        (KeyData::Rsa(key), Algorithm::Rsa { hash: Some(hash) }) => {
            let rules = if hash == HashAlg::Sha512 {
                &RSA_PKCS1_2048_8192_SHA512
            } else {
                &RSA_PKCS1_2048_8192_SHA256
            };
            let key = RsaPublicKeyComponents {
                n: key.n.as_positive_bytes()?,
                e: key.e.as_positive_bytes()?,
            };
            key.verify(rules, data, bytes).ok()
        }
        (KeyData::SkEd25519(key), Algorithm::SkEd25519) => {
            let (bytes, trailer) = bytes.split_at_checked(bytes.len().checked_sub(TRAILER)?)?;
            let data = of_security_key(key.application(), trailer, data);
            UnparsedPublicKey::new(&ED25519, &key.public_key().0)
                .verify(&data, bytes)
                .ok()
        }
        (KeyData::SkEcdsaSha2NistP256(key), Algorithm::SkEcdsaSha2NistP256) => {
            let (bytes, trailer) = bytes.split_at_checked(bytes.len().checked_sub(TRAILER)?)?;
            let data = of_security_key(key.application(), trailer, data);
            let fixed = to_fixed(bytes, 32)?;
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.ec_point().as_bytes())
                .verify(&data, &fixed)
                .ok()
        }
        _ => None,
    }
}

fn parameters(key: &EcdsaPublicKey) -> (&'static EcdsaVerificationAlgorithm, usize) {
    match key {
        EcdsaPublicKey::NistP256(_) => (&ECDSA_P256_SHA256_FIXED, 32),
        EcdsaPublicKey::NistP384(_) => (&ECDSA_P384_SHA384_FIXED, 48),
        EcdsaPublicKey::NistP521(_) => (&ECDSA_P521_SHA512_FIXED, 66),
    }
}

/// The data that a security key signs (OpenSSH's PROTOCOL.u2f).
fn of_security_key(application: &str, trailer: &[u8], data: &[u8]) -> Vec<u8> {
    [&Sha256::digest(application)[..], trailer, &Sha256::digest(data)[..]].concat()
}

/// Converts two ssh numbers to two of a fixed size.
fn to_fixed(mut bytes: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut fixed = vec![0; 2 * size];
    for half in fixed.chunks_mut(size) {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (number, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        let start = number.iter().position(|byte| *byte != 0).unwrap_or(number.len());
        let number = &number[start..];
        half.get_mut(size.checked_sub(number.len())?..)?.copy_from_slice(number);
        bytes = rest;
    }
    bytes.is_empty().then_some(fixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_get_a_size() {
        let put = |numbers: &[&[u8]]| -> Vec<u8> {
            numbers
                .iter()
                .flat_map(|n| [&(n.len() as u32).to_be_bytes()[..], n].concat())
                .collect()
        };
        assert_eq!(to_fixed(&put(&[&[0, 0x80], &[1]]), 2).unwrap(), [0, 0x80, 0, 1]);
        assert_eq!(to_fixed(&put(&[&[1, 2, 3], &[1]]), 2), None);
        assert_eq!(to_fixed(&put(&[&[1]]), 2), None);
        assert_eq!(to_fixed(&[0, 0, 0, 9, 1], 2), None);
    }
}
