// The control tokens of the Inkling chat format, found by their spelling in a tokenizer.
//   Result<ChatFormat> format = ChatFormat::resolve(tokenizer, /*vision=*/true);
//   prompt.push_back(format->message_model);
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace nib {

struct ChatFormat {
  TokenId message_user, message_model, message_system, message_tool;
  TokenId content_text, content_thinking, content_xml, content_invoke_tool_json;
  TokenId end_message;
  TokenId end_sampling;  // ends the model's turn: EOS

  std::optional<TokenId> content_image, image_placeholder;  // always there if resolved with vision
  std::optional<TokenId> content_tool_error, content_invoke_tool_text, end_of_text;

  std::vector<TokenId> stop_ids;  // end_sampling, and end_of_text if there is one

  // Refuses a tokenizer that lacks a required token, naming it. image_token: processor_config.json may say otherwise.
  static Result<ChatFormat> resolve(const Tokenizer& tokenizer, bool vision,
                                    std::string_view image_token = "<|unused_200054|>");
};

}  // namespace nib
