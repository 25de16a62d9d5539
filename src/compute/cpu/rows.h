// The row operations of the machine, by activation type.
//   const auto& rows = row_kernels<T>(cx.isa);
//   rows.rms_norm(raw(y.row(t)), raw(x.row(t)), raw(weight.data()), n, eps);
#pragma once

#include "compute/cpu/kernels.h"
#include "compute/tensor/context.h"
#include "compute/tensor/dtype.h"

namespace nib::cpu {

inline float* raw(float* p) { return p; }
inline const float* raw(const float* p) { return p; }
inline Half* raw(bf16* p) { return reinterpret_cast<Half*>(p); }
inline const Half* raw(const bf16* p) { return reinterpret_cast<const Half*>(p); }

template <class T>
const auto& row_kernels(Isa isa) {
  if constexpr (sizeof(T) == 4)
    return isa == Isa::kAvx2 ? avx2::kFloatRows : avx512::kFloatRows;
  else
    return isa == Isa::kAvx2 ? avx2::kHalfRows : avx512::kHalfRows;
}

}  // namespace nib::cpu
