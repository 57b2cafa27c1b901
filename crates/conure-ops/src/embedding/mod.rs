//! `embedding`: rows of a table.

use crate::infer::{Inputs, dim, one};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::openvino::OpenVinoOp;
use crate::values::{ints, read, write};
use conure_tensor::{Axis, Shape, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;
mod openvino;

const NAME: &str = "embedding";

/// Rows of a table, by their number.
///
/// Inputs: `ids [...]` i32, `table [V, D]` in any stored form. Output: `[..., D]` f32. Id -1 gives a row of zeros:
/// what a transducer's predictor starts from. Any other id outside `0 .. V` is an error.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding;

/// The row that an id stands for, `None` for the row of zeros.
fn row_of(id: i32, rows: usize) -> Result<Option<usize>, OpError> {
    if id == -1 {
        return Ok(None);
    }
    match usize::try_from(id) {
        Ok(row) if row < rows => Ok(Some(row)),
        _ => Err(OpError::Kernel {
            op: NAME,
            what: format!("id {id} is outside the table of {rows} rows (and is not -1, the row of zeros)"),
        }),
    }
}

impl Op for Embedding {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 2)?;
        let ids = ins.i32(0, None, "[...]")?;
        let table = ins.weight(1, 2, "[V, D]")?;
        let axes = ids.iter().map(|(a, d)| (a, d.clone()));
        Ok(one(Shape::new(axes.chain([(Axis::D, dim(table, 1).clone())]))))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let (ids, table) = (ints(NAME, inputs, 0)?, read(NAME, inputs, 1)?);
        let mut out = Vec::new();
        for id in ids {
            match row_of(id, table.dim(0))? {
                Some(row) => out.extend_from_slice(table.row(row)),
                None => out.resize(out.len() + table.last(), 0.0),
            }
        }
        write(NAME, outputs, 0, out)
    }

    fn moves(&self, inputs: &[u64], outputs: &[u64]) -> u64 {
        // Of the table, the rows that are asked for.
        inputs.first().unwrap_or(&0) + 2 * outputs.iter().sum::<u64>()
    }

    fn cpu(&self) -> Option<&dyn CpuOp> {
        Some(self)
    }

    fn openvino(&self) -> Option<&dyn OpenVinoOp> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::row_of;

    #[test]
    fn ids_outside_the_table_are_errors() {
        assert_eq!(row_of(-1, 5), Ok(None));
        assert_eq!(row_of(4, 5), Ok(Some(4)));
        for id in [5, -2, i32::MAX, i32::MIN] {
            let error = row_of(id, 5).unwrap_err().to_string();
            assert!(error.contains(&format!("id {id} ")) && error.contains("5 rows"), "{error}");
        }
    }
}
