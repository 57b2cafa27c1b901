//! Tensors with their data: owned, borrowed, and borrowed to be written.

use crate::dtype::DType;
use crate::shape::Dims;
use bytemuck::Pod;
use smallvec::SmallVec;

/// Why bytes are not the tensor they are said to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The number of bytes is not what the shape takes.
    #[error("a {dtype} tensor of shape {shape:?} takes {expected} bytes, but {found} were given")]
    Length {
        /// Element type.
        dtype: DType,
        /// Lengths, slowest first.
        shape: Vec<usize>,
        /// Bytes that the shape takes; `usize::MAX` if it has no size.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The elements are read as another type.
    #[error("expected a tensor of {expected}, found {found}")]
    DType {
        /// What was asked for.
        expected: DType,
        /// What the tensor holds.
        found: DType,
    },
    /// The bytes do not start at an address that the element type may have.
    #[error("the bytes of a {dtype} tensor are not aligned to {align}")]
    Misaligned {
        /// Element type.
        dtype: DType,
        /// What was needed.
        align: usize,
    },
}

/// A plain element type that tensors are read and written as.
pub trait Element: Pod {
    /// Its [`DType`].
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for i32 {
    const DTYPE: DType = DType::I32;
}
impl Element for i64 {
    const DTYPE: DType = DType::I64;
}
impl Element for half::f16 {
    const DTYPE: DType = DType::F16;
}
impl Element for half::bf16 {
    const DTYPE: DType = DType::BF16;
}

/// Bytes that a tensor of this type and shape takes, or `None` if a row does not fill whole blocks or the size
/// does not fit.
pub fn tensor_bytes(dtype: DType, shape: &[usize]) -> Option<usize> {
    let row = shape.last().copied().unwrap_or(1);
    let rows = shape.iter().rev().skip(1).try_fold(1usize, |n, &d| n.checked_mul(d))?;
    dtype.bytes_for(row)?.checked_mul(rows)
}

fn check(dtype: DType, shape: &[usize], found: usize) -> Result<(), TensorError> {
    let expected = tensor_bytes(dtype, shape).unwrap_or(usize::MAX);
    if expected == found {
        return Ok(());
    }
    Err(TensorError::Length { dtype, shape: shape.to_vec(), expected, found })
}

fn check_type<T: Element>(found: DType) -> Result<(), TensorError> {
    if T::DTYPE == found { Ok(()) } else { Err(TensorError::DType { expected: T::DTYPE, found }) }
}

fn misaligned<T: Element>() -> TensorError {
    TensorError::Misaligned { dtype: T::DTYPE, align: std::mem::align_of::<T>() }
}

/// A tensor in somebody else's memory: contiguous, row-major, last axis fastest.
#[derive(Clone, Debug)]
pub struct TensorView<'a> {
    dtype: DType,
    shape: Dims,
    data: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// A view of `data`.
    ///
    /// # Errors
    /// [`TensorError::Length`] if the bytes are not exactly what the shape takes.
    pub fn new(dtype: DType, shape: &[usize], data: &'a [u8]) -> Result<TensorView<'a>, TensorError> {
        check(dtype, shape, data.len())?;
        Ok(TensorView { dtype, shape: SmallVec::from_slice(shape), data })
    }

    /// A view of plain elements.
    ///
    /// # Errors
    /// [`TensorError::Length`] if there are not exactly as many as the shape takes.
    pub fn of<T: Element>(shape: &[usize], data: &'a [T]) -> Result<TensorView<'a>, TensorError> {
        TensorView::new(T::DTYPE, shape, bytemuck::cast_slice(data))
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Lengths, slowest axis first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.data
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements.
    ///
    /// # Errors
    /// If the type is another one, or the memory is not aligned for it.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T], TensorError> {
        check_type::<T>(self.dtype)?;
        bytemuck::try_cast_slice(self.data).map_err(|_| misaligned::<T>())
    }

    /// The same bytes under another shape of the same size.
    ///
    /// # Errors
    /// [`TensorError::Length`] if the sizes differ.
    pub fn reshape(&self, shape: &[usize]) -> Result<TensorView<'a>, TensorError> {
        TensorView::new(self.dtype, shape, self.data)
    }
}

/// A tensor in somebody else's memory, to be written.
#[derive(Debug)]
pub struct TensorMut<'a> {
    dtype: DType,
    shape: Dims,
    data: &'a mut [u8],
}

