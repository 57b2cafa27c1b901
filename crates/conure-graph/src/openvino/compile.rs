//! Making a piece ready: from the cache of compiled models, or written, compiled, tested and kept for the next start.
//!
//! ```text
//!   outline ─▶ key ─▶ in the cache? ──yes──▶ import ─────────────────────────────┐
//!                          │ no, or damaged: a notice                            ├─▶ ready
//!                          └─▶ write with weights ─▶ compile ─▶ self-test ─▶ keep ┘
//!                                                                  └─▶ wrong: the next more exact precision
//! ```
//!
//! A cache that fails costs time, never a result: whatever is wrong with it is a line of notice.

use super::cache::{Files, Kept, PART, Place};
use super::caches::Caches;
use super::lower::{self, Lowered};
use super::options::OpenVinoOptions;
use super::self_test::{Verdict, self_test};
use super::{Models, OpenVino, OpenVinoPiece, short};
use crate::backend::Compiled;
use crate::graph::Graph;
use conure_device::map::MappedFile;
use conure_kernels::Cpu;
use conure_tensor::Bindings;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A model that was made in one precision.
pub(super) enum Made<T> {
    Good(T),
    /// It does not compute what it should; how far off it is.
    Wrong(String),
}

/// Makes a model in the precision asked for, or, if the device gets that wrong, in the next more exact one.
pub(super) fn safest<T>(
    options: &OpenVinoOptions,
    mut make: impl FnMut(&OpenVinoOptions) -> Result<Made<T>, String>,
) -> Result<T, String> {
    let mut options = options.clone();
    loop {
        let what = match make(&options)? {
            Made::Good(made) => return Ok(made),
            Made::Wrong(what) => what,
        };
        let Some(safer) = options.precision.safer() else {
            return Err(format!(
                "the device computes something else than the CPU: {what}; use the CPU device, or set \
                 CONURE_OPENVINO_SELF_TEST=0 to run it all the same"
            ));
        };
        options.notices.tell(&format!(
            "precision {} gives wrong results on this device ({what}); {} is used instead",
            options.precision.name(),
            safer.name()
        ));
        options.precision = safer;
    }
}

impl OpenVino {
    /// The piece in the precision of `options`, from the cache or compiled.
    pub(super) fn compile_for(
        &self,
        piece: &Graph,
        options: &OpenVinoOptions,
        fixed: Option<&Bindings>,
    ) -> Result<Made<OpenVinoPiece>, String> {
        let Some(store) = &options.cache else { return self.compile_anew(piece, options, fixed, None) };
        let (lowered, outline) = lower::outline(piece, options, fixed).map_err(|e| e.to_string())?;
        let circumstances = self.circumstances(piece, options);
        let keeps = !lowered.kept.is_empty();
        let place = Place::new(store, (&outline, keeps), (&piece.weights, &lowered.weights), &circumstances);
        match place.load() {
            Kept::Nothing => {}
            Kept::Wrong(what) if options.self_test => return Ok(Made::Wrong(what)),
            Kept::Wrong(_) => {}
            Kept::Damaged(why) => self.rebuilds(options, &why),
            Kept::Model(files, tested) => match self.import(piece, options, lowered, files) {
                Ok(made) => {
                    self.counts.cached.fetch_add(1, Ordering::Relaxed);
                    if options.self_test && !tested {
                        return Ok(match judge(&made, fixed, Some(&place)) {
                            Ok(_) => Made::Good(made),
                            Err(what) => Made::Wrong(what),
                        });
                    }
                    return Ok(Made::Good(made));
                }
                Err(why) => {
                    place.remove();
                    self.rebuilds(options, &why);
                }
            },
        }
        self.compile_anew(piece, options, fixed, Some(&place))
    }

    fn rebuilds(&self, options: &OpenVinoOptions, why: &str) {
        options
            .notices
            .tell(&format!("a compiled model in the cache cannot be used and is made anew: {why}"));
    }

