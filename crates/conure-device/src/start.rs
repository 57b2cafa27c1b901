//! What only the very start of a process can tell.
//!
//! A program whose standard output is closed (`program >&-`) is given `/dev/null` in its place by Rust's runtime, before `main`:
//! results would vanish and all would seem well. Whether it was closed is therefore looked up before that, by a function
//! in the list of those that the system's loader calls.

// A function before `main`, and a call of the system.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether the process was started without a standard output. Never where that cannot be told.
pub fn stdout_was_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

#[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
mod first {
    use super::CLOSED;
    use std::ffi::c_int;
    use std::sync::atomic::Ordering;

    unsafe extern "C" {
        fn fcntl(descriptor: c_int, command: c_int, ...) -> c_int;
    }

    /// Reads a descriptor's flags; the same number on all of these systems.
    const F_GETFD: c_int = 1;
    const STDOUT: c_int = 1;

    extern "C" fn look() {
        // SAFETY: the command takes no further argument, and changes nothing whatever the descriptor is.
        let flags = unsafe { fcntl(STDOUT, F_GETFD) };
        CLOSED.store(flags == -1, Ordering::Relaxed);
    }

    // SAFETY: the section is a list of functions of this type, which are called once before `main`, in one thread. This one needs
    // nothing that Rust's runtime sets up.
    #[used]
    #[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
    #[cfg_attr(not(target_os = "macos"), unsafe(link_section = ".init_array"))]
    static LOOK: extern "C" fn() = look;
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::process::Command;

    /// Says by its end how this very program finds its output when it is started anew.
    const ASKED: &str = "CONURE_TEST_STDOUT_WAS_CLOSED";

    #[test]
    fn a_closed_output_is_seen_and_a_discarded_one_is_none() {
        if std::env::var_os(ASKED).is_some() {
            std::process::exit(if stdout_was_closed() { 41 } else { 42 });
        }
        let program = std::env::current_exe().unwrap();
        let test = "start::tests::a_closed_output_is_seen_and_a_discarded_one_is_none";
        for (redirection, code) in
            [(">&-", 41), (">/dev/null", 42), ("1<>/dev/null", 42), ("| cat; exit ${PIPESTATUS[0]}", 42)]
        {
            let script = format!("\"$0\" --exact {test} --nocapture {redirection}");
            let mut command = Command::new("bash");
            command.args(["-c", &script]).arg(&program).env(ASKED, "1");
            assert_eq!(command.status().unwrap().code(), Some(code), "{redirection}");
        }
    }
}
