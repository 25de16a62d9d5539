#include "cli/chat_client.h"

#include <iostream>

namespace nib::cli {

void ClientOptions::declare(CLI::App& command, const Environment& env) {
  api_key = env.openai_api_key;
  command.add_option("--url", url, "The server's API, http://host:port/v1")->capture_default_str();
  command.add_option("--model-name", model_name, "default: the server's first");
  command.add_option("--api-key", api_key, "default: OPENAI_API_KEY");
  command.add_option("-q,--quick", quick, "Send this text, print the answer, leave");
}

Result<ChatClient> connect(const ClientOptions& options) {
  NIB_ASSIGN(HttpClient http, HttpClient::open(options.url, {.api_key = options.api_key}));
  std::string model = options.model_name;
  if (model.empty()) {
    NIB_ASSIGN(const Json models, http.get("/models"));
    if (!models.contains("data") || models["data"].empty()) return invalid("{}: the server has no model", options.url);
    model = models["data"][0].value("id", "");
  }
  fmt::print(stderr, "Using model: {}\n", model);
  return ChatClient{std::move(http), std::move(model)};
}

bool ask_line(std::string& line) {
  fmt::print("> ");
  std::fflush(stdout);
  return static_cast<bool>(std::getline(std::cin, line));
}

std::string text_of(const Json& chunk, const char* object, const char* field) {
  if (!chunk.contains("choices") || chunk["choices"].empty()) return {};
  const Json& choice = chunk["choices"][0];
  const Json& holder = *object ? choice.at(object) : choice;
  return holder.contains(field) && holder[field].is_string() ? holder[field].get<std::string>() : std::string();
}

}  // namespace nib::cli
