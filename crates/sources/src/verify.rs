//! Signatures of commits and tags, verified with given keys: OpenPGP with rPGP, ssh with ssh-key and aws-lc-rs. In
//! process, because `git verify-commit` would need a keyring on disk and GnuPG in the image, and returns only an exit
//! code.

mod openpgp;
mod sshsig;

use std::{collections::BTreeSet, fmt, time::SystemTime};

use farwater_bundle::ObjectId;

use crate::{
    access::SecretData,
    git::{Revision, spawn},
    minted::fingerprint,
    mirror::{Mirror, MirrorError},
};

/// Most bytes of a signature; one with a key of the largest size has about 3 KB.
const MAX_SIGNATURE: usize = 64 << 10;
/// Most keys of one Secret.
const MAX_KEYS: usize = 500;
/// Seconds that a signer's clock may be ahead.
const SKEW: u64 = 24 * 3600;

/// What must be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyMode {
    /// The commit.
    Head,
    /// The followed annotated tag.
    Tag,
    TagAndHead,
}

impl VerifyMode {
    /// Flux's names.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Head => "HEAD",
            Self::Tag => "Tag",
            Self::TagAndHead => "TagAndHEAD",
        }
    }
}

/// Public keys whose signatures are accepted.
pub struct Keys {
    openpgp: Vec<openpgp::Certificate>,
    ssh: Vec<ssh_key::PublicKey>,
    print: [u8; 32],
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("openpgp", &self.openpgp.len())
            .field("ssh", &self.ssh.len())
            .finish()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    #[error("the Secret holds no public key")]
    None,
    #[error("the Secret holds over {MAX_KEYS} public keys")]
    Many,
    #[error(
        "{entry} of the Secret holds a private key; put in the public one, and consider the private one known to others"
    )]
    Private { entry: String },
    #[error("{entry} of the Secret is no OpenPGP public key that can be read: {why}")]
    OpenPgp { entry: String, why: String },
    #[error("{entry} of the Secret, line {line}: {why}")]
    Ssh { entry: String, line: usize, why: String },
}

impl Keys {
    /// Every value of the Secret is one or more public keys: OpenPGP keys, armored or not, or lines of ssh keys as in
    /// `.pub` files, `authorized_keys` or `allowed_signers`.
    pub fn read(data: &SecretData) -> Result<Self, KeysError> {
        let (mut openpgp, mut ssh) = (Vec::new(), Vec::new());
        for (entry, bytes) in data {
            let text = std::str::from_utf8(bytes);
            match text {
                Ok(text) if text.contains("PRIVATE KEY") => {
                    return Err(KeysError::Private { entry: entry.clone() });
                }
                Ok(text) if !text.contains("-----BEGIN PGP") => sshsig::read_keys(entry, text, &mut ssh)?,
                _ => openpgp.extend(openpgp::read_keys(entry, bytes)?),
            }
        }
        match openpgp.len() + ssh.len() {
            0 => Err(KeysError::None),
            n if n > MAX_KEYS => Err(KeysError::Many),
            _ => {
                let texts: BTreeSet<String> = data.values().map(hex::encode).collect();
                let parts: Vec<&str> = texts.iter().map(String::as_str).collect();
                Ok(Self {
                    openpgp,
                    ssh,
                    print: fingerprint(&parts),
                })
            }
        }
    }

    /// A text for the required verification: equal for the same mode and keys.
    pub fn policy(&self, mode: VerifyMode) -> String {
        format!("{} {}", mode.as_str(), hex::encode(self.print))
    }
}

impl Mirror {
    /// Verifies a revision. None: it is signed as required. Otherwise the reason why not.
    pub async fn verify(
        &self,
        revision: &Revision,
        mode: VerifyMode,
        keys: &std::sync::Arc<Keys>,
    ) -> Result<Option<String>, MirrorError> {
        let (mirror, revision, keys) = (self.clone(), revision.clone(), keys.clone());
        spawn(move || {
            let now = SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0, |now| now.as_secs());
            let check = |id: ObjectId, tag: Option<&str>| {
                let read = mirror.objects().signed_object(&id);
                let (is_commit, data) = read.map_err(|source| MirrorError::Commit { id, source })?;
                Ok(check_object(&keys, &id, is_commit, &data, tag, now).err())
            };
            let tag = revision.name.as_deref().unwrap_or_default();
            let tag = tag.strip_prefix("refs/tags/").unwrap_or(tag);
            let of_tag = match mode {
                VerifyMode::Head => None,
                VerifyMode::Tag | VerifyMode::TagAndHead => check(revision.object, Some(tag))?,
            };
            match (of_tag, mode) {
                (Some(why), _) => Ok(Some(why)),
                (None, VerifyMode::Tag) => Ok(None),
                (None, VerifyMode::Head | VerifyMode::TagAndHead) => check(revision.commit, None),
            }
        })
        .await
    }
}

