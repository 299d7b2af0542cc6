//! Files of age, version 1, with recipients of type X25519: <https://c2sp.org/age>. No scrypt, no SSH keys, no plugins.

use aws_lc_rs::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    agreement::{PrivateKey, UnparsedPublicKey, X25519, agree},
    hkdf::{HKDF_SHA256, KeyType, Salt},
    hmac,
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};
use zeroize::Zeroizing;

use crate::bech32;

const BEGIN: &str = "-----BEGIN AGE ENCRYPTED FILE-----";
const END: &str = "-----END AGE ENCRYPTED FILE-----";
const INTRO: &[u8] = b"age-encryption.org/v1";
const LABEL: &[u8] = b"age-encryption.org/v1/X25519";
/// Maximum number of base64 characters in a line of the armor or of a stanza's body.
const COLUMNS: usize = 64;
const FILE_KEY: usize = 16;
const TAG: usize = 16;
/// Length of the nonce from which the payload's key is derived. For age it is a part of the header.
const NONCE: usize = 16;
const CHUNK: usize = 64 << 10;
const MAX_STANZAS: usize = 1024;

/// A key that decrypts files.
pub struct Identity {
    key: PrivateKey,
    public: [u8; 32],
    recipient: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use an X25519 key for SOPS: it is damaged")]
pub struct IdentityError;

impl Identity {
    /// `scalar`: 32 bytes.
    pub fn new(scalar: &[u8]) -> Result<Self, IdentityError> {
        let key = PrivateKey::from_private_key(&X25519, scalar).map_err(|_| IdentityError)?;
        let public = key.compute_public_key().map_err(|_| IdentityError)?;
        let public = public.as_ref().try_into().map_err(|_| IdentityError)?;
        Ok(Self {
            key,
            public,
            recipient: bech32::recipient(&public),
        })
    }

    /// `age1…`: the name of the key in files that are encrypted to it.
    pub fn recipient(&self) -> &str {
        &self.recipient
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Identity").field(&self.recipient).finish()
    }
}

/// The invalid part of an age file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgeError {
    Armor,
    Header,
    NoMatch,
    Mac,
    Payload,
}

impl AgeError {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Armor => "its armor is damaged",
            Self::Header => "its header is damaged",
            Self::NoMatch => "it is not encrypted to the recipient that the file names",
            Self::Mac => "its header was altered",
            Self::Payload => "its content was altered",
        }
    }
}

/// Decrypts an armored file.
pub(crate) fn decrypt(armored: &str, identity: &Identity) -> Result<Zeroizing<Vec<u8>>, AgeError> {
    open(&dearmor(armored)?, identity)
}

fn dearmor(text: &str) -> Result<Vec<u8>, AgeError> {
    let body = text
        .trim()
        .strip_prefix(BEGIN)
        .and_then(|rest| rest.strip_suffix(END))
        .ok_or(AgeError::Armor)?;
    let body = body
        .strip_prefix("\r\n")
        .or_else(|| body.strip_prefix('\n'))
        .ok_or(AgeError::Armor)?;
    let mut bytes = Vec::with_capacity(body.len() / 4 * 3);
    let mut lines = body.strip_suffix('\n').ok_or(AgeError::Armor)?.split('\n').peekable();
    while let Some(line) = lines.next() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        let is_fit = if lines.peek().is_some() {
            line.len() == COLUMNS
        } else {
            (1..=COLUMNS).contains(&line.len())
        };
        if !is_fit || (lines.peek().is_some() && line.contains('=')) {
            return Err(AgeError::Armor);
        }
        bytes.extend(STANDARD.decode(line).map_err(|_| AgeError::Armor)?);
    }
    Ok(bytes)
}

/// One recipient's part of the header.
struct Stanza<'a> {
    kind: &'a str,
    arguments: Vec<&'a str>,
    body: Vec<u8>,
}

struct Header<'a> {
    stanzas: Vec<Stanza<'a>>,
    mac: Vec<u8>,
    /// The bytes that the MAC covers.
    signed: &'a [u8],
    payload: &'a [u8],
}

/// Decrypts a file without armor.
fn open(file: &[u8], identity: &Identity) -> Result<Zeroizing<Vec<u8>>, AgeError> {
    let header = Header::parse(file).ok_or(AgeError::Header)?;
    let mut found = None;
    for stanza in header.stanzas.iter().filter(|stanza| stanza.kind == "X25519") {
        let opened = stanza.open(identity)?;
        found = found.or(opened);
    }
    let key = found.ok_or(AgeError::NoMatch)?;
    let mac = derive(&[], &*key, b"header").ok_or(AgeError::Mac)?;
    let mac = hmac::Key::new(hmac::HMAC_SHA256, &*mac);
    hmac::verify(&mac, header.signed, &header.mac).map_err(|_| AgeError::Mac)?;
    let (nonce, sealed) = header.payload.split_at_checked(NONCE).ok_or(AgeError::Header)?;
    open_payload(&*key, nonce, sealed).ok_or(AgeError::Payload)
}

