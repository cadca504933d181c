// The products in plain loops, which a compiler makes vectors of: every type and layout, on every processor.
// Each processor's file compiles it with its own flags, in a namespace of its own.
#pragma once

#include "attention.hpp"

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

// 2^x of x <= 0, to about one part in ten million.
inline float exp2_below(float x) {
  const float bounded = x < -126.0f ? -126.0f : x;
  const int32_t whole = static_cast<int32_t>(bounded - 0.5f);  // towards zero, and so to the nearest
  const float f = bounded - static_cast<float>(whole);
  float value = 1.540353039e-4f;
  value = value * f + 1.333355815e-3f;
  value = value * f + 9.618129108e-3f;
  value = value * f + 5.550410866e-2f;
  value = value * f + 2.402265070e-1f;
  value = value * f + 6.931471806e-1f;
  value = value * f + 1.0f;
  const int32_t bits = (whole + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return x < -126.0f ? 0.0f : value * power;
}

template <typename T, Layout layout>
class Simple {
 public:
  using Element = T;
  using Weight = float;
  using Query = float;
  static constexpr int kRowsPadded = 1;

  Simple(int rows, int size, int block_tokens)
      : rows_(rows), size_(size), block_tokens_(block_tokens), wide_(static_cast<size_t>(kGroupTokens) * size) {}

  static int place(int token) { return token; }

  static const T* keys_at(const T* block, int token, int size) {
    return layout == Layout::kRows ? block + token : block + static_cast<size_t>(token) * size;
  }

  static const T* values_at(const T* block, int token, int size) {
    return layout == Layout::kRows ? block + static_cast<size_t>(token) * size : block + token * 16;
  }

  static void pack_query(const T* from, int size, float* to) {
    for (int d = 0; d < size; ++d) to[d] = widen(from[d]);
  }

  void scores(const float* query, const T* keys, float* s) {
    const float* wide = wide_keys(keys);
    const int64_t stride = wide == wide_.data() ? kGroupTokens : block_tokens_;
    for (int row = 0; row < rows_;) {
      const int left = rows_ - row;
      if (left >= PARROT_ROWS_AT_ONCE) {
        score_rows<PARROT_ROWS_AT_ONCE>(query + static_cast<size_t>(row) * size_, wide, stride, s + row * kStepTokens);
        row += PARROT_ROWS_AT_ONCE;
      } else {
        score_rows<1>(query + static_cast<size_t>(row) * size_, wide, stride, s + row * kStepTokens);
        row += 1;
      }
    }
  }

  static float maximum(const float* s, int groups) {
    float found[16];
    std::memcpy(found, s, sizeof found);
    for (int at = 16; at < groups * kGroupTokens; at += 16) {
      for (int i = 0; i < 16; ++i) found[i] = s[at + i] > found[i] ? s[at + i] : found[i];
    }
    return *std::max_element(found, found + 16);
  }

  static float exp2_of(float x) { return exp2_below(x); }

  static float weigh(const float* s, int groups, float scale, float most, float* weights) {
    for (int at = 0; at < groups * kGroupTokens; ++at) weights[at] = exp2_below(s[at] * scale - most);
    float sums[16] = {};
    for (int at = 0; at < groups * kGroupTokens; at += 16) {
      for (int i = 0; i < 16; ++i) sums[i] += weights[at + i];
    }
    float sum = 0;
    for (int i = 0; i < 16; ++i) sum += sums[i];
    return sum;
  }

  static void multiply(float* values, int size, float factor) {
    for (int d = 0; d < size; ++d) values[d] *= factor;
  }

  static void mask_values(const T* values, int block_tokens, int size, int tokens, T* to) {
    std::memset(static_cast<void*>(to), 0, static_cast<size_t>(kGroupTokens) * size * sizeof(T));
    if constexpr (layout == Layout::kRows) {
      std::memcpy(static_cast<void*>(to), values, static_cast<size_t>(tokens) * size * sizeof(T));
    } else {
      for (int d = 0; d < size; ++d) {
        for (int t = 0; t < tokens; ++t) {
          to[pair_place(d, t, kGroupTokens)] = values[pair_place(d, t, block_tokens)];
        }
      }
    }
  }

  void add(const float* weights, const T* const* values, const int* strides, int groups, float* acc) {
    for (int g = 0; g < groups; ++g) {
      const float* wide = wide_values(values[g], strides[g]);
      for (int row = 0; row < rows_; ++row) {
        const float* w = weights + row * kStepTokens + g * kGroupTokens;
        float* out = acc + static_cast<size_t>(row) * size_;
        for (int t = 0; t < kGroupTokens; t += 4) {
          const float* v = wide + static_cast<size_t>(t) * size_;
          const float a = w[t], b = w[t + 1], c = w[t + 2], d = w[t + 3];
          for (int at = 0; at < size_; ++at) {
            out[at] += a * v[at] + b * v[at + size_] + c * v[at + 2 * size_] + d * v[at + 3 * size_];
          }
        }
      }
    }
  }

  static void unpack(const float* values, int size, float* to) { std::memcpy(to, values, size * sizeof(float)); }

  static void store(const float* values, int size, T* to) {
    for (int d = 0; d < size; ++d) narrow(values[d], to + d);
  }

 private:
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
    return wide_.data();
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
    return wide_.data();
  }

  template <int kRows>
  void score_rows(const float* query, const float* keys, int64_t stride, float* s) const {
    float sums[kRows][kGroupTokens] = {};
    for (int d = 0; d < size_; ++d) {
      const float* k = keys + d * stride;
      for (int row = 0; row < kRows; ++row) {
        const float q = query[static_cast<size_t>(row) * size_ + d];
        for (int t = 0; t < kGroupTokens; ++t) sums[row][t] += q * k[t];
      }
    }
    for (int row = 0; row < kRows; ++row) {
      for (int t = 0; t < kGroupTokens; ++t) s[row * kStepTokens + t] = sums[row][t];
    }
  }

  int rows_, size_, block_tokens_;
  std::vector<float> wide_;
};

inline Run simple_kernel(Type type, Layout layout) {
  const bool rows = layout == Layout::kRows;
  switch (type) {
    case Type::kFloat32:
      return rows ? run_item<Simple<float, Layout::kRows>> : run_item<Simple<float, Layout::kPairs>>;
    case Type::kBFloat16:
      return rows ? run_item<Simple<BFloat16, Layout::kRows>> : run_item<Simple<BFloat16, Layout::kPairs>>;
    case Type::kFloat16:
      return rows ? run_item<Simple<_Float16, Layout::kRows>> : run_item<Simple<_Float16, Layout::kPairs>>;
  }
  return nullptr;
}

}  // namespace PARROT_NAMESPACE
}  // namespace parrot
