#include "compute/tensor/context.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>

namespace nib {

namespace {

constexpr std::array<std::string_view, 4> kNames = {"ref", "avx2", "avx512", "amx"};

// Linux hands out the AMX tile state on request only.
bool amx_permitted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has(Isa isa) {
  __builtin_cpu_init();
  switch (isa) {
    case Isa::kRef:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16");
    case Isa::kAmx: {
      unsigned a = 7, b = 0, c = 0, d = 0;
      __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
      const bool tiles = d >> 24 & 1, bf16 = d >> 22 & 1;
      return has(Isa::kAvx512) && tiles && bf16 && amx_permitted();
    }
  }
  return false;
}

}  // namespace

std::string_view name(Isa isa) { return kNames[static_cast<int>(isa)]; }

Result<Isa> isa_from_name(std::string_view text) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] != text) continue;
    if (!has(static_cast<Isa>(i)))
      return invalid("--cpu-isa {}: this machine lacks it, the best here is {}", text, name(best_isa()));
    return static_cast<Isa>(i);
  }
  return invalid("--cpu-isa {}: expected ref, avx2, avx512 or amx", text);
}

Isa best_isa() {
  for (Isa isa : {Isa::kAmx, Isa::kAvx512, Isa::kAvx2})
    if (has(isa)) return isa;
  return Isa::kRef;
}

}  // namespace nib
