//! Rotary positions: pairs of elements of each head turned by angles that grow with the position.

use crate::buffer::SharedMut;
use crate::isa::{Kernel, dispatch};
use crate::simd::{Simd, for_lanes, load_n, store_n};
use crate::{Cpu, Result, check};

const NAME: &str = "rope";

/// Angles that are worth a task of their own.
const ANGLES: usize = 512;

/// Elements that are worth a task of their own.
const GRAIN: usize = 16 * 1024;

/// `out[row] = [m cos(p f_0), m cos(p f_1), ..., m sin(p f_0), ...]`: `freqs` `[R]` in radians per position, `out`
/// `[rows, 2 R]`; the position of angle j in row `r` is `position(r, j)`.
///
/// Angles are reduced to one turn in f64, so that they are as good at position 100000 as at 1.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape.
pub fn angles(
    cpu: &Cpu,
    rows: usize,
    freqs: &[f64],
    magnitude: f32,
    position: impl Fn(usize, usize) -> i32 + Sync,
    out: &mut [f32],
) -> Result<()> {
    let half = freqs.len();
    check::length(NAME, "out", "[rows, 2 R]", &[rows, 2, half], out.len())?;
    if out.is_empty() {
        return Ok(());
    }
    let out = SharedMut::new(out);
    cpu.threads().run_ranges(rows, ANGLES / half, |from, to| {
        for row in from..to {
            // SAFETY: the rows are disjoint.
            let out = unsafe { out.part(row * 2 * half, 2 * half) };
            let (cos, sin) = out.split_at_mut(half);
            for (j, (&f, (c, s))) in freqs.iter().zip(cos.iter_mut().zip(sin)).enumerate() {
                let turns = f64::from(position(row, j)) * f * (0.5 / std::f64::consts::PI);
                let angle = ((turns - turns.round()) * (2.0 * std::f64::consts::PI)) as f32;
                let (sine, cosine) = angle.sin_cos();
                (*c, *s) = (magnitude * cosine, magnitude * sine);
            }
        }
    })
}

/// Which elements of a head turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// `2 j` and `2 j + 1`.
    Adjacent,
    /// `j` and `j + R`.
    Halves,
}

struct RopeKernel<'a> {
    pairs: Pairs,
    heads: usize,
    head_dim: usize,
    half: usize,
    x: *const f32,
    table: &'a [f32],
    out: *mut f32,
}

impl Kernel for RopeKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RopeKernel { pairs, heads, head_dim, half, x, table, out } = self;
        for (row, table) in table.chunks_exact(2 * half).enumerate() {
            let (cos, sin) = (table.as_ptr(), table[half..].as_ptr());
            for head in 0..heads {
                let at = (row * heads + head) * head_dim;
                // SAFETY: `rope` made the pointers from slices of rows * heads * head_dim floats and 2 * half <= head_dim; out
                // may equal x, each pair of which is read first.
                unsafe {
                    let (x, out) = (x.add(at), out.add(at));
                    if pairs == Pairs::Halves {
                        for_lanes!(S, half, |j, n| {
                            let (a, b) = (load_n(s, x.add(j), n), load_n(s, x.add(half + j), n));
                            let (c, d) = (load_n(s, cos.add(j), n), load_n(s, sin.add(j), n));
                            store_n(s, out.add(j), s.sub(s.mul(a, c), s.mul(b, d)), n);
                            store_n(s, out.add(half + j), s.fma(a, d, s.mul(b, c)), n);
                        });
                    } else {
                        for j in 0..half {
                            let (a, b) = (*x.add(2 * j), *x.add(2 * j + 1));
                            let (c, d) = (*cos.add(j), *sin.add(j));
                            *out.add(2 * j) = a * c - b * d;
                            *out.add(2 * j + 1) = a * d + b * c;
                        }
                    }
                    if out.cast_const() != x {
                        std::ptr::copy_nonoverlapping(
                            x.add(2 * half),
                            out.add(2 * half),
                            head_dim - 2 * half,
                        );
                    }
                }
            }
        }
    }
}

