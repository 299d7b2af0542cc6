//! Reasons of refusals: `details.causes[].reason` in a Status with code 403. Programs choose the next step by them; the
//! Status' message is for people.

/// Another object made this one and owns its fields. The cause's message names that object as arguments of `farwater`:
/// `serviceset/web -n team-a`.
pub const OWNED: &str = "Owned";
/// No ClusterGrant lets the namespace deploy to the cluster. The cause's message is the namespace.
pub const NOT_GRANTED: &str = "NotGranted";
/// A ClusterGrant does not allow it. The cause's message is the grant's name.
pub const GRANT_EXCEEDED: &str = "GrantExceeded";
/// Two people are required, and the first has not proposed it. The cause's message is the object that requires two.
pub const NOT_PROPOSED: &str = "NotProposed";
