// nib chat: a conversation with a server, streamed to the terminal.
#include <unistd.h>

#include "cli/chat_client.h"

namespace nib::cli {

namespace {

struct Options {
  ClientOptions client;
  std::string system_prompt;
};

// Shows one answer while it comes. Reasoning is dimmed on a terminal.
class Screen {
 public:
  bool show(const Json& chunk) {
    const std::string reasoning = text_of(chunk, "delta", "reasoning"), content = text_of(chunk, "delta", "content");
    if (!reasoning.empty()) fmt::print("{}{}", dim(true), reasoning);
    if (!content.empty()) fmt::print("{}{}", dim(false), content);
    reasoning_ += reasoning;
    content_ += content;
    std::fflush(stdout);
    return true;
  }
  void end() { fmt::print("{}\n", dim(false)); }
  // Sent back in later turns, as the model was trained with its earlier reasoning in view.
  Json message() const {
    Json m = {{"role", "assistant"}, {"content", content_}};
    if (!reasoning_.empty()) m["reasoning"] = reasoning_;
    return m;
  }

 private:
  std::string_view dim(bool on) {
    if (on == dimmed_) return "";
    dimmed_ = on;
    if (!::isatty(STDOUT_FILENO)) return on ? "" : "\n";
    return on ? "\x1b[2m" : "\x1b[0m\n";
  }
  std::string reasoning_, content_;
  bool dimmed_ = false;
};

Status ask(ChatClient& client, Json& messages, const Json& effort) {
  Json body = {{"model", client.model}, {"messages", messages}, {"stream", true}};
  if (!effort.is_null()) body["reasoning_effort"] = effort;
  Screen screen;
  NIB_TRY(client.http.post_stream("/chat/completions", body, [&](const Json& chunk) { return screen.show(chunk); }));
  screen.end();
  messages.push_back(screen.message());
  return {};
}

Status run(const Options& o) {
  NIB_ASSIGN(ChatClient client, connect(o.client));
  Json messages = Json::array(), effort;
  if (!o.system_prompt.empty()) messages.push_back({{"role", "system"}, {"content", o.system_prompt}});
  if (!o.client.quick.empty()) {
    messages.push_back({{"role", "user"}, {"content", o.client.quick}});
    return ask(client, messages, effort);
  }
  for (std::string line; ask_line(line);) {
    if (line.starts_with("/effort ")) {
      effort = line.substr(8);
      if (const Result<Json> number = parse_json(line.substr(8)); number.ok() && number->is_number()) effort = *number;
      continue;
    }
    if (line.empty()) continue;
    messages.push_back({{"role", "user"}, {"content", line}});
    const Status status = ask(client, messages, effort);
    if (status.ok()) continue;
    messages.erase(messages.size() - 1);  // the question may be asked otherwise
    fmt::print(stderr, "{}\n", status.message());
  }
  return {};
}

}  // namespace

void add_chat_command(CLI::App& app, const Environment& env, Exit& exit) {
  CLI::App& command = *app.add_subcommand(
      "chat", "Talks to a running server; /effort low (or 0.3) sets the thinking effort, Ctrl-D ends it");
  auto o = std::make_shared<Options>();
  o->client.declare(command, env);
  command.add_option("--system-prompt", o->system_prompt, "the first message of the conversation");
  command.callback([o, &exit] { exit.code = report("chat", run(*o)); });
}

}  // namespace nib::cli
