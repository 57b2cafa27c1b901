//! How many threads a process computes with, however many models and sessions it has.

use crate::threads::{Pool, Threads};
use crate::{KernelError, Result};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A number of compute threads that models share; clones are the same budget.
///
/// Each model asks for [`ThreadBudget::threads`]. As long as there are threads left, it gets a pool of its own, which gives
/// them back when its last user is gone. When none is left, it gets the pool with the fewest users, which computes for one
/// of them at a time while the others compute on the thread that called. A result does not depend on which it was.
///
/// So no more workers are ever started than the budget has threads, less the one that calls. Eight sessions that ask for
/// two threads each of a budget of two have one worker between them, not eight that wait for work.
#[derive(Clone)]
pub struct ThreadBudget {
    shared: Arc<Shared>,
}

struct Shared {
    total: usize,
    pools: Mutex<Vec<Weak<Pool>>>,
}

impl fmt::Debug for ThreadBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThreadBudget({} of {} at work)", self.workers() + 1, self.total())
    }
}

impl Default for ThreadBudget {
    /// As many threads as the process may use.
    fn default() -> ThreadBudget {
        ThreadBudget::of_process(None)
    }
}

impl ThreadBudget {
    /// A budget of exactly `total` threads, one of them the caller's.
    ///
    /// # Errors
    /// [`KernelError::Threads`] for none.
    pub fn new(total: usize) -> Result<ThreadBudget> {
        if total == 0 {
            return Err(KernelError::Threads { reason: "a budget of no threads; give 1 or more".into() });
        }
        Ok(ThreadBudget { shared: Arc::new(Shared { total, pools: Mutex::new(Vec::new()) }) })
    }

    /// As many threads as the process may use ([`Threads::default_count`]), at most `most`. More threads than processors only
    /// wait for each other: 1024 on two took minutes for seconds of audio.
    pub fn of_process(most: Option<usize>) -> ThreadBudget {
        let usable = Threads::default_count().max(1);
        let total = most.map_or(usable, |n| n.clamp(1, usable));
        ThreadBudget { shared: Arc::new(Shared { total, pools: Mutex::new(Vec::new()) }) }
    }

    /// Threads in all, one caller among them.
    pub fn total(&self) -> usize {
        self.shared.total
    }

    /// Workers that are alive: threads beside the callers'. Always less than [`ThreadBudget::total`].
    pub fn workers(&self) -> usize {
        let pools = self.shared.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.iter().filter_map(Weak::upgrade).map(|pool| pool.workers()).sum()
    }

    /// At most `most` threads (`None`: all of the budget), the caller among them: a pool of its own of what is left, or a
    /// shared one.
    ///
    /// # Errors
    /// [`KernelError::Threads`] if the system refuses a thread.
    pub fn threads(&self, most: Option<usize>) -> Result<Threads> {
        let total = self.total();
        let count = most.map_or(total, |n| n.clamp(1, total));
        if count == 1 {
            return Ok(Threads::single());
        }
        // The lock is held while threads start: two models that load at once must not both take the last.
        let mut pools = self.shared.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        let alive: Vec<Arc<Pool>> = pools.iter().filter_map(Weak::upgrade).collect();
        let left = total - 1 - alive.iter().map(|pool| pool.workers()).sum::<usize>().min(total - 1);
        if left > 0 {
            let threads = Threads::new(count.min(left + 1))?;
            pools.extend(threads.pool().map(Arc::downgrade));
            return Ok(threads);
        }
        // Counted less this list's own.
        let least = alive.iter().min_by_key(|pool| Arc::strong_count(pool));
        Ok(least.map_or_else(Threads::single, |pool| Threads::sharing(pool.clone(), count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::thread::ThreadId;

    #[test]
    fn workers_stay_within_the_budget_and_come_back() {
        let budget = ThreadBudget::new(4).unwrap();
        let counts = |pools: &[Threads]| pools.iter().map(Threads::count).collect::<Vec<_>>();
        let mut pools: Vec<Threads> = (0..3).map(|_| budget.threads(Some(2)).unwrap()).collect();
        assert_eq!((counts(&pools), budget.workers()), (vec![2, 2, 2], 3));
        // Nothing is left: shared, and no more than asked for.
        let shared = budget.threads(Some(3)).unwrap();
        assert_eq!((shared.count(), budget.workers()), (2, 3));
        drop(shared);
        // What is given back is taken again, and what is left is taken where less is left than asked for.
        pools.truncate(1);
        assert_eq!(budget.workers(), 1);
        let rest = budget.threads(None).unwrap();
        assert_eq!((rest.count(), budget.workers()), (3, 3));
        assert_eq!(budget.threads(Some(1)).unwrap().count(), 1);
        // A shared pool is used only as far as was asked for.
        drop(pools);
        let narrow = budget.threads(Some(2)).unwrap();
        assert_eq!((narrow.count(), budget.workers()), (2, 3));
        let two = budget.threads(Some(2)).unwrap();
        assert_eq!(two.count(), 2);
        let workers = Mutex::new(HashSet::new());
        two.run(200, |_, worker| {
            workers.lock().unwrap().insert(worker);
        })
        .unwrap();
        assert!(workers.lock().unwrap().iter().all(|&worker| worker < 2));
        assert!(ThreadBudget::new(0).is_err());
        assert_eq!(ThreadBudget::of_process(Some(0)).total(), 1);
        assert!(ThreadBudget::of_process(Some(1 << 20)).total() <= Threads::default_count().max(1));
    }

    #[test]
    fn many_callers_share_few_workers() {
        const CALLERS: usize = 8;
        let budget = ThreadBudget::new(2).unwrap();
        let seen: Mutex<HashSet<ThreadId>> = Mutex::new(HashSet::new());
        let start = Barrier::new(CALLERS);
        let sums: Vec<u64> = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS)
                .map(|_| {
                    scope.spawn(|| {
                        let threads = budget.threads(Some(2)).unwrap();
                        start.wait();
                        let sum = std::sync::atomic::AtomicU64::new(0);
                        for _ in 0..50 {
                            let add = |task: usize, _| {
                                seen.lock().unwrap().insert(std::thread::current().id());
                                sum.fetch_add(task as u64, std::sync::atomic::Ordering::Relaxed);
                            };
                            threads.run(40, add).unwrap();
                        }
                        sum.into_inner()
                    })
                })
                .collect();
            callers.into_iter().map(|c| c.join().unwrap()).collect()
        });
        assert!(sums.iter().all(|&sum| sum == 50 * (39 * 40 / 2)));
        // Eight pools of two would have shown up to sixteen.
        assert!(seen.lock().unwrap().len() <= CALLERS + 1);
        assert_eq!(budget.workers(), 0, "all pools are gone");
    }
}
