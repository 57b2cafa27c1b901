//! How far a transcription is: told to the caller, at most some times a second.

use conure_graph::{Observer, StepDone};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Least time between two calls, except the last one.
const INTERVAL: Duration = Duration::from_millis(100);

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The recording is read, decoded and resampled.
    Reading,
    /// Log-mel features are computed.
    Features,
    /// The encoder runs.
    Encoding,
    /// Tokens are decoded.
    Decoding,
}

impl Stage {
    /// Its name: `reading`, `features`, `encoding`, `decoding`.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Reading => "reading",
            Stage::Features => "features",
            Stage::Encoding => "encoding",
            Stage::Decoding => "decoding",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How far a transcription is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// What is being done.
    pub stage: Stage,
    /// While reading: seconds of audio that are read. After that: `fraction` of [`Progress::total`], or seconds that are
    /// transcribed.
    pub seconds: f64,
    /// Seconds of audio in all: the clip, or all clips of a batch; of a long file what its header says, until its end is
    /// reached. `None` while reading, since most files say how long they are only at their end, and for a long recording of
    /// which nothing says it.
    pub total: Option<f64>,
    /// Part of the work that is done: 0 while reading and where `total` is not known, then never less than before, and 1
    /// exactly once, at the end.
    pub fraction: f64,
}

/// A function that is told how far a transcription is: about ten times a second at most, on the thread that
/// transcribes. To stop the work, it sets [`RecogniseOptions::cancel`](crate::RecogniseOptions::cancel).
#[derive(Clone)]
pub struct OnProgress(Arc<dyn Fn(Progress) + Send + Sync>);

impl OnProgress {
    /// Tells `call`.
    pub fn new(call: impl Fn(Progress) + Send + Sync + 'static) -> OnProgress {
        OnProgress(Arc::new(call))
    }

    /// Reports on the reading of one recording.
    pub fn reading(&self) -> Reporter {
        Reporter::new(self, Stage::Reading, None)
    }

    /// Reports on the recognition of a recording whose length is not known: parts are those of [`Reporter::ENDLESS`]
    /// seconds.
    pub(crate) fn recognising_on(&self) -> Reporter {
        Reporter::new(self, Stage::Features, None)
    }

    /// Reports on the recognition of `seconds` of audio.
    pub(crate) fn recognising(&self, seconds: f64) -> Reporter {
        Reporter::new(self, Stage::Features, Some(seconds))
    }
}

impl fmt::Debug for OnProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnProgress")
    }
}

/// Tells an [`OnProgress`], not too often and never backwards.
#[derive(Debug)]
pub struct Reporter {
    call: OnProgress,
    total: Option<f64>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    told: Option<Instant>,
    stage: Stage,
    fraction: f64,
}

impl Reporter {
    /// Seconds that the parts of a job count from whose length is not known: more than any recording has.
    pub(crate) const ENDLESS: f64 = 1e9;

    fn new(call: &OnProgress, stage: Stage, total: Option<f64>) -> Reporter {
        let state = Mutex::new(State { told: None, stage, fraction: 0.0 });
        Reporter { call: call.clone(), total, state }
    }

    /// So many seconds are read.
    pub fn read(&self, seconds: f64) {
        self.tell(Stage::Reading, 0.0, seconds);
    }

    /// `stage` is at `fraction` of all work.
    fn at(&self, stage: Stage, fraction: f64) {
        // The end is told by `finish` alone: once, and when it is true.
        let fraction = fraction.clamp(0.0, 0.9999);
        self.tell(stage, fraction, 0.0);
    }

    fn tell(&self, stage: Stage, fraction: f64, seconds: f64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.stage = stage;
        state.fraction = state.fraction.max(fraction);
        if state.told.is_some_and(|t| t.elapsed() < INTERVAL) {
            return;
        }
        state.told = Some(Instant::now());
        let fraction = state.fraction;
        // A caller that asks anything of this library from its function must not find it locked.
        drop(state);
        let (seconds, fraction) = match self.total {
            Some(total) => (fraction * total, fraction),
            None if stage == Stage::Reading => (seconds, 0.0),
            None => (fraction * Reporter::ENDLESS, 0.0),
        };
        (self.call.0)(Progress { stage, seconds, total: self.total, fraction });
    }

