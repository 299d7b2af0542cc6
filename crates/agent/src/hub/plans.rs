//! Requests for plans, and their results.

use bytes::Bytes;
use farwater_api::protocol::{PLANS_PATH, PlanReport, PlanRequest};
use http::{Method, StatusCode, header};
use http_body_util::Full;

use super::{Caller, HubClient, HubError, MAX_ANSWER, read_body};

impl HubClient {
    /// The oldest waiting request. None: there is none.
    pub async fn next_plan(&self, who: &Caller<'_>) -> Result<Option<PlanRequest>, HubError> {
        let what = "get a request for a plan";
        let response = self
            .authorized(who, what, |token| {
                self.request(Method::GET, PLANS_PATH, Some(token)).body(Full::default())
            })
            .await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        let body = read_body(what, response, MAX_ANSWER).await?;
        self.read(what, &body).map(Some)
    }

    pub async fn tell_plan(&self, who: &Caller<'_>, id: &str, report: &PlanReport) -> Result<(), HubError> {
        let what = "tell a plan";
        let body = Bytes::from(serde_json::to_vec(report).map_err(|source| HubError::Malformed { what, source })?);
        let path = format!("{PLANS_PATH}/{id}");
        let sent = self.authorized(who, what, |token| {
            self.request(Method::POST, &path, Some(token))
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(body.clone()))
        });
        sent.await.map(drop)
    }
}
