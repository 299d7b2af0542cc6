//! Encryption at rest of sealed kinds: AES-256-GCM over whole objects. The data keys are stored beside the rows, each
//! sealed with the hub's seal key (envelope encryption). [`crate::seal_keys`] stores and rotates them.
//!
//! Each sealing uses a random 96-bit nonce, so one key suffices for 2^32 writes of sealed objects (NIST SP 800-38D,
//! 8.3): a hundred years at one per second.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use zeroize::Zeroizing;

use crate::{Key, Kind, StoreError};

/// Number of the first data key. Rows with 0 are not sealed.
pub(crate) const FIRST: i16 = 1;

/// Kinds that contain secrets.
pub(crate) fn sealed_kinds() -> Vec<Kind> {
    vec![
        Kind::new("secrets", ""),
        Kind::new("servicecontexts", farwater_api::GROUP),
    ]
}

/// A key that seals rows, or other keys.
pub(crate) struct Cipher(RandomizedNonceKey);

impl Cipher {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self(RandomizedNonceKey::new(&AES_256_GCM, key).expect("AES-256 takes any 32 bytes"))
    }

    /// Returns nonce, ciphertext and tag.
    pub(crate) fn seal(&self, plain: &[u8], context: &[u8]) -> Vec<u8> {
        let mut sealed = plain.to_vec();
        let nonce = self
            .0
            .seal_in_place_append_tag(Aad::from(context), &mut sealed)
            .expect("the plain text is far below AES-GCM's 64 GiB");
        [nonce.as_ref().as_slice(), &sealed].concat()
    }

    /// None: it was not sealed with this key and context.
    pub(crate) fn open(&self, sealed: &[u8], context: &[u8]) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut rest = rest.to_vec();
        let length = self.0.open_in_place(nonce, Aad::from(context), &mut rest).ok()?.len();
        rest.truncate(length);
        Some(rest)
    }
}

/// A key that seals rows.
pub(crate) struct DataKey {
    /// The number by which rows name it.
    pub number: i16,
    /// Seconds since 1970.
    pub created: i64,
    /// Kept so that it can be sealed with another seal key.
    pub bytes: Zeroizing<[u8; 32]>,
    cipher: Cipher,
}

impl DataKey {
    pub(crate) fn new(number: i16, created: i64, bytes: [u8; 32]) -> Arc<Self> {
        Arc::new(Self {
            number,
            created,
            cipher: Cipher::new(&bytes),
            bytes: Zeroizing::new(bytes),
        })
    }

    pub(crate) fn seal(&self, plain: &[u8], context: &[u8]) -> Vec<u8> {
        self.cipher.seal(plain, context)
    }
}

/// Known data keys, by number. The newest seals new rows.
pub(crate) type DataKeys = BTreeMap<i16, Arc<DataKey>>;

/// The hub's seal key, which seals data keys.
#[derive(Clone)]
pub(crate) struct Master(Zeroizing<[u8; 32]>);

impl Master {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self(Zeroizing::new(*key))
    }

    pub(crate) fn cipher(&self) -> Cipher {
        Cipher::new(&self.0)
    }

    /// For a store from before data keys, whose rows are sealed with the seal key itself.
    pub(crate) fn as_data_key(&self) -> Arc<DataKey> {
        DataKey::new(FIRST, 0, *self.0)
    }
}

pub(crate) struct Sealer {
    kinds: Vec<Kind>,
    keys: RwLock<Keys>,
}

struct Keys {
    /// The present seal key, and one that may replace it with the next commit.
    masters: Vec<Master>,
    data: DataKeys,
    active: i16,
}

impl Sealer {
    pub(crate) fn new(master: Master, data: DataKeys, kinds: Vec<Kind>) -> Self {
        let active = data.keys().next_back().copied().unwrap_or_default();
        Self {
            kinds,
            keys: RwLock::new(Keys {
                masters: vec![master],
                data,
                active,
            }),
        }
    }

    pub(crate) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    pub(crate) fn seals(&self, kind: &Kind) -> bool {
        self.kinds.contains(kind)
    }

