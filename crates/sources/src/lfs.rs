//! Large files: pointers in Git, objects elsewhere (<https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md>).
//!
//! An object is fetched when a bundle needs it, and stored beside the mirror. Its SHA-256 must be the one in the
//! pointer; it is checked on arrival and at each read.

mod batch;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use farwater_bundle::{ObjectId, TreeError, path::escape};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{HeaderMap, StatusCode, header};
use sha2::{Digest as _, Sha256};
use url::Url;
use zeroize::Zeroizing;

use crate::{
    access::Access,
    address::Scheme,
    fetch_error::{FetchError, FetchReason},
    git::{Git, GitError, GitReason, Problem},
    remote::Remote,
    session::Session,
    ssh,
    web::{Answer, Ask, Route, Sign, Site, Step},
};
use batch::{Action, BATCH, MAX_ANSWER, ask_batch, headers_of, parse_href};

/// Most bytes of a pointer.
pub(crate) const MAX_POINTER: u64 = 1024;
const FIRST_LINE: &str = "version https://git-lfs.github.com/spec/v1\n";
/// Folder below a source's mirror.
const FOLDER: &str = "farwater-large";
const TEMPORARY: &str = "tmp-";
/// Most bytes of objects on disk for one source. The least recently used are deleted first.
const MAX_KEPT: u64 = 1 << 30;
/// Objects fetched at the same time.
const AT_ONCE: usize = 4;
/// The object of a pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargeFile {
    /// SHA-256, in hex.
    oid: String,
    pub size: u64,
}

impl LargeFile {
    /// None: the file is no pointer. Err: it is one that can't be followed.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Result<Self, String>> {
        let text = std::str::from_utf8(bytes).ok()?.strip_prefix(FIRST_LINE)?;
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        let is_oid = |oid: &&str| oid.len() == 64 && oid.bytes().all(|b| b"0123456789abcdef".contains(&b));
        let oid = value("oid").and_then(|oid| oid.strip_prefix("sha256:")).filter(is_oid);
        let size = value("size").and_then(|size| size.parse().ok());
        let (Some(oid), Some(size)) = (oid, size) else {
            return Some(Err(
                "begins like a pointer to a large file and lacks its oid or size".to_owned()
            ));
        };
        if text.lines().any(|line| line.starts_with("ext-")) {
            return Some(Err(
                "is a large file that an extension of git-lfs has changed; none is run here".to_owned(),
            ));
        }
        Some(Ok(Self {
            oid: oid.to_owned(),
            size,
        }))
    }
}

/// Large objects on disk.
pub struct LargeFiles(PathBuf);

impl LargeFiles {
    pub fn below(mirror: &Path) -> Self {
        Self(mirror.join(FOLDER))
    }

    fn path(&self, file: &LargeFile) -> PathBuf {
        self.0.join(&file.oid)
    }

    /// The missing objects by repository, each once.
    pub fn missing(&self, wanted: Vec<(String, LargeFile)>) -> Vec<(String, Vec<LargeFile>)> {
        let mut missing: BTreeMap<String, BTreeMap<String, LargeFile>> = BTreeMap::new();
        for (url, file) in wanted {
            if fs::metadata(self.path(&file)).is_ok_and(|found| found.len() == file.size) {
                // Marks it as used, so that it is not deleted.
                let _ = fs::File::open(self.path(&file)).and_then(|file| file.set_modified(SystemTime::now()));
            } else {
                missing.entry(url).or_default().insert(file.oid.clone(), file);
            }
        }
        missing
            .into_iter()
            .map(|(url, files)| (url, files.into_values().collect()))
            .collect()
    }

    /// `id`: id of the pointer itself.
    pub(crate) fn read(&self, id: &ObjectId, file: &LargeFile, limit: u64) -> Result<Vec<u8>, TreeError> {
        let unreadable = |source: Box<dyn std::error::Error + Send + Sync>| TreeError::Unreadable { id: *id, source };
        if file.size > limit {
            return Err(TreeError::TooLarge {
                id: *id,
                size: file.size,
                limit,
            });
        }
        let bytes = match fs::read(self.path(file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(unreadable(
                    format!("large file {} is not on this node", file.oid).into(),
                ));
            }
            bytes => bytes.map_err(|error| unreadable(error.into()))?,
        };
        if hex::encode(Sha256::digest(&bytes)) != file.oid {
            let _ = fs::remove_file(self.path(file));
            return Err(unreadable(
                format!("large file {} was damaged on this node", file.oid).into(),
            ));
        }
        Ok(bytes)
    }

