//! What this machine can do at most: the rates of products and of reading memory, measured with these kernels.

use std::hint::black_box;
use std::time::Instant;

use crate::gemm::{Activation, Epilogue, PackedMatrix, linear};
use crate::pages::Pages;
use crate::{Cpu, KernelError, Precision, Result};
use conure_tensor::{DType, quant};

/// The fastest rates of a machine with some instruction set and threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// Products with f32 weights, in operations a second.
    pub f32: f64,
    /// Products with f16 weights.
    pub f16: f64,
    /// Products with q8_0 weights in [`Precision::Fast`].
    pub q8_0: f64,
    /// Products of bytes in [`Precision::Int8`].
    pub int8: f64,
    /// Reading memory that no cache holds, in bytes a second.
    pub bandwidth: f64,
}

/// Shapes `[M, N, K]` of products that kernels do well in; the best of them is the rate.
const SHAPES: [[usize; 3]; 2] = [[512, 512, 512], [750, 2048, 512]];
/// Bytes that are read for the bandwidth: more than the last cache of most machines.
const BYTES: usize = 192 << 20;
/// Bytes of a task.
const CHUNK: usize = 1 << 20;

impl Roofline {
    /// Measures it, whatever the precision of `cpu`; takes about two seconds.
    ///
    /// # Errors
    /// What a kernel refused.
    pub fn measure(cpu: &Cpu) -> Result<Roofline> {
        let rate = |dtype: DType, precision: Precision| -> Result<f64> {
            let (cpu, mut best) = (&cpu.clone().with_precision(precision), 0.0f64);
            for shape in SHAPES {
                let flops = 2.0 * shape.iter().map(|&n| n as f64).product::<f64>();
                best = best.max(flops / product_seconds(cpu, dtype, shape, Activation::None)?);
            }
            Ok(best)
        };
        Ok(Roofline {
            f32: rate(DType::F32, Precision::Exact)?,
            f16: rate(DType::F16, Precision::Exact)?,
            q8_0: rate(DType::Q8_0, Precision::Fast)?,
            int8: rate(DType::F32, Precision::Int8)?,
            bandwidth: bandwidth(cpu, BYTES)?,
        })
    }
}

/// Numbers that are neither equal nor special.
pub fn wave(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i % 1013) as f32 * 0.731).sin()).collect()
}

/// Seconds of the fastest call in 0.15 s (at least three calls): the one least disturbed by other programs. Calls shorter
/// than 20 us are timed in groups of about that length.
///
/// # Errors
/// What a call returned.
pub fn fastest<E>(mut call: impl FnMut() -> std::result::Result<(), E>) -> std::result::Result<f64, E> {
    call()?;
    let start = Instant::now();
    call()?;
    let group = (20e-6 / start.elapsed().as_secs_f64().max(1e-8)) as usize + 1;
    let (begin, mut fastest, mut calls) = (Instant::now(), f64::INFINITY, 0);
    while calls < 3 || begin.elapsed().as_secs_f64() < 0.15 {
        let start = Instant::now();
        for _ in 0..group {
            call()?;
        }
        fastest = fastest.min(start.elapsed().as_secs_f64() / group as f64);
        calls += 1;
    }
    Ok(fastest)
}

/// Seconds of `x [M, K] w [N, K]^T` with bias and activation, the weights of type `dtype` and packed.
///
/// # Errors
/// A type that no product takes.
pub fn product_seconds(
    cpu: &Cpu,
    dtype: DType,
    [m, n, k]: [usize; 3],
    activation: Activation,
) -> Result<f64> {
    let refused = |e: quant::QuantError| KernelError::Invalid { kernel: "roofline", reason: e.to_string() };
    let bytes = quant::encoded(dtype, &wave(n * k)).map_err(refused)?;
    let weights = PackedMatrix::for_products(cpu, dtype, &bytes, n, k, false)?;
    let (x, bias, mut out) = (wave(m * k), wave(n), vec![0.0; m * n]);
    let epilogue = Epilogue { bias: Some(&bias), activation, ..Epilogue::default() };
    fastest(|| linear(cpu, black_box(&x), m, &weights, &epilogue, &mut out))
}

/// Bytes a second that the threads read together of a buffer of `bytes`, at their best: one that lies as packed weights do, read
/// from front to back by a plain loop. A loop that also fetches ahead, as products of one row do, reads up to 1.4 times as fast.
///
/// # Errors
/// [`KernelError::OutOfMemory`] or [`KernelError::TaskPanicked`], if anything.
pub fn bandwidth(cpu: &Cpu, bytes: usize) -> Result<f64> {
    let mut pages = Pages::zeroed("roofline", bytes.max(8))?;
    pages.as_mut_slice::<u64>().fill(1);
    let data = pages.as_slice::<u64>();
    let words = CHUNK / 8;
    let seconds = fastest(|| {
        cpu.threads().run(data.len().div_ceil(words), |task, _| {
            let chunk = &data[task * words..((task + 1) * words).min(data.len())];
            // Sums side by side, so that additions do not wait for each other.
            let mut sums = [0u64; 16];
            for part in chunk.chunks_exact(16) {
                for (sum, word) in sums.iter_mut().zip(part) {
                    *sum = sum.wrapping_add(*word);
                }
            }
            black_box(sums);
        })
    })?;
    Ok((data.len() * 8) as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_repeated_and_errors_pass_through() {
        let mut calls = 0u32;
        let seconds = fastest(|| {
            calls += 1;
            Ok::<(), ()>(())
        });
        assert!(seconds.unwrap() > 0.0 && calls > 3);
        assert_eq!(fastest(|| Err("no")), Err("no"));
    }

    #[test]
    fn rates_are_rates() {
        let cpu = Cpu::detect(Some(1)).unwrap();
        let r = Roofline::measure(&cpu).unwrap();
        for rate in [r.f32, r.f16, r.q8_0, r.int8, r.bandwidth] {
            assert!(rate.is_finite() && rate > 1e6, "{r:?}");
        }
    }
}
