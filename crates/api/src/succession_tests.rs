use super::*;

/// A "signature" of tests: the signer's name, and a digest of the message.
fn sign(key: &str, message: &[u8]) -> String {
    format!("{key} {}", Digest::of(message))
}

fn verifies(key: &SigningKey, message: &[u8], signature: &str) -> bool {
    signature == sign(&key.id, message)
}

fn key(n: u8) -> SigningKey {
    SigningKey::new(&[n; 32])
}

fn first() -> Trusted {
    Trusted {
        position: Position::default(),
        signing_key: key(0),
        authorities: vec![Digest::of("ca 0")],
    }
}

fn signed(by: &SigningKey, succession: Succession) -> SignedSuccession {
    let succession = Verbatim::from(succession);
    SignedSuccession {
        signature: sign(&by.id, &succession.message()),
        succession,
    }
}

fn content(link: &SignedSuccession) -> Succession {
    link.succession.clone().into_value()
}

fn after(at: &Trusted, next: u8) -> SignedSuccession {
    let succession = Succession {
        installation: "i".to_owned(),
        sequence: at.position.sequence + 1,
        previous: at.position.link,
        signing_key: key(next),
        authorities: vec![Digest::of(format!("ca {next}"))],
        made: 1,
    };
    signed(&at.signing_key, succession)
}

fn walk(from: &Trusted, successions: &[SignedSuccession]) -> Result<Trusted, Broken> {
    from.walk("i", successions, verifies)
}

/// Three keys in succession.
fn chain() -> [SignedSuccession; 3] {
    let one = after(&first(), 1);
    let at_one = walk(&first(), std::slice::from_ref(&one)).unwrap();
    let two = after(&at_one, 2);
    let at_two = walk(&at_one, std::slice::from_ref(&two)).unwrap();
    [one, two, after(&at_two, 3)]
}

#[test]
fn whoever_was_away_for_long_walks_to_the_keys_of_today() {
    let chain = chain();
    let today = walk(&first(), &chain).unwrap();
    assert_eq!((today.position.sequence, &today.signing_key), (3, &key(3)));
    assert_eq!(today.authorities, [Digest::of("ca 3")]);
    assert_eq!(today.position.link, Some(chain[2].succession.link()));
    // From the middle. Successions that were followed before change nothing.
    let middle = walk(&first(), &chain[..2]).unwrap();
    assert_eq!(walk(&middle, &chain[2..]).unwrap(), today);
    assert_eq!(walk(&middle, &chain).unwrap(), today);
    assert_eq!(walk(&today, &chain).unwrap(), today, "a replay leads nowhere");
    assert_eq!(walk(&today, &[]).unwrap(), today);
}

#[test]
fn a_gap_and_a_wrong_order_are_refused() {
    let [one, two, three] = chain();
    let gap = |expected, found| Err(Broken::Gap { expected, found });
    assert_eq!(walk(&first(), std::slice::from_ref(&two)), gap(1, 2));
    assert_eq!(walk(&first(), &[one.clone(), three.clone()]), gap(2, 3));
    assert_eq!(walk(&first(), &[two, one.clone(), three]), gap(1, 2));
    let last = Succession {
        sequence: u64::MAX,
        ..one.succession.into_value()
    };
    assert_eq!(walk(&first(), &[signed(&key(0), last)]), gap(1, u64::MAX));
}

#[test]
fn a_forged_succession_is_refused() {
    let [one, two, _] = chain();
    let forged = |number, by: u8| Err(Broken::Forged(number, key(by).id));
    let mut touched = content(&one);
    touched.authorities.push(Digest::of("evil"));
    let touched = SignedSuccession {
        succession: touched.into(),
        ..one.clone()
    };
    assert_eq!(walk(&first(), &[touched]), forged(1, 0));
    // Signed by an earlier key, which certifies only its own successor.
    let stolen = signed(&key(0), content(&two));
    assert_eq!(walk(&first(), &[one.clone(), stolen]), forged(2, 1));
    // Half of a good list is not followed either.
    let mut evil = two.clone();
    evil.signature.clear();
    assert_eq!(walk(&first(), &[one.clone(), evil]), forged(2, 1));

    let foreign = Succession {
        installation: "j".to_owned(),
        ..content(&one)
    };
    assert_eq!(
        walk(&first(), &[signed(&key(0), foreign)]),
        Err(Broken::Installation(1, "j".to_owned()))
    );
    let unsound = SigningKey {
        id: key(1).id,
        ..key(2)
    };
    let unsound = Succession {
        signing_key: unsound,
        ..content(&one)
    };
    assert!(matches!(
        walk(&first(), &[signed(&key(0), unsound)]),
        Err(Broken::Invalid(1, _))
    ));
    let nobody = Succession {
        authorities: Vec::new(),
        ..content(&one)
    };
    assert!(matches!(
        walk(&first(), &[signed(&key(0), nobody)]),
        Err(Broken::Invalid(1, _))
    ));
}

