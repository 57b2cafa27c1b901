//! Texts that end what is generated, wherever tokens are cut.

/// Looks for stop texts in a text that comes in parts, and holds back what may be the beginning of one.
#[derive(Clone, Debug)]
pub(crate) struct Stops {
    stops: Vec<String>,
    held: String,
}

impl Stops {
    pub(crate) fn new(stops: &[String]) -> Stops {
        Stops { stops: stops.iter().filter(|s| !s.is_empty()).cloned().collect(), held: String::new() }
    }

    /// What can be shown now that `text` has come, and whether a stop text was found, which is not shown.
    pub(crate) fn push(&mut self, text: String) -> (String, bool) {
        if self.stops.is_empty() {
            return (text, false);
        }
        self.held.push_str(&text);
        if let Some(at) = self.stops.iter().filter_map(|s| self.held.find(s.as_str())).min() {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let may_begin = |at: usize| self.stops.iter().any(|s| s.starts_with(&self.held[at..]));
        let kept = self.held.char_indices().map(|(i, _)| i).find(|&at| may_begin(at));
        let rest = self.held.split_off(kept.unwrap_or(self.held.len()));
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back, at the end.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_texts_are_found_across_parts_and_never_shown() {
        let cases: [(&[&str], &[&str], &str, bool); 6] = [
            (&["END"], &["a", "bE", "N", "Dc"], "ab", true),
            (&["END"], &["abE", "N", "x"], "abENx", false),
            (&["\n\n", "User:"], &["hi\n", "Us", "er", ":"], "hi\n", true),
            (&[], &["x", "y"], "xy", false),
            (&["é!"], &["caf", "é", "!"], "caf", true),
            (&["aab"], &["a", "a", "a", "b"], "a", true),
        ];
        for (stops, parts, expected, found) in cases {
            let mut s = Stops::new(&stops.iter().map(|s| s.to_string()).collect::<Vec<_>>());
            let (mut out, mut stopped) = (String::new(), false);
            for part in parts {
                let (text, stop) = s.push(part.to_string());
                out.push_str(&text);
                stopped = stop;
                if stop {
                    break;
                }
            }
            if !stopped {
                out.push_str(&s.finish());
            }
            assert_eq!((out.as_str(), stopped), (expected, found), "{stops:?} {parts:?}");
        }
    }
}
