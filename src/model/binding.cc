#include <algorithm>
#include <set>

#include "model/tensor_table.h"

namespace nib {

namespace {

std::string described(const TensorInfo& t) { return fmt::format("{} {}", name(t.dtype), shape_text(t.shape)); }

std::string shapes_text(const TensorSpec& s) {
  std::string out;
  for (const auto& shape : s.shapes) out.append(out.empty() ? "" : " or ").append(shape_text(shape));
  return out;
}

WeightFormat plain_format(DType d) { return d == DType::kBF16 ? WeightFormat::kBF16 : WeightFormat::kF32; }
bool is_plain(DType d) { return d == DType::kBF16 || d == DType::kF32 || d == DType::kF16; }

// The tensors whose presence a text network must account for; vision, audio and drafters are others' business.
bool belongs_to_text(const std::string& name) {
  for (const char* prefix : {"model.llm.", "model.language_model.", "model.layers.", "model.embed_tokens.",
                             "model.embed_norm.", "model.norm.", "lm_head."})
    if (name.starts_with(prefix)) return true;
  return false;
}

class Binder {
 public:
  Binder(const ModelConfig& config, const Checkpoint& checkpoint) : config_(config), checkpoint_(checkpoint) {}

  Result<Binding> run() {
    for (TensorSpec& spec : tensor_table(config_, &checkpoint_)) {
      NIB_ASSIGN(BoundTensor b, bind(std::move(spec)));
      const auto key = std::tuple(b.spec.layer, b.spec.role, b.spec.part);
      binding_.tensors.emplace(key, std::move(b));
    }
    NIB_TRY(account_for_the_rest());
    return std::move(binding_);
  }

 private:
  std::string where(const TensorInfo& t) const { return fmt::format("{}: {}", checkpoint_.shard_name(t), t.name); }

  const TensorInfo* take(const std::string& name) {
    const TensorInfo* t = checkpoint_.find(name);
    if (t) read_.insert(t);
    return t;
  }
  const TensorInfo* take_first(const std::vector<std::string>& names) {
    for (const std::string& name : names)
      if (const TensorInfo* t = take(name)) return t;
    return nullptr;
  }

  Result<BoundTensor> bind(TensorSpec spec) {
    BoundTensor b;
    b.spec = std::move(spec);
    if (b.spec.packable) return bind_packable(std::move(b));
    b.info = take_first(b.spec.names);
    if (b.info) {
      NIB_TRY(check_plain(b));
    } else if (!b.spec.optional) {
      return missing(b.spec);
    }
    return b;
  }

  Status missing(const TensorSpec& s) const {
    std::string aliases;
    for (size_t i = 1; i < s.names.size(); ++i) aliases.append(" or ").append(s.names[i]);
    return invalid("{}{} is missing, expected {} {}", s.names[0], aliases, s.f32 ? "F32" : "BF16", shapes_text(s));
  }

  Status check_shape(const BoundTensor& b) const {
    const auto& shapes = b.spec.shapes;
    if (std::find(shapes.begin(), shapes.end(), b.info->shape) != shapes.end()) return {};
    return invalid("{} is {}, expected {}", where(*b.info), shape_text(b.info->shape), shapes_text(b.spec));
  }

  Status check_plain(BoundTensor& b) const {
    NIB_TRY(check_shape(b));
    b.format = plain_format(b.info->dtype);
    if (is_plain(b.info->dtype)) return {};
    return invalid("{} is {}, expected BF16, F32 or F16 {}", where(*b.info), name(b.info->dtype), shapes_text(b.spec));
  }

  // The stems under which the companions of a weight may stand: "w13_weight", and "w13.weight" as other tools write it.
  static std::vector<std::string> stems(const std::string& name) {
    std::vector<std::string> out = {name};
    if (name.ends_with("_weight")) out.push_back(name.substr(0, name.size() - 7) + ".weight");
    return out;
  }

  Result<BoundTensor> bind_packable(BoundTensor b) {
    std::string stem;
    for (const std::string& s : stems(b.spec.names[0]))
      for (const char* suffix : {"", "_packed"})
        if (!b.info && (b.info = take(s + suffix))) stem = s;
    if (!b.info) return missing(b.spec);
    const auto companion = [&](std::initializer_list<const char*> suffixes) -> const TensorInfo* {
      for (const char* suffix : suffixes)
        if (const TensorInfo* t = take(stem + suffix)) return t;
      return nullptr;
    };
    b.scales = companion({"_scale", ".scale", "_scale_inv"});
    b.multiplier = companion({".scale2", "_scale_2"});
    b.reciprocal = companion({"_global_scale"});
    b.amax = companion({"_amax"});
    b.denominator = companion({"_outer_scale_denominator"});
    take_activation_scales(stem, b);
    NIB_TRY(decide_format(b));
    return b;
  }

