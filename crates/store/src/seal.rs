//! Encryption at rest of sealed kinds: AES-256-GCM over whole objects.
//!
//! Each sealing takes a random 96-bit nonce, so one key is good for 2^32 writes of sealed objects (NIST SP 800-38D, 8.3):
//! a hundred years at one a second.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};

use crate::{Key, Kind, StoreError};

/// Kinds that hold secrets.
pub(crate) fn sealed_kinds() -> Vec<Kind> {
    vec![Kind::new("secrets", ""), Kind::new("servicecontexts", farwater_api::GROUP)]
}

pub(crate) struct Sealer {
    key: RandomizedNonceKey,
    kinds: Vec<Kind>,
}

impl Sealer {
    pub(crate) fn new(key: &[u8; 32], kinds: Vec<Kind>) -> Self {
        let key = RandomizedNonceKey::new(&AES_256_GCM, key).expect("AES-256 takes any 32 bytes");
        Self { key, kinds }
    }

    pub(crate) fn seals(&self, kind: &Kind) -> bool {
        self.kinds.contains(kind)
    }

    /// Nonce, then ciphertext with its tag.
    pub(crate) fn seal(&self, plain: &[u8], context: &[u8]) -> Vec<u8> {
        let mut sealed = plain.to_vec();
        let nonce = self
            .key
            .seal_in_place_append_tag(Aad::from(context), &mut sealed)
            .expect("the plain text is far below AES-GCM's 64 GiB");
        [nonce.as_ref().as_slice(), &sealed].concat()
    }

    /// `None` if this key and context didn't seal it.
    pub(crate) fn open(&self, sealed: &[u8], context: &[u8]) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut rest = rest.to_vec();
        let length = self.key.open_in_place(nonce, Aad::from(context), &mut rest).ok()?.len();
        rest.truncate(length);
        Some(rest)
    }

    pub(crate) fn open_row(&self, sealed: &[u8], key: &Key, uid: &str) -> Result<Vec<u8>, StoreError> {
        self.open(sealed, &row_context(key, uid)).ok_or_else(|| StoreError::Row {
            what: format!("{} {}/{}", key.kind, key.namespace, key.name),
            problem: "it was sealed with another key or for another row".to_owned(),
        })
    }
}

/// What a sealed row is bound to: moved to another name, it doesn't open. No part can hold a NUL.
pub(crate) fn row_context(key: &Key, uid: &str) -> Vec<u8> {
    format!("farwater-row-v1\0{}\0{}\0{}\0{uid}", key.kind, key.namespace, key.name).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_text_opens_only_with_its_key_and_context() {
        let sealer = Sealer::new(&[1; 32], vec![]);
        let sealed = sealer.seal(b"plain", b"here");
        assert_eq!(sealer.open(&sealed, b"here").as_deref(), Some(&b"plain"[..]));
        assert_eq!(sealer.open(&sealed, b"there"), None);
        assert_eq!(Sealer::new(&[2; 32], vec![]).open(&sealed, b"here"), None);
        assert_eq!(sealer.open(&sealed[..NONCE_LEN - 1], b"here"), None);
        let mut flipped = sealed.clone();
        *flipped.last_mut().unwrap() ^= 1;
        assert_eq!(sealer.open(&flipped, b"here"), None);
    }

    #[test]
    fn two_sealings_of_one_text_differ() {
        let sealer = Sealer::new(&[1; 32], vec![]);
        assert_ne!(sealer.seal(b"plain", b""), sealer.seal(b"plain", b""));
    }
}
