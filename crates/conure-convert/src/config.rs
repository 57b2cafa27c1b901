//! A configuration (YAML or JSON) as plain data, with keys in their order and errors that name the key.

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// A real `model_config.yaml` has 10 KB to 1 MB (a vocabulary of 13,000 pieces three times).
pub const MAX_CONFIG: u64 = 16 << 20;
/// How far `${a.b}` references are followed.
const MAX_REFERENCES: usize = 8;

/// A value of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction, or too large for an i64.
    Float(f64),
    /// Text.
    Str(String),
    /// A list.
    List(Vec<Value>),
    /// Keys and values in the order of the file; no key comes twice.
    Map(Vec<(String, Value)>),
}

/// What is wrong with a configuration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// It is not YAML or JSON, or outside the bounds.
    #[error("it cannot be read: {0}")]
    Syntax(String),
    /// A key is missing.
    #[error("key `{key}` is missing: expected {expected}")]
    Missing {
        /// The key with dots.
        key: String,
        /// What it should be.
        expected: String,
    },
    /// A key has a value that cannot be used.
    #[error("key `{key}` is {found}: expected {expected}")]
    Unexpected {
        /// The key with dots.
        key: String,
        /// What is there.
        found: String,
        /// What it should be.
        expected: String,
    },
}

impl ConfigError {
    /// A key whose value cannot be used.
    pub fn unexpected(key: &str, found: impl fmt::Display, expected: impl Into<String>) -> ConfigError {
        ConfigError::Unexpected { key: key.into(), found: found.to_string(), expected: expected.into() }
    }

    /// A key that is not there.
    pub fn missing(key: &str, expected: impl Into<String>) -> ConfigError {
        ConfigError::Missing { key: key.into(), expected: expected.into() }
    }
}

/// Reads YAML. Tags (`!!python/object`, `_target_`) are data and make nothing; aliases, depth and size are bounded.
///
/// # Errors
/// [`ConfigError::Syntax`].
pub fn from_yaml(text: &str) -> Result<Value, ConfigError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_documents: 1,
            max_depth: 64,
            max_nodes: 500_000,
            max_aliases: 1_000,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
            max_replay_stack_depth: 16,
        },
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::AsString,
        // NeMo's writer quotes `y`, `on` and the like where they are text; unquoted they are keys such as `n`.
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| ConfigError::Syntax(e.to_string()))
}

/// Reads JSON; nesting is bounded by the parser.
///
/// # Errors
/// [`ConfigError::Syntax`], also where a key comes twice.
pub fn from_json(bytes: &[u8]) -> Result<Value, ConfigError> {
    serde_json::from_slice(bytes).map_err(|e| ConfigError::Syntax(e.to_string()))
}

impl Value {
    /// What `path` (keys with dots) leads to, `${...}` references followed; `None` where nothing or null is there.
    pub fn get(&self, path: &str) -> Option<&Value> {
        let mut path = path.to_owned();
        for _ in 0..MAX_REFERENCES {
            let mut at = self;
            for key in path.split('.') {
                let Value::Map(entries) = at else { return None };
                at = entries.iter().find(|(k, _)| k == key).map(|(_, v)| v)?;
            }
            let reference = match at {
                Value::Str(s) => s.strip_prefix("${").and_then(|s| s.strip_suffix('}')),
                _ => None,
            };
            match (at, reference) {
                (Value::Null, _) => return None,
                (_, Some(r)) => path = r.strip_prefix("model.").unwrap_or(r).to_owned(),
                _ => return Some(at),
            }
        }
        None
    }

    /// A whole number from 0 to 2^32 - 1.
    ///
    /// # Errors
    /// If something else is there.
    pub fn u32(&self, path: &str) -> Result<Option<u32>, ConfigError> {
        self.read(path, "a whole number", |v| match v {
            Value::Int(n) => u32::try_from(*n).ok(),
            Value::Float(x) if x.fract() == 0.0 && (0.0..4e9).contains(x) => Some(*x as u32),
            _ => None,
        })
    }

    /// Like [`Value::u32`], and it must be there and above zero.
    ///
    /// # Errors
    /// If nothing or something else is there.
    pub fn positive(&self, path: &str) -> Result<u32, ConfigError> {
        match self.u32(path)? {
            None => Err(ConfigError::missing(path, "a whole number above 0")),
            Some(0) => Err(ConfigError::unexpected(path, 0, "a whole number above 0")),
            Some(n) => Ok(n),
        }
    }

    /// A finite number.
    ///
    /// # Errors
    /// If something else is there.
    pub fn f64(&self, path: &str) -> Result<Option<f64>, ConfigError> {
        self.read(path, "a number", |v| match v {
            Value::Int(n) => Some(*n as f64),
            Value::Float(x) if x.is_finite() => Some(*x),
            _ => None,
        })
    }

