//! Ctrl-C: the first asks the work to stop, the second stops the program.

use crate::failure::Exit;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
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

    /// `input`, which the first Ctrl-C ends, also while it is waited for.
    pub fn ends(&self, input: impl Read + Send + 'static) -> Ends {
        Ends { pieces: pump(input), piece: Vec::new(), at: 0, flag: self.0.flag.clone() }
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

/// Bytes that are read at once of an input that Ctrl-C ends, and how many such pieces wait at most.
const PIECE: usize = 1 << 16;
const PIECES: usize = 4;

/// What comes of an input that a thread of its own waits for: nothing can end a read but the end of the program.
fn pump(mut input: impl Read + Send + 'static) -> Receiver<io::Result<Vec<u8>>> {
    let (sender, pieces) = sync_channel(PIECES);
    std::thread::spawn(move || {
        let mut buffer = vec![0; PIECE];
        loop {
            let piece = match input.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => Ok(buffer[..count].to_vec()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => Err(e),
            };
            let over = piece.is_err();
            if sender.send(piece).is_err() || over {
                return;
            }
        }
    });
    pieces
}

/// A reader that ends with its input, or with the first Ctrl-C.
pub struct Ends {
    pieces: Receiver<io::Result<Vec<u8>>>,
    piece: Vec<u8>,
    at: usize,
    flag: Arc<AtomicBool>,
}

impl Read for Ends {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() {
            if self.flag.load(Ordering::Relaxed) {
                return Ok(0);
            }
            match self.pieces.recv_timeout(LOOK) {
                Ok(piece) => (self.piece, self.at) = (piece?, 0),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(0),
            }
        }
        let count = buffer.len().min(self.piece.len() - self.at);
        buffer[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A microphone: it gives a sample now and then, and never ends.
    struct Microphone(u8);

    impl Read for Microphone {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0 == 3 {
                loop {
                    std::thread::park();
                }
            }
            self.0 += 1;
            buffer[0] = self.0;
            Ok(1)
        }
    }

    #[test]
    fn what_never_ends_ends_with_the_first_interrupt() {
        let interrupt = Interrupt::default();
        let mut reader = interrupt.ends(Microphone(0));
        let mut first = [0; 3];
        reader.read_exact(&mut first).unwrap();
        let asks = interrupt.clone();
        let asker = std::thread::spawn(move || asks.flag().store(true, Ordering::Relaxed));
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        asker.join().unwrap();
        assert_eq!((first, rest.len()), ([1, 2, 3], 0));
    }

    #[test]
    fn what_ends_or_fails_does_so_with_all_it_gave() {
        struct Faulty(usize);
        impl Read for Faulty {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0 += 1;
                if self.0 > 5 {
                    return Err(io::Error::other("unplugged"));
                }
                buffer[..9].fill(7);
                Ok(9)
            }
        }
        let interrupt = Interrupt::default();
        let mut all = Vec::new();
        interrupt.ends(io::Cursor::new(vec![5; 200_000])).read_to_end(&mut all).unwrap();
        assert_eq!(all, vec![5; 200_000]);
        all.clear();
        let error = interrupt.ends(Faulty(0)).read_to_end(&mut all).unwrap_err();
        assert_eq!((all.len(), error.to_string().as_str()), (45, "unplugged"));
    }
}
