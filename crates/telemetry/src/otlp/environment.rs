//! OpenTelemetry's variables, by its specification. An unsupported value is an error.
//!
//! The exporters themselves read endpoints, headers, time-outs and sizes of batches.

use std::path::PathBuf;

use opentelemetry_sdk::trace::Sampler;

#[derive(Debug, thiserror::Error)]
#[error("read {variable}={value:?} of the environment: {expected}")]
pub struct EnvironmentError {
    variable: &'static str,
    value: String,
    expected: &'static str,
}

/// The configuration in the variables.
#[derive(Clone, Debug)]
pub struct Environment {
    pub logs: bool,
    pub traces: bool,
    pub sampler: Sampler,
    /// PEM file of the authorities for the endpoint. None: the system's.
    pub certificate: Option<PathBuf>,
    /// Whether the variables name the service.
    pub names_service: bool,
}

impl Environment {
    /// `variable`: the value of a variable, if it is set.
    pub fn read(variable: impl Fn(&'static str) -> Option<String>) -> Result<Self, EnvironmentError> {
        // By the specification, an empty variable counts as unset.
        let get = |name: &'static str| variable(name).filter(|value| !value.is_empty());
        let is_disabled = get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let is_on = |endpoint, exporter| -> Result<bool, EnvironmentError> {
            let named = get("OTEL_EXPORTER_OTLP_ENDPOINT").or_else(|| get(endpoint)).is_some();
            match get(exporter).as_deref() {
                None | Some("otlp") => Ok(named && !is_disabled),
                Some("none") => Ok(false),
                Some(other) => Err(wrong(exporter, other, "expected otlp or none")),
            }
        };
        let environment = Self {
            logs: is_on("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "OTEL_LOGS_EXPORTER")?,
            traces: is_on("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")?,
            sampler: sampler(get("OTEL_TRACES_SAMPLER"), get("OTEL_TRACES_SAMPLER_ARG"))?,
            certificate: get("OTEL_EXPORTER_OTLP_CERTIFICATE").map(PathBuf::from),
            names_service: get("OTEL_SERVICE_NAME").is_some()
                || get("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|text| text.contains("service.name=")),
        };
        if environment.is_off() {
            return Ok(environment);
        }
        const PROTOCOLS: [&str; 3] = [
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL",
        ];
        for name in PROTOCOLS {
            if let Some(value) = get(name).filter(|value| value != "http/protobuf") {
                return Err(wrong(name, &value, "only http/protobuf is supported"));
            }
        }
        const NOT_DONE: [&str; 2] = ["OTEL_EXPORTER_OTLP_CLIENT_KEY", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"];
        for name in NOT_DONE {
            if let Some(value) = get(name) {
                return Err(wrong(
                    name,
                    &value,
                    "client certificates are not supported; use OTEL_EXPORTER_OTLP_HEADERS",
                ));
            }
        }
        Ok(environment)
    }

    pub fn is_off(&self) -> bool {
        !self.logs && !self.traces
    }
}

fn wrong(variable: &'static str, value: &str, expected: &'static str) -> EnvironmentError {
    EnvironmentError {
        variable,
        value: value.to_owned(),
        expected,
    }
}

/// No trace has a parent in another system, so `parentbased_…` has the same effect.
fn sampler(name: Option<String>, argument: Option<String>) -> Result<Sampler, EnvironmentError> {
    const NAME: &str = "OTEL_TRACES_SAMPLER";
    let Some(name) = name else { return Ok(Sampler::AlwaysOn) };
    match name.trim_start_matches("parentbased_") {
        "always_on" => Ok(Sampler::AlwaysOn),
        "always_off" => Ok(Sampler::AlwaysOff),
        "traceidratio" => {
            let text = argument.unwrap_or_else(|| "1.0".to_owned());
            let ratio = text.parse::<f64>().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
            let expected = "expected a number between 0 and 1";
            ratio
                .map(Sampler::TraceIdRatioBased)
                .ok_or_else(|| wrong("OTEL_TRACES_SAMPLER_ARG", &text, expected))
        }
        _ => Err(wrong(NAME, &name, "expected always_on, always_off or traceidratio")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, String> {
        let find = |name: &str| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        };
        Environment::read(find).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_sent_without_an_endpoint() {
        assert!(read(&[]).unwrap().is_off());
        assert!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).unwrap().is_off());
        assert!(read(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap().is_off());
        let both = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a")]).unwrap();
        assert!(both.logs && both.traces);
        let one = read(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://a")]).unwrap();
        assert!(!one.logs && one.traces);
        let on = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a");
        assert!(!read(&[on, ("OTEL_LOGS_EXPORTER", "none")]).unwrap().logs);
        assert!(read(&[on, ("OTEL_SDK_DISABLED", "true")]).unwrap().is_off());
    }

    #[test]
    fn what_can_not_be_done_is_refused_by_its_name() {
        let on = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a");
        let check = |variable: (&str, &str), expected: &str| {
            let error = read(&[on, variable]).unwrap_err();
            assert!(error.contains(variable.0) && error.contains(expected), "{error}");
        };
        check(("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), "http/protobuf");
        check(("OTEL_TRACES_SAMPLER", "jaeger_remote"), "traceidratio");
        check(("OTEL_TRACES_EXPORTER", "zipkin"), "otlp");
        check(("OTEL_EXPORTER_OTLP_CLIENT_KEY", "key.pem"), "client certificates");
        let ratio = ("OTEL_TRACES_SAMPLER", "traceidratio");
        assert!(
            read(&[on, ratio, ("OTEL_TRACES_SAMPLER_ARG", "2")])
                .unwrap_err()
                .contains("between 0 and 1")
        );
        let ratio = read(&[on, ratio, ("OTEL_TRACES_SAMPLER_ARG", "0.25")]).unwrap();
        assert!(matches!(ratio.sampler, Sampler::TraceIdRatioBased(ratio) if ratio == 0.25));
    }
}
