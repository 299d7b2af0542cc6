//! The test vectors of age (<https://c2sp.org/CCTV/age>). The test reads them from their module.

use std::{collections::BTreeMap, fs, path::Path};

use aws_lc_rs::digest::{SHA256, digest};
use farwater_testkit::{Tools, process::bare_command};

use super::*;

/// Features of age that supported SOPS files don't use.
const ELSEWHERE: [&str; 2] = ["scrypt", "hybrid"];

struct Vector {
    name: String,
    fields: BTreeMap<String, String>,
    identity: Option<Identity>,
    file: Vec<u8>,
}

impl Vector {
    fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let at = bytes.windows(2).position(|pair| pair == b"\n\n").unwrap();
        let (mut fields, mut identity) = (BTreeMap::new(), None);
        for line in std::str::from_utf8(&bytes[..at]).unwrap().lines() {
            let (name, value) = line.split_once(": ").unwrap();
            if name == "identity" && identity.is_none() && value.starts_with("AGE-SECRET-KEY-1") {
                identity = Some(Identity::new(&bech32::decode(value)).unwrap());
            }
            fields.insert(name.to_owned(), value.to_owned());
        }
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        Self {
            name,
            fields,
            identity,
            file: bytes[at + 2..].to_vec(),
        }
    }

    fn is_of_ours(&self) -> bool {
        let is_elsewhere = ELSEWHERE.iter().any(|feature| self.name.contains(feature));
        !is_elsewhere && self.identity.is_some() && !self.fields.contains_key("compressed")
    }

    fn open(&self) -> Result<Zeroizing<Vec<u8>>, AgeError> {
        let identity = self.identity.as_ref().unwrap();
        match self.fields.contains_key("armored") {
            true => decrypt(std::str::from_utf8(&self.file).map_err(|_| AgeError::Armor)?, identity),
            false => open(&self.file, identity),
        }
    }
}

#[test]
fn every_vector_opens_or_fails_as_age_says() {
    let folder = tempfile::tempdir().unwrap();
    let status = bare_command(Tools::find_sops().unwrap().age_vectors())
        .arg(folder.path())
        .status()
        .unwrap();
    assert!(status.success());
    let (mut opened, mut failed) = (0, 0);
    for entry in fs::read_dir(folder.path()).unwrap() {
        let vector = Vector::read(&entry.unwrap().path());
        if !vector.is_of_ours() {
            continue;
        }
        let expected = vector.fields["expect"].as_str();
        let result = vector.open();
        let found = match &result {
            Ok(_) => "success",
            Err(AgeError::Armor) => "armor failure",
            Err(AgeError::Header) => "header failure",
            Err(AgeError::NoMatch) => "no match",
            Err(AgeError::Mac) => "HMAC failure",
            Err(AgeError::Payload) => "payload failure",
        };
        assert_eq!(found, expected, "{}: {:?}", vector.name, vector.fields.get("comment"));
        if let Ok(plain) = result {
            assert_eq!(
                hex::encode(digest(&SHA256, &plain)),
                vector.fields["payload"],
                "{}",
                vector.name
            );
            opened += 1;
        } else {
            failed += 1;
        }
    }
    assert!(opened >= 12 && failed >= 60, "{opened} opened, {failed} failed");
}

#[test]
fn an_identity_shows_its_recipient_and_not_its_key() {
    let output = bare_command(Tools::find_sops().unwrap().age_keygen()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let secret = text.lines().find(|line| line.starts_with("AGE-SECRET-KEY-1")).unwrap();
    let public = text
        .lines()
        .find_map(|line| line.strip_prefix("# public key: "))
        .unwrap();
    let identity = Identity::new(&bech32::decode(secret)).unwrap();
    assert_eq!(identity.recipient(), public);
    assert_eq!(format!("{identity:?}"), format!("Identity({public:?})"));
}
