use std::fs;

use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::*;

struct Ca {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    fn root(name: &str) -> Self {
        let (params, key) = (Self::params(name), KeyPair::generate().unwrap());
        let certificate = params.self_signed(&key).unwrap();
        Self {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    fn under(&self, name: &str) -> Self {
        let (params, key) = (Self::params(name), KeyPair::generate().unwrap());
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Self {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    /// The PEM of a server's certificate, and of its key.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()])
            .unwrap()
            .signed_by(&key, &self.issuer)
            .unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn pin(&self) -> Digest {
        Digest::of(self.certificate.der())
    }
}

struct Place {
    dir: tempfile::TempDir,
    files: MountedFiles,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = MountedFiles {
            certificate: dir.path().join("tls.crt"),
            key: dir.path().join("tls.key"),
            authority: None,
        };
        Self { dir, files }
    }

    fn write(&self, pair: &(String, String)) {
        fs::write(&self.files.certificate, &pair.0).unwrap();
        fs::write(&self.files.key, &pair.1).unwrap();
    }

    fn write_authority(&self, name: &str, pem: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, pem).unwrap();
        path
    }

    fn open(&self) -> Result<(Mounted, Arc<CertifiedKey>), String> {
        Mounted::open(self.files.clone(), Timestamp::now()).map_err(|error| error.to_string())
    }
}

#[test]
fn the_authority_is_what_issued_the_chain_wherever_it_lies() {
    let (place, root, other) = (Place::new(), Ca::root("root"), Ca::root("other"));
    let between = root.under("between");
    let (leaf, key) = between.issue("hub.example");
    let chain = leaf.clone() + &between.certificate.pem();
    let pin = |place: &Place| place.open().map(|(mounted, _)| mounted.pin());

    // As cert-manager does it: the root is beside it. It is sent with the chain, so that clients with a pin find it.
    place.write(&(chain.clone(), key.clone()));
    place.write_authority("ca.crt", &root.certificate.pem());
    let (mounted, served) = place.open().unwrap();
    assert_eq!(mounted.pin(), root.pin());
    assert_eq!(served.cert.len(), 3);
    assert!(is_valid_for(&served, "hub.example") && !is_valid_for(&served, "10.0.0.1"));

    // An authority that is not the issuer is skipped, and a server's certificate issues nothing.
    fs::remove_file(place.dir.path().join("ca.crt")).unwrap();
    place.write_authority("ca.crt", &(other.certificate.pem() + &leaf + &root.certificate.pem()));
    assert_eq!(pin(&place).unwrap(), root.pin());
    fs::write(place.dir.path().join("ca.crt"), other.certificate.pem()).unwrap();
    // Only the root of the chain counts, because the intermediate authority may change.
    let error = pin(&place).unwrap_err();
    assert!(
        error.contains("issued by none of") && error.contains("--tls-ca"),
        "{error}"
    );

    place.write(&(chain.clone() + &root.certificate.pem(), key.clone()));
    assert_eq!(pin(&place).unwrap(), root.pin());
    place.write(&(leaf, key));
    let named = place.write_authority("named.pem", &between.certificate.pem());
    let place = Place {
        files: MountedFiles {
            authority: Some(named),
            ..place.files.clone()
        },
        ..place
    };
    assert_eq!(pin(&place).unwrap(), between.pin());
}

#[test]
fn a_certificate_that_is_its_own_issuer_is_refused() {
    let (place, root) = (Place::new(), Ca::root("root"));
    let key = KeyPair::generate().unwrap();
    let alone = CertificateParams::new(vec!["hub.example".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    place.write(&(alone.pem(), key.serialize_pem()));
    place.write_authority("ca.crt", &alone.pem());
    assert!(place.open().err().unwrap().contains("issued by none of"));
    drop(root);
}

#[test]
fn files_that_cant_be_used_are_named() {
    let (place, root) = (Place::new(), Ca::root("root"));
    place.write_authority("ca.crt", &root.certificate.pem());
    let error = || place.open().err().unwrap();
    assert!(error().contains("tls.crt"));
    let (certificate, key) = root.issue("hub.example");
    place.write(&("nothing".to_owned(), key.clone()));
    assert!(error().contains("tls.crt: it holds no PEM certificate"), "{}", error());
    place.write(&(certificate.clone(), "nothing".to_owned()));
    assert!(error().contains("tls.key: it holds no PEM private key"), "{}", error());
    place.write(&(certificate, root.issue("hub.example").1));
    assert!(error().contains("use the key"), "{}", error());
}

#[test]
fn a_new_pair_is_taken_once_it_rests_and_a_bad_one_never() {
    let (place, root) = (Place::new(), Ca::root("root"));
    place.write_authority("ca.crt", &root.certificate.pem());
    let first = root.issue("hub.example");
    place.write(&first);
    let (mut mounted, served) = place.open().unwrap();
    let now = Timestamp::now();
    assert!(mounted.reload(now).unwrap().is_none());

    let second = root.issue("hub.example");
    place.write(&(second.0.clone(), first.1.clone()));
    assert!(mounted.reload(now).unwrap().is_none(), "half of it");
    place.write(&second);
    assert!(mounted.reload(now).unwrap().is_none(), "it may still be changing");
    let renewed = mounted.reload(now).unwrap().expect("the new one");
    assert_ne!(renewed.cert[0], served.cert[0]);
    assert_eq!(renewed.cert[1], served.cert[1]);
    assert!(mounted.reload(now).unwrap().is_none());

    let mut refused = |pair: &(String, String), words: &str| {
        place.write(pair);
        assert!(mounted.reload(now).unwrap().is_none());
        let error = mounted.reload(now).map(drop).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(&(first.0.clone(), second.1.clone()), "use the key");
    refused(&(String::new(), second.1.clone()), "no PEM certificate");
    let foreign = Ca::root("other").issue("hub.example");
    refused(
        &foreign,
        &format!("not issued by the authority that agents know ({})", root.pin()),
    );
    place.write(&first);
    assert!(mounted.reload(now).unwrap().is_none());
    assert_eq!(mounted.reload(now).unwrap().unwrap().cert[0], served.cert[0]);
}
