//! exp and its kin. Errors are against the exact value, measured over the whole range by the tests below.

use super::Simd;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts: n times the high one is exact for |n| < 2^9.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Adding it rounds |x| < 2^22 to a whole number.
const ROUND: f32 = 12_582_912.0;
/// Above it exp overflows.
const EXP_HIGH: f32 = 88.722_84;
/// Below it exp is flushed to zero where powers of two end with the normal numbers (the exact value is under 2e-38).
const EXP_LOW: f32 = -86.9;

/// `x = n ln 2 + r`; returns n and `e^r - 1`.
#[inline(always)]
fn reduce<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    let n = s.sub(s.fma(x, s.splat(LOG2_E), s.splat(ROUND)), s.splat(ROUND));
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    // Taylor to r^7: on |r| <= 0.3466 it stops 5e-9 short, a tenth of an ulp.
    let mut p = s.splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        p = s.fma(p, r, s.splat(c));
    }
    (n, s.fma(s.mul(r, r), p, r))
}

/// e^x within 2 ulp; results under 2e-38 may be 0 (below -104 they are), infinity above 88.7228, NaN for NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    if S::WIDE_SCALE {
        let clamped = s.max(s.splat(-104.5), s.min(s.splat(89.0), x));
        let (n, q) = reduce(s, clamped);
        return s.scale(s.add(q, s.splat(1.0)), n);
    }
    let (low, high) = (s.splat(EXP_LOW), s.splat(EXP_HIGH));
    let clamped = s.max(low, s.min(high, x));
    let (n, q) = reduce(s, clamped);
    let y = s.scale(s.add(q, s.splat(1.0)), n);
    let y = s.select_lt(high, x, s.splat(f32::INFINITY), y);
    s.select_lt(x, low, s.splat(0.0), y)
}

/// [`Simd::exp2_nonpositive`] for instruction sets without help: t to the nearest whole number, and a polynomial on
/// [-0.5, 0.5] that is 1 at 0 (relative error 2.6e-9, minimax).
#[inline(always)]
pub(crate) fn exp2_nonpositive<S: Simd>(s: S, t: S::V) -> S::V {
    let low = s.splat(-126.0);
    let clamped = s.max(low, t);
    let n = s.sub(s.add(clamped, s.splat(ROUND)), s.splat(ROUND));
    let r = s.sub(clamped, n);
    let mut p = s.splat(1.559_467_8e-4);
    for c in [1.340_664_4e-3, 9.617_693e-3, 5.550_310_5e-2, 0.240_226_53, std::f32::consts::LN_2, 1.0] {
        p = s.fma(p, r, s.splat(c));
    }
    s.select_lt(t, low, s.splat(0.0), s.mul(p, s.pow2(n)))
}

/// 1 + e^-x with the power held under 2^126, for what is divided by it.
#[inline(always)]
fn one_plus_exp_neg<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.max(s.splat(-86.5), s.min(s.splat(86.5), s.sub(s.splat(0.0), x)));
    let (n, q) = reduce(s, x);
    let one = s.splat(1.0);
    s.add(one, s.scale(s.add(q, one), n))
}

/// 1 / (1 + e^-x) within 3 ulp; at least 2.7e-38.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    s.recip(one_plus_exp_neg(s, x))
}

/// x / (1 + e^-x) within 3 ulp down to -86.5, where it is -2e-36; further down it stays tiny.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    s.mul(x, s.recip(one_plus_exp_neg(s, x)))
}

