#include "model/memory_limit.h"
#include "model/weight_reader.h"
#include "model/weights.h"

namespace nib {

namespace {

template <class T>
class Inkling2Loader {
 public:
  using Layer = typename Inkling2Weights<T>::Layer;

  Inkling2Loader(const ModelConfig& config, const Binding& binding, WeightReader& reader)
      : config_(config), binding_(binding), reader_(reader) {}

  Inkling2Weights<T> load() {
    Inkling2Weights<T> w;
    w.embed = reader_.matrix(binding_.at(Role::kEmbed));
    w.unembed = reader_.matrix(binding_.at(Role::kUnembed));
    w.unembed.out = config_.unpadded_vocab_size;  // padded rows are never sampled
    w.embed_norm = reader_.vector<T>(binding_.at(Role::kEmbedNorm));
    w.norm = reader_.vector<T>(binding_.at(Role::kNorm));
    w.output_query = reader_.vector<float>(binding_.at(Role::kOutputQuery));
    for (layer_ = 0; layer_ < config_.num_layers(); ++layer_) w.layers.push_back(load_layer());
    w.owner = reader_.owner();
    return w;
  }

 private:
  const BoundTensor& at(Role role, int part = 0) const { return binding_.at(role, layer_, part); }

  Layer load_layer() {
    Layer y;
    load_depth_mixing(y);
    load_projections(y);
    load_convolutions(y);
    y.o = reader_.matrix(at(Role::kO));
    const BoundTensor& table = at(Role::kTable);
    y.table = reader_.template table<T>(table, table.info->shape[1]);
    y.q_scale = reader_.template vector<T>(at(Role::kQScale));
    y.k_scale = reader_.template vector<T>(at(Role::kKScale));
    y.r_scale = reader_.template vector<T>(at(Role::kRScale));
    y.router = reader_.matrix(at(Role::kRouter));
    y.router_bias = reader_.template vector<float>(at(Role::kRouterBias));
    y.router_global_scale = reader_.scalar(at(Role::kRouterScale));
    y.w13 = reader_.experts(at(Role::kW13));
    y.w2 = reader_.experts(at(Role::kW2));
    return y;
  }

  void load_depth_mixing(Layer& y) {
    const int64_t H = config_.hidden_size;
    const int parts = config_.layers[layer_].full ? 3 : 1;
    const BoundTensor& stacked = at(Role::kAttnNorms);
    for (int part = 0; part < parts; ++part) {
      if (layer_ > 0) y.queries.push_back(reader_.template row<float>(at(Role::kAttnQuery), part, H));
      y.norms.push_back(stacked.present() ? reader_.template row<T>(stacked, part, H)
                                          : reader_.template vector<T>(at(Role::kAttnNorm, part)));
    }
    y.mlp_query = reader_.template vector<float>(at(Role::kMlpQuery));
    y.mlp_norm = reader_.template vector<T>(at(Role::kMlpNorm));
  }

  void load_projections(Layer& y) {
    if (at(Role::kQkvr).present()) return split_fused(y);
    y.q = reader_.matrix(at(Role::kQ));
    y.k = reader_.matrix(at(Role::kK));
    y.v = reader_.matrix(at(Role::kV));
    y.r = reader_.matrix(at(Role::kR));
    y.gate = reader_.matrix(at(Role::kGate));
    y.sink = reader_.matrix(at(Role::kSink));
  }

  // One matrix, rows in the order of qkvr_order; the gate takes the rows that are left.
  void split_fused(Layer& y) {
    const LayerConfig& c = config_.layers[layer_];
    const Weight fused = reader_.matrix(at(Role::kQkvr));
    const int64_t q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim, r = c.num_heads * config_.d_rel;
    const int64_t sink = config_.sink_source == ModelConfig::Sink::kLinear ? c.num_heads : 0;
    const int64_t gate = fused.out - q - 2 * kv - r - sink;
    int64_t begin = 0;
    for (const std::string& part : config_.qkvr_order) {
      auto [target, rows] = part == "q"      ? std::pair{&y.q, q}
                            : part == "k"    ? std::pair{&y.k, kv}
                            : part == "v"    ? std::pair{&y.v, kv}
                            : part == "r"    ? std::pair{&y.r, r}
                            : part == "gate" ? std::pair{&y.gate, gate}
                                             : std::pair{&y.sink, sink};
      if (rows) *target = rows_of(fused, begin, rows);
      begin += rows;
    }
  }

  static Weight rows_of(const Weight& w, int64_t begin, int64_t rows) {
    Weight out = w;
    out.out = rows;
    out.data = static_cast<const std::byte*>(w.data) + begin * w.in * (w.format == WeightFormat::kBF16 ? 2 : 4);
    return out;
  }

  void load_convolutions(Layer& y) {
    const int64_t W = config_.conv_width;
    y.k_taps = reader_.template table<T>(at(Role::kKTaps), W);
    y.v_taps = reader_.template table<T>(at(Role::kVTaps), W);
    y.k_tap_proj = reader_.matrix(at(Role::kKTapProj));
    y.v_tap_proj = reader_.matrix(at(Role::kVTapProj));
    y.attn_taps = reader_.template table<T>(at(Role::kAttnTaps), W);
    y.mlp_taps = reader_.template table<T>(at(Role::kMlpTaps), W);
  }

  const ModelConfig& config_;
  const Binding& binding_;
  WeightReader& reader_;
  int64_t layer_ = 0;
};

}  // namespace

template <class T>
Result<Inkling2Weights<T>> load_inkling2(const ModelConfig& config, Checkpoint checkpoint, bool check_scales) {
  NIB_CHECK(config.generation == Generation::kInkling2, "not an Inkling 2 config");
  NIB_ASSIGN(const OpenedWeights opened, open_weights(config, std::move(checkpoint), memory_limit_bytes()));
  WeightReader reader(opened.checkpoint, check_scales);
  Inkling2Weights<T> weights = Inkling2Loader<T>(config, opened.binding, reader).load();
  NIB_TRY(reader.status());
  return weights;
}

template Result<Inkling2Weights<float>> load_inkling2(const ModelConfig&, Checkpoint, bool);
template Result<Inkling2Weights<bf16>> load_inkling2(const ModelConfig&, Checkpoint, bool);

}  // namespace nib
