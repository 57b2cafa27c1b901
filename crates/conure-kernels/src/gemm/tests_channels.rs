//! Products with one scale for each output against their definition.

use super::testing::{noise, rows_are_those_alone};
use super::*;
use crate::{Isa, Precision, Threads};
use conure_tensor::{DType, quant};

fn int8(isa: Isa, threads: usize) -> Cpu {
    Cpu::new(isa, Threads::new(threads).unwrap()).unwrap().with_precision(Precision::Int8)
}

/// Scale and integers of a row, as the definition says.
fn rounded(row: &[f32]) -> (f32, Vec<i64>) {
    let largest = row.iter().fold(0f32, |a, v| a.max(v.abs()));
    let (scale, inverse) =
        if largest < 1e-30 { (0.0, 0.0) } else { (largest * (1.0 / 127.0), 127.0 / largest) };
    (scale, row.iter().map(|v| (v * inverse).round_ties_even() as i64).collect())
}

/// The product by its definition: exact but for the last three roundings, which are those of the kernels.
fn defined(x: &[f32], w: &[f32], n: usize, k: usize) -> Vec<f32> {
    let w: Vec<_> = w.chunks(k).map(rounded).collect();
    let mut out = Vec::with_capacity(x.len() / k * n);
    for (a, x) in x.chunks(k).map(rounded) {
        for (s, w) in &w {
            let sum: i64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
            out.push(sum as f32 * (s * a));
        }
    }
    out
}

#[test]
fn outputs_are_those_of_the_definition_to_the_last_bit() {
    for isa in Isa::available() {
        for (m, n, k) in
            [(1, 1, 32), (1, 70, 256), (2, 33, 288), (5, 64, 512), (26, 70, 1056), (130, 40, 1024)]
        {
            let (x, w) = (noise(m * k, 1), noise(n * k, 2));
            for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
                let bytes = quant::encoded(dtype, &w).unwrap();
                let mut decoded = vec![0.0; n * k];
                quant::decode(dtype, &bytes, &mut decoded).unwrap();
                let expected = defined(&x, &decoded, n, k);
                for cpu in [int8(isa, 1), int8(isa, 3)] {
                    let packed = PackedMatrix::for_products(&cpu, dtype, &bytes, n, k, false).unwrap();
                    let mut out = vec![f32::NAN; m * n];
                    linear(&cpu, &x, m, &packed, &Epilogue::default(), &mut out).unwrap();
                    assert!(out == expected, "{isa} {dtype} {m}x{n}x{k}");
                    // A matrix that was rounded is multiplied so in any precision.
                    let exact = cpu.with_precision(Precision::Exact);
                    linear(&exact, &x, m, &packed, &Epilogue::default(), &mut out).unwrap();
                    assert!(out == expected, "{isa} {dtype} {m}x{n}x{k}");
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_how_k_and_rows_are_cut() {
    for isa in Isa::available() {
        let (one, two) = (int8(isa, 1), int8(isa, 2));
        for k in [32, 544, 1280] {
            let (m, n) = (769, 70);
            let x = noise(m * k, 12);
            let bytes = quant::encoded(DType::F32, &noise(n * k, 13)).unwrap();
            let packed = PackedMatrix::for_products(&one, DType::F32, &bytes, n, k, true).unwrap();
            let cases = [(&two, 9), (&one, 127), (&two, 128), (&one, 129), (&two, 769)];
            rows_are_those_alone(&one, &x, &packed, None, &cases);
        }
    }
}

#[test]
fn extremes_do_not_overflow_and_saturate_nothing() {
    // The longest K, all at the largest magnitude.
    let k = 1 << 15;
    for isa in Isa::available() {
        let cpu = int8(isa, 1);
        for (w, x) in [(3.0, 5.0), (-3.0, 5.0), (3.0, -5.0), (-3.0, -5.0)] {
            let bytes = quant::encoded(DType::F32, &vec![w; k]).unwrap();
            let packed = PackedMatrix::for_products(&cpu, DType::F32, &bytes, 1, k, false).unwrap();
            for m in [1, 2] {
                let mut out = vec![0.0; m];
                linear(&cpu, &vec![x; m * k], m, &packed, &Epilogue::default(), &mut out).unwrap();
                let error = (out[0] / (w * x * k as f32) - 1.0).abs();
                assert!(error < 1e-6 && out.iter().all(|v| *v == out[0]), "{isa} {w} {x}: {out:?}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_or_tiny_stays_in_its_row_and_column() {
    for isa in Isa::available() {
        let cpu = int8(isa, 1);
        for k in [64, 512] {
            let n = 5;
            let mut w = noise(n * k, 9);
            w[k + 3] = f32::INFINITY;
            w[2 * k..3 * k].fill(0.0);
            let packed =
                PackedMatrix::for_products(&cpu, DType::F32, bytemuck::cast_slice(&w), n, k, false).unwrap();
            let mut x = noise(4 * k, 10);
            x[7] = f32::NAN;
            x[k + 40] = f32::NEG_INFINITY;
            x[2 * k..3 * k].fill(1e-38);
            let mut out = vec![0.0; 4 * n];
            linear(&cpu, &x, 4, &packed, &Epilogue::default(), &mut out).unwrap();
            for (i, v) in out.iter().enumerate() {
                let (row, column) = (i / n, i % n);
                let right = match (row, column) {
                    (0 | 1, _) | (_, 1) => v.is_nan(),
                    (2, _) | (_, 2) => *v == 0.0,
                    _ => v.is_finite() && *v != 0.0,
                };
                assert!(right, "{isa} row {row} column {column}: {v}");
            }
        }
    }
}

#[test]
fn other_weights_are_as_in_fast_or_exact() {
    let (m, n) = (3, 40);
    for isa in Isa::available() {
        let int8 = int8(isa, 1);
        // Fewer bits than eight, and rows that are not whole parts.
        for (dtype, k, like) in [
            (DType::Q4_K, 256, Precision::Fast),
            (DType::Q6_K, 256, Precision::Fast),
            (DType::F32, 50, Precision::Exact),
        ] {
            let like = int8.clone().with_precision(like);
            let x = noise(m * k, 14);
            let bytes = quant::encoded(dtype, &noise(n * k, 15)).unwrap();
            let results = [&int8, &like].map(|cpu| {
                let packed = PackedMatrix::for_products(cpu, dtype, &bytes, n, k, false).unwrap();
                let mut out = vec![f32::NAN; m * n];
                linear(cpu, &x, m, &packed, &Epilogue::default(), &mut out).unwrap();
                out
            });
            assert!(results[0] == results[1], "{isa} {dtype}");
        }
    }
}

#[test]
fn memory_held_is_a_byte_a_weight_and_a_scale_an_output() {
    for isa in Isa::available() {
        let (cpu, n, k) = (int8(isa, 1), 256, 512);
        let bytes = quant::encoded(DType::F16, &noise(n * k, 16)).unwrap();
        let packed = PackedMatrix::for_products(&cpu, DType::F16, &bytes, n, k, false).unwrap();
        assert_eq!(packed.bytes(), n * k + 4 * n, "{isa}");
    }
}
