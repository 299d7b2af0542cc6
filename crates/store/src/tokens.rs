//! Tokens of people and programs. Only hashes are stored, so a copy of the file gives no access.

use serde::{Deserialize, Serialize};
use sqlx::Row as _;

use crate::{Store, StoreError, Tx, engine::Row};

/// One token. `hash` is the SHA-256 of the token's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiToken {
    pub hash: [u8; 32],
    pub user: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// The ServiceAccount or Secret whose deletion ends the token. None: it is not bound.
    pub bound: Option<BoundObject>,
    /// Seconds since 1970.
    pub created: i64,
    /// Seconds since 1970. None: never.
    pub expires: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundObject {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl Store {
    /// Stores a token, replacing one with the same hash.
    pub async fn insert_token(&self, token: ApiToken) -> Result<(), StoreError> {
        self.transact(move |tx| Box::pin(async move { tx.insert_token(&token).await }))
            .await
    }

    /// The token with this hash, unless it has expired at `now` (seconds since 1970).
    pub async fn find_token(&self, hash: &[u8; 32], now: i64) -> Result<Option<ApiToken>, StoreError> {
        let select = sqlx::query(
            "SELECT hash, user_name, user_uid, user_groups, bound_object, created, expires FROM api_tokens \
             WHERE hash = $1 AND (expires IS NULL OR expires > $2)",
        )
        .bind(hash.as_slice())
        .bind(now);
        let row = self
            .read(async { Ok(select.fetch_optional(&mut *self.readers.acquire().await?).await?) })
            .await?;
        row.map(|row| token_of(&row))
            .transpose()
            .map_err(|error| error.at(self.location()))
    }

    /// Deletes a token. Returns whether there was one.
    pub async fn delete_token(&self, hash: &[u8; 32]) -> Result<bool, StoreError> {
        let hash = *hash;
        self.transact(move |tx| {
            Box::pin(async move {
                let delete = sqlx::query("DELETE FROM api_tokens WHERE hash = $1").bind(hash.to_vec());
                Ok(delete.execute(&mut **tx).await?.rows_affected() > 0)
            })
        })
        .await
    }

    /// Deletes tokens that have expired at `now`. Returns their number.
    pub async fn expire_tokens(&self, now: i64) -> Result<u64, StoreError> {
        self.transact(move |tx| {
            Box::pin(async move {
                let delete = sqlx::query("DELETE FROM api_tokens WHERE expires <= $1").bind(now);
                Ok(delete.execute(&mut **tx).await?.rows_affected())
            })
        })
        .await
    }
}

impl Tx {
    /// Stores a token, replacing one with the same hash.
    pub async fn insert_token(&mut self, token: &ApiToken) -> Result<(), StoreError> {
        let groups = serde_json::to_string(&token.groups).expect("a list of strings is plain JSON");
        let bound = token.bound.as_ref();
        let bound_json = bound.map(|bound| serde_json::to_string(bound).expect("a few strings are plain JSON"));
        sqlx::query("DELETE FROM api_tokens WHERE hash = $1")
            .bind(token.hash.to_vec())
            .execute(&mut **self)
            .await?;
        sqlx::query(
            "INSERT INTO api_tokens \
             (hash, user_name, user_uid, user_groups, bound_object, bound_uid, created, expires) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(token.hash.to_vec())
        .bind(&token.user)
        .bind(&token.uid)
        .bind(groups)
        .bind(bound_json)
        .bind(bound.map(|bound| bound.uid.clone()))
        .bind(token.created)
        .bind(token.expires)
        .execute(&mut **self)
        .await?;
        Ok(())
    }

    /// Deletes all tokens bound to the object with this uid. Returns their number.
    pub async fn delete_bound_tokens(&mut self, uid: &str) -> Result<u64, StoreError> {
        let delete = sqlx::query("DELETE FROM api_tokens WHERE bound_uid = $1").bind(uid);
        Ok(delete.execute(&mut **self).await?.rows_affected())
    }
}

fn token_of(row: &Row) -> Result<ApiToken, StoreError> {
    let wrong = |problem: String| StoreError::Row {
        what: "token".to_owned(),
        problem,
    };
    let hash: Vec<u8> = row.try_get("hash")?;
    let groups: String = row.try_get("user_groups")?;
    let bound: Option<String> = row.try_get("bound_object")?;
    let bound = bound.map(|json| serde_json::from_str(&json)).transpose();
    Ok(ApiToken {
        hash: hash
            .try_into()
            .map_err(|_| wrong("its hash has not 32 bytes".to_owned()))?,
        user: row.try_get("user_name")?,
        uid: row.try_get("user_uid")?,
        groups: serde_json::from_str(&groups).map_err(|error| wrong(error.to_string()))?,
        bound: bound.map_err(|error| wrong(error.to_string()))?,
        created: row.try_get("created")?,
        expires: row.try_get("expires")?,
    })
}
