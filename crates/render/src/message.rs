//! Messages to and from a renderer program. `render-helper/message.go` describes the format.

use std::collections::BTreeMap;

use farwater_api::renderer::{Image, Patch};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The only protocol version.
pub(crate) const PROTOCOL: u32 = 1;
/// Most bytes of an answer's header: lists of objects, and lookups.
const MAX_HEADER: u32 = 16 << 20;

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helm: Option<Helm<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kustomize: Option<Kustomize<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub liquid: Option<Liquid<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<Patches<'a>>,
    /// Places of mounted remote bases, by the texts that name them in kustomizations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub bases: BTreeMap<String, String>,
    pub files: Vec<Part<'a>>,
    pub limits: RequestLimits,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Helm<'a> {
    pub chart: &'a str,
    pub release: Release<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values_files: Vec<String>,
    pub ignore_missing_values_files: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<&'a Map<String, Value>>,
    pub capabilities: &'a Capabilities,
    pub skip_crds: bool,
    pub skip_tests: bool,
    pub skip_schema_validation: bool,
    pub lookup: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub post_renderers: Vec<PostRenderer<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Release<'a> {
    pub name: &'a str,
    pub namespace: &'a str,
    pub is_upgrade: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct PostRenderer<'a> {
    pub kustomize: KustomizePostRenderer<'a>,
}

#[derive(Debug, Serialize)]
pub(crate) struct KustomizePostRenderer<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    pub patches: &'a [Patch],
    pub images: &'a [Image],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Kustomize<'a> {
    pub path: &'a str,
    pub load_outside: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_prefix: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_suffix: Option<&'a str>,
    pub images: &'a [Image],
    pub components: &'a [String],
    pub capabilities: &'a Capabilities,
    pub namespace: &'a str,
}

#[derive(Debug, Serialize)]
pub(crate) struct Liquid<'a> {
    pub parameters: &'a Map<String, Value>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Patches<'a> {
    pub patches: &'a [Patch],
}

/// The cluster's capabilities for templates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// Version as the API server returns it. Empty: the newest that Helm knows.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kube_version: String,
    /// `apps/v1`, `apps/v1/Deployment`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub api_versions: Vec<String>,
    /// Whether these versions are all that the cluster has. Otherwise they are added to Helm's defaults.
    #[serde(default)]
    pub complete: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Part<'a> {
    pub path: &'a str,
    pub size: usize,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RequestLimits {
    pub seconds: f64,
    pub cpu_seconds: u64,
    pub memory_bytes: u64,
    pub output_bytes: usize,
}

/// An answer of a renderer program. Exactly one field is set.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    pub ready: Option<Ready>,
    pub lookup: Option<Question>,
    pub done: Option<Done>,
    pub failed: Option<Failure>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Ready {
    pub protocol: u32,
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    #[serde(default)]
    pub confinement: Confinement,
}

/// How a child is confined, besides its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Confinement {
    /// Version of the kernel's Landlock. 0: not available.
    #[serde(default)]
    pub landlock: u32,
    /// Whether sockets, files and programs are blocked.
    #[serde(default)]
    pub seccomp: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Done {
    #[serde(default)]
    pub objects: Vec<OwnedPart>,
    #[serde(default)]
    pub files: Vec<OwnedPart>,
    #[serde(default)]
    pub warnings: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OwnedPart {
    pub path: String,
    pub size: usize,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Failure {
    pub reason: Reason,
    pub message: String,
}

/// Why nothing was rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Reason {
    /// The files or the options are wrong.
    Input,
    /// A limit of time, memory or output was reached.
    Limit,
    /// Rendering does not support what was requested.
    Refused,
    /// An error of the program.
    #[serde(other)]
    Internal,
}

/// A template's `lookup`: an object, or all of a kind if the name is empty.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    pub api_version: String,
    pub kind: String,
    #[serde(default)]
    pub namespace: String,
    #[serde(default)]
    pub name: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Reply<'a> {
    /// Null: there is none.
    Found(&'a Value),
    Refused(&'a str),
}

#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    #[error("it ended")]
    Ended,
    #[error("{0}")]
    Io(std::io::Error),
    #[error("it sent a header of {header} and a body of {body} bytes; at most {MAX_HEADER} and {most} are taken")]
    TooLong { header: u32, body: u64, most: usize },
    #[error("its output can't be read: {0}")]
    Header(serde_json::Error),
    #[error("its output is inconsistent")]
    Parts,
}

impl From<std::io::Error> for MessageError {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind::{BrokenPipe, UnexpectedEof};
        if matches!(error.kind(), UnexpectedEof | BrokenPipe) {
            Self::Ended
        } else {
            Self::Io(error)
        }
    }
}