impl<'a> TensorMut<'a> {
    /// A view of `data` to write to.
    ///
    /// # Errors
    /// [`TensorError::Length`] if the bytes are not exactly what the shape takes.
    pub fn new(dtype: DType, shape: &[usize], data: &'a mut [u8]) -> Result<TensorMut<'a>, TensorError> {
        check(dtype, shape, data.len())?;
        Ok(TensorMut { dtype, shape: SmallVec::from_slice(shape), data })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Lengths, slowest axis first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.data
    }

    /// The elements.
    ///
    /// # Errors
    /// If the type is another one, or the memory is not aligned for it.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        check_type::<T>(self.dtype)?;
        bytemuck::try_cast_slice_mut(self.data).map_err(|_| misaligned::<T>())
    }

    /// What is written so far.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { dtype: self.dtype, shape: self.shape.clone(), data: self.data }
    }
}

/// A tensor that owns its memory, aligned to 8 bytes.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: DType,
    shape: Dims,
    words: Vec<u64>,
    bytes: usize,
}

impl Tensor {
    /// All zeros.
    ///
    /// # Errors
    /// [`TensorError::Length`] if such a tensor has no size: a row does not fill whole blocks, or it is too large.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Tensor, TensorError> {
        let bytes = tensor_bytes(dtype, shape).filter(|&b| b <= isize::MAX as usize).ok_or_else(|| {
            TensorError::Length { dtype, shape: shape.to_vec(), expected: usize::MAX, found: 0 }
        })?;
        Ok(Tensor { dtype, shape: SmallVec::from_slice(shape), words: vec![0; bytes.div_ceil(8)], bytes })
    }

    /// A tensor of plain elements, copied.
    ///
    /// # Errors
    /// [`TensorError::Length`] if there are not exactly as many as the shape takes.
    pub fn from_slice<T: Element>(shape: &[usize], data: &[T]) -> Result<Tensor, TensorError> {
        TensorView::of(shape, data).map(|v| Tensor::from_view(&v))
    }

    /// A copy of a view.
    pub fn from_view(view: &TensorView<'_>) -> Tensor {
        let bytes = view.bytes().len();
        let mut words = vec![0u64; bytes.div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes].copy_from_slice(view.bytes());
        Tensor { dtype: view.dtype(), shape: SmallVec::from_slice(view.shape()), words, bytes }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Lengths, slowest axis first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// A view of it.
    pub fn view(&self) -> TensorView<'_> {
        TensorView {
            dtype: self.dtype,
            shape: self.shape.clone(),
            data: &bytemuck::cast_slice::<u64, u8>(&self.words)[..self.bytes],
        }
    }

    /// A view of it to write to.
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        TensorMut {
            dtype: self.dtype,
            shape: self.shape.clone(),
            data: &mut bytemuck::cast_slice_mut::<u64, u8>(&mut self.words)[..self.bytes],
        }
    }

    /// The elements.
    ///
    /// # Errors
    /// If the type is another one.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        self.view().as_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_checked() {
        assert_eq!(tensor_bytes(DType::Q4_0, &[2, 64]), Some(72));
        assert_eq!(tensor_bytes(DType::Q4_0, &[2, 40]), None);
        assert_eq!(tensor_bytes(DType::F32, &[]), Some(4));
        assert_eq!(tensor_bytes(DType::F32, &[0, 7]), Some(0));
        assert_eq!(tensor_bytes(DType::F32, &[usize::MAX, 2]), None);
        let e = TensorView::of(&[2, 2], &[1f32]).unwrap_err().to_string();
        assert_eq!(e, "a f32 tensor of shape [2, 2] takes 16 bytes, but 4 were given");
    }

    #[test]
    fn types_are_checked() {
        let t = Tensor::from_slice(&[3], &[1f32, 2.0, 3.0]).unwrap();
        assert_eq!(t.as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0]);
        assert_eq!(t.as_slice::<i32>(), Err(TensorError::DType { expected: DType::I32, found: DType::F32 }));
        assert_eq!(t.view().reshape(&[3, 1]).unwrap().shape(), [3, 1]);
        assert!(t.view().reshape(&[2]).is_err());
        let mut z = Tensor::zeros(DType::I64, &[2]).unwrap();
        z.view_mut().as_mut_slice::<i64>().unwrap()[1] = 7;
        assert_eq!(z.as_slice::<i64>().unwrap(), [0, 7]);
    }
}
