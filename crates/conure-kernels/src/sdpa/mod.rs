//! Scaled dot-product attention of new tokens over a cache of keys and values, with grouped heads.
//!
//! Query head h reads the keys of head `h / (H / G)`. With a cache, the query of item b and token t stands at row `at[b] + t`
//! and sees the rows up to its own, or the last `window` of them; without, all rows or what a mask shows ([`Keys`]). Scores exist for one block of keys at a time and
//! softmax runs along, so that memory does not grow with the cache. Blocks begin at fixed rows of the cache: a result
//! does not depend on threads or batch.
//!
//! A few queries (`decode`) read each key once, where it lies: the time is that of reading the cache. Many
//! (`prefill`) share packed blocks, whose products run in the tiles of the matrix products.

mod cache;
mod decode;
mod prefill;
mod softmax;

use crate::attention::Mask;
use crate::simd::TILE_K;
use crate::{Cpu, Result, check};
use conure_tensor::DType;

pub(crate) use cache::Cache;

const NAME: &str = "sdpa";

/// Keys of a block.
const KEYS: usize = 256;

/// The most query rows per key head that are computed key by key.
const FEW: usize = 8;

/// Which rows of k and v a query sees.
#[derive(Clone, Copy, Debug)]
pub enum Keys<'a> {
    /// Rows of a cache up to the query's own.
    Cached {
        /// `[B]`: the row at which token 0 stands.
        at: &'a [i32],
        /// How many rows a query sees, its own among them; `None`: all up to its own.
        window: Option<usize>,
    },
    /// Queries and keys are the frames of a clip: T is C, and a query sees what the mask shows of the valid ones.
    Frames {
        /// `[B]`: valid frames; queries beyond give 0.
        lengths: &'a [i32],
        /// Which keys a query sees.
        mask: Mask,
    },
    /// All C rows.
    All {
        /// B.
        batch: usize,
    },
}

/// The operands of [`Sdpa::run`]. B batch, T new tokens, H query heads, G key heads, K head width, J value width, C rows
/// of the cache, of which there are `items` of at least B.
#[derive(Clone, Copy, Debug)]
pub struct Sdpa<'a> {
    /// `[B, T, H, K]`.
    pub q: &'a [f32],
    /// `[items, C, G, K]` in [`Sdpa::k_dtype`]: f32, f16, bf16 or q8_0.
    pub k: &'a [u8],
    /// Element type of the keys.
    pub k_dtype: DType,
    /// `[items, C, G, J]` in [`Sdpa::v_dtype`].
    pub v: &'a [u8],
    /// Element type of the values.
    pub v_dtype: DType,
    /// Which rows a query sees.
    pub keys: Keys<'a>,
    /// `[H]`: the logit of a key without value that every query sees, if there is one.
    pub sinks: Option<&'a [f32]>,
    /// T.
    pub tokens: usize,
    /// H, a multiple of G.
    pub heads: usize,
    /// G.
    pub key_heads: usize,
    /// K, at most 512.
    pub head_dim: usize,
    /// J, at most 512.
    pub value_dim: usize,
    /// C.
    pub capacity: usize,
    /// What scores are multiplied by.
    pub scale: f32,
    /// `cap * tanh(score / cap)` after that, if given.
    pub cap: Option<f32>,
}

/// Floats of working memory that [`Sdpa::run`] needs for these lengths.
pub fn scratch_len(
    batch: usize,
    tokens: usize,
    heads: usize,
    key_heads: usize,
    value_dim: usize,
    capacity: usize,
) -> usize {
    if few(tokens, heads, key_heads) {
        decode::scratch_len(batch, tokens, heads, value_dim, capacity)
    } else {
        0
    }
}

fn few(tokens: usize, heads: usize, key_heads: usize) -> bool {
    tokens == 1 || tokens * (heads / key_heads.max(1)) <= FEW
}

