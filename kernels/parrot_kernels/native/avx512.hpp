// Of AVX-512: what all kernels with weights in bfloat16 have in common.
#pragma once

#include <immintrin.h>

#include "attention.hpp"

namespace parrot {
namespace {

inline __m512 exp2_of_vector(__m512 x) {
  const __m512 bounded = _mm512_max_ps(x, _mm512_set1_ps(-126.0f));
  const __m512 whole = _mm512_roundscale_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(bounded, whole);
  __m512 value = _mm512_set1_ps(1.333355815e-3f);
  value = _mm512_fmadd_ps(value, f, _mm512_set1_ps(9.618129108e-3f));
  value = _mm512_fmadd_ps(value, f, _mm512_set1_ps(5.550410866e-2f));
  value = _mm512_fmadd_ps(value, f, _mm512_set1_ps(2.402265070e-1f));
  value = _mm512_fmadd_ps(value, f, _mm512_set1_ps(6.931471806e-1f));
  value = _mm512_fmadd_ps(value, f, _mm512_set1_ps(1.0f));
  const __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_GE_OQ);
  return _mm512_maskz_scalef_ps(counts, value, whole);
}

inline float maximum_of(const float* s, int groups) {
  __m512 most = _mm512_loadu_ps(s);
  for (int at = 16; at < groups * kGroupTokens; at += 16) most = _mm512_max_ps(most, _mm512_loadu_ps(s + at));
  return _mm512_reduce_max_ps(most);
}

inline float weights_of(const float* s, int groups, float scale, float most, uint16_t* weights) {
  const __m512 by = _mm512_set1_ps(scale), shift = _mm512_set1_ps(most);
  __m512 sum = _mm512_setzero_ps();
  for (int at = 0; at < groups * kGroupTokens; at += 32) {
    const __m512 low = exp2_of_vector(_mm512_fmsub_ps(_mm512_loadu_ps(s + at), by, shift));
    const __m512 high = exp2_of_vector(_mm512_fmsub_ps(_mm512_loadu_ps(s + at + 16), by, shift));
    sum = _mm512_add_ps(sum, _mm512_add_ps(low, high));
    _mm512_storeu_si512(weights + at, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  }
  return _mm512_reduce_add_ps(sum);
}

}  // namespace
}  // namespace parrot
