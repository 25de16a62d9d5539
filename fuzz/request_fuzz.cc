// Hostile JSON bodies through every endpoint that takes one: an answer that is no 500 and has the shape of the API, or
// a reply ready to be made. What a body parses to writes out and parses again to the same.
#include "base/check.h"
#include "base/json.h"
#include "engine/testing/fake_network.h"
#include "server/api.h"
#include "server/metrics.h"

namespace {

using Handler = nib::HttpResult (*)(const nib::Service&, const nib::HttpRequest&);
constexpr Handler kHandlers[] = {nib::handle_chat, nib::handle_completions, nib::handle_tokenize,
                                 nib::handle_detokenize};

// nano's tokenizer in front of an engine that never runs a step here.
const nib::Service& service() {
  static const nib::Service* kService = [] {
    auto network = std::make_unique<nib::testing::FakeNetwork>(nib::testing::FakeShape{.max_position = 8192});
    auto engine = nib::Engine::start({std::move(network)}, {.max_num_seqs = 4, .num_threads = 1});
    NIB_CHECK(engine.ok(), "{}", engine.status().message());
    auto tokenizer = nib::Tokenizer::load(NIB_SOURCE_DIR "/models/nano");
    NIB_CHECK(tokenizer.ok(), "{}", tokenizer.status().message());
    auto format = nib::ChatFormat::resolve(**tokenizer, /*vision=*/false);
    NIB_CHECK(format.ok(), "{}", format.status().message());
    auto* s = new nib::Service;
    s->config.served_model_names = {"nano"};
    s->tokenizer = *tokenizer;
    s->format = *format;
    s->engine = engine->release();
    s->metrics = new nib::Metrics("nano", 8192, 0, [engine = s->engine] { return engine->stats(); });
    return s;
  }();
  return *kService;
}

void check_reply(const nib::HttpReply& reply) {
  NIB_CHECK(reply.status >= 200 && reply.status < 600 && reply.status != 500, "{} {}", reply.status, reply.body);
  const nib::Result<nib::Json> body = nib::parse_json(reply.body);
  NIB_CHECK(body.ok(), "{}", body.status().message());
  if (reply.status >= 400) NIB_CHECK_EQ(body->at("error").at("code").get<int>(), reply.status);
}

void check_round_trip(const std::string& text) {
  const nib::Result<nib::Json> parsed = nib::parse_json(text);
  if (!parsed.ok()) return;
  const std::string once = parsed->dump();
  const nib::Result<nib::Json> again = nib::parse_json(once);
  NIB_CHECK(again.ok(), "{}", again.status().message());
  NIB_CHECK(again->dump() == once);
}

}  // namespace

// Input: the endpoint, then the body.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  nib::HttpRequest request;
  request.method = "POST";
  request.body.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  check_round_trip(request.body);
  const nib::HttpResult result = kHandlers[data[0] % std::size(kHandlers)](service(), request);
  if (const auto* reply = std::get_if<nib::HttpReply>(&result)) check_reply(*reply);
  return 0;
}
