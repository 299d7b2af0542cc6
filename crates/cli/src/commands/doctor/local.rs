//! Checks of this machine: the connection to the hub, trust in it, clocks, versions, and the user.

use std::time::Instant;

use farwater_fleet::words::counted;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use jiff::{SignedDuration, Timestamp, fmt::rfc2822};
use kube::client::Body;
use serde_json::Value;

use super::{Check, Checks, Finding, Part, certificate};
use crate::{
    commands::version::{VERSION, who_am_i},
    connection::Session,
    failure::Result,
    text,
};

/// With a larger difference one of the clocks is wrong; a smaller one comes from the network and whole seconds.
const TOLERATED_SECONDS: i64 = 5;
/// With a larger difference a hub refuses what an agent signs.
const REFUSED_SECONDS: i64 = 120;
/// A hub renews its own certificate long before.
const SERVER_DAYS: i64 = 30;
/// Replacing an authority takes planning.
const AUTHORITY_DAYS: i64 = 180;
/// Most bytes of an answer.
const MAX_ANSWER: usize = 4 << 20;

/// An answer as received.
pub struct Answered {
    pub status: StatusCode,
    pub body: String,
    /// The server's clock. None: not stated.
    pub date: Option<Timestamp>,
}

pub async fn ask(session: &Session, attempt: &str, path: &str) -> Result<Answered> {
    ask_client(&session.client, path)
        .await
        .map_err(|error| session.failure(attempt, &error))
}

pub async fn ask_client(client: &kube::Client, path: &str) -> Result<Answered, kube::Error> {
    let request = Request::get(path).body(Body::empty()).map_err(kube::Error::HttpError)?;
    let (head, body) = client.send(request).await?.into_parts();
    let body = Limited::new(body, MAX_ANSWER)
        .collect()
        .await
        .map_err(kube::Error::Service)?;
    let date = head.headers.get(header::DATE).and_then(|value| value.to_str().ok());
    let date = date
        .and_then(|date| rfc2822::parse(date).ok())
        .map(|date| date.timestamp());
    Ok(Answered {
        status: head.status,
        body: String::from_utf8_lossy(&body.to_bytes()).into_owned(),
        date,
    })
}

pub fn add<'a>(checks: &mut Checks<'a>, session: &'a Session) {
    checks.add_many(Part::Local, "hub", reach(session));
    checks.add_many(Part::Local, "certificate", certificates(session));
    checks.add(Part::Local, "user", user(session));
}

/// One request shows whether the hub answers, its clock and its version.
async fn reach(session: &Session) -> Vec<Check> {
    let asked = Instant::now();
    let answered = match ask(session, "ask the hub's version", "/version").await {
        Ok(answered) => answered,
        Err(failure) => return vec![Check::new(Part::Local, "hub", failure)],
    };
    let took = asked.elapsed();
    if answered.status != StatusCode::OK {
        let found = format!("{} answers /version with {}", session.server, answered.status);
        return vec![Check::new(
            Part::Local,
            "hub",
            Finding::fail(found, "check the address: is it a Farwater hub?"),
        )];
    }
    let found = format!("answers within {} ms; its certificate is trusted", took.as_millis());
    let version: Value = serde_json::from_str(&answered.body).unwrap_or_default();
    vec![
        Check::new(Part::Local, "hub", Finding::ok(found)),
        Check::new(
            Part::Local,
            "clock",
            compare_clocks("the hub's", answered.date, Timestamp::now()),
        ),
        Check::new(
            Part::Local,
            "versions",
            compare_versions(version["gitVersion"].as_str().unwrap_or_default(), VERSION),
        ),
    ]
}

/// `whose`: precedes "clock" in the sentence.
pub fn compare_clocks(whose: &str, there: Option<Timestamp>, here: Timestamp) -> Finding {
    let remedy = "set the clock of whichever is wrong (chronyd, systemd-timesyncd)";
    let Some(there) = there else {
        return Finding::warn(
            format!("{whose} clock is not told: the answer has no Date"),
            "is a proxy between?",
        );
    };
    let away = here.as_second() - there.as_second();
    let side = if away > 0 { "ahead of" } else { "behind" };
    match away.abs() {
        0..=TOLERATED_SECONDS => Finding::ok(format!("within {TOLERATED_SECONDS} s of {whose}")),
        seconds if seconds <= REFUSED_SECONDS => Finding::warn(format!("{seconds} s {side} {whose}"), remedy),
        seconds => Finding::fail(format!("{seconds} s {side} {whose}"), remedy),
    }
}

