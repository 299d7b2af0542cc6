use farwater_api::{
    protocol::{Action, AgentSettings, Entry, ServiceIdentity},
    succession::Succession,
};

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
            cluster: ClusterIdentity {
                uid: "c".into(),
                namespace: "n".into(),
                name: "c".into(),
            },
            installation: "i".into(),
            signing_keys: vec![SigningKey {
                id: "k".into(),
                public_key,
            }],
            authorities: Vec::new(),
            position: Position::default(),
            ca: String::new(),
            hub_time: 0,
        };
        let identity = Identity::new(
            "https://hub",
            Some(Digest::of("ca")),
            "id",
            Keys::generate().unwrap(),
            answer,
        );
        Self { key, identity }
    }

    fn state(&self, generation: u64, change: impl Fn(&mut Statement)) -> DesiredState {
        let entries = vec![entry("a").into(), entry("b").into()];
        let mut statement = Statement {
            installation: "i".into(),
            cluster_uid: "c".into(),
            epoch: 1,
            generation,
            tag: tag(&entries),
            agent: None,
            health: None,
            windows: None,
            key_id: "k".into(),
        };
        change(&mut statement);
        let signature = STANDARD.encode(self.key.sign(&statement.message()).as_ref());
        DesiredState {
            statement: statement.into(),
            signature,
            entries,
            agent: None,
            health: None,
            windows: None,
        }
    }

    fn check(&self, state: &DesiredState, accepted: Option<&DesiredState>, expected: Result<(), Untrusted>) {
        assert_eq!(self.identity.verify(state, accepted.map(|s| &*s.statement)), expected);
    }
}

fn entry(uid: &str) -> Entry {
    Entry {
        service: ServiceIdentity {
            uid: uid.into(),
            namespace: "n".into(),
            name: uid.into(),
        },
        action: Action::Hold { reason: String::new() },
    }
}

#[test]
fn only_a_statement_of_our_hub_for_our_cluster_is_accepted() {
    let hub = Hub::new();
    hub.check(&hub.state(1, |_| {}), None, Ok(()));
    hub.check(
        &hub.state(1, |s| s.cluster_uid = "d".into()),
        None,
        Err(Untrusted::Cluster("d".into())),
    );
    hub.check(
        &hub.state(1, |s| s.installation = "j".into()),
        None,
        Err(Untrusted::Installation("j".into())),
    );
    hub.check(
        &hub.state(1, |s| s.key_id = "l".into()),
        None,
        Err(Untrusted::UnknownKey {
            key: "l".into(),
            known: "k".into(),
            sequence: 0,
        }),
    );
    hub.check(&hub.state(1, |s| s.tag = Digest::of("x")), None, Err(Untrusted::Tag));
    hub.check(&Hub::new().state(1, |_| {}), None, Err(Untrusted::Signature));
}

#[test]
fn entries_are_those_that_were_signed() {
    let hub = Hub::new();
    let mut state = hub.state(1, |_| {});
    state.entries.pop();
    hub.check(&state, None, Err(Untrusted::Tag));
    state.entries.push(entry("a").into());
    hub.check(&state, None, Err(Untrusted::Twice("a".into())));
    let mut state = hub.state(1, |_| {});
    state.statement = Statement {
        generation: 9,
        ..Statement::clone(&state.statement)
    }
    .into();
    hub.check(&state, None, Err(Untrusted::Signature));
}

#[test]
fn settings_are_those_that_were_signed() {
    let hub = Hub::new();
    let settings = AgentSettings {
        log: Some("debug".into()),
        deadline_seconds: 300,
        ..AgentSettings::default()
    };
    let mut state = hub.state(1, |s| s.agent = Some(settings.digest()));
    hub.check(&state, None, Err(Untrusted::Tag));
    state.agent = Some(settings.into());
    hub.check(&state, None, Ok(()));
    state.agent = Some(AgentSettings::default().into());
    hub.check(&state, None, Err(Untrusted::Tag));
}

#[test]
fn an_older_statement_is_refused_and_a_newer_epoch_wins() {
    let hub = Hub::new();
    let accepted = hub.state(5, |_| {});
    hub.check(&hub.state(5, |_| {}), Some(&accepted), Ok(()));
    hub.check(&hub.state(6, |_| {}), Some(&accepted), Ok(()));
    hub.check(
        &hub.state(4, |_| {}),
        Some(&accepted),
        Err(Untrusted::Older {
            epoch: 1,
            generation: 4,
        }),
    );
    hub.check(&hub.state(1, |s| s.epoch = 2), Some(&accepted), Ok(()));
    hub.check(
        &hub.state(9, |s| s.epoch = 0),
        Some(&accepted),
        Err(Untrusted::Older {
            epoch: 0,
            generation: 9,
        }),
    );
}

