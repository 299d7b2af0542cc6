use std::{
    fs,
    time::{Duration, Instant},
};

use farwater_testkit::authority::{Authority, Pair};

use super::*;
use crate::{hub::chain, kubernetes::kubeconfig::Secret};

fn leaf(authority: &Authority) -> CertificateDer<'static> {
    let pair = authority.issue(&["cluster"], 1).unwrap();
    CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()
}

#[test]
fn another_authority_counts_once_its_file_was_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.crt");
    let (first, second) = (Authority::new("first").unwrap(), Authority::new("second").unwrap());
    let (of_first, of_second) = (leaf(&first), leaf(&second));
    fs::write(&path, first.pem()).unwrap();
    let file = AuthorityFile(Rotating::new(&path, read_verifier).unwrap());
    let start = Instant::now();
    let pass = |seconds| drop(file.0.get_at(start + Duration::from_secs(seconds)));
    let name = ServerName::try_from("cluster").unwrap();
    let accepts = |leaf: &CertificateDer<'_>| file.verify_server_cert(leaf, &[], &name, &[], UnixTime::now()).is_ok();

    assert!(accepts(&of_first) && !accepts(&of_second));
    fs::write(&path, format!("{}{}", first.pem(), second.pem())).unwrap();
    pass(30);
    assert!(accepts(&of_first) && !accepts(&of_second));
    pass(61);
    assert!(accepts(&of_first) && accepts(&of_second));
    fs::write(&path, second.pem()).unwrap();
    pass(130);
    assert!(!accepts(&of_first) && accepts(&of_second));
    // A file that can't be read changes nothing.
    fs::write(&path, "-----BEGIN CERTIFICATE-----\n").unwrap();
    pass(200);
    assert!(!accepts(&of_first) && accepts(&of_second));
    fs::remove_file(&path).unwrap();
    pass(270);
    assert!(!accepts(&of_first) && accepts(&of_second));
}

fn refusal(cluster: Cluster, user: User) -> String {
    chain(&client_config(&cluster, &user).unwrap_err())
}

#[test]
fn authorities_that_cant_be_used_are_told() {
    let of_data = |data: &str| {
        let certificate_authority_data = Some(data.to_owned());
        refusal(
            Cluster {
                certificate_authority_data,
                ..Cluster::default()
            },
            User::default(),
        )
    };
    assert_eq!(of_data("-"), "read certificate-authority-data: it is no base64");
    assert_eq!(
        of_data("QUJD"),
        "read certificate-authority-data: it holds no PEM certificate"
    );
    let file = Cluster {
        certificate_authority: Some("/nowhere/ca.crt".into()),
        ..Cluster::default()
    };
    let error = refusal(file, User::default());
    assert!(
        error.contains("authorities from /nowhere/ca.crt: No such file"),
        "{error}"
    );
    let name = Cluster {
        tls_server_name: Some("a b".to_owned()),
        ..Cluster::default()
    };
    assert!(chain(&server_name(&name).unwrap_err()).contains("tls-server-name"));
}

/// base64 with broken lines, as some programs write it.
fn encoded(pem: &str) -> String {
    let text = STANDARD.encode(pem);
    let (left, right) = text.split_at(64);
    format!("{left}\n  {right}\n")
}

fn from_data(certificate: &str, key: &str) -> User {
    User {
        client_certificate_data: Some(encoded(certificate)),
        client_key_data: Some(Secret::from(encoded(key))),
        ..User::default()
    }
}

/// The simplest API server of a kubeconfig.
fn plain() -> Cluster {
    Cluster {
        server: "http://a".to_owned(),
        ..Cluster::default()
    }
}

#[test]
fn a_client_certificate_is_shown_from_data_or_files() {
    let shows = |user: User| {
        client_config(&plain(), &user)
            .unwrap()
            .client_auth_cert_resolver
            .has_certs()
    };
    let Pair { certificate, key } = Authority::new("company").unwrap().issue(&["agent"], 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (client_certificate, client_key) = (folder.path().join("agent.crt"), folder.path().join("agent.key"));
    fs::write(&client_certificate, &certificate).unwrap();
    fs::write(&client_key, &key).unwrap();
    let files = || User {
        client_certificate: Some(client_certificate.clone()),
        client_key: Some(client_key.clone()),
        ..User::default()
    };
    assert!(!shows(User::default()));
    assert!(shows(files()));
    assert!(shows(from_data(&certificate, &key)));
    assert!(shows(User {
        client_key: None,
        client_key_data: Some(Secret::from(encoded(&key))),
        ..files()
    }));

    let half = refusal(
        plain(),
        User {
            client_key: None,
            ..files()
        },
    );
    assert!(
        half.contains("client-certificate and no client-key: give both"),
        "{half}"
    );
    fs::remove_file(&client_key).unwrap();
    let gone = refusal(plain(), files());
    assert!(
        gone.contains("read client-key from ") && gone.contains("No such file"),
        "{gone}"
    );
}

#[test]
fn a_key_that_does_not_fit_is_refused_without_showing_it() {
    let issue = || Authority::new("company").unwrap().issue(&["agent"], 1).unwrap();
    let (own, others) = (issue(), issue());
    let secret = others.key.lines().nth(1).unwrap();
    let other = refusal(plain(), from_data(&own.certificate, &others.key));
    assert!(
        other.starts_with("use the client certificate with its key: "),
        "{other}"
    );
    let damaged = refusal(
        plain(),
        from_data(&own.certificate, &others.key.replace("BEGIN", "BEGIN?")),
    );
    assert_eq!(damaged, "read client-key: it holds no private key as PEM");
    let empty = refusal(
        plain(),
        from_data(
            &own.certificate,
            "nothing that would be a key, in many more than 64 characters",
        ),
    );
    assert_eq!(empty, "read client-key: it holds no private key as PEM");
    for shown in [other, damaged, empty] {
        assert!(!shown.contains(secret), "{shown}");
    }
}
