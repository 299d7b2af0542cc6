//! `oci://HOST[:PORT]/PATH[:TAG]`.

use std::fmt;

use farwater_bundle::path::escape;
use url::Url;

/// Docker's name for its registry, and the registry's host.
const DOCKER: (&str, &str) = ("docker.io", "registry-1.docker.io");

/// A repository of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Host with its port.
    host: String,
    repository: String,
    tag: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    #[error("the URL must begin with oci://")]
    Scheme,
    #[error("the URL holds a user name or password; put them in the Secret that secretRef names")]
    Userinfo,
    #[error("{0:?} has no host, or a port that is no number")]
    Host(String),
    #[error("{0:?} is no repository's name: lower-case letters and digits, with `.`, `_`, `-` and `/` between them")]
    Repository(String),
    #[error("the URL has a tag or a digest; put it into ref")]
    Tag,
}

impl Place {
    /// Parses a place with or without a tag.
    pub fn parse(url: &str) -> Result<Self, PlaceError> {
        let rest = url.strip_prefix("oci://").ok_or(PlaceError::Scheme)?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.contains('@') {
            return Err(PlaceError::Userinfo);
        }
        let (path, tag) = match path.rsplit_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (path, None),
        };
        Self::new(host, path.trim_end_matches('/'), tag)
    }

    /// Parses a place in a source's spec, where the tag has a field of its own.
    pub fn parse_untagged(url: &str) -> Result<Self, PlaceError> {
        let path = url.strip_prefix("oci://").ok_or(PlaceError::Scheme)?;
        if path.split_once('/').is_some_and(|(_, path)| path.contains([':', '@'])) {
            return Err(PlaceError::Tag);
        }
        Self::parse(url)
    }

    /// The repository of a chart below one of a registry.
    pub fn of_chart(url: &str, chart: &str) -> Result<Self, PlaceError> {
        Self::parse_untagged(&format!("{}/{chart}", url.trim_end_matches('/')))
    }

    fn new(host: &str, path: &str, tag: Option<&str>) -> Result<Self, PlaceError> {
        let known = Url::parse(&format!("https://{host}")).ok();
        let known = known
            .filter(|url| !host.is_empty() && url.path() == "/" && url.query().is_none() && url.username().is_empty());
        if known.is_none() || host.contains(['?', '#', '\\']) {
            return Err(PlaceError::Host(escape(host.as_bytes())));
        }
        let host = match host.to_ascii_lowercase() {
            host if host == "index.docker.io" || host == DOCKER.1 => DOCKER.0.to_owned(),
            host => host,
        };
        let path = match path {
            path if host == DOCKER.0 && !path.contains('/') => format!("library/{path}"),
            path => path.to_owned(),
        };
        let tag = tag.map(str::to_owned);
        if !is_repository(&path) || tag.as_deref().is_some_and(|tag| !super::is_tag(tag)) {
            return Err(PlaceError::Repository(escape(path.as_bytes())));
        }
        Ok(Self {
            host,
            repository: path,
            tag,
        })
    }

    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// `HOST[:PORT]/PATH`, as in docker's configuration.
    pub fn name(&self) -> String {
        format!("{}/{}", self.host, self.repository)
    }

    /// URL of its registry.
    pub fn base(&self, insecure: bool) -> Url {
        let host = if self.host == DOCKER.0 { DOCKER.1 } else { &self.host };
        let scheme = if insecure { "http" } else { "https" };
        Url::parse(&format!("{scheme}://{host}/")).unwrap_or_else(|_| unreachable!("its host was parsed as one"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "oci://{}/{}", self.host, self.repository)
    }
}

/// The specification's pattern: names of lower-case letters and digits, with single `.`, `_`, `__` or dashes inside.
fn is_repository(path: &str) -> bool {
    let is_name = |name: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let separators = name.split(plain).filter(|part| !part.is_empty());
        name.starts_with(plain)
            && name.ends_with(plain)
            && separators
                .into_iter()
                .all(|part| matches!(part, "." | "_" | "__") || part.bytes().all(|b| b == b'-'))
    };
    path.len() <= 255 && path.split('/').all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_hosts_and_paths() {
        let place = Place::parse("oci://Registry.example.com:5000/team-a/web__x.y:1.2.3").unwrap();
        assert_eq!(
            (place.name().as_str(), place.tag()),
            ("registry.example.com:5000/team-a/web__x.y", Some("1.2.3"))
        );
        assert_eq!(place.base(false).as_str(), "https://registry.example.com:5000/");
        assert_eq!(place.base(true).as_str(), "http://registry.example.com:5000/");
        let docker = Place::parse("oci://docker.io/nginx").unwrap();
        assert_eq!(
            (docker.name().as_str(), docker.base(false).as_str()),
            ("docker.io/library/nginx", "https://registry-1.docker.io/")
        );
        assert_eq!(
            Place::parse("oci://[::1]:5000/a").unwrap().base(false).as_str(),
            "https://[::1]:5000/"
        );
        assert_eq!(
            Place::of_chart("oci://h/charts/", "web").unwrap().to_string(),
            "oci://h/charts/web"
        );
        for url in [
            "https://h/a",
            "oci://",
            "oci:///a",
            "oci://h",
            "oci://h/",
            "oci://u:p@h/a",
            "oci://h/A",
            "oci://h/a//b",
            "oci://h/../a",
            "oci://h/a b",
            "oci://h/-a",
            "oci://h/a-",
            "oci://h/a._b",
            "oci://h:x/a",
            "oci://h/a?x",
            "oci://h?x/a",
            "oci://h/a:b:c",
            "oci://h/a@sha256:x",
            "oci://h/a\n",
        ] {
            assert!(Place::parse(url).is_err(), "{url}");
        }
        assert_eq!(Place::parse_untagged("oci://h:5000/a:1"), Err(PlaceError::Tag));
        assert!(Place::parse_untagged("oci://h:5000/a").is_ok());
        assert!(Place::of_chart("oci://h/charts", "../x").is_err());
    }
}
