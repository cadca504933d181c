// An item's work: the part that is the same for every processor.
//
// A kernel supplies two small matrix products over groups of 32 tokens; here are the loop over an item's
// KV, the running softmax, and the writing of results. Scores are in base 2, accumulators in fp32.
//
// Each processor's file compiles this with flags of its own. So what is defined here is each file's own, and
// memory comes from outside: no function, and no container's, is there once for all of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention.hpp"

namespace parrot {

constexpr int kGroupTokens = 32;    // tokens that a kernel looks at together; blocks are whole groups
constexpr int kStepTokens = 128;    // tokens between two corrections of the running softmax
constexpr int kStepGroups = kStepTokens / kGroupTokens;
constexpr int kLanes = 16;          // sums of a row's weights that are kept apart
constexpr float kInfinity = std::numeric_limits<float>::infinity();

namespace {

constexpr int64_t kLine = 64;

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

// Memory cut into arrays that begin on cache lines. From null on, it says how much they take.
class Arena {
 public:
  explicit Arena(unsigned char* bytes) : next_(bytes) {}
  template <typename T>
  T* take(int64_t count) {
    T* found = reinterpret_cast<T*>(next_);
    next_ += (count * static_cast<int64_t>(sizeof(T)) + kLine - 1) / kLine * kLine;
    return found;
  }
  unsigned char* end() const { return next_; }

 private:
  unsigned char* next_;
};

// The arrays of one item, in a thread's scratch.
template <typename Micro>
struct Arrays {
  Arrays(unsigned char* bytes, int query_rows, int size) {
    const int64_t padded = Micro::padded(query_rows);
    Arena arena(bytes);
    query = arena.take<typename Micro::Query>(padded * size);
    weights = arena.take<typename Micro::Weight>(padded * kStepTokens);
    scores = arena.take<float>(padded * kStepTokens);
    acc = arena.take<float>(padded * size);
    most = arena.take<float>(padded);
    limit = arena.take<float>(padded);
    sums = arena.take<float>(padded * kLanes);
    tail = arena.take<typename Micro::Element>(static_cast<int64_t>(kGroupTokens) * size);
    wide = arena.take<float>(Micro::wide_numbers(size));
    end = arena.end();
  }

  typename Micro::Query* query;
  typename Micro::Weight* weights;
  float* scores;
  float* acc;
  float* most;   // what scores are taken relative to, in base 2
  float* limit;  // the score from which on that is too little
  float* sums;
  typename Micro::Element* tail;  // a group's values, without those of nobody
  float* wide;
  unsigned char* end;
};

template <typename Micro>
int64_t scratch_bytes(int query_rows, int size) {
  return reinterpret_cast<int64_t>(Arrays<Micro>(nullptr, query_rows, size).end);
}

// A unit, with the products of `Micro`. It has, beside the types of what stands in memory, of queries as
// it takes them and of the softmax's weights:
//   padded, wide_numbers  how many rows, and floats for itself, it needs memory for
//   keys_at, values_at    where a group of tokens begins in a block
//   fetch                 asks for the pages of a group's memory
//   pack_query            one query row as `scores` takes it
//   scores                of all rows, a group's, rows kStepTokens apart; `place` says where a token's stands
//   exceeds, maximum      whether one of a row's scores is above a limit; the largest
//   weigh                 a row's weights, and their sums
//   mask_values           a copy of a group's values with zeros behind its last token
//   add                   weights times values, of several groups, to the accumulated rows
//   multiply              an accumulated row
//   unpack, store         an accumulated row in the order of its dims: as floats, as elements
template <typename Micro>
class UnitRun {
  using Element = typename Micro::Element;

 public:
  UnitRun(const Problem& p, Unit unit, const std::atomic<int>& next, unsigned char* scratch)
      : p_(p), unit_(unit), item_(*unit.item), next_(next), size_(p.head_size), rows_(item_.row_count * p.group),
        scale_(p.scale * 1.4426950408889634f), at_(scratch, rows_, size_) {}

  void run() {
    begin();
    Micro micro(rows_, size_, p_.block_tokens, at_.wide);
    for (int begin = 0; begin < item_.tokens; begin += kStepTokens) {
      score(micro, begin);
      for (int row = 0; row < rows_; ++row) weigh(row);
      micro.add(at_.weights, values_, strides_, groups_, at_.acc);
    }
    for (int row = 0; row < rows_; ++row) finish(row);
  }

 private:
  void begin() {
    for (int row = 0; row < rows_; ++row) {
      const Element* from = static_cast<const Element*>(p_.q) + row_of(row) * p_.q_row + head_of(row) * p_.q_head;
      Micro::pack_query(from, size_, at_.query + static_cast<int64_t>(row) * size_);
    }
    std::memset(at_.acc, 0, sizeof(float) * rows_ * size_);
    std::memset(at_.sums, 0, sizeof(float) * rows_ * kLanes);
    std::fill(at_.most, at_.most + rows_, -kInfinity);
    std::fill(at_.limit, at_.limit + rows_, -kInfinity);
  }

  int64_t row_of(int row) const { return p_.row_index[item_.row_begin + row / p_.group]; }
  int64_t head_of(int row) const { return static_cast<int64_t>(unit_.kv_head) * p_.group + row % p_.group; }

  const Element* keys(Unit of, int token) const {
    return Micro::keys_at(static_cast<const Element*>(p_.keys) + block(of, token), token % p_.block_tokens, size_);
  }
  const Element* values(Unit of, int token) const {
    return Micro::values_at(static_cast<const Element*>(p_.values) + block(of, token), token % p_.block_tokens, size_);
  }
  int64_t block(Unit of, int token) const {
    return p_.tables[of.item->table_offset + token / p_.block_tokens] * p_.kv_block + of.kv_head * p_.kv_head;
  }

