// Any ids that a model may sample, cut at any place, fold into the message of the uncut answer.
#include <memory>

#include "base/check.h"
#include "text/output_parser.h"

namespace {

struct Model {
  std::shared_ptr<const nib::Tokenizer> tokenizer;
  nib::ChatFormat format;
  std::vector<nib::TokenId> controls;
};

const Model& model() {
  static const Model kModel = [] {
    auto tokenizer = nib::Tokenizer::load(NIB_SOURCE_DIR "/models/nano");
    NIB_CHECK(tokenizer.ok(), "{}", tokenizer.status().message());
    auto format = nib::ChatFormat::resolve(**tokenizer, /*vision=*/false);
    NIB_CHECK(format.ok(), "{}", format.status().message());
    Model m{*tokenizer, *format, {}};
    for (nib::TokenId id = 0; id < m.tokenizer->size(); ++id)
      if (m.tokenizer->is_special(id)) m.controls.push_back(id);
    return m;
  }();
  return kModel;
}

// Bytes to ids: 0x80 and above are control tokens, 0x01 0xHH 0xLL is any id (unknown ones too), the rest is text.
std::vector<nib::TokenId> ids_of(std::string_view bytes) {
  std::vector<nib::TokenId> ids;
  std::string text;
  const auto flush = [&] {
    for (nib::TokenId id : model().tokenizer->encode(text, nib::Tokenizer::Special::kText)) ids.push_back(id);
    text.clear();
  };
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<uint8_t>(bytes[i]);
    if (byte >= 0x80) {
      flush();
      ids.push_back(model().controls[byte % model().controls.size()]);
    } else if (byte == 1 && i + 2 < bytes.size()) {
      flush();
      ids.push_back(static_cast<uint8_t>(bytes[i + 1]) * 256 + static_cast<uint8_t>(bytes[i + 2]));
      i += 2;
    } else {
      text += bytes[i];
    }
  }
  flush();
  return ids;
}

nib::OutputParserOptions options_of(uint8_t flags) {
  nib::OutputParserOptions options;
  if (flags & 1) options.tools = {{"get_weather", "search"}};
  options.tool_choice_none = flags & 2;
  options.parallel_tool_calls = !(flags & 4);
  options.parse_reasoning = !(flags & 8);
  options.include_reasoning = !(flags & 16);
  if (flags & 32) options.stop = {"ab", "abc", "b"};
  options.include_stop_in_output = flags & 64;
  options.min_tokens = flags & 128 ? 3 : 0;
  return options;
}

struct Outcome {
  nib::Message message;
  std::optional<std::string> stopped;
  int consumed = 0, reasoning = 0;
  bool operator==(const Outcome&) const = default;
};

// cuts: the sizes of the pieces, used round and round; empty: one piece.
Outcome parse(const std::vector<nib::TokenId>& ids, uint8_t flags, std::string_view cuts) {
  const std::vector<nib::TokenId> prompt = {model().format.message_model};
  nib::OutputParser parser(*model().tokenizer, model().format, options_of(flags), prompt);
  std::vector<nib::Delta> deltas;
  const auto take = [&](std::vector<nib::Delta> more) { deltas.insert(deltas.end(), more.begin(), more.end()); };
  std::span<const nib::TokenId> rest = ids;
  for (size_t i = 0; !rest.empty(); ++i) {
    const size_t piece = cuts.empty() ? rest.size() : static_cast<uint8_t>(cuts[i % cuts.size()]) % 8;
    const size_t n = std::min(rest.size(), cuts.empty() ? piece : piece + 1);
    take(parser.push(rest.first(n)));
    rest = rest.subspan(n);
  }
  take(parser.finish(flags & 2 ? nib::FinishCause::kLength : nib::FinishCause::kStop));
  return {nib::fold(deltas), parser.stopped(), parser.num_tokens_settled(), parser.num_reasoning_tokens()};
}

}  // namespace

// Input: flags, the number of cut bytes, the cut bytes, the ids' bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t num_cuts = std::min<size_t>(data[1] % 16, size - 2);
  const std::vector<nib::TokenId> ids = ids_of(bytes.substr(2 + num_cuts));
  const Outcome whole = parse(ids, data[0], {});
  NIB_CHECK(whole == parse(ids, data[0], bytes.substr(2, num_cuts)));
  NIB_CHECK(whole == parse(ids, data[0], std::string_view("\0", 1)));  // token by token
  return 0;
}