/// `tag`: the name of the followed annotated tag.
fn check_object(
    keys: &Keys,
    id: &ObjectId,
    is_commit: bool,
    data: &[u8],
    tag: Option<&str>,
    now: u64,
) -> Result<(), String> {
    let name = match tag {
        Some(tag) => format!("tag {}", farwater_bundle::path::escape(tag.as_bytes())),
        None => format!("commit {id}"),
    };
    if tag.is_some() && is_commit {
        return Err(format!("{name} is a lightweight tag, which can't be signed"));
    }
    if let Some(tag) = tag
        && !names_itself(data, tag)
    {
        // A signed tag under another name is not what its signer signed.
        return Err(format!("{name} is signed, if at all, under another name"));
    }

    let algorithm = id.algorithm();
    let signed = if is_commit {
        split_commit(data, algorithm)
    } else {
        split_tag(data)
    };
    let Some((payload, signature)) = signed.map_err(|why| format!("{name} {why}"))? else {
        return Err(format!("{name} is not signed"));
    };
    if signature.len() > MAX_SIGNATURE {
        return Err(format!("{name} has a signature of {} bytes", signature.len()));
    }

    let signature = std::str::from_utf8(&signature).map_err(|_| format!("{name} has a signature that is no text"))?;
    let checked = if signature.starts_with("-----BEGIN SSH SIGNATURE-----") {
        sshsig::check(&keys.ssh, signature, &payload)
    } else if signature.starts_with("-----BEGIN PGP SIGNATURE-----") {
        openpgp::check(&keys.openpgp, signature, &payload, now)
    } else {
        Err("has a signature that is neither OpenPGP's nor ssh's".to_owned())
    };
    checked.map_err(|why| format!("{name} {why}"))
}

fn names_itself(data: &[u8], tag: &str) -> bool {
    let mut header = data.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty());
    header
        .find_map(|line| line.strip_prefix(b"tag "))
        .is_some_and(|name| name == tag.as_bytes())
}

type Signed = (Vec<u8>, Vec<u8>);

/// A commit without its signatures, and the signature that counts (git's `parse_signed_commit`): a SHA-256 repository
/// uses its own header, and the other one may exist beside it.
fn split_commit(data: &[u8], algorithm: &str) -> Result<Option<Signed>, &'static str> {
    let own: &[u8] = if algorithm == "sha256" {
        b"gpgsig-sha256 "
    } else {
        b"gpgsig "
    };
    let (mut payload, mut signature) = (Vec::new(), Vec::new());
    let (mut in_own, mut in_other, mut found) = (false, false, 0);
    let mut rest = data;
    while !rest.is_empty() {
        let end = rest
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(rest.len(), |at| at + 1);
        let (line, after) = rest.split_at(end);
        if line == b"\n" {
            // After the header everything is text.
            payload.extend_from_slice(rest);
            break;
        }
        if let Some(more) = line.strip_prefix(b" ") {
            match (in_own, in_other) {
                (true, _) => signature.extend_from_slice(more),
                (false, true) => {}
                (false, false) => payload.extend_from_slice(line),
            }
        } else {
            let first = line.strip_prefix(own);
            (in_own, in_other) = (first.is_some(), first.is_none() && line.starts_with(b"gpgsig"));
            match first {
                Some(first) => {
                    found += 1;
                    signature.extend_from_slice(first);
                }
                None if in_other => {}
                None => payload.extend_from_slice(line),
            }
        }
        rest = after;
    }

    match found {
        0 => Ok(None),
        1 => Ok(Some((payload, signature))),
        _ => Err("has two signatures"),
    }
}

