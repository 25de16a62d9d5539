// GET /v1/models, /v1/models/{id}, /health, /ping, /version, /metrics
#include <algorithm>

#include "server/api.h"
#include "server/errors.h"
#include "server/metrics.h"

namespace nib {

bool Service::serves(std::string_view model) const { return std::ranges::count(config.served_model_names, model) > 0; }

namespace {

Json model_json(const Service& service, const std::string& name) {
  const Json permission = {{"id", "modelperm-" + name},
                           {"object", "model_permission"},
                           {"created", service.started_unix_s},
                           {"allow_create_engine", false},
                           {"allow_sampling", true},
                           {"allow_logprobs", true},
                           {"allow_search_indices", false},
                           {"allow_view", true},
                           {"allow_fine_tuning", false},
                           {"organization", "*"},
                           {"group", nullptr},
                           {"is_blocking", false}};
  return {{"id", name},
          {"object", "model"},
          {"created", service.started_unix_s},
          {"owned_by", "vllm"},
          {"root", service.config.model_root},
          {"parent", nullptr},
          {"max_model_len", service.max_model_len()},
          {"permission", Json::array({permission})}};
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Names hold slashes, which clients send as %2F.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0;
    out += escape ? static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2])) : text[i];
    if (escape) i += 2;
  }
  return out;
}

}  // namespace

HttpResult handle_models(const Service& service, const HttpRequest&) {
  Json data = Json::array();
  for (const std::string& name : service.config.served_model_names) data.push_back(model_json(service, name));
  return HttpReply{.body = dump_json(Json{{"object", "list"}, {"data", std::move(data)}})};
}

HttpResult handle_model(const Service& service, const HttpRequest& request) {
  const std::string name =
      percent_decoded(std::string_view(request.path).substr(std::string_view("/v1/models/").size()));
  if (!service.serves(name))
    return error_reply(
        Status(Code::kNotFound, fmt::format("The model `{}` does not exist.", name.substr(0, 200)), "model"));
  return HttpReply{.body = dump_json(model_json(service, name))};
}

HttpResult handle_health(const Service& service, const HttpRequest&) {
  return HttpReply{.status = service.engine->stats().alive ? 200 : 503};
}

HttpResult handle_version(const Service&, const HttpRequest&) {
  return HttpReply{.body = dump_json(Json{{"version", NIB_VERSION}})};
}

HttpResult handle_metrics(const Service& service, const HttpRequest&) {
  return HttpReply{.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = service.metrics->text()};
}

}  // namespace nib