    /// All that a compiled model depends on besides the graph and its weights.
    fn circumstances(&self, piece: &Graph, options: &OpenVinoOptions) -> Vec<(String, String)> {
        let mut all = vec![
            ("conure".into(), env!("CARGO_PKG_VERSION").into()),
            ("openvino".into(), self.runtime.version().into()),
            ("device".into(), self.device.clone()),
            ("identity".into(), self.identity.clone()),
            ("precision".into(), options.precision.name().into()),
        ];
        all.extend(self.properties(piece, options));
        all
    }

    fn properties(&self, piece: &Graph, options: &OpenVinoOptions) -> Vec<(String, String)> {
        options.properties(&self.device, Caches::of(piece).map(|caches| caches.dtype))
    }

    /// A piece out of a compiled model that was kept.
    fn import(
        &self,
        piece: &Graph,
        options: &OpenVinoOptions,
        lowered: Lowered,
        files: Files,
    ) -> Result<OpenVinoPiece, String> {
        let properties = self.properties(piece, options);
        let import = |file: Arc<MappedFile>| {
            self.runtime.import(file, &self.device, &properties).map(Arc::new).map_err(|e| e.to_string())
        };
        let models =
            Models { main: import(files.main.clone())?, kept: files.kept.clone().map(import).transpose()? };
        let made = self.piece(piece, options, lowered, models);
        // A model with other inputs or outputs shows here.
        let cpu = Arc::new(Cpu::detect(Some(1)).map_err(|e| e.to_string())?);
        made.start(&cpu).map_err(|e| e.to_string())?;
        if options.releases_weights() {
            files.kept.iter().chain([&files.main]).for_each(|file| file.release(0..file.len()));
            made.lowered.weights.iter().for_each(|&index| piece.weights.release(index));
        }
        Ok(made)
    }

    fn compile_anew(
        &self,
        piece: &Graph,
        options: &OpenVinoOptions,
        fixed: Option<&Bindings>,
        place: Option<&Place<'_>>,
    ) -> Result<Made<OpenVinoPiece>, String> {
        let (lowered, texts, blob) = lower::lower(piece, options, fixed).map_err(|e| e.to_string())?;
        let (properties, blob) = (self.properties(piece, options), Arc::new(blob));
        let compile = |text: &String| {
            options.dump(text);
            let model = self.runtime.compile(text, blob.clone(), &self.device, &properties);
            model.map(Arc::new).map_err(|e| e.to_string())
        };
        let models =
            Models { main: compile(&texts.main)?, kept: texts.kept.as_ref().map(compile).transpose()? };
        self.counts.compiled.fetch_add(1, Ordering::Relaxed);
        let made = self.piece(piece, options, lowered, models);
        let verdict = match options.self_test.then(|| judge(&made, fixed, place)).transpose() {
            Ok(verdict) => verdict,
            Err(what) => return Ok(Made::Wrong(what)),
        };
        let kept = place.is_some_and(|place| self.keep(&made, piece, options, place, verdict));
        if options.releases_weights() {
            made.lowered.release(&piece.weights);
            // What was re-laid lies in memory that no file stands behind. The same model out of the cache has it in a file.
            if let (true, true, Some(place)) = (made.lowered.relaid, kept, place)
                && let Kept::Model(files, _) = place.load()
                && let Ok((lowered, _)) = lower::outline(piece, options, fixed)
                && let Ok(lean) = self.import(piece, options, lowered, files)
            {
                return Ok(Made::Good(lean));
            }
        }
        Ok(Made::Good(made))
    }

    /// Keeps a model for the next start, if that can be done.
    fn keep(
        &self,
        made: &OpenVinoPiece,
        piece: &Graph,
        options: &OpenVinoOptions,
        place: &Place<'_>,
        verdict: Option<String>,
    ) -> bool {
        let about = self.about(piece, options);
        let export = |kept: bool, path: &std::path::Path| match (&made.models.kept, kept) {
            (Some(model), true) => model.export(path).map_err(|e| e.to_string()),
            _ => made.models.main.export(path).map_err(|e| e.to_string()),
        };
        let kept = place.save(about, verdict, export);
        if let Err(why) = &kept {
            options.notices.tell_once(
                "not kept",
                &format!("compiled models, or not all of them, are not kept for the next start: {why}"),
            );
        }
        kept.is_ok()
    }

