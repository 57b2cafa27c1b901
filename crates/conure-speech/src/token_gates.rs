//! What the predictor's first layer makes of a token, which is always the same: computed once a token, and kept.

use conure_graph::{GraphError, Observer, Session};
use conure_tensor::{Bindings, Symbol, TensorView};
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock};

/// Bytes of rows that are kept at most: those of 1638 tokens of a predictor of 640 units. What comes when it is full is computed
/// each time; frequent tokens come early.
const MOST_BYTES: usize = 16 << 20;

/// Rows by token, shared by all sessions of a recogniser: they compute on the same kernels, so that a row is the same whoever
/// computed it.
#[derive(Debug, Default)]
pub(crate) struct TokenGates(RwLock<HashMap<i32, Box<[f32]>>>);

impl TokenGates {
    /// Appends the row of a token, if it is there.
    fn append(&self, token: i32, rows: &mut Vec<f32>) -> bool {
        let kept = self.0.read().unwrap_or_else(PoisonError::into_inner);
        kept.get(&token).map(|row| rows.extend_from_slice(row)).is_some()
    }

    fn keep(&self, token: i32, row: &[f32]) {
        let mut kept = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if (kept.len() + 1) * size_of_val(row) <= MOST_BYTES {
            kept.insert(token, row.into());
        }
    }

    /// Gives the memory back.
    pub(crate) fn clear(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = HashMap::new();
    }
}

/// The program that computes rows, and those that it computed.
#[derive(Debug)]
pub(crate) struct Tabulated {
    session: Session,
    kept: Arc<TokenGates>,
    /// Of the tokens of the step under way, `[rows, 4P]`.
    rows: Vec<f32>,
}

impl Tabulated {
    pub(crate) fn new(session: Session, kept: Arc<TokenGates>) -> Tabulated {
        Tabulated { session, kept, rows: Vec::new() }
    }

    /// The rows of `tokens`, one after the other.
    pub(crate) fn rows(&mut self, tokens: &[i32]) -> Result<&[f32], GraphError> {
        self.rows.clear();
        // One by one: this is done once a token, and there is one plan for it.
        let bindings = Bindings::new().with(Symbol::new("B"), 1);
        for token in tokens {
            if self.kept.append(*token, &mut self.rows) {
                continue;
            }
            let error = |source| GraphError::Tensor { path: "predictor.gates".into(), source };
            let input = TensorView::of(&[1], std::slice::from_ref(token)).map_err(error)?;
            let outputs = self.session.run(&bindings, &[("token", input)])?;
            let row = outputs.get("predictor.gates")?.as_slice::<f32>().map_err(error)?;
            self.rows.extend_from_slice(row);
            self.kept.keep(*token, row);
        }
        Ok(&self.rows)
    }

    pub(crate) fn set_cancel(&mut self, cancel: Option<Arc<AtomicBool>>) {
        self.session.set_cancel(cancel);
    }

    pub(crate) fn set_observer(&mut self, observer: Option<Arc<dyn Observer>>) {
        self.session.set_observer(observer);
    }

    pub(crate) fn arena_bytes(&self) -> usize {
        self.session.arena_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_kept_within_bounds() {
        let gates = TokenGates::default();
        let row = vec![1.5f32; MOST_BYTES / 4 / 3];
        for token in 0..5 {
            gates.keep(token, &row);
        }
        let kept: Vec<bool> = (0..5).map(|token| gates.append(token, &mut Vec::new())).collect();
        assert_eq!(kept, [true, true, true, false, false]);
        let mut rows = vec![0.5];
        assert!(gates.append(2, &mut rows));
        assert_eq!((rows.len(), rows[0], rows[1]), (1 + row.len(), 0.5, 1.5));
        gates.clear();
        assert!(!gates.append(0, &mut rows));
    }
}
