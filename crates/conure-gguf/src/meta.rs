//! The metadata of a file, with getters that say what is wrong.

use crate::cursor::Cursor;
use crate::error::{GgufError, Problem};
use crate::types::ValueType;
use crate::value::{Array, Value};
use conure_device::map::MappedFile;
use std::collections::HashMap;
use std::sync::Arc;

/// The metadata of a file in the order of the file. Values stay in the file and are read when asked for.
///
/// Getters are lenient in what converters disagree on: an integer of any width is taken if the value fits, a bool is
/// 0 or 1 and the other way round, a float may be f64 or an integer. A getter whose name starts with `opt_` gives
/// `None` for a missing key; a key that is there with another kind of value is an error for it too.
#[derive(Debug)]
pub struct Metadata {
    map: Arc<MappedFile>,
    file: String,
    keys: Vec<String>,
    /// Where in the file each value's type stands.
    starts: Vec<usize>,
    index: HashMap<String, usize>,
}

/// Makes a getter and its optional form.
macro_rules! getters {
    ($($(#[$doc:meta])* $get:ident $opt:ident $ty:ty, $expected:literal, $convert:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// A missing key, or a value of another kind.
        pub fn $get(&self, key: &str) -> Result<$ty, GgufError> {
            self.required(key, $expected, $convert)
        }

        /// The same of a key that may be missing.
        ///
        /// # Errors
        /// A value of another kind.
        pub fn $opt(&self, key: &str) -> Result<Option<$ty>, GgufError> {
            self.optional(key, $expected, $convert)
        }
    )*};
}

impl Metadata {
    pub(crate) fn new(map: Arc<MappedFile>, file: String) -> Metadata {
        Metadata { map, file, keys: Vec::new(), starts: Vec::new(), index: HashMap::new() }
    }

    /// Adds a key whose value stands at `start`; `false` if the key is there already.
    pub(crate) fn push(&mut self, key: &str, start: usize) -> bool {
        if self.index.insert(key.to_owned(), self.keys.len()).is_some() {
            return false;
        }
        self.keys.push(key.to_owned());
        self.starts.push(start);
        true
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether a key is there, with whatever value.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// The keys in the order of the file.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }

    /// Keys and values in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.keys.iter().zip(&self.starts).filter_map(|(key, &at)| Some((key.as_str(), self.value_at(at)?)))
    }

    /// A value as it is; `None` if the key is missing.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.value_at(self.starts[*self.index.get(key)?])
    }

    /// The value whose type stands at `start`; `None` if the file changed since it was opened.
    fn value_at(&self, start: usize) -> Option<Value<'_>> {
        Cursor::new(self.map.bytes(), start).typed_value().ok()
    }

    /// The type of a value and its bytes as they stand in the file.
    pub(crate) fn raw(&self, index: usize) -> Result<(ValueType, &[u8]), GgufError> {
        let start = self.starts[index];
        let mut cursor = Cursor::new(self.map.bytes(), start);
        match cursor.typed_value() {
            Ok(value) => Ok((value.value_type(), cursor.since(start + size_of::<u32>()))),
            Err(_) => Err(self.error(Problem::Changed { key: self.keys[index].clone() })),
        }
    }

    getters! {
        /// A number that fits a u8.
        u8 opt_u8 u8, "an integer from 0 to 255", |v| one(v, integer);
        /// A number that fits a u32.
        u32 opt_u32 u32, "an integer from 0 to 4294967295", |v| one(v, integer);
        /// A number that fits a u64.
        u64 opt_u64 u64, "an integer from 0 up", |v| one(v, integer);
        /// A number that fits an i32.
        i32 opt_i32 i32, "an integer of 32 bits", |v| one(v, integer);
        /// A number that fits an i64.
        i64 opt_i64 i64, "an integer of 64 bits", |v| one(v, integer);
        /// A count or length.
        usize opt_usize usize, "an integer from 0 up", |v| one(v, integer);
        /// A real number. It may be infinite or NaN: what that means is the reader's question.
        f32 opt_f32 f32, "a number", |v| one(v, Value::as_f32);
        /// A truth value.
        bool opt_bool bool, "a bool", |v| one(v, Value::as_bool);
        /// A text.
        str opt_str &str, "a UTF-8 string", |v| one(v, Value::as_str);
        /// An array of anything, read where it lies.
        array opt_array Array<'_>, "an array", |v| one(v, Value::as_array);
        /// An array of texts.
        str_array opt_str_array Vec<&str>, "an array of UTF-8 strings", |v| all(v, Value::as_str);
        /// An array of numbers that fit i32.
        i32_array opt_i32_array Vec<i32>, "an array of 32-bit integers", |v| all(v, integer);
        /// An array of numbers that fit u32.
        u32_array opt_u32_array Vec<u32>, "an array of integers from 0 to 4294967295", |v| all(v, integer);
        /// An array of counts or lengths.
        usize_array opt_usize_array Vec<usize>, "an array of integers from 0 up", |v| all(v, integer);
        /// An array of real numbers.
        f32_array opt_f32_array Vec<f32>, "an array of numbers", |v| all(v, Value::as_f32);
        /// An array of truth values.
        bool_array opt_bool_array Vec<bool>, "an array of bools", |v| all(v, Value::as_bool);
    }

    fn required<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(Value<'a>) -> Result<T, String>,
    ) -> Result<T, GgufError> {
        self.optional(key, expected, convert)?
            .ok_or_else(|| self.error(Problem::MissingKey { key: key.to_owned(), expected }))
    }

    fn optional<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(Value<'a>) -> Result<T, String>,
    ) -> Result<Option<T>, GgufError> {
        let Some(&index) = self.index.get(key) else { return Ok(None) };
        let key = || key.to_owned();
        let value =
            self.value_at(self.starts[index]).ok_or_else(|| self.error(Problem::Changed { key: key() }))?;
        match convert(value) {
            Ok(converted) => Ok(Some(converted)),
            Err(found) => Err(self.error(Problem::WrongValue { key: key(), found, expected })),
        }
    }

    fn error(&self, problem: Problem) -> GgufError {
        GgufError::Content { file: self.file.clone(), problem }
    }
}

/// Converts a value, or describes it as what was found.
fn one<'a, T>(value: Value<'a>, convert: impl Fn(&Value<'a>) -> Option<T>) -> Result<T, String> {
    convert(&value).ok_or_else(|| value.to_string())
}

/// Converts all elements of an array, or describes what is wrong with it. Memory is taken for elements that are
/// there, not for an announced count.
fn all<'a, T>(value: Value<'a>, convert: impl Fn(&Value<'a>) -> Option<T>) -> Result<Vec<T>, String> {
    let array = one(value, Value::as_array)?;
    let element = |(i, e): (usize, Value<'a>)| convert(&e).ok_or_else(|| format!("{value} with {e} at {i}"));
    array.iter().enumerate().map(element).collect()
}

fn integer<T: TryFrom<i128>>(value: &Value<'_>) -> Option<T> {
    T::try_from(value.as_integer()?).ok()
}
