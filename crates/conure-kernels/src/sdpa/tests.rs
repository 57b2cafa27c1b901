use super::*;
use crate::{Isa, Threads};
use conure_tensor::quant;

fn wave(n: usize, seed: f32) -> Vec<f32> {
    (0..n)
        .map(|i| ((i as f32 * 1.37 + seed) * 0.731).sin() * 1.5 + ((i * 7919 % 101) as f32 - 50.0) / 60.0)
        .collect()
}

fn stored(dtype: DType, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = vec![0; dtype.bytes_for(values.len()).unwrap()];
    quant::encode(dtype, values, &mut bytes).unwrap();
    let mut back = vec![0.0; values.len()];
    quant::decode(dtype, &bytes, &mut back).unwrap();
    (bytes, back)
}

/// The definition, in f64.
fn exact(a: &Sdpa<'_>, k: &[f32], v: &[f32]) -> Vec<f64> {
    let mut out = Vec::new();
    for b in 0..a.batch() {
        for t in 0..a.tokens {
            for h in 0..a.heads {
                let g = h / a.group();
                let (lo, hi) = a.visible(b, t);
                let q = &a.q[((b * a.tokens + t) * a.heads + h) * a.head_dim..][..a.head_dim];
                let scores: Vec<f64> = (lo..hi)
                    .map(|j| {
                        let key = &k[((b * a.capacity + j) * a.key_heads + g) * a.head_dim..][..a.head_dim];
                        let dot: f64 = q.iter().zip(key).map(|(x, y)| *x as f64 * *y as f64).sum();
                        let score = dot * a.scale as f64;
                        a.cap.map_or(score, |c| c as f64 * (score / c as f64).tanh())
                    })
                    .collect();
                let sink = a.sinks.map(|z| z[h] as f64);
                let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = scores.iter().map(|s| (s - max).exp()).sum::<f64>()
                    + sink.map_or(0.0, |z| (z - max).exp());
                for d in 0..a.value_dim {
                    let at = |j: usize| v[((b * a.capacity + j) * a.key_heads + g) * a.value_dim + d] as f64;
                    out.push(scores.iter().zip(lo..hi).map(|(s, j)| (s - max).exp() / total * at(j)).sum());
                }
            }
        }
    }
    out
}

struct Case {
    heads: [usize; 2],
    dims: [usize; 2],
    tokens: usize,
    capacity: usize,
    at: &'static [i32],
    window: Option<usize>,
    cap: Option<f32>,
    sinks: bool,
}

const CASES: [Case; 8] = [
    Case {
        heads: [4, 1],
        dims: [64, 64],
        tokens: 1,
        capacity: 700,
        at: &[600],
        window: None,
        cap: None,
        sinks: false,
    },
    Case {
        heads: [4, 2],
        dims: [32, 64],
        tokens: 2,
        capacity: 300,
        at: &[270, 0],
        window: Some(20),
        cap: None,
        sinks: true,
    },
    Case {
        heads: [3, 1],
        dims: [64, 32],
        tokens: 1,
        capacity: 300,
        at: &[0, 256, 255],
        window: None,
        cap: Some(3.0),
        sinks: false,
    },
    Case {
        heads: [5, 5],
        dims: [32, 32],
        tokens: 7,
        capacity: 40,
        at: &[0],
        window: None,
        cap: None,
        sinks: true,
    },
    Case {
        heads: [4, 1],
        dims: [64, 64],
        tokens: 70,
        capacity: 600,
        at: &[500],
        window: Some(100),
        cap: None,
        sinks: false,
    },
    Case {
        heads: [6, 2],
        dims: [32, 96],
        tokens: 33,
        capacity: 320,
        at: &[0, 280],
        window: None,
        cap: Some(5.0),
        sinks: true,
    },
    Case {
        heads: [1, 1],
        dims: [96, 32],
        tokens: 300,
        capacity: 300,
        at: &[0],
        window: Some(1),
        cap: None,
        sinks: false,
    },
    Case {
        heads: [16, 1],
        dims: [32, 32],
        tokens: 1,
        capacity: 64,
        at: &[63],
        window: None,
        cap: None,
        sinks: true,
    },
];

