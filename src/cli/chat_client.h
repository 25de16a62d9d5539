// What `nib chat` and `nib complete` share: where the server is and which model it has.
//   Result<ChatClient> client = connect(options);       // prints "Using model: ..."
#pragma once

#include <string>

#include "cli/commands.h"
#include "server/http_client.h"

namespace nib::cli {

struct ClientOptions {
  std::string url = "http://localhost:8000/v1", model_name, api_key, quick;
  void declare(CLI::App& command, const Environment& env);
};

struct ChatClient {
  HttpClient http;
  std::string model;
};

Result<ChatClient> connect(const ClientOptions& options);

// Prints "> " and reads a line; false at the end of input.
bool ask_line(std::string& line);

// The text of a field of the first choice of a chunk; empty if there is none.
std::string text_of(const Json& chunk, const char* object, const char* field);

}  // namespace nib::cli