    /// A temporary file, which gets its name once its content is verified.
    fn begin(&self) -> io::Result<tempfile::NamedTempFile> {
        fs::create_dir_all(&self.0)?;
        tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&self.0)
    }

    /// Deletes the oldest objects over the limit, and the remains of a killed process.
    fn trim(&self) -> io::Result<()> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            found.push((metadata.modified()?, metadata.len(), entry.path()));
        }
        found.sort_unstable();
        let mut total: u64 = found.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, path) in found {
            if total <= MAX_KEPT {
                break;
            }
            fs::remove_file(path)?;
            total = total.saturating_sub(bytes);
        }
        Ok(())
    }
}

/// URL of the batch API, and the headers for it.
struct Endpoint<'s> {
    session: &'s Session<'s>,
    url: Url,
    scheme: Scheme,
    headers: HeaderMap,
    /// Authorization of the repository itself, if both have one origin.
    authorization: Option<Zeroizing<String>>,
}

const WHAT: &str = "fetch large files of";

impl Git {
    /// Fetches large files of a repository into a source's store. `timeout` limits everything.
    pub async fn fetch_large_files(
        &self,
        remote: &Remote,
        files: &[LargeFile],
        mirror: &Path,
        timeout: Duration,
    ) -> Result<(), GitError> {
        let store = LargeFiles::below(mirror);
        let fetch = async {
            let session = self.open(remote, timeout).await?;
            let result = self.fetch_batches(&session, files, &store, timeout).await;
            let result = result.map_err(|problem| {
                let evidence = session.redact(&problem.evidence);
                Problem { evidence, ..problem }.at(WHAT, remote)
            });
            if let Err(error) = &result {
                self.note_refusal(&session, error);
            }
            result
        };
        let late = |_| Problem::new(GitReason::Timeout(timeout.as_secs()), "").at(WHAT, remote);
        tokio::time::timeout(timeout, fetch).await.map_err(late)??;
        let trimmed = crate::git::spawn(move || store.trim()).await;
        if let Err(error) = trimmed {
            tracing::warn!(url = remote.url(), %error, "old large files were not removed");
        }
        Ok(())
    }

    async fn fetch_batches(
        &self,
        session: &Session<'_>,
        files: &[LargeFile],
        store: &LargeFiles,
        timeout: Duration,
    ) -> Result<(), Problem> {
        let endpoint = self.find_endpoint(session).await?;
        let (remote, step) = (session.remote, Step::new(WHAT, timeout));
        // For a repository reached by ssh, the other host counts as a link.
        let host = remote.address().bracketed();
        let links = match &session.links {
            None if endpoint.url.host_str() != Some(&host) => Some(self.web().links_of(&host).await),
            links => links.clone(),
        };
        let route = Route {
            links,
            proxy: remote.proxy(),
        };
        let site = self
            .web()
            .make_site(&endpoint.url, Access::trusting(remote.ca()), route)?;
        for batch in files.chunks(BATCH) {
            let actions = ask_batch(&site, step, &endpoint, batch).await?;
            let (site, endpoint) = (&site, &endpoint);
            let downloads: Vec<_> = actions
                .into_iter()
                .map(|(file, action)| async move { download(site, step, endpoint, &file, &action, store).await })
                .collect();
            stream::iter(downloads)
                .buffer_unordered(AT_ONCE)
                .try_collect::<()>()
                .await?;
        }
        Ok(())
    }

    async fn find_endpoint<'s>(&self, session: &'s Session<'s>) -> Result<Endpoint<'s>, Problem> {
        let address = session.remote.address();
        if address.scheme == Scheme::Ssh {
            return self.ask_for_endpoint(session).await;
        }
        let base = address.as_str().trim_end_matches('/');
        let suffix = if base.ends_with(".git") { "" } else { ".git" };
        let url = Url::parse(&format!("{base}{suffix}/info/lfs"));
        let url = url.map_err(|error| Problem::new(GitReason::Failed, error.to_string()))?;
        let (headers, authorization) = (HeaderMap::new(), session.authorization.clone());
        Ok(Endpoint {
            session,
            url,
            scheme: address.scheme,
            headers,
            authorization,
        })
    }