impl<'a> Header<'a> {
    fn parse(file: &'a [u8]) -> Option<Self> {
        let mut rest = file;
        let mut line = || {
            let end = rest.iter().position(|byte| *byte == b'\n')?;
            let (line, behind) = (&rest[..end], &rest[end + 1..]);
            rest = behind;
            Some((line, behind))
        };
        let (intro, _) = line()?;
        if intro != INTRO {
            return None;
        }
        let mut stanzas = Vec::new();
        loop {
            let (opening, behind) = line()?;
            let opening = std::str::from_utf8(opening).ok()?;
            if let Some(mac) = opening.strip_prefix("---") {
                let mac = STANDARD_NO_PAD
                    .decode(mac.strip_prefix(' ')?)
                    .ok()
                    .filter(|mac| mac.len() == 32)?;
                let signed = &file[..file.len() - behind.len() - 1 - opening.len() + 3];
                return (!stanzas.is_empty()).then_some(Self {
                    stanzas,
                    mac,
                    signed,
                    payload: behind,
                });
            }
            let mut words = opening.strip_prefix("-> ")?.split(' ');
            let is_word = |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic());
            let kind = words.next().filter(is_word)?;
            let arguments: Vec<&str> = words.collect();
            if stanzas.len() == MAX_STANZAS || !arguments.iter().all(is_word) {
                return None;
            }
            let mut body = Vec::new();
            loop {
                let (text, _) = line()?;
                if text.len() > COLUMNS {
                    return None;
                }
                body.extend(STANDARD_NO_PAD.decode(text).ok()?);
                // The last line of a body is short, and may be empty.
                if text.len() < COLUMNS {
                    break;
                }
            }
            stanzas.push(Stanza { kind, arguments, body });
        }
    }
}

impl Stanza<'_> {
    /// The file's key. None: the stanza is for another recipient.
    fn open(&self, identity: &Identity) -> Result<Option<Zeroizing<[u8; FILE_KEY]>>, AgeError> {
        let [share] = self.arguments[..] else {
            return Err(AgeError::Header);
        };
        let share = STANDARD_NO_PAD
            .decode(share)
            .ok()
            .filter(|share| share.len() == 32)
            .ok_or(AgeError::Header)?;
        if self.body.len() != FILE_KEY + TAG {
            return Err(AgeError::Header);
        }
        let salt = [&*share, &identity.public].concat();
        // The library refuses a share of low order, because its secret would be known to everyone.
        let peer = UnparsedPublicKey::new(&X25519, &*share);
        let key = agree(&identity.key, peer, AgeError::Header, |secret| {
            derive(&salt, secret, LABEL).ok_or(AgeError::Header)
        })?;
        let mut body = Zeroizing::new(self.body.clone());
        let opened =
            cipher(&key).and_then(|key| open_with(&key, [0; NONCE_LEN], &mut body).map(<[u8; FILE_KEY]>::try_from));
        Ok(opened.and_then(Result::ok).map(Zeroizing::new))
    }
}

/// Decrypts the payload in STREAM's format: chunks of 64 KiB, with a mark on the last one.
fn open_payload(key: &[u8], nonce: &[u8], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let key = cipher(&*derive(nonce, key, b"payload")?)?;
    let chunks = sealed.len().div_ceil(CHUNK + TAG);
    let mut plain = Zeroizing::new(Vec::with_capacity(sealed.len()));
    for (number, chunk) in sealed.chunks(CHUNK + TAG).enumerate() {
        let is_last = number + 1 == chunks;
        let mut nonce = [0; NONCE_LEN];
        nonce[3..11].copy_from_slice(&(number as u64).to_be_bytes());
        nonce[11] = u8::from(is_last);
        let mut chunk = Zeroizing::new(chunk.to_vec());
        let opened = open_with(&key, nonce, &mut chunk)?;
        if opened.is_empty() && number > 0 {
            return None;
        }
        plain.extend_from_slice(opened);
    }
    (chunks > 0).then_some(plain)
}

fn cipher(key: &[u8; 32]) -> Option<LessSafeKey> {
    UnboundKey::new(&CHACHA20_POLY1305, key).ok().map(LessSafeKey::new)
}

fn open_with<'a>(key: &LessSafeKey, nonce: [u8; NONCE_LEN], sealed: &'a mut [u8]) -> Option<&'a [u8]> {
    let nonce = Nonce::assume_unique_for_key(nonce);
    key.open_in_place(nonce, Aad::empty(), sealed).ok().map(|plain| &*plain)
}

struct Length;

impl KeyType for Length {
    fn len(&self) -> usize {
        32
    }
}

fn derive(salt: &[u8], secret: &[u8], info: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
    let mut key = Zeroizing::new([0; 32]);
    let extracted = Salt::new(HKDF_SHA256, salt).extract(secret);
    extracted.expand(&[info], Length).ok()?.fill(&mut *key).ok()?;
    Some(key)
}

#[cfg(test)]
#[path = "age_tests.rs"]
mod tests;