  // A step's scores, and where its values are.
  void score(Micro& micro, int begin) {
    const int tokens = std::min(kStepTokens, item_.tokens - begin);
    groups_ = (tokens + kGroupTokens - 1) / kGroupTokens;
    for (int g = 0; g < groups_; ++g) {
      look_ahead(begin, g);
      const int at = begin + g * kGroupTokens;
      micro.scores(at_.query, keys(unit_, at), at_.scores + g * kGroupTokens);
      values_[g] = values(unit_, at);
      strides_[g] = p_.block_tokens;
      const int here = tokens - g * kGroupTokens;
      if (here < kGroupTokens) mask(g, here);
    }
  }

  // Asks for pages of KV a step before they are needed: processors don't look beyond a page, and a block is one or two.
  // Behind the item's end that is the unit that this thread is likely to take next.
  void look_ahead(int begin, int g) const {
    int at = begin + kStepTokens + g * kGroupTokens;
    Unit of = unit_;
    if (begin + kStepTokens >= item_.tokens) {
      const int next = next_.load(std::memory_order_relaxed);
      if (next >= p_.item_count * p_.kv_heads) return;
      of = unit_at(p_, next);
      at = g * kGroupTokens;
    }
    if (at < of.item->tokens) Micro::fetch(keys(of, at), values(of, at), p_.block_tokens, size_);
  }

  // What stands behind the last token is nobody's, and may be no number.
  void mask(int g, int tokens) {
    Micro::mask_values(values_[g], p_.block_tokens, size_, tokens, at_.tail);
    values_[g] = at_.tail;
    strides_[g] = kGroupTokens;
    for (int row = 0; row < rows_; ++row) {
      float* scores = at_.scores + row * kStepTokens + g * kGroupTokens;
      for (int token = tokens; token < kGroupTokens; ++token) scores[Micro::place(token)] = -kInfinity;
    }
  }

  void weigh(int row) {
    const float* scores = at_.scores + row * kStepTokens;
    if (Micro::exceeds(scores, groups_, at_.limit[row])) raise(row, Micro::maximum(scores, groups_) * scale_);
    Micro::weigh(scores, groups_, scale_, at_.most[row], at_.weights + row * kStepTokens, at_.sums + row * kLanes);
  }

  // What was summed up becomes relative to a larger score. That is put off until weights would be above 2^8: the
  // sums have room for them, and most rows are never gone through again.
  void raise(int row, float most) {
    constexpr float kMargin = 8.0f;
    const float correction = Micro::exp2_of(at_.most[row] - most);
    if (at_.most[row] != -kInfinity) {
      Micro::multiply(at_.acc + static_cast<int64_t>(row) * size_, size_, correction);
      Micro::multiply(at_.sums + row * kLanes, kLanes, correction);
    }
    at_.most[row] = most;
    at_.limit[row] = (most + kMargin) / scale_;
  }

  void finish(int row) {
    float sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += at_.sums[row * kLanes + lane];
    float* result = at_.acc + static_cast<int64_t>(row) * size_;
    Micro::multiply(result, size_, 1.0f / sum);
    if (item_.direct) {
      Micro::store(result, size_, static_cast<Element*>(p_.out) + row_of(row) * p_.out_row + head_of(row) * p_.out_head);
    } else {
      const int64_t partial = item_.partial_base + row / p_.group;
      const int64_t place = partial * p_.kv_heads * p_.group + head_of(row);
      Micro::unpack(result, size_, p_.partial_out + place * size_);
      p_.partial_lse[place] = at_.most[row] + std::log2(sum);
    }
  }

  const Problem& p_;
  const Unit unit_;
  const Item& item_;
  const std::atomic<int>& next_;
  const int size_, rows_;
  const float scale_;
  const Arrays<Micro> at_;
  // Of the step that is worked on:
  int groups_ = 0;
  const Element* values_[kStepGroups];
  int strides_[kStepGroups];
};

template <typename Micro>
void run_unit(const Problem& p, Unit unit, const std::atomic<int>& next, unsigned char* scratch) {
  UnitRun<Micro>(p, unit, next, scratch).run();
}

template <typename Micro>
void merge_row(const Problem& p, int row, int head, unsigned char* scratch) {
  using Element = typename Micro::Element;
  const int begin = p.partial_begin[row], end = p.partial_begin[row + 1], size = p.head_size;
  const int64_t heads = static_cast<int64_t>(p.kv_heads) * p.group;
  if (begin == end) return;
  float* acc = Arena(scratch).take<float>(size);
  std::memset(acc, 0, sizeof(float) * size);
  float most = -kInfinity, sum = 0;
  for (int at = begin; at < end; ++at) most = std::max(most, p.partial_lse[p.partial_index[at] * heads + head]);
  for (int at = begin; at < end; ++at) {
    const int64_t place = p.partial_index[at] * heads + head;
    const float weight = Micro::exp2_of(p.partial_lse[place] - most);
    const float* from = p.partial_out + place * size;
    sum += weight;
    for (int d = 0; d < size; ++d) acc[d] += weight * from[d];
  }
  Micro::multiply(acc, size, 1.0f / sum);
  Micro::store_plain(acc, size, static_cast<Element*>(p.out) + row * p.out_row + head * p.out_head);
}

template <typename Micro>
constexpr Kernel kKernel = {scratch_bytes<Micro>, run_unit<Micro>, merge_row<Micro>};

}  // namespace
}  // namespace parrot