    /// All is done, and was so many seconds long.
    pub(crate) fn finish_at(&self, seconds: f64) {
        let stage = self.state.lock().unwrap_or_else(PoisonError::into_inner).stage;
        (self.call.0)(Progress { stage, seconds, total: Some(seconds), fraction: 1.0 });
    }

    /// All is done.
    pub(crate) fn finish(&self) {
        let stage = self.state.lock().unwrap_or_else(PoisonError::into_inner).stage;
        let seconds = self.total.unwrap_or(0.0);
        (self.call.0)(Progress { stage, seconds, total: self.total, fraction: 1.0 });
    }
}

/// Parts of the time that the stages take. Measured on a minute of noise with the 110M geometry in f32 on two cores: TDT
/// 8 to 12 %, CTC under 1 %, features about 1 %. The first run of a model, which also packs its weights, begins slower.
/// Wrong shares make a bar go unevenly, no more.
const FEATURES: f64 = 0.01;
const CTC: f64 = 0.01;
const TRANSDUCER: f64 = 0.10;

/// The part of a job that one batch is, on its way through the stages.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    reporter: Arc<Reporter>,
    /// Where in the job the batch begins, and how much of it it is.
    begin: f64,
    share: f64,
    decoding: f64,
}

impl Part {
    /// A part that begins at `begin` of the job and is `share` of it.
    pub(crate) fn new(reporter: &Arc<Reporter>, begin: f64, share: f64, ctc: bool) -> Part {
        let decoding = if ctc { CTC } else { TRANSDUCER };
        Part { reporter: reporter.clone(), begin, share, decoding }
    }

    /// Tells that `stage` of this part is at `fraction` of itself.
    pub(crate) fn at(&self, stage: Stage, fraction: f64) {
        let encoding = 1.0 - FEATURES - self.decoding;
        let (before, share) = match stage {
            Stage::Reading | Stage::Features => (0.0, FEATURES),
            Stage::Encoding => (FEATURES, encoding),
            Stage::Decoding => (FEATURES + encoding, self.decoding),
        };
        self.reporter.at(stage, self.begin + self.share * (before + share * fraction.clamp(0.0, 1.0)));
    }
}

/// Who looks at a recognition.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watching<'a> {
    /// For the caller's progress.
    pub part: Option<&'a Part>,
    /// For measurements; it takes the place of the progress in the encoder.
    pub observer: Option<&'a Arc<dyn Observer>>,
}

impl Watching<'_> {
    /// Who is told of the encoder's steps.
    pub(crate) fn encoder(&self) -> Option<Arc<dyn Observer>> {
        self.observer.cloned().or_else(|| self.part.map(|p| Arc::new(p.clone()) as Arc<dyn Observer>))
    }
}

impl Observer for Part {
    fn step(&self, step: &StepDone<'_>) {
        self.at(Stage::Encoding, step.done / step.total.max(1.0));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn recorder() -> (OnProgress, Arc<Mutex<Vec<Progress>>>) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let sink = told.clone();
        (OnProgress::new(move |p| sink.lock().unwrap().push(p)), told)
    }

    #[test]
    fn it_is_told_seldom_never_backwards_and_ends_at_1() {
        let (call, told) = recorder();
        let reporter = Arc::new(call.recognising(10.0));
        let part = Part::new(&reporter, 0.5, 0.5, true);
        for i in 0..10_000 {
            part.at(Stage::Encoding, f64::from(i) / 1e4);
        }
        std::thread::sleep(INTERVAL);
        part.at(Stage::Decoding, 1.0);
        part.at(Stage::Features, 0.0);
        reporter.finish();
        let told = told.lock().unwrap();
        assert!(told.len() < 100, "{}", told.len());
        assert!(told.is_sorted_by(|a, b| a.fraction <= b.fraction), "{told:?}");
        assert!((told[0].fraction - 0.505).abs() < 1e-9 && (told[0].seconds - 5.05).abs() < 1e-9);
        let [.., before, last] = told.as_slice() else { panic!("{told:?}") };
        assert!(before.fraction < 1.0, "{before:?}");
        assert_eq!((last.fraction, last.seconds, last.total), (1.0, 10.0, Some(10.0)));
    }

    #[test]
    fn reading_has_no_end_yet() {
        let (call, told) = recorder();
        call.reading().read(3.5);
        let expected = Progress { stage: Stage::Reading, seconds: 3.5, total: None, fraction: 0.0 };
        assert_eq!(*told.lock().unwrap(), [expected]);
    }
}
