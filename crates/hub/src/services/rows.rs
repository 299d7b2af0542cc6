//! The JSON columns of a service's row, as the types that they hold. The store doesn't know these types.

use farwater_fleet::assignment::{Candidate, Decided};
use farwater_store::{StoreError, delivery::Assignment};
use serde::{Serialize, de::DeserializeOwned};

/// The row of a service with its columns decoded.
pub trait TypedRow {
    /// The newest version that the service's sources offer. None: they never offered one.
    fn read_candidate(&self) -> Result<Option<Candidate>, StoreError>;

    /// The version that the service runs. None: nothing was assigned yet.
    fn read_assigned(&self) -> Result<Option<Candidate>, StoreError>;

    /// The last decision about the service.
    fn read_decided(&self) -> Result<Decided, StoreError>;
}

impl TypedRow for Assignment {
    fn read_candidate(&self) -> Result<Option<Candidate>, StoreError> {
        read_some(self, self.candidate.as_deref())
    }

    fn read_assigned(&self) -> Result<Option<Candidate>, StoreError> {
        read_some(self, self.assigned.as_deref())
    }

    fn read_decided(&self) -> Result<Decided, StoreError> {
        read_json(&self.service_uid, &self.why)
    }
}

fn read_some(row: &Assignment, text: Option<&str>) -> Result<Option<Candidate>, StoreError> {
    text.map(|text| read_json(&row.service_uid, text)).transpose()
}

/// Decodes a column of a service.
pub(super) fn read_json<T: DeserializeOwned>(service_uid: &str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Row {
        what: format!("assignment of service {service_uid}"),
        problem: error.to_string(),
    })
}

/// Encodes a column of a service.
pub(super) fn write_json(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(StoreError::abort)
}
