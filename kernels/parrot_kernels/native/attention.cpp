// Runs a plan: items by whoever is free, then the merge of what several items made of one row.
#include "attention.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace parrot {
namespace {

enum Processor : int32_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAmx = 3 };

#if defined(__x86_64__)
// The kernel gives tiles to a process only when asked.
bool may_use_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Processor best() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return kPortable;
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl")) {
    return kAvx2;
  }
  return __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-tile") && may_use_tiles() ? kAmx : kAvx512;
}

const Kernel* kernel_of(Processor processor, Type type, Layout layout) {
  const Kernel* found = nullptr;
  if (processor >= kAmx) found = amx_kernel(type, layout);
  if (found == nullptr && processor >= kAvx512) found = avx512_kernel(type, layout);
  if (found == nullptr && processor >= kAvx2) found = avx2_kernel(type, layout);
  return found != nullptr ? found : portable_kernel(type, layout);
}
#else
Processor best() { return kPortable; }
const Kernel* kernel_of(Processor, Type type, Layout layout) { return portable_kernel(type, layout); }
#endif

Processor best_here() {
  static const Processor found = best();
  return found;
}

const Kernel& kernel_of(int32_t processor, int32_t type, int32_t layout) {
  const auto most = static_cast<Processor>(std::min<int32_t>(processor, best_here()));
  return *kernel_of(most, static_cast<Type>(type), static_cast<Layout>(layout));
}

constexpr int kLooks = 2000;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// What one thread does; all of them share it.
struct Work {
  const Problem& p;
  const Kernel& kernel;
  std::atomic<int> next_unit{0}, done_units{0}, next_row{0}, next_thread{0};

  void part() {
    unsigned char* scratch = p.scratch + p.scratch_bytes * next_thread.fetch_add(1, std::memory_order_relaxed);
    const int units = p.item_count * p.kv_heads;
    for (int at; (at = next_unit.fetch_add(1, std::memory_order_relaxed)) < units;) {
      kernel.run(p, unit_at(p, at), next_unit, scratch);
      done_units.fetch_add(1, std::memory_order_release);
    }
    // However many threads there came to be: what others still do is waited for, awake for as long as an item
    // may take, and then leaving the core to whoever has it to do.
    for (int looks = 0; done_units.load(std::memory_order_acquire) < units; ++looks) {
      if (looks < kLooks) pause();
      else std::this_thread::yield();
    }
    for (int row; (row = next_row.fetch_add(1, std::memory_order_relaxed)) < p.rows;) {
      for (int head = 0; head < p.kv_heads * p.group; ++head) kernel.merge(p, row, head, scratch);
    }
  }
};

void part_of(void* work) { static_cast<Work*>(work)->part(); }

// `GOMP_parallel` of the OpenMP library that is in the process already, so that no second set of threads
// takes the cores from the first.
using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
Parallel parallel = nullptr;

}  // namespace
}  // namespace parrot

extern "C" {

#define PARROT_PUBLIC __attribute__((visibility("default")))

PARROT_PUBLIC int32_t parrot_best_processor() { return parrot::best_here(); }

PARROT_PUBLIC void parrot_use_threads_of(void* parallel) { parrot::parallel = reinterpret_cast<parrot::Parallel>(parallel); }

// What one thread needs for items of so many query rows, at most; `processor` is the best kernel to use, at most.
PARROT_PUBLIC int64_t parrot_scratch_bytes(int32_t type, int32_t layout, int32_t processor, int32_t query_rows, int32_t head_size) {
  using namespace parrot;
  return kernel_of(processor, type, layout).scratch_bytes(query_rows, head_size);
}

// Runs a plan on so many threads.
PARROT_PUBLIC void parrot_attend(const parrot::Problem* problem, int32_t processor, int32_t threads) {
  using namespace parrot;
  Work work{*problem, kernel_of(processor, problem->type, problem->layout)};
  if (threads == 1) return work.part();
  if (parallel != nullptr) return parallel(part_of, &work, static_cast<unsigned>(threads), 0);
  std::vector<std::thread> others;
  try {
    others.reserve(threads);
    for (int at = 1; at < threads; ++at) others.emplace_back(part_of, &work);
  } catch (const std::exception&) {
    // Fewer do it too.
  }
  work.part();
  for (std::thread& other : others) other.join();
}
}