#[test]
fn agrees_with_the_definition_on_every_cache() {
    for (i, c) in CASES.iter().enumerate() {
        let [heads, key_heads] = c.heads;
        let [head_dim, value_dim] = c.dims;
        let batch = c.at.len();
        let q = wave(batch * c.tokens * heads * head_dim, 0.3);
        let sinks = wave(heads, 3.0);
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
            let (k, k_values) = stored(dtype, &wave(batch * c.capacity * key_heads * head_dim, 1.0));
            let (v, v_values) = stored(dtype, &wave(batch * c.capacity * key_heads * value_dim, 2.0));
            // Bytes in a Vec need not be aligned.
            let (k, v) = (aligned(&k), aligned(&v));
            let args = Sdpa {
                q: &q,
                k: bytemuck::cast_slice(&k),
                k_dtype: dtype,
                v: bytemuck::cast_slice(&v),
                v_dtype: dtype,
                keys: Keys::Cached { at: c.at, window: c.window },
                sinks: c.sinks.then_some(&sinks[..]),
                tokens: c.tokens,
                heads,
                key_heads,
                head_dim,
                value_dim,
                capacity: c.capacity,
                scale: 0.2,
                cap: c.cap,
            };
            let args = trim(args, batch, dtype);
            let expected = exact(&args, &k_values, &v_values);
            let need = scratch_len(batch, c.tokens, heads, key_heads, value_dim, c.capacity);
            for isa in Isa::available() {
                let mut first: Option<Vec<f32>> = None;
                for threads in [1, 3] {
                    let cpu = Cpu::new(isa, Threads::new(threads).unwrap()).unwrap();
                    let mut out = vec![7.0; expected.len()];
                    let mut scratch = vec![f32::NAN; need];
                    args.run(&cpu, &mut scratch, &mut out).unwrap();
                    for (n, (f, e)) in out.iter().zip(&expected).enumerate() {
                        // Scores of up to 30 are rounded to 2e-6, which exponentials hand on.
                        let bound = 8e-6 * (1.0 + e.abs());
                        assert!((*f as f64 - e).abs() <= bound, "case {i} {dtype} {isa} [{n}]: {f} for {e}");
                    }
                    assert_eq!(*first.get_or_insert(out.clone()), out, "threads change case {i}");
                }
            }
        }
    }
}

fn aligned(bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks(8)
        .map(|c| u64::from_le_bytes(std::array::from_fn(|i| c.get(i).copied().unwrap_or(0))))
        .collect()
}

/// The caches without the bytes that alignment added.
fn trim(args: Sdpa<'_>, batch: usize, dtype: DType) -> Sdpa<'_> {
    let bytes = |width: usize| dtype.bytes_for(batch * args.capacity * args.key_heads * width).unwrap();
    Sdpa { k: &args.k[..bytes(args.head_dim)], v: &args.v[..bytes(args.value_dim)], ..args }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
    let cache = [0u64; 4 * 32 / 2];
    let good = Sdpa {
        q: &[1.0; 2 * 32],
        k: bytemuck::cast_slice(&cache),
        k_dtype: DType::F32,
        v: bytemuck::cast_slice(&cache),
        v_dtype: DType::F32,
        keys: Keys::Cached { at: &[3], window: None },
        sinks: None,
        tokens: 1,
        heads: 2,
        key_heads: 1,
        head_dim: 32,
        value_dim: 32,
        capacity: 4,
        scale: 1.0,
        cap: None,
    };
    let cached = |at| Keys::Cached { at, window: None };
    let mut scratch = vec![0.0; scratch_len(1, 1, 2, 1, 32, 4)];
    let mut run = |args: Sdpa<'_>| args.run(&cpu, &mut scratch, &mut [0.0; 64]).map_err(|e| e.to_string());
    assert_eq!(run(good), Ok(()));
    let wrong = [
        (Sdpa { keys: cached(&[4]), ..good }, "outside the cache"),
        (Sdpa { keys: cached(&[-1]), ..good }, "outside the cache"),
        (Sdpa { key_heads: 3, ..good }, "cannot share"),
        (Sdpa { keys: Keys::Cached { at: &[3], window: Some(0) }, ..good }, "window of no rows"),
        (Sdpa { keys: Keys::Frames { lengths: &[1], mask: Mask::Full }, ..good }, "the same frames"),
        (Sdpa { q: &[1.0; 3], ..good }, "q"),
        (Sdpa { k_dtype: DType::Q4_0, ..good }, "q4_0"),
        (Sdpa { k: &good.k[4..], ..good }, "whole items"),
    ];
    for (args, says) in wrong {
        let error = run(args).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}
