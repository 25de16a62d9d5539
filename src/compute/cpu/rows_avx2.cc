#include "compute/cpu/simd_avx2.h"
// After the vectors it is written over.
#include "compute/cpu/row_kernels.h"

namespace nib::cpu::avx2 {

constinit const RowKernels<float> kFloatRows = row_kernels<float>();
constinit const RowKernels<Half> kHalfRows = row_kernels<Half>();

}  // namespace nib::cpu::avx2
