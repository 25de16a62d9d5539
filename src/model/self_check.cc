#include "model/self_check.h"

#include <cstring>
#include <memory>

#include "model/quant_config.h"
#include "model/weight_reader.h"

namespace nib {

namespace {

// Index of the first NaN or infinity, or -1. E4M3 has no infinity.
int64_t find_bad_value(std::span<const std::byte> bytes, DType dtype) {
  const int64_t width = size_in_bytes(dtype, 1), n = static_cast<int64_t>(bytes.size()) / width;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * width, width);
    const bool bad = dtype == DType::kF32    ? (bits & 0x7f800000u) == 0x7f800000u
                     : dtype == DType::kBF16 ? (bits & 0x7f80u) == 0x7f80u
                     : dtype == DType::kF16  ? (bits & 0x7c00u) == 0x7c00u
                                             : dtype == DType::kE4M3 && (bits & 0x7fu) == 0x7fu;
    if (bad) return i;
  }
  return -1;
}

void check_values(const Checkpoint& checkpoint, const TensorInfo& t, SelfCheck& out) {
  const int64_t i = find_bad_value(checkpoint.data(t), t.dtype);
  if (i >= 0)
    out.problems.push_back(
        fmt::format("{}: {} holds NaN or infinity at element {}", checkpoint.shard_name(t), t.name, i));
}

void check_scales(const Checkpoint& checkpoint, const BoundTensor& b, SelfCheck& out) {
  const int64_t i = find_bad_scale(checkpoint.data(*b.scales), b.format);
  if (i >= 0)
    out.problems.push_back(fmt::format("{}: {} holds a NaN or negative scale at element {}",
                                       checkpoint.shard_name(*b.scales), b.scales->name, i));
}

// What the tensors hold may each be a number, and yet give no scale: a negative maximum, a denominator of 0.
void check_outer_scales(const std::shared_ptr<const Checkpoint>& checkpoint, const BoundTensor& b, SelfCheck& out) {
  WeightReader reader(checkpoint, /*check_scales=*/false);
  reader.outer_scales(b, b.spec.shapes[0][0]);
  if (!reader.status().ok()) out.problems.push_back(reader.status().message());
}

void check_tensor(const std::shared_ptr<const Checkpoint>& checkpoint, const BoundTensor& b, SelfCheck& out) {
  const size_t found = out.problems.size();
  if (b.scales) check_scales(*checkpoint, b, out);
  for (const TensorInfo* t : {b.info, b.multiplier, b.reciprocal, b.amax, b.denominator})
    if (t && t->dtype != DType::kU8) check_values(*checkpoint, *t, out);
  if (b.scales && out.problems.size() == found) check_outer_scales(checkpoint, b, out);
}

}  // namespace

Result<SelfCheck> self_check(const std::filesystem::path& folder) {
  NIB_ASSIGN(const ModelConfig config, ModelConfig::load(folder));
  NIB_ASSIGN(Checkpoint opened, Checkpoint::open(folder));
  const auto checkpoint = std::make_shared<Checkpoint>(std::move(opened));
  NIB_ASSIGN(const Binding binding, bind_tensors(config, *checkpoint));
  NIB_ASSIGN(const DeclaredPrecision declared, DeclaredPrecision::load(folder));
  NIB_TRY(checkpoint->map());
  SelfCheck out;
  out.tensors = static_cast<int64_t>(checkpoint->tensors().size());
  out.bytes = checkpoint->total_bytes();
  out.unused = static_cast<int64_t>(binding.unused.size());
  out.warnings = cross_check(declared, binding);
  for (const auto& [key, b] : binding.tensors) check_tensor(checkpoint, b, out);
  return out;
}

}  // namespace nib
