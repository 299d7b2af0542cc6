//! A service's inventory in the cluster.
//!
//! It is stored in Secrets of about 1,000 entries each. An entry never moves to another Secret: moving takes two
//! writes, and a crash between them would lose it.

use std::collections::BTreeMap;

use farwater_api::{
    Digest,
    deletion::Deletion,
    protocol::{Deployment, ServiceIdentity},
};
use farwater_fleet::{
    hooks::Record,
    origin::Origin,
    ownership::service_label,
    plan::{Inventory, InventoryEntry, ObjectKey},
    prune::{ApprovedPrune, HeldSet},
};
use futures::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};

use crate::{
    kubernetes::{ApiError, Kubernetes},
    secrets::{self, Held},
};

const PURPOSE: &str = "inventory";
/// Entries per Secret. Each takes some 70 bytes when compressed, so a Secret is far below its limit.
const ENTRIES_PER_SECRET: usize = 1000;
/// Secrets that are written at a time.
const PARALLEL: usize = 4;
/// Largest inventory Secret in bytes when decompressed.
const MAX_DECOMPRESSED: usize = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    #[error("read inventory {name}")]
    Damaged { name: String, source: std::io::Error },
    #[error("access inventory")]
    Api(#[from] ApiError),
    #[error("write inventory: {0} bytes in one Secret")]
    TooLarge(usize),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Chunk {
    service: ServiceIdentity,
    /// For the whole service; only in its first chunk.
    #[serde(default)]
    baseline: usize,
    /// The deployment that the service was last asked to keep applied; only in its first chunk. A held service is kept
    /// by it, and a removed one is removed as its account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deployment: Option<Deployment>,
    /// For the whole service; only in its first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<Origin>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deletion: Option<Deletion>,
    /// For the whole service; only in its first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    approved: Option<ApprovedPrune>,
    /// For the whole service; only in its first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held: Option<HeldSet>,
    /// Of the whole service, in its first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hooks: Option<Record>,
    entries: Vec<InventoryEntry>,
}

/// One service's inventory, and the Secret of each entry.
#[derive(Clone, Debug)]
pub struct Stored {
    pub service: ServiceIdentity,
    pub inventory: Inventory,
    pub deployment: Option<Deployment>,
    /// The last deletion. The deleted objects' states are in [`tombstones`](crate::tombstones).
    pub deletion: Option<Deletion>,
    /// The hooks that have run. None: the service never had a hook or a chart.
    pub hooks: Option<Record>,
    place: BTreeMap<ObjectKey, usize>,
    /// Digest of each Secret's content when it was last read or written.
    written: BTreeMap<usize, Digest>,
}

impl Stored {
    pub fn new(service: ServiceIdentity) -> Self {
        Self {
            service,
            inventory: Inventory::default(),
            deployment: None,
            deletion: None,
            hooks: None,
            place: BTreeMap::new(),
            written: BTreeMap::new(),
        }
    }

    /// Writes the Secrets that differ from the stored ones.
    pub async fn save(&mut self, kubernetes: &Kubernetes) -> Result<(), InventoryError> {
        self.assign_places();
        let mut chunks: BTreeMap<usize, Vec<InventoryEntry>> = self.written.keys().map(|n| (*n, Vec::new())).collect();
        chunks.entry(0).or_default();
        for (key, entry) in &self.inventory.entries {
            if let Some(place) = self.place.get(key) {
                chunks.entry(*place).or_default().push(entry.clone());
            }
        }

        // The first Secret is written first and deleted last, because it names the account by which the objects are
        // removed.
        if let Some((number, entries)) = chunks.pop_first() {
            let digest = self.save_chunk(kubernetes, number, entries).await?;
            self.written.insert(number, digest);
        }
        let saves: Vec<_> = chunks
            .into_iter()
            .map(async |(number, entries)| (number, self.save_chunk(kubernetes, number, entries).await))
            .collect();
        let saved: Vec<_> = stream::iter(saves).buffer_unordered(PARALLEL).collect().await;

        let mut failed = Ok(());
        for (number, saved) in saved {
            match saved {
                Ok(digest) => drop(self.written.insert(number, digest)),
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    /// Returns the digest of the written content. Not written if it is stored already.
    async fn save_chunk(
        &self,
        kubernetes: &Kubernetes,
        number: usize,
        entries: Vec<InventoryEntry>,
    ) -> Result<Digest, InventoryError> {
        let mut chunk = Chunk::new(self.service.clone(), entries);
        if number == 0 {
            chunk.baseline = self.inventory.baseline;
            chunk.deployment = self.deployment.clone();
            chunk.origin = self.inventory.origin.clone();
            chunk.approved = self.inventory.approved.clone();
            chunk.held = self.inventory.held.clone();
            chunk.deletion = self.deletion.clone();
            chunk.hooks = self.hooks.clone();
        }

        let bytes = encode(&chunk);
        let digest = Digest::of(&bytes);
        let held = match self.written.get(&number) {
            Some(written) if *written == digest => return Ok(digest),
            Some(_) => Held::Already,
            None => Held::NotYet,
        };

        let name = self.name(number);
        let compressed = match secrets::compress(&bytes) {
            Ok(compressed) if compressed.len() > secrets::MAX_BYTES => {
                return Err(InventoryError::TooLarge(compressed.len()));
            }
            Ok(compressed) => compressed,
            Err(source) => return Err(InventoryError::Damaged { name, source }),
        };
        secrets::save(kubernetes, PURPOSE, &name, &compressed, held).await?;
        Ok(digest)
    }

    /// Deletes all Secrets of this service. Call it only after its last object is gone or released.
    pub async fn discard(&mut self, kubernetes: &Kubernetes) -> Result<(), InventoryError> {
        // The first Secret is deleted last, because it says which service the others belong to.
        while let Some((number, _)) = self.written.last_key_value() {
            let number = *number;
            secrets::remove(kubernetes, &self.name(number)).await?;
            self.written.remove(&number);
        }
        Ok(())
    }

    fn assign_places(&mut self) {
        let entries = &self.inventory.entries;
        self.place.retain(|key, _| entries.contains_key(key));
        let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
        for place in self.place.values() {
            *sizes.entry(*place).or_default() += 1;
        }
        let mut place = 0;
        for key in entries.keys() {
            if self.place.contains_key(key) {
                continue;
            }
            while sizes.get(&place).is_some_and(|size| *size >= ENTRIES_PER_SECRET) {
                place += 1;
            }
            *sizes.entry(place).or_default() += 1;
            self.place.insert(key.clone(), place);
        }
    }

    fn name(&self, number: usize) -> String {
        format!("farwater-inventory-{}-{number}", service_label(&self.service.uid))
    }
}

impl Chunk {
    fn new(service: ServiceIdentity, entries: Vec<InventoryEntry>) -> Self {
        Self {
            service,
            baseline: 0,
            deployment: None,
            origin: None,
            deletion: None,
            approved: None,
            held: None,
            hooks: None,
            entries,
        }
    }
}

fn encode(chunk: &Chunk) -> Vec<u8> {
    serde_json::to_vec(chunk).expect("an inventory is plain JSON")
}

/// Every inventory of this cluster, by service uid. A damaged one is an error, because without it the objects of a
/// service are unknown.
pub async fn load_all(kubernetes: &Kubernetes) -> Result<BTreeMap<String, Stored>, InventoryError> {
    let mut all: BTreeMap<String, Stored> = BTreeMap::new();
    for (name, content) in secrets::load_all(kubernetes, PURPOSE).await? {
        let damaged = |source| InventoryError::Damaged {
            name: name.clone(),
            source,
        };
        let bytes = zstd::bulk::decompress(&content?, MAX_DECOMPRESSED).map_err(damaged)?;
        let chunk: Chunk = serde_json::from_slice(&bytes).map_err(|e| damaged(e.into()))?;
        let number: usize = name
            .rsplit_once('-')
            .and_then(|(_, n)| n.parse().ok())
            .ok_or_else(|| damaged(std::io::Error::other("its name has no number")))?;
        let stored = all
            .entry(chunk.service.uid.clone())
            .or_insert_with(|| Stored::new(chunk.service.clone()));
        stored.inventory.baseline = stored.inventory.baseline.max(chunk.baseline);
        stored.deployment = stored.deployment.take().or(chunk.deployment);
        stored.inventory.origin = stored.inventory.origin.take().or(chunk.origin);
        stored.inventory.approved = stored.inventory.approved.take().or(chunk.approved);
        stored.inventory.held = stored.inventory.held.take().or(chunk.held);
        stored.deletion = stored.deletion.take().or(chunk.deletion);
        stored.hooks = stored.hooks.take().or(chunk.hooks);
        stored.written.insert(number, Digest::of(&bytes));
        for entry in chunk.entries {
            let key = ObjectKey::from(&entry.object);
            stored.place.insert(key.clone(), number);
            stored.inventory.entries.insert(key, entry);
        }
    }
    Ok(all)
}
