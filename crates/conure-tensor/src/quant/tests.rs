//! Tests over all formats: against data made by other implementations, and of what no golden covers.

use super::*;

const QUANTISED: [DType; 10] = [
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::IQ4_NL,
    DType::MXFP4,
];

/// A file that scripts/make_quant_goldens.py made.
fn golden(name: &str) -> Vec<u8> {
    let path = format!("{}/../../tests/data/quant/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

fn decoded(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    decode(dtype, bytes, &mut out).unwrap();
    out
}

/// Values of a normal distribution, the same ones every time.
fn normal(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

#[test]
fn sizes_are_those_of_the_types() {
    fn check<B: Pod>(dtype: DType, len: usize) {
        assert_eq!(
            (size_of::<B>(), align_of::<B>(), len),
            (dtype.block_bytes(), 1, dtype.block_len()),
            "{dtype}"
        );
    }
    check::<BlockQ4_0>(DType::Q4_0, q4_0::LEN);
    check::<BlockQ4_1>(DType::Q4_1, q4_1::LEN);
    check::<BlockQ5_0>(DType::Q5_0, q5_0::LEN);
    check::<BlockQ5_1>(DType::Q5_1, q5_1::LEN);
    check::<BlockQ8_0>(DType::Q8_0, q8_0::LEN);
    check::<BlockQ4_K>(DType::Q4_K, q4_k::LEN);
    check::<BlockQ5_K>(DType::Q5_K, q5_k::LEN);
    check::<BlockQ6_K>(DType::Q6_K, q6_k::LEN);
    check::<BlockIQ4_NL>(DType::IQ4_NL, iq4_nl::LEN);
    check::<BlockMXFP4>(DType::MXFP4, mxfp4::LEN);
}

#[test]
fn decoding_equals_the_gguf_package_bit_for_bit() {
    for dtype in QUANTISED.into_iter().chain([DType::F16, DType::BF16]) {
        let got = decoded(dtype, &golden(&format!("blocks.{dtype}")));
        let want = floats(&golden(&format!("blocks.{dtype}.f32")));
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            // A NaN may keep another payload; everything else is the same bits, zeros with their sign.
            let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
            assert!(same, "{dtype} element {i}: {got:e} is not {want:e}");
        }
    }
}

#[test]
fn encoding_equals_the_gguf_package_and_libggml_bit_for_bit() {
    let values = floats(&golden("values.f32"));
    for dtype in QUANTISED.into_iter().chain([DType::F16, DType::BF16]) {
        let got = encoded(dtype, &values).unwrap();
        let want = golden(&format!("values.{dtype}"));
        assert_eq!(got.len(), want.len());
        let size = dtype.block_bytes();
        for (i, (got, want)) in got.chunks(size).zip(want.chunks(size)).enumerate() {
            assert_eq!(
                got,
                want,
                "{dtype} block {i}: {:?}",
                &values[i * dtype.block_len()..][..8.min(dtype.block_len())]
            );
        }
    }
}

#[test]
fn error_is_no_worse_than_of_rounding_to_the_span() {
    // The K-quants search; their weighted error must be at most that of the plain rounding they start from, with
    // the scales left in f32 and a margin for their rounding to six bits.
    let values = normal(256 * 64, 3);
    for (dtype, group, levels, margin) in [(DType::Q4_K, 32, 15.0, 1.06), (DType::Q5_K, 32, 31.0, 1.15)] {
        let got = decoded(dtype, &encoded(dtype, &values).unwrap());
        let (mut error, mut naive) = (0.0f64, 0.0f64);
        for (x, y) in values.chunks(group).zip(got.chunks(group)) {
            let rms = (x.iter().map(|v| v * v).sum::<f32>() / group as f32).sqrt();
            let (min, max) = range(x);
            let step = (max - min.min(0.0)) / levels;
            for (&x, &y) in x.iter().zip(y) {
                let w = f64::from(rms + x.abs());
                let rounded = ((x - min) / step).round() * step + min;
                error += w * f64::from(y - x).powi(2);
                naive += w * f64::from(rounded - x).powi(2);
            }
        }
        assert!(error <= naive * margin, "{dtype}: {error} against {naive}");
    }
}

#[test]
fn relative_error_is_what_the_bits_allow() {
    let values = normal(256 * 64, 4);
    let power: f32 = values.iter().map(|v| v * v).sum();
    let limits = [0.095, 0.08, 0.048, 0.04, 0.0057, 0.078, 0.039, 0.02, 0.08, 0.13];
    for (dtype, limit) in QUANTISED.into_iter().zip(limits) {
        let got = decoded(dtype, &encoded(dtype, &values).unwrap());
        let noise: f32 = values.iter().zip(&got).map(|(x, y)| (x - y) * (x - y)).sum();
        let relative = (noise / power).sqrt();
        assert!(relative < limit && relative > limit / 1.6, "{dtype}: {relative}");
    }
}

#[test]
fn round_trip_is_stable() {
    // Values that a format has stored come back from it nearly unchanged a second time.
    let values = normal(256 * 8, 5);
    for dtype in QUANTISED {
        let once = decoded(dtype, &encoded(dtype, &values).unwrap());
        let twice = decoded(dtype, &encoded(dtype, &once).unwrap());
        let noise: f32 = once.iter().zip(&twice).map(|(x, y)| (x - y) * (x - y)).sum();
        let power: f32 = values.iter().map(|v| v * v).sum();
        assert!((noise / power).sqrt() < 0.02, "{dtype}: {}", (noise / power).sqrt());
    }
}

#[test]
fn zeros_of_either_sign_decode_to_zero() {
    for dtype in QUANTISED {
        for zero in [0.0, -0.0] {
            let got = decoded(dtype, &encoded(dtype, &[zero; 256]).unwrap());
            assert!(got.iter().all(|&v| v == 0.0), "{dtype}");
        }
    }
}

#[test]
fn constants_survive() {
    for dtype in QUANTISED {
        for c in [1.0, -1.0, 0.37, -250.0] {
            let got = decoded(dtype, &encoded(dtype, &[c; 256]).unwrap());
            // MXFP4 has no scale to fit: what is nearly 8 becomes its largest, 6.
            let bound = if dtype == DType::MXFP4 { 0.25 } else { 0.005 };
            assert!(got.iter().all(|&v| (v - c).abs() <= c.abs() * bound), "{dtype} {c}: {}", got[0]);
        }
    }
}

#[test]
fn tiny_values_become_zero_or_stay_near() {
    for dtype in QUANTISED {
        for scale in [1e-3f32, 1e-6, 1e-8, 1e-20, 1e-39, 1e-45] {
            let values: Vec<f32> = normal(256, 6).iter().map(|v| v * scale).collect();
            let got = decoded(dtype, &encoded(dtype, &values).unwrap());
            let worst = values.iter().zip(&got).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
            // Scales are f16, in steps of 6e-8 at the small end: there they round to zero (a scale
            // perhaps, while its minimum stays) or to much else.
            // The largest of MXFP4 may be a quarter short.
            let steps = if dtype == DType::MXFP4 { 1.0 } else { 0.5 };
            let limit = (8.0 * scale + 6e-8).min(steps * scale + 3e-5);
            assert!(worst <= limit, "{dtype} {scale:e}: off by {worst:e}");
        }
    }
}

#[test]
fn values_that_fit_no_block_are_refused_by_position() {
    let mut values = normal(512, 7);
    for dtype in QUANTISED {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let kept = std::mem::replace(&mut values[300], bad);
            let error = encoded(dtype, &values).unwrap_err();
            assert!(matches!(error, QuantError::NotFinite { index: 300, .. }), "{error}");
            values[300] = kept;
        }
        for huge in [1e30, -1e30, f32::MAX, f32::MIN] {
            let kept = std::mem::replace(&mut values[300], huge);
            let start = 300 / dtype.block_len() * dtype.block_len();
            match encoded(dtype, &values).unwrap_err() {
                QuantError::TooLarge { start: s, end, largest, .. } => {
                    assert_eq!((s, end, largest), (start, start + dtype.block_len(), huge.abs()));
                }
                other => panic!("{dtype}: {other}"),
            }
            values[300] = kept;
        }
    }
}

#[test]
fn plain_types_keep_what_is_not_finite() {
    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let got = decoded(dtype, &encoded(dtype, &values).unwrap());
        assert!(got[0].is_nan());
        assert_eq!(got[1..3], values[1..3]);
        assert_eq!(got[3].to_bits(), values[3].to_bits());
    }
    let error = encoded(DType::F16, &[1.0, 65519.0, 65520.0]).unwrap_err();
    assert_eq!(error, QuantError::TooLarge { dtype: DType::F16, start: 2, end: 3, largest: 65520.0 });
    assert!(encoded(DType::BF16, &[1e38]).is_ok());
    assert!(encoded(DType::BF16, &[f32::MAX]).is_err());
}

