// One thread pool for all sessions of the process: forward passes of the target and of the draft use the same threads,
// whereas two pools would wait for each other. Workers spin for a millisecond after their last part, which covers the
// host overhead between two passes, then sleep.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#if !defined(_WIN32)
#include <unistd.h>
#endif

#include "kernels.h"

namespace edgedecode {
namespace {

constexpr auto kSpin = std::chrono::microseconds(1000);
constexpr int kMostThreads = 256;
constexpr size_t kMostParts = 0xffff;  // a part's index has 16 bits in the ticket

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int process_id() {
#if defined(_WIN32)
  return 0;
#else
  return getpid();
#endif
}

// A job's parts are claimed one by one, by workers and by the caller, which finishes the job alone if no worker helps.
// So nothing waits for a thread that has not started, or that does not exist after a fork.
class Pool {
 public:
  void run(size_t parts, int threads, void (*body)(void*, size_t), void* data) {
    if (threads <= 1 || parts <= 1 || parts > kMostParts || process_id() != process_ || busy_.exchange(true, std::memory_order_acquire)) {
      for (size_t part = 0; part < parts; part++) body(data, part);
      return;
    }
    grow(threads - 1);
    body_ = body;
    data_ = data;
    done_.store(0, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    const uint64_t job = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(job << 32 | static_cast<uint64_t>(parts) << 16, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    while (claim()) {
    }
    while (done_.load(std::memory_order_acquire) != parts) pause_briefly();
    const bool failed = failed_.load(std::memory_order_relaxed);
    busy_.store(false, std::memory_order_release);
    if (failed) throw std::bad_alloc();
  }

 private:
  // Claims one part of the current job and runs it. The ticket holds the job's number, its number of parts and the next
  // part in one word, so that no part of a finished job can be claimed.
  bool claim() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    do {
      if ((ticket & 0xffff) >= (ticket >> 16 & 0xffff)) return false;
    } while (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel));
    try {
      body_(data_, ticket & 0xffff);
    } catch (...) {  // out of memory in a part: the caller throws once all parts are done
      failed_.store(true, std::memory_order_relaxed);
    }
    done_.fetch_add(1, std::memory_order_release);
    return true;
  }

  void work() {
    const FloatMode mode;  // a thread inherits the mode of its creator
    for (;;) {
      const uint64_t seen = ticket_.load(std::memory_order_acquire);
      if (claim()) continue;
      const auto until = std::chrono::steady_clock::now() + kSpin;
      bool idle = true;
      for (int i = 1; idle && (i % 64 != 0 || std::chrono::steady_clock::now() < until); i++) {
        pause_briefly();
        idle = ticket_.load(std::memory_order_relaxed) == seen;
      }
      if (!idle) continue;
      std::unique_lock<std::mutex> lock(mutex_);
      sleeping_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return ticket_.load(std::memory_order_seq_cst) != seen; });
      sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  void grow(int workers) {
    try {
      for (; workers_ < workers && workers_ < kMostThreads; workers_++) std::thread([this] { work(); }).detach();
    } catch (const std::system_error&) {  // no more threads available: the existing ones do the work
    }
  }

  const int process_ = process_id();
  int workers_ = 0;
  std::atomic<bool> busy_{false};
  std::atomic<uint64_t> ticket_{0};
  std::atomic<size_t> done_{0};
  std::atomic<bool> failed_{false};
  std::atomic<int> sleeping_{0};
  void (*body_)(void*, size_t) = nullptr;
  void* data_ = nullptr;
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace

static thread_local int most_threads = 1 << 30;

void parallel(size_t parts, int threads, void (*run)(void*, size_t), void* data) {
  static Pool* pool = new Pool;  // never destroyed: its threads run until the process ends
  pool->run(parts, threads < most_threads ? threads : most_threads, run, data);
}

}  // namespace edgedecode

// Limits the threads of passes started by the calling thread from now on, in addition to the limit in a graph's nodes.
// The engine computes our operators on the thread that runs the session.
EDGE_EXPORT void edgedecode_use_threads(int threads) { edgedecode::most_threads = threads; }
