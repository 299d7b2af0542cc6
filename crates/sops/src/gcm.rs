//! AES-256-GCM with a nonce of any length (NIST SP 800-38D, 7.2). SOPS uses nonces of 32 bytes, and the TLS library
//! supports only 12.
//!
//! The library implements AES. This module adds the hash and the counter of GCM. The time of the hash does not depend
//! on its input. It processes about 30 MB/s, which is enough for files of secrets.

use aws_lc_rs::{
    cipher::{AES_256, DecryptingKey, DecryptionContext, UnboundCipherKey},
    constant_time::verify_slices_are_equal,
    error::Unspecified,
    iv::FixedLength,
};
use zeroize::Zeroizing;

const BLOCK: usize = 16;

pub(crate) struct Cipher {
    key: DecryptingKey,
    /// Key of the hash: the encrypted block of zeros.
    hash: Zeroizing<u128>,
}

impl Cipher {
    pub(crate) fn new(key: &[u8; 32]) -> Result<Self, Unspecified> {
        let key = DecryptingKey::ctr(UnboundCipherKey::new(&AES_256, key)?)?;
        let mut hash = Zeroizing::new([0; BLOCK]);
        count(&key, 0, &mut *hash)?;
        Ok(Self {
            key,
            hash: Zeroizing::new(u128::from_be_bytes(*hash)),
        })
    }

    /// Decrypts, if `tag` matches.
    pub(crate) fn open(
        &self,
        nonce: &[u8],
        aad: &[u8],
        ciphertext: &[u8],
        tag: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Unspecified> {
        let first = self.first_counter(nonce);
        let mut expected = [0; BLOCK];
        count(&self.key, first, &mut expected)?;
        let hash = self.ghash(aad, ciphertext).to_be_bytes();
        expected.iter_mut().zip(hash).for_each(|(byte, hash)| *byte ^= hash);
        verify_slices_are_equal(&expected, tag)?;
        let mut plain = Zeroizing::new(ciphertext.to_vec());
        self.decrypt(first, &mut plain)?;
        Ok(plain)
    }

    /// GCM counts in the last 32 bits, the library in all 128. They differ after an overflow of the 32 bits.
    fn decrypt(&self, first: u128, in_out: &mut [u8]) -> Result<(), Unspecified> {
        let next = (first as u32).wrapping_add(1);
        let blocks = usize::try_from((1_u64 << 32) - u64::from(next)).unwrap_or(usize::MAX);
        let (head, tail) = in_out.split_at_mut(blocks.saturating_mul(BLOCK).min(in_out.len()));
        count(&self.key, with_counter(first, next), head)?;
        count(&self.key, with_counter(first, 0), tail)
    }

    fn first_counter(&self, nonce: &[u8]) -> u128 {
        if let Ok(nonce) = <[u8; 12]>::try_from(nonce) {
            let mut block = [0; BLOCK];
            block[..12].copy_from_slice(&nonce);
            return u128::from_be_bytes(block) | 1;
        }
        let state = self.absorb(0, nonce);
        self.multiply(state ^ (nonce.len() as u128 * 8))
    }

    fn ghash(&self, aad: &[u8], ciphertext: &[u8]) -> u128 {
        let state = self.absorb(self.absorb(0, aad), ciphertext);
        self.multiply(state ^ (((aad.len() as u128 * 8) << 64) | (ciphertext.len() as u128 * 8)))
    }

    fn absorb(&self, state: u128, bytes: &[u8]) -> u128 {
        bytes.chunks(BLOCK).fold(state, |state, chunk| {
            let mut block = [0; BLOCK];
            block[..chunk.len()].copy_from_slice(chunk);
            self.multiply(state ^ u128::from_be_bytes(block))
        })
    }

    /// Multiplies in GF(2^128), where the first bit is the coefficient of 1. No branch and no index depends on the
    /// factors.
    fn multiply(&self, value: u128) -> u128 {
        const REDUCTION: u128 = 0xe1 << 120;
        let (mut product, mut factor) = (0, *self.hash);
        for bit in (0..128).rev() {
            product ^= factor & (value >> bit & 1).wrapping_neg();
            factor = factor >> 1 ^ (REDUCTION & (factor & 1).wrapping_neg());
        }
        product
    }
}

fn with_counter(first: u128, counter: u32) -> u128 {
    first >> 32 << 32 | u128::from(counter)
}

fn count(key: &DecryptingKey, counter: u128, in_out: &mut [u8]) -> Result<(), Unspecified> {
    if in_out.is_empty() {
        return Ok(());
    }
    let context = DecryptionContext::Iv128(FixedLength::from(counter.to_be_bytes()));
    key.decrypt(in_out, context).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, nonce: &str, aad: &str, (plain, ciphertext): (&str, &str), tag: &str) {
        let bytes = |text: &str| hex::decode(text.replace(' ', "")).unwrap();
        let cipher = Cipher::new(&bytes(key).try_into().unwrap()).unwrap();
        let opened = cipher
            .open(&bytes(nonce), &bytes(aad), &bytes(ciphertext), &bytes(tag))
            .unwrap();
        assert_eq!(hex::encode(&*opened), plain.replace(' ', ""));
        let mut wrong = bytes(tag);
        wrong[0] ^= 1;
        assert!(
            cipher
                .open(&bytes(nonce), &bytes(aad), &bytes(ciphertext), &wrong)
                .is_err()
        );
        assert!(
            cipher
                .open(&bytes(nonce), b"another place", &bytes(ciphertext), &bytes(tag))
                .is_err()
        );
        assert!(
            cipher
                .open(&bytes(nonce), &bytes(aad), &bytes(ciphertext), &bytes(tag)[..15])
                .is_err()
        );
    }

