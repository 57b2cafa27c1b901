//! The gated delta rule: a matrix per head that forgets, is corrected towards each new value, and is asked by each query.

use crate::buffer::SharedMut;
use crate::isa::{Kernel, dispatch};
use crate::simd::{Simd, for_lanes, load_n, store_n};
use crate::{Cpu, Result, check};

const NAME: &str = "gated_delta";

/// Columns of a state that one task computes: they depend on no others, and 128 rows of them stay in the first-level cache.
const COLUMNS: usize = 32;

/// Multiply-adds that are worth a task of their own.
const GRAIN: usize = 64 * 1024;

/// Beyond this, `ln(1 + e^x)` is x in f32.
const LINEAR: f32 = 20.0;

/// Sizes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// B: items of the run.
    pub batch: usize,
    /// T: tokens of each.
    pub tokens: usize,
    /// G: heads of queries and keys.
    pub key_heads: usize,
    /// H: heads of values; head h is asked by query head `h % G`.
    pub heads: usize,
    /// K: width of queries and keys.
    pub key_dim: usize,
    /// J: width of values.
    pub value_dim: usize,
}

/// What goes in.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// `[B, T, 2 G K + H J]`: queries, keys, values.
    pub qkv: &'a [f32],
    /// `[B, T, H]`: how much is forgotten, before its softplus.
    pub alpha: &'a [f32],
    /// `[B, T, H]`: how much is corrected, before its sigmoid.
    pub beta: &'a [f32],
    /// `[H]`: what the softplus is multiplied by; at most 0 in a model that forgets.
    pub decay: &'a [f32],
    /// `[H]`: added to `alpha`.
    pub bias: &'a [f32],
    /// Added to the sums of squares of queries and keys.
    pub eps: f32,
}

struct Columns<'a> {
    sizes: Sizes,
    inputs: &'a Inputs<'a>,
    item: usize,
    head: usize,
    /// The first column, and how many.
    from: usize,
    count: usize,
    /// `[K, J]`.
    state: *mut f32,
    /// `[B, T, H, J]`.
    out: *mut f32,
}

impl Kernel for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Columns { sizes, inputs, item, head, from, count, state, out } = self;
        let Sizes { tokens, key_heads, heads, key_dim, value_dim, .. } = sizes;
        let width = 2 * key_heads * key_dim + heads * value_dim;
        for t in item * tokens..(item + 1) * tokens {
            let row = &inputs.qkv[t * width..(t + 1) * width];
            let group = head % key_heads * key_dim;
            let q = &row[group..group + key_dim];
            let k = &row[key_heads * key_dim + group..][..key_dim];
            let v = &row[2 * key_heads * key_dim + head * value_dim + from..][..count];
            let at = t * heads + head;
            let x = inputs.alpha[at] + inputs.bias[head];
            let softplus = if x > LINEAR { x } else { x.exp().ln_1p() };
            let keep = s.splat((inputs.decay[head] * softplus).exp());
            let step = 1.0 / (1.0 + (-inputs.beta[at]).exp());
            // Norms stay numbers beside the products: S k / |k| is what is predicted, k / |k| what it is corrected along.
            let of_k = inverse_norm(s, k, inputs.eps);
            let of_q = inverse_norm(s, q, inputs.eps) / (key_dim as f32).sqrt();
            for_lanes!(S, count, |c, n| {
                // SAFETY: `run` gives each task columns of its own, `from + count <= J`, of a state of K rows, and the
                // output's row `at` of J.
                unsafe {
                    let column = state.add(from + c);
                    let mut sums = [s.splat(0.0); 4];
                    for (i, &k) in k.iter().enumerate() {
                        let old = load_n(s, column.add(i * value_dim), n);
                        sums[i % 4] = s.fma(s.splat(k), old, sums[i % 4]);
                    }
                    let sum = s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]));
                    let predicted = s.mul(s.mul(sum, keep), s.splat(of_k));
                    let missing = s.sub(load_n(s, v.as_ptr().add(c), n), predicted);
                    let change = s.mul(missing, s.splat(step * of_k));
                    let mut sums = [s.splat(0.0); 4];
                    for (i, (&k, &q)) in k.iter().zip(q).enumerate() {
                        let place = column.add(i * value_dim);
                        let new = s.fma(s.splat(k), change, s.mul(load_n(s, place, n), keep));
                        store_n(s, place, new, n);
                        sums[i % 4] = s.fma(s.splat(q), new, sums[i % 4]);
                    }
                    let sum = s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]));
                    store_n(s, out.add(at * value_dim + from + c), s.mul(sum, s.splat(of_q)), n);
                }
            });
        }
    }
}

/// `1 / sqrt(sum of squares + eps)`.
#[inline(always)]
fn inverse_norm<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    let mut sum = s.splat(0.0);
    for_lanes!(S, x.len(), |i, n| {
        // SAFETY: i + n <= the length.
        let v = unsafe { load_n(s, x.as_ptr().add(i), n) };
        sum = s.fma(v, v, sum);
    });
    1.0 / (s.sum(sum) + eps).sqrt()
}

