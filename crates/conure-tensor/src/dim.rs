//! Lengths as integer expressions over named symbols: `floor((T-1)/2)+1`, `P+N`.
//!
//! A [`Dim`] is kept in one canonical form, a sum of distinct terms with coefficients, so that two expressions
//! that mean the same are equal whenever shape inference needs them to be.

use smallvec::SmallVec;
use std::fmt;
use std::ops::{Add, Mul, Sub};
use std::sync::Arc;

/// A name whose value is bound when a graph runs, such as `T` (frames) or `B` (batch): 1 to 8 ASCII characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol([u8; 8]);

impl Symbol {
    /// The symbol of this name; characters after the eighth are dropped.
    pub const fn new(name: &str) -> Symbol {
        let bytes = name.as_bytes();
        let mut out = [0u8; 8];
        let mut i = 0;
        while i < bytes.len() && i < 8 {
            out[i] = bytes[i];
            i += 1;
        }
        Symbol(out)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        let end = self.0.iter().position(|&b| b == 0).unwrap_or(8);
        std::str::from_utf8(&self.0[..end]).unwrap_or("?")
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The values of symbols for one run, sorted by symbol so that equal bindings are equal keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bindings(SmallVec<[(Symbol, usize); 4]>);

impl Bindings {
    /// No symbol bound.
    pub fn new() -> Bindings {
        Bindings::default()
    }

    /// Binds `symbol`, replacing an earlier value.
    pub fn set(&mut self, symbol: Symbol, value: usize) -> &mut Bindings {
        match self.0.binary_search_by_key(&symbol, |&(s, _)| s) {
            Ok(i) => self.0[i].1 = value,
            Err(i) => self.0.insert(i, (symbol, value)),
        }
        self
    }

    /// The same bindings with `symbol` set.
    pub fn with(mut self, symbol: Symbol, value: usize) -> Bindings {
        self.set(symbol, value);
        self
    }

    /// The value of `symbol`, if bound.
    pub fn get(&self, symbol: Symbol) -> Option<usize> {
        self.0.binary_search_by_key(&symbol, |&(s, _)| s).ok().map(|i| self.0[i].1)
    }

    /// All bound symbols in order.
    pub fn iter(&self) -> impl Iterator<Item = (Symbol, usize)> + '_ {
        self.0.iter().copied()
    }
}

impl fmt::Display for Bindings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (s, v)) in self.iter().enumerate() {
            write!(f, "{}{}={v}", if i > 0 { " " } else { "" }, s.name())?;
        }
        Ok(())
    }
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DimError {
    /// A symbol is not bound.
    #[error("the length {expression} needs a value for {}, which is not bound", .symbol.name())]
    Unbound {
        /// The symbol without a value.
        symbol: Symbol,
        /// The whole expression.
        expression: String,
    },
    /// The value is negative or too large.
    #[error("the length {expression} is {value}, outside 0 ..= {}", i64::MAX)]
    OutOfRange {
        /// The whole expression.
        expression: String,
        /// What it came to.
        value: i128,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Term {
    Symbol(Symbol),
    FloorDiv(Arc<Dim>, i64),
    /// Two or more factors, sorted, none of them a product.
    Product(Arc<[Term]>),
    Max(Arc<Dim>, Arc<Dim>),
}

/// An integer expression over [`Symbol`]s.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dim {
    constant: i64,
    /// Sorted by term, no zero coefficients.
    terms: SmallVec<[(Term, i64); 1]>,
}

impl Dim {
    /// A fixed length.
    pub fn constant(value: usize) -> Dim {
        Dim { constant: i64::try_from(value).unwrap_or(i64::MAX), terms: SmallVec::new() }
    }

    /// The value of a symbol.
    pub fn symbol(symbol: Symbol) -> Dim {
        Dim::term(Term::Symbol(symbol))
    }

    fn term(term: Term) -> Dim {
        Dim { constant: 0, terms: SmallVec::from_iter([(term, 1)]) }
    }

    /// The value if it depends on no symbol.
    pub fn as_constant(&self) -> Option<usize> {
        if self.terms.is_empty() { usize::try_from(self.constant).ok() } else { None }
    }

    /// `self + n`.
    pub fn plus(&self, n: i64) -> Dim {
        let mut out = self.clone();
        out.constant = out.constant.saturating_add(n);
        out
    }

    /// `floor(self / divisor)`; `divisor` must be positive (0 is read as 1).
    pub fn floor_div(&self, divisor: i64) -> Dim {
        let divisor = divisor.max(1);
        if divisor == 1 {
            return self.clone();
        }
        // What the divisor divides leaves the floor: floor((8a + r) / 8) = a + floor(r / 8).
        let mut whole = Dim { constant: self.constant.div_euclid(divisor), terms: SmallVec::new() };
        let mut rest = Dim { constant: self.constant.rem_euclid(divisor), terms: SmallVec::new() };
        for (term, coefficient) in &self.terms {
            if coefficient % divisor == 0 {
                whole.terms.push((term.clone(), coefficient / divisor));
            } else {
                rest.terms.push((term.clone(), *coefficient));
            }
        }
        if rest.terms.is_empty() {
            return whole;
        }
        &whole + &Dim::term(Term::FloorDiv(Arc::new(rest), divisor))
    }

    /// `ceil(self / divisor)`.
    pub fn ceil_div(&self, divisor: i64) -> Dim {
        self.plus(divisor.max(1) - 1).floor_div(divisor)
    }

    /// `max(self, other)`.
    pub fn max_with(&self, other: &Dim) -> Dim {
        if self == other {
            return self.clone();
        }
        if self.terms == other.terms {
            return if self.constant >= other.constant { self.clone() } else { other.clone() };
        }
        let (a, b) = if self < other { (self, other) } else { (other, self) };
        Dim::term(Term::Max(Arc::new(a.clone()), Arc::new(b.clone())))
    }

    /// The value under `bindings`.
    ///
    /// # Errors
    /// A symbol without a value, or a value that is negative or does not fit.
    pub fn eval(&self, bindings: &Bindings) -> Result<usize, DimError> {
        let value = self.eval_wide(bindings, self)?;
        i64::try_from(value)
            .ok()
            .and_then(|v| usize::try_from(v).ok())
            .ok_or_else(|| DimError::OutOfRange { expression: self.to_string(), value })
    }

    fn eval_wide(&self, bindings: &Bindings, whole: &Dim) -> Result<i128, DimError> {
        let mut sum = i128::from(self.constant);
        for (term, coefficient) in &self.terms {
            let value = match term {
                Term::Symbol(s) => bindings
                    .get(*s)
                    .map(|v| v as i128)
                    .ok_or_else(|| DimError::Unbound { symbol: *s, expression: whole.to_string() })?,
                Term::FloorDiv(a, d) => a.eval_wide(bindings, whole)?.div_euclid(i128::from(*d)),
                Term::Product(factors) => {
                    let mut product = 1i128;
                    for factor in factors.iter() {
                        product =
                            product.saturating_mul(Dim::term(factor.clone()).eval_wide(bindings, whole)?);
                    }
                    product
                }
                Term::Max(a, b) => a.eval_wide(bindings, whole)?.max(b.eval_wide(bindings, whole)?),
            };
            sum = sum.saturating_add(value.saturating_mul(i128::from(*coefficient)));
        }
        Ok(sum)
    }

    fn add_scaled(&self, other: &Dim, factor: i64) -> Dim {
        let mut out = self.clone();
        out.constant = out.constant.saturating_add(other.constant.saturating_mul(factor));
        for (term, coefficient) in &other.terms {
            let c = coefficient.saturating_mul(factor);
            match out.terms.binary_search_by(|(t, _)| t.cmp(term)) {
                Ok(i) => {
                    out.terms[i].1 = out.terms[i].1.saturating_add(c);
                    if out.terms[i].1 == 0 {
                        out.terms.remove(i);
                    }
                }
                Err(i) if c != 0 => out.terms.insert(i, (term.clone(), c)),
                Err(_) => {}
            }
        }
        out
    }
}

impl From<usize> for Dim {
    fn from(value: usize) -> Dim {
        Dim::constant(value)
    }
}

impl From<Symbol> for Dim {
    fn from(symbol: Symbol) -> Dim {
        Dim::symbol(symbol)
    }
}

impl Add for &Dim {
    type Output = Dim;
    fn add(self, other: &Dim) -> Dim {
        self.add_scaled(other, 1)
    }
}

impl Sub for &Dim {
    type Output = Dim;
    fn sub(self, other: &Dim) -> Dim {
        self.add_scaled(other, -1)
    }
}

impl Mul for &Dim {
    type Output = Dim;
    fn mul(self, other: &Dim) -> Dim {
        // Multiplied out, so that products that mean the same are equal: B (8 T) and 8 (B T), (T + 1) B and B T + B.
        let constant = Dim { constant: self.constant.saturating_mul(other.constant), terms: SmallVec::new() };
        let mut out = constant
            .add_scaled(&Dim { constant: 0, terms: other.terms.clone() }, self.constant)
            .add_scaled(&Dim { constant: 0, terms: self.terms.clone() }, other.constant);
        for (a, n) in &self.terms {
            for (b, m) in &other.terms {
                out = out.add_scaled(&Dim::term(a.times(b)), n.saturating_mul(*m));
            }
        }
        out
    }
}

impl Term {
    fn factors(&self) -> &[Term] {
        match self {
            Term::Product(factors) => factors,
            other => std::slice::from_ref(other),
        }
    }

    fn times(&self, other: &Term) -> Term {
        let mut factors: Vec<Term> = self.factors().iter().chain(other.factors()).cloned().collect();
        factors.sort();
        Term::Product(factors.into())
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Term::Symbol(s) => f.write_str(s.name()),
            Term::FloorDiv(a, d) => write!(f, "floor(({a})/{d})"),
            Term::Product(factors) => {
                for (i, factor) in factors.iter().enumerate() {
                    write!(f, "{}{factor}", if i > 0 { "*" } else { "" })?;
                }
                Ok(())
            }
            Term::Max(a, b) => write!(f, "max({a}, {b})"),
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (term, coefficient) in &self.terms {
            let sign = if *coefficient < 0 {
                "-"
            } else if first {
                ""
            } else {
                "+"
            };
            match coefficient.unsigned_abs() {
                1 => write!(f, "{sign}{term}")?,
                n => write!(f, "{sign}{n}*{term}")?,
            }
            first = false;
        }
        match self.constant {
            c if first => write!(f, "{c}"),
            0 => Ok(()),
            c if c < 0 => write!(f, "{c}"),
            c => write!(f, "+{c}"),
        }
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Symbol = Symbol::new("T");
    const B: Symbol = Symbol::new("B");

    #[test]
    fn products_that_mean_the_same_are_equal() {
        let (t, b, eight) = (Dim::from(T), Dim::from(B), Dim::from(8));
        assert_eq!(&b * &(&eight * &t), &eight * &(&b * &t));
        assert_eq!(&t.plus(1) * &b, &(&b * &t) + &b);
        assert_eq!(&(&t * &b) * &t, &t * &(&b * &t));
        let halves = &half(&t) * &(&b * &Dim::from(2));
        assert_eq!(halves, &(&half(&t) * &b) * &Dim::from(2));
        let bound = Bindings::new().with(T, 9).with(B, 3);
        assert_eq!((&t.plus(1) * &(&b * &t.plus(-4))).eval(&bound), Ok(10 * 3 * 5));
        assert_eq!((&Dim::from(0) * &t).as_constant(), Some(0));
    }

    fn half(d: &Dim) -> Dim {
        d.plus(-1).floor_div(2).plus(1)
    }

    #[test]
    fn evaluates_as_written() {
        let t = Dim::from(T);
        let three = half(&half(&half(&t)));
        for n in 1..2000usize {
            let bind = Bindings::new().with(T, n).with(B, 3);
            let mut l = n;
            for _ in 0..3 {
                l = (l - 1) / 2 + 1;
            }
            assert_eq!(three.eval(&bind), Ok(l), "T={n}");
            assert_eq!((&three + &three).plus(-1).eval(&bind), Ok(2 * l - 1));
            assert_eq!((&Dim::from(B) * &three).eval(&bind), Ok(3 * l));
            assert_eq!(t.ceil_div(8).eval(&bind), Ok(n.div_ceil(8)));
            assert_eq!(t.max_with(&Dim::from(5)).eval(&bind), Ok(n.max(5)));
        }
    }

    #[test]
    fn equal_meanings_are_equal() {
        let t = Dim::from(T);
        let b = Dim::from(B);
        assert_eq!(&t + &b, &b + &t);
        assert_eq!(&(&t + &b) - &b, t);
        assert_eq!(&t * &b, &b * &t);
        assert_eq!((&t * &Dim::from(8)).floor_div(8), t);
        assert_eq!((&(&t * &Dim::from(8)) + &Dim::from(3)).floor_div(8), t);
        assert_eq!(&t - &t, Dim::from(0));
        assert_ne!(half(&t), t);
    }

    #[test]
    fn errors_name_the_expression() {
        let e = half(&Dim::from(T)).eval(&Bindings::new()).unwrap_err().to_string();
        assert_eq!(e, "the length floor((T+1)/2) needs a value for T, which is not bound");
        let e = Dim::from(T).plus(-5).eval(&Bindings::new().with(T, 1)).unwrap_err().to_string();
        assert!(e.contains("T-5 is -4"), "{e}");
    }
}
