//! Remote bases: folders of other Git repositories, and files on web servers, that a kustomization names by address.
//!
//! Kustomize fetches them when it builds. Here each has a place that follows from its address alone, so the hub, which
//! fetches it, and the renderer find it without communicating. Addresses are parsed like kustomize parses them
//! (`api/internal/git/repospec.go`).

use std::fmt;

use farwater_api::{
    Digest,
    service_sources::{write_file_link, write_git_link},
};

use crate::path::RelPath;

/// The folder that holds them among a service's files.
pub const BASES: &str = ".farwater-bases";

const SCHEMES: [&str; 4] = ["https://", "http://", "ssh://", "file://"];

/// A folder of a repository at a branch, a tag or a commit; or a single file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Base {
    /// Address for git; or the URL of the file.
    pub address: String,
    /// Empty: the default branch.
    pub reference: String,
    /// The kustomization's folder in the repository; or the file's name.
    pub path: RelPath,
    pub is_file: bool,
    /// The name of its place in [`BASES`].
    name: String,
}

impl Base {
    /// None: the text is neither a repository nor a file.
    pub fn parse(text: &str) -> Option<Self> {
        Self::parse_repository(text).or_else(|| Self::parse_file(text))
    }

    fn parse_repository(text: &str) -> Option<Self> {
        let (address, query) = text.split_once('?').unwrap_or((text, ""));
        let reference = reference_of(query)?;
        let host = Host::parse(address)?;
        let (path, folder) = split_path(host.rest)?;
        if !host.is_scp && is_file(path, folder) {
            return None;
        }
        let within = RelPath::parse_folder(folder.trim_matches('/')).ok()?;
        let shown = path.trim_matches('/');
        let shown = shown.strip_suffix(".git").unwrap_or(shown).replace('/', "~");
        // No reference contains a `~`, and a name contains no slash.
        let at = if reference.is_empty() {
            "HEAD".to_owned()
        } else {
            reference.replace('/', "~")
        };
        let name = format!("{}~{shown}@{at}", host.name);
        let is_whole = !shown.is_empty() && RelPath::root().join_name(name.as_bytes()).is_ok();
        let address = format!("{}{path}", host.text);
        is_whole.then_some(Self {
            address,
            reference,
            path: within,
            is_file: false,
            name,
        })
    }

    fn parse_file(text: &str) -> Option<Self> {
        let host = Host::parse(text)?;
        let is_web = ["https://", "http://"]
            .iter()
            .any(|scheme| without_prefix(text, scheme).is_some());
        let is_plain = is_web && !host.text.contains('@') && !text.contains('#');
        let end = host.rest.find('?').unwrap_or(host.rest.len());
        let (_, file) = host
            .rest
            .get(..end)?
            .rsplit_once('/')
            .unwrap_or(("", host.rest.get(..end)?));
        let path = RelPath::parse(file).ok().filter(|_| is_plain && is_file(file, ""))?;
        let name = format!("{}~{}", host.name, Digest::of(text).to_hex().get(..16)?);
        RelPath::root().join_name(name.as_bytes()).ok()?;
        Some(Self {
            address: text.to_owned(),
            reference: String::new(),
            path,
            is_file: true,
            name,
        })
    }

    /// Where the repository is mounted among a service's files, or the folder of the file.
    pub fn mount(&self) -> RelPath {
        let bases = RelPath::root().join_name(BASES.as_bytes()).unwrap_or_default();
        bases.join_name(self.name.as_bytes()).unwrap_or(bases)
    }

    /// Where the kustomization or the file is. None: that is too deep.
    pub fn place(&self) -> Option<RelPath> {
        self.mount().join_clean(self.path.as_str()).ok()
    }

    /// Address and reference as one text.
    pub fn link(&self) -> String {
        match self.is_file {
            true => write_file_link(&self.address),
            false => write_git_link(&self.address, &self.reference),
        }
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        if !self.reference.is_empty() {
            write!(f, " at {}", self.reference)?;
        }
        Ok(())
    }
}

/// The reference in a query: `ref`, otherwise the older `version`.
fn reference_of(query: &str) -> Option<String> {
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .find(|(key, value)| *key == name && !value.is_empty())
            .map(|(_, value)| value)
    };
    let text = value("ref").or_else(|| value("version")).unwrap_or_default();
    // Escaped references are rare, and are refused.
    let is_plain = !text.contains(|c: char| c == '%' || c == '+' || c == '~' || c.is_whitespace() || c.is_control());
    is_plain.then(|| text.to_owned())
}

