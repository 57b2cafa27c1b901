//! From tokens to transcripts: text, words, segments.

use crate::error::SpeechError;
use crate::recogniser::{RecogniseOptions, Recogniser, Recognition};
use crate::result::{Segment, TokenInfo, Transcript, Word};
use crate::timing::{TIGHT_FRAMES, TimingOptions, segments, words};

/// Most samples that a batch pads its clips to, all together: about 5 minutes at 16 kHz. Larger batches gain nothing on
/// a CPU and cost memory.
const BATCH_SAMPLES: usize = 5 * 60 * 16_000;

/// How clips are transcribed.
#[derive(Clone, Debug, Default)]
pub struct TranscribeOptions {
    /// Decoder, language, attention, cancellation.
    pub recognise: RecogniseOptions,
    /// Whether the transcript lists the tokens.
    pub tokens: bool,
    /// Whether words end where their last token is spoken rather than where NeMo's rules let it end, which may be
    /// after a pause.
    pub tight_words: bool,
    /// Silence in seconds between two words that ends a segment; `None`: only punctuation does.
    pub segment_gap: Option<f64>,
}

impl Recogniser {
    /// Transcribes a clip: mono samples in -1 ..= 1 at [`Recogniser::sample_rate`].
    ///
    /// # Errors
    /// As [`Recogniser::recognise`].
    pub fn transcribe(
        &self,
        samples: &[f32],
        options: &TranscribeOptions,
    ) -> Result<Transcript, SpeechError> {
        let recognition = self.recognise(samples, &options.recognise)?;
        self.transcript(&recognition, samples.len(), options)
    }

    /// Transcribes clips in batches of clips of like length; the results are in the order of the clips and the same as
    /// alone.
    ///
    /// # Errors
    /// As [`Recogniser::recognise`].
    pub fn transcribe_batch(
        &self,
        clips: &[&[f32]],
        options: &TranscribeOptions,
    ) -> Result<Vec<Transcript>, SpeechError> {
        let mut order: Vec<usize> = (0..clips.len()).collect();
        order.sort_by_key(|&i| clips[i].len());
        let mut results: Vec<Option<Transcript>> = vec![None; clips.len()];
        let mut rest = order.as_slice();
        while !rest.is_empty() {
            // Sorted by length: the last of a batch is its longest.
            let fits = |n: &usize| n * clips[rest[n - 1]].len() <= BATCH_SAMPLES;
            let count = (1..=rest.len()).take_while(fits).last().unwrap_or(1);
            let (batch, later) = rest.split_at(count);
            let group: Vec<&[f32]> = batch.iter().map(|&i| clips[i]).collect();
            let recognitions = self.recognise_batch(&group, &options.recognise)?;
            for (&i, recognition) in batch.iter().zip(&recognitions) {
                results[i] = Some(self.transcript(recognition, clips[i].len(), options)?);
            }
            rest = later;
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// The transcript of what the decoder made of a clip of `samples` samples.
    fn transcript(
        &self,
        recognition: &Recognition,
        samples: usize,
        options: &TranscribeOptions,
    ) -> Result<Transcript, SpeechError> {
        let duration = samples as f64 / f64::from(self.sample_rate());
        let timing = TimingOptions {
            frame_seconds: self.frame_seconds(),
            // Times count from the silence that a short clip was padded with; what lies in it is cut below.
            duration: duration + 2.0 * recognition.padding,
            tight_frames: options.tight_words.then_some(TIGHT_FRAMES),
            segment_gap: options.segment_gap,
        };
        let mut spoken = words(&recognition.tokens, recognition.head, self.vocabulary(), &timing);
        for word in &mut spoken {
            move_before(word, recognition.padding, duration);
        }
        let ids: Vec<u32> = recognition.tokens.iter().map(|t| t.id).collect();
        Ok(Transcript {
            text: self.vocabulary().decode(&ids),
            language: self.language(&options.recognise)?,
            start: 0.0,
            duration,
            model: self.name().to_owned(),
            device: "cpu".to_owned(),
            decoder: recognition.head.name().to_owned(),
            segments: segments(spoken, &timing),
            tokens: options.tokens.then(|| self.token_list(recognition)),
            warnings: Vec::new(),
        })
    }

    fn token_list(&self, recognition: &Recognition) -> Vec<TokenInfo> {
        recognition
            .tokens
            .iter()
            .map(|t| TokenInfo {
                id: t.id,
                piece: self.vocabulary().piece(t.id).unwrap_or_default().to_owned(),
                frame: t.frame,
                duration: t.duration,
                confidence: t.confidence,
            })
            .collect()
    }
}

/// Moves a word by the silence before the clip, and into the clip.
fn move_before(word: &mut Word, padding: f64, duration: f64) {
    word.start = (word.start - padding).clamp(0.0, duration);
    word.end = (word.end - padding).clamp(word.start, duration);
}

/// Moves a transcript's times by `offset` seconds: the place of the clip in a longer recording.
pub fn shift(transcript: &mut Transcript, offset: f64) {
    let words = |s: &mut Segment| {
        s.start += offset;
        s.end += offset;
        for word in &mut s.words {
            word.start += offset;
            word.end += offset;
        }
    };
    transcript.segments.iter_mut().for_each(words);
    transcript.start += offset;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{FormatOptions, OutputFormat, write};

    /// Subtitles of a part of a file have the times of the file.
    #[test]
    fn a_shifted_transcript_keeps_its_cues() {
        let word = |word: &str, start: f64, end: f64| Word { word: word.into(), start, end, confidence: 1.0 };
        let words = vec![word("one", 0.25, 0.5), word("two", 1.0, 1.75)];
        let segment = Segment { id: 0, start: 0.25, end: 1.75, text: "one two".into(), words };
        let mut t = Transcript { duration: 2.0, segments: vec![segment], ..Default::default() };
        shift(&mut t, 5.0);
        let mut out = Vec::new();
        write(&t, OutputFormat::Srt, &FormatOptions::default(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("00:00:05,250 --> 00:00:06,750"), "{text}");
        assert!(serde_json::to_string(&t).unwrap().contains("\"start\":5.0,\"duration\":2.0"));
    }
}
