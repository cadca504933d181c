// Runs a plan: items by whoever is free, then the merge of what several items made of one row.
#include "attention.hpp"

#include <atomic>
#include <exception>
#include <thread>

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

Run kernel_of(Processor processor, Type type, Layout layout) {
  Run found = nullptr;
  if (processor >= kAmx) found = amx_kernel(type, layout);
  if (found == nullptr && processor >= kAvx512) found = avx512_kernel(type, layout);
  if (found == nullptr && processor >= kAvx2) found = avx2_kernel(type, layout);
  return found != nullptr ? found : portable_kernel(type, layout);
}
#else
Processor best() { return kPortable; }
Run kernel_of(Processor, Type type, Layout layout) { return portable_kernel(type, layout); }
#endif

void store_as(Type type, const float* values, int size, void* out, int64_t at) {
  for (int d = 0; d < size; ++d) {
    switch (type) {
      case Type::kFloat32: static_cast<float*>(out)[at + d] = values[d]; break;
      case Type::kBFloat16: static_cast<uint16_t*>(out)[at + d] = float_to_bf16(values[d]); break;
      case Type::kFloat16: static_cast<_Float16*>(out)[at + d] = static_cast<_Float16>(values[d]); break;
    }
  }
}

// A row and head of what several items made: each weighs as much as its softmax was long.
void merge(const Problem& p, int row, int head, std::vector<unsigned char>& bytes) {
  const int begin = p.partial_begin[row], end = p.partial_begin[row + 1], heads = p.kv_heads * p.group;
  if (begin == end) return;
  Arena arena(bytes, p.head_size * sizeof(float) + 64);
  float* acc = arena.take<float>(p.head_size);
  std::fill(acc, acc + p.head_size, 0.0f);
  float most = -kInfinity, sum = 0;
  for (int at = begin; at < end; ++at) most = std::max(most, p.partial_lse[static_cast<size_t>(p.partial_index[at]) * heads + head]);
  for (int at = begin; at < end; ++at) {
    const size_t place = static_cast<size_t>(p.partial_index[at]) * heads + head;
    const float weight = std::exp2(p.partial_lse[place] - most);
    const float* from = p.partial_out + place * p.head_size;
    sum += weight;
    for (int d = 0; d < p.head_size; ++d) acc[d] += weight * from[d];
  }
  for (int d = 0; d < p.head_size; ++d) acc[d] /= sum;
  store_as(static_cast<Type>(p.type), acc, p.head_size, p.out, row * p.out_row + head * p.out_head);
}

constexpr int kLooks = 2000;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// What one thread does; all of them share it.
struct Work {
  const Problem* problem;
  Run run;
  std::atomic<int> next_item{0}, done_items{0}, next_row{0};

  void part() {
    thread_local std::vector<unsigned char> scratch;
    const Problem& p = *problem;
    const int items = p.item_count * p.kv_heads;
    for (int at; (at = next_item.fetch_add(1, std::memory_order_relaxed)) < items;) {
      // One item's heads one after the other: its block table and rows are read once.
      run(p, p.items[at / p.kv_heads], at % p.kv_heads, scratch);
      done_items.fetch_add(1, std::memory_order_release);
    }
    // However many threads there came to be: what others still do is waited for, awake for as long as an item
    // may take, and then leaving the core to whoever has it to do.
    for (int looks = 0; done_items.load(std::memory_order_acquire) < items; ++looks) {
      if (looks < kLooks) pause();
      else std::this_thread::yield();
    }
    for (int row; (row = next_row.fetch_add(1, std::memory_order_relaxed)) < p.rows;) {
      for (int head = 0; head < p.kv_heads * p.group; ++head) merge(p, row, head, scratch);
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

PARROT_PUBLIC int32_t parrot_best_processor() {
  static const parrot::Processor found = parrot::best();
  return found;
}

PARROT_PUBLIC void parrot_use_threads_of(void* parallel) { parrot::parallel = reinterpret_cast<parrot::Parallel>(parallel); }

// Runs a plan on so many threads. `processor` is the best kernel to use, at most.
PARROT_PUBLIC void parrot_attend(const parrot::Problem* problem, int32_t processor, int32_t threads) {
  using namespace parrot;
  const auto most = static_cast<Processor>(std::min(processor, parrot_best_processor()));
  Work work{problem, kernel_of(most, static_cast<Type>(problem->type), static_cast<Layout>(problem->layout))};
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
