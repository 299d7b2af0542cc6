//! Git LFS as a host serves it: the batch API and the objects, beside `git http-backend`
//! (<https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md>).

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode, header};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Content and faults of a server.
#[derive(Debug, Default)]
pub struct Lfs {
    objects: BTreeMap<String, Vec<u8>>,
    /// Base URL of the objects: `http://…`, without a trailing slash. None: this server.
    pub elsewhere: Option<String>,
    /// Query string for their addresses, as signed by storage services: `?…`.
    pub query: String,
    /// A header that each download needs.
    pub header: Option<(String, String)>,
    /// Address that downloads are redirected to.
    pub redirect: Option<String>,
    /// Content that is sent instead of each object.
    pub forged: Option<Vec<u8>>,
    /// Path and headers of each download.
    pub downloads: Vec<(String, HeaderMap)>,
    /// Number of objects in each request to the batch API.
    pub batches: Vec<usize>,
}

/// Content that Git stores for a large file.
pub fn pointer(content: &[u8]) -> String {
    let oid = hex::encode(Sha256::digest(content));
    format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {}\n",
        content.len()
    )
}

impl Lfs {
    /// Stores a large file and returns its pointer.
    pub fn put(&mut self, content: &[u8]) -> String {
        self.objects
            .insert(hex::encode(Sha256::digest(content)), content.to_vec());
        pointer(content)
    }

    pub fn clear(&mut self) {
        self.objects.clear();
    }

    /// Answers a path below `info/lfs` of a repository. `origin` is our own address.
    pub(crate) fn answer(
        &mut self,
        origin: &str,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Response<Bytes> {
        match (method, path.rsplit_once("/info/lfs/")) {
            (&Method::POST, Some((repository, "objects/batch"))) => self.batch(origin, repository, headers, body),
            (&Method::GET, Some((_, rest))) => {
                self.downloads.push((path.to_owned(), headers.clone()));
                self.download(rest.strip_prefix("files/").unwrap_or_default())
            }
            _ => plain(StatusCode::NOT_FOUND, b"no such path".to_vec()),
        }
    }

    fn batch(&mut self, origin: &str, repository: &str, headers: &HeaderMap, body: &[u8]) -> Response<Bytes> {
        let asked: Value = serde_json::from_slice(body).unwrap_or_default();
        let objects = asked["objects"].as_array().cloned().unwrap_or_default();
        self.batches.push(objects.len());
        if asked["operation"] != "download" {
            return plain(StatusCode::FORBIDDEN, b"read only".to_vec());
        }
        let origin = self.elsewhere.as_deref().unwrap_or(origin);
        let described: Vec<Value> = objects
            .iter()
            .map(|object| {
                let (oid, size) = (object["oid"].as_str().unwrap_or_default(), &object["size"]);
                if !self.objects.contains_key(oid) {
                    // A server may repeat the client's values.
                    let who = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
                    let why = format!("no such object for {}", who.unwrap_or("anybody"));
                    return json!({"oid": oid, "size": size, "error": {"code": 404, "message": why}});
                }
                let href = format!("{origin}{repository}/info/lfs/files/{oid}{}", self.query);
                let header: BTreeMap<_, _> = self.header.iter().cloned().collect();
                json!({"oid": oid, "size": size, "actions": {"download": {"href": href, "header": header}}})
            })
            .collect();
        let answer = json!({"transfer": "basic", "objects": described});
        let mut response = plain(StatusCode::OK, answer.to_string().into_bytes());
        let kind = header::HeaderValue::from_static("application/vnd.git-lfs+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }

    fn download(&self, oid: &str) -> Response<Bytes> {
        if let Some(to) = &self.redirect {
            let mut response = plain(StatusCode::FOUND, Vec::new());
            if let Ok(to) = format!("{to}{oid}").parse() {
                response.headers_mut().insert(header::LOCATION, to);
            }
            return response;
        }
        match self.forged.as_ref().or_else(|| self.objects.get(oid)) {
            Some(content) => plain(StatusCode::OK, content.clone()),
            None => plain(StatusCode::NOT_FOUND, b"no such object".to_vec()),
        }
    }
}

fn plain(status: StatusCode, body: Vec<u8>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response
}
