use std::{fs, os::unix::fs::PermissionsExt as _};

use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::*;

fn now() -> Timestamp {
    "2026-11-20T12:00:00Z".parse().unwrap()
}

fn names(given: &[&str]) -> ServerNames {
    ServerNames::new(given.iter().map(|name| (*name).to_owned()))
}

fn open(path: &Path) -> Identity {
    Identity::open(&DataDir::open(path).unwrap(), None, now()).unwrap()
}

#[test]
fn keys_are_private_and_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(directory.path());
    let second = open(directory.path());
    assert_eq!(first.installation(), second.installation());
    assert_eq!(first.ca_pin(), second.ca_pin());
    assert_eq!(first.key_id(), second.key_id());
    assert_eq!(first.seal_key().bytes(), second.seal_key().bytes());
    assert_eq!(first.mac("a", b"x"), second.mac("a", b"x"));
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(directory.path().join("keys")), 0o700);
    for entry in fs::read_dir(directory.path().join("keys")).unwrap() {
        assert_eq!(mode(entry.unwrap().path()), 0o600);
    }
}

#[test]
fn second_hub_on_the_same_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = DataDir::open(directory.path()).unwrap();
    let error = DataDir::open(directory.path()).unwrap_err().to_string();
    assert!(error.contains("another hub is running on it"), "{error}");
    drop(first);
    DataDir::open(directory.path()).unwrap();
}

#[test]
fn keys_are_never_replaced_once_the_database_exists() {
    let directory = tempfile::tempdir().unwrap();
    open(directory.path());
    fs::write(directory.path().join("hub.db"), "").unwrap();
    open(directory.path());
    for name in ["installation", "ca.key", "ca.crt", "signing.key", "seal.key", "mac.key"] {
        let path = directory.path().join("keys").join(name);
        let kept = fs::read(&path).unwrap();
        let refused = || {
            let data = DataDir::open(directory.path()).unwrap();
            Identity::open(&data, None, now()).err().unwrap().to_string()
        };

        fs::remove_file(&path).unwrap();
        let error = refused();
        assert!(
            error.contains(name) && error.contains("missing though the database exists"),
            "{error}"
        );
        assert!(!path.exists());

        fs::write(&path, "garbage\u{0}").unwrap();
        let error = refused();
        assert!(
            error.contains(name) && error.contains("Restore it from a backup"),
            "{error}"
        );
        assert_eq!(fs::read(&path).unwrap(), "garbage\u{0}".as_bytes());

        fs::write(&path, kept).unwrap();
        open(directory.path());
    }
}

#[test]
fn a_foreign_authority_certificate_is_refused() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    open(ours.path());
    open(theirs.path());
    fs::copy(theirs.path().join("keys/ca.crt"), ours.path().join("keys/ca.crt")).unwrap();
    let error = Identity::open(&DataDir::open(ours.path()).unwrap(), None, now())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("is not the certificate of ca.key"), "{error}");
}

#[test]
fn server_certificate_is_kept_until_it_ends_soon_or_names_are_added() {
    let directory = tempfile::tempdir().unwrap();
    let identity = open(directory.path());
    let issue = |names: &ServerNames, days: i64| {
        let time = now() + jiff::SignedDuration::from_hours(24 * days);
        identity.server_certificate(names, time).unwrap().cert[0].clone()
    };
    let first = issue(&names(&["hub.example.com", "10.0.0.1"]), 0);
    assert_eq!(first, issue(&names(&["HUB.example.com", "10.0.0.1"]), 0));
    assert_eq!(first, issue(&names(&["10.0.0.1", "0:0::1"]), 0));
    assert_eq!(first, issue(&names(&["10.0.0.1"]), 200));
    assert_ne!(first, issue(&names(&["10.0.0.1", "10.0.0.2"]), 0));
    let second = issue(&names(&["hub.example.com"]), 0);
    assert_ne!(second, issue(&names(&["hub.example.com"]), 300));
}

#[test]
fn server_certificate_survives_a_crash_between_its_two_files() {
    let directory = tempfile::tempdir().unwrap();
    let identity = open(directory.path());
    let first = identity.server_certificate(&names(&[]), now()).unwrap().cert[0].clone();
    let key = directory.path().join("keys/tls.key");
    fs::write(&key, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let second = identity.server_certificate(&names(&[]), now()).unwrap().cert[0].clone();
    assert_ne!(first, second);
    fs::write(&key, "garbage").unwrap();
    let error = identity
        .server_certificate(&names(&[]), now())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("tls.crt") && error.contains("issued again"), "{error}");
}

#[test]
fn macs_of_different_purposes_differ() {
    let directory = tempfile::tempdir().unwrap();
    let identity = open(directory.path());
    let value = identity.mac("token", b"message");
    assert!(identity.verify_mac("token", b"message", &value));
    assert!(!identity.verify_mac("toke", b"nmessage", &value));
    assert!(!identity.verify_mac("token", b"message", &value[..31]));
}

#[test]
fn certificates_are_ecdsa_p256() {
    let directory = tempfile::tempdir().unwrap();
    let identity = open(directory.path());
    let chain = identity
        .server_certificate(&names(&["hub.example.com"]), now())
        .unwrap()
        .cert
        .clone();
    assert_eq!(chain.len(), 2, "the server's and the authority's");
    for der in &chain {
        let (_, certificate) = X509Certificate::from_der(der).unwrap();
        let key = certificate.public_key();
        // RFC 5480: id-ecPublicKey with the curve secp256r1; RFC 5758: ecdsa-with-SHA256.
        assert_eq!(key.algorithm.algorithm.to_id_string(), "1.2.840.10045.2.1");
        let curve = key.algorithm.parameters.as_ref().unwrap().as_oid().unwrap();
        assert_eq!(curve.to_id_string(), "1.2.840.10045.3.1.7");
        assert_eq!(
            certificate.signature_algorithm.algorithm.to_id_string(),
            "1.2.840.10045.4.3.2"
        );
    }
}
