//! `farwater hub`: the hub itself, in this process.

use std::error::Error as _;

use farwater_hub::HubArgs;

use crate::{
    exit,
    failure::{self, Failure, Result},
};

pub fn run(args: HubArgs) -> Result<u8> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_stack_size(farwater_hub::STACK)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(exit::INTERNAL, "can't start").evidence(error.to_string()))?;
    match runtime.block_on(farwater_hub::run(args)) {
        Ok(()) => Ok(exit::YES),
        Err(error) => {
            let code = if matches!(error, farwater_hub::HubError::Config(_)) {
                exit::USAGE
            } else {
                exit::HUB_FAILED
            };
            let failure = Failure::new(code, format!("the hub ended: {error}"));
            Err(match error.source() {
                Some(source) => failure.evidence(failure::chain(source)),
                None => failure,
            })
        }
    }
}