    /// For ssh, a remote command returns the URL and headers.
    async fn ask_for_endpoint<'s>(&self, session: &'s Session<'s>) -> Result<Endpoint<'s>, Problem> {
        let command = format!(
            "git-lfs-authenticate {} download",
            ssh::quote(&session.remote.address().ssh_path())
        );
        let output = self.ask_over_ssh(session, &command, MAX_ANSWER as u64).await?;
        let bad = |why: &str| Problem::new(GitReason::ServerError, format!("git-lfs-authenticate answered {why}"));
        let action: Action = serde_json::from_slice(&output).map_err(|_| bad("no JSON with a href"))?;
        // A loopback address for ssh may have its other server there too.
        let is_near = session
            .remote
            .address()
            .ip()
            .is_some_and(|address| address.is_loopback());
        let scheme = if is_near { Scheme::Http } else { Scheme::Https };
        let url = parse_href(&action.href, scheme).ok_or_else(|| bad("no https address"))?;
        Ok(Endpoint {
            session,
            url,
            scheme,
            headers: headers_of(&action)?,
            authorization: None,
        })
    }
}

impl Endpoint<'_> {
    fn ask(&self, mut ask: Ask, headers: HeaderMap) -> Ask {
        ask.headers.extend(headers);
        let sign = self
            .authorization
            .as_ref()
            .filter(|_| !ask.headers.contains_key(header::AUTHORIZATION));
        ask.sign(sign.map_or(Sign::Nothing, |header| Sign::Header(header.clone())))
    }

    fn refusal(&self, answer: &Answer) -> Problem {
        answer
            .refusal(self.authorization.is_some() || !self.headers.is_empty())
            .into()
    }

    /// A server's message for a status: short, and without headers that were sent there, which it may repeat.
    fn evidence(&self, text: &str) -> String {
        let values = self.headers.values().filter_map(|value| value.to_str().ok());
        // The whole value, and the part after the scheme.
        let secrets = values.flat_map(|value| [Some(value), value.split_once(' ').map(|(_, rest)| rest)]);
        let secrets = secrets.flatten().filter(|secret| !secret.is_empty());
        let text = secrets.fold(self.session.redact(text), |text, secret| text.replace(secret, "***"));
        // Escape and cut last, because both could hide a secret from the redaction.
        escape(text.as_bytes())
    }
}

