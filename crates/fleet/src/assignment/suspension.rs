//! Suspensions of a service: whether one is in force, and until when.

use farwater_api::service_deployment::ServiceDeploymentSpec;
use jiff::Timestamp;

/// Whether a service is suspended at time `now`.
pub fn is_suspended(spec: &ServiceDeploymentSpec, now: Timestamp) -> bool {
    spec.suspend && suspension_end(spec).is_none_or(|until| now < until)
}

/// When a suspension ends by itself. None: it does not.
pub fn suspension_end(spec: &ServiceDeploymentSpec) -> Option<Timestamp> {
    spec.suspension
        .as_ref()
        .filter(|_| spec.suspend)?
        .until
        .as_ref()
        .map(|until| until.0)
}

/// `the service is suspended until … : reason`
pub fn describe_suspension(spec: &ServiceDeploymentSpec) -> String {
    let until = suspension_end(spec)
        .map(|until| format!(" until {until}"))
        .unwrap_or_default();
    let reason = spec
        .suspension
        .as_ref()
        .and_then(|suspension| suspension.reason.as_deref());
    format!(
        "the service is suspended{until}{}",
        reason.map(|reason| format!(": {reason}")).unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspension_counts_until_its_end_and_without_one_for_good() {
        let spec = |suspend, suspension| ServiceDeploymentSpec {
            suspend,
            suspension: serde_json::from_value(suspension).unwrap(),
            ..ServiceDeploymentSpec::default()
        };
        let at = |time: &str| time.parse::<Timestamp>().unwrap();
        let until = spec(
            true,
            serde_json::json!({"until": "2026-01-01T12:00:00Z", "reason": "a move"}),
        );
        assert!(is_suspended(&until, at("2026-01-01T11:59:59Z")) && !is_suspended(&until, at("2026-01-01T12:00:00Z")));
        assert_eq!(
            describe_suspension(&until),
            "the service is suspended until 2026-01-01T12:00:00Z: a move"
        );
        assert!(is_suspended(
            &spec(true, serde_json::Value::Null),
            at("2026-01-01T12:00:00Z")
        ));
        assert_eq!(
            describe_suspension(&spec(true, serde_json::Value::Null)),
            "the service is suspended"
        );
        // `suspend` decides; the other fields only say why and how long.
        assert!(!is_suspended(
            &spec(false, serde_json::json!({"reason": "x"})),
            at("2026-01-01T12:00:00Z")
        ));
    }
}
