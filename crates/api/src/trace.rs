//! Ids of a delivery's trace. Hub and agent derive them from the delivered entry, so that both write to one trace
//! without passing ids on: a poll's answer may come from a cache, and hours later.

use sha2::{Digest as _, Sha256};

use crate::Digest;

/// Id of the trace of one entry's delivery to one cluster, in the format of W3C Trace Context: the first 16 bytes of
/// the sha256 of `farwater-trace-v1\n<cluster uid>\n<entry digest>`. If the same entry is delivered again after a
/// rollback, it writes to the same trace.
pub fn trace_id(cluster_uid: &str, entry: &Digest) -> [u8; 16] {
    let mut id = [0; 16];
    id.copy_from_slice(&hash("farwater-trace-v1", cluster_uid, entry)[..16]);
    id
}

/// Id of the root span of the delivery, which the hub records.
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

    /// Hub and agent of different releases write to one trace, so the ids never change.
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