    fn keys(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of the key that seals new rows.
    pub(crate) fn active(&self) -> i16 {
        self.keys().active
    }

    /// The key that seals new rows.
    pub(crate) fn current(&self) -> Arc<DataKey> {
        let keys = self.keys();
        keys.data
            .get(&keys.active)
            .cloned()
            .expect("the active key is one of those that are known")
    }

    pub(crate) fn key(&self, number: i16) -> Option<Arc<DataKey>> {
        self.keys().data.get(&number).cloned()
    }

    pub(crate) fn masters(&self) -> Vec<Master> {
        self.keys().masters.clone()
    }

    pub(crate) fn data_keys(&self) -> DataKeys {
        self.keys().data.clone()
    }

    /// Adds a seal key that a transaction is about to make the present one, and its new data key. Both are known before
    /// the commit, so that a reader right after the commit can open rows.
    pub(crate) fn expect(&self, master: Master, key: Arc<DataKey>) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        keys.masters.truncate(1);
        keys.masters.push(master);
        keys.data.insert(key.number, key);
    }

    /// Sets the keys that the database has, sealed with `master`.
    pub(crate) fn adopt(&self, master: Master, data: DataKeys) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        keys.active = data.keys().next_back().copied().unwrap_or(keys.active);
        keys.masters = vec![master];
        keys.data = data;
    }

    /// Drops older keys, because no row is sealed with them any more.
    pub(crate) fn forget_before(&self, number: i16) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        keys.data.retain(|known, _| *known >= number);
    }

    /// None: the key of this number is unknown, or didn't seal it in this context.
    pub(crate) fn open(&self, number: i16, sealed: &[u8], context: &[u8]) -> Option<Vec<u8>> {
        self.key(number)?.cipher.open(sealed, context)
    }

    pub(crate) fn open_row(&self, number: i16, sealed: &[u8], key: &Key, uid: &str) -> Result<Vec<u8>, StoreError> {
        self.open(number, sealed, &row_context(key, uid))
            .ok_or_else(|| StoreError::Row {
                what: format!("{} {}/{}", key.kind, key.namespace, key.name),
                problem: "it was sealed with another key or for another row".to_owned(),
            })
    }
}

/// Context of a sealed row, so that it can't be opened under another name. No part can contain a NUL.
pub(crate) fn row_context(key: &Key, uid: &str) -> Vec<u8> {
    format!("farwater-row-v1\0{}\0{}\0{}\0{uid}", key.kind, key.namespace, key.name).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_text_opens_only_with_its_key_and_context() {
        let cipher = Cipher::new(&[1; 32]);
        let sealed = cipher.seal(b"plain", b"here");
        assert_eq!(cipher.open(&sealed, b"here").as_deref(), Some(&b"plain"[..]));
        assert_eq!(cipher.open(&sealed, b"there"), None);
        assert_eq!(Cipher::new(&[2; 32]).open(&sealed, b"here"), None);
        assert_eq!(cipher.open(&sealed[..NONCE_LEN - 1], b"here"), None);
        let mut flipped = sealed.clone();
        *flipped.last_mut().unwrap() ^= 1;
        assert_eq!(cipher.open(&flipped, b"here"), None);
    }

    #[test]
    fn two_sealings_of_one_text_differ() {
        let cipher = Cipher::new(&[1; 32]);
        assert_ne!(cipher.seal(b"plain", b""), cipher.seal(b"plain", b""));
    }

    #[test]
    fn the_newest_key_seals_and_all_known_ones_open() {
        let (old, new) = (DataKey::new(1, 0, [1; 32]), DataKey::new(2, 0, [2; 32]));
        let sealer = Sealer::new(
            Master::new(&[9; 32]),
            DataKeys::from([(1, Arc::clone(&old))]),
            Vec::new(),
        );
        let sealed = sealer.current().seal(b"plain", b"");
        sealer.expect(Master::new(&[8; 32]), Arc::clone(&new));
        assert_eq!(
            (sealer.active(), sealer.open(2, &new.seal(b"x", b""), b"").as_deref()),
            (1, Some(&b"x"[..]))
        );
        sealer.adopt(Master::new(&[8; 32]), DataKeys::from([(1, old), (2, new)]));
        assert_eq!(
            (sealer.active(), sealer.open(1, &sealed, b"").as_deref()),
            (2, Some(&b"plain"[..]))
        );
        assert_eq!(sealer.open(2, &sealed, b""), None);
        assert_eq!(sealer.open(3, &sealed, b""), None);
    }
}
