#include "compute/cpu/block_kernels.h"
#include "compute/cpu/simd_avx2.h"

namespace nib::cpu::avx2 {

template <class E>
void rope_row(E* x, int64_t heads, int64_t head_dim, const float* table) {
  const int64_t half = head_dim / 2;
  for (E* head = x; head < x + heads * head_dim; head += head_dim)
    for (int64_t i = 0; i < half; i += kLanes) {
      const int64_t n = half - i;
      const __m256 cosine = load(table + i, n), sine = load(table + half + i, n);
      const __m256 a = load(head + i, n), b = load(head + half + i, n);
      store(head + i, n, a * cosine - b * sine);
      store(head + half + i, n, b * cosine + a * sine);
    }
}

template void rope_row(float*, int64_t, int64_t, const float*);
template void rope_row(Half*, int64_t, int64_t, const float*);

}  // namespace nib::cpu::avx2