/// Turns the first `2 R` elements of each head of `x` `[rows, H, K]` by the angles of `table` `[rows, 2 R]`, which
/// [`angles`] made; without `x`, in place.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape, [`crate::KernelError::Invalid`] if `2 R` is over K.
pub fn rope(
    cpu: &Cpu,
    pairs: Pairs,
    x: Option<&[f32]>,
    [rows, heads, head_dim]: [usize; 3],
    table: &[f32],
    out: &mut [f32],
) -> Result<()> {
    check::length(NAME, "out", "[rows, H, K]", &[rows, heads, head_dim], out.len())?;
    if let Some(x) = x {
        check::length(NAME, "x", "[rows, H, K]", &[rows, heads, head_dim], x.len())?;
    }
    if out.is_empty() {
        return Ok(());
    }
    let half = table.len() / (2 * rows);
    check::length(NAME, "table", "[rows, 2 R]", &[rows, 2, half], table.len())?;
    check::valid(NAME, 2 * half <= head_dim, || {
        format!("{} elements to turn in heads of {head_dim}", 2 * half)
    })?;
    let out = SharedMut::new(out);
    let width = heads * head_dim;
    cpu.threads().run_ranges(rows, GRAIN / width, |from, to| {
        // SAFETY: the ranges of rows are disjoint.
        let out = unsafe { out.part(from * width, (to - from) * width) }.as_mut_ptr();
        let x = x.map_or(out.cast_const(), |x| x[from * width..to * width].as_ptr());
        let table = &table[2 * half * from..2 * half * to];
        if half > 0 {
            dispatch(cpu.isa(), RopeKernel { pairs, heads, head_dim, half, x, table, out });
        } else if out.cast_const() != x {
            // SAFETY: both have the rows of this range, and are different memory.
            unsafe { std::ptr::copy_nonoverlapping(x, out, (to - from) * width) };
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Threads};

    #[test]
    fn angles_are_right_far_from_the_start() {
        let cpu = Cpu::new(Isa::Scalar, Threads::new(2).unwrap()).unwrap();
        let freqs = [1.0, 0.3, 1e-4];
        let positions = [0, 1, 4095, 131_071, 1_000_003];
        let mut out = vec![0.0; positions.len() * 6];
        angles(&cpu, positions.len(), &freqs, 2.0, |r, _| positions[r], &mut out).unwrap();
        for (row, p) in out.chunks_exact(6).zip(positions) {
            for (j, f) in freqs.iter().enumerate() {
                let (sin, cos) = (f64::from(p) * f).sin_cos();
                let off =
                    (f64::from(row[j]) - 2.0 * cos).abs().max((f64::from(row[3 + j]) - 2.0 * sin).abs());
                assert!(off < 1e-6, "position {p}, frequency {f}: off by {off}");
            }
        }
    }

    #[test]
    fn pairs_are_turned_and_the_rest_is_kept() {
        for isa in Isa::available() {
            let cpu = Cpu::new(isa, Threads::new(2).unwrap()).unwrap();
            for (rows, heads, dim, half) in [(1, 1, 2, 1), (3, 2, 70, 33), (40, 3, 128, 64), (2, 1, 6, 0)] {
                let x: Vec<f32> =
                    (0..rows * heads * dim).map(|i| ((i * 37 % 101) as f32 - 50.0) / 20.0).collect();
                let table: Vec<f32> = (0..rows * 2 * half).map(|i| (i as f32 * 0.7).sin()).collect();
                for pairs in [Pairs::Adjacent, Pairs::Halves] {
                    let mut expected = x.clone();
                    for (i, head) in expected.chunks_exact_mut(dim).enumerate() {
                        for j in 0..half {
                            let (c, s) =
                                (table[i / heads * 2 * half + j], table[i / heads * 2 * half + half + j]);
                            let (p, q) =
                                if pairs == Pairs::Adjacent { (2 * j, 2 * j + 1) } else { (j, j + half) };
                            let (a, b) = (f64::from(head[p]), f64::from(head[q]));
                            head[p] = (a * f64::from(c) - b * f64::from(s)) as f32;
                            head[q] = (a * f64::from(s) + b * f64::from(c)) as f32;
                        }
                    }
                    let mut out = vec![9.0; x.len()];
                    rope(&cpu, pairs, Some(&x), [rows, heads, dim], &table, &mut out).unwrap();
                    let off = out.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(off < 1e-6, "{isa} {pairs:?} off by {off}");
                    let mut same = x.clone();
                    rope(&cpu, pairs, None, [rows, heads, dim], &table, &mut same).unwrap();
                    assert_eq!(same, out);
                }
            }
            assert!(rope(&cpu, Pairs::Halves, None, [1, 1, 2], &[0.0; 4], &mut [0.0; 2]).is_err());
            assert!(rope(&cpu, Pairs::Halves, None, [2, 1, 2], &[0.0; 5], &mut [0.0; 4]).is_err());
        }
    }
}