/// tanh within 4 ulp: (e^2x - 1) / (e^2x + 1), with e^2x - 1 computed without cancellation.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    // From 9.02 on the nearest float is 1.
    let x = s.max(s.splat(-9.1), s.min(s.splat(9.1), x));
    let (n, q) = reduce(s, s.add(x, x));
    let p = s.pow2(n);
    let e = s.fma(p, q, s.sub(p, s.splat(1.0)));
    // e + 2 is between 1 and e^19, in the range of `recip`.
    s.mul(e, s.recip(s.add(e, s.splat(2.0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Isa, Kernel, dispatch};

    type Exact = fn(f64) -> f64;

    struct Apply<'a>(usize, &'a [f32], &'a mut [f32]);
    impl Kernel for Apply<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let Apply(which, x, y) = self;
            for (x, y) in x.chunks_exact(16).zip(y.chunks_exact_mut(16)) {
                for i in (0..16).step_by(S::LANES) {
                    // SAFETY: both chunks have 16 floats and i + LANES <= 16.
                    unsafe {
                        let v = s.load(x.as_ptr().add(i));
                        let v = match which {
                            0 => exp(s, v),
                            1 => sigmoid(s, v),
                            2 => silu(s, v),
                            4 => s.exp2_nonpositive(v),
                            _ => tanh(s, v),
                        };
                        s.store(y.as_mut_ptr().add(i), v);
                    }
                }
            }
        }
    }

    fn ulps(found: f32, exact: f64) -> f64 {
        let nearest = exact as f32;
        let ulp = (f32::from_bits(nearest.abs().to_bits() + 1) - nearest.abs()) as f64;
        ((found as f64 - exact) / ulp).abs()
    }

    #[test]
    fn errors_are_within_the_stated_ulps() {
        let functions: [(&str, f64, Exact); 5] = [
            ("exp", 2.0, f64::exp),
            ("sigmoid", 3.0, |x| 1.0 / (1.0 + (-x).exp())),
            ("silu", 3.0, |x| x / (1.0 + (-x).exp())),
            ("tanh", 4.0, f64::tanh),
            ("exp2 of -|x|", 3.0, |x| (-x.abs()).exp2()),
        ];
        let n = 1 << 16;
        let mut x: Vec<f32> = (0..n).map(|i| (i as f32 / n as f32 - 0.5) * 170.0).collect();
        x.extend((0..n).map(|i| (i as f32 / n as f32 - 0.5) * 2.0));
        x.extend((0..n).map(|i| (i as f32 / n as f32 - 0.5) * 1e-4));
        let mut y = vec![0.0; x.len()];
        for isa in Isa::available() {
            for (which, (name, bound, exact)) in functions.iter().enumerate() {
                let negative: Vec<f32> = x.iter().map(|x| -x.abs()).collect();
                dispatch(isa, Apply(which, if which == 4 { &negative } else { &x }, &mut y));
                for (&x, &y) in x.iter().zip(&y) {
                    let e = ulps(y, exact(x as f64));
                    assert!(e <= *bound, "{isa} {name}({x}) = {y}, off by {e} ulp");
                }
            }
        }
    }

    #[test]
    fn extremes() {
        let x = [
            f32::NEG_INFINITY,
            -1e30,
            -104.0,
            -87.5,
            88.72,
            89.0,
            1e30,
            f32::INFINITY,
            f32::NAN,
            0.0,
            -0.0,
            1.0,
            0.0,
            0.0,
            0.0,
            0.0,
        ];
        let mut y = [0.0; 16];
        for isa in Isa::available() {
            dispatch(isa, Apply(0, &x, &mut y));
            assert!(y[..3] == [0.0; 3] && y[3] < 2e-38, "{isa} {y:?}");
            assert!((y[4] as f64 / (x[4] as f64).exp() - 1.0).abs() < 1e-6, "{isa} {}", y[4]);
            assert_eq!(&y[5..8], &[f32::INFINITY; 3], "{isa}");
            assert!(y[8].is_nan() && y[9] == 1.0 && y[10] == 1.0, "{isa} {y:?}");
            dispatch(isa, Apply(1, &x, &mut y));
            assert!(y[0] < 3e-38 && (y[7], y[9]) == (1.0, 0.5), "{isa}");
            assert!(y[8].is_nan(), "{isa}");
            let negative = x.map(|x| -x.abs());
            dispatch(isa, Apply(4, &negative, &mut y));
            assert_eq!((y[0], y[7], y[9], y[10]), (0.0, 0.0, 1.0, 1.0), "{isa}");
            assert!(y[8].is_nan(), "{isa}");
            dispatch(isa, Apply(3, &x, &mut y));
            assert_eq!((y[0], y[7], y[9]), (-1.0, 1.0, 0.0), "{isa}");
            assert!(y[8].is_nan(), "{isa}");
        }
    }
}
