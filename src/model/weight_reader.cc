#include "model/weight_reader.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/log.h"
#include "model/quant_config.h"

namespace nib {

namespace {

constexpr int64_t kAlwaysCheckBelow = 1'000'000'000;  // bytes

float element_as_float(const std::byte* p, DType dtype) {
  uint16_t half = 0;
  float f = 0;
  switch (dtype) {
    case DType::kF32:
      std::memcpy(&f, p, sizeof f);
      return f;
    case DType::kBF16:
      std::memcpy(&half, p, sizeof half);
      return float(bf16{half});
    case DType::kF16:
      std::memcpy(&half, p, sizeof half);
      return f16_to_float(half);
    default:
      NIB_CHECK(false, "{} is not a plain dtype", name(dtype));
  }
}

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kF32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::kBF16;
}

}  // namespace

namespace {

// "389.40 GB (experts 376.09, attention 9.40, ...)": the part of the plan that decides.
std::string size_by_kind(const Binding& binding) {
  std::array<int64_t, kNumTensorKinds> bytes{};
  int64_t sum = 0;
  for (const auto& [key, b] : binding.tensors) {
    bytes[static_cast<size_t>(b.spec.kind)] += b.bytes();
    sum += b.bytes();
  }
  std::string kinds;
  for (int k = 0; k < kNumTensorKinds; ++k)
    if (bytes[k] > 0)
      kinds += fmt::format("{}{} {:.2f}", kinds.empty() ? "" : ", ", name(static_cast<TensorKind>(k)),
                           static_cast<double>(bytes[k]) / 1e9);
  return fmt::format("{:.2f} GB ({})", static_cast<double>(sum) / 1e9, kinds);
}

}  // namespace

Result<OpenedWeights> open_weights(const ModelConfig& config, Checkpoint checkpoint, int64_t limit_bytes) {
  auto owned = std::make_shared<Checkpoint>(std::move(checkpoint));
  OpenedWeights out{owned, {}};
  NIB_ASSIGN(out.binding, bind_tensors(config, *owned));
  int64_t bytes = 0;
  for (const auto& [key, b] : out.binding.tensors) bytes += b.bytes();
  if (bytes > limit_bytes)
    return invalid("the weights take {} but there are {:.2f} GB of memory; take a larger machine or a smaller model",
                   size_by_kind(out.binding), static_cast<double>(limit_bytes) / 1e9);
  const Result<DeclaredPrecision> declared = DeclaredPrecision::load(owned->shards()[0].parent_path());
  if (declared.ok())  // the declaration is a cross-check only: the tensors stand without it
    for (const std::string& warning : cross_check(*declared, out.binding)) log::warn("{}", warning);
  NIB_TRY(owned->map());
  return out;
}

WeightReader::WeightReader(std::shared_ptr<const Checkpoint> checkpoint, bool check_scales)
    : memory_(std::make_shared<Memory>(Memory{checkpoint, {}})),
      checkpoint_(*memory_->checkpoint),
      check_scales_(check_scales || checkpoint_.total_bytes() < kAlwaysCheckBelow) {}

std::byte* WeightReader::allocate(int64_t bytes) { return memory_->buffers.emplace_back(bytes).data(); }

const std::byte* WeightReader::as_dtype(const TensorInfo& t, DType want) {
  const std::byte* from = checkpoint_.data(t).data();
  const int64_t width = size_in_bytes(want, 1), n = count(t);
  if (t.dtype == want && reinterpret_cast<uintptr_t>(from) % width == 0) return from;
  std::byte* to = allocate(n * width);
  if (t.dtype == want) {
    std::memcpy(to, from, t.bytes);
    return to;
  }
  const int64_t step = size_in_bytes(t.dtype, 1);
  for (int64_t i = 0; i < n; ++i) {
    const float f = element_as_float(from + i * step, t.dtype);
    if (want == DType::kF32)
      reinterpret_cast<float*>(to)[i] = f;
    else
      reinterpret_cast<bf16*>(to)[i] = bf16::from(f);
  }
  return to;
}

template <class T>
const T* WeightReader::elements(const TensorInfo& t) {
  return reinterpret_cast<const T*>(as_dtype(t, dtype_of<T>()));
}
template const float* WeightReader::elements<float>(const TensorInfo&);
template const bf16* WeightReader::elements<bf16>(const TensorInfo&);

Weight WeightReader::plain(const TensorInfo& t, int64_t rows, int64_t columns) {
  const bool half = t.dtype == DType::kBF16;
  Weight w;
  w.format = half ? WeightFormat::kBF16 : WeightFormat::kF32;
  w.out = rows;
  w.in = columns;
  w.data = as_dtype(t, half ? DType::kBF16 : DType::kF32);
  return w;
}

Weight WeightReader::matrix(const BoundTensor& b) {
  if (!b.present()) return {};
  return plain(*b.info, count(*b.info) / b.info->shape.back(), b.info->shape.back());
}

const std::byte* WeightReader::alternate_rows(const std::byte* gates, const std::byte* ups, int64_t rows,
                                              int64_t row_bytes, std::byte* out) {
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(out + 2 * i * row_bytes, gates + i * row_bytes, row_bytes);
    std::memcpy(out + (2 * i + 1) * row_bytes, ups + i * row_bytes, row_bytes);
  }
  return out;
}

