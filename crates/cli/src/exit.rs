//! Exit codes: 0 is yes, 1 is no, and 2 and above are failures. A test compares the table in `docs/cli.md` with this
//! file.

/// Done, or the answer is yes.
pub const YES: u8 = 0;
/// The answer is no: unhealthy, refused, not what was asked for.
pub const NO: u8 = 1;
/// The command line, or a file that it names, can't be used.
pub const USAGE: u8 = 2;
/// Not signed in, or not allowed.
pub const DENIED: u8 = 3;
/// The named thing does not exist.
pub const MISSING: u8 = 4;
/// The hub refused the change: a conflict, an invalid object or a failed precondition.
pub const CONFLICT: u8 = 5;
/// The condition that the command waited for was not met in time.
pub const TIMEOUT: u8 = 6;
/// The hub can't be reached, or the answer is not one of a hub.
pub const UNREACHABLE: u8 = 7;
/// The hub process ended with an error.
pub const HUB_FAILED: u8 = 8;
/// A bug in Farwater.
pub const INTERNAL: u8 = 70;

#[cfg(test)]
mod tests {
    /// Every code with the beginning of its description in the documentation.
    const DOCUMENTED: [(u8, &str); 10] = [
        (super::YES, "done, or the answer is yes"),
        (super::NO, "the answer is no"),
        (super::USAGE, "the command line, or a file that it names, can't be used"),
        (super::DENIED, "not signed in, or not allowed"),
        (super::MISSING, "the named thing does not exist"),
        (super::CONFLICT, "the hub refused the change"),
        (super::TIMEOUT, "the command timed out"),
        (super::UNREACHABLE, "the hub can't be reached"),
        (super::HUB_FAILED, "`farwater hub` ended with an error"),
        (super::INTERNAL, "a bug in Farwater"),
    ];

    #[test]
    fn every_code_is_documented() {
        let page = include_str!("../../../docs/cli.md");
        for (code, meaning) in DOCUMENTED {
            assert!(
                page.contains(&format!("| {code} | {meaning}")),
                "docs/cli.md lacks {code}: {meaning}"
            );
        }
    }
}
