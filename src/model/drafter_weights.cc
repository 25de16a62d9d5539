#include "model/drafter_weights.h"

#include <set>

#include "model/json_fields.h"
#include "model/weight_reader.h"

namespace nib {

namespace {

constexpr int64_t kAny = -1;  // an axis that the config leaves open

std::string expected_text(const std::vector<int64_t>& shape) {
  std::string out;
  for (int64_t d : shape) out += (out.empty() ? "" : ", ") + (d == kAny ? "any" : std::to_string(d));
  return "[" + out + "]";
}

bool fits(const std::vector<int64_t>& shape, const std::vector<int64_t>& expected) {
  bool good = shape.size() == expected.size();
  for (size_t i = 0; good && i < shape.size(); ++i) good = expected[i] == kAny ? shape[i] > 0 : shape[i] == expected[i];
  return good;
}

// The published name first, then what others call it.
std::vector<std::string> spellings(const std::string& name) {
  struct Alias {
    const char *usual, *other;
  };
  constexpr Alias kAliases[] = {{"fc.", "encoder.fc."},
                                {"hidden_norm.", "encoder.output_norm_enc."},
                                {"markov_head.", "logit_head.markov_head."},
                                {"layers.0.", "midlayer."},
                                {"markov_head.markov_w1.", "markov_head.embed."},
                                {"markov_head.markov_w2.", "markov_head.head."},
                                {"fc.", "main_proj."},
                                {"hidden_norm.", "main_norm."}};
  std::vector<std::string> out = {name};
  for (const Alias& a : kAliases)
    if (name.starts_with(a.usual)) out.push_back(a.other + name.substr(std::string_view(a.usual).size()));
  return out;
}

class Finder {
 public:
  explicit Finder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  Status choose_prefix() {
    constexpr const char* kPrefixes[] = {"model.mtp.", "mtp.", "model.dspark.", "dspark.", "model.", ""};
    for (const char* prefix : kPrefixes)
      for (const std::string& name : spellings("fc.weight"))
        if (checkpoint_.find(prefix + name)) {
          prefix_ = prefix;
          return {};
        }
    return invalid("{}: fc.weight is missing, with and without the prefixes {}; this is no drafter",
                   checkpoint_.shards()[0].filename().string(),
                   join(std::vector<std::string>{"model.mtp.", "mtp.", "model.dspark.", "dspark.", "model."}));
  }

  // Absent: empty. Present in another shape or dtype: noted, empty.
  BoundTensor optional(const std::string& name, const std::vector<int64_t>& expected) {
    for (const std::string& spelling : spellings(name)) {
      const TensorInfo* t = checkpoint_.find(prefix_ + spelling);
      if (!t) continue;
      read_.insert(t->name);
      return checked(*t, expected);
    }
    return {};
  }
  // A table that may stand outside the prefix.
  BoundTensor table(const std::string& name, const std::vector<int64_t>& expected) {
    const TensorInfo* t = checkpoint_.find(prefix_ + name);
    if (!t) t = checkpoint_.find(name);
    if (!t) return {};
    read_.insert(t->name);
    return checked(*t, expected);
  }
  BoundTensor required(const std::string& name, const std::vector<int64_t>& expected) {
    BoundTensor b = optional(name, expected);
    if (!b.present() && status_.ok())
      fail(invalid("{}: {}{} is missing, expected {}", checkpoint_.shards()[0].filename().string(), prefix_, name,
                   expected_text(expected)));
    return b;
  }

  // Under a prefix of its own a drafter answers for that prefix only: the rest is the target's.
  Status account_for_the_rest() const {
    const bool shares_file = prefix_ != "" && prefix_ != "model.";
    for (const auto& [name, t] : checkpoint_.tensors())
      if (!read_.contains(name) && !(shares_file && !name.starts_with(prefix_)))
        return invalid("{}: {} {} is not read by this drafter; its config.json asks for another network",
                       checkpoint_.shard_name(t), name, shape_text(t.shape));
    return {};
  }
  const Status& status() const { return status_; }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

