//! `rel_pos_projection` on the CPU: rows are kept beside the weight, so that a run copies them.
//!
//! The 110M encoder spends 6.4 % of its time on these products at 7.4 s as at 60 s of audio, all of it for the same numbers.

use super::{NAME, RelPosProjection};
use crate::kernel::{Matrix, dim, out_f32, refused, scratch};
use crate::op::{CpuCall, CpuInput, CpuOp, OpError, Packed, ValueType};
use conure_kernels::gemm::{Epilogue, PackedMatrix};
use conure_kernels::{Cpu, positions};
use conure_tensor::TensorView;
use std::sync::{Arc, PoisonError, RwLock};

/// Bytes of the rows that are kept for one weight, at most: 164 s of audio at a width of 512. Farther positions are computed
/// in every run.
const KEPT_BYTES: usize = 8 << 20;

/// Rows that are computed together.
const CHUNK: usize = 64;

/// A weight, and the rows that runs needed so far.
struct Table {
    weight: PackedMatrix,
    rows: RwLock<Rows>,
}

/// Rows of the positions `farthest` down to `-farthest`; memory that no run needed was never touched.
struct Rows {
    data: Vec<f32>,
    farthest: usize,
    /// The positions under this, on both sides, are there.
    reached: usize,
}

impl Table {
    fn new(weight: PackedMatrix) -> Result<Table, OpError> {
        let width = weight.n().max(1);
        let farthest = (KEPT_BYTES / 4 / width).saturating_sub(1) / 2;
        let data = conure_kernels::zeroed(NAME, (2 * farthest + 1) * width).map_err(refused(NAME))?;
        Ok(Table { weight, rows: RwLock::new(Rows { data, farthest, reached: 0 }) })
    }
}

/// The rows of the positions from `first` downwards, into `out`.
fn project(
    cpu: &Cpu,
    weight: Matrix<'_>,
    d: usize,
    first: isize,
    room: &mut [f32],
    out: &mut [f32],
    width: usize,
) -> Result<(), OpError> {
    for (i, out) in out.chunks_mut((CHUNK * width).max(1)).enumerate() {
        let count = out.len() / width;
        let encoded = &mut room[..count * d];
        positions::sinusoids(first - (i * CHUNK) as isize, d, encoded).map_err(refused(NAME))?;
        weight.product(NAME, cpu, encoded, [count, width, d], &Epilogue::default(), out)?;
    }
    Ok(())
}

impl Table {
    /// Copies the rows of `before` down to `-after` to `out`, computing what is missing; `false` if they are too many.
    fn copy(
        &self,
        cpu: &Cpu,
        (before, after): (usize, usize),
        d: usize,
        room: &mut [f32],
        out: &mut [f32],
    ) -> Result<bool, OpError> {
        let (width, farthest) = (self.weight.n(), before.max(after));
        {
            let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
            if farthest > rows.farthest {
                return Ok(false);
            }
            if rows.reached > farthest {
                out.copy_from_slice(rows.range(before, after, width));
                return Ok(true);
            }
        }
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        let (centre, reached) = (rows.farthest, rows.reached);
        if reached <= farthest {
            // The first time, the row of position 0 is with those below.
            let above = (centre - farthest) * width..(centre + 1 - reached.max(1)) * width;
            let below = (centre + reached) * width..(centre + farthest + 1) * width;
            let weight = Matrix::Packed(&self.weight);
            project(cpu, weight, d, signed(farthest), room, &mut rows.data[above], width)?;
            project(cpu, weight, d, -signed(reached), room, &mut rows.data[below], width)?;
            rows.reached = farthest + 1;
        }
        out.copy_from_slice(rows.range(before, after, width));
        Ok(true)
    }
}

fn signed(position: usize) -> isize {
    isize::try_from(position).unwrap_or(isize::MAX)
}

impl Rows {
    fn range(&self, before: usize, after: usize, width: usize) -> &[f32] {
        &self.data[(self.farthest - before) * width..(self.farthest + after + 1) * width]
    }
}

impl CpuOp for RelPosProjection {
    fn scratch(&self, _inputs: &[&[usize]], _outputs: &[&[usize]], _threads: usize) -> usize {
        4 * CHUNK * self.encoding.d_model
    }

    fn pack_key(&self, input: usize, _weight: &ValueType) -> Option<&'static str> {
        (input == 1).then_some("positions")
    }

    fn pack_on(&self, cpu: &Cpu, _input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        let (n, k) = (dim(weight.shape(), 0), dim(weight.shape(), 1));
        let packed = PackedMatrix::for_products(cpu, weight.dtype(), weight.bytes(), n, k, false);
        let packed = packed.map_err(refused(NAME))?;
        Ok(Arc::new(Table::new(packed)?))
    }

    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let d = self.encoding.d_model;
        let shape = call.outputs.first().map_or(&[][..], |o| o.shape());
        let (rows, width) = (dim(shape, 0), dim(shape, 1));
        let before = self.encoding.before(rows);
        let table = match call.inputs.get(1) {
            Some(CpuInput::Packed(_)) => Some(call.packed::<Table>(NAME, 1)?),
            _ => None,
        };
        let weight = match table {
            Some(table) => Matrix::Packed(&table.weight),
            None => Matrix::Plain(call.slice::<f32>(NAME, 1)?),
        };
        let (room, _) = scratch(NAME, call.scratch, CHUNK * d)?;
        let out = out_f32(NAME, call.outputs, 0)?;
        match table {
            Some(table)
                if table.copy(call.cpu, (before, rows.saturating_sub(before + 1)), d, room, out)? =>
            {
                Ok(())
            }
            _ => project(call.cpu, weight, d, signed(before), room, out, width),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conure_kernels::{Isa, Threads};

    #[test]
    fn rows_are_the_same_whatever_was_asked_for_before() {
        let (d, n) = (8, 6);
        let w: Vec<f32> = (0..n * d).map(|i| (i as f32 * 0.731).sin()).collect();
        for isa in Isa::available() {
            let cpu = Cpu::new(isa, Threads::single()).unwrap();
            let packed = || PackedMatrix::from_f32(&cpu, &w, n, d).unwrap();
            let mut room = vec![0.0; CHUNK * d];
            let grown = Table::new(packed()).unwrap();
            for (before, after) in [(0, 0), (3, 3), (2, 2), (3, 1), (1, 4), (150, 70), (70, 150), (151, 0)] {
                let mut found = vec![f32::NAN; (before + after + 1) * n];
                let mut expected = found.clone();
                let span = (before, after);
                assert!(grown.copy(&cpu, span, d, &mut room, &mut found).unwrap());
                assert!(Table::new(packed()).unwrap().copy(&cpu, span, d, &mut room, &mut expected).unwrap());
                assert_eq!(found, expected, "{isa} {span:?}");
                let weight = packed();
                let weight = Matrix::Packed(&weight);
                project(&cpu, weight, d, before as isize, &mut room, &mut expected, n).unwrap();
                assert_eq!(found, expected, "{isa} {span:?}, not kept");
            }
            assert!(!grown.copy(&cpu, (usize::MAX / 8, 0), d, &mut room, &mut []).unwrap());
        }
    }
}
