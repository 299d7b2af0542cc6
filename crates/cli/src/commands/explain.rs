//! `farwater explain`: where a service's values and content come from.

mod digest;
mod parameters;

use crate::{connection::Session, failure::Result};

#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Shows the inputs of a service's digest. The service is delivered again when one of them changes.
    Digest(digest::DigestArgs),
    /// Shows the parameters of a service and the origin of each value. Secret values are hidden.
    Parameters(parameters::ParametersArgs),
}

pub async fn run(args: ExplainArgs, session: &Session) -> Result<u8> {
    match args.what {
        What::Digest(args) => digest::run(args, session).await,
        What::Parameters(args) => parameters::run(args, session).await,
    }
}
