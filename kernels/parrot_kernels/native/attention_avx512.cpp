// For x86-64 with AVX-512: dot products of bfloat16 pairs where the KV is bfloat16, plain loops otherwise.
#include "avx512.hpp"

#define PARROT_NAMESPACE avx512
#define PARROT_ROWS_AT_ONCE 8
#include "attention_simple.hpp"

namespace parrot {
namespace avx512 {
namespace {

inline __m512bh broadcast_pair(const uint16_t* at) {
  int32_t pair;
  std::memcpy(&pair, at, sizeof pair);
  return (__m512bh)_mm512_set1_epi32(pair);
}

// Keys and values lie in pairs already: each register is the pairs of sixteen tokens, or dims.
struct Pairs {
  static constexpr Layout kLayout = Layout::kPairs;

  static void load_keys(const uint16_t* keys, int pair, int size, int, __m512bh out[2]) {
    out[0] = (__m512bh)_mm512_loadu_si512(keys + pair * 32);
    out[1] = (__m512bh)_mm512_loadu_si512(keys + static_cast<size_t>(16) * size + pair * 32);
  }
  static void load_values(const uint16_t* values, int dim, int pair, int, int block_tokens, __m512bh out[2]) {
    const uint16_t* at = values + static_cast<size_t>(dim / 16) * block_tokens * 16 + pair * 32;
    out[0] = (__m512bh)_mm512_loadu_si512(at);
    out[1] = (__m512bh)_mm512_loadu_si512(at + static_cast<size_t>(block_tokens) * 16);
  }
  static constexpr bool kShuffled = false;
};

// Rows of 32 tokens, or dims, are interleaved with the next row. That is done within lanes of eight, and so
// neither scores nor accumulators stand in order: `place` says where.
struct Rows {
  static constexpr Layout kLayout = Layout::kRows;

  static void interleave(const uint16_t* first, const uint16_t* second, __m512bh out[2]) {
    const __m512i a = _mm512_loadu_si512(first), b = _mm512_loadu_si512(second);
    out[0] = (__m512bh)_mm512_unpacklo_epi16(a, b);
    out[1] = (__m512bh)_mm512_unpackhi_epi16(a, b);
  }
  static void load_keys(const uint16_t* keys, int pair, int, int block_tokens, __m512bh out[2]) {
    const uint16_t* at = keys + static_cast<size_t>(2 * pair) * block_tokens;
    interleave(at, at + block_tokens, out);
  }
  static void load_values(const uint16_t* values, int dim, int pair, int size, int, __m512bh out[2]) {
    // Of the tokens whose weights stand at 2 * pair and behind it.
    const int token = 2 * pair < 16 ? pair / 2 * 8 + pair % 2 * 2 : (pair - 8) / 2 * 8 + 4 + pair % 2 * 2;
    const uint16_t* at = values + static_cast<size_t>(token) * size + dim;
    interleave(at, at + size, out);
  }
  static constexpr bool kShuffled = true;
};

// Where the tokens (or dims) of 32 stand after an interleaving: the first halves of the lanes, then the second.
inline int shuffled_place(int at) { return at % 8 < 4 ? at / 8 * 4 + at % 8 : 16 + at / 8 * 4 + at % 8 - 4; }

template <typename Kind>
class Dots : public Simple<BFloat16, Kind::kLayout> {
  using Base = Simple<BFloat16, Kind::kLayout>;

 public:
  using Weight = uint16_t;
  using Query = uint16_t;

  static int64_t wide_numbers(int) { return 0; }

  Dots(int rows, int size, int block_tokens, float* wide)
      : Base(rows, size, block_tokens, wide), rows_(rows), size_(size), block_tokens_(block_tokens) {}

  static int place(int token) { return Kind::kShuffled ? shuffled_place(token) : token; }

  static void pack_query(const BFloat16* from, int size, uint16_t* to) { std::memcpy(to, from, size * sizeof *to); }

  void scores(const uint16_t* query, const BFloat16* keys, float* s) const {
    const uint16_t* k = &keys->bits;
    int row = 0;
    for (; row + 12 <= rows_; row += 12) score_rows<12>(query + static_cast<size_t>(row) * size_, k, s + row * kStepTokens);
    query += static_cast<size_t>(row) * size_;
    s += row * kStepTokens;
    switch (rows_ - row) {
      case 1: return score_rows<1>(query, k, s);
      case 2: return score_rows<2>(query, k, s);
      case 3: return score_rows<3>(query, k, s);
      case 4: return score_rows<4>(query, k, s);
      case 5: return score_rows<5>(query, k, s);
      case 6: return score_rows<6>(query, k, s);
      case 7: return score_rows<7>(query, k, s);
      case 8: return score_rows<8>(query, k, s);
      case 9: return score_rows<9>(query, k, s);
      case 10: return score_rows<10>(query, k, s);
      case 11: return score_rows<11>(query, k, s);
    }
  }

