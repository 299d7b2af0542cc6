//! The Kubernetes-style API, served over the store.

pub mod body;
pub mod discovery;
pub mod jsonpath;
pub mod kinds;
pub mod meta;
pub mod openapi;
pub mod patch;
pub mod protobuf;
pub mod request;
pub mod schema;
pub mod selector;
pub mod status;
pub mod strategic;
pub mod table;
