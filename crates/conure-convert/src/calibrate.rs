//! Tensors stored anew with what their products are made of in view.

use crate::convert::tensor_error;
use crate::error::ConvertError;
use crate::requantise::{AT_ONCE, encode_on_all};
use crate::rounding::{self, Rounded};
use conure_gguf::GgufTensor;
use conure_kernels::moments::{Factor, Moments};
use conure_kernels::{Cpu, KernelError};
use conure_tensor::{DType, quant};
use std::cell::RefCell;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// The moments of the rows that the matrix of this name is multiplied with; `None` if the model makes no product with it. Asked in
/// the order of the file, once for each matrix that is stored in blocks.
pub type OnMoments<'a> = &'a dyn Fn(&str) -> Result<Option<Arc<Moments>>, Box<dyn Error + Send + Sync>>;

/// What is known of a model's products.
#[derive(Clone, Copy)]
pub struct Calibrated<'a> {
    /// Recordings that the model heard, for the file to say so.
    pub recordings: usize,
    /// What it multiplied its matrices with.
    pub moments: OnMoments<'a>,
}

/// What a rounding does to the products of a matrix: roots of sums of squared differences over all that the model heard, as parts of
/// those of the products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductError {
    /// Each weight at its nearest value.
    pub nearest: f64,
    /// As it was stored.
    pub stored: f64,
}

/// Tells that a file was calibrated, and with how many recordings.
pub(crate) const KEY: &str = "quantize.calibration.recordings";

/// A model's matrices on their way into blocks.
pub(crate) struct Calibrator<'a> {
    cpu: &'a Cpu,
    input: &'a Path,
    calibrated: Calibrated<'a>,
    /// The last factor and what it is of: query, key and value have the same inputs.
    last: RefCell<Option<Factored>>,
}

/// Moments and their factor, if they have one.
struct Factored {
    of: Arc<Moments>,
    factor: Option<Arc<Factor>>,
}

impl<'a> Calibrator<'a> {
    pub(crate) fn new(cpu: &'a Cpu, input: &'a Path, calibrated: Calibrated<'a>) -> Calibrator<'a> {
        Calibrator { cpu, input, calibrated, last: RefCell::default() }
    }

    /// The moments for a tensor that becomes `shape` in `to`, if it has any.
    ///
    /// # Errors
    /// What the caller says.
    pub(crate) fn moments(
        &self,
        tensor: &GgufTensor<'_>,
        to: DType,
        shape: &[usize],
    ) -> Result<Option<Arc<Moments>>, ConvertError> {
        let [_, columns] = *shape else { return Ok(None) };
        if !to.is_quantised() {
            return Ok(None);
        }
        let path = || self.input.to_owned();
        let found = (self.calibrated.moments)(tensor.name);
        let found = found.map_err(|source| ConvertError::Calibration { path: path(), source })?;
        Ok(found.filter(|moments| moments.k() == columns))
    }

    /// Writes the tensor in blocks of `to`; the error of its values and that of its products.
    ///
    /// # Errors
    /// Values that have no place in a block, memory that cannot be had.
    pub(crate) fn write(
        &self,
        tensor: &GgufTensor<'_>,
        to: DType,
        moments: &Arc<Moments>,
        out: &mut dyn Write,
    ) -> Result<(f64, ProductError), Box<dyn Error + Send + Sync>> {
        let fail = |e: &dyn Error| tensor_error(self.input, tensor.name, e);
        let k = moments.k();
        let count: usize = tensor.shape.iter().product();
        let at_once = (AT_ONCE / k).max(1) * k;
        let stored = tensor.dtype.bytes_for(at_once).unwrap_or(tensor.data.len()).max(1);
        let factor = self.factor(moments).map_err(|e| fail(&e))?;
        let mut sums = Sums::default();
        for (i, data) in tensor.data.chunks(stored).enumerate() {
            let mut values = vec![0f32; at_once.min(count - i * at_once)];
            quant::decode(tensor.dtype, data, &mut values).map_err(|e| fail(&e))?;
            let bytes = encode_on_all(self.cpu.threads(), self.input, tensor.name, to, &values)?;
            let mut nearest = Rounded { values: vec![0f32; values.len()], bytes };
            quant::decode(to, &nearest.bytes, &mut nearest.values).map_err(|e| fail(&e))?;
            let chosen = match &factor {
                Some(factor) => rounding::round(self.cpu, to, &values, factor).map_err(|e| fail(&e))?,
                None => None,
            };
            let stored = self.better(moments, &values, nearest, chosen, &mut sums).map_err(|e| fail(&e))?;
            for (&value, &stored) in values.iter().zip(&stored.values) {
                sums.error += (f64::from(value) - f64::from(stored)).powi(2);
                sums.values += f64::from(value).powi(2);
            }
            out.write_all(&stored.bytes)?;
        }
        Ok(sums.errors())
    }

    /// Of each row the rounding that changes its products less.
    fn better(
        &self,
        moments: &Moments,
        values: &[f32],
        nearest: Rounded,
        chosen: Option<Rounded>,
        sums: &mut Sums,
    ) -> Result<Rounded, KernelError> {
        let changes = |others: &[f32]| {
            let errors: Vec<f32> = values.iter().zip(others).map(|(v, o)| v - o).collect();
            moments.changes(self.cpu, &errors)
        };
        let mut least = changes(&nearest.values)?;
        sums.products += moments.changes(self.cpu, values)?.iter().sum::<f64>();
        sums.nearest += least.iter().sum::<f64>();
        let mut stored = nearest;
        if let Some(chosen) = chosen {
            let found = changes(&chosen.values)?;
            let (k, bytes) = (moments.k(), stored.bytes.len() / least.len().max(1));
            for (row, (least, &found)) in least.iter_mut().zip(&found).enumerate() {
                if found < *least {
                    *least = found;
                    let (of_values, of_bytes) = (row * k..(row + 1) * k, row * bytes..(row + 1) * bytes);
                    stored.values[of_values.clone()].copy_from_slice(&chosen.values[of_values]);
                    stored.bytes[of_bytes.clone()].copy_from_slice(&chosen.bytes[of_bytes]);
                }
            }
        }
        sums.stored += least.iter().sum::<f64>();
        Ok(stored)
    }

    fn factor(&self, moments: &Arc<Moments>) -> Result<Option<Arc<Factor>>, KernelError> {
        if let Some(last) = &*self.last.borrow()
            && Arc::ptr_eq(&last.of, moments)
        {
            return Ok(last.factor.clone());
        }
        let factor = rounding::factor(self.cpu, moments)?.map(Arc::new);
        *self.last.borrow_mut() = Some(Factored { of: moments.clone(), factor: factor.clone() });
        Ok(factor)
    }
}

/// Sums of squares over a tensor.
#[derive(Default)]
struct Sums {
    /// Of the differences of values, and of values.
    error: f64,
    values: f64,
    /// Of the differences of products, rounded to the nearest and as stored, and of products.
    nearest: f64,
    stored: f64,
    products: f64,
}

impl Sums {
    fn errors(&self) -> (f64, ProductError) {
        let of_products = |error| part(error, self.products);
        let products = ProductError { nearest: of_products(self.nearest), stored: of_products(self.stored) };
        (part(self.error, self.values), products)
    }
}

/// The root of a sum of squares as a part of that of another.
pub(crate) fn part(error: f64, whole: f64) -> f64 {
    if error == 0.0 { 0.0 } else { (error / whole).sqrt() }
}
