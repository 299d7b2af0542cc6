use super::*;

const DAY: i64 = 86_400;

fn seconds(time: i64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(time.unsigned_abs()))
}

/// The answers of webpki for nested certificates with these validity times.
fn verify(validity: &[(i64, i64)]) -> impl Fn(UnixTime) -> Result<UnixTime, Error> {
    move |time| {
        for (from, to) in validity {
            let (not_before, not_after) = (seconds(*from), seconds(*to));
            if time < not_before {
                return Err(CertificateError::NotValidYetContext { time, not_before }.into());
            }
            if time > not_after {
                return Err(CertificateError::ExpiredContext { time, not_after }.into());
            }
        }
        Ok(time)
    }
}

#[test]
fn a_clock_that_is_behind_takes_a_certificate_at_its_beginning() {
    let leaf = [(100 * DAY, 190 * DAY)];
    assert_eq!(
        verify_in_time(verify(&leaf), 120 * DAY, true).unwrap(),
        seconds(120 * DAY)
    );
    for confirmed in [false, true] {
        assert_eq!(
            verify_in_time(verify(&leaf), 99 * DAY, confirmed).unwrap(),
            seconds(100 * DAY)
        );
        assert_eq!(verify_in_time(verify(&leaf), 0, confirmed).unwrap(), seconds(100 * DAY));
    }
    let chain = [(100 * DAY, 190 * DAY), (101 * DAY, 2000 * DAY)];
    assert_eq!(
        verify_in_time(verify(&chain), 99 * DAY, false).unwrap(),
        seconds(101 * DAY)
    );
}

#[test]
fn a_clock_that_is_ahead_takes_a_certificate_that_just_ended_until_the_hub_was_heard() {
    let leaf = [(100 * DAY, 190 * DAY)];
    assert_eq!(
        verify_in_time(verify(&leaf), 191 * DAY, false).unwrap(),
        seconds(190 * DAY)
    );
    assert!(verify_in_time(verify(&leaf), 191 * DAY, true).is_err());
    assert!(verify_in_time(verify(&leaf), 193 * DAY, false).is_err());
}

#[test]
fn certificates_that_never_held_at_one_time_are_refused() {
    let chain = [(100 * DAY, 190 * DAY), (10 * DAY, 90 * DAY)];
    for now in [0, 95 * DAY, 120 * DAY] {
        assert!(verify_in_time(verify(&chain), now, false).is_err(), "{now}");
    }
}

struct Issued {
    authority: CertificateDer<'static>,
    leaf: CertificateDer<'static>,
}

fn issue(name: &str) -> Issued {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, format!("authority of {name}"));
    let authority = params.self_signed(&key).unwrap().der().clone();
    let issuer = rcgen::Issuer::new(params, key);
    let leaf_key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new(vec![name.to_owned()])
        .unwrap()
        .signed_by(&leaf_key, &issuer)
        .unwrap();
    Issued {
        authority,
        leaf: leaf.der().clone(),
    }
}

fn trusts(trust: &Trust, leaf: &CertificateDer<'_>, chain: &[CertificateDer<'_>], name: &str) -> Result<(), Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = NamedAuthorities::new(trust.clone(), Arc::default(), provider)?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let now = UnixTime::since_unix_epoch(Duration::ZERO);
    verifier.verify_server_cert(leaf, chain, &name, &[], now).map(drop)
}

#[test]
fn only_named_authorities_are_trusted_and_a_leaf_is_none() {
    let (hub, company, stranger) = (issue("hub"), issue("hub"), issue("hub"));
    let pin = Trust::pinned(Digest::of(hub.authority.as_ref()));
    let file = Trust {
        pins: Pins::default(),
        authorities: vec![company.authority.clone()],
    };
    let both = Trust {
        pins: pin.pins.clone(),
        ..file.clone()
    };
    let check = |trust: &Trust, issued: &Issued, sent: bool, expected: bool| {
        let chain = if sent { vec![issued.authority.clone()] } else { vec![] };
        assert_eq!(trusts(trust, &issued.leaf, &chain, "hub").is_ok(), expected);
        assert!(trusts(trust, &issued.leaf, &chain, "other").is_err());
    };
    check(&pin, &hub, true, true);
    check(&pin, &hub, false, false);
    check(&pin, &company, true, false);
    check(&file, &company, true, true);
    check(&file, &company, false, true);
    check(&file, &hub, true, false);
    check(&both, &hub, true, true);
    check(&both, &company, false, true);
    check(&both, &stranger, true, false);
    // The pinned authority proves nothing in the chain of another authority's certificate.
    let lent = trusts(&pin, &stranger.leaf, std::slice::from_ref(&hub.authority), "hub");
    assert!(matches!(lent, Err(Error::InvalidCertificate(_))), "{lent:?}");
    for leaf_as_root in [
        Trust::pinned(Digest::of(hub.leaf.as_ref())),
        Trust {
            pins: Pins::default(),
            authorities: vec![hub.leaf.clone(), hub.authority.clone()],
        },
    ] {
        assert!(trusts(&leaf_as_root, &hub.leaf, std::slice::from_ref(&hub.authority), "hub").is_err());
    }
}

