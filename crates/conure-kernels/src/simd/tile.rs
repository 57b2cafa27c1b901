//! The inner kernel of every product: a tile of outputs held in registers.

use super::{Simd, TILE_STRIDE};

/// Bytes that a tile fetches ahead for each four k: 14 rows take 56 cycles for these, so that a core asks for 7 GB/s.
const AHEAD: usize = 128;

/// Packed weights as the tile reads them: panels of `[k][PANEL]`, in some type, widened in registers.
pub(crate) trait Weights: Copy {
    /// `elements` further on.
    fn offset(self, elements: usize) -> Self;
    /// The vector of weights at `at`.
    /// # Safety
    /// They exist.
    unsafe fn load<S: Simd>(self, s: S, at: usize) -> S::V;
    /// Asks for the cache lines of weight `at` of some later row; any address is fine.
    fn prefetch<S: Simd>(self, s: S, at: usize);
    /// Asks for the part of what is read next that belongs to these four k.
    #[inline(always)]
    fn prefetch_next<S: Simd>(self, _s: S, _four: usize) {}
}

macro_rules! plain_weights {
    ($(#[$doc:meta])* $panel:ident, $element:ty, $load:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $panel {
            values: *const $element,
            /// What is fetched meanwhile, and how far that goes on for each four k.
            next: *const $element,
            step: usize,
        }

        impl $panel {
            #[inline(always)]
            pub(crate) fn new(values: *const $element) -> Self {
                $panel { values, next: values, step: 0 }
            }

            /// The same, where tile `t` of those that read these weights fetches its part of the `ahead` weights that
            /// follow them into the second-level cache: two cache lines for each four k.
            #[inline(always)]
            pub(crate) fn then(self, ahead: usize, t: usize, k: usize) -> Self {
                self.then_at(self.values.wrapping_add(ahead), ahead, t, k)
            }

            /// The same, where what is read next are the `ahead` elements at `next`, which may be any address.
            #[inline(always)]
            pub(crate) fn then_at(self, next: *const $element, ahead: usize, t: usize, k: usize) -> Self {
                let step = AHEAD / size_of::<$element>();
                let at = t * (k / 4) * step;
                if at < ahead {
                    $panel { next: next.wrapping_add(at), step, ..self }
                } else {
                    self
                }
            }
        }

        impl Weights for $panel {
            #[inline(always)]
            fn offset(self, elements: usize) -> Self {
                $panel { values: self.values.wrapping_add(elements), ..self }
            }
            #[inline(always)]
            unsafe fn load<S: Simd>(self, s: S, at: usize) -> S::V {
                // SAFETY: the contract.
                unsafe { s.$load(self.values.add(at)) }
            }
            #[inline(always)]
            fn prefetch<S: Simd>(self, s: S, at: usize) {
                s.prefetch(self.values.wrapping_add(at).cast());
            }
            #[inline(always)]
            fn prefetch_next<S: Simd>(self, s: S, four: usize) {
                let next = self.next.wrapping_add(four * self.step).cast::<f32>();
                s.prefetch_far(next);
                s.prefetch_far(next.wrapping_add(AHEAD / 8));
            }
        }
    };
}

plain_weights!(
    /// f32 weights.
    F32Panel, f32, load
);
plain_weights!(
    /// binary16 weights.
    F16Panel, u16, load_f16
);
plain_weights!(
    /// bfloat16 weights.
    BF16Panel, u16, load_bf16
);

/// Weights that a tile also writes to `to`, widened, for the tiles that come after it: between its multiply-adds that
/// costs next to nothing.
#[derive(Clone, Copy)]
pub(crate) struct Widening<W> {
    weights: W,
    to: *mut f32,
}

impl<W: Weights> Widening<W> {
    /// # Safety
    /// `to` has room for all weights that are loaded, and nobody reads it meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn new(weights: W, to: *mut f32) -> Self {
        Widening { weights, to }
    }
}

impl<W: Weights> Weights for Widening<W> {
    #[inline(always)]
    fn offset(self, elements: usize) -> Self {
        Widening { weights: self.weights.offset(elements), to: self.to.wrapping_add(elements) }
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, at: usize) -> S::V {
        // SAFETY: the contracts of this and of `new`.
        unsafe {
            let weights = self.weights.load(s, at);
            s.store(self.to.add(at), weights);
            weights
        }
    }
    #[inline(always)]
    fn prefetch<S: Simd>(self, s: S, at: usize) {
        self.weights.prefetch(s, at);
    }
    #[inline(always)]
    fn prefetch_next<S: Simd>(self, s: S, four: usize) {
        self.weights.prefetch_next(s, four);
    }
}

/// How many panels a tile of so few rows takes at once: one alone would wait for its own multiply-adds.
#[inline(always)]
pub(crate) const fn panels_at_once(rows: usize) -> usize {
    match rows {
        1 => 4,
        2 => 2,
        _ => 1,
    }
}

