// Decode attention over a work list: what is to be done, and who does it.
#pragma once

#include <atomic>
#include <cstdint>

#include "plan.hpp"

namespace parrot {

// How a block of the KV memory is laid out, for each head. With B tokens of a block and D of a head:
enum class Layout : int32_t {
  kRows = 0,   // keys [D][B], values [B][D]
  kPairs = 1,  // keys [B/16][D/2][16 tokens][2], values [D/16][B/2][16 dims][2]: pairs for dot products
};

enum class Type : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// Strides are in elements.
struct Problem {
  const void* q;
  int64_t q_row, q_head;
  const void* keys;
  const void* values;
  int64_t kv_block, kv_head;
  void* out;
  int64_t out_row, out_head;
  float* partial_out;  // partials x query heads x head size
  float* partial_lse;  // partials x query heads, base 2
  const int32_t* tables;
  const Item* items;
  const int32_t* row_index;
  const int32_t* partial_begin;
  const int32_t* partial_index;
  unsigned char* scratch;  // each thread's, one behind the other, on cache lines
  int64_t scratch_bytes;   // of one thread
  int32_t item_count, rows;
  int32_t block_tokens, kv_heads, group, head_size;
  float scale;
  int32_t type;    // Type, of queries, KV and output
  int32_t layout;  // Layout
};

// What a thread does at a time: an item, for one KV head.
struct Unit {
  const Item* item;
  int kv_head;
};

// One item's heads one after the other: its block table and rows are read once.
static inline Unit unit_at(const Problem& p, int at) { return {&p.items[at / p.kv_heads], at % p.kv_heads}; }

// What a processor does with a type and layout.
struct Kernel {
  // Memory for an item of so many query rows; a multiple of cache lines.
  int64_t (*scratch_bytes)(int query_rows, int head_size);
  // `next` is the unit that is taken next, by whoever is free.
  void (*run)(const Problem&, Unit, const std::atomic<int>& next, unsigned char* scratch);
  // A row and query head of what several items made: each weighs as much as its softmax was long.
  void (*merge)(const Problem&, int row, int head, unsigned char* scratch);
};

// The kernels of each processor, best first; null where the type or layout is none of theirs.
const Kernel* amx_kernel(Type type, Layout layout);
const Kernel* avx512_kernel(Type type, Layout layout);
const Kernel* avx2_kernel(Type type, Layout layout);
const Kernel* portable_kernel(Type type, Layout layout);

}  // namespace parrot
