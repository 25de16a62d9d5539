#include <immintrin.h>

#include "compute/cpu/kernels.h"

namespace nib::cpu::avx2 {

int64_t multiply_registers(int64_t rounds) {
  constexpr int kChains = 12;  // enough to hide the latency, few enough for the registers
  __m256 sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.5f), b = a;
  for (int64_t r = 0; r < rounds; ++r)
    for (int i = 0; i < kChains; ++i) sum[i] = _mm256_fmadd_ps(a, b, sum[i]);
  for (int i = 0; i < kChains; ++i) __asm__ volatile("" : : "x"(sum[i]));
  return rounds * kChains * 16;
}

int64_t read_memory(const std::byte* data, int64_t bytes) {
  __m256i sum[8];
  for (int i = 0; i < 8; ++i) sum[i] = _mm256_setzero_si256();
  for (int64_t offset = 0; offset + 256 <= bytes; offset += 256)
    for (int i = 0; i < 8; ++i) {
      const __m256i* p = reinterpret_cast<const __m256i*>(data + offset) + i;
      sum[i] = _mm256_xor_si256(sum[i], _mm256_loadu_si256(p));
    }
  for (int i = 1; i < 8; ++i) sum[0] = _mm256_xor_si256(sum[0], sum[i]);
  return _mm256_extract_epi64(sum[0], 0);
}

}  // namespace nib::cpu::avx2
