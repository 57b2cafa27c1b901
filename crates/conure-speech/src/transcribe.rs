//! From tokens to transcripts: text, words, segments.

use crate::decode::Hypothesis;
use crate::error::SpeechError;
use crate::long::{SHORTEST_WINDOW, WHOLE_SECONDS};
use crate::options::RecogniseOptions;
use crate::recogniser::{Recogniser, Recognition};
use crate::result::{Alternative, ClipTokens, Segment, Transcript};
use crate::split::Limits;
use crate::timing::{Segmentation, TIGHT_FRAMES, TimingOptions};
use crate::vad::Vad;
use std::sync::Arc;

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
    /// What ends a segment; see [`Segmentation`].
    pub segments: Segmentation,
    /// Most words of a segment.
    pub max_words: Option<usize>,
    /// Most seconds of a segment.
    pub max_duration: Option<f64>,
    /// Seconds of the longest piece that is recognised at once, which bounds memory: longer recordings are heard in windows
    /// that overlap. `None`: recordings of up to [`WHOLE_SECONDS`] at once, longer ones in windows of [`crate::WINDOW_SECONDS`]. 0:
    /// everything at once, however long.
    pub window: Option<f64>,
    /// Leaves out where nobody speaks, as this detector says. `None`: everything is heard, and long recordings are cut in
    /// pauses by level.
    pub vad: Option<Vad>,
}

