use super::*;
use crate::Threads;
use conure_tensor::{DType, quant};

fn wave(n: usize, seed: f32) -> Vec<f32> {
    (0..n).map(|i| ((i as f32 + seed) * 0.731 + (i as f32 * 0.013).sin()).sin()).collect()
}

fn cpus() -> Vec<Cpu> {
    Isa::available()
        .flat_map(|isa| [1, 3].map(|n| Cpu::new(isa, Threads::new(n).unwrap()).unwrap()))
        .collect()
}

/// `[M, N]` in f64.
fn naive(x: &[f32], w: &[f32], m: usize, n: usize, k: usize) -> Vec<f64> {
    let mut out = Vec::with_capacity(m * n);
    for i in 0..m {
        for j in 0..n {
            out.push((0..k).map(|l| x[i * k + l] as f64 * w[j * k + l] as f64).sum());
        }
    }
    out
}

fn close(found: &[f32], expected: &[f64], k: usize, what: &str) {
    assert_eq!(found.len(), expected.len());
    let bound = 1e-7 * (k as f64 + 10.0);
    for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
        assert!((f as f64 - e).abs() <= bound * (1.0 + e.abs()), "{what} [{i}]: {f} for {e}");
    }
}

const SHAPES: [(usize, usize, usize); 14] = [
    (1, 1, 1),
    (1, 33, 7),
    (2, 32, 32),
    (3, 31, 64),
    (4, 17, 5),
    (5, 64, 96),
    (7, 13, 512),
    (13, 97, 513),
    (14, 48, 31),
    (15, 130, 1030),
    (16, 8, 128),
    (29, 65, 33),
    (61, 257, 100),
    (113, 70, 61),
];

#[test]
fn linear_agrees_with_f64() {
    for cpu in cpus() {
        for (m, n, k) in SHAPES {
            let (x, w) = (wave(m * k, 0.0), wave(n * k, 1.0));
            let packed = PackedMatrix::from_f32(&cpu, &w, n, k).unwrap();
            let mut guarded = vec![77.0; m * n + 32];
            linear(&cpu, &x, m, &packed, &Epilogue::default(), &mut guarded[16..16 + m * n]).unwrap();
            close(
                &guarded[16..16 + m * n],
                &naive(&x, &w, m, n, k),
                k,
                &format!("{} {m}x{n}x{k}", cpu.isa()),
            );
            assert!(guarded[..16].iter().chain(&guarded[16 + m * n..]).all(|&g| g == 77.0), "wrote outside");
        }
    }
}

