//! Recordings with a speaker on each channel, such as telephone calls.

use crate::audio::{AudioOptions, AudioSource, Mix};
use crate::error::Error;
use crate::model::SpeechModel;
use conure_audio::decode::open;
use conure_speech::TranscribeOptions;
use conure_speech::result::{Segment, Transcript};

impl SpeechModel {
    /// Transcribes each channel by itself; the segments of all are put in the order of their starts, each with its channel as
    /// the speaker.
    pub(crate) fn transcribe_speakers(
        &self,
        source: &AudioSource,
        audio: &AudioOptions,
        options: &TranscribeOptions,
    ) -> Result<Transcript, Error> {
        let again = || {
            let once = || {
                Error::Samples(format!(
                    "{}: to tell speakers apart by channel it is read once for each of them, and a \
                pipe can be read only once; write it to a file first",
                    source.name()
                ))
            };
            source.again().ok_or_else(once)
        };
        let channels = open(again()?, &audio.decode)?.layout().channels().max(1);
        let mut all = Vec::with_capacity(channels);
        for channel in 0..channels {
            let audio = AudioOptions { mix: Mix::Channel(channel), speakers: false, ..audio.clone() };
            all.push(self.transcribe_file(again()?, &audio, options)?);
        }
        Ok(merged(all))
    }
}

/// One transcript of those of each channel.
fn merged(channels: Vec<Transcript>) -> Transcript {
    let mut all = Transcript::default();
    for (speaker, mut transcript) in channels.into_iter().enumerate() {
        let segments = std::mem::take(&mut transcript.segments);
        let warnings = std::mem::take(&mut transcript.warnings);
        let tokens = transcript.tokens.take();
        if speaker == 0 {
            all = Transcript { alternatives: Vec::new(), ..transcript };
        }
        all.segments.extend(segments.into_iter().map(|s| Segment { speaker: Some(speaker), ..s }));
        all.warnings.extend(warnings.into_iter().filter(|w| !all.warnings.contains(w)).collect::<Vec<_>>());
        if let Some(tokens) = tokens {
            all.tokens.get_or_insert_default().extend(tokens);
        }
    }
    // Stable: of two that begin together, the first channel's comes first.
    all.segments.sort_by(|a, b| a.start.total_cmp(&b.start));
    for (id, segment) in all.segments.iter_mut().enumerate() {
        segment.id = id;
    }
    all.text = all.segments.iter().map(|s| s.text.as_str()).collect::<Vec<_>>().join(" ");
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(list: &[(f64, f64, &str)]) -> Transcript {
        let segment = |&(start, end, text): &(f64, f64, &str)| Segment {
            start,
            end,
            text: text.into(),
            ..Segment::default()
        };
        Transcript {
            duration: 10.0,
            model: "m".into(),
            segments: list.iter().map(segment).collect(),
            warnings: vec!["cut".into()],
            ..Transcript::default()
        }
    }

    #[test]
    fn segments_of_all_are_in_order() {
        let merged = merged(vec![
            channel(&[(0.0, 1.0, "hello"), (4.0, 5.0, "fine")]),
            channel(&[(1.5, 3.0, "how are you"), (4.0, 4.5, "well")]),
            channel(&[]),
        ]);
        assert_eq!(merged.text, "hello how are you fine well");
        let who: Vec<_> = merged.segments.iter().map(|s| (s.id, s.speaker)).collect();
        assert_eq!(who, [(0, Some(0)), (1, Some(1)), (2, Some(0)), (3, Some(1))]);
        assert_eq!((merged.duration, merged.model.as_str(), merged.warnings.len()), (10.0, "m", 1));
    }
}
