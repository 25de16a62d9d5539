#include "text/chat.h"

#include <unordered_map>

#include "base/check.h"
#include "text/canonical_json.h"
#include "text/effort.h"
#include "text/request_fields.h"

namespace nib {

namespace {

// One piece of a message's content: text, or an image if `image` is set.
struct Part {
  std::string_view text;
  const Json* image = nullptr;
};

bool is_any_of(const Json& value, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (value == name) return true;
  return false;
}

Result<Part> read_part(const Json& part, const std::string& where) {
  if (part.is_string()) return Part{part.get_ref<const std::string&>()};
  const Json& type = field(part, "type");
  if (type.is_null() || is_any_of(type, {"text", "input_text"})) {
    const Json& text = field(part, "text");
    if (!text.is_string()) return invalid_param("messages", "{}.text must be a string", where);
    return Part{text.get_ref<const std::string&>()};
  }
  if (is_any_of(type, {"image", "input_image", "image_url", "image_embeds"})) return Part{{}, &part};
  if (is_any_of(type, {"audio", "input_audio", "audio_url"}))
    return invalid_param("messages", "{}: the model takes no audio, only text and images", where);
  return invalid_param("messages", "{}: content of type {} is not supported", where, type.dump());
}

// A string that is empty holds no part, a list may hold empty ones.
Result<std::vector<Part>> read_content(const Json& message, const std::string& where) {
  const Json& content = field(message, "content");
  std::vector<Part> parts;
  if (content.is_null()) return parts;
  if (content.is_string()) {
    if (has_text(content)) parts.push_back({content.get_ref<const std::string&>()});
    return parts;
  }
  if (!content.is_array()) return invalid_param("messages", "{}.content must be a string or a list of parts", where);
  for (size_t i = 0; i < content.size(); ++i) {
    NIB_ASSIGN(Part part, read_part(content[i], fmt::format("{}.content[{}]", where, i)));
    parts.push_back(part);
  }
  return parts;
}

// What the model thought in an earlier turn, under any of the names that clients use.
Result<std::string_view> read_reasoning(const Json& message, const std::string& where) {
  for (const char* key : {"reasoning", "reasoning_content", "thinking"}) {
    const Json& value = field(message, key);
    if (!value.is_null() && !value.is_string()) return invalid_param("messages", "{}.{} must be a string", where, key);
    if (has_text(value)) return std::string_view(value.get_ref<const std::string&>());
  }
  return std::string_view();
}

// A string that holds an object, an object, or nothing.
Result<Json> read_arguments(const Json& value, const std::string& where) {
  Json arguments = value;
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Json::object();
    Result<Json> parsed = parse_json(text);
    if (!parsed.ok())
      return invalid_param("messages", "{} must be a JSON object: {}", where, parsed.status().message());
    arguments = *std::move(parsed);
  }
  if (arguments.is_null() && value.is_null()) return Json::object();
  if (!arguments.is_object()) return invalid_param("messages", "{} must be a JSON object", where);
  return arguments;
}

std::string declaration(const std::vector<Tool>& tools) {
  Json list = Json::array();
  for (const Tool& tool : tools)
    list.push_back({{"description", tool.description},
                    {"name", tool.name},
                    {"parameters", tool.parameters},
                    {"type", "function"}});
  return canonical_json(list);
}

class Renderer {
 public:
  Renderer(const Tokenizer& tokenizer, const ChatFormat& format, const ChatOptions& options)
      : tokenizer_(tokenizer), format_(format), options_(options) {}

  Status render(const Json& request) {
    NIB_TRY(check_prompt_flags(request));
    NIB_ASSIGN(out_.tools, read_tools(request));
    NIB_ASSIGN(out_.effort, read_effort(request, options_.default_template_kwargs));
    const bool declare = out_.tools.choice != ToolChoice::kNone || !options_.exclude_tools_when_none;
    if (declare && !out_.tools.tools.empty())
      block(format_.message_system, "tool_declare", format_.content_xml, declaration(out_.tools.tools));
    NIB_TRY(render_messages(field(request, "messages")));
    if (add_generation_prompt_) control(format_.message_model);
    return {};
  }