 private:
  BoundTensor checked(const TensorInfo& t, const std::vector<int64_t>& expected) {
    const std::string where = fmt::format("{}: {}", checkpoint_.shard_name(t), t.name);
    const bool plain = t.dtype == DType::kBF16 || t.dtype == DType::kF32 || t.dtype == DType::kF16;
    if (!fits(t.shape, expected))
      fail(invalid("{} is {}, expected {}", where, shape_text(t.shape), expected_text(expected)));
    else if (!plain)
      fail(invalid("{} is {}, expected BF16, F32 or F16", where, name(t.dtype)));
    BoundTensor b;
    b.info = fits(t.shape, expected) && plain ? &t : nullptr;
    return b;
  }

  const Checkpoint& checkpoint_;
  std::string prefix_;
  std::set<std::string> read_;
  Status status_;
};

template <class T>
class DrafterLoader {
 public:
  DrafterLoader(const DrafterConfig& config, Finder& finder, WeightReader& reader)
      : c_(config), finder_(finder), reader_(reader) {}

  DrafterWeights<T> load(const SharedTables* shared) {
    const int64_t d = c_.hidden_size;
    w_.fc = matrix("fc.weight", {d, kAny});
    if (w_.fc.in % c_.num_taps() != 0)
      finder_.fail(
          invalid("fc.weight has {} columns, which {} taps (target_layer_ids) do not divide", w_.fc.in, c_.num_taps()));
    w_.hidden_norm = vector("hidden_norm.weight", d);
    w_.norm = vector("norm.weight", d);
    w_.mask_embedding = reader_.template vector<T>(finder_.optional("mask_embedding", {d}));
    for (int64_t l = 0; l < c_.num_layers; ++l) w_.layers.push_back(load_layer(fmt::format("layers.{}.", l)));
    load_tables(shared);
    load_head();
    load_confidence();
    w_.owner = reader_.owner();
    return std::move(w_);
  }

 private:
  using Layer = typename DrafterWeights<T>::Layer;

  Weight matrix(const std::string& name, const std::vector<int64_t>& shape) {
    return reader_.matrix(finder_.required(name, shape));
  }
  View<const T, 1> vector(const std::string& name, int64_t size) {
    return reader_.template vector<T>(finder_.required(name, {size}));
  }
  View<const float, 1> bias(const std::string& name, int64_t size) {
    return reader_.template vector<float>(finder_.optional(name, {size}));
  }

  Layer load_layer(const std::string& at) {
    const int64_t d = c_.hidden_size, ffn = c_.intermediate_size;
    const int64_t q = c_.num_heads * c_.head_dim, kv = c_.num_kv_heads * c_.head_dim;
    Layer y;
    y.input_norm = vector(at + "input_layernorm.weight", d);
    y.post_attention_norm = vector(at + "post_attention_layernorm.weight", d);
    y.q = matrix(at + "self_attn.q_proj.weight", {q, d});
    y.k = matrix(at + "self_attn.k_proj.weight", {kv, d});
    y.v = matrix(at + "self_attn.v_proj.weight", {kv, d});
    y.o = matrix(at + "self_attn.o_proj.weight", {d, q});
    y.q_norm = vector(at + "self_attn.q_norm.weight", c_.head_dim);
    y.k_norm = vector(at + "self_attn.k_norm.weight", c_.head_dim);
    const BoundTensor gate = finder_.required(at + "mlp.gate_proj.weight", {ffn, d});
    const BoundTensor up = finder_.required(at + "mlp.up_proj.weight", {ffn, d});
    if (gate.present() && up.present()) y.w13 = reader_.interleaved(gate, up);
    y.w2 = matrix(at + "mlp.down_proj.weight", {d, ffn});
    return y;
  }

  // The drafter's own tables, or the target's.
  void load_tables(const SharedTables* shared) {
    w_.embed = reader_.matrix(finder_.table("embed_tokens.weight", {c_.vocab_size, c_.hidden_size}));
    w_.unembed = reader_.matrix(finder_.table("lm_head.weight", {kAny, c_.hidden_size}));
    w_.mup = static_cast<float>(c_.mup);
    if (!finder_.status().ok()) return;
    if (w_.embed.empty()) w_.embed = borrowed(shared, "embed_tokens.weight", &SharedTables::embed);
    if (w_.mask_embedding.empty() && c_.mask_token_id >= w_.embed.out)
      finder_.fail(invalid("mask_token_id {} is outside the embedding of {} rows", c_.mask_token_id, w_.embed.out));
    if (!w_.unembed.empty()) return;
    w_.unembed = borrowed(shared, "lm_head.weight", &SharedTables::unembed);
    if (shared) w_.mup = shared->mup;
  }

