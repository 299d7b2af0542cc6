//! Measurements: the answers of Prometheus, and whether they satisfy the condition.

use farwater_api::pipeline::PromotionGate;
use serde_json::{Number, Value, json};

use super::answers::{Heard, Said};
use crate::{
    conditions::cut,
    health::expression::{Expression, Subject},
};

/// Most bytes of a value in a message.
const MAX_VALUE: usize = 40;

/// A metric gate, parsed.
#[derive(Clone, Debug)]
pub struct Measuring {
    pub stated: PromotionGate,
    pub condition: Expression,
    /// Seconds between two measurements.
    pub interval: i64,
    /// Seconds for which the condition must hold. 0: any time.
    pub duration: i64,
    /// Number of times in a row that the condition must hold.
    pub count: u32,
    pub failure_limit: Option<u32>,
}

/// Takes one measurement from a response of [Prometheus'
/// API](https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries). A response that can't be judged is
/// an error. So is a result without any series, because a service that is gone has no errors either.
pub fn measure(condition: &Expression, body: &[u8]) -> Heard {
    let seen = match read_result(body) {
        Ok(seen) => seen,
        Err(why) => return Heard::error(why),
    };
    let told = match (&seen["value"], seen["series"].as_array()) {
        (Value::Number(value), _) => cut(&value.to_string(), MAX_VALUE),
        (_, series) => format!("{} series", series.map_or(0, Vec::len)),
    };
    match condition.is_true(&Subject::new(&seen)) {
        Ok(holds) => Heard {
            said: if holds { Said::Pass } else { Said::Fail },
            message: told,
            after: None,
        },
        Err(why) => Heard::error(format!("condition: {why} (of {told})")),
    }
}

/// The response as a condition sees it.
fn read_result(body: &[u8]) -> Result<Value, String> {
    if body.is_empty() {
        return Err("the answer is empty, or longer than anybody reads: sum it up in the query".to_owned());
    }
    let answer: Value = serde_json::from_slice(body).map_err(|_| "the answer is no JSON: is it Prometheus?")?;
    if answer["status"] != "success" {
        return Err("the answer is not that of a query: is it Prometheus?".to_owned());
    }

    let (data, empty) = (&answer["data"], json!({}));
    let series: Vec<(&Value, &Value)> = match data["resultType"].as_str() {
        Some("scalar") => vec![(&empty, &data["result"])],
        Some("vector") => {
            let all = data["result"].as_array().into_iter().flatten();
            all.map(|one| (&one["metric"], &one["value"])).collect()
        }
        _ => return Err("the query's result is neither a vector nor a scalar".to_owned()),
    };
    if series.is_empty() {
        return Err("the query has no result".to_owned());
    }

    let mut seen = json!({"series": []});
    let mut values = Vec::with_capacity(series.len());
    for (labels, sample) in series {
        let text = sample[1].as_str().ok_or("a sample has no value")?;
        // A value that is not a number can't be judged, and JSON has no infinity.
        let number = text.parse::<f64>().ok().and_then(Number::from_f64);
        let number = number.ok_or_else(|| format!("a value is {}", cut(text, MAX_VALUE)))?;
        values.push(json!({"labels": labels, "value": number}));
    }

    if let [one] = values.as_slice() {
        seen["value"] = one["value"].clone();
    }
    seen["series"] = Value::Array(values);
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(condition: &str, data: &Value, expected: (Said, &str)) {
        let condition = Expression::compile(condition).unwrap();
        let heard = measure(
            &condition,
            json!({"status": "success", "data": data}).to_string().as_bytes(),
        );
        assert_eq!((heard.said, heard.message.as_str()), expected, "{data}");
    }

    #[test]
    fn a_condition_sees_the_value_or_all_series_and_what_can_not_be_judged_is_no_pass() {
        let one = |value: &str| json!({"metric": {"job": value}, "value": [1_767_225_600.5, value]});
        let vector = |values: &[&str]| json!({"resultType": "vector", "result": values.iter().map(|value| one(value)).collect::<Vec<_>>()});
        check("self.value < 0.01", &vector(&["0.002"]), (Said::Pass, "0.002"));
        check("self.value < 1", &vector(&["2"]), (Said::Fail, "2.0"));
        check(
            "self.value == 1",
            &json!({"resultType": "scalar", "result": [1, "1"]}),
            (Said::Pass, "1.0"),
        );
        check(
            "self.series.all(s, s.value > 0)",
            &vector(&["1", "2e3"]),
            (Said::Pass, "2 series"),
        );
        check(
            "self.series.exists(s, s.labels.job == '0')",
            &vector(&["1", "0"]),
            (Said::Pass, "2 series"),
        );
        let no_value = "condition: there is no \"value\" (of 2 series)";
        check("self.value > 0", &vector(&["1", "2"]), (Said::Error, no_value));
        check(
            "self.series.all(s, s.value > 0)",
            &vector(&[]),
            (Said::Error, "the query has no result"),
        );
        check("self.value < 1", &vector(&["NaN"]), (Said::Error, "a value is NaN"));
        check("self.value < 1", &vector(&["-Inf"]), (Said::Error, "a value is -Inf"));
        check(
            "self.value",
            &vector(&["1"]),
            (Said::Error, "condition: its value is no boolean (of 1.0)"),
        );
        let matrix = json!({"resultType": "matrix", "result": []});
        check(
            "true",
            &matrix,
            (Said::Error, "the query's result is neither a vector nor a scalar"),
        );
        let condition = Expression::compile("true").unwrap();
        for wrong in ["", "<html>", "{}", r#"{"status": "error"}"#] {
            assert_eq!(measure(&condition, wrong.as_bytes()).said, Said::Error, "{wrong}");
        }
    }
}