  RenderedPrompt take() { return std::move(out_); }

 private:
  Status check_prompt_flags(const Json& request) {
    NIB_ASSIGN(add_generation_prompt_, read_bool(request, "add_generation_prompt", true));
    NIB_ASSIGN(const bool continues, read_bool(request, "continue_final_message", false));
    if (continues && field(request, "add_generation_prompt") == true)
      return invalid_param("continue_final_message",
                           "continue_final_message and add_generation_prompt cannot both be true");
    if (continues)
      return invalid_param("continue_final_message", "the Inkling chat format does not support continue_final_message");
    return {};
  }

  // The effort line stands before the first message that is not the system's, at the end if there is none.
  Status render_messages(const Json& messages) {
    if (!messages.is_array() || messages.empty())
      return invalid_param("messages", "messages must be a list of at least one message");
    bool effort_pending = out_.effort.has_value();
    for (size_t i = 0; i < messages.size(); ++i) {
      const std::string where = fmt::format("messages[{}]", i);
      if (!messages[i].is_object()) return invalid_param("messages", "{} must be an object", where);
      if (!is_any_of(field(messages[i], "role"), {"system", "developer"}) && std::exchange(effort_pending, false))
        text_block(format_.message_system, effort_line(*out_.effort));
      NIB_TRY(render_message(messages[i], where));
    }
    if (effort_pending) text_block(format_.message_system, effort_line(*out_.effort));
    return {};
  }

  Status render_message(const Json& message, const std::string& where) {
    const Json& role = field(message, "role");
    if (is_any_of(role, {"system", "developer"})) return render_parts(message, where, format_.message_system);
    if (role == "user") return render_parts(message, where, format_.message_user);
    if (role == "assistant") return render_assistant(message, where);
    if (role == "tool") return render_tool_result(message, where);
    return invalid_param("messages", "{}: unsupported Inkling message role {}", where, role.dump());
  }

  Status render_parts(const Json& message, const std::string& where, TokenId role) {
    NIB_ASSIGN(const std::vector<Part> parts, read_content(message, where));
    for (const Part& part : parts) {
      if (part.image == nullptr)
        text_block(role, part.text);
      else
        NIB_TRY(image_block(role, *part.image));
    }
    return {};
  }

  Status render_assistant(const Json& message, const std::string& where) {
    NIB_ASSIGN(const std::string_view reasoning, read_reasoning(message, where));
    if (!reasoning.empty()) block(format_.message_model, {}, format_.content_thinking, reasoning);
    NIB_TRY(check_text_only(message, where));
    NIB_TRY(render_parts(message, where, format_.message_model));
    NIB_TRY(render_calls(field(message, "tool_calls"), where + ".tool_calls"));
    control(format_.end_sampling);
    return {};
  }

  Status render_calls(const Json& calls, const std::string& where) {
    if (calls.is_null()) return {};
    if (!calls.is_array()) return invalid_param("messages", "{} must be a list", where);
    for (size_t i = 0; i < calls.size(); ++i) {
      const std::string here = fmt::format("{}[{}].function", where, i);
      const Json& function = field(calls[i], "function");
      if (!has_text(field(function, "name"))) return invalid_param("messages", "{}.name must be a string", here);
      const std::string& name = field(function, "name").get_ref<const std::string&>();
      NIB_ASSIGN(const Json arguments, read_arguments(field(function, "arguments"), here + ".arguments"));
      block(format_.message_model, name, format_.content_invoke_tool_json,
            fmt::format(R"({{"name":{},"args":{}}})", canonical_json(name), canonical_json(arguments)));
      if (has_text(field(calls[i], "id"))) call_names_[field(calls[i], "id").get<std::string>()] = name;
    }
    return {};
  }

  Status render_tool_result(const Json& message, const std::string& where) {
    NIB_TRY(check_text_only(message, where));
    NIB_ASSIGN(const std::vector<Part> parts, read_content(message, where));
    std::string text;
    for (const Part& part : parts) text += part.text;
    block(format_.message_tool, tool_name(message), format_.content_text, text);
    return {};
  }