impl Sdpa<'_> {
    /// `out` `[B, T, H, J]`.
    ///
    /// # Errors
    /// [`crate::KernelError::Length`] if a slice does not have its shape, [`crate::KernelError::Invalid`] if a query
    /// stands outside the cache, heads do not divide or a width is over 512, [`crate::KernelError::DType`] for a cache of
    /// another type.
    pub fn run(&self, cpu: &Cpu, scratch: &mut [f32], out: &mut [f32]) -> Result<()> {
        let batch = self.batch();
        self.check(batch, out.len())?;
        if out.is_empty() || self.capacity == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let k = Cache::new(self.k, self.k_dtype, self.capacity, self.key_heads, self.head_dim)?;
        let v = Cache::new(self.v, self.v_dtype, self.capacity, self.key_heads, self.value_dim)?;
        for (name, cache) in [("k", &k), ("v", &v)] {
            check::valid(NAME, cache.items() >= batch, || {
                format!("{name} has {} items, the batch {batch}", cache.items())
            })?;
        }
        if few(self.tokens, self.heads, self.key_heads) {
            let need =
                scratch_len(batch, self.tokens, self.heads, self.key_heads, self.value_dim, self.capacity);
            check::valid(NAME, scratch.len() >= need, || {
                format!("scratch of {} floats, needs {need}", scratch.len())
            })?;
            decode::run(self, cpu, k, v, scratch, out)
        } else {
            prefill::run(self, cpu, k, v, out)
        }
    }

    fn check(&self, batch: usize, out: usize) -> Result<()> {
        let Sdpa { tokens, heads, key_heads, head_dim, value_dim, capacity, .. } = *self;
        check::length(NAME, "q", "[B, T, H, K]", &[batch, tokens, heads, head_dim], self.q.len())?;
        check::length(NAME, "out", "[B, T, H, J]", &[batch, tokens, heads, value_dim], out)?;
        if let Some(sinks) = self.sinks {
            check::length(NAME, "sinks", "[H]", &[heads], sinks.len())?;
        }
        check::valid(NAME, key_heads > 0 && heads.is_multiple_of(key_heads), || {
            format!("{heads} query heads cannot share {key_heads} key heads")
        })?;
        check::valid(NAME, head_dim.max(value_dim) <= TILE_K && head_dim > 0, || {
            format!("head width {} is not 1 to {TILE_K}", head_dim.max(value_dim))
        })?;
        match self.keys {
            Keys::Cached { at, window } => {
                check::valid(NAME, window != Some(0), || "a window of no rows".to_string())?;
                for (b, &at) in at.iter().enumerate() {
                    let fits = usize::try_from(at).is_ok_and(|at| at + tokens <= capacity);
                    check::valid(NAME, fits, || {
                        format!(
                            "item {b}: {tokens} tokens from row {at} on are outside the cache of {capacity} rows"
                        )
                    })?;
                }
                Ok(())
            }
            Keys::Frames { .. } => check::valid(NAME, tokens == capacity, || {
                format!("{tokens} queries for {capacity} keys, which should be the same frames")
            }),
            Keys::All { .. } => Ok(()),
        }
    }

    fn batch(&self) -> usize {
        match self.keys {
            Keys::Cached { at: list, .. } | Keys::Frames { lengths: list, .. } => list.len(),
            Keys::All { batch } => batch,
        }
    }

    /// Query heads per key head.
    fn group(&self) -> usize {
        self.heads / self.key_heads
    }

    /// The rows `lo..hi` that token `t` of item `b` sees. Neither end is before that of the token before.
    #[inline(always)]
    fn visible(&self, b: usize, t: usize) -> (usize, usize) {
        match self.keys {
            Keys::Cached { at, window } => {
                let hi = at[b].max(0) as usize + t + 1;
                (window.map_or(0, |w| hi.saturating_sub(w)), hi)
            }
            Keys::Frames { lengths, mask } => {
                let valid = (lengths[b].max(0) as usize).min(self.tokens);
                if t < valid { mask.visible(t, valid) } else { (valid, valid) }
            }
            Keys::All { .. } => (0, self.capacity),
        }
    }

    fn rule(&self) -> softmax::Rule {
        softmax::Rule { scale: self.scale, cap: self.cap }
    }

    /// The sink of head `h` in powers of two.
    fn sink(&self, h: usize) -> Option<f32> {
        self.sinks.map(|z| z[h] * std::f32::consts::LOG2_E)
    }
}

#[cfg(test)]
mod tests;
