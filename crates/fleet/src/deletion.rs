//! Finalizers that hold a resource of the hub while it is being deleted.

use farwater_api::{AGENT_FINALIZER, SET_FINALIZER};

/// Each finalizer with the condition for its removal, separated by `; `. Empty: there is none.
pub fn holders(finalizers: &[String]) -> String {
    let told = finalizers.iter().map(|finalizer| {
        let until = match finalizer.as_str() {
            AGENT_FINALIZER => "until the agent of its cluster has confirmed",
            SET_FINALIZER => "until its services are deleted or released",
            "foregroundDeletion" => "until the objects that it owns are gone",
            "orphan" => "until the objects that it owns have lost their reference to it",
            _ => "until the program that set it takes it off",
        };
        format!("finalizer {finalizer}, {until}")
    });
    told.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finalizer_is_named_with_what_takes_it_off() {
        let check = |finalizers: &[&str], expected: &str| {
            let finalizers: Vec<String> = finalizers.iter().map(|one| (*one).to_owned()).collect();
            assert_eq!(holders(&finalizers), expected);
        };
        check(&[], "");
        check(
            &["farwater.dev/agent", "example.com/audit"],
            "finalizer farwater.dev/agent, until the agent of its cluster has confirmed; finalizer example.com/audit, until the program \
             that set it takes it off",
        );
    }
}