  static bool exceeds(const float* s, int groups, float limit) { return exceeds_of(s, groups, limit); }

  static float maximum(const float* s, int groups) { return maximum_of(s, groups); }

  static void weigh(const float* s, int groups, float scale, float most, uint16_t* weights, float* sums) {
    weights_of(s, groups, scale, most, weights, sums);
  }

  void add(const uint16_t* weights, const BFloat16* const* values, const int* strides, int groups, float* acc) const {
    for (int dim = 0; dim < size_; dim += 32) {
      int row = 0;
      for (; row + 12 <= rows_; row += 12) add_rows<12>(weights, values, strides, groups, dim, row, acc);
      switch (rows_ - row) {
        case 1: add_rows<1>(weights, values, strides, groups, dim, row, acc); break;
        case 2: add_rows<2>(weights, values, strides, groups, dim, row, acc); break;
        case 3: add_rows<3>(weights, values, strides, groups, dim, row, acc); break;
        case 4: add_rows<4>(weights, values, strides, groups, dim, row, acc); break;
        case 5: add_rows<5>(weights, values, strides, groups, dim, row, acc); break;
        case 6: add_rows<6>(weights, values, strides, groups, dim, row, acc); break;
        case 7: add_rows<7>(weights, values, strides, groups, dim, row, acc); break;
        case 8: add_rows<8>(weights, values, strides, groups, dim, row, acc); break;
        case 9: add_rows<9>(weights, values, strides, groups, dim, row, acc); break;
        case 10: add_rows<10>(weights, values, strides, groups, dim, row, acc); break;
        case 11: add_rows<11>(weights, values, strides, groups, dim, row, acc); break;
      }
    }
  }

  static void unpack(const float* values, int size, float* to) {
    if constexpr (!Kind::kShuffled) return Base::unpack(values, size, to);
    for (int d = 0; d < size; ++d) to[d] = values[d / 32 * 32 + shuffled_place(d % 32)];
  }

  static void store(const float* values, int size, BFloat16* to) {
    if constexpr (!Kind::kShuffled) return Base::store(values, size, to);
    for (int d = 0; d < size; ++d) narrow(values[d / 32 * 32 + shuffled_place(d % 32)], to + d);
  }

 private:
  template <int kRows>
  void score_rows(const uint16_t* query, const uint16_t* keys, float* s) const {
    __m512 sums[kRows][2];
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) sums[row][0] = sums[row][1] = _mm512_setzero_ps();
    for (int pair = 0; pair < size_ / 2; ++pair) {
      __m512bh k[2];
      Kind::load_keys(keys, pair, size_, block_tokens_, k);
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        const __m512bh q = broadcast_pair(query + static_cast<size_t>(row) * size_ + 2 * pair);
        sums[row][0] = _mm512_dpbf16_ps(sums[row][0], q, k[0]);
        sums[row][1] = _mm512_dpbf16_ps(sums[row][1], q, k[1]);
      }
    }
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      _mm512_storeu_ps(s + row * kStepTokens, sums[row][0]);
      _mm512_storeu_ps(s + row * kStepTokens + 16, sums[row][1]);
    }
  }

  template <int kRows>
  void add_rows(const uint16_t* weights, const BFloat16* const* values, const int* strides, int groups, int dim, int first,
                float* acc) const {
    __m512 sums[kRows][2];
    float* out = acc + static_cast<size_t>(first) * size_ + dim;
    weights += first * kStepTokens;
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      sums[row][0] = _mm512_loadu_ps(out + static_cast<size_t>(row) * size_);
      sums[row][1] = _mm512_loadu_ps(out + static_cast<size_t>(row) * size_ + 16);
    }
    for (int g = 0; g < groups; ++g) {
      for (int pair = 0; pair < kGroupTokens / 2; ++pair) {
        __m512bh v[2];
        Kind::load_values(&values[g]->bits, dim, pair, size_, strides[g], v);
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) {
          const __m512bh w = broadcast_pair(weights + row * kStepTokens + g * kGroupTokens + 2 * pair);
          sums[row][0] = _mm512_dpbf16_ps(sums[row][0], w, v[0]);
          sums[row][1] = _mm512_dpbf16_ps(sums[row][1], w, v[1]);
        }
      }
    }
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      _mm512_storeu_ps(out + static_cast<size_t>(row) * size_, sums[row][0]);
      _mm512_storeu_ps(out + static_cast<size_t>(row) * size_ + 16, sums[row][1]);
    }
  }

  int rows_, size_, block_tokens_;
};

}  // namespace
}  // namespace avx512
}  // namespace parrot

const parrot::Kernel* parrot::avx512_kernel(Type type, Layout layout) {
  if (type == Type::kBFloat16) {
    return layout == Layout::kPairs ? &kKernel<avx512::Dots<avx512::Pairs>> : &kKernel<avx512::Dots<avx512::Rows>>;
  }
  return avx512::simple_kernel(type, layout);
}
