//! Rules of ServiceSets that their schema does not state.

use std::collections::HashSet;

use farwater_api::ServiceSetSpec;
use farwater_fleet::{
    rollout::{InvalidPolicy, Policy},
    stamping::Template,
};
use serde_json::Value;

use crate::kinds::{stamped::check_template, status::FieldError};

/// For [`strategy::validate`]: a template is checked like the services that are made of it.
pub fn validate(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    // An object that its schema refuses can't be parsed.
    if !errors.is_empty() || old.is_some_and(|old| old["spec"] == object["spec"]) {
        return;
    }
    let Ok(spec) = serde_json::from_value::<ServiceSetSpec>(object["spec"].clone()) else {
        return;
    };
    let mut known = HashSet::new();
    for (at, template) in Template::variants(&spec) {
        for mut error in check_template(&template).err().unwrap_or_default() {
            // An error of the template itself would occur in every variant of it.
            if known.insert(error.to_string()) {
                let field = error.field.strip_prefix("spec").unwrap_or(&error.field);
                let place = format!("spec.{at}{field}");
                error.message = error.message.replace(&error.field, &place);
                error.field = place;
                errors.push(error);
            }
        }
    }
    if let Err(InvalidPolicy { field, value, remedy }) = Policy::of(&spec.rollout) {
        let why = format!("{value}: it must be {remedy}");
        errors.push(FieldError::invalid_unquoted(format!("spec.rollout.{field}"), &why));
    }
    for problem in Template::read("", &spec).err().unwrap_or_default() {
        errors.push(FieldError::invalid_unquoted(
            format!("spec.{}", problem.field),
            &problem.why,
        ));
    }
}
