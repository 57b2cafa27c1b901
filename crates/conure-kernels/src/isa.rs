//! Which instruction set the kernels use.

use std::fmt;

use crate::simd::{Dot, Scalar, Simd};
use crate::{KernelError, Result, ThreadBudget, Threads};

/// An instruction set that kernels are written for, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Portable code; runs everywhere.
    Scalar,
    /// 128-bit Arm vectors.
    Neon,
    /// The same with products of bytes.
    NeonDot,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and DQ, with AVX2, FMA and F16C.
    Avx512,
    /// The same with products of bytes.
    Avx512Vnni,
}

impl Isa {
    /// Every instruction set, lowest first.
    pub const ALL: [Isa; 6] = [Isa::Scalar, Isa::Neon, Isa::NeonDot, Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni];

    /// The name used by `CONURE_ISA` and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::NeonDot => "neon-dot",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Vnni => "avx512-vnni",
        }
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => Isa::Neon.is_available() && std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => Isa::Avx512.is_available() && is_x86_feature_detected!("avx512vnni"),
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// What this machine can run, lowest first; never empty.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// The best that this machine can run, or what the environment variable `CONURE_ISA` names.
    ///
    /// # Errors
    /// [`KernelError::Isa`] if `CONURE_ISA` names something unknown or unavailable; the message lists what is possible.
    pub fn detect() -> Result<Isa> {
        match std::env::var("CONURE_ISA") {
            Ok(name) => Isa::from_name(&name),
            Err(std::env::VarError::NotPresent) => Ok(Isa::available().last().unwrap_or(Isa::Scalar)),
            Err(std::env::VarError::NotUnicode(raw)) => Isa::from_name(&raw.to_string_lossy()),
        }
    }

    /// The instruction set of this name, in either case, if this machine can run it.
    ///
    /// # Errors
    /// [`KernelError::Isa`] otherwise.
    pub fn from_name(name: &str) -> Result<Isa> {
        Isa::available().find(|isa| isa.name().eq_ignore_ascii_case(name.trim())).ok_or_else(|| {
            let possible = Isa::available().map(Isa::name).collect::<Vec<_>>().join(", ");
            KernelError::Isa { name: name.to_string(), possible }
        })
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How products with quantised weights are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// The weights' values, decoded, times the activations as they are, in f32.
    #[default]
    Exact,
    /// Activations rounded to signed bytes, a scale for each 32 (16 for Q6_K) of a row; products of bytes, summed exactly
    /// per group and in f32 across groups. Two to three times as fast, and off by about half a percent of a sum's terms.
    Fast,
    /// Weights of eight bits and more, those in floating point too, rounded to signed bytes with one scale for each output, and
    /// activations with one for each row; products of bytes, summed exactly. Other weights as in [`Precision::Fast`].
    Int8,
}

impl Precision {
    /// All.
    pub const ALL: [Precision; 3] = [Precision::Exact, Precision::Fast, Precision::Int8];

    /// `exact`, `fast` or `int8`.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::Exact => "exact",
            Precision::Fast => "fast",
            Precision::Int8 => "int8",
        }
    }
}

impl std::str::FromStr for Precision {
    type Err = KernelError;

