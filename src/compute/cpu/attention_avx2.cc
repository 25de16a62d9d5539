#include "compute/cpu/simd_avx2.h"
// After the vectors it is written over.
#include "compute/cpu/attention_row.h"

namespace nib::cpu::avx2 {

template <class E>
void attention_row(const AttentionRow<E>& a) {
  attend(a);
}

template void attention_row(const AttentionRow<float>&);
template void attention_row(const AttentionRow<Half>&);

}  // namespace nib::cpu::avx2