#[test]
fn block_encoders_do_not_panic_on_anything() {
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-45, -0.0, 1.0];
    for shift in 0..odd.len() {
        for period in 1..odd.len() {
            let x: [f32; 256] = std::array::from_fn(|i| odd[(i / period + shift) % odd.len()]);
            let y: [f32; 32] = std::array::from_fn(|i| x[i]);
            let _ =
                (BlockQ4_0::encode(&y), BlockQ4_1::encode(&y), BlockQ5_0::encode(&y), BlockQ5_1::encode(&y));
            let _ = (BlockIQ4_NL::encode(&y), BlockMXFP4::encode(&y));
            let _ =
                (BlockQ8_0::encode(&y), BlockQ4_K::encode(&x), BlockQ5_K::encode(&x), BlockQ6_K::encode(&x));
        }
    }
    for &v in &odd {
        let _ = (BlockQ8_0::encode(&[v; 32]), BlockQ4_K::encode(&[v; 256]), BlockQ5_K::encode(&[v; 256]));
        let _ = (BlockQ6_K::encode(&[v; 256]), BlockQ4_0::encode(&[v; 32]), BlockQ5_1::encode(&[v; 32]));
    }
}

#[test]
fn wrong_lengths_and_types_are_errors() {
    let mut out = [0.0; 32];
    let length = QuantError::Length { dtype: DType::Q8_0, elements: 32, expected: 34, found: 33 };
    assert_eq!(decode(DType::Q8_0, &[0; 33], &mut out), Err(length));
    let partial = QuantError::PartialBlock { dtype: DType::Q4_K, elements: 32 };
    assert_eq!(decode(DType::Q4_K, &[0; 18], &mut out), Err(partial));
    assert_eq!(
        encoded(DType::Q8_0, &[0.0; 31]),
        Err(QuantError::PartialBlock { dtype: DType::Q8_0, elements: 31 })
    );
    assert!(matches!(encode(DType::F32, &[0.0; 2], &mut [0; 7]), Err(QuantError::Length { .. })));
    for dtype in [DType::I32, DType::I64] {
        assert_eq!(encoded(dtype, &[0.0; 2]), Err(QuantError::NotFloat { dtype }));
        let bytes = vec![0; dtype.block_bytes() * 32];
        assert_eq!(decode(dtype, &bytes, &mut out), Err(QuantError::NotFloat { dtype }));
    }
    assert_eq!(decode(DType::Q6_K, &[], &mut []), Ok(()));
}

#[test]
fn bytes_need_no_alignment() {
    let values = normal(256, 8);
    for dtype in QUANTISED.into_iter().chain([DType::F32, DType::F16, DType::BF16]) {
        let even = encoded(dtype, &values).unwrap();
        let mut odd = vec![0];
        odd.extend(&even);
        assert_eq!(decoded(dtype, &odd[1..]), decoded(dtype, &even), "{dtype}");
    }
}

#[test]
fn nearest_rounds_halves_to_even() {
    let cases = [
        (0.5, 0),
        (1.5, 2),
        (2.5, 2),
        (-0.5, 0),
        (-1.5, -2),
        (0.49, 0),
        (4194303.0, 4194303),
        (-4194303.0, -4194303),
    ];
    for (x, want) in cases {
        assert_eq!(nearest(x), want, "{x}");
    }
}
