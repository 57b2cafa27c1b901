//! What happens to a tile of sums before it is stored.

use crate::simd::{Simd, for_lanes, load_n, sigmoid, silu, store_n};

/// The function applied to each output of a product, after the bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// None.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// `x * sigmoid(x)`.
    Silu,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// Gated linear unit: of N columns, the first half times the sigmoid of the second; the output has N / 2 columns.
    /// Needs weights packed with [`super::PackedMatrix::new_glu`].
    Glu,
}

/// What a product is added to.
#[derive(Clone, Copy, Debug, Default)]
pub enum Residual<'a> {
    /// Nothing: the output is `scale * f(x W^T + bias)`.
    #[default]
    None,
    /// This, of the output's shape: `residual + scale * f(x W^T + bias)`.
    Add(&'a [f32]),
    /// What the output holds already.
    InPlace,
}

/// What follows a product: `residual + scale * activation(product + bias)`.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a> {
    /// `[N]`, before the activation.
    pub bias: Option<&'a [f32]>,
    /// The function.
    pub activation: Activation,
    /// A factor after the activation.
    pub scale: f32,
    /// What is added last.
    pub residual: Residual<'a>,
}

impl Default for Epilogue<'_> {
    fn default() -> Self {
        Epilogue { bias: None, activation: Activation::None, scale: 1.0, residual: Residual::None }
    }
}

/// A tile of sums and what is added to its columns.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) rows: usize,
    pub(super) width: usize,
    /// `[rows]` of `width` floats, `ldc` apart.
    pub(super) sums: *const f32,
    pub(super) ldc: usize,
    /// `width` floats, or null.
    pub(super) bias: *const f32,
    /// The sums of the gates, as `sums`; null unless for a gated unit.
    pub(super) gates: *const f32,
    /// `width` floats, or null.
    pub(super) gate_bias: *const f32,
}

/// Finishes row `r` of `tile` to `out`.
///
/// # Safety
/// `tile` describes readable floats and has more than `r` rows; `width` floats are readable at `residual` if it is not
/// null and writable at `out`. `residual` may equal `out`.
#[inline(always)]
pub(super) unsafe fn finish_row<S: Simd>(
    s: S,
    activation: Activation,
    scale: f32,
    tile: &Tile,
    r: usize,
    residual: *const f32,
    out: *mut f32,
) {
    debug_assert!(r < tile.rows);
    let factor = s.splat(scale);
    let (sums, gates) = (tile.sums.wrapping_add(r * tile.ldc), tile.gates.wrapping_add(r * tile.ldc));
    for_lanes!(S, tile.width, |i, n| {
        // SAFETY: i + n <= width, and the contract.
        unsafe {
            let mut v = load_n(s, sums.add(i), n);
            if !tile.bias.is_null() {
                v = s.add(v, load_n(s, tile.bias.add(i), n));
            }
            v = match activation {
                Activation::None => v,
                Activation::Relu => s.max(s.splat(0.0), v),
                Activation::Silu => silu(s, v),
                Activation::Sigmoid => sigmoid(s, v),
                Activation::Glu => {
                    let mut g = load_n(s, gates.add(i), n);
                    if !tile.gate_bias.is_null() {
                        g = s.add(g, load_n(s, tile.gate_bias.add(i), n));
                    }
                    s.mul(v, sigmoid(s, g))
                }
            };
            if scale != 1.0 {
                v = s.mul(v, factor);
            }
            if !residual.is_null() {
                v = s.add(load_n(s, residual.add(i), n), v);
            }
            store_n(s, out.add(i), v, n);
        }
    });
}
