//! The checks at every kernel's entry.

use crate::{KernelError, Result};

/// The product of `dims`, or an overflow error naming `operand`.
pub(crate) fn size(kernel: &'static str, operand: &'static str, dims: &[usize]) -> Result<usize> {
    dims.iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d))
        .filter(|n| n.checked_mul(4).is_some())
        .ok_or(KernelError::Overflow { kernel, operand })
}

/// That a slice of `found` elements has exactly the shape `dims`, called `shape` in messages.
pub(crate) fn length(
    kernel: &'static str,
    operand: &'static str,
    shape: &'static str,
    dims: &[usize],
    found: usize,
) -> Result<()> {
    let expected = size(kernel, operand, dims)?;
    if expected != found {
        return Err(KernelError::Length { kernel, operand, shape, expected, found });
    }
    Ok(())
}

/// That `condition` holds; `reason` is only built when it does not.
pub(crate) fn valid(kernel: &'static str, condition: bool, reason: impl FnOnce() -> String) -> Result<()> {
    if condition { Ok(()) } else { Err(KernelError::Invalid { kernel, reason: reason() }) }
}