    /// True or false.
    ///
    /// # Errors
    /// If something else is there.
    pub fn bool(&self, path: &str) -> Result<Option<bool>, ConfigError> {
        self.read(path, "true or false", |v| match v {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// Text.
    ///
    /// # Errors
    /// If something else is there.
    pub fn str(&self, path: &str) -> Result<Option<&str>, ConfigError> {
        match self.get(path) {
            None => Ok(None),
            Some(Value::Str(s)) => Ok(Some(s)),
            Some(other) => Err(ConfigError::unexpected(path, other, "text")),
        }
    }

    /// A list of whole numbers.
    ///
    /// # Errors
    /// If something else is there.
    pub fn ints(&self, path: &str) -> Result<Option<Vec<i32>>, ConfigError> {
        self.read(path, "a list of whole numbers", int_list)
    }

    fn read<T>(
        &self,
        path: &str,
        expected: &str,
        f: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        match self.get(path) {
            None => Ok(None),
            Some(v) => f(v).map(Some).ok_or_else(|| ConfigError::unexpected(path, v, expected)),
        }
    }
}

/// The numbers of a list of whole numbers.
pub fn int_list(value: &Value) -> Option<Vec<i32>> {
    let Value::List(items) = value else { return None };
    items
        .iter()
        .map(|v| match v {
            Value::Int(n) => i32::try_from(*n).ok(),
            _ => None,
        })
        .collect()
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::Int(n) => write!(f, "{n}"),
            Value::Float(x) => write!(f, "{x}"),
            Value::Str(s) => write!(f, "{:?}", s.chars().take(60).collect::<String>()),
            Value::List(items) => write!(f, "a list of {}", items.len()),
            Value::Map(entries) => write!(f, "a map of {} keys", entries.len()),
        }
    }
}

/// A key: text, or a number or truth value as text.
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Key, D::Error> {
        match Value::deserialize(d)? {
            Value::Str(s) => Ok(Key(s)),
            Value::Int(n) => Ok(Key(n.to_string())),
            Value::Bool(b) => Ok(Key(b.to_string())),
            Value::Float(x) => Ok(Key(x.to_string())),
            other => Err(D::Error::custom(format!("a key is {other}"))),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Value, D::Error> {
        d.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("plain data")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        Value::deserialize(d)
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Int(v))
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(i64::try_from(v).map_or(Value::Float(v as f64), Value::Int))
    }
    fn visit_i128<E>(self, v: i128) -> Result<Value, E> {
        Ok(Value::Float(v as f64))
    }
    fn visit_u128<E>(self, v: u128) -> Result<Value, E> {
        Ok(Value::Float(v as f64))
    }
    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Value::Float(v))
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::Str(v.to_owned()))
    }
    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::Str(v))
    }
    fn visit_bytes<E>(self, _: &[u8]) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(v) = seq.next_element()? {
            out.push(v);
        }
        Ok(Value::List(out))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut out: Vec<(String, Value)> = Vec::new();
        let mut seen = HashSet::new();
        while let Some(Key(key)) = map.next_key()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format!(
                    "key {:?} comes twice",
                    key.chars().take(80).collect::<String>()
                )));
            }
            out.push((key, map.next_value()?));
        }
        Ok(Value::Map(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_values_and_names_keys() {
        let c = from_yaml(
            "a:\n  n: 5\n  x: 1.0e-05\n  s: hann\n  b: true\n  l: [1, -1]\n  none: null\n  r: ${model.a.n}\n  loop: ${a.loop}\n1: one\n'on': off\n",
        )
        .unwrap();
        assert_eq!(c.u32("a.n"), Ok(Some(5)));
        assert_eq!(c.u32("a.r"), Ok(Some(5)));
        assert_eq!(c.get("a.loop"), None);
        assert_eq!(c.f64("a.x"), Ok(Some(1e-5)));
        assert_eq!(c.str("a.s"), Ok(Some("hann")));
        assert_eq!(c.bool("a.b"), Ok(Some(true)));
        assert_eq!(c.ints("a.l"), Ok(Some(vec![1, -1])));
        assert_eq!(c.u32("a.none"), Ok(None));
        assert_eq!(c.str("1"), Ok(Some("one")));
        let e = c.u32("a.s").unwrap_err().to_string();
        assert_eq!(e, "key `a.s` is \"hann\": expected a whole number");
        assert_eq!(
            c.positive("a.q").unwrap_err().to_string(),
            "key `a.q` is missing: expected a whole number above 0"
        );
    }

    #[test]
    fn hostile_configurations_are_bounded() {
        let mut aliases = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for i in 1..12 {
            let prev = vec![format!("*a{}", i - 1); 9].join(",");
            aliases.push_str(&format!("a{i}: &a{i} [{prev}]\n"));
        }
        let deep = "[".repeat(100_000);
        let merge = format!("a: &a {{x: 1}}\nb:\n{}", "  <<: *a\n".repeat(20_000));
        let nodes = format!("a: [{}]", "1,".repeat(600_000));
        for yaml in
            [aliases.as_str(), &deep, &merge, &nodes, "a: 1\na: 2\n", "a: *nowhere", "\u{0}", "a: b: c"]
        {
            let started = std::time::Instant::now();
            assert!(from_yaml(yaml).is_err(), "{:.40}", yaml);
            assert!(started.elapsed().as_secs() < 2, "{:.40}: {:?}", yaml, started.elapsed());
        }
        assert!(from_json("[".repeat(100_000).as_bytes()).is_err());
        assert!(from_json(br#"{"a":1,"a":2}"#).unwrap_err().to_string().contains("twice"));
    }

    #[test]
    fn tags_make_nothing() {
        let c = from_yaml("_target_: os.system\nx: !!python/object/apply:os.system ['touch pwned']\ny: 3\n");
        if let Ok(c) = c {
            assert_eq!(c.str("_target_"), Ok(Some("os.system")));
            assert_eq!(c.get("x"), Some(&Value::List(vec![Value::Str("touch pwned".into())])));
            assert_eq!(c.u32("y"), Ok(Some(3)));
        }
        assert!(!std::path::Path::new("pwned").exists());
    }
}
