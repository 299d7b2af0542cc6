use super::*;

fn pin(name: &str) -> Digest {
    Digest::of(name)
}

#[test]
fn a_succession_names_who_serves_and_who_is_announced() {
    let request = |announced: &[&str], revoke| Request {
        announced: announced.iter().map(|name| pin(name)).collect(),
        revoke,
        ..Request::default()
    };
    let check = |known: &[&str], replaced: Option<&str>, served: &str, request: Request, expected: &[&str]| {
        let known: Vec<_> = known.iter().map(|name| pin(name)).collect();
        let decided = decide_authorities(&known, replaced.map(pin), pin(served), &request);
        assert_eq!(decided, expected.iter().map(|name| pin(name)).collect::<Vec<_>>());
    };
    check(&["a"], None, "a", request(&[], false), &["a"]);
    check(&["a"], Some("a"), "b", request(&[], false), &["b"]);
    // Announced first, then served; then the old one is revoked.
    check(&["a"], None, "a", request(&["b"], false), &["a", "b"]);
    check(&["a", "b"], None, "b", request(&[], false), &["a", "b"]);
    check(&["a", "b"], None, "b", request(&[], true), &["b"]);
    check(&["a", "b"], None, "a", request(&["b"], false), &["a", "b"]);
    check(&["a", "m"], Some("a"), "b", request(&[], false), &["b", "m"]);
    // Served under an authority that was never announced: the ones that agents know no longer help.
    check(&["a"], None, "x", request(&[], false), &["x"]);
}
