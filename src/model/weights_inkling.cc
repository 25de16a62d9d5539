#include "model/memory_limit.h"
#include "model/weight_reader.h"
#include "model/weights.h"

namespace nib {

namespace {

template <class T>
class InklingLoader {
 public:
  using Layer = typename InklingWeights<T>::Layer;

  InklingLoader(const ModelConfig& config, const Binding& binding, WeightReader& reader)
      : config_(config), binding_(binding), reader_(reader) {}

  InklingWeights<T> load() {
    InklingWeights<T> w;
    w.embed = reader_.matrix(binding_.at(Role::kEmbed));
    w.unembed = reader_.matrix(binding_.at(Role::kUnembed));
    w.unembed.out = config_.unpadded_vocab_size;  // padded rows are never sampled
    w.embed_norm = reader_.vector<T>(binding_.at(Role::kEmbedNorm));
    w.norm = reader_.vector<T>(binding_.at(Role::kNorm));
    for (layer_ = 0; layer_ < config_.num_layers(); ++layer_) {
      Layer& y = w.layers.emplace_back();
      load_attention(y);
      if (config_.layers[layer_].dense)
        load_dense(y);
      else
        load_moe(y);
    }
    w.owner = reader_.owner();
    return w;
  }

 private:
  const BoundTensor& at(Role role) const { return binding_.at(role, layer_); }

  void load_attention(Layer& y) {
    const int64_t W = config_.conv_width;
    y.attn_norm = reader_.template vector<T>(at(Role::kAttnNorm));
    y.mlp_norm = reader_.template vector<T>(at(Role::kMlpNorm));
    y.q = reader_.matrix(at(Role::kQ));
    y.k = reader_.matrix(at(Role::kK));
    y.v = reader_.matrix(at(Role::kV));
    y.r = reader_.matrix(at(Role::kR));
    y.o = reader_.matrix(at(Role::kO));
    y.q_norm = reader_.template vector<T>(at(Role::kQNorm));
    y.k_norm = reader_.template vector<T>(at(Role::kKNorm));
    y.table = reader_.template table<T>(at(Role::kTable), config_.layers[layer_].extent);
    y.k_taps = reader_.template table<T>(at(Role::kKTaps), W);
    y.v_taps = reader_.template table<T>(at(Role::kVTaps), W);
    y.attn_taps = reader_.template table<T>(at(Role::kAttnTaps), W);
    y.mlp_taps = reader_.template table<T>(at(Role::kMlpTaps), W);
  }

  void load_dense(Layer& y) {
    y.dense_w13 = at(Role::kDenseW13).present() ? reader_.matrix(at(Role::kDenseW13))
                                                : reader_.interleaved(at(Role::kDenseGate), at(Role::kDenseUp));
    y.dense_w2 = reader_.matrix(at(Role::kDenseW2));
    y.dense_global_scale = reader_.scalar(at(Role::kDenseScale));
  }

  void load_moe(Layer& y) {
    y.router = reader_.matrix(at(Role::kRouter));
    y.router_bias = reader_.template vector<float>(at(Role::kRouterBias));
    y.router_global_scale = reader_.scalar(at(Role::kRouterScale));
    y.w13 = reader_.experts(at(Role::kW13));
    y.w2 = reader_.experts(at(Role::kW2));
    if (!config_.num_shared_experts) return;
    y.shared_w13 = at(Role::kSharedW13).present()
                       ? reader_.experts(at(Role::kSharedW13))
                       : reader_.interleaved_experts(at(Role::kSharedGate), at(Role::kSharedUp));
    y.shared_w2 = reader_.experts(at(Role::kSharedW2));
  }

  const ModelConfig& config_;
  const Binding& binding_;
  WeightReader& reader_;
  int64_t layer_ = 0;
};

}  // namespace

template <class T>
Result<InklingWeights<T>> load_inkling(const ModelConfig& config, Checkpoint checkpoint, bool check_scales) {
  NIB_CHECK(config.generation == Generation::kInkling, "not a first-generation config");
  NIB_ASSIGN(const OpenedWeights opened, open_weights(config, std::move(checkpoint), memory_limit_bytes()));
  WeightReader reader(opened.checkpoint, check_scales);
  InklingWeights<T> weights = InklingLoader<T>(config, opened.binding, reader).load();
  NIB_TRY(reader.status());
  return weights;
}

template Result<InklingWeights<float>> load_inkling(const ModelConfig&, Checkpoint, bool);
template Result<InklingWeights<bf16>> load_inkling(const ModelConfig&, Checkpoint, bool);

}  // namespace nib