    fn piece(
        &self,
        piece: &Graph,
        options: &OpenVinoOptions,
        lowered: Lowered,
        models: Models,
    ) -> OpenVinoPiece {
        OpenVinoPiece {
            models,
            lowered: Arc::new(lowered),
            graph: piece.clone(),
            device: self.info.name.clone(),
            options: options.clone(),
        }
    }

    /// What a list of the cache says of the model.
    fn about(&self, piece: &Graph, options: &OpenVinoOptions) -> Vec<(String, String)> {
        // Nodes between those of a model's blocks have no name.
        let first = piece.nodes.iter().map(|n| n.path.as_str()).find(|path| !path.is_empty());
        let from = first.map_or(String::new(), |first| format!(" from {first}"));
        vec![
            ("model".into(), piece.weights.origin().to_owned()),
            (PART.into(), format!("{} nodes{from}", piece.nodes.len())),
            ("device".into(), self.info.name.clone()),
            ("precision".into(), options.precision.name().into()),
            ("openvino".into(), short(self.runtime.version()).into()),
        ]
    }
}

/// Holds a model to the CPU device: what is to be remembered of that, or what is wrong.
fn judge(
    made: &OpenVinoPiece,
    fixed: Option<&Bindings>,
    place: Option<&Place<'_>>,
) -> Result<String, String> {
    match self_test(&made.graph, &made.lowered, made, fixed, made.options.precision) {
        Verdict::Passed => Ok("passed".into()),
        Verdict::Untested(why) => Ok(format!("not possible: {why}")),
        Verdict::Wrong(what) => {
            if let Some(place) = place {
                place.save_wrong(&what);
            }
            Err(what)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::{Notices, OpenVinoPrecision};
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn a_precision_that_is_wrong_gives_way_to_a_more_exact_one_and_says_so() {
        type P = OpenVinoPrecision;
        for (asked, wrong, expected) in [
            (P::Bf16, &[][..], Ok(P::Bf16)),
            (P::Bf16, &[P::Bf16], Ok(P::Fast)),
            (P::F16, &[P::F16, P::Fast], Ok(P::Exact)),
            (P::Fast, &[P::Fast], Ok(P::Exact)),
            (P::Bf16, &P::ALL, Err(())),
            (P::Exact, &[P::Exact], Err(())),
        ] {
            let told = Arc::new(Mutex::new(Vec::new()));
            let to = told.clone();
            let notices = Notices::new(move |line| to.lock().unwrap().push(line.to_owned()));
            let options = OpenVinoOptions { precision: asked, notices, ..Default::default() };
            let made = safest(&options, |o| {
                Ok(if wrong.contains(&o.precision) {
                    Made::Wrong("NaN".into())
                } else {
                    Made::Good(o.precision)
                })
            });
            match (&made, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(*found, expected),
                (Err(what), Err(())) => {
                    assert!(what.contains("NaN") && what.contains("SELF_TEST=0"), "{what}")
                }
                _ => panic!("{asked:?} {wrong:?}: {made:?}"),
            }
            let steps = told.lock().unwrap();
            let failed = if expected.is_err() {
                wrong.iter().filter(|p| p.safer().is_some()).count().min(2)
            } else {
                wrong.len()
            };
            assert!(steps.len() == failed && steps.iter().all(|s| s.contains("NaN")), "{steps:?}");
        }
        let options = OpenVinoOptions::default();
        let failed = safest::<()>(&options, |_| Err("no memory".into()));
        assert_eq!(failed.unwrap_err(), "no memory");
    }
}