/// The part of an address that names the repository's host.
struct Host<'a> {
    /// With prefix and suffix as git needs them.
    text: String,
    /// Form for the name of a folder.
    name: String,
    rest: &'a str,
    /// `git@host:path`
    is_scp: bool,
}

impl<'a> Host<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let text = without_prefix(text, "git::").unwrap_or(text);
        let found = SCHEMES
            .iter()
            .find_map(|scheme| Some((*scheme, without_prefix(text, scheme)?)));
        let (scheme, rest) = found.unwrap_or(("", text));
        if scheme == "file://" {
            return None;
        }

        let (user, rest) = rest
            .split_once('@')
            .filter(|(user, _)| is_user(user))
            .unwrap_or(("", rest));
        let is_github = ["github.com/", "github.com:"]
            .iter()
            .any(|host| without_prefix(rest, host).is_some());
        let may_be_scp = scheme.is_empty() && (!user.is_empty() || is_github);
        if scheme.is_empty() && !may_be_scp {
            return None;
        }
        let end = rest.find(|c: char| c == '/' || (c == ':' && may_be_scp))?;
        let (host, separator, rest) = (rest.get(..end)?, rest.get(end..=end)?, rest.get(end + 1..)?);
        if host.is_empty() {
            return None;
        }

        let lower = host.to_ascii_lowercase();
        let is_ssh = scheme == "ssh://" || !user.is_empty();
        let user = if user.is_empty() {
            String::new()
        } else {
            format!("{user}@")
        };
        if is_github {
            return Some(Self::of_github(&user, &lower, is_ssh, rest));
        }

        let (text, is_scp) = match scheme {
            "" => (format!("{user}{host}{separator}"), true),
            scheme => (format!("{scheme}{user}{host}/"), false),
        };
        // Another protocol may lead to another server.
        let protocol = match scheme {
            "https://" if user.is_empty() => "",
            "http://" => "http-",
            "https://" => "https-",
            _ => "ssh-",
        };
        let name = format!("{protocol}{user}{}", lower.replace(':', "-"));
        Some(Self {
            text,
            name,
            rest,
            is_scp,
        })
    }
    /// Kustomize has two forms of GitHub addresses, however they are written.
    fn of_github(user: &str, host: &str, is_ssh: bool, rest: &'a str) -> Self {
        match is_ssh {
            true => Self {
                text: format!("{user}github.com:"),
                name: format!("ssh-{user}{host}"),
                rest,
                is_scp: true,
            },
            false => Self {
                text: "https://github.com/".to_owned(),
                name: host.to_owned(),
                rest,
                is_scp: false,
            },
        }
    }
}

fn without_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let begin = text.get(..prefix.len())?;
    begin
        .eq_ignore_ascii_case(prefix)
        .then(|| text.get(prefix.len()..))
        .flatten()
}

