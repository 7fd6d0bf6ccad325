//! How the tests start the program.

use std::process::Command;

/// The program without settings of the environment, and without modelled delays: these tests look at results, not at times.
pub fn memmgr() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memmgr"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CUDART_SIM_") || text.starts_with("MEMMGR_") {
            command.env_remove(&name);
        }
    }
    command.env("CUDART_SIM_TIME", "off");
    command
}
