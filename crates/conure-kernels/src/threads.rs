//! A persistent pool of compute threads.
//!
//! A parallel region costs well under a microsecond while the workers are warm (they spin for [`SPIN`] after the last
//! region, then sleep), so that regions of a few microseconds of work pay. Tasks are claimed one by one from an atomic
//! counter: a thread that the system takes away for a while delays one task, not a fixed share of the work.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{KernelError, Result};

/// How long an idle worker spins before it sleeps, and a caller before it sleeps while others finish. By time, not by
/// iterations: a pause instruction takes 5 to 150 cycles depending on the machine.
pub const SPIN: Duration = Duration::from_micros(200);

/// More threads than any machine has.
const MAX_THREADS: usize = 1024;

/// The state word: bit 63 open, bits 62..32 the region's number, bits 31..0 workers inside.
const OPEN: u64 = 1 << 63;
const INSIDE: u64 = (1 << 32) - 1;

/// A value on cache lines of its own (two, because some machines fetch lines in pairs).
#[repr(align(128))]
struct Padded<T>(T);

/// What one region runs. Lives on the caller's stack; workers reach it only between joining and leaving the region.
struct Region<'a> {
    body: &'a (dyn Fn(usize, usize) + Sync),
    tasks: usize,
    /// Workers of this number and above have no part in it.
    limit: usize,
    next: Padded<AtomicUsize>,
    panic: Mutex<Option<String>>,
}

impl Region<'_> {
    /// Claims and runs tasks until none is left.
    fn work(&self, worker: usize) {
        if worker >= self.limit {
            return;
        }
        loop {
            let task = self.next.0.fetch_add(1, Ordering::Relaxed);
            if task >= self.tasks {
                return;
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.body)(task, worker))) {
                // Nobody needs to start another task.
                self.next.0.store(self.tasks, Ordering::Relaxed);
                lock(&self.panic).get_or_insert(panic_message(panic.as_ref()));
            }
        }
    }
}

struct Shared {
    state: Padded<AtomicU64>,
    /// The open region; written before `state` opens it, read by workers that joined it.
    region: UnsafeCell<*const Region<'static>>,
    /// Held by the caller whose region is running.
    busy: Padded<AtomicBool>,
    /// Workers asleep or about to be; a caller asleep is one more.
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
}

// SAFETY: the pointer in `region` is written only by the holder of `busy` while no worker is inside, and read only by
// workers inside (they joined through `state`, whose release-acquire pair orders the write before the read).
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is not tied to a thread.
unsafe impl Send for Shared {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_string())
}

thread_local! {
    /// Whether this thread is inside a region, where a nested one runs inline.
    static INSIDE_REGION: Cell<bool> = const { Cell::new(false) };
}

/// Spins until `ready` or for [`SPIN`]; true if ready.
fn spin_until(ready: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            return false;
        }
    }
}

impl Shared {
    /// Sleeps until `ready`.
    fn sleep_until(&self, ready: impl Fn() -> bool) {
        let mut guard = lock(&self.sleep);
        // Announced before the check: whoever changes the state either sees the announcement and notifies under the
        // mutex, or changed it early enough for this check (both sides are sequentially consistent).
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !ready() {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.sleep));
            self.wake.notify_all();
        }
    }

    /// Joins the open region if it is not `seen` yet; its number.
    fn join(&self, seen: u64) -> Option<u64> {
        let mut state = self.state.0.load(Ordering::SeqCst);
        while state & OPEN != 0 && state & !INSIDE != seen {
            match self.state.0.compare_exchange_weak(state, state + 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(state & !INSIDE),
                Err(now) => state = now,
            }
        }
        None
    }

    fn worker(&self, index: usize) {
        INSIDE_REGION.set(true);
        let mut seen = 0;
        loop {
            if let Some(region) = self.join(seen) {
                seen = region;
                // SAFETY: this worker is counted inside, so the caller has not returned and its region is alive; the
                // pointer was written before the region opened.
                unsafe { (**self.region.get()).work(index) };
                let left = self.state.0.fetch_sub(1, Ordering::SeqCst) - 1;
                if left & OPEN == 0 && left & INSIDE == 0 {
                    self.wake_sleepers();
                }
                continue;
            }
            let news = || {
                let state = self.state.0.load(Ordering::SeqCst);
                (state & OPEN != 0 && state & !INSIDE != seen) || self.stop.load(Ordering::SeqCst)
            };
            if !spin_until(news) {
                self.sleep_until(news);
            }
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    /// Runs `region` with the workers' help. The caller holds `busy`.
    fn run(&self, region: &Region<'_>) {
        // SAFETY: no worker is inside (the last region waited for all to leave) and `busy` keeps other callers out. The
        // lifetime is forgotten, but no worker uses the pointer after this function returned: it waits below.
        unsafe { *self.region.get() = std::ptr::from_ref(region).cast::<Region<'static>>() };
        let number = self.state.0.load(Ordering::Relaxed) & !INSIDE & !OPEN;
        let number = number.wrapping_add(1 << 32) & !OPEN;
        self.state.0.store(number | OPEN, Ordering::SeqCst);
        self.wake_sleepers();
        INSIDE_REGION.set(true);
        region.work(0);
        INSIDE_REGION.set(false);
        // Closed: nobody joins any more. Then wait for those inside.
        let state = self.state.0.fetch_and(!OPEN, Ordering::SeqCst);
        let empty = || self.state.0.load(Ordering::SeqCst) & INSIDE == 0;
        if state & INSIDE != 0 && !spin_until(empty) {
            self.sleep_until(empty);
        }
    }
}

/// The workers of one or several [`Threads`].
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    pub(crate) fn workers(&self) -> usize {
        self.workers.len()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.sleep));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker cannot have panicked: tasks are caught.
            let _ = worker.join();
        }
    }
}

