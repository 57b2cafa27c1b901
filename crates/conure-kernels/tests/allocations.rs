//! Once a thread's scratch has grown, kernels do not touch the heap.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use conure_kernels::attention::{Mask, RelPosAttention};
use conure_kernels::conv1d::DepthwiseConv1d;
use conure_kernels::gemm::{Epilogue, PackedMatrix, Rhs, linear, matmul};
use conure_kernels::{Cpu, Isa, Threads, lstm, rows};
use conure_tensor::{DType, quant};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn warm_kernels_do_not_allocate() {
    for isa in Isa::available() {
        // One thread: with more, whether a worker has met its largest task yet is a matter of chance.
        let cpu = Cpu::new(isa, Threads::single()).unwrap();
        let (t, d, n) = (70, 64, 96);
        let x = vec![0.5; t * n];
        let q8 = quant::encoded(DType::Q8_0, &x[..n * d]).unwrap();
        let weights = PackedMatrix::new(&cpu, DType::Q8_0, &q8, n, d).unwrap();
        let positions = vec![0.5; Mask::Full.positions(t, t) * d];
        let lengths = [t as i32];
        let attention = RelPosAttention {
            q: &x[..t * d],
            k: &x[..t * d],
            v: &x[..t * d],
            positions: &positions,
            bias_u: &x[..d],
            bias_v: &x[..d],
            lengths: &lengths,
            frames: t,
            context: 0,
            cached: &[],
            heads: 2,
            head_dim: d / 2,
            mask: Mask::Full,
        };
        let conv = DepthwiseConv1d {
            weights: &x[..9 * d],
            kernel: 9,
            left: 4,
            right: 4,
            bias: None,
            scale_shift: None,
            silu: true,
        };
        let mut out = vec![0.0; t * n];
        let (mut h, mut c) = (vec![0.0; 32], vec![0.0; 32]);
        let mut step = || {
            let plain = Epilogue::default();
            linear(&cpu, &x[..t * d], t, &weights, &plain, &mut out).unwrap();
            linear(&cpu, &x[..d], 1, &weights, &plain, &mut out[..n]).unwrap();
            matmul(&cpu, &x[..t * d], &x[..n * d], Rhs::Nk, t, n, d, &plain, &mut out).unwrap();
            attention.run(&cpu, &mut out[..t * d]).unwrap();
            conv.run(&cpu, &x[..t * d], 1, t, d, &mut out[..t * d]).unwrap();
            lstm::cells(&cpu, &x[..128], &x[..32], 1, 32, &mut h, &mut c).unwrap();
            rows::log_softmax(&cpu, None, t, n, &mut out).unwrap();
        };
        step();
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        step();
        assert_eq!(ALLOCATIONS.load(Ordering::SeqCst), before, "{isa}");
    }
}
