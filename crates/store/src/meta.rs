//! Meta entries: small facts about the installation, e.g. its id and epoch.

use crate::{Store, StoreError, Tx, read};

impl Store {
    pub async fn meta(&self, name: &str) -> Result<Option<String>, StoreError> {
        let read = async {
            let mut connection = self.readers.acquire().await?;
            Ok(read::load_meta(&mut connection, name).await?)
        };
        self.read(read).await
    }

    pub async fn put_meta(&self, name: &str, value: &str) -> Result<(), StoreError> {
        let (name, value) = (name.to_owned(), value.to_owned());
        self.transact(move |tx| Box::pin(async move { tx.put_meta(&name, &value).await }))
            .await
    }

    /// The stored value. If there is none, `value` is stored and returned.
    pub async fn init_meta(&self, name: &str, value: &str) -> Result<String, StoreError> {
        let (name, value) = (name.to_owned(), value.to_owned());
        self.transact(move |tx| {
            Box::pin(async move {
                if let Some(present) = tx.meta(&name).await? {
                    return Ok(present);
                }
                tx.put_meta(&name, &value).await?;
                Ok(value)
            })
        })
        .await
    }
}

impl Tx {
    pub async fn meta(&mut self, name: &str) -> Result<Option<String>, StoreError> {
        Ok(read::load_meta(self, name).await?)
    }

    /// Removes a value and returns it.
    pub async fn take_meta(&mut self, name: &str) -> Result<Option<String>, StoreError> {
        let take = sqlx::query_scalar("DELETE FROM meta WHERE name = $1 RETURNING value").bind(name);
        Ok(take.fetch_optional(&mut **self).await?)
    }

    pub async fn put_meta(&mut self, name: &str, value: &str) -> Result<(), StoreError> {
        Ok(read::save_meta(self, name, value).await?)
    }
}
