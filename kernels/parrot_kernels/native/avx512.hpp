// Of AVX-512: what all kernels with weights in bfloat16 have in common.
#pragma once

#include <immintrin.h>

#include "attention_unit.hpp"

namespace parrot {
namespace {

// 2^x to one part in ten thousand, of which bfloat16 keeps a two hundredth; nothing below 2^-126.
inline __m512 exp2_of_vector(__m512 x) {
  // In this order what is no number stays so.
  const __m512 bounded = _mm512_max_ps(_mm512_set1_ps(-126.0f), x);
  const __m512 whole = _mm512_roundscale_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(bounded, whole);
  __m512 value = _mm512_set1_ps(5.517167e-2f);
  value = _mm512_fmadd_ps(value, f, _mm512_set1_ps(2.4261113e-1f));
  value = _mm512_fmadd_ps(value, f, _mm512_set1_ps(6.9326099e-1f));
  value = _mm512_fmadd_ps(value, f, _mm512_set1_ps(9.9992807e-1f));
  return _mm512_scalef_ps(value, whole);
}

inline bool exceeds_of(const float* s, int groups, float limit) {
  __m512 most = _mm512_loadu_ps(s);
  for (int at = 16; at < groups * kGroupTokens; at += 16) most = _mm512_max_ps(most, _mm512_loadu_ps(s + at));
  return _mm512_cmp_ps_mask(most, _mm512_set1_ps(limit), _CMP_GT_OQ) != 0;
}

inline float maximum_of(const float* s, int groups) {
  __m512 most = _mm512_loadu_ps(s);
  for (int at = 16; at < groups * kGroupTokens; at += 16) most = _mm512_max_ps(most, _mm512_loadu_ps(s + at));
  return _mm512_reduce_max_ps(most);
}

inline void weights_of(const float* s, int groups, float scale, float most, uint16_t* weights, float* sums) {
  const __m512 by = _mm512_set1_ps(scale), shift = _mm512_set1_ps(most);
  __m512 sum = _mm512_loadu_ps(sums);
  for (int at = 0; at < groups * kGroupTokens; at += 32) {
    const __m512 low = exp2_of_vector(_mm512_fmsub_ps(_mm512_loadu_ps(s + at), by, shift));
    const __m512 high = exp2_of_vector(_mm512_fmsub_ps(_mm512_loadu_ps(s + at + 16), by, shift));
    sum = _mm512_add_ps(sum, _mm512_add_ps(low, high));
    _mm512_storeu_si512(weights + at, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  }
  _mm512_storeu_ps(sums, sum);
}

}  // namespace
}  // namespace parrot