    /// Test cases 13, 15, 16, 17 and 18 of GCM's submission to NIST.
    #[test]
    fn cases_of_the_submission_of_gcm_open() {
        let zeros = "00".repeat(32);
        check(
            &zeros,
            &"00".repeat(12),
            "",
            ("", ""),
            "530f8afbc74536b9a963b4f1c4cb738b",
        );
        let key = "feffe9928665731c6d6a8f9467308308 feffe9928665731c6d6a8f9467308308";
        let plain = "d9313225f88406e5a55909c5aff5269a 86a7a9531534f7da2e4c303d8a318a72 1c3c0c95956809532fcf0e2449a6b525 \
                     b16aedf5aa0de657ba637b39";
        let aad = "feedfacedeadbeeffeedfacedeadbeef abaddad2";
        let (short, long) = (
            "522dc1f099567d07f47f37a32a84427d 643a8cdcbfe5c0c97598a2bd2555d1aa 8cb08e48590dbb3da7b08b1056828838 \
             c5f61e6393ba7a0abcc9f662",
            "5a8def2f0c9e53f1f75d7853659e2a20 eeb2b22aafde6419a058ab4f6f746bf4 0fc0c3b780f244452da3ebf1c5d82cde \
             a2418997200ef82e44ae7e3f",
        );
        check(
            key,
            "cafebabefacedbaddecaf888",
            aad,
            (plain, short),
            "76fc6ece0f4e1768cddf8853bb2d551b",
        );
        let nonce = "9313225df88406e555909c5aff5269aa 6a7a9538534f7da1e4c303d2a318a728 c3c0c95156809539fcf0e2429a6b5254 \
                     16aedbf5a0de6a57a637b39b";
        check(key, nonce, aad, (plain, long), "a44a8266ee1c8eb0c8b5d4cf5ae9f19a");
    }

    #[test]
    fn a_counter_of_32_bits_runs_over() {
        let cipher = Cipher::new(&[7; 32]).unwrap();
        let first = 0x0123_4567_89ab_cdef_0011_2233_ffff_fffe_u128;
        let mut expected = Vec::new();
        for counter in [0xffff_ffff, 0, 1, 2] {
            let mut block = [0; BLOCK];
            count(&cipher.key, with_counter(first, counter), &mut block).unwrap();
            expected.extend(block);
        }
        let mut stream = vec![0; 4 * BLOCK - 3];
        cipher.decrypt(first, &mut stream).unwrap();
        assert_eq!(stream, expected[..stream.len()]);
    }
}
