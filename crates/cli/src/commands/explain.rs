//! `farwater explain`: what a service is made of.

mod parameters;

use crate::{connection::Session, failure::Result};

#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Shows what the templates of a service see, and where each value comes from. Of secrets only that they are set.
    Parameters(parameters::ParametersArgs),
}

pub async fn run(args: ExplainArgs, session: &Session) -> Result<u8> {
    match args.what {
        What::Parameters(args) => parameters::run(args, session).await,
    }
}
