// Renders a chat request into the prompt's token ids. Text of the user is encoded apart, so it can never become a
// control token.
//   Result<RenderedPrompt> prompt = render_chat(tokenizer, format, request, {});
//   engine.submit(prompt->ids);
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/chat_format.h"
#include "text/tools.h"

namespace nib {

struct ChatOptions {
  bool allow_special_in_text = false;             // --allow-special-in-text: byte parity with vLLM, unsafe
  Json default_template_kwargs = Json::object();  // --default-chat-template-kwargs
  int max_images = 0;                             // images one prompt may hold; 0: the model has no eyes
  bool exclude_tools_when_none = false;           // --exclude-tools-when-tool-choice-none
};

// An image in order of appearance. Its marker is at ids[marker]; placeholders go right behind it.
struct PromptImage {
  Json part;           // the content part as the client sent it: {"type":"image_url","image_url":{...}}
  size_t marker;       // index into ids
  size_t text_offset;  // just behind the marker's spelling in text
};

struct RenderedPrompt {
  std::vector<TokenId> ids;
  std::string text;  // the same, control tokens spelled out
  std::vector<PromptImage> images;
  std::optional<double> effort;  // the rendered thinking effort; nothing if no effort block was rendered
  ToolSelection tools;
};

// Reads messages, tools, tool_choice, reasoning_effort, chat_template_kwargs, add_generation_prompt and
// continue_final_message. Everything wrong in them is an invalid_param that names the field.
Result<RenderedPrompt> render_chat(const Tokenizer& tokenizer, const ChatFormat& format, const Json& request,
                                   const ChatOptions& options);

// Puts num_placeholders[i] placeholders behind the marker of image i. REQUIRES: one count per image.
void expand_images(RenderedPrompt& prompt, const Tokenizer& tokenizer, const ChatFormat& format,
                   std::span<const int> num_placeholders);

}  // namespace nib
