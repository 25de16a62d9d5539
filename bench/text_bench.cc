// Speed of text: bytes per second on one core, on ordinary text and on text that means harm.
//   text_bench build/inkling-tokenizer docs/*.md
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <memory>
#include <random>
#include <string>

#include "base/file.h"
#include "text/tokenizer.h"

namespace nib {
namespace {

using TokenizerPtr = std::shared_ptr<const Tokenizer>;

constexpr size_t kBytes = 1 << 20;

std::string repeated(std::string_view unit) {
  std::string text;
  while (text.size() < kBytes) text += unit;
  return text;
}

std::string random_bytes(int lowest, int highest) {
  std::mt19937 random(1);
  std::string text(kBytes, 0);
  for (char& c : text) c = char(lowest + int(random() % unsigned(highest - lowest + 1)));
  return text;
}

void bench_encode(const std::string& name, const TokenizerPtr& tokenizer, const std::string& text) {
  const auto run = [tokenizer, text](benchmark::State& state) {
    size_t num_tokens = 0;
    for (auto _ : state) num_tokens = tokenizer->encode(text, Tokenizer::Special::kText).size();
    state.SetBytesProcessed(int64_t(state.iterations() * text.size()));
    state.counters["bytes_per_token"] = double(text.size()) / double(num_tokens);
  };
  benchmark::RegisterBenchmark(("encode/" + name).c_str(), run)->Unit(benchmark::kMillisecond);
}

void bench_decode(const TokenizerPtr& tokenizer, const std::string& text) {
  const auto run = [tokenizer, text](benchmark::State& state) {
    const std::vector<TokenId> ids = tokenizer->encode(text, Tokenizer::Special::kText);
    if (tokenizer->decode(ids, false) != text) state.SkipWithError("decode is not the inverse of encode");
    for (auto _ : state) benchmark::DoNotOptimize(tokenizer->decode(ids, false));
    state.SetBytesProcessed(int64_t(state.iterations() * text.size()));
  };
  benchmark::RegisterBenchmark("decode/files", run)->Unit(benchmark::kMillisecond);
}

int run(int argc, char** argv) {
  const Result<TokenizerPtr> tokenizer = Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) return fmt::print(stderr, "{}\n", tokenizer.status().message()), 1;
  std::string files;
  for (int i = 2; i < argc; ++i) {
    const Result<std::string> text = read_file(argv[i]);
    if (!text.ok()) return fmt::print(stderr, "{}\n", text.status().message()), 1;
    files += *text;
  }
  bench_encode("files", *tokenizer, repeated(files));
  bench_encode("spaces", *tokenizer, repeated(" "));
  bench_encode("newlines", *tokenizer, repeated("\n"));
  bench_encode("one_letter", *tokenizer, repeated("a"));
  bench_encode("one_capital", *tokenizer, repeated("Q"));
  bench_encode("one_ideograph", *tokenizer, repeated("\u4e2d"));
  bench_encode("combining_marks", *tokenizer, repeated("\u0301"));
  bench_encode("punctuation", *tokenizer, repeated("<|"));
  bench_encode("random_letters", *tokenizer, random_bytes('a', 'z'));
  bench_encode("random_bytes", *tokenizer, random_bytes(0, 255));
  bench_decode(*tokenizer, repeated(files));
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace nib

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc >= 3) return nib::run(argc, argv);
  fmt::print(stderr, "usage: text_bench TOKENIZER TEXT_FILE... [--benchmark_...]\n");
  return 2;
}