#[test]
fn two_different_statements_of_one_generation_are_refused() {
    let hub = Hub::new();
    let accepted = hub.state(5, |s| s.tag = Digest::of("other"));
    hub.check(
        &hub.state(5, |_| {}),
        Some(&accepted),
        Err(Untrusted::Equivocal {
            epoch: 1,
            generation: 5,
        }),
    );
}

#[test]
fn keys_survive_being_stored_and_are_never_printed() {
    let keys = Keys::generate().unwrap();
    let again: Keys = serde_json::from_str(&serde_json::to_string(&keys).unwrap()).unwrap();
    assert_eq!(keys.public_key().unwrap(), again.public_key().unwrap());
    assert_eq!(keys.sealing_public_key().unwrap(), again.sealing_public_key().unwrap());
    assert_ne!(keys.public_key().unwrap(), keys.sealing_public_key().unwrap());
    let printed = format!("{keys:?}");
    assert!(
        !printed.contains(&keys.signing.0) && !printed.contains(&keys.sealing.0),
        "{printed}"
    );
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

/// The succession that a hub's keys sign next.
fn succession(hub: &Ed25519KeyPair, at: &Identity, next: &Ed25519KeyPair, authority: &str) -> SignedSuccession {
    let succession = Verbatim::from(Succession {
        installation: "i".into(),
        sequence: at.position.sequence + 1,
        previous: at.position.link,
        signing_key: SigningKey::new(next.public_key().as_ref()),
        authorities: vec![Digest::of(authority)],
        made: 0,
    });
    let signature = STANDARD.encode(hub.sign(&succession.message()).as_ref());
    SignedSuccession { succession, signature }
}

#[test]
fn the_hubs_new_keys_count_and_what_the_old_one_signed_is_kept() {
    let hub = Hub::new();
    let (second, third) = (Ed25519KeyPair::generate().unwrap(), Ed25519KeyPair::generate().unwrap());
    let accepted = hub.state(1, |_| {});
    let one = succession(&hub.key, &hub.identity, &second, "ca 1");
    let at_one = hub.identity.follow(std::slice::from_ref(&one), Some("k")).unwrap();
    let two = succession(&second, &at_one, &third, "ca 2");
    let at_two = hub.identity.follow(&[one.clone(), two.clone()], Some("k")).unwrap();
    assert_eq!(
        at_one.follow(&[two], Some("k")).unwrap().signing_keys,
        at_two.signing_keys
    );
    assert_eq!((at_two.position.sequence, at_two.pins()), (2, vec![Digest::of("ca 2")]));
    assert!(at_two.is_of_authority(Digest::of("ca")), "as it was told at the join");

    // A new state must be signed with the new key. The stored one may be signed with the old key until something newer
    // is accepted.
    let unknown = at_two.verify(&accepted, None);
    assert!(
        matches!(unknown, Err(Untrusted::UnknownKey { sequence: 2, .. })),
        "{unknown:?}"
    );
    assert_eq!(at_two.verify_stored(&accepted), Ok(()));
    let newer = Hub {
        key: third,
        identity: at_two.clone(),
    }
    .state(2, |s| s.key_id = at_two.signing_keys[0].id.clone());
    assert_eq!(at_two.verify(&newer, Some(&accepted.statement)), Ok(()));
    let changed = Statement {
        generation: 0,
        ..(*newer.statement).clone()
    };
    let changed = DesiredState {
        statement: changed.into(),
        ..newer
    };
    assert_eq!(at_two.verify(&changed, None), Err(Untrusted::Signature));
    let fresh = at_one.follow(&[], Some(&at_one.signing_keys[0].id)).unwrap();
    assert!(
        fresh.verify_stored(&accepted).is_err(),
        "a newer one was accepted since"
    );

    let again: Identity = serde_json::from_str(&serde_json::to_string(&at_two).unwrap()).unwrap();
    assert_eq!(again.verify_stored(&accepted), Ok(()));
    let by_another = succession(&second, &hub.identity, &second, "evil");
    assert!(matches!(
        hub.identity.follow(&[by_another], None),
        Err(Broken::Forged(1, _))
    ));
}

#[test]
fn an_identity_of_before_reads_as_one_that_has_followed_nothing() {
    let hub = Hub::new();
    let mut stored = serde_json::to_value(&hub.identity).unwrap();
    for field in ["authorities", "position", "formerKey", "nextKeys", "handovers"] {
        stored.as_object_mut().unwrap().remove(field);
    }
    let identity: Identity = serde_json::from_value(stored).unwrap();
    assert!(identity.position.is_first() && identity.next_keys.is_none());
    assert_eq!(identity.pins(), [Digest::of("ca")]);
}

#[test]
fn keys_of_its_own_change_step_by_step_and_open_what_was_sealed_before() {
    use rustls::crypto::hpke::HpkePublicKey;
    let first = Hub::new().identity;
    let seal = |identity: &Identity| {
        let key = HpkePublicKey(STANDARD.decode(identity.keys.sealing_public_key().unwrap()).unwrap());
        let (encapsulated, ciphertext) = DH_KEM_X25519_HKDF_SHA256_AES_256
            .seal(b"i", &[], b"secret", &key)
            .unwrap();
        SealedSecrets {
            encapsulated: STANDARD.encode(encapsulated.0),
            ciphertext: STANDARD.encode(ciphertext),
        }
    };
    let begun = first.prepare_keys().unwrap();
    let handover = begun.handover().unwrap().unwrap();
    let again = begun.prepare_keys().unwrap().handover().unwrap().unwrap();
    assert_eq!(handover.handover, again.handover, "what was begun is gone on with");
    assert!(first.handover().unwrap().is_none());

    let second = begun.promote_keys().unwrap();
    assert_eq!(second.keys.public_key().unwrap(), handover.handover.public_key);
    assert_eq!(second.keys.sealing_public_key().unwrap(), handover.handover.sealing_key);
    assert!(second.next_keys.is_none() && second.handovers == [handover]);
    let opened =
        |by: &Identity, sealed: &SealedSecrets| by.keys.open(sealed, b"i").unwrap().map(|opened| opened.is_former);
    assert_eq!(opened(&second, &seal(&second)), Some(false));
    assert_eq!(opened(&second, &seal(&first)), Some(true));
    assert_eq!(opened(&first, &seal(&second)), None);

    let mut last = second;
    for _ in 0..MAX_FORMER_SEALING {
        last = last.prepare_keys().unwrap().promote_keys().unwrap();
    }
    assert_eq!(last.handovers.len(), MAX_HANDOVERS);
    assert_eq!(opened(&last, &seal(&first)), None, "not for ever");
    assert_eq!(last.promote_keys().unwrap().handovers, last.handovers);
    let printed = format!("{begun:?}");
    assert!(
        !printed.contains(&begun.next_keys.as_ref().unwrap().signing.0),
        "{printed}"
    );
}

#[test]
fn a_request_for_a_plan_is_taken_from_our_hub_for_our_cluster_alone() {
    let hub = Hub::new();
    let request = |change: &dyn Fn(&mut PlanStatement), prefix: &[u8]| {
        let entry = Verbatim::from(entry("a"));
        let mut statement = PlanStatement {
            installation: "i".into(),
            cluster_uid: "c".into(),
            id: "1".into(),
            entry: entry.digest(),
            key_id: "k".into(),
        };
        change(&mut statement);
        let statement = Verbatim::from(statement);
        let signature = STANDARD.encode(hub.key.sign(&statement.message_for(prefix)).as_ref());
        PlanRequest {
            statement,
            signature,
            entry,
        }
    };
    let check = |request: PlanRequest, expected| assert_eq!(hub.identity.verify_request(&request), expected);
    let prefix = PlanStatement::PREFIX;
    check(request(&|_| {}, prefix), Ok(()));
    check(
        request(&|s| s.cluster_uid = "d".into(), prefix),
        Err(Untrusted::Cluster("d".into())),
    );
    check(
        request(&|s| s.installation = "j".into(), prefix),
        Err(Untrusted::Installation("j".into())),
    );
    // A request that was signed for another purpose, and an entry that was not signed.
    check(request(&|_| {}, Statement::PREFIX), Err(Untrusted::Signature));
    let other = PlanRequest {
        entry: entry("b").into(),
        ..request(&|_| {}, prefix)
    };
    check(other, Err(Untrusted::Tag));
}