  Weight borrowed(const SharedTables* shared, const char* name, Weight SharedTables::*table) {
    if (!shared) {
      finder_.fail(invalid("{} is missing and there is no target to share it with", name));
      return {};
    }
    const Weight& w = shared->*table;
    if (w.in != c_.hidden_size)
      finder_.fail(invalid("the target's hidden size is {}, this drafter's is {}: it was made for another target", w.in,
                           c_.hidden_size));
    return w;
  }

  void load_head() {
    using Head = DrafterConfig::Head;
    if (c_.head == Head::kNone || !finder_.status().ok()) return;
    const int64_t d = c_.hidden_size, r = c_.markov_rank;
    w_.markov_w1 = matrix("markov_head.markov_w1.weight", {kAny, r});
    int64_t width = r;
    if (c_.head == Head::kGated) {
      w_.mixer = matrix("markov_head.gate_proj.weight", {r, d + r});
      w_.mixer_bias = bias("markov_head.gate_proj.bias", r);
    } else if (c_.head == Head::kRnn) {
      w_.mixer = matrix("markov_head.joint_proj.weight", {kAny, kAny});
      width = w_.mixer.out / 3;
      if (w_.mixer.out % 3 != 0 || w_.mixer.in != width + r + d)
        finder_.fail(invalid("markov_head.joint_proj.weight is [{}, {}], expected [3w, w + {}] for a state of width w",
                             w_.mixer.out, w_.mixer.in, r + d));
      w_.mixer_bias = bias("markov_head.joint_proj.bias", w_.mixer.out);
    }
    w_.markov_w2 = matrix("markov_head.markov_w2.weight", {kAny, width});
    cut_to_vocabulary();
  }

  // Tables may be padded; every valid id must be there.
  void cut_to_vocabulary() {
    const int64_t valid = w_.vocab();
    if (!finder_.status().ok()) return;
    for (const Weight* table : {&w_.markov_w1, &w_.markov_w2})
      if (table->out < valid)
        return finder_.fail(
            invalid("the markov tables have {} rows, the output head {}: the drafter was made for "
                    "another vocabulary",
                    table->out, valid));
    w_.markov_w2 = w_.markov_w2.slice(0, valid);
  }

  void load_confidence() {
    if (c_.confidence_head.has_value() && !*c_.confidence_head) return;  // a tensor for it is one that nothing reads
    const int64_t d = c_.hidden_size, r = c_.markov_rank;
    const std::string name = "confidence_head.proj.weight";
    const BoundTensor b =
        c_.confidence_head.value_or(false) ? finder_.required(name, {1, kAny}) : finder_.optional(name, {1, kAny});
    if (!b.present()) return;
    const int64_t columns = b.info->shape[1];
    const bool with = c_.confidence_with_markov.value_or(columns != d);
    if (columns != (with ? d + r : d) || (with && r == 0))
      finder_.fail(invalid("{} is {}, expected [1, {}]", name, shape_text(b.info->shape), with ? d + r : d));
    w_.confidence = reader_.matrix(b);
    w_.confidence_bias = bias("confidence_head.proj.bias", 1);
  }

  const DrafterConfig& c_;
  Finder& finder_;
  WeightReader& reader_;
  DrafterWeights<T> w_;
};

}  // namespace

template <class T>
Result<DrafterWeights<T>> load_drafter_weights(const DrafterConfig& config, Checkpoint checkpoint,
                                               const SharedTables* shared) {
  auto owned = std::make_shared<Checkpoint>(std::move(checkpoint));
  NIB_TRY(owned->map());
  Finder finder(*owned);
  NIB_TRY(finder.choose_prefix());
  WeightReader reader(owned, false);
  DrafterWeights<T> weights = DrafterLoader<T>(config, finder, reader).load(shared);
  NIB_TRY(finder.status());
  NIB_TRY(reader.status());
  NIB_TRY(finder.account_for_the_rest());
  return weights;
}

template Result<DrafterWeights<float>> load_drafter_weights(const DrafterConfig&, Checkpoint, const SharedTables*);
template Result<DrafterWeights<bf16>> load_drafter_weights(const DrafterConfig&, Checkpoint, const SharedTables*);

}  // namespace nib
