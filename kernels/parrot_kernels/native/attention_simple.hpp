// The products in plain loops, which a compiler makes vectors of: every type and layout, on every processor.
// Each processor's file compiles it with its own flags, in a namespace of its own.
#pragma once

#include <type_traits>

#include "attention_unit.hpp"

#ifndef PARROT_ROWS_AT_ONCE
#error "say how many rows fit into the registers"
#endif

namespace parrot {
namespace PARROT_NAMESPACE {

struct BFloat16 {
  uint16_t bits;
};

inline float widen(float value) { return value; }
inline float widen(BFloat16 value) { return bf16_to_float(value.bits); }
inline float widen(_Float16 value) { return static_cast<float>(value); }
inline void narrow(float value, float* to) { *to = value; }
inline void narrow(float value, BFloat16* to) { to->bits = float_to_bf16(value); }
inline void narrow(float value, _Float16* to) { *to = static_cast<_Float16>(value); }

// 2^x of x <= 127, to about one part in ten million; nothing below 2^-126.
inline float exp2_near(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: to it added, a number is rounded to a whole one
  const float bounded = x < -126.0f ? -126.0f : x;
  const float rounded = bounded + kRound;
  const float f = bounded - (rounded - kRound);
  float value = 1.540353039e-4f;
  value = value * f + 1.333355815e-3f;
  value = value * f + 9.618129108e-3f;
  value = value * f + 5.550410866e-2f;
  value = value * f + 2.402265070e-1f;
  value = value * f + 6.931471806e-1f;
  value = value * f + 1.0f;
  uint32_t bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  bits = (bits + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return x < -126.0f ? 0.0f : value * power;
}

// One register of floats, wherever they lie, and how many of them 32 are.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
using Vector = float __attribute__((vector_size(kVectorBytes), aligned(sizeof(float)), may_alias));
constexpr int kWide = kVectorBytes / sizeof(float), kVectors = 32 / kWide;
static inline const Vector& vector_at(const float* at) { return *reinterpret_cast<const Vector*>(at); }
static inline Vector& vector_at(float* at) { return *reinterpret_cast<Vector*>(at); }

template <typename T, Layout layout>
class Simple {
 public:
  using Element = T;
  using Weight = float;
  using Query = float;

  static int padded(int rows) { return rows; }
  static int64_t wide_numbers(int size) { return static_cast<int64_t>(kGroupTokens) * size; }

  Simple(int rows, int size, int block_tokens, float* wide)
      : rows_(rows), size_(size), block_tokens_(block_tokens), wide_(wide) {}

  static int place(int token) { return token; }

  static const T* keys_at(const T* block, int token, int size) {
    return layout == Layout::kRows ? block + token : block + static_cast<size_t>(token) * size;
  }

  static const T* values_at(const T* block, int token, int size) {
    return layout == Layout::kRows ? block + static_cast<size_t>(token) * size : block + token * 16;
  }

  // The first line of each page: the rest of it is what processors fetch by themselves. All lines take longer.
  static void fetch(const T* keys, const T* values, int block_tokens, int size) {
    const int64_t numbers = static_cast<int64_t>(kGroupTokens) * size;
    const int64_t apart = block_tokens / kGroupTokens;  // a group's numbers lie over so many groups' memory
    fetch_pages(keys, layout == Layout::kRows ? numbers * apart : numbers);
    fetch_pages(values, layout == Layout::kRows ? numbers : numbers * apart);
  }

  static void pack_query(const T* from, int size, float* to) {
    for (int d = 0; d < size; ++d) to[d] = widen(from[d]);
  }

  void scores(const float* query, const T* keys, float* s) {
    const float* wide = wide_keys(keys);
    const int64_t stride = wide == wide_ ? kGroupTokens : block_tokens_;
    in_parts<PARROT_ROWS_AT_ONCE>([&](auto count, int row) {
      score_rows<count()>(query + static_cast<size_t>(row) * size_, wide, stride, s + row * kStepTokens);
    });
  }

  static bool exceeds(const float* s, int groups, float limit) {
    int above = 0;
    for (int at = 0; at < groups * kGroupTokens; ++at) above |= s[at] > limit;
    return above != 0;
  }

  static float maximum(const float* s, int groups) {
    float found[16];
    std::memcpy(found, s, sizeof found);
    for (int at = 16; at < groups * kGroupTokens; at += 16) {
      for (int i = 0; i < 16; ++i) found[i] = s[at + i] > found[i] ? s[at + i] : found[i];
    }
    return *std::max_element(found, found + 16);
  }

  static float exp2_of(float x) { return exp2_near(x); }

  static void weigh(const float* s, int groups, float scale, float most, float* weights, float* sums) {
    for (int at = 0; at < groups * kGroupTokens; ++at) weights[at] = exp2_near(s[at] * scale - most);
    for (int at = 0; at < groups * kGroupTokens; at += kLanes) {
      for (int i = 0; i < kLanes; ++i) sums[i] += weights[at + i];
    }
  }

  static void multiply(float* values, int size, float factor) {
    for (int d = 0; d < size; ++d) values[d] *= factor;
  }

  static void mask_values(const T* values, int block_tokens, int size, int tokens, T* to) {
    std::memset(static_cast<void*>(to), 0, static_cast<size_t>(kGroupTokens) * size * sizeof(T));
    if constexpr (layout == Layout::kRows) {
      std::memcpy(static_cast<void*>(to), values, static_cast<size_t>(tokens) * size * sizeof(T));
    } else {
      for (int d = 0; d < size; d += 16) {
        const T* from = values + pair_place(d, 0, block_tokens);
        T* strip = to + pair_place(d, 0, kGroupTokens);
        const int even = tokens / 2 * 32;
        std::memcpy(static_cast<void*>(strip), from, even * sizeof(T));
        for (int i = even; tokens % 2 && i < even + 32; i += 2) strip[i] = from[i];
      }
    }
  }

  void add(const float* weights, const T* const* values, const int* strides, int groups, float* acc) {
    for (int g = 0; g < groups; ++g) {
      const float* wide = wide_values(values[g], strides[g]);
      const float* w = weights + g * kGroupTokens;
      for (int dim = 0; dim < size_; dim += 32) {
        in_parts<PARROT_ROWS_AT_ONCE>([&](auto count, int row) {
          add_rows<count()>(w + row * kStepTokens, wide + dim, acc + static_cast<size_t>(row) * size_ + dim);
        });
      }
    }
  }

  static void unpack(const float* values, int size, float* to) { std::memcpy(to, values, size * sizeof(float)); }

  static void store(const float* values, int size, T* to) {
    store_plain(values, size, to);
  }

  // Of what is in the order of its dims.
  static void store_plain(const float* values, int size, T* to) {
    for (int d = 0; d < size; ++d) narrow(values[d], to + d);
  }

 private:
  static void fetch_pages(const T* from, int64_t numbers) {
    constexpr int64_t kPageBytes = 4096;
    constexpr int kIntoSecondLevel = 2;
    const char* bytes = reinterpret_cast<const char*>(from);
    for (int64_t at = 0; at < numbers * static_cast<int64_t>(sizeof(T)); at += kPageBytes) {
      __builtin_prefetch(bytes + at, 0, kIntoSecondLevel);
    }
  }

  static size_t pair_place(int dim, int token, int block_tokens) {
    return (static_cast<size_t>(dim / 16) * (block_tokens / 2) + token / 2) * 32 + dim % 16 * 2 + token % 2;
  }

  // The group's keys as [size][32] of floats.
  const float* wide_keys(const T* keys) {
    if constexpr (layout == Layout::kRows) {
      if constexpr (sizeof(T) == sizeof(float)) return reinterpret_cast<const float*>(keys);
      for (int d = 0; d < size_; ++d) {
        for (int t = 0; t < kGroupTokens; ++t) wide_[d * kGroupTokens + t] = widen(keys[static_cast<size_t>(d) * block_tokens_ + t]);
      }
    } else {
      for (int half = 0; half < kGroupTokens; half += 16) {
        const T* from = keys + static_cast<size_t>(half) * size_;
        for (int d = 0; d < size_; d += 2) {
          for (int t = 0; t < 16; ++t) {
            wide_[d * kGroupTokens + half + t] = widen(from[d * 16 + t * 2]);
            wide_[(d + 1) * kGroupTokens + half + t] = widen(from[d * 16 + t * 2 + 1]);
          }
        }
      }
    }
    return wide_;
  }

  // The group's values as [32][size] of floats.
  const float* wide_values(const T* values, int block_tokens) {
    if constexpr (layout == Layout::kRows) {
      if constexpr (sizeof(T) == sizeof(float)) return reinterpret_cast<const float*>(values);
      for (int at = 0; at < kGroupTokens * size_; ++at) wide_[at] = widen(values[at]);
    } else {
      for (int d = 0; d < size_; d += 16) {
        for (int t = 0; t < kGroupTokens; ++t) {
          for (int i = 0; i < 16; ++i) wide_[t * size_ + d + i] = widen(values[pair_place(d + i, t, block_tokens)]);
        }
      }
    }
    return wide_;
  }

  // All rows, as many at once as fit into the registers, then fewer.
  template <int kRows, typename Do>
  void in_parts(const Do& part, int row = 0) const {
    for (; row + kRows <= rows_; row += kRows) part(std::integral_constant<int, kRows>(), row);
    if constexpr (kRows > 1) in_parts<(kRows > 4 ? kRows / 2 : kRows - 1)>(part, row);
  }

  template <int kRows>
  void score_rows(const float* query, const float* keys, int64_t stride, float* s) const {
    Vector sums[kRows][kVectors] = {};
    for (int d = 0; d < size_; ++d) add_products(query + d, size_, keys + d * stride, sums);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) vector_at(s + row * kStepTokens + v * kWide) = sums[row][v];
    }
  }