#[test]
fn a_wrong_pin_is_shown_with_what_is_there() {
    let hub = issue("hub");
    let wrong = Trust::pinned(Digest::of("another"));
    let refused = trusts(&wrong, &hub.leaf, std::slice::from_ref(&hub.authority), "hub").unwrap_err();
    let Error::InvalidCertificate(problem) = refused else {
        panic!("{refused:?}")
    };
    let error = explain(&problem);
    for part in [Digest::of("another"), Digest::of(hub.authority.as_ref())] {
        assert!(error.contains(&part.to_string()), "{error}");
    }
    assert!(error.contains("--ca-file"), "{error}");
}

#[test]
fn a_file_of_authorities_must_hold_some() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    let read = || {
        Trust::named(Vec::new(), Some(&path))
            .map(drop)
            .map_err(|error| crate::hub::chain(&error))
    };
    assert!(read().unwrap_err().contains("No such file"));
    std::fs::write(&path, "nothing\n").unwrap();
    assert!(read().unwrap_err().contains("no PEM certificate"));
    std::fs::write(&path, vec![b'x'; 2 << 20]).unwrap();
    assert!(read().unwrap_err().contains("longer than 1 MiB"));
    assert!(matches!(Trust::named(Vec::new(), None), Err(TrustError::Nobody)));
}

/// An authority whose certificate another one can issue.
struct Ca {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    params: rcgen::CertificateParams,
    root: CertificateDer<'static>,
}

impl Ca {
    fn new(name: &str) -> Self {
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = rcgen::KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().der().clone();
        Self {
            issuer: rcgen::Issuer::new(params.clone(), key),
            params,
            root,
        }
    }

    fn pin(&self) -> Digest {
        Digest::of(&self.root)
    }

    /// Issues a certificate of this authority for the next one.
    fn vouch_for(&self, next: &Self, ends: i32) -> CertificateDer<'static> {
        let mut params = next.params.clone();
        params.not_after = rcgen::date_time_ymd(ends, 1, 1);
        params.signed_by(next.issuer.key(), &self.issuer).unwrap().der().clone()
    }

    fn leaf(&self) -> CertificateDer<'static> {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["hub".to_owned()]).unwrap();
        params.signed_by(&key, &self.issuer).unwrap().der().clone()
    }
}

#[test]
fn an_authority_of_before_leads_to_the_one_of_today() {
    let (first, second, third) = (Ca::new("1"), Ca::new("2"), Ca::new("3"));
    let leaf = third.leaf();
    let chain = [
        second.vouch_for(&third, 4000),
        first.vouch_for(&second, 4000),
        first.root.clone(),
        second.root.clone(),
        third.root.clone(),
    ];
    for ca in [&first, &second, &third] {
        assert!(trusts(&Trust::pinned(ca.pin()), &leaf, &chain, "hub").is_ok());
        assert!(trusts(&Trust::pinned(ca.pin()), &leaf, &chain, "other").is_err());
    }
    // No other authority is trusted: neither by a chain with a gap, nor by one that only contains the pinned authority.
    let pin = Trust::pinned(first.pin());
    assert!(trusts(&pin, &leaf, &[chain[0].clone(), first.root.clone()], "hub").is_err());
    let stranger = Ca::new("3");
    assert!(trusts(&pin, &stranger.leaf(), &chain, "hub").is_err());
    let ended = [first.vouch_for(&third, 2001), first.root.clone()];
    let clock = Clock::default();
    clock.correct(4_000_000_000);
    let verifier = NamedAuthorities::new(
        pin,
        Arc::new(clock),
        Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
    );
    let name = ServerName::try_from("hub").unwrap();
    assert!(verifier.unwrap().verify(&leaf, &ended, &name, &[]).is_err());
}

#[test]
fn other_pins_count_from_the_next_connection_on() {
    let (first, second) = (Ca::new("1"), Ca::new("2"));
    let trust = Trust::pinned(first.pin());
    let verifier = NamedAuthorities::new(
        trust.clone(),
        Arc::default(),
        Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
    );
    let verifier = verifier.unwrap();
    let name = ServerName::try_from("hub").unwrap();
    let accepts = |ca: &Ca| {
        verifier
            .verify(&ca.leaf(), std::slice::from_ref(&ca.root), &name, &[])
            .is_ok()
    };
    assert!(accepts(&first) && !accepts(&second));
    trust.pins.set(vec![second.pin(), first.pin()]);
    assert!(accepts(&first) && accepts(&second));
    trust.pins.set(vec![second.pin()]);
    assert!(!accepts(&first) && accepts(&second));
}
