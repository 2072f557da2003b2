// One small pool of threads for all sessions of the process: a forward pass of the target and one of the draft use the
// same threads, where two pools would wait for each other. Workers spin for a millisecond after their last part, which
// covers the host's work between two passes, then sleep.
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
constexpr size_t kMostParts = 0xffff;  // 16 bits of the ticket

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

// A job's parts are claimed one by one, by workers and by the caller, who finishes a job that no worker takes part in:
// nothing waits for a thread that has not begun, or that a fork has left behind.
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
  // Takes one part of the job in force and runs it. The ticket holds the job's number, its parts and the next of them
  // in one word, so that a part is never claimed of a job that has ended.
  bool claim() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    do {
      if ((ticket & 0xffff) >= (ticket >> 16 & 0xffff)) return false;
    } while (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel));
    try {
      body_(data_, ticket & 0xffff);
    } catch (...) {  // no memory for a part: the caller says so once all parts are done
      failed_.store(true, std::memory_order_relaxed);
    }
    done_.fetch_add(1, std::memory_order_release);
    return true;
  }

  void work() {
    const FloatMode mode;  // a thread begins with that of its maker
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
    } catch (const std::system_error&) {  // the system gives no more threads: those there are do the work
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

// The most threads that passes begun by the calling thread use from now on: a graph's nodes say what it may have, this
// what it shall have. The engine computes our operators on the thread that runs the session.
EDGE_EXPORT void edgedecode_use_threads(int threads) { edgedecode::most_threads = threads; }