  // A result names its tool, or the call that it answers; else it has no name.
  std::string tool_name(const Json& message) const {
    if (has_text(field(message, "name"))) return field(message, "name").get<std::string>();
    const Json& id = field(message, "tool_call_id");
    const auto call = id.is_string() ? call_names_.find(id.get<std::string>()) : call_names_.end();
    return call == call_names_.end() ? std::string() : call->second;
  }

  Status check_text_only(const Json& message, const std::string& where) const {
    NIB_ASSIGN(const std::vector<Part> parts, read_content(message, where));
    for (const Part& part : parts)
      if (part.image != nullptr)
        return invalid_param("messages", "{}: a message of role {} cannot hold an image", where,
                             field(message, "role").dump());
    return {};
  }

  void text_block(TokenId role, std::string_view body) { block(role, {}, format_.content_text, body); }

  void block(TokenId role, std::string_view author, TokenId kind, std::string_view body) {
    control(role);
    text(author);
    control(kind);
    text(body);
    control(format_.end_message);
  }

  Status image_block(TokenId role, const Json& part) {
    if (int(out_.images.size()) >= options_.max_images)
      return invalid_param("messages", "At most {} image(s) may be provided in one prompt.", options_.max_images);
    NIB_CHECK(format_.content_image.has_value(), "the format was resolved without vision");
    control(role);
    control(*format_.content_image);
    out_.images.push_back({part, out_.ids.size() - 1, out_.text.size()});
    control(format_.end_message);
    return {};
  }

  void control(TokenId id) {
    out_.ids.push_back(id);
    out_.text += tokenizer_.bytes(id);
  }

  // Encoded by itself: no merge crosses a control token, and none can be spelled into being.
  void text(std::string_view text) {
    const auto special = options_.allow_special_in_text ? Tokenizer::Special::kRecognise : Tokenizer::Special::kText;
    const std::vector<TokenId> ids = tokenizer_.encode(text, special);
    out_.ids.insert(out_.ids.end(), ids.begin(), ids.end());
    out_.text += text;
  }

  const Tokenizer& tokenizer_;
  const ChatFormat& format_;
  const ChatOptions& options_;
  bool add_generation_prompt_ = true;
  std::unordered_map<std::string, std::string> call_names_;  // by id, of the calls so far
  RenderedPrompt out_;
};

}  // namespace

Result<RenderedPrompt> render_chat(const Tokenizer& tokenizer, const ChatFormat& format, const Json& request,
                                   const ChatOptions& options) {
  if (!request.is_object()) return invalid("the request must be a JSON object");
  Renderer renderer(tokenizer, format, options);
  NIB_TRY(renderer.render(request));
  return renderer.take();
}

void expand_images(RenderedPrompt& prompt, const Tokenizer& tokenizer, const ChatFormat& format,
                   std::span<const int> num_placeholders) {
  NIB_CHECK_EQ(num_placeholders.size(), prompt.images.size());
  NIB_CHECK(prompt.images.empty() || format.image_placeholder.has_value());
  std::vector<TokenId> ids;
  std::string text;
  size_t id_from = 0, text_from = 0;
  for (size_t i = 0; i < prompt.images.size(); ++i) {
    PromptImage& image = prompt.images[i];
    ids.insert(ids.end(), prompt.ids.begin() + id_from, prompt.ids.begin() + image.marker + 1);
    text.append(prompt.text, text_from, image.text_offset - text_from);
    id_from = std::exchange(image.marker, ids.size() - 1) + 1;
    text_from = std::exchange(image.text_offset, text.size());
    ids.insert(ids.end(), num_placeholders[i], *format.image_placeholder);
    for (int n = 0; n < num_placeholders[i]; ++n) text += tokenizer.bytes(*format.image_placeholder);
  }
  ids.insert(ids.end(), prompt.ids.begin() + id_from, prompt.ids.end());
  text.append(prompt.text, text_from);
  prompt.ids = std::move(ids);
  prompt.text = std::move(text);
}

}  // namespace nib
