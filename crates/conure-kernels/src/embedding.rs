//! Rows picked from a table.

use conure_tensor::{DType, quant};

use crate::{KernelError, Result, check};

const NAME: &str = "gather_rows";

/// `out[i] = table[ids[i]]`, widened to f32: `table` `[rows, width]` of any float or block type in the layout of GGUF,
/// `ids` `[N]`, `out` `[N, width]`.
///
/// # Errors
/// [`KernelError::Length`] if a slice does not have its shape, [`KernelError::Invalid`] for an id outside the table,
/// [`KernelError::DType`] for integer tables.
pub fn gather_rows(
    dtype: DType,
    table: &[u8],
    rows: usize,
    width: usize,
    ids: &[i32],
    out: &mut [f32],
) -> Result<()> {
    check::length(NAME, "out", "[N, width]", &[ids.len(), width], out.len())?;
    check::size(NAME, "table", &[rows, width])?;
    let row_bytes = dtype.bytes_for(width).ok_or_else(|| KernelError::Invalid {
        kernel: NAME,
        reason: format!("a row has {width} elements, but {dtype} comes in blocks of {}", dtype.block_len()),
    })?;
    check::length(NAME, "table (bytes)", "[rows, width]", &[rows, row_bytes], table.len())?;
    if width == 0 {
        return Ok(());
    }
    for (out, &id) in out.chunks_exact_mut(width).zip(ids) {
        let row = usize::try_from(id).ok().filter(|&row| row < rows).ok_or_else(|| KernelError::Invalid {
            kernel: NAME,
            reason: format!("id {id} is outside a table of {rows} rows"),
        })?;
        quant::decode(dtype, &table[row * row_bytes..(row + 1) * row_bytes], out)
            .map_err(|_| KernelError::DType { kernel: NAME, dtype })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_out_in_order_and_widened() {
        let values: Vec<f32> = (0..3 * 256).map(|i| (i as f32 * 0.37).sin()).collect();
        for dtype in DType::ALL {
            let Ok(table) = quant::encoded(dtype, &values) else {
                assert!(matches!(dtype, DType::I32 | DType::I64), "{dtype}");
                let table = vec![0; dtype.bytes_for(768).unwrap()];
                assert!(gather_rows(dtype, &table, 3, 256, &[0], &mut [0.0; 256]).is_err());
                continue;
            };
            let mut all = vec![0.0; values.len()];
            quant::decode(dtype, &table, &mut all).unwrap();
            let mut out = vec![9.0; 4 * 256];
            gather_rows(dtype, &table, 3, 256, &[2, 0, 0, 1], &mut out).unwrap();
            for (i, row) in [2, 0, 0, 1].into_iter().enumerate() {
                assert_eq!(out[i * 256..(i + 1) * 256], all[row * 256..(row + 1) * 256], "{dtype}");
            }
        }
    }

    #[test]
    fn bad_ids_and_shapes_are_errors() {
        let table = [0u8; 24];
        let run = |rows, width, ids: &[i32], out: &mut [f32]| {
            gather_rows(DType::F32, &table, rows, width, ids, out)
        };
        assert!(run(3, 2, &[1], &mut [0.0; 2]).is_ok());
        assert!(run(3, 2, &[3], &mut [0.0; 2]).is_err());
        assert!(run(3, 2, &[-1], &mut [0.0; 2]).is_err());
        assert!(run(3, 2, &[0], &mut [0.0; 3]).is_err());
        assert!(run(4, 2, &[0], &mut [0.0; 2]).is_err());
        assert!(gather_rows(DType::Q8_0, &table, 1, 31, &[0], &mut [0.0; 31]).is_err());
    }
}
