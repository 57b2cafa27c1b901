//! Products of bytes against their definition.

use super::testing::{noise, rows_are_those_alone};
use super::*;
use crate::{Isa, Precision, Threads};
use conure_tensor::{DType, quant};

fn block_types() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|d| d.is_quantised())
}

/// The activations after rounding, as the definition says.
fn rounded(x: &[f32], group: usize) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for x in x.chunks(group) {
        let largest = x.iter().fold(0f32, |a, v| a.max(v.abs()));
        let (scale, inverse) =
            if largest < 1e-30 { (0.0, 0.0) } else { (largest * (1.0 / 127.0), 127.0 / largest) };
        out.extend(x.iter().map(|v| f64::from(scale) * f64::from((v * inverse).round_ties_even())));
    }
    out
}

/// Largest error relative to the sum of the magnitudes of an output's terms.
fn worst(found: &[f32], x: &[f64], w: &[f32], n: usize, k: usize) -> f64 {
    let mut worst = 0f64;
    for (i, found) in found.iter().enumerate() {
        let (x, w) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
        let terms = x.iter().zip(w).map(|(a, b)| a * f64::from(*b));
        let (sum, size) = terms.fold((0.0, 1e-30), |(s, t), v| (s + v, t + v.abs()));
        worst = worst.max((f64::from(*found) - sum).abs() / size);
    }
    worst
}

#[test]
fn sums_are_those_of_the_rounded_activations() {
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, Threads::single()).unwrap().with_precision(Precision::Fast);
        for dtype in block_types() {
            let group = if dtype == DType::Q6_K { 16 } else { 32 };
            for (m, n, k) in [(1, 1, 256), (2, 33, 512), (3, 31, 768), (5, 64, 256), (26, 70, 1024)] {
                let (x, w) = (noise(m * k, 1), noise(n * k, 2));
                let bytes = quant::encoded(dtype, &w).unwrap();
                let mut decoded = vec![0.0; n * k];
                quant::decode(dtype, &bytes, &mut decoded).unwrap();
                let packed = PackedMatrix::new(&cpu, dtype, &bytes, n, k).unwrap();
                let mut out = vec![f32::NAN; m * n];
                linear(&cpu, &x, m, &packed, &Epilogue::default(), &mut out).unwrap();
                // Integers are summed exactly; what is left is the rounding of a sum of at most 64 groups, each of which a
                // minimum makes larger than its terms.
                let error = worst(&out, &rounded(&x, group), &decoded, n, k);
                assert!(error < 3e-6, "{isa} {dtype} {m}x{n}x{k}: {error:e}");
                // And the rounding itself costs what a step of 1/127 does.
                let exact: Vec<f64> = x.iter().map(|&v| v.into()).collect();
                let error = worst(&out, &exact, &decoded, n, k);
                assert!(error < 5e-3, "{isa} {dtype} {m}x{n}x{k}: {error:e} against unrounded activations");
            }
        }
    }
}

#[test]
fn every_byte_of_q8_0_is_multiplied_right() {
    // All 256 quanta against activations of largest magnitude: nothing saturates, not even with -128.
    let k = 256;
    let mut bytes = Vec::new();
    for block in 0..k / 32 {
        bytes.extend([0x00, 0x3c]);
        bytes.extend((0..32).map(|i| (block * 32 + i) as u8));
    }
    let mut decoded = vec![0.0; k];
    quant::decode(DType::Q8_0, &bytes, &mut decoded).unwrap();
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, Threads::single()).unwrap().with_precision(Precision::Fast);
        let packed = PackedMatrix::new(&cpu, DType::Q8_0, &bytes, 1, k).unwrap();
        for sign in [1.0, -1.0] {
            let x = vec![127.0 * sign; k];
            let mut out = [0.0];
            linear(&cpu, &x, 1, &packed, &Epilogue::default(), &mut out).unwrap();
            assert_eq!(out[0], -128.0 * 127.0 * sign, "{isa}");
        }
    }
}

