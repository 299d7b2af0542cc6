use super::*;

const PROXY: &str = "http://proxy.example:3128";

fn chosen(hub: &str, variables: &[(&str, &str)]) -> Option<String> {
    let variable = |name: &str| {
        variables
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, value)| (*value).to_owned())
    };
    Proxy::of_environment(&hub.parse().unwrap(), variable)
        .unwrap()
        .map(|proxy| proxy.to_string())
}

#[test]
fn the_environment_names_the_proxy() {
    let hub = "https://hub.example";
    assert_eq!(chosen(hub, &[]), None);
    assert_eq!(chosen(hub, &[("HTTPS_PROXY", "")]), None);
    assert_eq!(chosen(hub, &[("https_proxy", PROXY)]).unwrap(), PROXY);
    assert_eq!(
        chosen(hub, &[("HTTPS_PROXY", "a:1"), ("https_proxy", PROXY)]).unwrap(),
        "http://a:1"
    );
    assert_eq!(
        chosen(hub, &[("HTTPS_PROXY", "https://[fd00::1]:8443/")]).unwrap(),
        "https://[fd00::1]:8443"
    );
    assert_eq!(chosen(hub, &[("HTTP_PROXY", PROXY)]), None, "the hub is https");
    for itself in ["https://localhost:1", "https://127.0.0.1:1", "https://[::1]:1"] {
        assert_eq!(chosen(itself, &[("HTTPS_PROXY", PROXY)]), None, "{itself}");
    }
}

#[test]
fn no_proxy_has_hosts_domains_networks_and_ports() {
    let straight = |hub: &str, list: &str| chosen(hub, &[("HTTPS_PROXY", PROXY), ("NO_PROXY", list)]).is_none();
    assert!(straight("https://hub.example:8443", "other, hub.example"));
    assert!(straight("https://hub.example", "example"));
    assert!(straight("https://hub.example", ".example"));
    assert!(straight("https://hub.example", "*.example"));
    assert!(straight("https://hub.example", "*"));
    assert!(straight("https://hub.example:8443", "hub.example:8443"));
    assert!(straight("https://hub.example", "hub.example:443"));
    assert!(!straight("https://hub.example:8443", "hub.example:443"));
    assert!(!straight("https://hub.example", ""));
    assert!(!straight("https://hub.example", "ub.example"));
    assert!(straight("https://10.1.2.3:8443", "10.0.0.0/8"));
    assert!(straight("https://10.1.2.3:8443", "10.1.2.3:8443"));
    assert!(!straight("https://10.1.2.3:8443", "10.2.0.0/16"));
    assert!(straight("https://[fd00::1]:8443", "fd00::/8"));
    assert!(straight("https://[fd00::1]:8443", "[fd00::1]:8443"));
    assert!(straight("https://[fd00::1]:8443", "[fd00::1]"));
    assert!(!straight("https://[fd00::1]:8443", "[fd00::1]:443"));
}

#[test]
fn credentials_are_sent_and_never_shown() {
    let proxy = Proxy::parse("HTTPS_PROXY", "http://al:can%2Fary@proxy.example:3128").unwrap();
    // base64 of al:can/ary
    assert_eq!(proxy.authorization.as_ref().unwrap(), "Basic YWw6Y2FuL2FyeQ==");
    let forbidden = ProxyError::Forbidden(proxy.clone(), "hub:443".into());
    let wrong = ProxyError::CredentialsWrong(proxy.clone());
    for text in [
        proxy.to_string(),
        format!("{proxy:?}"),
        format!("{forbidden} {forbidden:?}"),
        wrong.to_string(),
    ] {
        assert!(text.contains("proxy.example:3128") && !text.contains("can"), "{text}");
    }
}

#[test]
fn what_is_no_http_proxy_is_refused_without_repeating_it() {
    for (text, problem) in [
        ("socks5://al:canary@proxy:1080", "only proxies that speak HTTP"),
        ("http://al:canary@", "names no host"),
        ("http://al:canary@proxy:3128/path", "has no path"),
        ("http://al:canary@proxy:port", "its port is no number"),
        ("http://al:canary @proxy", "is no URL"),
    ] {
        let error = Proxy::parse("HTTPS_PROXY", text).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(problem) || problem == "names no host", "{text}: {shown}");
        assert!(shown.contains("HTTPS_PROXY") && !shown.contains("canary"), "{shown}");
    }
}