  // Scales of the activations and notes for other tools; weights are read without them.
  void take_activation_scales(const std::string& stem, BoundTensor& b) {
    std::vector<std::string> names;
    for (const char* suffix :
         {".input_amax", ".original_shape", "_input_amax", "_input_scale", "_input_global_scale", "_shape"})
      names.push_back(stem + suffix);
    if (stem.ends_with("weight"))
      for (const char* suffix : {"input_scale", "input_global_scale", "input_amax"})
        names.push_back(stem.substr(0, stem.size() - 6) + suffix);
    for (const std::string& name : names)
      if (const TensorInfo* t = take(name)) b.unread.push_back(t);
  }

  // The tensors decide: dtype, companions and shapes must tell one story.
  Status decide_format(BoundTensor& b) const {
    const bool outer = b.multiplier || b.reciprocal || b.amax;
    if (is_plain(b.info->dtype)) {
      b.format = plain_format(b.info->dtype);
      if (b.scales || outer || b.denominator)
        return invalid("{} is {} but has the companions of a packed weight", where(*b.info), name(b.info->dtype));
      return check_shape(b);
    }
    if (b.info->dtype == DType::kU8) return check_nvfp4(b);
    if (b.info->dtype != DType::kE4M3)
      return invalid("{} is {}, expected BF16, F32, F16, U8 (NVFP4) or F8_E4M3 (MXFP8)", where(*b.info),
                     name(b.info->dtype));
    b.format = WeightFormat::kMxfp8;
    if (outer || b.denominator)
      return invalid("{} is F8_E4M3 (MXFP8) but has an outer scale, which NVFP4 alone has", where(*b.info));
    NIB_TRY(check_shape(b));
    return check_scales(b, 32, {DType::kE8M0, DType::kU8});
  }

  Status check_nvfp4(BoundTensor& b) const {
    b.format = WeightFormat::kNvfp4;
    std::vector<int64_t> packed = b.spec.shapes[0];
    packed.back() /= 2;
    if (b.info->shape != packed)
      return invalid("{} is {}, expected {} (two NVFP4 codes a byte)", where(*b.info), described(*b.info),
                     shape_text(packed));
    NIB_TRY(check_scales(b, 16, {DType::kE4M3}));
    const int given = (b.multiplier != nullptr) + (b.reciprocal != nullptr) + (b.amax != nullptr);
    if (given != 1 || (b.amax != nullptr) != (b.denominator != nullptr))
      return invalid(
          "{} is NVFP4 and needs one outer scale: _amax with _outer_scale_denominator, .scale2, _scale_2 or "
          "_global_scale",
          where(*b.info));
    for (const TensorInfo* t : {b.multiplier, b.reciprocal, b.amax, b.denominator})
      if (t) NIB_TRY(check_outer(*t, b.spec.shapes[0][0]));
    return {};
  }

  Status check_scales(const BoundTensor& b, int64_t group, std::initializer_list<DType> dtypes) const {
    std::vector<int64_t> shape = b.spec.shapes[0];
    if (shape.back() % group)
      return invalid("{} has rows of {} values, which is no multiple of its scale groups of {}", where(*b.info),
                     shape.back(), group);
    shape.back() /= group;
    if (!b.scales)
      return invalid("{} is packed but {}_scale is missing, expected {} {}", where(*b.info), b.info->name,
                     name(*dtypes.begin()), shape_text(shape));
    if (b.scales->shape != shape || std::find(dtypes.begin(), dtypes.end(), b.scales->dtype) == dtypes.end())
      return invalid("{} is {}, expected {} {}", where(*b.scales), described(*b.scales), name(*dtypes.begin()),
                     shape_text(shape));
    return {};
  }

  Status check_outer(const TensorInfo& t, int64_t experts) const {
    int64_t count = 1;
    for (int64_t d : t.shape) count *= d;
    if ((count == 1 || count == experts) && is_plain(t.dtype)) return {};
    return invalid("{} is {}, expected F32 [{}] or one value", where(t), described(t), experts);
  }

  Status account_for_the_rest() {
    for (const auto& [name, t] : checkpoint_.tensors()) {
      if (read_.contains(&t)) continue;
      if (belongs_to_text(name))
        return invalid("{} ({}) is not read by the {} network; is config.json the one of this checkpoint?", where(t),
                       described(t), config_.generation == Generation::kInkling2 ? "Inkling 2" : "Inkling");
      binding_.unused.push_back(&t);
    }
    return {};
  }

  const ModelConfig& config_;
  const Checkpoint& checkpoint_;
  Binding binding_;
  std::set<const TensorInfo*> read_;
};

}  // namespace

int64_t BoundTensor::bytes() const {
  int64_t bytes = 0;
  for (const TensorInfo* t : {info, scales, multiplier, reciprocal, amax, denominator}) bytes += t ? t->bytes : 0;
  return bytes;
}

const BoundTensor& Binding::at(Role role, int64_t layer, int part) const {
  static const BoundTensor kAbsent{};
  const auto it = tensors.find({layer, role, part});
  return it == tensors.end() ? kAbsent : it->second;
}

Result<Binding> bind_tensors(const ModelConfig& config, const Checkpoint& checkpoint) {
  return Binder(config, checkpoint).run();
}

}  // namespace nib
