//! `include/memmgr.h` is what the source says.

use std::{env, fs, path::Path};

#[test]
fn the_checked_in_header_is_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    cbindgen::generate_with_config(folder, config)
        .expect("cbindgen reads the source")
        .write(&mut made);
    let path = folder.join("include/memmgr.h");
    if env::var_os("MEMMGR_UPDATE").is_some() {
        fs::write(&path, &made).unwrap();
        return;
    }
    let there = fs::read(&path).unwrap_or_default();
    assert!(
        made == there,
        "include/memmgr.h differs from what is made of the source now: \
         MEMMGR_UPDATE=1 cargo test -p memmgr-capi --test header"
    );
}
