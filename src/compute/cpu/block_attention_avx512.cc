#include "compute/cpu/simd_avx512.h"
// After the vectors it is written over.
#include "compute/cpu/block_attention_head.h"

namespace nib::cpu::avx512 {

template <class E>
void block_attention(const BlockAttentionHead<E>& a) {
  attend_block(a);
}

template void block_attention(const BlockAttentionHead<float>&);
template void block_attention(const BlockAttentionHead<Half>&);

}  // namespace nib::cpu::avx512