    /// The precision of a [`Precision::name`].
    fn from_str(name: &str) -> Result<Precision> {
        Precision::ALL.into_iter().find(|p| p.name() == name).ok_or_else(|| KernelError::Invalid {
            kernel: "precision",
            reason: format!("there is no `{name}`; there are exact, fast and int8"),
        })
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What kernels run on: an instruction set known to work here, a pool of threads, and the precision of products with
/// quantised weights. Cheap to clone; clones share the pool.
#[derive(Clone, Debug)]
pub struct Cpu {
    isa: Isa,
    threads: Threads,
    precision: Precision,
}

impl Cpu {
    /// The given instruction set and threads, [`Precision::Exact`].
    ///
    /// # Errors
    /// [`KernelError::Isa`] if this machine cannot run `isa`.
    pub fn new(isa: Isa, threads: Threads) -> Result<Cpu> {
        Ok(Cpu { isa: Isa::from_name(isa.name())?, threads, precision: Precision::Exact })
    }

    /// [`Isa::detect`] with `threads` threads of its own; `None` for as many as the process may use. Where there are several of
    /// these in a process, [`Cpu::within`] bounds what they start together.
    ///
    /// # Errors
    /// Those of [`Isa::detect`] and [`Threads::new`].
    pub fn detect(threads: Option<usize>) -> Result<Cpu> {
        let threads = match threads {
            Some(n) => Threads::new(n)?,
            None => Threads::new(Threads::default_count())?,
        };
        Cpu::new(Isa::detect()?, threads)
    }

    /// [`Isa::detect`] with at most `most` threads of `budget`.
    ///
    /// # Errors
    /// Those of [`Isa::detect`] and [`ThreadBudget::threads`].
    pub fn within(budget: &ThreadBudget, most: Option<usize>) -> Result<Cpu> {
        Cpu::new(Isa::detect()?, budget.threads(most)?)
    }

    /// The same with this precision.
    pub fn with_precision(self, precision: Precision) -> Cpu {
        Cpu { precision, ..self }
    }

    /// How products with quantised weights are computed.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The pool.
    pub fn threads(&self) -> &Threads {
        &self.threads
    }
}

/// A piece of work written once for every instruction set. `run` must be `#[inline(always)]`, and so must everything
/// it calls that touches vectors, so that it is compiled with the features of the function that dispatches it.
pub(crate) trait Kernel {
    type Output;
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Runs `kernel` compiled for `isa`, which must come from a [`Cpu`].
#[inline]
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa {
        // SAFETY: an `Isa` reaches this function only out of a `Cpu`, whose constructor checked that the machine has it.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { run_avx2(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni => unsafe { run_avx512(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDot => unsafe { run_neon(kernel) },
        _ => kernel.run(Scalar),
    }
}

/// As [`Kernel`], for work with products of bytes.
pub(crate) trait DotKernel {
    type Output;
    fn run<D: Dot>(self, d: D) -> Self::Output;
}

/// Runs `kernel` compiled for `isa`, which must come from a [`Cpu`].
#[inline]
pub(crate) fn dispatch_dot<K: DotKernel>(isa: Isa, kernel: K) -> K::Output {
    struct With<K, D>(K, D);
    impl<K: DotKernel, D: Dot> Kernel for With<K, D> {
        type Output = K::Output;
        #[inline(always)]
        fn run<S: Simd>(self, _s: S) -> K::Output {
            self.0.run(self.1)
        }
    }
    match isa {
        // SAFETY: as for `dispatch`.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { run_avx2(With(kernel, crate::simd::Avx2)) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { run_avx512(With(kernel, crate::simd::Avx512)) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => unsafe { run_avx512_vnni(With(kernel, crate::simd::Avx512Vnni)) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => unsafe { run_neon(With(kernel, crate::simd::Neon)) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot => unsafe { run_neon_dot(With(kernel, crate::simd::NeonDot)) },
        _ => kernel.run(Scalar),
    }
}

/// Whether `isa` wants weights of eight bits with 128 added.
pub(crate) fn is_biased(isa: Isa) -> bool {
    struct Biased;
    impl DotKernel for Biased {
        type Output = bool;
        #[inline(always)]
        fn run<D: Dot>(self, _d: D) -> bool {
            D::BIASED
        }
    }
    dispatch_dot(isa, Biased)
}

/// How an instruction set wants products cut.
#[derive(Clone, Copy)]
pub(crate) struct TileSize {
    /// Rows of a tile.
    pub(crate) rows: usize,
    /// Columns of a panel.
    pub(crate) panel: usize,
    /// Bytes of copied rows that stay in the second-level cache.
    pub(crate) chunk_bytes: usize,
}

/// The sizes for `isa`.
pub(crate) fn tile_size(isa: Isa) -> TileSize {
    struct Sizes;
    impl Kernel for Sizes {
        type Output = TileSize;
        #[inline(always)]
        fn run<S: Simd>(self, _s: S) -> TileSize {
            TileSize { rows: S::TILE_ROWS, panel: S::PANEL, chunk_bytes: S::CHUNK_BYTES }
        }
    }
    dispatch(isa, Sizes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(crate::simd::Avx2)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(crate::simd::Avx512)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn run_avx512_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(crate::simd::Avx512)
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod")]
fn run_neon_dot<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(crate::simd::Neon)
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn run_neon<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(crate::simd::Neon)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_bad_ones_list_the_possible() {
        for isa in Isa::available() {
            assert_eq!(Isa::from_name(&isa.name().to_uppercase()), Ok(isa));
            assert_eq!(Cpu::new(isa, Threads::single()).unwrap().isa(), isa);
        }
        let message = Isa::from_name("mmx").unwrap_err().to_string();
        assert!(message.contains("mmx") && message.contains("scalar"), "{message}");
    }

    #[test]
    fn an_absent_instruction_set_is_refused() {
        for isa in Isa::ALL {
            assert_eq!(Cpu::new(isa, Threads::single()).is_ok(), isa.is_available(), "{isa}");
        }
    }
}
