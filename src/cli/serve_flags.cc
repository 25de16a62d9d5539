#include "cli/serve_flags.h"

#include <algorithm>
#include <map>
#include <optional>

#include "cli/serve_flag_table.h"

namespace nib::cli {

namespace {

using enum Kind;

const Flag* find_flag(std::string_view name) {
  for (const Flag& f : serve_flags())
    if (f.name == name || (!f.short_name.empty() && f.short_name == name)) return &f;
  return nullptr;
}

// One argument taken apart: --name[.key][=value]; underscores count as hyphens in the name.
struct Argument {
  std::string name, key;
  std::optional<std::string> value;
};

Argument take_apart(const std::string& text) {
  Argument a;
  const size_t equals = text.find('=');
  a.name = text.substr(0, equals);
  if (equals != std::string::npos) a.value = text.substr(equals + 1);
  if (const size_t dot = a.name.find('.'); dot != std::string::npos) {
    a.key = a.name.substr(dot + 1);
    a.name.resize(dot);
  }
  std::ranges::replace(a.name, '_', '-');
  if (a.name.starts_with("-O") && a.name.size() > 2 && !a.value) {  // -O3
    a.value = fmt::format("{{\"level\":{}}}", a.name.substr(2));
    a.name = "-O";
  }
  return a;
}

bool looks_like_flag(const std::string& text) {
  return text.size() > 1 && text[0] == '-' && !std::isdigit(static_cast<unsigned char>(text[1])) && text[1] != '.';
}

// a.b = v inside an object; v is JSON if it can be, else a string, True and False being Python's.
void set_path(Json& object, std::string_view path, const std::string& value) {
  const size_t dot = path.find('.');
  Json& at = object[std::string(path.substr(0, dot))];
  if (dot != std::string_view::npos) {
    if (!at.is_object()) at = Json::object();
    return set_path(at, path.substr(dot + 1), value);
  }
  if (value == "True" || value == "False")
    at = value == "True";
  else if (const Result<Json> json = parse_json(value); json.ok())
    at = *json;
  else
    at = value;
}

class FlagReader {
 public:
  FlagReader(std::span<const std::string> args, ServeOptions& options) : args_(args), options_(options) {}

  Status read() {
    while (next_ < args_.size()) {
      const std::string& text = args_[next_++];
      if (!looks_like_flag(text)) {
        const Flag& model = *find_flag("--model");
        NIB_TRY(model.apply(options_, model, text));
        continue;
      }
      NIB_TRY(read_flag(take_apart(text)));
    }
    for (const auto& [flag, object] : objects_) NIB_TRY(flag->apply(options_, *flag, object.dump()));
    return {};
  }

 private:
  Status read_flag(Argument a) {
    const Flag* flag = find_flag(a.name);
    if (!flag && a.name.starts_with("--no-")) {
      flag = find_flag("--" + a.name.substr(5));
      if (flag && flag->kind == kSwitch && !a.value) return flag->apply(options_, *flag, "false");
      flag = nullptr;
    }
    if (!flag) return invalid("{}: unknown flag; `nib serve --help` lists them", a.name);
    if (!a.key.empty() && flag->kind != kObject) return invalid("{}.{}: {} takes no keys", a.name, a.key, a.name);
    if (flag->kind == kSwitch) return read_switch(*flag, a);
    if (!a.value && (next_ == args_.size() || looks_like_flag(args_[next_])))
      return invalid("{}: a value is expected", a.name);
    if (!a.value) a.value = args_[next_++];
    if (flag->kind == kObject) return read_object(*flag, a);
    NIB_TRY(flag->apply(options_, *flag, *a.value));
    while (flag->kind == kList && next_ < args_.size() && !looks_like_flag(args_[next_]))
      NIB_TRY(flag->apply(options_, *flag, args_[next_++]));
    return {};
  }

  Status read_switch(const Flag& flag, const Argument& a) {
    std::string value = a.value.value_or("true");
    std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::tolower(c); });
    if (value != "true" && value != "false") return invalid("{}={}: true or false is expected", a.name, *a.value);
    return flag.apply(options_, flag, value);
  }

  // A whole object replaces, a dotted key adds.
  Status read_object(const Flag& flag, const Argument& a) {
    Json& object = objects_.try_emplace(&flag, Json::object()).first->second;
    if (!a.key.empty()) {
      set_path(object, a.key, *a.value);
      return {};
    }
    NIB_ASSIGN(object, object_value(a.name, *a.value));
    return {};
  }

  std::span<const std::string> args_;
  size_t next_ = 0;
  ServeOptions& options_;
  std::map<const Flag*, Json> objects_;
};

}  // namespace

Status parse_serve_flags(std::span<const std::string> args, ServeOptions& o) {
  NIB_TRY(FlagReader(args, o).read());
  if (o.model.empty()) return invalid("nib serve: MODEL is missing, a folder or a hub id");
  if (o.server.api.served_model_names.empty()) o.server.api.served_model_names = {o.model};
  o.server.api.model_root = o.model;
  o.engine.max_num_batched_tokens = std::max(o.engine.max_num_batched_tokens, o.engine.max_num_seqs);
  return {};
}

std::string serve_help() {
  std::string out = "Usage: nib serve MODEL [flags]\n\nFlags (as `vllm serve`; --x=V, _ for -, --x/--no-x):\n";
  for (const Flag& f : serve_flags()) {
    if (f.apply == refuse || f.apply == ignore) continue;
    out += fmt::format("  {:<38} {}\n", f.short_name.empty() ? f.name : fmt::format("{}, {}", f.name, f.short_name),
                       f.note);
  }
  out += "\nAccepted without effect:";
  for (const Flag& f : serve_flags())
    if (f.apply == ignore) out += fmt::format(" {}", f.name);
  out += "\n\nRefused with a reason:";
  for (const Flag& f : serve_flags())
    if (f.apply == refuse) out += fmt::format(" {}", f.name);
  return out + "\n";
}

}  // namespace nib::cli