/// A hub's version is `v1.33.0+farwater.0.1.0`: the Kubernetes API version that it serves, and its own version.
fn compare_versions(hub: &str, own: &str) -> Finding {
    let Some((_, hub)) = hub.split_once("+farwater.") else {
        let found = format!("{} is no Farwater hub's version", text::plain(hub));
        return Finding::fail(found, "check the address: is it a Farwater hub?");
    };
    if hub == own {
        return Finding::ok(format!("this program and the hub are {own}"));
    }
    let found = format!("this program is {own}, the hub {}", text::plain(hub));
    Finding::warn(found, "install the program of the hub's version")
}

async fn certificates(session: &Session) -> Vec<Check> {
    let shown = match certificate::look(&session.server).await {
        Ok(shown) => shown,
        Err(error) => {
            let finding = Finding::warn(
                format!("can't read it: {error}"),
                "is a proxy between? Ask from elsewhere",
            );
            return vec![Check::new(Part::Local, "certificate", finding)];
        }
    };
    let now = Timestamp::now();
    let remedy = "see docs/runbooks/certificate-ends.md";
    let mut checks = vec![Check::new(
        Part::Local,
        "certificate",
        judge_end(shown.server_end, SERVER_DAYS, now, remedy),
    )];
    if let Some(authority) = shown.authority {
        let mut finding = judge_end(authority.end, AUTHORITY_DAYS, now, remedy);
        finding.found = format!("{}; its pin is {}", finding.found, authority.pin);
        checks.push(Check::new(Part::Local, "authority", finding));
    }
    checks
}

fn judge_end(end: Option<i64>, days: i64, now: Timestamp, remedy: &str) -> Finding {
    let Some(end) = end.and_then(|end| Timestamp::from_second(end).ok()) else {
        return Finding::warn("its end can't be read", remedy);
    };
    let left = end.duration_since(now);
    let date = end.strftime("%Y-%m-%d");
    if left <= SignedDuration::ZERO {
        return Finding::fail(format!("it ended on {date}"), remedy);
    }
    let left = left.as_hours() / 24;
    let found = format!("it ends in {}, on {date}", counted(left, "day"));
    if left < days {
        Finding::warn(found, remedy)
    } else {
        Finding::ok(found)
    }
}

async fn user(session: &Session) -> Finding {
    match who_am_i(session).await {
        Ok(user) => Finding::ok(format!("the hub takes you for {}", text::plain(&user))),
        Err(failure) => failure.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Grade, *};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn a_clock_that_is_away_is_told_by_how_much_and_in_which_direction() {
        let check = |here: i64, grade: Grade, found: &str| {
            let finding = compare_clocks("the hub's", Some(at(1_000)), at(here));
            assert_eq!((finding.grade, &*finding.found), (grade, found));
        };
        check(1_003, Grade::Ok, "within 5 s of the hub's");
        check(1_030, Grade::Warn, "30 s ahead of the hub's");
        check(100, Grade::Fail, "900 s behind the hub's");
        assert_eq!(compare_clocks("the hub's", None, at(0)).grade, Grade::Warn);
    }

    #[test]
    fn certificates_are_judged_by_the_days_that_are_left() {
        let day = 86_400;
        let check = |end: Option<i64>, grade: Grade| assert_eq!(judge_end(end, 30, at(0), "").grade, grade, "{end:?}");
        check(Some(31 * day), Grade::Ok);
        check(Some(29 * day), Grade::Warn);
        check(Some(-1), Grade::Fail);
        check(None, Grade::Warn);
    }

    #[test]
    fn versions_that_differ_are_told() {
        assert_eq!(compare_versions("v1.33.0+farwater.0.1.0", "0.1.0").grade, Grade::Ok);
        assert_eq!(compare_versions("v1.33.0+farwater.0.3.0", "0.1.0").grade, Grade::Warn);
        assert_eq!(compare_versions("v1.36.3", "0.1.0").grade, Grade::Fail);
    }
}