  // Of 32 dims and a group's tokens.
  template <int kRows>
  void add_rows(const float* weights, const float* values, float* acc) const {
    Vector sums[kRows][kVectors];
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[row][v] = vector_at(acc + static_cast<size_t>(row) * size_ + v * kWide);
    }
    for (int t = 0; t < kGroupTokens; ++t) add_products(weights + t, kStepTokens, values + static_cast<size_t>(t) * size_, sums);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) vector_at(acc + static_cast<size_t>(row) * size_ + v * kWide) = sums[row][v];
    }
  }

  // A number of each row, times the same 32.
  template <int kRows>
  static inline __attribute__((always_inline)) void add_products(const float* numbers, int64_t stride, const float* by,
                                                                 Vector (&sums)[kRows][kVectors]) {
    Vector b[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) b[v] = vector_at(by + v * kWide);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[row][v] += numbers[row * stride] * b[v];
    }
  }

  int rows_, size_, block_tokens_;
  float* wide_;
};

inline const Kernel* simple_kernel(Type type, Layout layout) {
  const bool rows = layout == Layout::kRows;
  switch (type) {
    case Type::kFloat32:
      return rows ? &kKernel<Simple<float, Layout::kRows>> : &kKernel<Simple<float, Layout::kPairs>>;
    case Type::kBFloat16:
      return rows ? &kKernel<Simple<BFloat16, Layout::kRows>> : &kKernel<Simple<BFloat16, Layout::kPairs>>;
    case Type::kFloat16:
      return rows ? &kKernel<Simple<_Float16, Layout::kRows>> : &kKernel<Simple<_Float16, Layout::kPairs>>;
  }
  return nullptr;
}

}  // namespace PARROT_NAMESPACE
}  // namespace parrot