/// Four k of [`tile_fixed`], or fewer.
///
/// # Safety
/// As [`tile_fixed`], for the k from `k0` on.
#[inline(always)]
unsafe fn steps<S: Simd, W: Weights, const R: usize, const P: usize, const V: usize, const K: usize>(
    s: S,
    acc: &mut [[[S::V; V]; P]; R],
    a: *const f32,
    b: W,
    k0: usize,
    panel: usize,
) {
    // SAFETY: the contract.
    unsafe {
        for u in 0..K {
            let at = (k0 + u) * S::PANEL;
            let mut row = [[s.splat(0.0); V]; P];
            for p in 0..P {
                for v in 0..V {
                    row[p][v] = b.offset(p * panel).load(s, at + v * S::LANES);
                }
            }
            for r in 0..R {
                let x = s.splat(*a.add(k0 + u + r * TILE_STRIDE));
                for p in 0..P {
                    for v in 0..V {
                        acc[r][p][v] = s.fma(x, row[p][v], acc[r][p][v]);
                    }
                }
            }
        }
    }
}

/// The tile of [`Simd::tile`] with its size known to the compiler.
///
/// # Safety
/// As [`Simd::tile`], with `rows == R`, `panels == P` and `PANEL == V * LANES`.
#[inline(always)]
pub(crate) unsafe fn tile_fixed<S: Simd, W: Weights, const R: usize, const P: usize, const V: usize>(
    s: S,
    a: *const f32,
    b: W,
    k: usize,
    c: *mut f32,
    ldc: usize,
    accumulate: bool,
) {
    let mut acc = [[[s.splat(0.0); V]; P]; R];
    let panel = k * S::PANEL;
    // SAFETY: every address is within what the contract makes readable or writable.
    unsafe {
        if accumulate {
            for r in 0..R {
                for p in 0..P {
                    for v in 0..V {
                        acc[r][p][v] = s.load(c.add(r * ldc + p * S::PANEL + v * S::LANES));
                    }
                }
            }
        }
        let mut k0 = 0;
        while k0 + 4 <= k {
            for u in 0..4 {
                // 2 KiB ahead in f32: the next panel follows this one in memory.
                for p in 0..P {
                    b.offset(p * panel).prefetch(s, (k0 + u) * S::PANEL + 512);
                    b.offset(p * panel).prefetch(s, (k0 + u) * S::PANEL + 512 + 16);
                }
            }
            b.prefetch_next(s, k0 / 4);
            steps::<S, W, R, P, V, 4>(s, &mut acc, a, b, k0, panel);
            k0 += 4;
        }
        while k0 < k {
            steps::<S, W, R, P, V, 1>(s, &mut acc, a, b, k0, panel);
            k0 += 1;
        }
        for r in 0..R {
            for p in 0..P {
                for v in 0..V {
                    s.store(c.add(r * ldc + p * S::PANEL + v * S::LANES), acc[r][p][v]);
                }
            }
        }
    }
}

/// Implements [`Simd::tile`] for `$simd` with `$vecs` vectors a row, for the row counts listed. Each size is a function of
/// its own, compiled once for all kernels (inlined, the tiles would be most of the crate).
macro_rules! tile_method {
    ($(#[$features:meta])? $simd:ident, $vecs:literal; $($rows:literal),+) => {
        #[inline(always)]
        unsafe fn tile<W: $crate::simd::Weights>(
            self,
            rows: usize,
            panels: usize,
            a: *const f32,
            b: W,
            k: usize,
            c: *mut f32,
            ldc: usize,
            accumulate: bool,
        ) {
            use $crate::simd::tile::{panels_at_once, tile_fixed};

            /// # Safety
            /// As [`tile_fixed`].
            $(#[$features])?
            unsafe fn sized<W: $crate::simd::Weights, const R: usize, const P: usize>(
                a: *const f32,
                b: W,
                k: usize,
                c: *mut f32,
                ldc: usize,
                accumulate: bool,
            ) {
                // SAFETY: the contract.
                unsafe { tile_fixed::<$simd, W, R, P, $vecs>($simd, a, b, k, c, ldc, accumulate) }
            }

            debug_assert!((1..=Self::TILE_ROWS).contains(&rows) && k <= $crate::simd::TILE_K);
            debug_assert!(panels == 1 || panels == panels_at_once(rows));
            // SAFETY (all arms): the contract is the same; a value of this type exists only where its instructions do.
            match rows {
                $(
                    // SAFETY: as said.
                    $rows if panels == 1 => unsafe { sized::<W, $rows, 1>(a, b, k, c, ldc, accumulate) },
                )+
                // SAFETY: as said.
                1 => unsafe { sized::<W, 1, { panels_at_once(1) }>(a, b, k, c, ldc, accumulate) },
                // SAFETY: as said.
                2 => unsafe { sized::<W, 2, { panels_at_once(2) }>(a, b, k, c, ldc, accumulate) },
                _ => {}
            }
        }
    };
}
pub(super) use tile_method;
