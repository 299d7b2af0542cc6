//! Everything stored for one service, read together: each statement costs a hand-over to the connection's thread, or a
//! round trip.

use std::sync::LazyLock;

use super::{Assignment, HeldService, MemberRollout, ParameterRow, Report, ServiceOrigin};
use crate::{
    Connection, StoreError,
    rows::{Part, Parts},
};

/// The rows of a service, as of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRows {
    pub assignment: Option<Assignment>,
    pub held: Option<HeldService>,
    /// The row of a set's member. None: the service belongs to no set.
    pub member: Option<MemberRollout>,
    pub origin: Option<ServiceOrigin>,
    pub parameters: Option<ParameterRow>,
    pub report: Option<Report>,
}

pub async fn load_service_rows(connection: &mut Connection, service_uid: &str) -> Result<ServiceRows, StoreError> {
    let select = sqlx::query(sqlx::AssertSqlSafe(SELECT.as_str())).bind(service_uid.to_owned());
    let row = select.fetch_one(connection).await?;
    let mut parts = Parts::of(&row);
    Ok(ServiceRows {
        assignment: parts.next()?,
        held: parts.next()?,
        member: parts.next()?,
        origin: parts.next()?,
        parameters: parts.next()?,
        report: parts.next()?,
    })
}

/// Columns in the order in which they are read.
static SELECT: LazyLock<String> = LazyLock::new(|| {
    let columns = [
        columns::<Assignment>("a"),
        columns::<HeldService>("h"),
        columns::<MemberRollout>("m").replace("m.set_pin", "COALESCE(r.pin, 0) AS set_pin"),
        columns::<ServiceOrigin>("o"),
        columns::<ParameterRow>("p"),
        columns::<Report>("said"),
    ];
    format!(
        "SELECT {} FROM (SELECT CAST($1 AS TEXT) AS uid) s \
         LEFT JOIN assignments a ON a.service_uid = s.uid LEFT JOIN held_services h ON h.service_uid = s.uid \
         LEFT JOIN set_members m ON m.service_uid = s.uid LEFT JOIN rollouts r ON r.set_uid = m.set_uid \
         LEFT JOIN service_origins o ON o.service_uid = s.uid LEFT JOIN service_parameters p ON p.service_uid = s.uid \
         LEFT JOIN reports said ON said.service_uid = s.uid",
        columns.join(", ")
    )
});

fn columns<T: Part>(table: &str) -> String {
    T::COLUMNS
        .iter()
        .map(|column| format!("{table}.{column}"))
        .collect::<Vec<_>>()
        .join(", ")
}
