//! Random faults in all parts that lead to deletions. `cargo xtask campaign prune-chaos` has 2,000 of them.

use anyhow::Result;
use farwater_e2e::prune_chaos;
use farwater_testkit::shared;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_random_faults_delete_nothing_unasked_and_what_is_meant_to_go_goes() -> Result<()> {
    let seed = std::env::var("CHAOS_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(7);
    let outcome = prune_chaos::run(shared(2).await?, seed, 6, |so_far| {
        eprintln!(
            "{} faults, {} deletions that were meant",
            so_far.faults, so_far.intended
        );
    })
    .await?;
    eprintln!("{}", serde_json::to_string_pretty(&outcome)?);
    outcome.check()
}
