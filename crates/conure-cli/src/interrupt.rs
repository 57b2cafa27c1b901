//! Ctrl-C: the first asks the work to stop, the second stops the program.

use crate::failure::Exit;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the work may take to notice: some of it cannot look at a flag.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is looked whether the program only waits for input, which nothing but its end can interrupt.
const LOOK: Duration = Duration::from_millis(10);

/// "File size limit exceeded" on Linux and macOS.
#[cfg(any(target_os = "linux", target_os = "macos"))]
const SIGXFSZ: i32 = 25;

/// What has to happen before the program ends: a progress bar must go.
type Farewell = Box<dyn Fn() + Send>;

/// Whether the user wants to stop, shared with the handler of the signal.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<Shared>);

#[derive(Default)]
struct Shared {
    flag: Arc<AtomicBool>,
    /// Whether a read of an input that may never give anything is under way.
    waiting: AtomicBool,
    /// Whether the first Ctrl-C ends the work only, and not the program after it.
    work_only: AtomicBool,
    farewell: Mutex<Option<Farewell>>,
}

impl Interrupt {
    /// Listens for Ctrl-C and for requests to terminate.
    pub fn listen() -> Interrupt {
        let interrupt = Interrupt::default();
        // Writing beyond a limit on the size of files (`ulimit -f`) is to fail like any other, and not to end the program.
        #[cfg(any(target_os = "linux", target_os = "macos"))]
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
        let shared = interrupt.0.clone();
        // Without a handler, Ctrl-C ends the program the system's way, which will do.
        let _ = ctrlc::set_handler(move || {
            if shared.flag.swap(true, Ordering::Relaxed) {
                shared.leave();
            }
            if shared.work_only.load(Ordering::Relaxed) {
                if shared.waiting.load(Ordering::Relaxed) {
                    shared.leave();
                }
                return;
            }
            let shared = shared.clone();
            std::thread::spawn(move || {
                let begun = Instant::now();
                while begun.elapsed() < PATIENCE {
                    std::thread::sleep(LOOK);
                    if shared.waiting.load(Ordering::Relaxed) {
                        break;
                    }
                }
                shared.leave();
            });
        });
        interrupt
    }

    /// A flag that is set once the work shall stop.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.0.flag
    }

    /// Whether the work shall stop.
    pub fn requested(&self) -> bool {
        self.0.flag.load(Ordering::Relaxed)
    }

    /// From now on Ctrl-C ends the work under way and not the program, unless that waits for input; what was asked is
    /// forgotten with [`Interrupt::forget`].
    pub fn ends_work_only(&self) {
        self.0.work_only.store(true, Ordering::Relaxed);
    }

    /// Work may begin anew.
    pub fn forget(&self) {
        self.0.flag.store(false, Ordering::Relaxed);
    }

    /// Calls this before the program ends, unless something else takes its place.
    pub fn before_leaving(&self, farewell: impl Fn() + Send + 'static) {
        *self.0.farewell.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(farewell));
    }

    /// `input`, whose reads Ctrl-C need not wait for.
    pub fn waits<R: Read>(&self, input: R) -> Waits<R> {
        Waits { input, interrupt: self.clone() }
    }
}

impl Shared {
    fn leave(&self) -> ! {
        if let Some(farewell) = self.farewell.lock().unwrap_or_else(PoisonError::into_inner).take() {
            farewell();
        }
        std::process::exit(i32::from(Exit::Interrupted.code()));
    }
}

/// A reader that may block: a pipe or a terminal.
pub struct Waits<R> {
    input: R,
    interrupt: Interrupt,
}

impl<R: Read> Read for Waits<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let waiting = &self.interrupt.0.waiting;
        waiting.store(true, Ordering::Relaxed);
        let read = self.input.read(buffer);
        waiting.store(false, Ordering::Relaxed);
        read
    }
}