/// A tag up to its signature, which is at the end of its text (git's `parse_signature`).
fn split_tag(data: &[u8]) -> Result<Option<Signed>, &'static str> {
    const STARTS: [&[u8]; 2] = [b"-----BEGIN PGP SIGNATURE-----", b"-----BEGIN SSH SIGNATURE-----"];
    let lines = std::iter::once(0).chain(
        data.iter()
            .enumerate()
            .filter(|(_, b)| **b == b'\n')
            .map(|(at, _)| at + 1),
    );
    let mut starts = lines.filter(|at| STARTS.iter().any(|start| data[*at..].starts_with(start)));
    let Some(at) = starts.next_back() else { return Ok(None) };
    let (text, signature) = data.split_at(at);
    // A signature for the other object format is in the header and is not signed itself.
    Ok(Some((strip_header_signatures(text), signature.to_vec())))
}

fn strip_header_signatures(text: &[u8]) -> Vec<u8> {
    let (mut kept, mut in_signature) = (Vec::new(), false);
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(rest.len(), |at| at + 1);
        let (line, after) = rest.split_at(end);
        if line == b"\n" {
            kept.extend_from_slice(rest);
            break;
        }
        in_signature = if line.starts_with(b" ") {
            in_signature
        } else {
            line.starts_with(b"gpgsig")
        };
        if !in_signature {
            kept.extend_from_slice(line);
        }
        rest = after;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_signature_is_cut_out_of_the_header_only() {
        let commit = b"tree t\nauthor A <a> 1 +0000\ngpgsig BEGIN\n one\n \n END\ngpgsig-sha256 x\n y\nencoding z\n\ngpgsig no\n more\n";
        let (payload, signature) = split_commit(commit, "sha1").unwrap().unwrap();
        assert_eq!(
            text(&payload),
            "tree t\nauthor A <a> 1 +0000\nencoding z\n\ngpgsig no\n more\n"
        );
        assert_eq!(text(&signature), "BEGIN\none\n\nEND\n");
        let (payload, signature) = split_commit(commit, "sha256").unwrap().unwrap();
        assert!(!text(&payload).contains("BEGIN") && text(&signature) == "x\ny\n");
        assert_eq!(split_commit(b"tree t\n\ngpgsig x\n", "sha1"), Ok(None));
        assert_eq!(
            split_commit(b"gpgsig a\ntree t\ngpgsig b\n\n", "sha1"),
            Err("has two signatures")
        );
        assert_eq!(
            split_commit(b"mergetag x\n gpgsig y\n\n", "sha1"),
            Ok(None),
            "of another object"
        );
    }

    #[test]
    fn a_tag_ends_with_its_signature() {
        let tag =
            b"object o\ntag v1\n\nhello\n-----BEGIN SSH SIGNATURE-----\nold\n-----BEGIN SSH SIGNATURE-----\nnew\n";
        let (payload, signature) = split_tag(tag).unwrap().unwrap();
        assert!(text(&payload).ends_with("\nold\n") && text(&signature).ends_with("\nnew\n"));
        assert_eq!(split_tag(b"object o\n\n x -----BEGIN PGP SIGNATURE-----\n"), Ok(None));
        assert!(names_itself(tag, "v1") && !names_itself(tag, "v2"));
        assert!(!names_itself(b"object o\n\ntag v1\n", "v1"));
    }

    #[test]
    fn a_secret_of_keys_is_read_strictly() {
        let read = |entries: &[(&str, &str)]| {
            let data = entries
                .iter()
                .map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec()))
                .collect();
            Keys::read(&data).map(|keys| keys.ssh.len())
        };
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE5RAl5tx6YyXCEKIk9MXpqEyTrQKXNCp3qYWo2Mlvtu";
        assert_eq!(read(&[("a.pub", &format!("# who\n\n{key} me@host\n"))]), Ok(1));
        assert_eq!(
            read(&[("signers", &format!("me@x,you@x namespaces=\"git\" {key}\n* {key}\n"))]),
            Ok(2)
        );
        assert_eq!(read(&[]), Err(KeysError::None));
        assert_eq!(read(&[("a", "\n")]), Err(KeysError::None));
        assert!(matches!(
            read(&[("a", "-----BEGIN OPENSSH PRIVATE KEY-----")]),
            Err(KeysError::Private { .. })
        ));
        for bad in [
            "hello",
            "ssh-ed25519 AAAA",
            &format!("x cert-authority {key}"),
            &format!("x valid-before=2020 {key}"),
        ] {
            assert!(
                matches!(read(&[("a", bad)]), Err(KeysError::Ssh { line: 1, .. })),
                "{bad}"
            );
        }
        assert!(matches!(
            read(&[("a", "-----BEGIN PGP PUBLIC KEY BLOCK-----\n")]),
            Err(KeysError::OpenPgp { .. })
        ));
    }
}