pub(crate) async fn send<W: AsyncWrite + Unpin>(
    to: &mut W,
    header: &impl Serialize,
    body: &[&[u8]],
) -> Result<(), MessageError> {
    let header = serde_json::to_vec(header).map_err(MessageError::Header)?;
    let total: usize = body.iter().map(|bytes| bytes.len()).sum();
    let mut begin = Vec::with_capacity(12 + header.len());
    begin.extend_from_slice(
        &u32::try_from(header.len())
            .map_err(|_| MessageError::Parts)?
            .to_be_bytes(),
    );
    begin.extend_from_slice(&(total as u64).to_be_bytes());
    begin.extend_from_slice(&header);
    to.write_all(&begin).await?;
    for bytes in body {
        to.write_all(bytes).await?;
    }
    Ok(to.flush().await?)
}

/// Reads a header and its body of at most `most` bytes.
pub(crate) async fn receive<H: DeserializeOwned, R: AsyncRead + Unpin>(
    from: &mut R,
    most: usize,
) -> Result<(H, Vec<u8>), MessageError> {
    let (header, body) = (from.read_u32().await?, from.read_u64().await?);
    if header > MAX_HEADER || body > most as u64 {
        return Err(MessageError::TooLong { header, body, most });
    }
    let mut text = vec![0; header as usize];
    from.read_exact(&mut text).await?;
    let read = serde_json::from_slice(&text).map_err(MessageError::Header)?;
    let mut bytes = vec![0; usize::try_from(body).map_err(|_| MessageError::Parts)?];
    from.read_exact(&mut bytes).await?;
    Ok((read, bytes))
}

/// Splits a body into its parts.
pub(crate) fn split<'a>(parts: &'a [OwnedPart], body: &'a [u8]) -> Result<Vec<(&'a str, &'a [u8])>, MessageError> {
    let mut rest = body;
    let mut found = Vec::with_capacity(parts.len());
    for part in parts {
        let (bytes, after) = rest.split_at_checked(part.size).ok_or(MessageError::Parts)?;
        found.push((part.path.as_str(), bytes));
        rest = after;
    }
    if rest.is_empty() {
        Ok(found)
    } else {
        Err(MessageError::Parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_sent_is_received_and_what_is_too_long_is_not_read() {
        let mut wire = Vec::new();
        let header = Value::from(vec!["a"]);
        send(&mut wire, &header, &[b"one", b"", b"two"]).await.unwrap();
        let (read, body): (Value, _) = receive(&mut &wire[..], 6).await.unwrap();
        assert_eq!((read, body.as_slice()), (header, &b"onetwo"[..]));
        assert!(matches!(
            receive::<Value, _>(&mut &wire[..], 5).await,
            Err(MessageError::TooLong { body: 6, .. })
        ));
        assert!(matches!(
            receive::<Value, _>(&mut &wire[..9], 6).await,
            Err(MessageError::Ended)
        ));
        let huge = [&u32::MAX.to_be_bytes()[..], &[0; 8]].concat();
        assert!(matches!(
            receive::<Value, _>(&mut &huge[..], 5).await,
            Err(MessageError::TooLong { .. })
        ));
    }

    #[test]
    fn parts_that_do_not_fill_the_body_are_refused() {
        let part = |size| OwnedPart { path: "a".into(), size };
        assert_eq!(
            split(&[part(1), part(2)], b"abc").unwrap(),
            [("a", &b"a"[..]), ("a", b"bc")]
        );
        for sizes in [vec![4], vec![2], vec![3, 1], vec![usize::MAX]] {
            assert!(split(&sizes.into_iter().map(part).collect::<Vec<_>>(), b"abc").is_err());
        }
    }
}
