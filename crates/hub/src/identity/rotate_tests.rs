use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use farwater_api::succession::{Position, SignedSuccession, Trusted};
use rustls::{RootCertStore, client::verify_server_cert_signed_by_trust_anchor, server::ParsedCertificate};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::super::{
    DataDir, Identity, KeyList, ServerNames, Standing,
    trust::{FILE, verifies},
};
use super::*;

fn now() -> Timestamp {
    "2026-11-20T12:00:00Z".parse().unwrap()
}

struct Place(tempfile::TempDir);

impl Place {
    /// A hub with a database: from here on no key may be created by mistake.
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.open();
        fs::write(place.0.path().join("hub.db"), "").unwrap();
        place
    }

    fn try_open(&self) -> Result<Identity, IdentityError> {
        Identity::open(&DataDir::open(self.0.path()).unwrap(), None, now())
    }

    fn open(&self) -> Identity {
        self.try_open().unwrap()
    }

    fn ask(&self, change: Change) -> Result<Request, String> {
        request_change(self.0.path(), change).map_err(|error| error.to_string())
    }

    /// Requests a change and starts the hub.
    fn change(&self, change: Change) -> Identity {
        self.ask(change).unwrap();
        self.open()
    }

    fn keys(&self) -> PathBuf {
        self.0.path().join("keys")
    }

    /// All files of the keys, to restore them later.
    fn copy(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let files = fs::read_dir(self.keys()).unwrap().map(|entry| entry.unwrap().path());
        files.map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
    }

    fn restore(&self, copy: &[(PathBuf, Vec<u8>)]) {
        fs::remove_dir_all(self.keys()).unwrap();
        fs::create_dir(self.keys()).unwrap();
        for (path, content) in copy {
            fs::write(path, content).unwrap();
        }
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self
            .copy()
            .iter()
            .map(|(path, _)| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

fn successions(identity: &Identity, after: u64) -> Vec<SignedSuccession> {
    identity.successions_after(after).unwrap().to_vec()
}

/// The keys that an agent with `from` trusts after it has followed this hub's successions.
fn followed(from: &Trusted, hub: &Identity) -> Trusted {
    from.walk(hub.installation(), &successions(hub, from.position.sequence), verifies)
        .unwrap()
}

fn served(identity: &Identity) -> Vec<CertificateDer<'static>> {
    let names = ServerNames::new(["hub.example".to_owned()]);
    identity.server_certificate(&names, now()).unwrap().cert.clone()
}

/// As an agent verifies: the pinned certificate is found in the chain, and is the only root.
fn accepts(pin: Digest, chain: &[CertificateDer<'static>]) -> bool {
    let Some(root) = chain[1..].iter().find(|certificate| Digest::of(certificate) == pin) else {
        return false;
    };
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let leaf = ParsedCertificate::try_from(&chain[0]).unwrap();
    let time = UnixTime::since_unix_epoch(Duration::from_secs(now().as_second().unsigned_abs()));
    let algorithms = rustls::crypto::aws_lc_rs::default_provider()
        .signature_verification_algorithms
        .all;
    verify_server_cert_signed_by_trust_anchor(&leaf, &roots, &chain[1..], time, algorithms).is_ok()
}

#[test]
fn a_new_signing_key_is_vouched_for_by_the_one_before() {
    let place = Place::new();
    let first = place.open();
    let old = first.trusted().clone();
    assert_eq!(old.position, Position::default());
    place.ask(Change::SigningKey).unwrap();
    assert_eq!(
        place.ask(Change::SigningKey).unwrap().after,
        0,
        "asked for twice it is made once"
    );
    let second = place.open();
    assert_ne!(second.key_id(), first.key_id());
    assert_eq!(second.trusted().position.sequence, 1);
    assert_eq!(followed(&old, &second), *second.trusted());
    assert_eq!(second.ca_pin(), first.ca_pin());
    assert_eq!(
        place.open().trusted(),
        second.trusted(),
        "a start changes nothing by itself"
    );
    assert!(
        !place
            .names()
            .iter()
            .any(|name| name.contains("next") || name.contains("request")),
        "{:?}",
        place.names()
    );

    let third = place.change(Change::SigningKey);
    assert_eq!(followed(&old, &third), *third.trusted(), "over two changes");
    assert_eq!(followed(second.trusted(), &third), *third.trusted());
    for (hub, standing) in [
        (&first, Standing::Behind),
        (&second, Standing::Behind),
        (&third, Standing::Current),
    ] {
        assert_eq!(third.standing(&hub.trusted().position), standing);
        assert!(
            third.signing_key(hub.key_id()).is_some(),
            "what was signed before can be told"
        );
    }
}

#[test]
fn whoever_pins_an_authority_of_before_takes_the_certificate_of_today() {
    let place = Place::new();
    let mut pins = vec![place.open().trusted().authorities[0]];
    served(&place.open());
    for _ in 0..MAX_FORMER {
        let hub = place.change(Change::Authority);
        pins.extend(&hub.trusted().authorities);
        let chain = served(&hub);
        assert!(
            pins.iter().all(|pin| accepts(*pin, &chain)),
            "{} authorities",
            pins.len()
        );
        assert_eq!(
            Digest::of(chain.last().unwrap()),
            *pins.last().unwrap(),
            "today's stands last"
        );
        assert!(!accepts(Digest::of(&chain[1]), &chain[..1]));
    }
    assert!(place.ask(Change::Authority).unwrap_err().contains("admin keys revoke"));

    let hub = place.change(Change::Revoke);
    let chain = served(&hub);
    assert_eq!(chain.len(), 2);
    let (last, before) = pins.split_last().unwrap();
    assert!(accepts(*last, &chain) && !before.iter().any(|pin| accepts(*pin, &chain)));
    place.ask(Change::Authority).unwrap();
}

#[test]
fn keys_that_were_taken_out_of_use_lead_nowhere() {
    let place = Place::new();
    let first = place.open();
    let second = place.change(Change::SigningKey);
    place.change(Change::Authority);
    let cut = place.change(Change::Revoke);
    for old in [&first, &second] {
        assert_eq!(cut.standing(&old.trusted().position), Standing::Revoked);
        assert!(cut.successions_after(old.trusted().position.sequence).is_none());
    }
    assert!(cut.signing_key(first.key_id()).is_none());
    assert_eq!(cut.standing(&cut.trusted().position), Standing::Current);
    let next = place.change(Change::SigningKey);
    assert_eq!(followed(cut.trusted(), &next), *next.trusted());
    assert_eq!(next.trusted().position.sequence, 3);
}

/// Every state of the files between a request and its end, after `kill -9` or a loss of power.
#[test]
fn a_change_that_is_stopped_anywhere_is_gone_on_with() {
    let place = Place::new();
    let before = place.open();
    served(&before);
    place.ask(Change::SigningKey).unwrap();
    place.ask(Change::Authority).unwrap();
    let asked = place.copy();
    let keys = Keys {
        directory: place.keys(),
        established: true,
    };
    let load = || Material::load(&keys, before.installation(), None, now()).unwrap();
    let next = load()
        .prepare(&keys, before.installation(), None, now())
        .unwrap()
        .unwrap();
    let made = place.copy();
    let check = |what: &str| {
        let hub = place.open();
        assert_eq!(hub.trusted().position.sequence, 1, "{what}");
        assert_eq!(followed(before.trusted(), &hub), *hub.trusted(), "{what}");
        assert!(accepts(before.trusted().authorities[0], &served(&hub)), "{what}");
        assert!(
            !place
                .names()
                .iter()
                .any(|name| name.contains("next") || name.contains("request")),
            "{what}"
        );
        assert_eq!(place.open().trusted(), hub.trusted(), "{what}");
    };
    check("keys are made and don't count");
    place.restore(&asked);
    check("nothing is made");
    // The write that counts.
    for moved in 0..=3 {
        place.restore(&made);
        next.write(&keys).unwrap();
        let moves = [
            ("signing.next.key", "signing.key"),
            ("ca.next.key", "ca.key"),
            ("ca.next.crt", "ca.crt"),
        ];
        for (from, to) in &moves[..moved] {
            fs::rename(keys.path(from), keys.path(to)).unwrap();
        }
        let hub = place.open();
        assert_eq!(hub.trusted(), next.head(), "{moved} files in place");
        check("in place");
    }
}

#[test]
fn keys_of_different_copies_are_refused() {
    let place = Place::new();
    let old = place.copy();
    place.change(Change::SigningKey);
    place.change(Change::Authority);
    let new = place.copy();
    let refused = |name: &str| {
        let content = &old.iter().find(|(path, _)| path.ends_with(name)).unwrap().1;
        fs::write(place.keys().join(name), content).unwrap();
        let error = place.try_open().err().unwrap().to_string();
        assert!(error.contains("Restore it from a backup"), "{error}");
        place.restore(&new);
        error
    };
    assert!(refused("signing.key").contains("is not the key that trust.json beside it names"));
    assert!(refused("ca.crt").contains("is not the certificate of ca.key"));
    refused(FILE);
    fs::write(place.keys().join(FILE), "{}").unwrap();
    assert!(
        place
            .try_open()
            .err()
            .unwrap()
            .to_string()
            .contains("was not written by a hub")
    );
    place.restore(&new);
    let text = fs::read_to_string(place.keys().join(FILE)).unwrap();
    fs::write(
        place.keys().join(FILE),
        text.replace("\"sequence\":2", "\"sequence\":3"),
    )
    .unwrap();
    assert!(place.try_open().err().unwrap().to_string().contains("doesn't follow"));
}

#[test]
fn an_older_copy_of_the_keys_is_told_from_the_newest() {
    let place = Place::new();
    let old = place.copy();
    let newest = place.change(Change::SigningKey);
    place.restore(&old);
    let older = place.open();
    assert_eq!(older.standing(&newest.trusted().position), Standing::Foreign);
    // A second change makes it a fork, which agents of the other branch refuse.
    let fork = place.change(Change::SigningKey);
    assert_eq!(fork.standing(&newest.trusted().position), Standing::Foreign);
    let walked = newest
        .trusted()
        .walk(fork.installation(), &successions(&fork, 0), verifies);
    assert_eq!(walked, Err(farwater_api::succession::Broken::Fork(1)));
}

#[test]
fn an_authority_that_has_ended_is_left_for_a_new_one() {
    let place = Place(tempfile::tempdir().unwrap());
    let long_ago = "2000-01-01T00:00:00Z".parse().unwrap();
    let old = Identity::open(&DataDir::open(place.0.path()).unwrap(), None, long_ago).unwrap();
    assert!(old.authority_end().unwrap() < now().as_second());
    let hub = place.change(Change::Authority);
    assert!(hub.authority_end().unwrap() > now().as_second());
    assert!(
        accepts(old.trusted().authorities[0], &served(&hub)),
        "agents that go by it find their way"
    );
}

#[test]
fn keys_are_listed_with_their_ages_and_ends() {
    let place = Place::new();
    served(&place.open());
    place.change(Change::SigningKey);
    served(&place.change(Change::Authority));
    place.ask(Change::SigningKey).unwrap();
    let list = KeyList::read(place.0.path()).unwrap();
    let shown: Vec<_> = list.rows.iter().map(|row| (row.kind, row.state)).collect();
    let expected = [
        ("signing-key", "in use"),
        ("signing-key", "replaced"),
        ("ca", "in use"),
        ("ca", "replaced"),
        ("seal-key", "in use"),
        ("server-certificate", "in use"),
    ];
    assert_eq!(shown, expected);
    // The age of the key that seals Secrets is not recorded anywhere.
    assert!(
        list.rows
            .iter()
            .all(|row| (row.since.is_some() || row.ends.is_some()) != (row.kind == "seal-key"))
    );
    assert!(list.requested.unwrap().signing_key && list.sequence == 2);
    let nothing = tempfile::tempdir().unwrap();
    assert!(
        KeyList::read(nothing.path())
            .err()
            .unwrap()
            .to_string()
            .contains("start the hub first")
    );
}

#[test]
fn an_announced_authority_is_named_beside_the_one_that_serves() {
    let place = Place::new();
    let own = place.open().trusted().authorities[0];
    let other = Digest::of("other");
    let hub = place.change(Change::Announce(vec![other]));
    assert_eq!(hub.trusted().authorities, [own, other]);
    assert!(
        place
            .ask(Change::Announce((0..4).map(|n| Digest::of([n])).collect()))
            .is_err()
    );
    let after = Arc::new(place.open());
    assert_eq!(after.trusted(), hub.trusted());
}
