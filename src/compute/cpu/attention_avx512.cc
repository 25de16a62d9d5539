#include "compute/cpu/simd_avx512.h"
// After the vectors it is written over.
#include "compute/cpu/attention_row.h"

namespace nib::cpu::avx512 {

template <class E>
void attention_row(const AttentionRow<E>& a) {
  attend(a);
}

template void attention_row(const AttentionRow<float>&);
template void attention_row(const AttentionRow<Half>&);

}  // namespace nib::cpu::avx512
