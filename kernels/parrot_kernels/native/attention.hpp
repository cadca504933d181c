// Decode attention over a work list: the part that is the same for every processor.
//
// A kernel supplies two small matrix products over groups of 32 tokens; here are the loop over an item's
// KV, the running softmax, and the writing of results. Scores are in base 2, accumulators in fp32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "plan.hpp"

namespace parrot {

constexpr int kGroupTokens = 32;    // tokens that a kernel looks at together; blocks are whole groups
constexpr int kStepTokens = 128;    // tokens between two corrections of the running softmax
constexpr int kStepGroups = kStepTokens / kGroupTokens;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

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
  int32_t item_count, rows;
  int32_t block_tokens, kv_heads, group, head_size;
  float scale;
  int32_t type;    // Type, of queries, KV and output
  int32_t layout;  // Layout
};

// Does one item for one KV head. `scratch` is the thread's own.
using Run = void (*)(const Problem&, const Item&, int kv_head, std::vector<unsigned char>& scratch);

struct Kernel {
  const char* name;
  Run run;
};

inline float bf16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

inline uint16_t float_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // NaN stays one
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The thread's own memory, cut into arrays that begin on cache lines.
class Arena {
 public:
  Arena(std::vector<unsigned char>& bytes, size_t most) : bytes_(bytes) {
    if (bytes_.size() < most + 64) bytes_.resize(most + 64);
    next_ = reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(bytes_.data()) + 63) & ~uintptr_t{63});
  }
  template <typename T>
  T* take(size_t count) {
    T* found = reinterpret_cast<T*>(next_);
    next_ += (count * sizeof(T) + 63) & ~size_t{63};
    return found;
  }

 private:
  std::vector<unsigned char>& bytes_;
  unsigned char* next_;
};

