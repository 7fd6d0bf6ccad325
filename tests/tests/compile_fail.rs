//! What the safe layer forbids does not compile: each file of `tests/compile_fail` holds one misuse, and beside it what
//! the pinned compiler says. After a change of compiler, `TRYBUILD=overwrite` writes that anew.
#![cfg(feature = "sim")]

#[test]
fn what_would_dangle_or_race_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
