//! Explains errors of the store and of keys to the user of a command.

use farwater_hub::{
    config::DatabaseError,
    identity::{DataDirError, EnclosedError},
};
use farwater_store::{OpenError, StoreError, archive::ArchiveError};

use crate::{
    exit,
    failure::{Failure, chain},
};

pub fn unusable(error: &DatabaseError) -> Failure {
    Failure::usage(chain(error))
}

pub fn failed(attempt: &str, error: &ArchiveError) -> Failure {
    let refused = || Failure::new(exit::CONFLICT, format!("can't {attempt}")).evidence(chain(error));
    match error {
        ArchiveError::Open(error) => opening(attempt, error),
        ArchiveError::Store(error) => storing(attempt, error),
        ArchiveError::Occupied { .. } => refused().next("--force replaces it"),
        ArchiveError::Damaged { .. } => {
            refused().next("take an older backup; --accept-damage restores it as it is, if it is all that there is")
        }
        error => Failure::usage(format!("can't {attempt}")).evidence(chain(error)),
    }
}

pub fn opening(attempt: &str, error: &OpenError) -> Failure {
    match error {
        OpenError::Store(error) => storing(attempt, error),
        OpenError::Locked { .. } => in_use(attempt, error),
        error => Failure::usage(format!("can't {attempt}")).evidence(chain(error)),
    }
}

pub fn storing(attempt: &str, error: &StoreError) -> Failure {
    let code = if error.retry() { exit::UNREACHABLE } else { exit::NO };
    Failure::new(code, format!("can't {attempt}")).evidence(chain(error))
}

pub fn locking(attempt: &str, error: &DataDirError) -> Failure {
    match error {
        DataDirError::Locked { .. } => in_use(attempt, error),
        DataDirError::File(_) => Failure::usage(format!("can't {attempt}")).evidence(chain(error)),
    }
}

pub fn keys(attempt: &str, error: &EnclosedError) -> Failure {
    Failure::usage(format!("can't {attempt}")).evidence(chain(error))
}

fn in_use(attempt: &str, error: &dyn std::error::Error) -> Failure {
    Failure::new(exit::CONFLICT, format!("can't {attempt}"))
        .evidence(chain(error))
        .next("stop the hub first")
}
