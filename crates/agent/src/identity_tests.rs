use farwater_api::protocol::{Action, Entry, ServiceIdentity};

use super::*;

struct Hub {
    key: Ed25519KeyPair,
    identity: Identity,
}

impl Hub {
    fn new() -> Self {
        let key = Ed25519KeyPair::generate().unwrap();
        let public_key = STANDARD.encode(key.public_key().as_ref());
        let answer = JoinAnswer {
            cluster: ClusterIdentity { uid: "c".into(), namespace: "n".into(), name: "c".into() },
            installation: "i".into(),
            signing_keys: vec![SigningKey { id: "k".into(), public_key }],
            ca: String::new(),
            hub_time: 0,
        };
        let identity = Identity::new("https://hub", Digest::of("ca"), "id", Keys::generate().unwrap(), answer);
        Self { key, identity }
    }

    fn state(&self, generation: u64, change: impl Fn(&mut Statement)) -> DesiredState {
        let entries = vec![entry("a"), entry("b")];
        let mut statement = Statement {
            installation: "i".into(),
            cluster_uid: "c".into(),
            epoch: 1,
            generation,
            tag: tag(&entries),
            key_id: "k".into(),
        };
        change(&mut statement);
        let signature = STANDARD.encode(self.key.sign(&statement.message()).as_ref());
        DesiredState { statement, signature, entries }
    }

    fn check(&self, state: &DesiredState, accepted: Option<&DesiredState>, expected: Result<(), Untrusted>) {
        assert_eq!(self.identity.verify(state, accepted.map(|s| &s.statement)), expected);
    }
}

fn entry(uid: &str) -> Entry {
    Entry {
        service: ServiceIdentity { uid: uid.into(), namespace: "n".into(), name: uid.into() },
        action: Action::Hold { reason: String::new() },
    }
}

#[test]
fn only_a_statement_of_our_hub_for_our_cluster_is_accepted() {
    let hub = Hub::new();
    hub.check(&hub.state(1, |_| {}), None, Ok(()));
    hub.check(&hub.state(1, |s| s.cluster_uid = "d".into()), None, Err(Untrusted::Cluster("d".into())));
    hub.check(&hub.state(1, |s| s.installation = "j".into()), None, Err(Untrusted::Installation("j".into())));
    hub.check(&hub.state(1, |s| s.key_id = "l".into()), None, Err(Untrusted::UnknownKey("l".into())));
    hub.check(&hub.state(1, |s| s.tag = Digest::of("x")), None, Err(Untrusted::Tag));
    hub.check(&Hub::new().state(1, |_| {}), None, Err(Untrusted::Signature));
}

#[test]
fn entries_are_those_that_were_signed() {
    let hub = Hub::new();
    let mut state = hub.state(1, |_| {});
    state.entries.pop();
    hub.check(&state, None, Err(Untrusted::Tag));
    state.entries.push(entry("a"));
    hub.check(&state, None, Err(Untrusted::Twice("a".into())));
    let mut state = hub.state(1, |_| {});
    state.statement.generation = 9;
    hub.check(&state, None, Err(Untrusted::Signature));
}

#[test]
fn an_older_statement_is_refused_and_a_newer_epoch_wins() {
    let hub = Hub::new();
    let accepted = hub.state(5, |_| {});
    hub.check(&hub.state(5, |_| {}), Some(&accepted), Ok(()));
    hub.check(&hub.state(6, |_| {}), Some(&accepted), Ok(()));
    hub.check(&hub.state(4, |_| {}), Some(&accepted), Err(Untrusted::Older { epoch: 1, generation: 4 }));
    hub.check(&hub.state(1, |s| s.epoch = 2), Some(&accepted), Ok(()));
    hub.check(&hub.state(9, |s| s.epoch = 0), Some(&accepted), Err(Untrusted::Older { epoch: 0, generation: 9 }));
}

#[test]
fn two_different_statements_of_one_generation_are_refused() {
    let hub = Hub::new();
    let mut accepted = hub.state(5, |_| {});
    accepted.statement.tag = Digest::of("other");
    hub.check(&hub.state(5, |_| {}), Some(&accepted), Err(Untrusted::Equivocal { epoch: 1, generation: 5 }));
}

#[test]
fn keys_survive_being_stored_and_are_never_printed() {
    let keys = Keys::generate().unwrap();
    let again: Keys = serde_json::from_str(&serde_json::to_string(&keys).unwrap()).unwrap();
    assert_eq!(keys.public_key().unwrap(), again.public_key().unwrap());
    assert_eq!(keys.sealing_public_key().unwrap(), again.sealing_public_key().unwrap());
    assert_ne!(keys.public_key().unwrap(), keys.sealing_public_key().unwrap());
    let printed = format!("{keys:?}");
    assert!(!printed.contains(&keys.signing.0) && !printed.contains(&keys.sealing.0), "{printed}");
}

#[test]
fn a_private_file_is_readable_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("identity.json");
    write_private(&path, b"one").unwrap();
    write_private(&path, b"two").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"two");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}
