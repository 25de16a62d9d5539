// nib debug quantize: encodes one matrix in a small number format.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "cli/commands.h"
#include "compute/ops/quantize.h"
#include "model/checkpoint.h"

namespace nib::cli {

namespace {

struct Options {
  std::string format, rule = "four-over-six", error = "mae", scope = "token", mx_rule = "ceil", in, out;
  int ceiling = 0;  // 0: 448 for rule six, else 256
};

Nvfp4Params nvfp4_params(const Options& o) {
  Nvfp4Params p;
  p.rule = o.rule == "six" ? Nvfp4Rule::kSix : Nvfp4Rule::kFourOverSix;
  p.ceiling = static_cast<float>(o.ceiling ? o.ceiling : o.rule == "six" ? 448 : 256);
  p.error = o.error == "mae" ? BlockError::kMae : o.error == "mse" ? BlockError::kMse : BlockError::kAbsMax;
  p.scope = o.scope == "token" ? ScaleScope::kToken : ScaleScope::kTensor;
  return p;
}

OutTensor make(const char* name, DType dtype, std::vector<int64_t> shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return {name, dtype, std::move(shape), std::vector<std::byte>(size_in_bytes(dtype, n))};
}
template <class T, int N>
View<T, N> view(OutTensor& t, typename View<T, N>::Shape shape) {
  return View<T, N>(reinterpret_cast<T*>(t.bytes.data()), shape);
}

// The F32 tensor of the file, copied out of it: the file's bytes need not be aligned.
Result<std::vector<float>> read_f32(const Checkpoint& file, const std::string& name,
                                    const std::vector<int64_t>& shape) {
  const TensorInfo* t = file.find(name);
  if (t->dtype != DType::kF32 || t->shape != shape)
    return invalid("{}: {} is {} {}, expected F32 {}", file.shard_name(*t), name, nib::name(t->dtype),
                   shape_text(t->shape), shape_text(shape));
  std::vector<float> values(t->bytes / sizeof(float));
  std::memcpy(values.data(), file.data(*t).data(), t->bytes);
  const auto bad = std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
  if (bad == values.end()) return values;
  const int64_t at = bad - values.begin(), width = shape.back();
  const std::string index =
      shape.size() == 1 ? fmt::format("[{}]", at) : fmt::format("[{}, {}]", at / width, at % width);
  return invalid("{}: {} is {} at {}; only finite numbers can be quantized", file.shard_name(*t), name, *bad, index);
}

Status run(const Options& o) {
  NIB_ASSIGN(const Checkpoint file, Checkpoint::open_file(o.in));
  const TensorInfo* info = file.find("x");
  const int64_t group = o.format == "nvfp4" ? 16 : 32;
  if (!info || info->shape.size() != 2 || info->shape[1] % group)
    return invalid("{}: expected x [N, K] F32, K a multiple of {}", o.in, group);
  NIB_ASSIGN(const std::vector<float> values, read_f32(file, "x", info->shape));
  const int64_t N = info->shape[0], K = info->shape[1];
  const View<const float, 2> x(values.data(), {N, K});

  const bool nvfp4 = o.format == "nvfp4";
  const Nvfp4Params p = nvfp4_params(o);
  const int64_t scopes = p.scope == ScaleScope::kToken ? N : 1, code_bytes = nvfp4 ? K / 2 : K;
  std::vector<OutTensor> out = {make("codes", DType::kU8, {N, code_bytes}), make("scales", DType::kU8, {N, K / group}),
                                make("dequantized", DType::kF32, {N, K})};
  if (nvfp4) out.push_back(make("global_scale", DType::kF32, {scopes}));
  const QuantizedRows rows{view<uint8_t, 2>(out[0], {N, code_bytes}), view<uint8_t, 2>(out[1], {N, K / group}),
                           nvfp4 ? view<float, 1>(out[3], {scopes}) : View<float, 1>(), view<float, 2>(out[2], {N, K})};
  if (!nvfp4) {
    ops::quantize_mxfp8(rows, x, o.mx_rule == "ceil" ? MxRule::kCeil : MxRule::kFloor);
    return write_safetensors(o.out, out);
  }
  std::vector<float> amax(scopes);
  if (file.find("amax")) {
    NIB_ASSIGN(amax, read_f32(file, "amax", {scopes}));
  } else {
    ops::absolute_maxima(View<float, 1>(amax.data(), {scopes}), x, p.scope);
  }
  ops::quantize_nvfp4(rows, x, View<const float, 1>(amax.data(), {scopes}), p);
  return write_safetensors(o.out, out);
}

}  // namespace

void add_debug_quantize_command(CLI::App& debug, Exit& exit) {
  const auto o = std::make_shared<Options>();
  CLI::App* c = debug.add_subcommand("quantize", "Encodes a matrix in NVFP4 or MXFP8");
  c->add_option("--format", o->format, "nvfp4 or mxfp8")->required()->check(CLI::IsMember({"nvfp4", "mxfp8"}));
  c->add_option("--rule", o->rule, "NVFP4: map block maxima to 6, or to 4 or 6 (four-over-six)")
      ->check(CLI::IsMember({"six", "four-over-six"}));
  c->add_option("--ceiling", o->ceiling, "NVFP4: largest block scale; 256, with rule six 448")
      ->check(CLI::IsMember({256, 448}));
  c->add_option("--error", o->error, "Four Over Six: what the choice minimises (mae)")
      ->check(CLI::IsMember({"mae", "mse", "abs_max"}));
  c->add_option("--scope", o->scope, "NVFP4: one outer scale per token or per tensor (token)")
      ->check(CLI::IsMember({"token", "tensor"}));
  c->add_option("--mx-rule", o->mx_rule, "MXFP8: rounding of the exponent (ceil)")
      ->check(CLI::IsMember({"ceil", "floor"}));
  c->add_option("--in", o->in, "safetensors file: x [N, K] F32, optional amax F32 ([N], or [1] per tensor)")
      ->required();
  c->add_option("--out", o->out, "safetensors file to write: codes, scales, global_scale, dequantized")->required();
  c->callback([o, &exit] { exit.code = report("debug quantize", run(*o)); });
}

}  // namespace nib::cli