#[test]
fn a_succession_of_a_newer_version_is_followed_over_what_came() {
    let [one, ..] = chain();
    let mut json = serde_json::to_value(&one.succession).unwrap();
    json["until"] = 7.into();
    let succession: Verbatim<Succession> = serde_json::from_value(json.clone()).unwrap();
    let newer = SignedSuccession {
        signature: sign(&key(0).id, &succession.message()),
        succession,
    };
    let at = walk(&first(), std::slice::from_ref(&newer)).unwrap();
    // Stored and passed on, it is the same.
    let kept: SignedSuccession = serde_json::from_str(&serde_json::to_string(&newer).unwrap()).unwrap();
    assert_eq!(serde_json::to_value(&kept.succession).unwrap(), json);
    assert_eq!(at.position.link, Some(kept.succession.link()));
    assert_ne!(kept.succession.link(), one.succession.link());
    assert_eq!(walk(&first(), &[kept]).unwrap(), at);
    // Fields that this version ignores cannot be changed either.
    let without = SignedSuccession {
        succession: one.succession,
        signature: newer.signature,
    };
    assert!(matches!(walk(&first(), &[without]), Err(Broken::Forged(1, _))));
}

#[test]
fn a_fork_is_refused_by_whoever_has_followed_the_other_branch() {
    let [one, two, _] = chain();
    let at_one = walk(&first(), std::slice::from_ref(&one)).unwrap();
    // The hub went back to its first keys and changed them again.
    let other = after(&first(), 9);
    assert_eq!(walk(&at_one, std::slice::from_ref(&other)), Err(Broken::Fork(1)));
    // The same with an unchanged signing key, which signs both branches.
    let branch = |authority: &str| {
        signed(
            &key(0),
            Succession {
                signing_key: key(0),
                authorities: vec![Digest::of(authority)],
                ..content(&one)
            },
        )
    };
    let (here, there) = (branch("here"), branch("there"));
    let at_here = walk(&first(), &[here]).unwrap();
    let at_there = walk(&first(), &[there]).unwrap();
    assert_eq!(walk(&at_here, &[after(&at_there, 2)]), Err(Broken::Fork(1)));
    assert!(walk(&at_one, &[two]).is_ok());
}

fn handed(from: u8, to: u8) -> SignedHandover {
    let handover = Handover {
        installation: "i".to_owned(),
        cluster_uid: "c".to_owned(),
        from: key(from).public_key,
        public_key: key(to).public_key,
        sealing_key: format!("x{to}"),
    };
    signed_handover(handover.into())
}

fn signed_handover(handover: Verbatim<Handover>) -> SignedHandover {
    let signature = sign(&handover.from, &handover.message());
    SignedHandover {
        signature,
        proof: sign(&handover.public_key, &handover.proof_message()),
        handover,
    }
}

fn leads(known: u8, handovers: &[SignedHandover]) -> Option<String> {
    let verifies = |key: &str, message: &[u8], signature: &str| signature == sign(key, message);
    let known = key(known).public_key;
    follow_handovers(("i", "c"), &known, handovers, verifies).map(|handover| handover.public_key.clone())
}

#[test]
fn handovers_lead_from_the_key_that_the_hub_knows_to_the_last() {
    let all = [handed(0, 1), handed(1, 2), handed(2, 3)];
    for known in 0..3 {
        assert_eq!(leads(known, &all), Some(key(3).public_key), "a hub that knows {known}");
    }
    assert_eq!(leads(3, &all), None, "what was used leads nowhere");
    assert_eq!(leads(7, &all), None);
    assert_eq!(leads(0, &[handed(0, 1), handed(2, 3)]), None, "a gap");
}

#[test]
fn a_handover_of_a_newer_agent_is_followed_over_what_came() {
    let mut json = serde_json::to_value(&handed(0, 1).handover).unwrap();
    json["reason"] = "age".into();
    let newer = signed_handover(serde_json::from_value(json).unwrap());
    let sent: SignedHandover = serde_json::from_str(&serde_json::to_string(&newer).unwrap()).unwrap();
    assert_eq!(leads(0, &[sent]), Some(key(1).public_key));
    assert_eq!(
        leads(
            0,
            &[SignedHandover {
                handover: handed(0, 1).handover,
                ..newer
            }]
        ),
        None
    );
}

#[test]
fn a_handover_needs_the_old_key_and_the_new_one() {
    let good = handed(0, 1);
    assert_eq!(leads(0, std::slice::from_ref(&good)), Some(key(1).public_key));
    let unsigned = SignedHandover {
        signature: sign(&key(9).public_key, &good.handover.message()),
        ..good.clone()
    };
    assert_eq!(leads(0, &[unsigned]), None);
    // An agent cannot take over another agent's key.
    let unproven = SignedHandover {
        proof: good.signature.clone(),
        ..good.clone()
    };
    assert_eq!(leads(0, &[unproven]), None);
    for change in [
        |handover: &mut Handover| handover.cluster_uid = "d".to_owned(),
        |handover: &mut Handover| handover.installation = "j".to_owned(),
        |handover: &mut Handover| handover.sealing_key = "y".to_owned(),
    ] {
        let mut touched = good.handover.clone().into_value();
        change(&mut touched);
        assert_eq!(
            leads(
                0,
                &[SignedHandover {
                    handover: touched.into(),
                    ..good.clone()
                }]
            ),
            None
        );
    }
}