async fn download(
    site: &Site,
    step: Step,
    endpoint: &Endpoint<'_>,
    file: &LargeFile,
    action: &Action,
    store: &LargeFiles,
) -> Result<(), Problem> {
    let bad = |why: &str| Problem::new(GitReason::ServerError, format!("{}: {why}", file.oid));
    let unsafe_address = || bad("its address is no https address");
    let url = parse_href(&action.href, endpoint.scheme).ok_or_else(unsafe_address)?;
    let mut answer = site
        .send_unredirected(step, endpoint.ask(Ask::get(url.clone()), headers_of(action)?))
        .await?;
    if let Some(to) = answer
        .header(header::LOCATION)
        .filter(|_| answer.status.is_redirection())
    {
        let next = url
            .join(to)
            .ok()
            .and_then(|next| parse_href(next.as_str(), endpoint.scheme));
        // Headers for one address must not be sent to another.
        answer = site
            .send(step, Ask::get(next.ok_or_else(unsafe_address)?).sign(Sign::Nothing))
            .await?;
    }
    if answer.status != StatusCode::OK {
        return Err(endpoint.refusal(&answer));
    }
    let disk = |error: io::Error| Problem::new(GitReason::Disk, error.to_string());
    let mut temporary = store.begin().map_err(disk)?;
    let digest = answer
        .save(temporary.as_file_mut(), file.size)
        .await
        .map_err(|error: FetchError| match error.reason {
            FetchReason::TooLarge { .. } => bad("the server sends more than the pointer says"),
            _ => error.into(),
        })?;
    let bytes = temporary.as_file().metadata().map_err(disk)?.len();
    if bytes != file.size || digest.to_hex() != file.oid {
        return Err(bad("the server sent something else than the pointer says"));
    }
    temporary.persist(store.path(file)).map_err(|error| disk(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{
        batch::{Action, headers_of, parse_href, read_batch},
        *,
    };
    use crate::secret::Secret;

    #[test]
    fn pointers_are_read_strictly() {
        let oid = "4d".repeat(32);
        let check = |text: &str, expected: Option<Result<u64, ()>>| {
            let parsed = LargeFile::parse(text.as_bytes());
            assert_eq!(
                parsed.map(|file| file.map(|file| file.size).map_err(drop)),
                expected,
                "{text}"
            );
        };
        check(&format!("{FIRST_LINE}oid sha256:{oid}\nsize 12\n"), Some(Ok(12)));
        check(
            &format!("{FIRST_LINE}ext-0-foo sha256:{oid}\noid sha256:{oid}\nsize 12\n"),
            Some(Err(())),
        );
        check(
            &format!("{FIRST_LINE}oid sha256:../../../etc\nsize 12\n"),
            Some(Err(())),
        );
        check(&format!("{FIRST_LINE}oid sha256:{oid}\nsize -1\n"), Some(Err(())));
        check(&format!("{FIRST_LINE}oid md5:{oid}\nsize 1\n"), Some(Err(())));
        check("kind: ConfigMap\n", None);
        check("", None);
    }

    #[test]
    fn addresses_of_objects_are_those_of_the_web() {
        let check = |href: &str, scheme, expected: Option<&str>| {
            let found = parse_href(href, scheme).map(|url| url.origin().ascii_serialization());
            assert_eq!(found.as_deref(), expected, "{href}");
        };
        check(
            "https://s3.example/a?X-Amz=1",
            Scheme::Https,
            Some("https://s3.example"),
        );
        check("https://h:8443/a", Scheme::Http, Some("https://h:8443"));
        check("http://h/a", Scheme::Https, None);
        check("http://h/a", Scheme::Http, Some("http://h"));
        // Other notations of an address are normalized before they are judged.
        check("https://0x7f.1/a", Scheme::Https, Some("https://127.0.0.1"));
        check(
            "https://[::ffff:7f00:1]/a",
            Scheme::Https,
            Some("https://[::ffff:7f00:1]"),
        );
        check("https://u:p@h/a", Scheme::Https, None);
        check("file:///etc/passwd", Scheme::Https, None);
    }

    #[test]
    fn nothing_secret_of_a_server_is_told() {
        let read = |download: &str| {
            let body = format!(r#"{{"objects": [{{"oid": "a", "actions": {{"download": {download}}}}}]}}"#);
            read_batch(body.as_bytes())
                .map(drop)
                .map_err(|problem| problem.evidence)
        };
        let told = "the batch API's answer can't be read at line 1, column";
        for odd in [
            r#""https://h/a?sig=hunter2""#,
            r#"{"href": "https://h/a", "header": "hunter2"}"#,
            r#"{"href": 2"#,
        ] {
            let evidence = read(odd).unwrap_err();
            assert!(
                evidence.starts_with(told) && !evidence.contains("hunter2"),
                "{evidence}"
            );
        }
        assert_eq!(
            read(r#"{"href": "https://h/a", "header": {"X-Token": "hunter2"}}"#),
            Ok(())
        );
        let header = HashMap::from([("Authorization".to_owned(), Secret::new("RemoteAuth hunter2"))]);
        let headers = headers_of(&Action {
            href: String::new(),
            header,
        })
        .unwrap();
        let login = [("username", "u"), ("password", "hunter3")];
        let login = login
            .map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()))
            .into();
        let remote = Remote::new("https://h/a.git", Some(&login)).unwrap();
        let (session, url) = (Session::of(&remote), Url::parse("https://h/info/lfs").unwrap());
        let endpoint = Endpoint {
            session: &session,
            url,
            scheme: Scheme::Https,
            headers,
            authorization: None,
        };
        assert_eq!(
            endpoint.evidence("RemoteAuth hunter2 of u:hunter3 has ended\n"),
            r"*** of u:*** has ended\n"
        );
        let cut = format!("{}hunter2 hunter3", "x".repeat(155));
        assert!(!endpoint.evidence(&cut).contains("hunt"), "{cut}");
    }

    #[test]
    fn headers_of_a_server_are_bounded() {
        let action = |name: &str, value: &str| Action {
            href: String::new(),
            header: HashMap::from([(name.to_owned(), Secret::new(value))]),
        };
        assert_eq!(headers_of(&action("Authorization", "x")).unwrap().len(), 1);
        assert_eq!(headers_of(&action("Host", "x")).unwrap().len(), 0);
        assert_eq!(headers_of(&action("Proxy-Authorization", "x")).unwrap().len(), 0);
        assert!(headers_of(&action("a b", "x")).is_err());
        assert!(headers_of(&action("a", "x\ny")).is_err());
    }
}
