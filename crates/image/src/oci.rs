//! An image as the OCI image specification (v1.1) says it: a layer, a config, a manifest, an index.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{Node, Root};

/// Who containers run as: the number that is usual for `nonroot`.
pub const USER: u64 = 65532;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// When images say that they were made: the time would make another image each time.
const EPOCH: &str = "1970-01-01T00:00:00Z";

/// What a container of the image runs.
#[derive(Clone, Debug, Default)]
pub struct Start {
    pub entrypoint: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub working_folder: String,
    pub labels: BTreeMap<String, String>,
}

/// An image for one platform.
#[derive(Clone, Debug)]
pub struct Image {
    /// `HOST/PATH:TAG`.
    pub reference: String,
    /// Of the manifest, `sha256:HEX`: what a cluster pulls by.
    pub digest: String,
    /// Bytes of the layer as a registry has it, and as a node unpacks it.
    pub compressed: usize,
    pub unpacked: usize,
    /// By path in the layout.
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Image {
    /// `architecture`: as Go names it, for example `amd64`.
    pub fn new(reference: &str, architecture: &str, root: &Root, start: &Start) -> io::Result<Self> {
        let tar = root.tar()?;
        let mut gzip = GzEncoder::new(Vec::new(), Compression::new(6));
        gzip.write_all(&tar)?;
        let layer = gzip.finish()?;
        let environment: Vec<String> = start
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let config = json!({
            "architecture": architecture, "os": "linux", "created": EPOCH,
            "config": {
                "User": format!("{USER}:{USER}"), "Entrypoint": start.entrypoint, "Env": environment,
                "WorkingDir": start.working_folder, "Labels": start.labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [digest(&tar)]},
            "history": [{"created": EPOCH, "created_by": "cargo xtask image"}],
        });
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &config), "layers": [descriptor(LAYER, &layer)],
        });
        let manifest = manifest.to_string().into_bytes();
        let mut entry = descriptor(MANIFEST, &manifest);
        entry["platform"] = json!({"architecture": architecture, "os": "linux"});
        entry["annotations"] =
            json!({"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference});
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
        // For `docker load`, which reads no index.
        let docker =
            json!([{"Config": blob(&digest(&config)), "RepoTags": [reference], "Layers": [blob(&digest(&layer))]}]);
        let (digest_, compressed, unpacked) = (digest(&manifest), layer.len(), tar.len());
        let mut files: BTreeMap<PathBuf, Vec<u8>> = [config, manifest, layer]
            .into_iter()
            .map(|bytes| (blob(&digest(&bytes)).into(), bytes))
            .collect();
        for (path, value) in [
            ("oci-layout", json!({"imageLayoutVersion": "1.0.0"})),
            ("index.json", index),
            ("manifest.json", docker),
        ] {
            files.insert(path.into(), value.to_string().into_bytes());
        }
        Ok(Self {
            reference: reference.to_owned(),
            digest: digest_,
            compressed,
            unpacked,
            files,
        })
    }

    /// Writes the layout into a folder.
    pub fn write_layout(&self, folder: &Path) -> io::Result<()> {
        for (path, bytes) in &self.files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            fs::write(path, bytes)?;
        }
        Ok(())
    }

    /// The layout as one file, for `ctr images import` and `docker load`.
    pub fn write_tar(&self, path: &Path) -> io::Result<()> {
        let mut root = Root::default();
        for (path, content) in &self.files {
            root.add(path, Node::text(content.clone()));
        }
        fs::write(path, root.tar()?)
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

fn blob(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

fn descriptor(kind: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": kind, "digest": digest(bytes), "size": bytes.len()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Root {
        let mut root = Root::default();
        root.add("usr/bin/hello", Node::program(b"#!/bin/sh\n".to_vec()));
        root.add(
            "tmp",
            Node::Folder {
                mode: 0o1777,
                owner: USER,
            },
        );
        root.add(
            "bin",
            Node::Link {
                target: "usr/bin".into(),
            },
        );
        root
    }

    fn image(root: &Root) -> Image {
        let start = Start {
            entrypoint: vec!["/bin/hello".to_owned()],
            ..Start::default()
        };
        Image::new("example.com/hello:1", "amd64", root, &start).unwrap()
    }

    #[test]
    fn the_same_files_give_the_same_image_and_others_another() {
        let mut other = root();
        other.add("etc/passwd", Node::text("x"));
        assert_eq!(image(&root()).digest, image(&root()).digest);
        assert_eq!(image(&root()).files, image(&root()).files);
        assert_ne!(image(&root()).digest, image(&other).digest);
    }

    #[test]
    fn a_layout_names_all_that_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let image = image(&root());
        image.write_layout(folder.path()).unwrap();
        let read =
            |path: &str| -> Value { serde_json::from_slice(&fs::read(folder.path().join(path)).unwrap()).unwrap() };
        let entry = &read("index.json")["manifests"][0];
        assert_eq!(entry["digest"], image.digest);
        let manifest = read(&blob(&image.digest));
        let held = [&manifest["config"], &manifest["layers"][0]];
        for descriptor in held {
            let bytes = fs::read(folder.path().join(blob(descriptor["digest"].as_str().unwrap()))).unwrap();
            assert_eq!(
                (digest(&bytes), bytes.len()),
                (
                    descriptor["digest"].as_str().unwrap().to_owned(),
                    descriptor["size"].as_u64().unwrap() as usize
                )
            );
        }
        let config = read(&blob(manifest["config"]["digest"].as_str().unwrap()));
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["rootfs"]["diff_ids"][0], digest(&root().tar().unwrap()));
    }
}
