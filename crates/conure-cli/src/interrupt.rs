//! Ctrl-C: the first asks the work to stop, the second stops the program.

use crate::failure::Exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long the work may take to notice: a read from a terminal or a pipe cannot look at a flag.
const PATIENCE: Duration = Duration::from_secs(2);

/// A flag that is set on the first Ctrl-C (or a request to terminate).
pub fn flag() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = flag.clone();
    // Without a handler, Ctrl-C ends the program the system's way, which will do.
    let _ = ctrlc::set_handler(move || {
        if set.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(Exit::Interrupted.code()));
        }
        std::thread::spawn(|| {
            std::thread::sleep(PATIENCE);
            std::process::exit(i32::from(Exit::Interrupted.code()));
        });
    });
    flag
}
