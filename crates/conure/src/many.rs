//! Many files: read ahead a little, recognised in batches of like length, told one by one.

use crate::audio::{AudioOptions, AudioSource, Recording, read};
use crate::error::Error;
use crate::model::SpeechModel;
use conure_audio::decode::open;
use conure_speech::result::Transcript;
use conure_speech::{SpeechError, TranscribeOptions, shift};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Files whose lengths are looked at together: results come in another order than the files by fewer than this.
const WINDOW: usize = 256;
/// Most clips of a batch: enough for the rows of the decoder's products to share the reading of its weights (`conure bench step
/// --batch` says what that gains), few enough for a stop to come soon.
const CLIPS: usize = 16;
/// Most seconds that a batch pads its clips to, all together. Three batches are in memory: one at work, one waiting, one
/// being read; at 16 kHz that is 58 MB.
const SECONDS: f64 = 300.0;
/// Bytes of a second of audio where no header tells the length, as of MP3 at 128 kbit/s. A wrong length costs padding only.
const BYTES_PER_SECOND: f64 = 16_000.0;

/// A file, or a part of one.
#[derive(Clone, Debug, Default)]
pub struct FileClip {
    /// The file: one that can be opened more than once, so no pipe.
    pub path: PathBuf,
    /// How it is read.
    pub audio: AudioOptions,
}

/// What [`SpeechModel::transcribe_files`] tells.
#[derive(Debug)]
pub enum FilesEvent {
    /// These files are at work now. Progress that the options ask for is that of these together.
    Begun(Vec<usize>),
    /// A file is done, or failed.
    Done(usize, Box<Result<Transcript, Error>>),
}

/// Files that are recognised together.
type Batch = Vec<usize>;
/// What was read of them; `None`: one that is recognised by itself, since it is long or has a speaker on each channel.
type Read = Vec<(usize, Result<Option<Recording>, Error>)>;

impl SpeechModel {
    /// Transcribes files, numbered from 0, and tells of each as soon as it is done; one that fails does not stop the others.
    ///
    /// Files are taken in windows of 256, and in a window in batches of like length, so that results come in nearly the order
    /// of the files; text and times of a file are the same as alone. Reading goes on while the model works, a batch ahead:
    /// memory does not grow with the number of files. `told` ends the work with [`ControlFlow::Break`].
    ///
    /// # Errors
    /// What no file can be transcribed with (a decoder or language that the model has not), and cancellation. What is wrong
    /// with a file is told.
    pub fn transcribe_files(
        &self,
        files: &[FileClip],
        options: &TranscribeOptions,
        mut told: impl FnMut(FilesEvent) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.recogniser().head(options.recognise.decoder)?;
        self.recogniser().language(&options.recognise)?;
        let (sender, receiver) = sync_channel(1);
        std::thread::scope(|scope| {
            scope.spawn(|| self.read_ahead(files, sender));
            // The receiver ends with this function, and then the reader does.
            self.recognise_read(files, receiver, options, &mut told)
        })
    }

    /// Reads all files, batch by batch, until nobody takes them any more.
    fn read_ahead(&self, files: &[FileClip], sender: SyncSender<Read>) {
        for first in (0..files.len()).step_by(WINDOW) {
            let window = first..(first + WINDOW).min(files.len());
            let length = |i: usize| contained(|| Ok(length(&files[i]))).unwrap_or(0.0);
            let lengths: Vec<f64> = window.map(length).collect();
            for batch in batches(first, &lengths) {
                let short = |i: usize| lengths[i - first] <= SECONDS && !files[i].audio.speakers;
                let read = |i: usize| {
                    (i, if short(i) { contained(|| self.read_short(&files[i])) } else { Ok(None) })
                };
                if sender.send(batch.into_iter().map(read).collect()).is_err() {
                    return;
                }
            }
        }
    }

    /// The recording of a file, unless it turns out longer than a batch may be.
    fn read_short(&self, file: &FileClip) -> Result<Option<Recording>, Error> {
        let most = SECONDS + 1.0;
        let audio = AudioOptions {
            duration: Some(file.audio.duration.map_or(most, |d| d.min(most))),
            ..file.audio.clone()
        };
        let recording = read(AudioSource::path(&file.path), self.sample_rate(), &audio)?;
        Ok((recording.seconds() <= SECONDS).then_some(recording))
    }

