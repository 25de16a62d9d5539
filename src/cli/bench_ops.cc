// nib bench ops: checks each operation's answer, then times it against the machine's own limits and a rival.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/machine.h"
#include "cli/number_checks.h"
#include "compute/cpu/kernels.h"
#include "compute/ops/attention.h"
#include "compute/ops/depth_mix.h"
#include "compute/ops/experts.h"
#include "compute/ops/norm.h"
#include "compute/ref/ref.h"

namespace nib::cli {

namespace {

constexpr int64_t kStreamed = (int64_t{1} << 30) + (int64_t{64} << 20);  // bytes of weights; one loop reads over 1 GiB
constexpr int64_t kPassBytes = int64_t{32} << 20;                        // of one measurement of the read rate
constexpr int kPasses = 5;                                               // whose median is one of many that count

struct Options {
  std::string isa, filter, out;
  int threads = 0;  // 0: all
  int repeats = 9;
};

// Seconds of one call.
struct Timing {
  double median = 0, best = 0;
};

// before() runs ahead of each loop and is not timed.
template <class F, class Before>
Timing time_of(int repeats, int64_t calls, const F& loop, const Before& before) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    before();
    const auto begin = std::chrono::steady_clock::now();
    loop();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls);
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds[0]};
}

template <class F>
Timing time_of(int repeats, int64_t calls, const F& loop) {
  return time_of(repeats, calls, loop, [] {});
}

std::string_view format_name(WeightFormat format) {
  constexpr std::string_view kNames[] = {"f32", "bf16", "nvfp4", "mxfp8"};
  return kNames[static_cast<int>(format)];
}