#[test]
fn a_row_does_not_depend_on_rows_or_threads() {
    for isa in Isa::available() {
        let one = Cpu::new(isa, Threads::single()).unwrap().with_precision(Precision::Fast);
        let many = Cpu::new(isa, Threads::new(4).unwrap()).unwrap().with_precision(Precision::Fast);
        for dtype in [DType::Q8_0, DType::Q4_0, DType::Q5_K, DType::Q6_K] {
            let (m, n, k) = (60, 200, 1024);
            let x = noise(m * k, 3);
            let bytes = quant::encoded(dtype, &noise(n * k, 4)).unwrap();
            let packed = PackedMatrix::new(&one, dtype, &bytes, n, k).unwrap();
            let mut expected = vec![0.0; m * n];
            linear(&one, &x, m, &packed, &Epilogue::default(), &mut expected).unwrap();
            for cpu in [&one, &many] {
                for rows in [1, 2, 3, 4, 5, 7, 12, 13, 25, 60] {
                    let mut out = vec![f32::NAN; rows * n];
                    linear(cpu, &x[..rows * k], rows, &packed, &Epilogue::default(), &mut out).unwrap();
                    assert!(out == expected[..rows * n], "{isa} {dtype} {rows}");
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_how_k_and_rows_are_cut() {
    // Rows around those whose K is taken in parts and those that are rounded at a time; K with parts and ends of many kinds.
    for isa in Isa::available() {
        let one = Cpu::new(isa, Threads::single()).unwrap().with_precision(Precision::Fast);
        let two = Cpu::new(isa, Threads::new(2).unwrap()).unwrap().with_precision(Precision::Fast);
        let cases = [
            (640, DType::Q8_0),
            (1056, DType::Q5_1),
            (1280, DType::Q6_K),
            (32, DType::Q4_0),
            (1030, DType::F16),
            (520, DType::BF16),
        ];
        for (k, dtype) in cases {
            let (m, n) = (769, 70);
            let x = noise(m * k, 12);
            let bytes = quant::encoded(dtype, &noise(n * k, 13)).unwrap();
            let packed = PackedMatrix::new_glu(&one, dtype, &bytes, n, k).unwrap();
            let cases = [(&two, 9), (&one, 127), (&two, 128), (&one, 129), (&two, 769)];
            rows_are_those_alone(&one, &x, &packed, None, &cases);
        }
    }
}

#[test]
fn gated_units_and_epilogues_are_those_of_exact_products() {
    let (m, n, k) = (15, 130, 1024);
    let (x, w, bias) = (noise(m * k, 5), noise(n * k, 6), noise(n, 7));
    for isa in Isa::available() {
        let exact = Cpu::new(isa, Threads::single()).unwrap();
        let fast = exact.clone().with_precision(Precision::Fast);
        for dtype in [DType::Q8_0, DType::Q4_K] {
            let bytes = quant::encoded(dtype, &w).unwrap();
            let glu = PackedMatrix::new_glu(&exact, dtype, &bytes, n, k).unwrap();
            for (activation, width) in [(Activation::Glu, n / 2), (Activation::Silu, n)] {
                let before = noise(m * width, 8);
                let epilogue =
                    Epilogue { bias: Some(&bias), activation, scale: 0.5, residual: Residual::InPlace };
                let (mut a, mut b) = (before.clone(), before.clone());
                linear(&exact, &x, m, &glu, &epilogue, &mut a).unwrap();
                linear(&fast, &x, m, &glu, &epilogue, &mut b).unwrap();
                let (mut error, mut size) = (0f64, 0f64);
                for ((a, b), before) in a.iter().zip(&b).zip(&before) {
                    error += f64::from(a - b).powi(2);
                    size += f64::from(a - before).powi(2);
                }
                assert!((error / size).sqrt() < 0.01, "{isa} {dtype} {activation:?}: {}", error / size);
            }
        }
    }
}

#[test]
fn what_is_not_finite_or_tiny_stays_in_its_row() {
    let (n, k) = (5, 64);
    let w = noise(n * k, 9);
    let bytes = quant::encoded(DType::Q8_0, &w).unwrap();
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, Threads::single()).unwrap().with_precision(Precision::Fast);
        let packed = PackedMatrix::new(&cpu, DType::Q8_0, &bytes, n, k).unwrap();
        let mut x = noise(4 * k, 10);
        x[7] = f32::NAN;
        x[k + 40] = f32::NEG_INFINITY;
        x[2 * k..3 * k].fill(1e-38);
        let mut out = vec![0.0; 4 * n];
        linear(&cpu, &x, 4, &packed, &Epilogue::default(), &mut out).unwrap();
        assert!(out[..2 * n].iter().all(|v| v.is_nan()), "{isa} {out:?}");
        assert!(out[2 * n..3 * n].iter().all(|&v| v == 0.0), "{isa} {out:?}");
        assert!(out[3 * n..].iter().all(|v| v.is_finite()), "{isa} {out:?}");
    }
}

#[test]
fn memory_held_is_about_what_is_stored() {
    let (n, k) = (256, 512);
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, Threads::single()).unwrap();
        for dtype in block_types() {
            let bytes = quant::encoded(dtype, &noise(n * k, 11)).unwrap();
            let packed = PackedMatrix::new(&cpu, dtype, &bytes, n, k).unwrap();
            // Scales and minima of Q4_K and Q5_K take a byte instead of 6 bits: 4 bytes more of 144.
            assert!(packed.bytes() <= bytes.len() * 103 / 100 + 64, "{isa} {dtype}");
        }
    }
}
