#include "compute/ops/rope.h"

#include "compute/cpu/block_kernels.h"
#include "compute/cpu/cpu.h"
#include "compute/cpu/gemm.h"

namespace nib::cpu {

template <class T>
void rope(Context& cx, View<T, 2> x, View<const float, 2> table) {
  using E = std::conditional_t<sizeof(T) == 2, Half, float>;
  const int64_t head_dim = table.dim(1), heads = x.dim(1) / head_dim;
  run_parallel(cx, x.dim(0), x.size(),
               [&](int64_t t, int) { avx2::rope_row(reinterpret_cast<E*>(x.row(t)), heads, head_dim, table.row(t)); });
}

template void rope(Context&, View<float, 2>, View<const float, 2>);
template void rope(Context&, View<bf16, 2>, View<const float, 2>);

}  // namespace nib::cpu