    fn recognise_read(
        &self,
        files: &[FileClip],
        batches: Receiver<Read>,
        options: &TranscribeOptions,
        told: &mut dyn FnMut(FilesEvent) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        for batch in batches {
            if told(FilesEvent::Begun(batch.iter().map(|(i, _)| *i).collect())).is_break() {
                return Ok(());
            }
            let mut short = Vec::new();
            for (i, read) in batch {
                let result = match read {
                    Ok(Some(recording)) => {
                        short.push((i, recording));
                        continue;
                    }
                    Ok(None) => contained(|| {
                        self.transcribe_file(AudioSource::path(&files[i].path), &files[i].audio, options)
                    }),
                    Err(error) => Err(error),
                };
                if done(i, result, told)?.is_break() {
                    return Ok(());
                }
            }
            for (i, result) in self.recognise_short(short, options) {
                if done(i, result, told)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Transcribes recordings together, and each by itself if that fails: the fault may be one's alone.
    fn recognise_short(
        &self,
        batch: Vec<(usize, Recording)>,
        options: &TranscribeOptions,
    ) -> Vec<(usize, Result<Transcript, Error>)> {
        let clips: Vec<&[f32]> = batch.iter().map(|(_, r)| r.samples.as_slice()).collect();
        let together = contained(|| Ok(self.recogniser().transcribe_batch(&clips, options)?));
        match together {
            Ok(transcripts) => {
                batch.iter().zip(transcripts).map(|((i, r), t)| (*i, Ok(placed(t, r)))).collect()
            }
            Err(error) if batch.len() == 1 => batch.into_iter().map(|(i, _)| i).zip([Err(error)]).collect(),
            Err(_) => batch
                .iter()
                .map(|(i, recording)| (*i, contained(|| self.transcribe_recording(recording, options))))
                .collect(),
        }
    }
}

/// Tells of a file. A cancellation is not the fault of the file.
fn done(
    index: usize,
    result: Result<Transcript, Error>,
    told: &mut dyn FnMut(FilesEvent) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, Error> {
    match result {
        Err(error) if error.is_cancelled() => Err(SpeechError::Cancelled.into()),
        result => Ok(told(FilesEvent::Done(index, Box::new(result)))),
    }
}

/// The transcript with the times of the file, and what its reader had to say.
pub(crate) fn placed(mut transcript: Transcript, recording: &Recording) -> Transcript {
    shift(&mut transcript, recording.start);
    transcript.warnings.extend(recording.warnings.iter().map(ToString::to_string));
    transcript
}

/// `work`, whose panic, which would be a fault of this library, is the failure of one file.
fn contained<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Error::Fault))
}

/// Seconds of a clip, as far as that can be told without decoding it.
fn length(file: &FileClip) -> f64 {
    let audio = &file.audio;
    let whole = open(AudioSource::path(&file.path), &audio.decode)
        .ok()
        .and_then(|stream| stream.expected_seconds())
        .filter(|seconds| seconds.is_finite())
        .unwrap_or_else(|| guessed(&file.path));
    let rest = (whole - audio.start).max(0.0);
    audio.duration.map_or(rest, |d| rest.min(d))
}

fn guessed(path: &Path) -> f64 {
    std::fs::metadata(path).map_or(0.0, |m| m.len() as f64 / BYTES_PER_SECOND)
}

/// Clips numbered from `first` on, of these lengths in seconds, in batches: shorter ones first, of like length together. One
/// that is longer than a batch may be is a batch of its own.
fn batches(first: usize, lengths: &[f64]) -> Vec<Batch> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by(|&a, &b| lengths[a].total_cmp(&lengths[b]));
    let mut batches: Vec<Batch> = Vec::new();
    for i in order {
        match batches.last_mut() {
            Some(batch) if batch.len() < CLIPS && (batch.len() + 1) as f64 * lengths[i] <= SECONDS => {
                batch.push(first + i);
            }
            _ => batches.push(vec![first + i]),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_of_like_length_and_bounded() {
        let lengths = [5.0, 400.0, 3.0, 200.0, 4.0, 0.0, 120.0, 130.0];
        assert_eq!(batches(10, &lengths), [vec![15, 12, 14, 10], vec![16, 17], vec![13], vec![11]]);
        let many = batches(0, &vec![1.0; 40]);
        assert_eq!(many.iter().map(Vec::len).collect::<Vec<_>>(), [16, 16, 8]);
        assert!(batches(0, &[]).is_empty());
    }
}