Weight WeightReader::interleaved(const BoundTensor& gate, const BoundTensor& up) {
  Weight g = matrix(gate), u = matrix(up);
  if (g.format != u.format) {  // one of them is stored wider: both become F32
    g.data = as_dtype(*gate.info, DType::kF32);
    u.data = as_dtype(*up.info, DType::kF32);
    g.format = WeightFormat::kF32;
  }
  const int64_t row = g.in * (g.format == WeightFormat::kBF16 ? 2 : 4);
  g.data = alternate_rows(static_cast<const std::byte*>(g.data), static_cast<const std::byte*>(u.data), g.out, row,
                          allocate(2 * g.out * row));
  g.out *= 2;
  return g;
}

std::vector<Weight> WeightReader::interleaved_experts(const BoundTensor& gate, const BoundTensor& up) {
  const int64_t n = gate.info->shape[0];
  const Weight all = interleaved(gate, up);  // pairs of rows stay within their expert
  std::vector<Weight> out;
  const int64_t bytes = all.out / n * all.in * (all.format == WeightFormat::kBF16 ? 2 : 4);
  for (int64_t e = 0; e < n; ++e) {
    Weight w = all;
    w.out = all.out / n;
    w.data = static_cast<const std::byte*>(all.data) + e * bytes;
    out.push_back(w);
  }
  return out;
}

WeightReader::Plane WeightReader::plane(const TensorInfo& t, const BoundTensor& b, int64_t experts, int64_t rows) {
  const bool convert = t.dtype == DType::kF16;
  const DType stored = convert ? DType::kF32 : t.dtype;
  const bool is_wide = size_in_bytes(stored, 1) > 1;
  const std::byte* data = is_wide ? as_dtype(t, stored) : checkpoint_.data(t).data();
  const int64_t bytes = size_in_bytes(stored, count(t)) / experts;
  if (b.spec.halves) {
    std::byte* out = allocate(bytes * experts);
    for (int64_t e = 0; e < experts; ++e)
      alternate_rows(data + e * bytes, data + e * bytes + bytes / 2, rows / 2, bytes / rows, out + e * bytes);
    data = out;
  }
  return {data, bytes};
}

std::vector<Weight> WeightReader::experts(const BoundTensor& b) {
  const std::vector<int64_t>& shape = b.spec.shapes[0];
  const int64_t n = shape[0];
  if (b.scales && check_scales_) check_scale_bytes(b);
  const Plane data = plane(*b.info, b, n, shape[1]);
  const Plane scales = b.scales ? plane(*b.scales, b, n, shape[1]) : Plane{};
  const std::vector<float> outer = outer_scales(b, n);
  std::vector<Weight> out(n);
  for (int64_t e = 0; e < n; ++e) {
    Weight& w = out[e];
    w.format = b.format;
    w.out = shape[1];
    w.in = shape[2];
    w.data = data.data + e * data.expert_bytes;
    if (b.scales) w.scales = reinterpret_cast<const uint8_t*>(scales.data + e * scales.expert_bytes);
    w.outer = outer[e];
  }
  return out;
}

// One FP32 rounding: outer[e] = amax[e] / denominator, 1 / reciprocal[e], or the multiplier as stored.
std::vector<float> WeightReader::outer_scales(const BoundTensor& b, int64_t experts) {
  std::vector<float> outer(experts, 1.0f);
  const TensorInfo* given = b.amax ? b.amax : b.multiplier ? b.multiplier : b.reciprocal;
  if (!given) return outer;
  const auto read = [&](const TensorInfo& t) {  // one value an expert
    const float* values = elements<float>(t);
    return count(t) == 1 ? std::vector<float>(experts, values[0]) : std::vector<float>(values, values + experts);
  };
  const std::vector<float> values = read(*given);
  const std::vector<float> denominators = b.denominator ? read(*b.denominator) : std::vector<float>(experts, 1.0f);
  for (int64_t e = 0; e < experts; ++e) {
    outer[e] = given == b.reciprocal ? 1.0f / values[e] : values[e] / denominators[e];
    if (!(outer[e] >= 0) || std::isinf(outer[e]))
      fail(invalid("{}: the outer scale of {} for expert {} is {}, expected a finite number",
                   checkpoint_.shard_name(*b.info), b.info->name, e, outer[e]));
  }
  return outer;
}

void WeightReader::check_scale_bytes(const BoundTensor& b) {
  const auto bytes = checkpoint_.data(*b.scales);
  const int64_t i = find_bad_scale(bytes, b.format);
  if (i >= 0)
    fail(invalid("{}: {} holds 0x{:02x} at element {}, which is {}; the checkpoint is damaged",
                 checkpoint_.shard_name(*b.scales), b.scales->name, static_cast<int>(bytes[i]), i,
                 b.format == WeightFormat::kMxfp8 || (static_cast<int>(bytes[i]) & 127) == 127 ? "NaN" : "negative"));
}

int64_t find_bad_scale(std::span<const std::byte> scales, WeightFormat format) {
  const int limit = format == WeightFormat::kMxfp8 ? 255 : 127;  // E4M3: 127 is NaN, above it is the sign bit
  for (size_t i = 0; i < scales.size(); ++i)
    if (static_cast<int>(scales[i]) >= limit) return static_cast<int64_t>(i);
  return -1;
}

}  // namespace nib