#[test]
fn matmul_agrees_with_f64_in_both_layouts() {
    for cpu in cpus() {
        for (m, n, k) in SHAPES {
            let (a, b) = (wave(m * k, 0.0), wave(n * k, 1.0));
            let expected = naive(&a, &b, m, n, k);
            let mut transposed = vec![0.0; n * k];
            for (i, &v) in b.iter().enumerate() {
                transposed[i % k * n + i / k] = v;
            }
            for (layout, b) in [(Rhs::Nk, &b), (Rhs::Kn, &transposed)] {
                let mut out = vec![f32::NAN; m * n];
                matmul(&cpu, &a, b, layout, m, n, k, &Epilogue::default(), &mut out).unwrap();
                close(&out, &expected, k, &format!("{} {layout:?} {m}x{n}x{k}", cpu.isa()));
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_rows_threads_or_storage() {
    for isa in Isa::available() {
        let one = Cpu::new(isa, Threads::single()).unwrap();
        let many = Cpu::new(isa, Threads::new(4).unwrap()).unwrap();
        for (n, k) in [(130, 1056), (96, 64), (640, 512)] {
            let (m, x) = (60, wave(60 * k, 0.0));
            for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
                let bytes = quant::encoded(dtype, &wave(n * k, 1.0)).unwrap();
                let mut decoded = vec![0.0; n * k];
                quant::decode(dtype, &bytes, &mut decoded).unwrap();
                let as_f32 = PackedMatrix::from_f32(&one, &decoded, n, k).unwrap();
                let packed = PackedMatrix::new(&one, dtype, &bytes, n, k).unwrap();
                let mut expected = vec![f32::NAN; m * n];
                linear(&one, &x, m, &as_f32, &Epilogue::default(), &mut expected).unwrap();
                for cpu in [&one, &many] {
                    for rows in [1, 2, 3, 4, 5, 8, 14, 17, 33, 60] {
                        let mut out = vec![f32::NAN; rows * n];
                        linear(cpu, &x[..rows * k], rows, &packed, &Epilogue::default(), &mut out).unwrap();
                        assert!(out == expected[..rows * n], "{isa} {dtype} {rows} of {n}x{k}");
                    }
                }
            }
        }
    }
}

#[test]
fn k_in_parts_is_the_same_chain() {
    // K of which few whole rows stay in a cache, by rows and threads around those whose K is cut.
    let (m, n, k) = (130, 70, 4104);
    for isa in Isa::available() {
        let [one, three] = [1, 3].map(|t| Cpu::new(isa, Threads::new(t).unwrap()).unwrap());
        let size = crate::isa::tile_size(isa);
        for (dtype, k) in [(DType::F32, k), (DType::F16, k), (DType::Q8_0, 4128)] {
            let (x, bytes) = (wave(m * k, 0.0), quant::encoded(dtype, &wave(n * k, 1.0)).unwrap());
            let packed = PackedMatrix::new_glu(&one, dtype, &bytes, n, k).unwrap();
            let bias = wave(n, 2.0);
            let cases = [(&one, size.rows), (&one, 130), (&three, 93), (&three, 130)];
            for (cpu, rows) in cases {
                let (source, epilogue) = (Source::Packed(&packed), Epilogue::default());
                let (columns, left) = (packed.columns, Left::Dense(&x[..rows * k]));
                let product = Product { kernel: "test", m: rows, k, left, columns, source, epilogue };
                let cut = Cut::new(&product, size, cpu.threads().count());
                assert_eq!(cut.k < k, rows > size.rows, "{isa} {rows} rows: {}", cut.k);
            }
            testing::rows_are_those_alone(&one, &x, &packed, Some(&bias), &cases);
        }
    }
}

#[test]
fn every_block_format_is_exact_to_its_decoding() {
    let (m, n, k) = (3, 35, 768);
    let (x, w) = (wave(m * k, 0.0), wave(n * k, 1.0));
    for cpu in cpus() {
        for dtype in DType::ALL {
            let Ok(bytes) = quant::encoded(dtype, &w) else {
                assert!(
                    PackedMatrix::new(&cpu, dtype, &vec![0; dtype.bytes_for(n * k).unwrap()], n, k).is_err()
                );
                continue;
            };
            let mut decoded = vec![0.0; n * k];
            quant::decode(dtype, &bytes, &mut decoded).unwrap();
            let packed = PackedMatrix::new(&cpu, dtype, &bytes, n, k).unwrap();
            assert_eq!((packed.n(), packed.k(), packed.dtype()), (n, k, dtype));
            let mut out = vec![f32::NAN; m * n];
            linear(&cpu, &x, m, &packed, &Epilogue::default(), &mut out).unwrap();
            close(&out, &naive(&x, &decoded, m, n, k), k, &format!("{} {dtype}", cpu.isa()));
        }
    }
}

#[test]
fn epilogues_agree_with_their_definitions() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    for cpu in cpus() {
        for (m, n, k) in [(1, 2, 3), (2, 34, 40), (15, 64, 20), (3, 130, 600), (20, 96, 33), (40, 66, 64)] {
            let (x, w, bias) = (wave(m * k, 0.0), wave(n * k, 1.0), wave(n, 2.0));
            let plain = PackedMatrix::from_f32(&cpu, &w, n, k).unwrap();
            let bytes = bytemuck::cast_slice(&w);
            let halves = PackedMatrix::new_glu(&cpu, DType::F32, bytes, n, k).unwrap();
            let mut sums = naive(&x, &w, m, n, k);
            for row in sums.chunks_exact_mut(n) {
                row.iter_mut().zip(&bias).for_each(|(s, &b)| *s += b as f64);
            }
            for activation in
                [Activation::None, Activation::Relu, Activation::Silu, Activation::Sigmoid, Activation::Glu]
            {
                let applied: Vec<f64> = match activation {
                    Activation::None => sums.clone(),
                    Activation::Relu => sums.iter().map(|&v| v.max(0.0)).collect(),
                    Activation::Silu => sums.iter().map(|&v| v * sigmoid(v)).collect(),
                    Activation::Sigmoid => sums.iter().map(|&v| sigmoid(v)).collect(),
                    Activation::Glu => sums
                        .chunks_exact(n)
                        .flat_map(|row| (0..n / 2).map(|i| row[i] * sigmoid(row[n / 2 + i])))
                        .collect(),
                };
                let before = wave(applied.len(), 3.0);
                let weights: &[&PackedMatrix] =
                    if activation == Activation::Glu { &[&halves] } else { &[&plain, &halves] };
                for (scale, kind) in [(1.0, 0), (0.5, 1), (0.5, 2)] {
                    let residual = [Residual::None, Residual::Add(&before), Residual::InPlace][kind];
                    let epilogue = Epilogue { bias: Some(&bias), activation, scale, residual };
                    let expected: Vec<f64> = applied
                        .iter()
                        .zip(&before)
                        .map(|(v, &r)| v * scale as f64 + if kind == 0 { 0.0 } else { r as f64 })
                        .collect();
                    let what = format!("{} {activation:?} {kind} {m}x{n}x{k}", cpu.isa());
                    for weights in weights {
                        let mut out = before.clone();
                        linear(&cpu, &x, m, weights, &epilogue, &mut out).unwrap();
                        close(&out, &expected, k, &what);
                    }
                    let mut out = before.clone();
                    matmul(&cpu, &x, &w, Rhs::Nk, m, n, k, &epilogue, &mut out).unwrap();
                    close(&out, &expected, k, &what);
                }
            }
        }
    }
}

#[test]
fn empty_products_are_the_epilogue_of_zero() {
    for cpu in cpus() {
        let packed = PackedMatrix::from_f32(&cpu, &[], 5, 0).unwrap();
        let bias = [1.0, -2.0, 3.0, 4.0, 5.0];
        let epilogue = Epilogue { bias: Some(&bias), activation: Activation::Relu, ..Epilogue::default() };
        let mut out = [9.0; 10];
        linear(&cpu, &[], 2, &packed, &epilogue, &mut out).unwrap();
        assert_eq!(out, [1.0, 0.0, 3.0, 4.0, 5.0, 1.0, 0.0, 3.0, 4.0, 5.0]);
        let packed = PackedMatrix::from_f32(&cpu, &[1.0; 10], 5, 2).unwrap();
        assert_eq!(linear(&cpu, &[], 0, &packed, &Epilogue::default(), &mut []), Ok(()));
    }
}

#[test]
fn wrong_shapes_are_errors() {
    let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
    let packed = PackedMatrix::from_f32(&cpu, &[0.0; 6], 2, 3).unwrap();
    let plain = Epilogue::default();
    let mut out = [0.0; 4];
    assert!(linear(&cpu, &[0.0; 6], 2, &packed, &plain, &mut out).is_ok());
    assert!(linear(&cpu, &[0.0; 5], 2, &packed, &plain, &mut out).is_err());
    assert!(linear(&cpu, &[0.0; 6], 2, &packed, &plain, &mut out[1..]).is_err());
    assert!(linear(&cpu, &[0.0; 6], usize::MAX, &packed, &plain, &mut out).is_err());
    let short = Epilogue { bias: Some(&[0.0]), ..plain };
    assert!(linear(&cpu, &[0.0; 6], 2, &packed, &short, &mut out).is_err());
    let short = Epilogue { residual: Residual::Add(&[0.0; 3]), ..plain };
    assert!(linear(&cpu, &[0.0; 6], 2, &packed, &short, &mut out).is_err());
    let glu = Epilogue { activation: Activation::Glu, ..plain };
    assert!(linear(&cpu, &[0.0; 6], 2, &packed, &glu, &mut out[..2]).is_err());
    assert!(PackedMatrix::new(&cpu, DType::F32, &[0; 23], 2, 3).is_err());
    assert!(PackedMatrix::new(&cpu, DType::Q8_0, &[0; 34], 1, 31).is_err());
    assert!(PackedMatrix::new(&cpu, DType::F32, &[], usize::MAX, 2).is_err());
    assert!(PackedMatrix::new_glu(&cpu, DType::F32, &[0; 36], 3, 3).is_err());
    assert!(matmul(&cpu, &[0.0; 6], &[0.0; 5], Rhs::Kn, 2, 2, 3, &plain, &mut out).is_err());
}
