//! Our path patterns compared with Git's own, as gix implements them.

use farwater_api::path_pattern::PathPattern;
use gix::{
    bstr::ByteSlice as _,
    glob::{Pattern, pattern::Case, wildmatch::Mode},
};
use proptest::prelude::*;

fn fits_in_git(pattern: &str, path: &str, is_folder: bool) -> bool {
    let pattern = Pattern::from_bytes_without_negation(pattern.as_bytes()).unwrap();
    let base = path.rfind('/').map(|slash| slash + 1);
    let mode = Mode::NO_MATCH_SLASH_LITERAL;
    pattern.matches_repo_relative_path(path.as_bytes().as_bstr(), base, Some(is_folder), Case::Sensitive, mode)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn patterns_fit_what_they_fit_in_git(
        pattern in r"/?([ab?*]|\*\*|\[ab\]|\[!a-b\]|\\a){1,3}(/([ab?*]{1,3}|\*\*)){0,3}/?",
        path in "[abc]{1,3}(/[abc]{1,3}){0,4}", is_folder: bool,
    ) {
        let ours = PathPattern::parse(&pattern).unwrap();
        let names: Vec<&str> = path.split('/').collect();
        prop_assert_eq!(ours.fits(&names, is_folder), fits_in_git(&pattern, &path, is_folder), "{} {}", pattern, path);
    }
}
