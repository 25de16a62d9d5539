#include <immintrin.h>

#include "compute/cpu/kernels.h"

namespace nib::cpu::avx512 {

int64_t multiply_registers(int64_t rounds) {
  constexpr int kChains = 14;  // enough to hide the latency, few enough for the registers
  __m512 sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512bh a = (__m512bh)_mm512_set1_epi16(0x3c00), b = a;
  for (int64_t r = 0; r < rounds; ++r)
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_dpbf16_ps(sum[i], a, b);
  for (int i = 0; i < kChains; ++i) __asm__ volatile("" : : "v"(sum[i]));
  return rounds * kChains * 64;
}

}  // namespace nib::cpu::avx512
