//! Whether query, key and value are worth computing in one product instead of three: `cargo run --release -p conure-kernels
//! --example qkv [THREADS]`. Prints, for the widths of real encoders and several lengths, the time of three products `[T, D]` by
//! `[D, D]` over that of one by `[D, 3 D]`, which leaves out what taking its output apart would cost.
#![allow(clippy::print_stdout)] // a program that answers its caller

use conure_kernels::gemm::{Epilogue, PackedMatrix, linear};
use conure_kernels::{Cpu, Result};
use std::hint::black_box;
use std::time::Instant;

fn main() -> Result<()> {
    let cpu = Cpu::detect(std::env::args().nth(1).and_then(|n| n.parse().ok()))?;
    for d in [512, 1024] {
        let wave = |n: usize| (0..n).map(|i| (i as f32 * 0.73).sin()).collect::<Vec<f32>>();
        let weights = wave(3 * d * d);
        let whole = PackedMatrix::from_f32(&cpu, &weights, 3 * d, d)?;
        let parts = weights
            .chunks_exact(d * d)
            .map(|part| PackedMatrix::from_f32(&cpu, part, d, d))
            .collect::<Result<Vec<_>>>()?;
        for t in [1, 16, 94, 750] {
            let x = wave(t * d);
            let mut out = vec![0.0; t * 3 * d];
            let mut ratios = Vec::new();
            for _ in 0..25 {
                let start = Instant::now();
                for (part, out) in parts.iter().zip(out.chunks_exact_mut(t * d)) {
                    linear(&cpu, &x, t, part, &Epilogue::default(), out)?;
                }
                let three = start.elapsed().as_secs_f64();
                let start = Instant::now();
                linear(&cpu, &x, t, &whole, &Epilogue::default(), &mut out)?;
                ratios.push(three / start.elapsed().as_secs_f64());
                black_box(&out);
            }
            ratios.sort_by(f64::total_cmp);
            println!("D {d:4} T {t:4}: {:.3}", ratios[ratios.len() / 2]);
        }
    }
    Ok(())
}
