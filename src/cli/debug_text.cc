// nib debug tokenize, detokenize, render and parse: what the server does with text, on files.
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <random>

#include "base/file.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/number_checks.h"
#include "text/chat.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace nib::cli {

namespace {

using TokenizerPtr = std::shared_ptr<const Tokenizer>;

struct Flags {
  std::string tokenizer, model, text_file, ids, request;
  bool allow_special = false;
  int num_cuts = -1;  // negative: not cut
  uint64_t seed = 0;
};

void print_json(const Json& value) {
  fmt::print("{}\n", value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
}

Result<Json> read_json(const std::string& path) {
  NIB_ASSIGN(const std::string text, read_file(path));
  Result<Json> json = parse_json(text);
  if (!json.ok()) return invalid("{}: {}", path, json.status().message());
  return json;
}

Result<std::vector<TokenId>> read_ids(const std::string& path) {
  NIB_ASSIGN(const Json json, read_json(path));
  if (!json.is_array()) return invalid("{}: expected a JSON array of token ids", path);
  std::vector<TokenId> ids;
  for (const Json& id : json) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
      return invalid("{}: element {} is {}, expected a token id", path, ids.size(), id.dump());
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

Status tokenize(const Flags& flags) {
  NIB_ASSIGN(const TokenizerPtr tokenizer, Tokenizer::load(flags.tokenizer));
  NIB_ASSIGN(const std::string text, read_file(flags.text_file));
  const auto special = flags.allow_special ? Tokenizer::Special::kRecognise : Tokenizer::Special::kText;
  print_json(tokenizer->encode(text, special));
  return {};
}

Status detokenize(const Flags& flags) {
  NIB_ASSIGN(const TokenizerPtr tokenizer, Tokenizer::load(flags.tokenizer));
  NIB_ASSIGN(const std::vector<TokenId> ids, read_ids(flags.ids));
  std::string out;
  for (TokenId id : ids) {
    if (tokenizer->bytes(id).empty()) return invalid("{}: the tokenizer has no token {}", flags.ids, id);
    out += tokenizer->bytes(id);
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
  return {};
}

struct Chat {
  TokenizerPtr tokenizer;
  ChatFormat format;
};

Result<Chat> load_chat(const std::string& model) {
  NIB_ASSIGN(TokenizerPtr tokenizer, Tokenizer::load(model));
  Result<ChatFormat> format = ChatFormat::resolve(*tokenizer, /*vision=*/false);
  if (!format.ok()) return invalid("{}: {}", model, format.status().message());
  return Chat{std::move(tokenizer), *std::move(format)};
}

Status render(const Flags& flags) {
  NIB_ASSIGN(const Chat chat, load_chat(flags.model));
  NIB_ASSIGN(const Json request, read_json(flags.request));
  if (const Result<OutputParserOptions> unused = parser_options(request); !unused.ok()) return unused.status();
  ChatOptions options;
  if (chat.format.content_image) options.max_images = INT32_MAX;
  NIB_ASSIGN(const RenderedPrompt prompt, render_chat(*chat.tokenizer, chat.format, request, options));
  print_json({{"ids", prompt.ids}, {"text", prompt.text}});
  return {};
}

// eos_token_id of config.json, one or a list, beside the ends that the chat format knows.
std::vector<TokenId> end_tokens(const Flags& flags, const ChatFormat& format) {
  std::vector<TokenId> ends = format.stop_ids;
  const Result<Json> config = read_json(flags.model + "/config.json");
  if (!config.ok() || !config->contains("eos_token_id")) return ends;
  const Json& eos = config->at("eos_token_id");
  for (const Json& id : eos.is_array() ? eos : Json::array({eos}))
    if (id.is_number_integer()) ends.push_back(id.get<TokenId>());
  return ends;
}

Json to_json(const ToolCallDelta& call) {
  Json out = {{"index", call.index}};
  if (!call.id.empty()) out.update({{"id", call.id}, {"type", "function"}});
  Json function = Json::object();
  if (!call.name.empty()) function["name"] = call.name;
  function["arguments"] = call.arguments;
  out["function"] = function;
  return out;
}

Json to_json(const Delta& delta) {
  Json out = Json::object();
  if (!delta.reasoning.empty()) out["reasoning"] = delta.reasoning;
  if (!delta.content.empty()) out["content"] = delta.content;
  for (const ToolCallDelta& call : delta.tool_calls)
    if (!call.retracted) out["tool_calls"].push_back(to_json(call));
  return out;
}

Json to_json(const Message& message, std::string_view finish_reason) {
  Json calls;
  for (const ToolCall& call : message.tool_calls)
    calls.push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  return {{"reasoning", message.reasoning ? Json(*message.reasoning) : Json()},
          {"content", message.content ? Json(*message.content) : Json()},
          {"tool_calls", calls},
          {"finish_reason", finish_reason}};
}

// Where to cut n ids: sorted positions, the last one is n.
std::vector<size_t> random_cuts(size_t n, int num_cuts, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<size_t> cuts = {n};
  for (int i = 0; i < num_cuts; ++i) cuts.push_back(random() % (n + 1));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

Status parse(const Flags& flags) {
  NIB_ASSIGN(const Chat chat, load_chat(flags.model));
  NIB_ASSIGN(std::vector<TokenId> ids, read_ids(flags.ids));
  OutputParserOptions options;
  if (!flags.request.empty()) {
    NIB_ASSIGN(const Json request, read_json(flags.request));
    NIB_ASSIGN(options, parser_options(request));
  }
  const std::vector<TokenId> ends = end_tokens(flags, chat.format);
  const auto end = std::find_first_of(ids.begin(), ids.end(), ends.begin(), ends.end());
  FinishCause cause = end == ids.end() ? FinishCause::kLength : FinishCause::kStop;
  if (end != ids.end()) ids.erase(end + 1, ids.end());

  OutputParser parser(*chat.tokenizer, chat.format, std::move(options), std::vector{chat.format.message_model});
  std::vector<Delta> all;
  const auto take = [&](std::vector<Delta> deltas) {
    for (Delta& delta : deltas) {
      if (const Json json = to_json(delta); flags.num_cuts >= 0 && !json.empty()) print_json({{"delta", json}});
      all.push_back(std::move(delta));
    }
  };
  size_t from = 0;
  for (size_t cut : random_cuts(ids.size(), std::max(0, flags.num_cuts), flags.seed)) {
    take(parser.push(std::span(ids).subspan(from, cut - from)));
    from = cut;
  }
  if (parser.stopped()) cause = FinishCause::kStop;
  take(parser.finish(cause));
  const Json message = to_json(fold(all), finish_reason(cause, parser.any_tool_call()));
  print_json(flags.num_cuts >= 0 ? Json{{"message", message}} : message);
  return {};
}

// A command's flags live as long as its callback.
void add(CLI::App& debug, Exit& exit, const std::string& name, const std::string& help,
         const std::function<void(CLI::App&, Flags&)>& declare, Status (*run)(const Flags&)) {
  CLI::App& command = *debug.add_subcommand(name, help);
  auto flags = std::make_shared<Flags>();
  declare(command, *flags);
  command.callback([flags, run, &exit] {
    const Status status = run(*flags);
    if (status.ok()) return;
    fmt::print(stderr, "{}\n", status.message());
    exit.code = 1;
  });
}

}  // namespace

void add_debug_text_commands(CLI::App& debug, Exit& exit) {
  add(
      debug, exit, "tokenize", "Prints the token ids of a text as a JSON array",
      [](CLI::App& command, Flags& f) {
        command.add_option("--tokenizer", f.tokenizer, "A model folder, a tokenizer.json or a tiktoken rank file")
            ->required();
        command.add_option("--text-file", f.text_file, "The text; invalid UTF-8 becomes U+FFFD")->required();
        command.add_flag("--allow-special", f.allow_special, "Spellings of control tokens become control tokens");
      },
      tokenize);
  add(
      debug, exit, "detokenize", "Prints the bytes of token ids",
      [](CLI::App& command, Flags& f) {
        command.add_option("--tokenizer", f.tokenizer, "A model folder, a tokenizer.json or a tiktoken rank file")
            ->required();
        command.add_option("--ids", f.ids, "A file with a JSON array of token ids")->required();
      },
      detokenize);
  add(
      debug, exit, "render", "Prints the prompt of a chat request: token ids, and text with control tokens spelled out",
      [](CLI::App& command, Flags& f) {
        command.add_option("--model", f.model, "A folder with a tokenizer")->required();
        command.add_option("--request", f.request, "A file with the body of a chat completion request")->required();
      },
      render);
  add(
      debug, exit, "parse", "Prints the message that sampled token ids hold",
      [](CLI::App& command, Flags& f) {
        command.add_option("--model", f.model, "A folder with a tokenizer")->required();
        command.add_option("--ids", f.ids, "A file with a JSON array of the ids after the generation prompt")
            ->required();
        command.add_option("--request", f.request, "The request; without it every tool call is shown");
        command.add_option("--cuts", f.num_cuts, "Print the deltas of a stream cut at so many random places")
            ->check(non_negative_number());
        command.add_option("--seed", f.seed, "Seed of the cuts");
      },
      parse);
}

}  // namespace nib::cli
