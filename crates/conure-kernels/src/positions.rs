//! Sinusoid tables of relative positions (Transformer-XL as NeMo computes it).

use crate::{Result, check};

const NAME: &str = "relative_sinusoids";

/// Fills `table` `[P, D]` for `P = before + after + 1` relative positions from `+before` down to `-after`: even columns
/// `sin(position * w)`, odd ones `cos`, with `w = exp(-2 i ln(10000) / D)` for the pair `i`; computed in f64.
///
/// Full attention over T frames takes `before = after = T - 1`, banded attention its window.
///
/// # Errors
/// [`crate::KernelError::Length`] if `table` does not have the shape, [`crate::KernelError::Invalid`] if D is odd.
pub fn relative_sinusoids(before: usize, after: usize, d: usize, table: &mut [f32]) -> Result<()> {
    let rows = before.saturating_add(after).saturating_add(1);
    check::length(NAME, "table", "[before + after + 1, D]", &[rows, d], table.len())?;
    sinusoids(isize::try_from(before).unwrap_or(isize::MAX), d, table)
}

/// As [`relative_sinusoids`], for the positions from `first` downwards, as many as `table` `[rows, D]` has rows.
///
/// # Errors
/// [`crate::KernelError::Invalid`] if D is odd or `table` is not whole rows.
pub fn sinusoids(first: isize, d: usize, table: &mut [f32]) -> Result<()> {
    check::valid(NAME, d.is_multiple_of(2), || format!("D is {d}, which is odd"))?;
    if d == 0 {
        return Ok(());
    }
    check::valid(NAME, table.len().is_multiple_of(d), || {
        format!("{} floats are not rows of {d}", table.len())
    })?;
    for pair in 0..d / 2 {
        let frequency = (-2.0 * pair as f64 * 10000f64.ln() / d as f64).exp();
        for (row, values) in table.chunks_exact_mut(d).enumerate() {
            let (sin, cos) = ((first as f64 - row as f64) * frequency).sin_cos();
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
        let mut part = [9.0; 2 * 4];
        sinusoids(-1, 4, &mut part).unwrap();
        assert_eq!(part[..], table[12..]);
    }

    #[test]
    fn wrong_shapes_are_errors() {
        assert!(relative_sinusoids(1, 1, 3, &mut [0.0; 9]).is_err());
        assert!(relative_sinusoids(1, 1, 4, &mut [0.0; 8]).is_err());
        assert!(relative_sinusoids(usize::MAX, 1, 4, &mut [0.0; 8]).is_err());
        assert!(relative_sinusoids(0, 0, 0, &mut []).is_ok());
        assert!(sinusoids(3, 4, &mut [0.0; 9]).is_err());
    }
}
