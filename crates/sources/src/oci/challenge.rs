//! `WWW-Authenticate`: how to sign in to a registry (RFC 9110 section 11.6.1).

/// Most bytes of a header.
const MAX_HEADER: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    /// A token from a token service.
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

impl Challenge {
    /// The first supported challenge, a token before a password.
    pub(super) fn find<'h>(headers: impl Iterator<Item = &'h str>) -> Option<Self> {
        let mut all: Vec<Self> = headers
            .filter(|header| header.len() <= MAX_HEADER)
            .filter_map(parse)
            .collect();
        let bearer = all.iter().position(|one| matches!(one, Self::Bearer { .. }));
        match bearer {
            Some(n) => Some(all.swap_remove(n)),
            None => all.pop(),
        }
    }
}

fn parse(header: &str) -> Option<Challenge> {
    let header = header.trim();
    let (scheme, rest) = header.split_once(' ').unwrap_or((header, ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service, mut scope) = (None, None, None);
    let mut rest = rest.trim_start();
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = read_value(after.trim_start())?;
        match name.trim().to_ascii_lowercase().as_str() {
            "realm" => realm = Some(value),
            "service" => service = Some(value),
            "scope" => scope = Some(value),
            _ => {}
        }
        let after = after.trim_start();
        rest = after.strip_prefix(',').unwrap_or(after).trim_start();
    }
    Some(Challenge::Bearer {
        realm: realm?,
        service,
        scope,
    })
}

/// A quoted string or a token, and the text after it.
fn read_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ']).unwrap_or(text.len());
        return Some((text[..end].to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let find = |headers: &[&str]| Challenge::find(headers.iter().copied());
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            let own = |text: Option<&str>| text.map(str::to_owned);
            Some(Challenge::Bearer {
                realm: realm.to_owned(),
                service: own(service),
                scope: own(scope),
            })
        };
        let docker = r#"Bearer realm="https://auth.example.com/token",service="registry.example.com",scope="repository:a/b:pull,push""#;
        assert_eq!(
            find(&[docker]),
            bearer(
                "https://auth.example.com/token",
                Some("registry.example.com"),
                Some("repository:a/b:pull,push")
            )
        );
        assert_eq!(
            find(&["Basic realm=\"x\"", "bearer realm=https://a , error=\"\\\"\""]),
            bearer("https://a", None, None)
        );
        assert_eq!(find(&["Basic realm=\"x\""]), Some(Challenge::Basic));
        for odd in [
            "",
            "Digest x",
            "Bearer",
            "Bearer realm",
            "Bearer realm=\"x",
            "Bearer service=\"x\"",
            &format!("Basic {}", "x".repeat(5000)),
        ] {
            assert_eq!(find(&[odd]), None, "{odd}");
        }
    }
}
