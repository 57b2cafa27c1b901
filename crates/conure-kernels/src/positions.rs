//! Sinusoid tables of relative positions (Transformer-XL as NeMo computes it).

use crate::{Result, check};

/// Fills `table` `[P, D]` for `P = before + after + 1` relative positions from `+before` down to `-after`: even columns
/// `sin(position * w)`, odd ones `cos`, with `w = exp(-2 i ln(10000) / D)` for the pair `i`; computed in f64.
///
/// Full attention over T frames takes `before = after = T - 1`, banded attention its window.
///
/// # Errors
/// [`crate::KernelError::Length`] if `table` does not have the shape, [`crate::KernelError::Invalid`] if D is odd.
pub fn relative_sinusoids(before: usize, after: usize, d: usize, table: &mut [f32]) -> Result<()> {
    const NAME: &str = "relative_sinusoids";
    check::valid(NAME, d.is_multiple_of(2), || format!("D is {d}, which is odd"))?;
    let rows = before.saturating_add(after).saturating_add(1);
    check::length(NAME, "table", "[before + after + 1, D]", &[rows, d], table.len())?;
    if d == 0 {
        return Ok(());
    }
    for pair in 0..d / 2 {
        let frequency = (-2.0 * pair as f64 * 10000f64.ln() / d as f64).exp();
        for (row, values) in table.chunks_exact_mut(d).enumerate() {
            let (sin, cos) = ((before as f64 - row as f64) * frequency).sin_cos();
            values[2 * pair] = sin as f32;
            values[2 * pair + 1] = cos as f32;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_run_from_plus_to_minus() {
        let mut table = [9.0; 5 * 4];
        relative_sinusoids(2, 2, 4, &mut table).unwrap();
        assert_eq!(table[8..12], [0.0, 1.0, 0.0, 1.0]);
        assert_eq!(table[0..2], [2f64.sin() as f32, 2f64.cos() as f32]);
        assert_eq!(table[2..4], [0.02f64.sin() as f32, 0.02f64.cos() as f32]);
        assert_eq!(table[16], -table[0]);
        assert_eq!(table[17], table[1]);
    }

    #[test]
    fn wrong_shapes_are_errors() {
        assert!(relative_sinusoids(1, 1, 3, &mut [0.0; 9]).is_err());
        assert!(relative_sinusoids(1, 1, 4, &mut [0.0; 8]).is_err());
        assert!(relative_sinusoids(usize::MAX, 1, 4, &mut [0.0; 8]).is_err());
        assert!(relative_sinusoids(0, 0, 0, &mut []).is_ok());
    }
}
