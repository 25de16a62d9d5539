// One element of either activation type as a float, for the kernel files. In an anonymous namespace for the reason that
// kernels.h gives.
//   float x = to_float(row[i]);
#pragma once

#include "compute/cpu/kernels.h"

namespace nib::cpu {
namespace {

inline float to_float(float f) { return f; }
inline float to_float(Half h) {
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}

}  // namespace
}  // namespace nib::cpu
