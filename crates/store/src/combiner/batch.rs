//! The requests of one transaction, with their results.

use tokio::sync::oneshot;

use super::{Request, Work};
use crate::{Resource, StoreError, Write, WriteError, tx::Tx};

type Reply = oneshot::Sender<Result<Resource, WriteError>>;

/// Consecutive writes are one item, because they need few statements.
#[derive(Default)]
pub(super) struct Batch(Vec<Item>);

enum Item {
    Writes {
        writes: Vec<Write>,
        replies: Vec<Reply>,
        results: Vec<Result<Resource, WriteError>>,
    },
    Transact(Box<dyn Work>),
}

impl Batch {
    pub(super) fn push(&mut self, request: Request) {
        match (request, self.0.last_mut()) {
            (Request::Write(write, reply), Some(Item::Writes { writes, replies, .. })) => {
                writes.push(write);
                replies.push(reply);
            }
            (Request::Write(write, reply), _) => {
                self.0.push(Item::Writes {
                    writes: vec![write],
                    replies: vec![reply],
                    results: Vec::new(),
                });
            }
            (Request::Transact(work), _) => self.0.push(Item::Transact(work)),
            (Request::Close(_), _) => {}
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Runs the items in order. After an error the rest has not run, and nothing may be committed.
    pub(super) async fn run(&mut self, tx: &mut Tx) -> Result<(), StoreError> {
        for item in &mut self.0 {
            match item {
                Item::Writes { writes, results, .. } => *results = tx.write_all(std::mem::take(writes)).await?,
                Item::Transact(work) => run_closure(tx, work.as_mut()).await?,
            }
        }
        Ok(())
    }

    /// Answers each request with its own result, or all with the failure of the transaction. A caller may have stopped
    /// waiting; a commit stays made.
    pub(super) fn answer(self, failure: Option<StoreError>) {
        for item in self.0 {
            match item {
                Item::Writes { replies, results, .. } => {
                    let mut results = results.into_iter();
                    for reply in replies {
                        let result = results.next().unwrap_or(Err(StoreError::Closed.into()));
                        drop(reply.send(match &failure {
                            Some(failure) => Err(failure.clone().into()),
                            None => result,
                        }));
                    }
                }
                Item::Transact(work) => work.answer(failure.clone()),
            }
        }
    }
}

/// Runs a closure. If it gives up, it alone is rolled back. An error is one of the whole transaction.
async fn run_closure(tx: &mut Tx, work: &mut dyn Work) -> Result<(), StoreError> {
    let savepoint = tx.savepoint().await?;
    let wants = work.run(tx).await;
    if let Some(error) = tx.broken() {
        return Err(error);
    }
    if let Err(reason) = wants
        && let Err(error) = tx.rollback_to(savepoint).await
    {
        // The engine has rolled back everything by itself, for the reason that ended the closure.
        return Err(if matches!(reason, StoreError::Sql(_)) {
            reason
        } else {
            error.into()
        });
    }
    Ok(())
}
