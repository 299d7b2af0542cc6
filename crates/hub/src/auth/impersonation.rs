//! Acting as another user, as with `kubectl --as`.
//!
//! After `k8s.io/apiserver/pkg/endpoints/filters/impersonation`: each part of the wanted user (name, groups, uid, extra
//! values) needs the verb `impersonate` on that part. Kubernetes 1.36 also knows the narrower `impersonate:user-info`
//! and the like; a right to those grants nothing here.

use std::collections::BTreeMap;

use farwater_fleet::access::{AUTHENTICATED_GROUP, Attributes, Decision, SERVICE_ACCOUNT_PREFIX, User};
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use super::{Access, AccessError};

const PREFIX: &str = "impersonate-";
const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATION_GROUP: &str = "authentication.k8s.io";
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED_GROUP: &str = "system:unauthenticated";

/// Why a request may not be sent as another user.
#[derive(Debug)]
pub enum ImpersonationError {
    /// The headers are invalid; the text says why.
    Headers(String),
    /// The sender lacks a right on one part of the wanted user.
    Denied(Box<Attributes>, Decision),
    Access(AccessError),
}

/// The user in the headers, before defaults are added.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl Access {
    /// The user that a request acts as instead of its sender. None: it asks for no impersonation.
    pub async fn impersonate(&self, sender: &User, headers: &HeaderMap) -> Result<Option<User>, ImpersonationError> {
        let Some(wanted) = Wanted::parse(headers).map_err(ImpersonationError::Headers)? else {
            return Ok(None);
        };
        for part in wanted.parts() {
            let decision = self
                .authorize(sender, &part)
                .await
                .map_err(ImpersonationError::Access)?;
            if !decision.is_allowed() {
                return Err(ImpersonationError::Denied(Box::new(part), decision));
            }
        }
        Ok(Some(wanted.into_user()))
    }
}

/// The name of the wanted user, for the log.
pub fn wanted_name(headers: &HeaderMap) -> Option<&str> {
    headers.get("impersonate-user").and_then(|name| name.to_str().ok())
}

impl Wanted {
    fn parse(headers: &HeaderMap) -> Result<Option<Self>, String> {
        let mut wanted = Self::default();
        for (name, value) in headers.iter().filter(|(name, _)| name.as_str().starts_with(PREFIX)) {
            wanted.take_header(name, text(name, value)?)?;
        }
        if !wanted.name.is_empty() {
            return Ok(Some(wanted));
        }
        if wanted == Self::default() {
            return Ok(None);
        }
        Err("groups, a uid or extra values are to be impersonated without a user: set Impersonate-User too".to_owned())
    }

    fn take_header(&mut self, name: &HeaderName, value: String) -> Result<(), String> {
        let once = |part: &mut String, value| {
            // A proxy before the hub may have checked the other one.
            if !part.is_empty() {
                return Err(format!("the header {name} was sent twice"));
            }
            *part = value;
            Ok(())
        };
        match name.as_str() {
            "impersonate-user" => once(&mut self.name, value)?,
            "impersonate-uid" => once(&mut self.uid, value)?,
            "impersonate-group" => self.groups.push(value),
            other => match other.strip_prefix(EXTRA) {
                Some(key) => {
                    let decoded = percent_decode_str(key).decode_utf8();
                    let key = decoded.map_or_else(|_| key.to_owned(), |key| key.into_owned());
                    self.extra.entry(key).or_default().push(value);
                }
                None => return Err(format!("the header {name} is not known; it can't be ignored")),
            },
        }
        Ok(())
    }

    /// The rights that the sender needs, one per part.
    fn parts(&self) -> Vec<Attributes> {
        let part = |group: &str, resource: &str, name: &str| Attributes {
            verb: "impersonate".to_owned(),
            group: group.to_owned(),
            version: if group.is_empty() {
                String::new()
            } else {
                "v1".to_owned()
            },
            resource: resource.to_owned(),
            name: name.to_owned(),
            ..Attributes::default()
        };
        let user = match self.account() {
            Some((namespace, name)) => Attributes {
                namespace: namespace.to_owned(),
                ..part("", "serviceaccounts", name)
            },
            None => part("", "users", &self.name),
        };
        let mut parts = vec![user];
        parts.extend(self.groups.iter().map(|group| part("", "groups", group)));
        for (key, values) in &self.extra {
            let extra = |value: &String| Attributes {
                subresource: key.clone(),
                ..part(AUTHENTICATION_GROUP, "userextras", value)
            };
            parts.extend(values.iter().map(extra));
        }
        if !self.uid.is_empty() {
            parts.push(part(AUTHENTICATION_GROUP, "uids", &self.uid));
        }
        parts
    }

