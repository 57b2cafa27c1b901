//! What tests of products share.

use super::*;

/// Numbers around zero, most of them small.
pub(super) fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next() + next() * next()).collect()
}

/// The first of the rows `x` `[M, K]` together, as many as `cases` say and with their threads, are to the last bit what each is alone
/// on `one`: as they are and through a gated unit, with `packed` made for that.
pub(super) fn rows_are_those_alone(
    one: &Cpu,
    x: &[f32],
    packed: &PackedMatrix,
    bias: Option<&[f32]>,
    cases: &[(&Cpu, usize)],
) {
    let (n, k) = (packed.n(), packed.k());
    for activation in [Activation::None, Activation::Glu] {
        let epilogue = Epilogue { activation, bias, ..Epilogue::default() };
        let width = if activation == Activation::Glu { n / 2 } else { n };
        let mut alone = vec![0.0; x.len() / k * width];
        for (x, out) in x.chunks(k).zip(alone.chunks_mut(width)) {
            linear(one, x, 1, packed, &epilogue, out).unwrap();
        }
        for &(cpu, rows) in cases {
            let mut out = vec![f32::NAN; rows * width];
            linear(cpu, &x[..rows * k], rows, packed, &epilogue, &mut out).unwrap();
            assert!(out == alone[..rows * width], "{packed:?}: {rows} rows, {activation:?}");
        }
    }
}
