#include "text/chat_format.h"

#include <initializer_list>

namespace nib {

namespace {

Status require(const Tokenizer& tokenizer, std::initializer_list<std::string_view> spellings, TokenId& out) {
  for (std::string_view spelling : spellings) {
    if (const auto id = tokenizer.special(spelling)) {
      out = *id;
      return {};
    }
  }
  return invalid("the tokenizer has no control token {}, which the chat format needs; use the tokenizer of the model",
                 *spellings.begin());
}

}  // namespace

Result<ChatFormat> ChatFormat::resolve(const Tokenizer& tokenizer, bool vision, std::string_view image_token) {
  ChatFormat f;
  NIB_TRY(require(tokenizer, {"<|message_user|>"}, f.message_user));
  NIB_TRY(require(tokenizer, {"<|message_model|>"}, f.message_model));
  NIB_TRY(require(tokenizer, {"<|message_system|>"}, f.message_system));
  NIB_TRY(require(tokenizer, {"<|message_tool|>"}, f.message_tool));
  NIB_TRY(require(tokenizer, {"<|content_text|>"}, f.content_text));
  NIB_TRY(require(tokenizer, {"<|content_thinking|>"}, f.content_thinking));
  NIB_TRY(require(tokenizer, {"<|content_xml|>", "<|unused_200024|>"}, f.content_xml));
  NIB_TRY(require(tokenizer, {"<|content_invoke_tool_json|>"}, f.content_invoke_tool_json));
  NIB_TRY(require(tokenizer, {"<|end_message|>"}, f.end_message));
  NIB_TRY(require(tokenizer, {"<|content_model_end_sampling|>"}, f.end_sampling));
  if (vision) {
    NIB_TRY(require(tokenizer, {"<|content_image|>"}, f.content_image.emplace()));
    NIB_TRY(require(tokenizer, {image_token}, f.image_placeholder.emplace()));
  } else {
    f.content_image = tokenizer.special("<|content_image|>");
    f.image_placeholder = tokenizer.special(image_token);
  }
  f.content_tool_error = tokenizer.special("<|content_tool_error|>");
  f.content_invoke_tool_text = tokenizer.special("<|content_invoke_tool_text|>");
  f.end_of_text = tokenizer.special("<|endoftext|>");
  f.stop_ids = {f.end_sampling};
  if (f.end_of_text) f.stop_ids.push_back(*f.end_of_text);
  return f;
}

}  // namespace nib
