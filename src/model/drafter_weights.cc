#include "model/drafter_weights.h"

#include <algorithm>
#include <cstring>
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

  // Layers in the style of Inkling itself, which this drafter has no code for.
  Status refuse_other_layers() const {
    for (const auto& [name, t] : checkpoint_.tensors()) {
      if (!name.starts_with(prefix_ + "layers.")) continue;
      for (const char* part : {"conv", "sink", ".wr"})
        if (name.find(part, prefix_.size()) != std::string::npos)
          return Status(
              Code::kUnimplemented,
              fmt::format("{}: {} belongs to a draft layer in the style of Inkling (short convolutions, sinks, "
                          "relative positions); draft layers with q_norm, k_norm and rotary positions are "
                          "supported",
                          checkpoint_.shard_name(t), name));
    }
    return {};
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

// Matrices put together or cut once at load; owns their copies.
class Assembler {
 public:
  // The rows of all parts, one after the other; F32 if one of them is.
  Weight stacked(std::initializer_list<Weight> parts) {
    Weight y = *parts.begin();
    y.out = 0;
    for (const Weight& p : parts) {
      y.out += p.out;
      if (p.format == WeightFormat::kF32) y.format = WeightFormat::kF32;
    }
    std::byte* to = allocate(y);
    y.data = to;
    for (const Weight& p : parts) {
      copy(to, y.format, p, 0, p.out * p.in);
      to += p.out * row_bytes(y.format, y.in);
    }
    return y;
  }
  // The columns [begin, end).
  Weight columns(const Weight& w, int64_t begin, int64_t end) {
    Weight y = w;
    y.in = end - begin;
    std::byte* to = allocate(y);
    y.data = to;
    for (int64_t i = 0; i < w.out; ++i) copy(to + i * row_bytes(y.format, y.in), y.format, w, i * w.in + begin, y.in);
    return y;
  }
  // One row of w, rounded to T.
  template <class T>
  View<const T, 1> row(const Weight& w, int64_t i) {
    T* to_row = reinterpret_cast<T*>(buffers_.emplace_back(w.in * static_cast<int64_t>(sizeof(T))).data());
    for (int64_t j = 0; j < w.in; ++j)
      to_row[j] = to<T>(w.format == WeightFormat::kF32 ? static_cast<const float*>(w.data)[i * w.in + j]
                                                       : as_float(static_cast<const bf16*>(w.data)[i * w.in + j]));
    return View<const T, 1>(to_row, {w.in});
  }

  std::vector<Buffer> take_buffers() { return std::move(buffers_); }

 private:
  std::byte* allocate(const Weight& w) { return buffers_.emplace_back(w.out * row_bytes(w.format, w.in)).data(); }
  static void copy(std::byte* to, WeightFormat format, const Weight& from, int64_t first, int64_t count) {
    if (format == from.format) {
      const int64_t size = row_bytes(format, 1);
      std::memcpy(to, static_cast<const std::byte*>(from.data) + first * size, count * size);
      return;
    }
    const bf16* values = static_cast<const bf16*>(from.data) + first;
    std::transform(values, values + count, reinterpret_cast<float*>(to), [](bf16 x) { return as_float(x); });
  }

  std::vector<Buffer> buffers_;
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
    for (int64_t l = 0; l < c_.num_layers; ++l) w_.layers.push_back(load_layer(fmt::format("layers.{}.", l)));
    load_tables(shared);
    load_head();
    load_confidence();
    w_.owner = std::make_shared<Memory>(Memory{reader_.owner(), assembler_.take_buffers()});
    return std::move(w_);
  }

 private:
  using Layer = typename DrafterWeights<T>::Layer;
  struct Memory {
    std::shared_ptr<const void> read;
    std::vector<Buffer> assembled;
  };

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
    const Weight wq = matrix(at + "self_attn.q_proj.weight", {q, d});
    const Weight wk = matrix(at + "self_attn.k_proj.weight", {kv, d});
    const Weight wv = matrix(at + "self_attn.v_proj.weight", {kv, d});
    if (finder_.status().ok()) y.qkv = assembler_.stacked({wq, wk, wv});
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
    if (shared) check_shared(*shared);
    if (w_.embed.empty()) w_.embed = borrowed(shared, "embed_tokens.weight", &SharedTables::embed);
    load_mask();
    load_embed_norm(shared);
    if (!w_.unembed.empty()) {
      if (shared) w_.unembed = valid_rows(w_.unembed, "lm_head.weight has", shared->unembed.out);
      return;
    }
    w_.unembed = borrowed(shared, "lm_head.weight", &SharedTables::unembed);
    if (shared) w_.mup = shared->mup;
  }

  void check_shared(const SharedTables& shared) {
    if (w_.fc.in != c_.num_taps() * shared.embed.in)
      finder_.fail(
          invalid("fc.weight reads {} taps of {} columns, the target's hidden size is {}: this drafter was made "
                  "for another target",
                  c_.num_taps(), w_.fc.in / c_.num_taps(), shared.embed.in));
  }

  void load_mask() {
    const BoundTensor own = finder_.optional("mask_embedding", {c_.hidden_size});
    if (own.present()) w_.mask = reader_.template vector<T>(own);
    if (own.present() || !finder_.status().ok()) return;
    if (c_.mask_token_id >= w_.embed.out)
      return finder_.fail(
          invalid("mask_token_id {} is outside the embedding of {} rows", c_.mask_token_id, w_.embed.out));
    w_.mask = assembler_.template row<T>(w_.embed, c_.mask_token_id);
  }

  void load_embed_norm(const SharedTables* shared) {
    if (!c_.embed_norm || !finder_.status().ok()) return;
    if (!shared || shared->embed_norm.empty() || shared->embed_norm.in != c_.hidden_size)
      return finder_.fail(
          invalid("embed_norm is true, but there is no target with an embedding norm of width {}; set it "
                  "to false in the drafter's config.json, or load the drafter beside its target",
                  c_.hidden_size));
    w_.embed_norm = assembler_.template row<T>(shared->embed_norm, 0);
    w_.embed_norm_eps = shared->embed_norm_eps;
  }

  // A table may be padded; every valid id must be there.
  Weight valid_rows(const Weight& table, const char* what, int64_t valid) {
    if (table.out >= valid) return table.slice(0, valid);
    finder_.fail(
        invalid("{} {} rows, the vocabulary {}: the drafter was made for another vocabulary", what, table.out, valid));
    return table;
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
    if (c_.head == DrafterConfig::Head::kNone || !finder_.status().ok()) return;
    w_.markov_w1 = matrix("markov_head.markov_w1.weight", {kAny, c_.markov_rank});
    if (c_.head == DrafterConfig::Head::kGated) load_gate();
    if (c_.head == DrafterConfig::Head::kRnn) load_recurrence();
    if (!finder_.status().ok()) return;
    const int64_t width = w_.recurrent ? w_.state_width() : c_.markov_rank;
    w_.markov_w2 = matrix("markov_head.markov_w2.weight", {kAny, width});
    if (!finder_.status().ok()) return;
    valid_rows(w_.markov_w1, "markov_w1 has", w_.vocab());
    w_.markov_w2 = valid_rows(w_.markov_w2, "markov_w2 has", w_.vocab());
  }

  // gate_proj reads [h; e].
  void load_gate() {
    const int64_t d = c_.hidden_size, r = c_.markov_rank;
    const Weight gate = matrix("markov_head.gate_proj.weight", {r, d + r});
    w_.mix_bias = bias("markov_head.gate_proj.bias", r);
    if (!finder_.status().ok()) return;
    w_.mix_hidden = assembler_.columns(gate, 0, d);
    w_.mix_token = assembler_.columns(gate, d, d + r);
  }

  // joint_proj reads [s; e; h]; its rows, not the config, say how wide a state is.
  void load_recurrence() {
    const int64_t d = c_.hidden_size, r = c_.markov_rank;
    const Weight joint = matrix("markov_head.joint_proj.weight", {kAny, kAny});
    if (!finder_.status().ok()) return;
    const int64_t width = joint.out / 3;
    if (joint.out % 3 != 0 || joint.in != width + r + d)
      return finder_.fail(
          invalid("markov_head.joint_proj.weight is [{}, {}], expected [3w, w + {}] for a state of width w", joint.out,
                  joint.in, r + d));
    w_.mix_bias = bias("markov_head.joint_proj.bias", joint.out);
    w_.mix_token = assembler_.columns(joint, 0, width + r);
    w_.mix_hidden = assembler_.columns(joint, width + r, joint.in);
    w_.recurrent = true;
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
      return finder_.fail(invalid("{} is {}, expected [1, {}]", name, shape_text(b.info->shape), with ? d + r : d));
    w_.confidence = reader_.template vector<float>(b);
    w_.confidence_bias = bias("confidence_head.proj.bias", 1);
  }

  const DrafterConfig& c_;
  Finder& finder_;
  WeightReader& reader_;
  Assembler assembler_;
  DrafterWeights<T> w_;
};

}  // namespace

Result<Checkpoint> open_drafter_checkpoint(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::path single = folder / "mtp.safetensors";
  if (std::filesystem::exists(single, error)) return Checkpoint::open_file(single);
  return Checkpoint::has_numbered(folder, "mtp") ? Checkpoint::open_numbered(folder, "mtp") : Checkpoint::open(folder);
}

template <class T>
Result<DrafterWeights<T>> load_drafter_weights(const DrafterConfig& config, Checkpoint checkpoint,
                                               const SharedTables* shared) {
  auto owned = std::make_shared<Checkpoint>(std::move(checkpoint));
  NIB_TRY(owned->map());
  Finder finder(*owned);
  NIB_TRY(finder.choose_prefix());
  NIB_TRY(finder.refuse_other_layers());
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