    /// Namespace and name, if this is the name of a service account.
    fn account(&self) -> Option<(&str, &str)> {
        let (namespace, name) = self.name.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
        let is_name = |text: &str| {
            !text.is_empty()
                && text
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
        };
        (is_name(namespace) && is_name(name)).then_some((namespace, name))
    }

    fn into_user(self) -> User {
        let mut groups = self.groups.clone();
        if groups.is_empty()
            && let Some((namespace, name)) = self.account()
        {
            groups = User::service_account(namespace, name, "").groups;
        }
        let own = if self.name == ANONYMOUS {
            UNAUTHENTICATED_GROUP
        } else {
            AUTHENTICATED_GROUP
        };
        if !groups
            .iter()
            .any(|group| group == own || group == UNAUTHENTICATED_GROUP)
        {
            groups.push(own.to_owned());
        }
        User {
            name: self.name,
            uid: self.uid,
            groups,
            extra: self.extra,
        }
    }
}

fn text(name: &HeaderName, value: &HeaderValue) -> Result<String, String> {
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| format!("the header {name} is not UTF-8"))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(headers: &[(&'static str, &str)]) -> Result<Option<Wanted>, String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        Wanted::parse(&map)
    }

    fn user(headers: &[(&'static str, &str)]) -> User {
        parse(headers).unwrap().unwrap().into_user()
    }

    #[test]
    fn whoever_is_impersonated_has_the_groups_that_kubernetes_gives() {
        assert_eq!(user(&[("impersonate-user", "a")]).groups, ["system:authenticated"]);
        let groups = [
            ("impersonate-user", "a"),
            ("impersonate-group", "x"),
            ("impersonate-group", "y"),
        ];
        assert_eq!(user(&groups).groups, ["x", "y", "system:authenticated"]);
        let account = "system:serviceaccount:team-a:ci";
        assert_eq!(
            user(&[("impersonate-user", account)]).groups,
            [
                "system:serviceaccounts",
                "system:serviceaccounts:team-a",
                "system:authenticated"
            ]
        );
        assert_eq!(
            user(&[("impersonate-user", account), ("impersonate-group", "x")]).groups,
            ["x", "system:authenticated"]
        );
        assert_eq!(user(&[("impersonate-user", ANONYMOUS)]).groups, [UNAUTHENTICATED_GROUP]);
        let unauthenticated = [("impersonate-user", "a"), ("impersonate-group", UNAUTHENTICATED_GROUP)];
        assert_eq!(user(&unauthenticated).groups, [UNAUTHENTICATED_GROUP]);
    }

    #[test]
    fn every_part_needs_a_right_of_its_own() {
        let wanted = parse(&[
            ("impersonate-user", "a"),
            ("impersonate-group", "system:masters"),
            ("impersonate-uid", "7"),
            ("impersonate-extra-example.com%2fscope", "dev"),
        ]);
        let parts = wanted.unwrap().unwrap().parts();
        let shown: Vec<_> = parts
            .iter()
            .map(|p| format!("{} {} {}", p.group, p.combined_resource(), p.name))
            .collect();
        assert_eq!(
            shown,
            [
                " users a",
                " groups system:masters",
                "authentication.k8s.io userextras/example.com/scope dev",
                "authentication.k8s.io uids 7",
            ]
        );
        let account = parse(&[("impersonate-user", "system:serviceaccount:ns:x")])
            .unwrap()
            .unwrap()
            .parts();
        assert_eq!(
            (&*account[0].resource, &*account[0].namespace, &*account[0].name),
            ("serviceaccounts", "ns", "x")
        );
    }

    #[test]
    fn headers_that_make_no_sense_are_refused() {
        assert_eq!(parse(&[("accept", "x")]), Ok(None));
        for wrong in [
            &[("impersonate-group", "x")][..],
            &[("impersonate-user", "a"), ("impersonate-user", "b")],
            &[("impersonate-user", "a"), ("impersonate-foo", "b")],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