// One item, with the products of `Micro`. It has, beside the types of what stands in memory, of queries as
// it takes them and of the softmax's weights:
//   keys_at, values_at   where a group of tokens begins in a block
//   pack_query           one query row as `scores` takes it
//   scores               of all rows, a group's, rows kStepTokens apart; `place` says where a token's stands
//   maximum, weigh       of one row's scores: the largest; the weights, and their sum
//   mask_values          a copy of a group's values with zeros behind its last token
//   add                  weights times values, of several groups, to the accumulated rows
//   multiply, exp2_of    of accumulated rows, and of the correction they are multiplied with
//   unpack, store        an accumulated row in the order of its dims: as floats, as elements
template <typename Micro>
void run_item(const Problem& p, const Item& item, int kv_head, std::vector<unsigned char>& bytes) {
  using Element = typename Micro::Element;
  using Weight = typename Micro::Weight;
  using Query = typename Micro::Query;
  const int size = p.head_size, group = p.group, m = item.row_count * group;
  const int padded = (m + Micro::kRowsPadded - 1) / Micro::kRowsPadded * Micro::kRowsPadded;
  Arena arena(bytes, static_cast<size_t>(padded) * (size * sizeof(Query) + kStepTokens * (sizeof(Weight) + sizeof(float)) +
                     size * sizeof(float) + 2 * sizeof(float) + 64 * 6) + kGroupTokens * size * sizeof(Element) + 4096);
  Query* query = arena.take<Query>(static_cast<size_t>(padded) * size);
  Weight* weights = arena.take<Weight>(static_cast<size_t>(padded) * kStepTokens);
  float* scores = arena.take<float>(static_cast<size_t>(padded) * kStepTokens);
  float* acc = arena.take<float>(static_cast<size_t>(padded) * size);
  float* most = arena.take<float>(padded);
  float* sum = arena.take<float>(padded);
  Element* tail = arena.take<Element>(static_cast<size_t>(kGroupTokens) * size);

  for (int row = 0; row < m; ++row) {
    const int64_t at = p.row_index[item.row_begin + row / group];
    const int64_t head = static_cast<int64_t>(kv_head) * group + row % group;
    Micro::pack_query(static_cast<const Element*>(p.q) + at * p.q_row + head * p.q_head, size, query + static_cast<size_t>(row) * size);
  }
  if (padded > m) {
    std::memset(query + static_cast<size_t>(m) * size, 0, static_cast<size_t>(padded - m) * size * sizeof(Query));
    std::memset(weights + static_cast<size_t>(m) * kStepTokens, 0, static_cast<size_t>(padded - m) * kStepTokens * sizeof(Weight));
  }
  std::memset(acc, 0, static_cast<size_t>(padded) * size * sizeof(float));
  std::fill(most, most + m, -kInfinity);
  std::fill(sum, sum + m, 0.0f);
  const float scale = p.scale * 1.4426950408889634f;
  const Element* keys = static_cast<const Element*>(p.keys) + kv_head * p.kv_head;
  const Element* values = static_cast<const Element*>(p.values) + kv_head * p.kv_head;
  const int32_t* table = p.tables + item.table_offset;

  Micro micro(m, size, p.block_tokens);
  for (int begin = 0; begin < item.tokens; begin += kStepTokens) {
    const int tokens = std::min(kStepTokens, item.tokens - begin);
    const int groups = (tokens + kGroupTokens - 1) / kGroupTokens;
    const Element* group_values[kStepGroups];
    int group_stride[kStepGroups];
    for (int g = 0; g < groups; ++g) {
      const int at = begin + g * kGroupTokens;
      const int64_t block = static_cast<int64_t>(table[at / p.block_tokens]) * p.kv_block;
      const int within = at % p.block_tokens;
      micro.scores(query, Micro::keys_at(keys + block, within, size), scores + g * kGroupTokens);
      group_values[g] = Micro::values_at(values + block, within, size);
      group_stride[g] = p.block_tokens;
      const int here = std::min(kGroupTokens, tokens - g * kGroupTokens);
      if (here < kGroupTokens) {
        // What stands behind the last token is nobody's, and may be no number.
        Micro::mask_values(group_values[g], p.block_tokens, size, here, tail);
        group_values[g] = tail;
        group_stride[g] = kGroupTokens;
        for (int row = 0; row < m; ++row) {
          for (int token = here; token < kGroupTokens; ++token) {
            scores[row * kStepTokens + g * kGroupTokens + Micro::place(token)] = -kInfinity;
          }
        }
      }
    }
    for (int row = 0; row < m; ++row) {
      const float before = most[row];
      most[row] = std::max(before, Micro::maximum(scores + row * kStepTokens, groups) * scale);
      const float correction = Micro::exp2_of(before - most[row]);
      sum[row] = sum[row] * correction +
                 Micro::weigh(scores + row * kStepTokens, groups, scale, most[row], weights + row * kStepTokens);
      if (correction != 1.0f) Micro::multiply(acc + static_cast<size_t>(row) * size, size, correction);
    }
    micro.add(weights, group_values, group_stride, groups, acc);
  }
  for (int row = 0; row < m; ++row) {
    const int64_t head = static_cast<int64_t>(kv_head) * group + row % group;
    float* result = acc + static_cast<size_t>(row) * size;
    Micro::multiply(result, size, 1.0f / sum[row]);
    if (item.direct) {
      const int64_t at = p.row_index[item.row_begin + row / group];
      Micro::store(result, size, static_cast<Element*>(p.out) + at * p.out_row + head * p.out_head);
    } else {
      const size_t at = static_cast<size_t>(item.partial_base + row / group) * p.kv_heads * group + head;
      Micro::unpack(result, size, p.partial_out + at * size);
      p.partial_lse[at] = most[row] + std::log2(sum[row]);
    }
  }
}

// The kernels of each processor, best first; null where the type or layout is none of theirs.
Run amx_kernel(Type type, Layout layout);
Run avx512_kernel(Type type, Layout layout);
Run avx2_kernel(Type type, Layout layout);
Run portable_kernel(Type type, Layout layout);

}  // namespace parrot
