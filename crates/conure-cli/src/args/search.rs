//! `conure transcribe`: how words are searched for.

use super::values;
use crate::failure::Failure;
use crate::output::shown;
use clap::Args;
use conure::{Search, SpeechModel};
use std::path::PathBuf;

/// How words are searched for.
#[derive(Debug, Args)]
#[command(next_help_heading = "Search")]
pub struct SearchArgs {
    /// Follow so many texts at once instead of deciding token by token: a little better, and slower
    #[arg(
        long,
        visible_alias = "beam-size",
        value_name = "N",
        env = "CONURE_BEAM",
        conflicts_with = "stream"
    )]
    #[arg(value_parser = values::count)]
    pub beam: Option<usize>,

    /// With --beam, in json: the so many likeliest texts as well, with words and scores
    #[arg(long, value_name = "N", env = "CONURE_N_BEST", value_parser = values::count)]
    pub n_best: Option<usize>,

    /// Prefer the phrases in this file, one on each line, `#` before remarks, where words are spoken at all: none appears in
    /// silence. Behind a tab a phrase may have a weight of its own
    #[arg(
        long,
        visible_alias = "hotwords",
        value_name = "FILE",
        env = "CONURE_HOT_WORDS",
        conflicts_with = "stream"
    )]
    pub hot_words: Option<PathBuf>,

    /// How much phrases are preferred, for each character: the more, the more other words turn into them
    /// [default: 0.5]
    #[arg(long, value_name = "W", requires = "hot_words", env = "CONURE_HOT_WORD_WEIGHT")]
    pub hot_word_weight: Option<f32>,

    /// Take so much off the score of saying nothing: more than 0 for a model that leaves words out, less for one that adds some
    #[arg(
        long,
        value_name = "P",
        env = "CONURE_BLANK_PENALTY",
        conflicts_with = "stream",
        allow_negative_numbers = true
    )]
    #[arg(value_parser = penalty)]
    pub blank_penalty: Option<f32>,
}

fn penalty(text: &str) -> Result<f32, String> {
    let value = text.trim().parse::<f32>().ok().filter(|p| p.abs() <= 100.0);
    value.ok_or_else(|| "expected a number from -100 to 100".to_owned())
}

impl SearchArgs {
    /// What makes no sense in this combination.
    pub fn check(&self) -> Result<(), String> {
        let (beam, n_best) = (self.beam.unwrap_or(1), self.n_best.unwrap_or(1));
        if n_best > beam {
            return Err(format!("--n-best {n_best} needs a --beam of at least {n_best}"));
        }
        if beam > 1024 {
            return Err("--beam is at most 1024; 4 to 16 are usual".to_owned());
        }
        Ok(())
    }

    /// The search that is meant, for this model.
    ///
    /// # Errors
    /// Hot words that cannot be read, or that the model cannot write.
    pub fn search(&self, model: &SpeechModel) -> Result<Search, Failure> {
        let hot_words = match &self.hot_words {
            None => None,
            Some(path) => {
                let fail = || Failure::new(format!("cannot use the hot words in {}", shown(path)));
                let text = std::fs::read_to_string(path).map_err(|e| fail().because(e))?;
                let phrases =
                    phrases(&text, self.hot_word_weight.unwrap_or(0.5)).map_err(|e| fail().reason(e))?;
                Some(model.hot_words(phrases).map_err(|e| fail().because(e))?)
            }
        };
        Ok(Search {
            beam: self.beam.unwrap_or(1),
            n_best: self.n_best.unwrap_or(1),
            blank_penalty: self.blank_penalty.unwrap_or(0.0),
            hot_words,
        })
    }
}

/// Phrases and weights of a file of hot words.
fn phrases(text: &str, weight: f32) -> Result<Vec<(&str, f32)>, String> {
    let lines = (1..).zip(text.trim_start_matches('\u{feff}').lines());
    lines
        .map(|(number, line)| (number, line.split('#').next().unwrap_or_default().trim()))
        .filter(|(_, line)| !line.is_empty())
        .map(|(number, line)| match line.split_once('\t') {
            None => Ok((line, weight)),
            Some((phrase, own)) => match own.trim().parse() {
                Ok(own) => Ok((phrase, own)),
                Err(_) => Err(format!("line {number}: {own:?} is no weight; expected a number, such as 0.5")),
            },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_hot_words() {
        let text = "\u{feff}new york\n# cities\n\n  Oslo\t1.5 # north\nhölla 日本\r\n";
        assert_eq!(phrases(text, 0.5).unwrap(), [("new york", 0.5), ("Oslo", 1.5), ("hölla 日本", 0.5)]);
        assert!(phrases("a\nb\tc", 0.5).unwrap_err().contains("line 2"));
        assert!(phrases("", 0.5).unwrap().is_empty());
    }
}