/// A pool of compute threads; clones share it. The thread that calls [`Threads::run`] is one of them.
///
/// Used from several threads at once (several sessions on one pool), the first caller gets the workers and the others
/// run their tasks inline on their own thread until the pool is free again: nobody waits for another's region.
#[derive(Clone)]
pub struct Threads {
    pool: Option<Arc<Pool>>,
    count: usize,
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Threads({})", self.count)
    }
}

impl Threads {
    /// A pool of `count` threads, the caller included: `count - 1` are started now.
    ///
    /// # Errors
    /// [`KernelError::Threads`] if `count` is 0 or over 1024, or the system refuses a thread.
    pub fn new(count: usize) -> Result<Threads> {
        if count == 0 || count > MAX_THREADS {
            let reason = format!("{count} threads asked for; give 1 to {MAX_THREADS}");
            return Err(KernelError::Threads { reason });
        }
        if count == 1 {
            return Ok(Threads::single());
        }
        let shared = Arc::new(Shared {
            state: Padded(AtomicU64::new(0)),
            region: UnsafeCell::new(std::ptr::null()),
            busy: Padded(AtomicBool::new(false)),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let mut pool = Pool { shared: Arc::clone(&shared), workers: Vec::with_capacity(count - 1) };
        for index in 1..count {
            let shared = Arc::clone(&shared);
            let started = std::thread::Builder::new()
                .name(format!("conure-{index}"))
                .spawn(move || shared.worker(index));
            let worker = started.map_err(|e| KernelError::Threads {
                reason: format!("thread {index} of {count} could not be started ({e}); ask for fewer"),
            })?;
            pool.workers.push(worker);
        }
        Ok(Threads { pool: Some(Arc::new(pool)), count })
    }

    /// The workers of `pool`, as far as they make `count` threads with the caller's.
    pub(crate) fn sharing(pool: Arc<Pool>, count: usize) -> Threads {
        let count = count.min(pool.workers() + 1);
        Threads { pool: Some(pool), count }
    }

    pub(crate) fn pool(&self) -> Option<&Arc<Pool>> {
        self.pool.as_ref()
    }

    /// No threads but the caller's.
    pub fn single() -> Threads {
        Threads { pool: None, count: 1 }
    }

    /// As many threads as this process may use: the cores it may run on, or fewer if the container's CPU quota
    /// (cgroup v1 or v2) is lower.
    pub fn default_count() -> usize {
        // The standard library reads affinity and cgroup quotas.
        std::thread::available_parallelism().map_or(1, |n| n.get()).min(MAX_THREADS)
    }

    /// The threads of the pool, the caller included.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Runs `body(task, worker)` for each task in `0..tasks`, in any order and on any of the threads, and returns when
    /// all are done. `worker < count()` is unique among the bodies running at the same moment in this region; the
    /// caller is 0. Inside a body, and while another caller has the workers, everything runs inline on the calling
    /// thread as worker 0.
    ///
    /// # Errors
    /// [`KernelError::TaskPanicked`] if a body panicked; tasks not started by then are not run.
    pub fn run(&self, tasks: usize, body: impl Fn(usize, usize) + Sync) -> Result<()> {
        let (limit, next) = (self.count, Padded(AtomicUsize::new(0)));
        let region = Region { body: &body, tasks, limit, next, panic: Mutex::new(None) };
        match &self.pool {
            Some(pool)
                if tasks > 1 && !INSIDE_REGION.get() && !pool.shared.busy.0.swap(true, Ordering::Acquire) =>
            {
                pool.shared.run(&region);
                pool.shared.busy.0.store(false, Ordering::Release);
            }
            _ => region.work(0),
        }
        match region.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(message) => Err(KernelError::TaskPanicked { message }),
            None => Ok(()),
        }
    }

    /// Runs `body(start, end)` over pieces of `0..len` of at least `grain` elements each, as [`Threads::run`] does.
    ///
    /// # Errors
    /// As [`Threads::run`].
    pub fn run_ranges(&self, len: usize, grain: usize, body: impl Fn(usize, usize) + Sync) -> Result<()> {
        // Four pieces a thread let a slow thread leave work to the others.
        let pieces = if self.count == 1 { 1 } else { (len / grain.max(1)).clamp(1, self.count * 4) };
        let size = len.div_ceil(pieces);
        self.run(pieces, |task, _| {
            let start = (task * size).min(len);
            let end = (start + size).min(len);
            if start < end {
                body(start, end);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_task_runs_once() {
        for count in [1, 2, 3, 5] {
            let threads = Threads::new(count).unwrap();
            for tasks in [0, 1, 2, 7, 1000] {
                for _ in 0..50 {
                    let hits: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
                    let run = threads.run(tasks, |task, worker| {
                        assert!(worker < count);
                        hits[task].fetch_add(1, Ordering::Relaxed);
                    });
                    assert_eq!(run, Ok(()));
                    assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn workers_help_also_after_sleep() {
        let threads = Threads::new(2).unwrap();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(2));
            let arrived = AtomicU32::new(0);
            // Each of two tasks waits for the other, so two threads must take part.
            let run = threads.run(2, |_, _| {
                arrived.fetch_add(1, Ordering::SeqCst);
                let start = Instant::now();
                while arrived.load(Ordering::SeqCst) < 2 {
                    assert!(start.elapsed() < Duration::from_secs(20), "the worker never came");
                    std::thread::yield_now();
                }
            });
            assert_eq!(run, Ok(()));
        }
    }

    #[test]
    fn a_caller_may_wait_long() {
        let threads = Threads::new(2).unwrap();
        let done = AtomicU32::new(0);
        let run = threads.run(2, |_, worker| {
            if worker == 1 {
                std::thread::sleep(Duration::from_millis(5));
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
            done.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!((run, done.into_inner()), (Ok(()), 2));
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_lives_on() {
        for count in [1, 3] {
            let threads = Threads::new(count).unwrap();
            for _ in 0..3 {
                let run = threads.run(100, |task, _| {
                    if task == 13 {
                        std::panic::resume_unwind(Box::new("thirteen"));
                    }
                });
                assert_eq!(run, Err(KernelError::TaskPanicked { message: "thirteen".into() }));
                assert_eq!(threads.run(10, |_, _| {}), Ok(()));
            }
        }
    }

    #[test]
    fn nested_regions_run_inline() {
        let threads = Threads::new(3).unwrap();
        let total = AtomicU32::new(0);
        let run = threads.run(4, |_, _| {
            threads
                .run(5, |_, worker| {
                    assert_eq!(worker, 0);
                    total.fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
        });
        assert_eq!((run, total.into_inner()), (Ok(()), 20));
    }

    #[test]
    fn many_callers_share_a_pool() {
        let threads = Threads::new(2).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let sum = AtomicUsize::new(0);
                        threads
                            .run(20, |task, _| {
                                sum.fetch_add(task, Ordering::Relaxed);
                            })
                            .unwrap();
                        assert_eq!(sum.into_inner(), 190);
                    }
                });
            }
        });
    }

    #[test]
    fn ranges_cover_everything_once() {
        let threads = Threads::new(2).unwrap();
        for (len, grain) in [(0, 1), (1, 1), (17, 4), (100, 7), (9, 100), (9, 0)] {
            let hits: Vec<AtomicU32> = (0..len).map(|_| AtomicU32::new(0)).collect();
            threads
                .run_ranges(len, grain, |a, b| {
                    for h in &hits[a..b] {
                        h.fetch_add(1, Ordering::Relaxed);
                    }
                })
                .unwrap();
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_bad_count_is_refused() {
        assert!(Threads::new(0).is_err() && Threads::new(5000).is_err());
        assert!(Threads::default_count() >= 1);
    }
}
