//! The real kube-apiserver judges ours: the same requests go to it, with our kinds installed as custom resources, and to a
//! hub, and the answers must be equal but for uids, times and versions.

mod access;
mod applies;
mod built_in;
mod court;
mod differences;
mod documents;
mod events;
mod garbage;
mod generated;
mod leases;
mod lifecycle;
mod lists;
mod openapi;
mod reads;
mod verdict;
mod watches;
mod writes;
