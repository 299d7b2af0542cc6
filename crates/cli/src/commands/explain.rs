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
    /// Shows all that a service's digest is made of: where one of them changes, the service is delivered anew.
    Digest(digest::DigestArgs),
    /// Shows what the templates of a service see, and where each value comes from. Of secrets only that they are set.
    Parameters(parameters::ParametersArgs),
}

pub async fn run(args: ExplainArgs, session: &Session) -> Result<u8> {
    match args.what {
        What::Digest(args) => digest::run(args, session).await,
        What::Parameters(args) => parameters::run(args, session).await,
    }
}
