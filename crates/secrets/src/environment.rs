//! Variables of the hub's environment that the configuration names.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::ffi::OsStringExt as _,
};

use async_trait::async_trait;

use crate::{
    backend::{Backend, BackendError, Reference, SecretBytes, Values},
    config,
};

pub(crate) struct Environment {
    variables: BTreeMap<String, Vec<String>>,
}

impl Environment {
    pub(crate) fn new(config: &config::Environment) -> Self {
        Self {
            variables: config.variables.clone(),
        }
    }
}

#[async_trait]
impl Backend for Environment {
    async fn read(&self, reference: &Reference) -> Result<Values, BackendError> {
        let path = &reference.path;
        let names = self.variables.get(path);
        let names = names
            .ok_or_else(|| BackendError::lasting(format!("the hub's configuration names no variables for {path:?}")))?;
        let read = |name: &String| match std::env::var_os(name) {
            Some(value) => Ok((name.clone(), SecretBytes::new(value.into_vec()))),
            None => Err(BackendError::lasting(format!(
                "the hub's environment has no variable {name}"
            ))),
        };
        // Values have unique names, in order.
        names.iter().collect::<BTreeSet<_>>().into_iter().map(read).collect()
    }
}
