//! The edge to Git.
use std::{path::{Path,PathBuf}, sync::Arc, time::Duration, collections::BTreeMap};
use bytes::Bytes;
use farwater_api::{Digest, GitRepositorySpec};
use farwater_store::delivery::Bundle;
use crate::delivery::Delivery;
pub struct Mirrors { directory: PathBuf }
impl Mirrors {
    pub fn open(data: &Path) -> std::io::Result<Self> { Ok(Self { directory: data.join("mirrors") }) }
    pub async fn list(&self) -> Vec<String> { let _ = &self.directory; vec![] }
    pub async fn remove(&self, _uid: &str) -> std::io::Result<()> { Ok(()) }
}
pub enum BundleFailure { Content(String), Machine(Box<dyn std::error::Error + Send + Sync>) }
pub struct Fetch { pub reference: String, pub commit: String }
pub struct SourceFailure { pub reason: &'static str, pub message: String, pub lasting: bool }
impl SourceFailure {
    pub fn passing(reason: &'static str, message: String) -> Self { Self { reason, message, lasting: false } }
    pub fn lasting(reason: &'static str, message: String) -> Self { Self { reason, message, lasting: true } }
}
pub fn format_revision(reference: &str, commit: &str) -> String { format!("{reference}@sha1:{commit}") }
pub fn clean_path(p: &str) -> Result<String, String> { Ok(p.to_owned()) }
pub fn host(url: &str) -> String { url.to_owned() }
pub async fn make_bundle(_: &Arc<Delivery>, _: &str, _: &str, _: &str) -> Result<Bundle, BundleFailure> { Err(BundleFailure::Content("x".into())) }
pub async fn fetch(_: &Arc<Delivery>, _: &str, _: &GitRepositorySpec, _: Option<BTreeMap<String, Vec<u8>>>, _: Duration) -> Result<Fetch, SourceFailure> { Err(SourceFailure::passing("x", "x".into())) }
pub async fn load_bundle(_: &Arc<Delivery>, _: &Digest) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> { Ok(Bytes::new()) }
