//! Runs other people's decoders so that a panic in them becomes an error, without a trace on stderr.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// A caught panic. What it said is for developers, not for users, and is not kept.
#[derive(Debug)]
pub(crate) struct Panicked;

/// Calls `f`; a panic inside is caught. Anything that `f` changed by reference must be thrown away then.
///
/// The process-wide panic hook is wrapped once, so that panics on this thread within `f`, which are expected and
/// handled, print nothing. All other panics reach the hook that was there before.
pub(crate) fn guard<T>(f: impl FnOnce() -> T) -> Result<T, Panicked> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !GUARDED.with(Cell::get) {
                previous(info);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    GUARDED.set(outer);
    result.map_err(|_| Panicked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_caught() {
        assert_eq!(guard(|| 3).unwrap(), 3);
        assert!(guard(|| -> i32 { panic!("not seen") }).is_err());
        assert!(guard(|| guard(|| -> i32 { panic!("not seen") }).is_err()).unwrap());
    }
}
