//! The ids of a delivery's trace. They are derived from what is delivered, so that hub and agent write one trace without
//! passing anything on: a poll's answer may come from a cache, and hours later.

use sha2::{Digest as _, Sha256};

use crate::Digest;

/// Of the trace of one entry's delivery to one cluster, as W3C's Trace Context has it: the first 16 bytes of the sha256 of
/// `farwater-trace-v1\n<cluster uid>\n<entry digest>`. The same entry delivered again, after a roll-back, writes to the same
/// trace.
pub fn trace_id(cluster_uid: &str, entry: &Digest) -> [u8; 16] {
    let mut id = [0; 16];
    id.copy_from_slice(&hash("farwater-trace-v1", cluster_uid, entry)[..16]);
    id
}

/// Of the span that all others of the delivery hang under; the hub tells it.
pub fn delivery_span_id(cluster_uid: &str, entry: &Digest) -> [u8; 8] {
    let mut id = [0; 8];
    id.copy_from_slice(&hash("farwater-span-v1", cluster_uid, entry)[..8]);
    id
}

fn hash(purpose: &str, cluster_uid: &str, entry: &Digest) -> [u8; 32] {
    Sha256::digest(format!("{purpose}\n{cluster_uid}\n{entry}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hub and agent of different releases write to one trace: this never changes.
    #[test]
    fn ids_are_what_they_have_always_been() {
        let entry = Digest::of("entry");
        let uid = "0b5c1c0e-9a3e-4f1e-8d07-3a4b5c6d7e8f";
        assert_eq!(hex::encode(trace_id(uid, &entry)), TRACE);
        assert_eq!(hex::encode(delivery_span_id(uid, &entry)), SPAN);
        assert_ne!(trace_id("another", &entry), trace_id(uid, &entry));
        assert_ne!(trace_id(uid, &Digest::of("other")), trace_id(uid, &entry));
    }

    const TRACE: &str = "b9a6102b915a7d92f54f003a69b3a609";
    const SPAN: &str = "2b6b8296e16d0959";
}