/// Lets `states` `[B, H, K, J]` read the tokens, and gives what each query finds, `out` `[B, T, H, J]`. For every token, with
/// `q`, `k` divided by their norms and `q` by `sqrt(K)` too: `S = e^(decay softplus(alpha + bias)) S`, then
/// `S += k (sigmoid(beta) (v - S^T k))^T`, then `out = S^T q`.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape, [`crate::KernelError::Invalid`] if there is no head of
/// keys.
pub fn gated_delta(
    cpu: &Cpu,
    sizes: Sizes,
    inputs: &Inputs<'_>,
    states: &mut [f32],
    out: &mut [f32],
) -> Result<()> {
    let Sizes { batch, tokens, key_heads, heads, key_dim, value_dim } = sizes;
    check::valid(NAME, key_heads > 0, || "there are no heads of keys".to_string())?;
    let width = 2 * key_heads * key_dim + heads * value_dim;
    check::length(NAME, "qkv", "[B, T, 2 G K + H J]", &[batch, tokens, width], inputs.qkv.len())?;
    check::length(NAME, "alpha", "[B, T, H]", &[batch, tokens, heads], inputs.alpha.len())?;
    check::length(NAME, "beta", "[B, T, H]", &[batch, tokens, heads], inputs.beta.len())?;
    check::length(NAME, "decay", "[H]", &[heads], inputs.decay.len())?;
    check::length(NAME, "bias", "[H]", &[heads], inputs.bias.len())?;
    check::length(NAME, "states", "[B, H, K, J]", &[batch, heads, key_dim, value_dim], states.len())?;
    check::length(NAME, "out", "[B, T, H, J]", &[batch, tokens, heads, value_dim], out.len())?;
    if out.is_empty() {
        return Ok(());
    }
    let parts = value_dim.div_ceil(COLUMNS);
    let work = (3 * tokens * key_dim * COLUMNS.min(value_dim)).max(1);
    let (states, out) = (SharedMut::new(states), SharedMut::new(out));
    cpu.threads().run_ranges(batch * heads * parts, GRAIN / work, |first, end| {
        for task in first..end {
            let (place, from) = (task / parts, task % parts * COLUMNS);
            let count = COLUMNS.min(value_dim - from);
            // SAFETY: a task touches only its columns of its head's state, and of the output's rows.
            let (state, out) =
                unsafe { (states.as_mut_ptr().add(place * key_dim * value_dim), out.as_mut_ptr()) };
            let (item, head) = (place / heads, place % heads);
            dispatch(cpu.isa(), Columns { sizes, inputs, item, head, from, count, state, out });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Threads};

    fn wave(n: usize, seed: f32) -> Vec<f32> {
        (0..n).map(|i| ((i as f32 + seed) * 0.731).sin()).collect()
    }

    /// What is read at once is what is read token by token, whatever the threads.
    #[test]
    fn tokens_at_once_are_tokens_one_by_one() {
        for isa in Isa::available() {
            for threads in [1, 3] {
                let cpu = Cpu::new(isa, Threads::new(threads).unwrap()).unwrap();
                let whole = Sizes { batch: 2, tokens: 5, key_heads: 2, heads: 4, key_dim: 19, value_dim: 37 };
                let width = 2 * 2 * 19 + 4 * 37;
                let (qkv, alpha, beta) = (wave(10 * width, 0.0), wave(40, 1.0), wave(40, 2.0));
                let (decay, bias) = ([-0.1, -0.5, -1.0, -2.0], [0.0, 0.5, 25.0, -1.0]);
                let begun = wave(2 * 4 * 19 * 37, 3.0);
                let (mut states, mut out) = (begun.clone(), vec![f32::NAN; 2 * 5 * 4 * 37]);
                let inputs =
                    Inputs { qkv: &qkv, alpha: &alpha, beta: &beta, decay: &decay, bias: &bias, eps: 1e-6 };
                gated_delta(&cpu, whole, &inputs, &mut states, &mut out).unwrap();
                for item in 0..2 {
                    let size = 4 * 19 * 37;
                    let mut state = begun[item * size..(item + 1) * size].to_vec();
                    for t in 0..5 {
                        let at = item * 5 + t;
                        let one = Sizes { batch: 1, tokens: 1, ..whole };
                        let inputs = Inputs {
                            qkv: &qkv[at * width..(at + 1) * width],
                            alpha: &alpha[at * 4..(at + 1) * 4],
                            beta: &beta[at * 4..(at + 1) * 4],
                            ..inputs
                        };
                        let mut found = vec![f32::NAN; 4 * 37];
                        gated_delta(&cpu, one, &inputs, &mut state, &mut found).unwrap();
                        assert_eq!(found, out[at * 4 * 37..(at + 1) * 4 * 37], "{isa} {item} {t}");
                    }
                    assert_eq!(state, states[item * size..(item + 1) * size], "{isa} {item}");
                }
            }
        }
    }

    #[test]
    fn wrong_lengths_are_errors() {
        let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
        let sizes = Sizes { batch: 1, tokens: 1, key_heads: 1, heads: 1, key_dim: 2, value_dim: 3 };
        let inputs =
            Inputs { qkv: &[0.0; 7], alpha: &[0.0], beta: &[0.0], decay: &[0.0], bias: &[0.0], eps: 1e-6 };
        let (mut state, mut out) = ([0.0; 6], [0.0; 3]);
        assert!(gated_delta(&cpu, sizes, &inputs, &mut state, &mut out).is_ok());
        assert!(
            gated_delta(&cpu, sizes, &Inputs { qkv: &[0.0; 6], ..inputs }, &mut state, &mut out).is_err()
        );
        assert!(gated_delta(&cpu, sizes, &inputs, &mut state[..5], &mut out).is_err());
        assert!(gated_delta(&cpu, Sizes { key_heads: 0, ..sizes }, &inputs, &mut state, &mut out).is_err());
    }
}