// oneDNN in its own module beside the binary; absent if it was not built.
class OneDnn {
 public:
  OneDnn() {
    char path[4096];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    if (n <= 0) return;
    const std::string exe(path, n);
    module_ = dlopen((exe.substr(0, exe.rfind('/')) + "/libonednn_rival.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module_ == nullptr) return;
    create = reinterpret_cast<decltype(create)>(dlsym(module_, "nib_onednn_create"));
    run = reinterpret_cast<decltype(run)>(dlsym(module_, "nib_onednn_run"));
    destroy = reinterpret_cast<decltype(destroy)>(dlsym(module_, "nib_onednn_destroy"));
  }
  bool built() const { return module_ != nullptr; }

  void* (*create)(int threads, int64_t tokens, int64_t out, int64_t in) = nullptr;
  void (*run)(void* matmul, void* y, const void* x, const void* w) = nullptr;
  void (*destroy)(void* matmul) = nullptr;

 private:
  void* module_ = nullptr;  // stays loaded until the process ends
};

// What one line says.
struct Line {
  Line(std::string op, std::string shape) : op(std::move(op)), shape(std::move(shape)) {}
  std::string op, shape;
  Timing time;
  Timing read;                       // a pass of kPassBytes, between the loops that were timed
  double bytes = 0, operations = 0;  // of one call; the larger limit is the roofline
  std::string rival;                 // its name, or why there is none
  double rival_seconds = 0;          // median
};

class Bench {
 public:
  Bench(const Options& o, Isa isa)
      : options_(o),
        pool_(o.threads > 0 ? o.threads : static_cast<int>(std::thread::hardware_concurrency())),
        workspace_(int64_t{512} << 20),
        cx_{isa, pool_, workspace_},
        weights_(kStreamed),
        scales_(kStreamed / 8) {
    const int64_t words = kStreamed / 4;
    uint32_t state = 1;
    for (int64_t i = 0; i < words; ++i) {
      state = state * 1664525u + 1013904223u;
      // As bf16 and as E4M3 these bytes are finite, and small enough for a sum.
      reinterpret_cast<uint32_t*>(weights_.data())[i] =
          (state >> 4 & 0x07770777u) | 0x38003800u | (state & 0x80008000u);
    }
    for (int64_t i = 0; i < scales_.size(); ++i) scales_.data()[i] = static_cast<std::byte>(0x38 + i % 7);
  }

  bool run() {
    measure_limits();
    for (WeightFormat format : {WeightFormat::kBF16, WeightFormat::kNvfp4, WeightFormat::kMxfp8})
      for (int64_t tokens : {1, 4, 32, 512}) product(format, tokens, 4608, 4608);
    product(WeightFormat::kBF16, 1, 224, 256);
    product(WeightFormat::kNvfp4, 1, 4608, 2304);
    expert_layer(1);
    expert_layer(64);
    for (int64_t keys : {256, 4096}) attention_step(keys);
    norm(512);
    mixture(512);
    return write();
  }

 private:
  bool wanted(const std::string& name) const { return name.find(options_.filter) != std::string::npos; }

  void measure_limits() {
    read_rate_ = kPassBytes / time_of(kPasses * options_.repeats, 1, [&] { read_pass(); }).median;
    int64_t done = 0;
    const auto registers = cx_.isa == Isa::kAmx      ? cpu::amx::multiply_registers
                           : cx_.isa == Isa::kAvx512 ? cpu::avx512::multiply_registers
                                                     : cpu::avx2::multiply_registers;
    const Timing multiply = time_of(options_.repeats, 1, [&] {
      std::vector<int64_t> ops(pool_.num_threads());
      pool_.parallel_for(pool_.num_threads(), [&](int64_t i, int) { ops[i] = registers(1 << 20); });
      done = 0;
      for (int64_t n : ops) done += n;
    });
    multiply_rate_ = done / multiply.best;
    fmt::print("{}, {} threads, {}: reads {:.1f} GB/s (median), multiplies {:.0f} GFLOP/s (best of {})\n", cpu_name(),
               pool_.num_threads(), name(cx_.isa), read_rate_ / 1e9, multiply_rate_ / 1e9, options_.repeats);
  }

  // Reads the next kPassBytes of the streamed memory's second half: what the caches hold of it is gone before a loop
  // over the weights, which begins at the first, arrives there.
  void read_pass() {
    constexpr int64_t kParts = 64, kPart = kPassBytes / kParts, kHalf = kStreamed / 2;
    static_assert(kHalf % kPassBytes == 0);
    std::vector<int64_t> sums(kParts);
    const std::byte* data = weights_.data() + kHalf + passes_++ * kPassBytes % kHalf;
    pool_.parallel_for(kParts, [&](int64_t i, int) { sums[i] = cpu::avx2::read_memory(data + i * kPart, kPart); });
    NIB_CHECK(std::any_of(sums.begin(), sums.end(), [](int64_t s) { return s != 0; }), "nothing was read");
  }

  // Times the loop and, in turns with it, reads: a shared machine changes its speed within seconds.
  template <class F>
  void time(Line& line, int64_t calls, const F& loop) {
    std::vector<double> seconds;
    line.time = time_of(options_.repeats, calls, loop,
                        [&] { seconds.push_back(time_of(kPasses, 1, [&] { read_pass(); }).median); });
    std::sort(seconds.begin(), seconds.end());
    line.read = {seconds[seconds.size() / 2], seconds[0]};
  }

  // Copy `index` of a weight [out, in], each at its own place in the streamed memory.
  Weight weight(WeightFormat format, int64_t out, int64_t in, int64_t index) const {
    Weight w{format, out, in, weights_.data() + index * row_bytes(format, in) * out};
    if (const int64_t scales = row_scale_bytes(format, in) * out; scales > 0)
      w.scales = reinterpret_cast<const uint8_t*>(scales_.data()) + index * scales;
    return w;
  }
  static int64_t weight_bytes(WeightFormat format, int64_t out, int64_t in) {
    return (row_bytes(format, in) + row_scale_bytes(format, in)) * out;
  }

  std::vector<bf16> random(int64_t n) {
    std::vector<bf16> v(n);
    std::normal_distribution<float> gaussian;
    for (bf16& b : v) b = bf16::from(gaussian(rng_));
    return v;
  }

  // Some outputs against sums in double precision.
  void check_product(View<const bf16, 2> y, View<const bf16, 2> x, const Weight& w) {
    std::vector<float> row(w.in);
    for (int i = 0; i < 32; ++i) {
      const int64_t n = std::uniform_int_distribution<int64_t>(0, w.out - 1)(rng_);
      const int64_t t = std::uniform_int_distribution<int64_t>(0, x.dim(0) - 1)(rng_);
      ref::decode_row(row.data(), w, n);
      double sum = 0, terms = 0;
      for (int64_t k = 0; k < w.in; ++k) {
        const double term = static_cast<double>(as_float(x(t, k))) * row[k] * w.outer;
        sum += term, terms += std::abs(term);
      }
      NIB_CHECK(std::abs(as_float(y(t, n)) - sum) <= 0.004 * std::abs(sum) + 1e-5 * terms, "{} for {}",
                as_float(y(t, n)), sum);
    }
  }

  void product(WeightFormat format, int64_t tokens, int64_t out, int64_t in) {
    Line line(fmt::format("gemm {}", format_name(format)), fmt::format("tokens={} out={} in={}", tokens, out, in));
    if (!wanted(line.op + " " + line.shape)) return;
    const std::vector<bf16> x = random(tokens * in);
    std::vector<bf16> y(tokens * out);
    const View<const bf16, 2> xv(x.data(), {tokens, in});
    const View<bf16, 2> yv(y.data(), {tokens, out});
    const int64_t bytes = weight_bytes(format, out, in), copies = kStreamed / bytes;
    ops::gemm<bf16, bf16>(cx_, yv, xv, weight(format, out, in, 0));
    check_product(yv, xv, weight(format, out, in, 0));

    // Many rows are bound by arithmetic: a few copies are enough.
    const int64_t calls = tokens >= 256 ? 1 : tokens >= 16 ? std::max<int64_t>(1, copies / 16) : copies;
    time(line, calls, [&] {
      for (int64_t c = 0; c < calls; ++c) ops::gemm<bf16, bf16>(cx_, yv, xv, weight(format, out, in, c));
    });
    line.bytes = static_cast<double>(bytes) + (tokens * (in + out)) * 2;
    line.operations = 2.0 * tokens * in * out;
    if (format == WeightFormat::kBF16)
      rival_onednn(line, yv, xv, std::max<int64_t>(1, calls / 4));
    else if (tokens == 1)
      rival_plain(line, yv, xv, format, out, in);
    print(line);
  }

  void rival_onednn(Line& line, View<bf16, 2> y, View<const bf16, 2> x, int64_t calls) {
    line.rival = onednn_.built() ? "oneDNN" : "oneDNN not built";
    if (!onednn_.built()) return;
    void* matmul = onednn_.create(pool_.num_threads(), x.dim(0), y.dim(1), x.dim(1));
    onednn_.run(matmul, y.data(), x.data(), weight(WeightFormat::kBF16, y.dim(1), x.dim(1), 0).data);
    check_product(y, x, weight(WeightFormat::kBF16, y.dim(1), x.dim(1), 0));
    line.rival_seconds =
        time_of(std::min(3, options_.repeats), calls, [&] {
          for (int64_t c = 0; c < calls; ++c)
            onednn_.run(matmul, y.data(), x.data(), weight(WeightFormat::kBF16, y.dim(1), x.dim(1), c).data);
        }).median;
    onednn_.destroy(matmul);
  }

  // What one writes first: decode an element, multiply, add.
  void rival_plain(Line& line, View<bf16, 2> y, View<const bf16, 2> x, WeightFormat format, int64_t out, int64_t in) {
    line.rival = "plain loop";
    float e4m3[256];
    for (int b = 0; b < 256; ++b) e4m3[b] = e4m3_to_float(b);
    const Weight w = weight(format, out, in, 0);
    const uint8_t* data = static_cast<const uint8_t*>(w.data);
    line.rival_seconds =
        time_of(3, 1, [&] {
          pool_.parallel_for(out, [&](int64_t n, int) {
            float sum = 0;
            for (int64_t k = 0; k < in; ++k) {
              const float value =
                  format == WeightFormat::kNvfp4
                      ? kE2M1[data[(n * in + k) / 2] >> (k % 2 * 4) & 15] * e4m3[w.scales[(n * in + k) / 16]]
                      : e4m3[data[n * in + k]] * e8m0_to_float(w.scales[(n * in + k) / 32]);
              sum += as_float(x(0, k)) * value;
            }
            y(0, n) = bf16::from(sum);
          });
        }).median;
  }

  // One layer of Inkling 2 Small on one of four ranks: 8 of 48 experts (as many as fit the streamed memory), width 576.
  void expert_layer(int64_t tokens) {
    constexpr int64_t kExperts = 48, kTopK = 8, kHidden = 4608, kWidth = 576;
    Line line("experts nvfp4", fmt::format("tokens={} top_k=8 hidden={} width={}", tokens, kHidden, kWidth));
    if (!wanted(line.op + " " + line.shape)) return;
    const WeightFormat format = WeightFormat::kNvfp4;
    // One weight of w13 and two of w2 are as long: three pieces an expert.
    const int64_t expert_bytes = 3 * weight_bytes(format, kHidden, kWidth);
    const int64_t layers = kStreamed / (kExperts * expert_bytes);
    std::vector<Weight> w13, w2;
    for (int64_t piece = 0; piece < 3 * layers * kExperts; piece += 3) {
      w13.push_back(weight(format, kHidden, kWidth, piece));
      w13.back().out = 2 * kWidth, w13.back().in = kHidden;
      w2.push_back(weight(format, kHidden, kWidth, piece + 2));
      w13.back().outer = w2.back().outer = 1e-3f;
    }
    const std::vector<bf16> x = random(tokens * kHidden);
    std::vector<bf16> y(tokens * kHidden), want(tokens * kHidden);
    std::vector<int32_t> ids(tokens * kTopK), all(kExperts);
    std::vector<float> weights(tokens * kTopK, 1.0f / kTopK);
    for (int64_t e = 0; e < kExperts; ++e) all[e] = e;
    const View<const bf16, 2> xv(x.data(), {tokens, kHidden});
    const View<const int32_t, 2> idv(ids.data(), {tokens, kTopK});
    const View<const float, 2> wv(weights.data(), {tokens, kTopK});
    int64_t touched = 0;
    const auto route = [&] {
      std::vector<bool> used(kExperts);
      for (int64_t t = 0; t < tokens; ++t) {
        std::shuffle(all.begin(), all.end(), rng_);
        for (int64_t j = 0; j < kTopK; ++j) ids[t * kTopK + j] = all[j], used[all[j]] = true;
      }
      touched = std::count(used.begin(), used.end(), true);
    };
    route();
    const auto layer = [&](int64_t l) {
      return ExpertWeights{std::span(w13).subspan(l * kExperts, kExperts),
                           std::span(w2).subspan(l * kExperts, kExperts),
                           {Activation::Kind::kSitu, 4, 25},
                           true};
    };
    ops::experts<bf16>(cx_, View<bf16, 2>(y.data(), {tokens, kHidden}), xv, idv, wv, layer(0));
    ref::experts<bf16>(cx_, View<bf16, 2>(want.data(), {1, kHidden}), rows(xv, 0, 1), rows(idv, 0, 1), rows(wv, 0, 1),
                       layer(0), false);
    double error = 0, size = 0;
    for (int64_t i = 0; i < kHidden; ++i) {
      error = std::max<double>(error, std::abs(as_float(y[i]) - as_float(want[i])));
      size = std::max<double>(size, std::abs(as_float(want[i])));
    }
    NIB_CHECK(error <= 0.01 * size, "experts are off by {} of {}", error, size);
    time(line, layers, [&] {
      for (int64_t l = 0; l < layers; ++l)
        ops::experts<bf16>(cx_, View<bf16, 2>(y.data(), {tokens, kHidden}), xv, idv, wv, layer(l));
    });
    line.bytes = static_cast<double>(touched * expert_bytes);
    line.operations = 2.0 * tokens * kTopK * 3 * kHidden * kWidth;
    print(line);
  }

  // One decode row of a full layer of Inkling 2 Small on one of four ranks.
  void attention_step(int64_t keys) {
    constexpr int64_t kHeads = 12, kKvHeads = 2, kHeadDim = 128, kBlock = 64, kExtent = 1024, kSequences = 8;
    Line line("attention bf16",
              fmt::format("rows={} keys={} heads={}/{} head_dim={}", kSequences, keys, kHeads, kKvHeads, kHeadDim));
    if (!wanted(line.op + " " + line.shape)) return;
    const int64_t blocks = keys / kBlock, total = blocks * kSequences;
    std::vector<bf16> k = random(total * kBlock * kKvHeads * kHeadDim), v = k;
    const std::vector<bf16> q = random(kSequences * kHeads * kHeadDim), profile = random(kSequences * kHeads * kExtent);
    std::vector<bf16> out(q.size()), want(q.size());
    std::vector<int32_t> table(total);
    for (int64_t b = 0; b < total; ++b) table[b] = b;
    std::shuffle(table.begin(), table.end(), rng_);
    const View<bf16, 4> kv_view(k.data(), {total, kBlock, kKvHeads, kHeadDim});
    const PagedKv<bf16> kv{kv_view, View<bf16, 4>(v.data(), kv_view.shape()),
                           View<const int32_t, 2>(table.data(), {kSequences, blocks})};
    std::vector<SequenceRows> batch;
    for (int64_t s = 0; s < kSequences; ++s) batch.push_back({s, 1, keys - 1});
    const AttentionParams params{0.088f, 0, std::min(kExtent, keys)};
    const View<const bf16, 2> qv(q.data(), {kSequences, kHeads * kHeadDim});
    const View<const bf16, 3> pv(profile.data(), {kSequences, kHeads, kExtent});
    const auto run = [&](std::vector<bf16>& to) { return View<bf16, 2>(to.data(), {kSequences, kHeads * kHeadDim}); };
    ops::relative_attention<bf16>(cx_, run(out), qv, kv, pv, {}, batch, params);
    ref::relative_attention<bf16>(cx_, run(want), qv, kv, pv, {}, batch, params);
    for (size_t i = 0; i < out.size(); ++i)
      NIB_CHECK(std::abs(as_float(out[i]) - as_float(want[i])) <= 0.01f, "{} for {}", as_float(out[i]),
                as_float(want[i]));
    time(line, 20, [&] {
      for (int i = 0; i < 20; ++i) ops::relative_attention<bf16>(cx_, run(out), qv, kv, pv, {}, batch, params);
    });
    line.bytes = 2.0 * 2 * kSequences * keys * kKvHeads * kHeadDim;
    line.operations = 4.0 * kSequences * keys * kHeads * kHeadDim;
    print(line);
  }

  void norm(int64_t tokens) {
    constexpr int64_t kHidden = 4608;
    Line line("rms_norm bf16", fmt::format("tokens={} hidden={}", tokens, kHidden));
    if (!wanted(line.op + " " + line.shape)) return;
    const std::vector<bf16> x = random(tokens * kHidden), weight = random(kHidden);
    std::vector<bf16> y(x.size()), want(x.size());
    const View<const bf16, 2> xv(x.data(), {tokens, kHidden});
    const View<const bf16, 1> wv(weight.data(), {kHidden});
    const View<bf16, 2> yv(y.data(), {tokens, kHidden});
    ops::rms_norm<bf16>(cx_, yv, xv, wv, 1e-6f);
    ref::rms_norm<bf16>(cx_, View<bf16, 2>(want.data(), {tokens, kHidden}), xv, wv, 1e-6f);
    check_close(y, want);
    time(line, 10, [&] {
      for (int i = 0; i < 10; ++i) ops::rms_norm<bf16>(cx_, yv, xv, wv, 1e-6f);
    });
    line.bytes = 4.0 * tokens * kHidden;
    print(line);
  }

  void mixture(int64_t tokens) {
    constexpr int64_t kHidden = 4608;
    constexpr int kSources = 5;
    Line line("depth_mix_norm bf16", fmt::format("tokens={} hidden={} sources={}", tokens, kHidden, kSources));
    if (!wanted(line.op + " " + line.shape)) return;
    std::vector<std::vector<bf16>> x;
    std::vector<View<const bf16, 2>> sources;
    for (int j = 0; j < kSources; ++j) x.push_back(random(tokens * kHidden));
    for (const auto& s : x) sources.emplace_back(s.data(), View<const bf16, 2>::Shape{tokens, kHidden});
    const std::vector<bf16> gain = random(kHidden);
    std::vector<float> query(kHidden, 0.01f);
    std::vector<bf16> y(tokens * kHidden), want(y.size());
    const View<const float, 1> q(query.data(), {kHidden});
    const View<const bf16, 1> g(gain.data(), {kHidden});
    const View<bf16, 2> yv(y.data(), {tokens, kHidden}), wantv(want.data(), {tokens, kHidden});
    ops::depth_mix_norm<bf16>(cx_, {&yv, 1}, sources, {&q, 1}, {&g, 1}, {});
    ref::depth_mix_norm<bf16>(cx_, {&wantv, 1}, sources, {&q, 1}, {&g, 1}, {});
    check_close(y, want);
    time(line, 5, [&] {
      for (int i = 0; i < 5; ++i) ops::depth_mix_norm<bf16>(cx_, {&yv, 1}, sources, {&q, 1}, {&g, 1}, {});
    });
    line.bytes = 2.0 * (kSources + 1) * tokens * kHidden;
    print(line);
  }

  static void check_close(const std::vector<bf16>& got, const std::vector<bf16>& want) {
    for (size_t i = 0; i < got.size(); ++i) {
      const float a = as_float(got[i]), b = as_float(want[i]);
      NIB_CHECK(std::abs(a - b) <= 0.01f * std::abs(b) + 1e-4f, "{} for {}", a, b);
    }
  }

  void print(const Line& line) {
    const auto limit = [&](double pass_seconds) {
      return std::max(line.bytes * pass_seconds / kPassBytes, line.operations / multiply_rate_);
    };
    const bool memory = line.bytes * line.read.median / kPassBytes >= line.operations / multiply_rate_;
    const double rate = memory ? line.bytes : line.operations;
    std::string rival = line.rival;
    if (line.rival_seconds > 0) rival = fmt::format("{:.1f}x {}", line.rival_seconds / line.time.median, line.rival);
    fmt::print("{:20} {:48} {:10.1f} us {:8.1f} {} {:5.2f} of {} (best {:.2f})  {}\n", line.op, line.shape,
               line.time.median * 1e6, rate / line.time.median / 1e9, memory ? "GB/s   " : "GFLOP/s",
               limit(line.read.median) / line.time.median, memory ? "read rate" : "multiply rate",
               limit(line.read.best) / line.time.best, rival);
    std::fflush(stdout);
    results_.push_back({{"op", line.op},
                        {"shape", line.shape},
                        {"median_us", line.time.median * 1e6},
                        {"best_us", line.time.best * 1e6},
                        {"bytes", line.bytes},
                        {"operations", line.operations},
                        {"bound_by", memory ? "memory" : "arithmetic"},
                        {"read_gb_s", kPassBytes / line.read.median / 1e9},
                        {"ratio_median", limit(line.read.median) / line.time.median},
                        {"ratio_best", limit(line.read.best) / line.time.best},
                        {"rival", line.rival},
                        {"rival_us", line.rival_seconds * 1e6}});
  }

  bool write() const {
    if (options_.out.empty()) return true;
    const Json all = {{"command", "nib bench ops"},
                      {"date", utc_date()},
                      {"cpu", cpu_name()},
                      {"threads", pool_.num_threads()},
                      {"isa", name(cx_.isa)},
                      {"read_gb_s", read_rate_ / 1e9},
                      {"multiply_gflop_s", multiply_rate_ / 1e9},
                      {"results", results_}};
    std::ofstream file(options_.out);
    file << all.dump(1) << "\n";
    return file.good();
  }

  Options options_;
  ThreadPool pool_;
  Workspace workspace_;
  Context cx_;
  Buffer weights_, scales_;
  OneDnn onednn_;
  std::mt19937 rng_{1};
  double read_rate_ = 0, multiply_rate_ = 0;  // bytes, operations a second
  int64_t passes_ = 0;                        // of read_pass so far
  Json results_ = Json::array();
};

Status run(const Options& options) {
  Isa isa = best_isa();
  if (!options.isa.empty()) {
    NIB_ASSIGN(isa, isa_from_name(options.isa));
  }
  if (isa < Isa::kAvx2) return invalid("nib bench ops needs AVX2: plain loops have no speed to speak of");
  Bench bench(options, isa);
  if (!bench.run()) return invalid("{}: cannot be written", options.out);
  return {};
}

}  // namespace

void add_bench_ops_command(CLI::App& bench, Exit& exit) {
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      bench.add_subcommand("ops", "Times the operations against this machine's limits and another library");
  command->add_option("--threads", options->threads, "Threads (default: all)");
  command->add_option("--cpu-isa", options->isa, "avx2, avx512 or amx (default: the best here)");
  command->add_option("--filter", options->filter, "Only lines whose operation and shape contain this text");
  command->add_option("--repeats", options->repeats, "Timing loops; the median and the best are reported")
      ->check(positive_number());
  command->add_option("--out", options->out, "Also write the results to this JSON file");
  command->callback([options, &exit] { exit.code = report("bench ops", run(*options)); });
}

}  // namespace nib::cli
