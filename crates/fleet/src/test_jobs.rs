//! The tests of a service as Jobs, which run as hooks like those of its source.

use farwater_api::{
    Digest,
    hooks::{HOOK, TEST},
    test_container::{ServiceTest, Variable},
};
use serde_json::{Value, json};

use crate::{duration, plan::RenderedObject};

/// Longest name of a Job, in bytes: it is also the value of a label of its pods.
const MAX_NAME: usize = 63;
/// Most bytes of all tests of a service as JSON. They are part of the desired state, which has 16 MiB for ten thousand
/// services.
pub const MAX_TESTS_BYTES: usize = 16 << 10;

/// Checks whether tests can be run. The error is the field below `spec.tests`, and what it must be.
pub fn check_tests(tests: &[ServiceTest]) -> Result<(), (String, String)> {
    for (i, test) in tests.iter().enumerate() {
        duration::TEST_TIMEOUT
            .check(&test.timeout)
            .map_err(|wrong| (format!("[{i}].timeout"), wrong))?;
    }
    let bytes = serde_json::to_vec(tests).map_or(0, |json| json.len());
    if bytes > MAX_TESTS_BYTES {
        let wrong = format!("all tests together have {bytes} bytes as JSON, and may have {MAX_TESTS_BYTES}");
        return Err((
            String::new(),
            format!("{wrong}; a longer script belongs into the image or the source"),
        ));
    }
    Ok(())
}

/// The Jobs of a service's tests.
pub fn render_tests(service: &str, tests: &[ServiceTest]) -> Vec<RenderedObject> {
    let render = |test: &ServiceTest| RenderedObject {
        manifest: render_test(service, test),
        origin: format!("test {} of the service's spec", test.name),
    };
    tests.iter().map(render).collect()
}

fn render_test(service: &str, test: &ServiceTest) -> Value {
    let mut container = json!({"name": "test", "image": test.image});
    for (field, words) in [("command", &test.command), ("args", &test.args)] {
        if !words.is_empty() {
            container[field] = json!(words);
        }
    }
    if !test.env.is_empty() {
        let variable = |variable: &Variable| json!({"name": variable.name, "value": variable.value});
        container["env"] = test.env.iter().map(variable).collect();
    }
    let mut pod = json!({"restartPolicy": "Never", "containers": [container]});
    if let Some(account) = &test.service_account_name {
        pod["serviceAccountName"] = json!(account);
    }
    let timeout = duration::TEST_TIMEOUT
        .check(&test.timeout)
        .unwrap_or(duration::TEST_TIMEOUT.most);
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job_name(service, &test.name), "annotations": {HOOK: "Test", TEST: test.name}},
        "spec": {
            "backoffLimit": test.retries,
            "activeDeadlineSeconds": timeout.as_secs().max(1),
            "template": {"spec": pod},
        },
    })
}

fn job_name(service: &str, test: &str) -> String {
    let name = format!("{service}-test-{test}");
    if name.len() <= MAX_NAME && !service.contains('.') {
        return name;
    }
    format!("test-{test}-{}", &Digest::of(service).to_hex()[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(value: Value) -> ServiceTest {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_test_is_a_job_that_is_a_hook() {
        let smoke = test(
            json!({"name": "smoke", "image": "curl", "command": ["curl", "http://web"], "timeout": "90s", "retries": 2,
            "env": [{"name": "A", "value": "1"}], "serviceAccountName": "tester"}),
        );
        let job = &render_tests("web", &[smoke])[0].manifest;
        assert_eq!(
            job["metadata"],
            json!({"name": "web-test-smoke", "annotations": {HOOK: "Test", TEST: "smoke"}})
        );
        let spec = json!({"backoffLimit": 2, "activeDeadlineSeconds": 90, "template": {"spec": {
            "restartPolicy": "Never", "serviceAccountName": "tester",
            "containers": [{"name": "test", "image": "curl", "command": ["curl", "http://web"], "env": [{"name": "A", "value": "1"}]}]}}});
        assert_eq!(job["spec"], spec);
    }

    #[test]
    fn names_fit_a_label() {
        assert_eq!(job_name("web", "smoke"), "web-test-smoke");
        let long = job_name(&"a".repeat(200), &"b".repeat(40));
        assert!(long.len() <= MAX_NAME && long.starts_with("test-bbb"), "{long}");
        assert_ne!(job_name(&"a".repeat(200), "x"), job_name(&"a".repeat(201), "x"));
    }

    #[test]
    fn tests_that_can_not_be_run_are_told() {
        let check = |value: Value, field: &str, wrong: &str| {
            let (at, told) = check_tests(&[test(value)]).unwrap_err();
            assert_eq!((at.as_str(), told.as_str()), (field, wrong));
        };
        check(
            json!({"name": "a", "image": "b", "timeout": "25h"}),
            "[0].timeout",
            "must be between 1s and 24h",
        );
        let long = json!({"name": "a", "image": "b", "args": vec!["x".repeat(4000); 5]});
        assert!(
            check_tests(&[test(long)])
                .unwrap_err()
                .1
                .starts_with("all tests together have 20")
        );
        assert_eq!(check_tests(&[test(json!({"name": "a", "image": "b"}))]), Ok(()));
    }
}