impl TranscribeOptions {
    /// The longest recording in seconds that is recognised at once; `None`: any.
    pub(crate) fn whole_seconds(&self) -> Result<Option<f64>, SpeechError> {
        match self.window.unwrap_or(WHOLE_SECONDS) {
            0.0 => Ok(None),
            seconds if seconds >= SHORTEST_WINDOW && seconds.is_finite() => Ok(Some(seconds)),
            seconds => Err(SpeechError::Window { seconds }),
        }
    }
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
        if self.is_whole(samples, options)? {
            return self.transcribe_whole(samples, options);
        }
        let mut pieces = samples.chunks(self.sample_rate() as usize);
        let next = |out: &mut Vec<f32>| {
            let piece = pieces.next();
            out.extend_from_slice(piece.unwrap_or_default());
            Ok::<bool, SpeechError>(piece.is_some())
        };
        self.transcribe_pieces(Some(self.seconds(samples)), next, options)
    }

    /// Whether a clip is recognised at once.
    fn is_whole(&self, clip: &[f32], options: &TranscribeOptions) -> Result<bool, SpeechError> {
        let fits = options.whole_seconds()?.is_none_or(|whole| self.seconds(clip) <= whole);
        Ok(fits && options.vad.is_none())
    }

    /// A clip that is recognised at once.
    pub(crate) fn transcribe_whole(
        &self,
        samples: &[f32],
        options: &TranscribeOptions,
    ) -> Result<Transcript, SpeechError> {
        let recognition = self.recognise(samples, &options.recognise)?;
        self.transcript(recognition, samples, options)
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
        let total: f64 = clips.iter().map(|c| self.seconds(c)).sum();
        let reporter = options.recognise.progress.as_ref().map(|p| Arc::new(p.recognising(total)));
        let mut done = 0.0;
        while !rest.is_empty() {
            // Sorted by length: the last of a batch is its longest.
            let fits = |n: &usize| {
                let longest = clips[rest[n - 1]];
                let whole = self.is_whole(longest, options).unwrap_or(false);
                whole && n * longest.len().max(self.sample_rate() as usize) <= BATCH_SAMPLES
            };
            let count = (1..=rest.len()).take_while(fits).last().unwrap_or(1);
            let (batch, later) = rest.split_at(count);
            if let [one] = batch
                && !self.is_whole(clips[*one], options)?
            {
                let quiet = RecogniseOptions { progress: None, ..options.recognise.clone() };
                let alone = TranscribeOptions { recognise: quiet, ..options.clone() };
                results[*one] = Some(self.transcribe(clips[*one], &alone)?);
                done += self.seconds(clips[*one]) / total.max(f64::MIN_POSITIVE);
                rest = later;
                continue;
            }
            let group: Vec<&[f32]> = batch.iter().map(|&i| clips[i]).collect();
            let share = group.iter().map(|c| self.seconds(c)).sum::<f64>() / total.max(f64::MIN_POSITIVE);
            let job = reporter.as_ref().map(|r| (r, done, share));
            let recognitions = self.recognise_part(&group, &options.recognise, job)?;
            done += share;
            for (&i, recognition) in batch.iter().zip(recognitions) {
                results[i] = Some(self.transcript(recognition, clips[i], options)?);
            }
            rest = later;
        }
        if let Some(reporter) = reporter {
            reporter.finish();
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// The transcript of what the decoder made of a clip.
    fn transcript(
        &self,
        mut recognition: Recognition,
        clip: &[f32],
        options: &TranscribeOptions,
    ) -> Result<Transcript, SpeechError> {
        let invented = self.is_invented(&recognition, clip);
        if invented {
            recognition.tokens.clear();
        }
        self.transcript_of(&recognition, self.seconds(clip), invented, options)
    }

    /// Whether what was made of a clip can only be invented.
    pub(crate) fn is_invented(&self, recognition: &Recognition, clip: &[f32]) -> bool {
        !recognition.tokens.is_empty() && only_faint_noise(clip, self.sample_rate())
    }

    /// The transcript of tokens in `duration` seconds of audio, some of which held nothing but noise if `invented`.
    pub(crate) fn transcript_of(
        &self,
        recognition: &Recognition,
        duration: f64,
        invented: bool,
        options: &TranscribeOptions,
    ) -> Result<Transcript, SpeechError> {
        let timing = TimingOptions {
            frame_seconds: self.frame_seconds(),
            tight_frames: options.tight_words.then_some(TIGHT_FRAMES),
            segment_gap: options.segment_gap,
            segments: options.segments,
            limits: Limits::some(options.max_words, options.max_duration),
            ..TimingOptions::new(duration)
        };
        let Recognition { tokens, head, padding, .. } = recognition;
        let clip = ClipTokens { tokens, head: *head, padding: *padding };
        let alternative = |found: &Hypothesis| {
            let clip = ClipTokens { tokens: &found.tokens, ..clip };
            let words = clip.words(self.vocabulary(), &timing);
            Alternative { text: clip.text(self.vocabulary()), score: found.score, words }
        };
        let several = options.recognise.search.n_best > 1 && !invented;
        let alternatives = if several { recognition.alternatives.as_slice() } else { &[] };
        Ok(Transcript {
            alternatives: alternatives.iter().map(alternative).collect(),
            language: self.language(&options.recognise)?,
            model: self.name().to_owned(),
            device: self.device().name().to_owned(),
            warnings: if invented { vec![FAINT_NOISE.to_owned()] } else { Vec::new() },
            ..Transcript::from_tokens(&clip, self.vocabulary(), &timing, options.tokens)
        })
    }
}

/// What is said of a clip whose words were taken for invented.
const FAINT_NOISE: &str = "nothing but faint, steady noise; what the model made of it is left out";

/// Whether a clip of half a second or more is steady to 3 dB and fainter than -50 dB of full scale. Features are normalised,
/// so that a model hears such noise as loud as speech and may invent words; no speech is that steady.
fn only_faint_noise(clip: &[f32], sample_rate: u32) -> bool {
    const FAINT: f64 = 1e-5;
    const STEADY: f64 = 2.0;
    // The mean is taken off: a constant is no sound.
    let mean = clip.iter().map(|&s| f64::from(s)).sum::<f64>() / clip.len().max(1) as f64;
    let frame = (sample_rate as usize / 40).max(1);
    let powers = clip
        .chunks_exact(frame)
        .map(|f| f.iter().map(|&s| (f64::from(s) - mean).powi(2)).sum::<f64>() / frame as f64);
    let (count, sum, most) =
        powers.fold((0usize, 0.0, 0.0f64), |(n, sum, most), p| (n + 1, sum + p, most.max(p)));
    let average = sum / count.max(1) as f64;
    count >= 20 && average < FAINT && most <= STEADY * average
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
    for word in transcript.alternatives.iter_mut().flat_map(|a| &mut a.words) {
        word.start += offset;
        word.end += offset;
    }
    transcript.start += offset;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{FormatOptions, OutputFormat, write};
    use crate::result::Word;

    /// Subtitles of a part of a file have the times of the file.
    #[test]
    fn a_shifted_transcript_keeps_its_cues() {
        let word = |word: &str, start: f64, end: f64| Word { word: word.into(), start, end, confidence: 1.0 };
        let words = vec![word("one", 0.25, 0.5), word("two", 1.0, 1.75)];
        let segment = Segment { start: 0.25, end: 1.75, text: "one two".into(), words, ..Default::default() };
        let mut t = Transcript { duration: 2.0, segments: vec![segment], ..Default::default() };
        shift(&mut t, 5.0);
        let mut out = Vec::new();
        write(&t, OutputFormat::Srt, &FormatOptions::default(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("00:00:05,250 --> 00:00:06,750"), "{text}");
        assert!(serde_json::to_string(&t).unwrap().contains("\"start\":5.0,\"duration\":2.0"));
    }

    #[test]
    fn steady_faint_noise_is_told_from_speech() {
        let mut state = 1u32;
        let mut noise = |level: f32| -> Vec<f32> {
            (0..32_000)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * level
                })
                .collect()
        };
        let bursts: Vec<f32> =
            noise(2e-3).iter().enumerate().map(|(i, s)| s * ((i / 4_000) % 2) as f32).collect();
        for (what, clip, expected) in [
            ("faint noise", noise(1e-3), true),
            ("silence", vec![0.0; 32_000], true),
            ("a constant", vec![0.5; 32_000], true),
            ("louder noise", noise(1e-1), false),
            ("faint bursts, as quiet speech", bursts, false),
            ("too short to tell", noise(1e-3)[..4_000].to_vec(), false),
        ] {
            assert_eq!(only_faint_noise(&clip, 16_000), expected, "{what}");
        }
    }
}
