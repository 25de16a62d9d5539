// What every operation is given: where it runs and what it may use while it runs.
//   ThreadPool pool(2); Workspace ws(64 << 20);
//   Context cx{Isa::kAvx512, pool, ws};
//   ops::rms_norm(cx, y, x, weight, eps);
#pragma once

#include <string_view>

#include "base/status.h"
#include "base/thread_pool.h"
#include "compute/tensor/buffer.h"

namespace nib {

// The instruction set of the CPU kernels. kRef is plain loops on any machine.
//   kAvx2: AVX2 + FMA;  kAvx512: AVX-512 F/BW/DQ/VL/VBMI + BF16;  kAmx: kAvx512 + AMX-BF16.
enum class Isa { kRef, kAvx2, kAvx512, kAmx };

std::string_view name(Isa isa);
Result<Isa> isa_from_name(std::string_view name);  // "ref", "avx2", "avx512", "amx"; one this machine lacks is an error
Isa best_isa();                                    // of this machine

struct Context {
  Isa isa;
  ThreadPool& pool;
  Workspace& workspace;
};

}  // namespace nib
