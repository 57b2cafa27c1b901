//! What counting operations takes: lengths of operands.

/// The lengths of operand `i`; none if it is not there.
pub(crate) fn dims<'a>(operands: &[&'a [usize]], i: usize) -> &'a [usize] {
    operands.get(i).copied().unwrap_or(&[])
}

/// Elements of operand `i`.
pub(crate) fn elements(operands: &[&[usize]], i: usize) -> f64 {
    dims(operands, i).iter().map(|&d| d as f64).product()
}
