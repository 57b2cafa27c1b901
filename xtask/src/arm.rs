//! `cargo xtask arm`: the kernels of the Arm build against their definitions, on a machine that has none, in QEMU's emulation.

use crate::process::{self, cargo, succeeds};
use crate::setup;
use anyhow::{Context, Result};
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// What Debian and Ubuntu name what links and runs programs of that target, and where its libraries go.
const PACKAGES: [&str; 3] = ["qemu-user-static", "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"];
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64-static";
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// Installs what is missing, then runs the tests of the kernels and the conformance walk of the ops: on NEON with and without
/// its product of bytes, and on the scalar kernels. `args` go to the tests.
///
/// # Errors
/// What could not be installed; tests that fail.
pub fn run(args: &[String]) -> Result<()> {
    let there = |program: &str| succeeds(Command::new(program).arg("--version"));
    if !(there(LINKER) && there(EMULATOR)) {
        setup::apt_install(&PACKAGES)
            .with_context(|| format!("the Arm build's tests need {}", PACKAGES.join(", ")))?;
    }
    let mut tests = cargo();
    tests.args(["test", "--locked", "--target", TARGET]);
    tests.args(["-p", "conure-kernels", "-p", "conure-ops", "--lib", "--test", "conformance"]);
    // The rates of a machine that is emulated say nothing, and take minutes to measure.
    tests.args(["--", "--skip", "rates_are_rates"]).args(args);
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("{EMULATOR} -cpu max -L {LIBRARIES}"));
    process::run(&mut tests)
}
