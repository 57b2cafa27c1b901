//! The keys of a file, with errors that say which file, which key and what was expected.

use crate::error::ModelError;
use conure_gguf::Metadata;
use std::ops::RangeInclusive;

/// The metadata of a file, with errors that say which file.
pub(crate) struct Keys<'a> {
    pub(crate) meta: &'a Metadata,
    pub(crate) origin: &'a str,
}

impl Keys<'_> {
    pub(crate) fn wrong(&self, key: &str, found: &str, expected: &str) -> ModelError {
        ModelError::Config {
            origin: self.origin.to_owned(),
            key: key.to_owned(),
            found: found.to_owned(),
            expected: expected.to_owned(),
        }
    }

    pub(crate) fn check(
        &self,
        key: &str,
        found: usize,
        expected: &str,
        holds: bool,
    ) -> Result<(), ModelError> {
        if holds { Ok(()) } else { Err(self.wrong(key, &found.to_string(), expected)) }
    }

    /// A length that must be there and within `range`.
    pub(crate) fn size(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize, ModelError> {
        let value = self.meta.u32(key)? as usize;
        self.within(key, value, range)
    }

    /// As [`Keys::size`], or `missing` if the key is not there.
    pub(crate) fn size_or(
        &self,
        key: &str,
        missing: usize,
        range: RangeInclusive<usize>,
    ) -> Result<usize, ModelError> {
        match self.meta.opt_u32(key)? {
            Some(value) => self.within(key, value as usize, range),
            None => Ok(missing),
        }
    }

    fn within(&self, key: &str, value: usize, range: RangeInclusive<usize>) -> Result<usize, ModelError> {
        let expected = format!("{} to {}", range.start(), range.end());
        self.check(key, value, &expected, range.contains(&value))?;
        Ok(value)
    }

    /// A length that files give once, or once per layer with the same value for all, or `missing`.
    pub(crate) fn per_layer(
        &self,
        key: &str,
        missing: Option<usize>,
        range: RangeInclusive<usize>,
    ) -> Result<usize, ModelError> {
        let Some(conure_gguf::Value::Array(_)) = self.meta.get(key) else {
            return match missing {
                Some(missing) => self.size_or(key, missing, range),
                None => self.size(key, range),
            };
        };
        let values = self.meta.usize_array(key)?;
        match values.as_slice() {
            [first, rest @ ..] if rest.iter().all(|v| v == first) => self.within(key, *first, range),
            _ => Err(self.wrong(key, &format!("{values:?}"), "one value, the same for all layers")),
        }
    }

    /// A number over 0, or `missing`.
    pub(crate) fn positive_or(&self, key: &str, missing: f32) -> Result<f32, ModelError> {
        let value = self.meta.opt_f32(key)?.unwrap_or(missing);
        if value.is_finite() && value > 0.0 {
            return Ok(value);
        }
        Err(self.wrong(key, &value.to_string(), "a number over 0"))
    }

    /// A cap: a number over 0, `None` for 0; `missing` if the key is not there.
    pub(crate) fn cap(&self, key: &str, missing: f32) -> Result<Option<f32>, ModelError> {
        let value = self.meta.opt_f32(key)?.unwrap_or(missing);
        if value == 0.0 { Ok(None) } else { self.positive_or(key, missing).map(Some) }
    }
}