fn is_user(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// The repository's path, and the folder in it.
fn split_path(text: &str) -> Option<(&str, &str)> {
    let (path, folder) = if let Some(at) = text.find("_git/") {
        let begin = at + "_git/".len();
        let end = text.get(begin..)?.find('/').map_or(text.len(), |length| begin + length);
        (text.get(..end)?, text.get(end..)?)
    } else if let Some((path, folder)) = text.split_once("//") {
        (path, folder)
    } else if let Some(at) = text.find(".git") {
        text.split_at_checked(at + ".git".len())?
    } else {
        let mut slashes = text.match_indices('/').map(|(at, _)| at);
        slashes.next()?;
        text.split_at_checked(slashes.next().unwrap_or(text.len()))?
    };
    (!path.trim_matches('/').is_empty()).then_some((path, folder))
}

/// Whether it is a file. Kustomize tries to read a file first and clones otherwise; here the name decides.
fn is_file(path: &str, folder: &str) -> bool {
    let last = if folder.trim_matches('/').is_empty() {
        path
    } else {
        folder
    };
    [".yaml", ".yml", ".json"].iter().any(|end| last.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let found = Base::parse(text).map(|base| {
            let (mount, place) = (base.mount(), base.place().unwrap());
            format!(
                "{} {:?} {} {mount}",
                base.address,
                base.reference,
                place.strip(&mount).unwrap_or_default()
            )
        });
        assert_eq!(found.as_deref().unwrap_or("none"), expected, "{text}");
    }

    #[test]
    fn addresses_are_read_as_kustomize_reads_them() {
        let at = |name: &str| format!("{BASES}/{name}");
        check(
            "https://github.com/org/repo//deploy/base?ref=v1.2",
            &format!(
                "https://github.com/org/repo \"v1.2\" deploy/base {}",
                at("github.com~org~repo@v1.2")
            ),
        );
        check(
            "github.com/org/repo/deploy?ref=main",
            &format!(
                "https://github.com/org/repo \"main\" deploy {}",
                at("github.com~org~repo@main")
            ),
        );
        check(
            "GitHub.com/org/repo",
            &format!("https://github.com/org/repo \"\"  {}", at("github.com~org~repo@HEAD")),
        );
        check(
            "git::https://gitlab.example.com:8443/group/sub/repo.git/x/y?version=release/1&timeout=90s",
            &format!(
                "https://gitlab.example.com:8443/group/sub/repo.git \"release/1\" x/y {}",
                at("gitlab.example.com-8443~group~sub~repo@release~1")
            ),
        );
        check(
            "git@github.com:org/repo.git//x?ref=v1",
            &format!(
                "git@github.com:org/repo.git \"v1\" x {}",
                at("ssh-git@github.com~org~repo@v1")
            ),
        );
        check(
            "https://git@github.com/org/repo//x",
            &format!(
                "git@github.com:org/repo \"\" x {}",
                at("ssh-git@github.com~org~repo@HEAD")
            ),
        );
        check(
            "ssh://git@h.example.com/org/repo//x",
            &format!(
                "ssh://git@h.example.com/org/repo \"\" x {}",
                at("ssh-git@h.example.com~org~repo@HEAD")
            ),
        );
        check(
            "https://me@dev.azure.com/org/project/_git/repo/x?ref=v1",
            &format!(
                "https://me@dev.azure.com/org/project/_git/repo \"v1\" x {}",
                at("https-me@dev.azure.com~org~project~_git~repo@v1")
            ),
        );
        check(
            "http://127.0.0.1:8080/base.git//deploy?ref=v1",
            &format!(
                "http://127.0.0.1:8080/base.git \"v1\" deploy {}",
                at("http-127.0.0.1-8080~base@v1")
            ),
        );
    }

    #[test]
    fn what_is_no_repository_is_none() {
        for text in [
            "../base",
            "base",
            "/abs/base",
            "file:///srv/repo",
            "https://example.com",
            "https://example.com/x",
            "https://user@example.com/a.yaml",
            "https://example.com/a.yaml#x",
            "ssh://h.example.com/a.yaml",
            "https://github.com/org/repo//../other?ref=v1",
            "https://github.com/org/repo//x?ref=a%2Fb",
            "https://github.com/org/repo?ref=a~1",
            "example.com/org/repo",
            "ftp://example.com/org/repo",
        ] {
            check(text, "none");
        }
        check(&format!("https://github.com/org/{}", "x".repeat(300)), "none");
    }

    #[test]
    fn files_lie_under_their_own_names() {
        for text in [
            "https://raw.githubusercontent.com/org/repo/main/a.yaml",
            "https://github.com/org/repo/releases/download/v1/install.yaml",
            "http://127.0.0.1:8080/a.json?x=y",
        ] {
            let base = Base::parse(text).unwrap();
            assert!(base.is_file && base.link() == format!("file+{text}"), "{base:?}");
            let place = base.place().unwrap();
            assert_eq!(place.parent(), Some(base.mount()), "{place}");
            assert!(
                place.as_str().ends_with("/a.yaml")
                    || place.as_str().ends_with("l.yaml")
                    || place.as_str().ends_with("/a.json")
            );
        }
        let mount = |text: &str| Base::parse(text).unwrap().mount();
        assert_ne!(mount("https://h/a/x.yaml"), mount("https://h/b/x.yaml"));
    }

    #[test]
    fn bases_of_one_repository_have_one_link() {
        let link = |text: &str| Base::parse(text).unwrap().link();
        let one = link("https://github.com/org/repo//deploy?ref=v1");
        assert_eq!(
            (one.as_str(), link("github.com/org/repo/other?version=v1")),
            ("git+https://github.com/org/repo?ref=v1", one.clone())
        );
        assert_eq!(link("github.com/org/repo"), "git+https://github.com/org/repo?ref=");
    }
}
