// nib complete: lets a server go on with raw text; each line is a prompt of its own.
#include "cli/chat_client.h"
#include "cli/number_checks.h"

namespace nib::cli {

namespace {

struct Options {
  ClientOptions client;
  int64_t max_tokens = 0;  // 0: the server's default
};

Status complete(ChatClient& client, const Options& o, const std::string& prompt) {
  Json body = {{"model", client.model}, {"prompt", prompt}, {"stream", true}};
  if (o.max_tokens > 0) body["max_tokens"] = o.max_tokens;
  NIB_TRY(client.http.post_stream("/completions", body, [](const Json& chunk) {
    fmt::print("{}", text_of(chunk, "", "text"));
    std::fflush(stdout);
    return true;
  }));
  fmt::print("\n");
  return {};
}

Status run(const Options& o) {
  NIB_ASSIGN(ChatClient client, connect(o.client));
  if (!o.client.quick.empty()) return complete(client, o, o.client.quick);
  for (std::string line; ask_line(line);) {
    const Status status = complete(client, o, line);
    if (!status.ok()) fmt::print(stderr, "{}\n", status.message());
  }
  return {};
}

}  // namespace

void add_complete_command(CLI::App& app, const Environment& env, Exit& exit) {
  CLI::App& command =
      *app.add_subcommand("complete", "Lets a running server continue raw text, from -q or line by line");
  auto o = std::make_shared<Options>();
  o->client.declare(command, env);
  command.add_option("--max-tokens", o->max_tokens, "default: the server's")->check(positive_number());
  command.callback([o, &exit] { exit.code = report("complete", run(*o)); });
}

}  // namespace nib::cli
