#include "server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/un.h>

#include "server/byte_budget.h"
#include "server/sse.h"
#include "server/testing/test_server.h"

namespace nib {
namespace {

using testing::eventually;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RawClient;
using testing::TestServer;

const Json kEndless = {{"prompt", "a"}, {"max_tokens", 4000}, {"ignore_eos", true}, {"temperature", 0}};

Json with(Json body, const Json& more) {
  body.update(more);
  return body;
}

Json chat(const Json& more = Json::object()) {
  return with({{"messages", {{{"role", "user"}, {"content", "say it"}}}}, {"temperature", 0}}, more);
}

TEST(Server, answers_a_chat_request) {
  TestServer server;
  const HttpAnswer answer = server.post("/v1/chat/completions", chat());
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = *parse_json(answer.body);
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "script");
  EXPECT_EQ(json["choices"][0]["message"]["content"], "abcdefghijklmnopqrstuvwxyz");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["completion_tokens"], 29);  // content_text, 26 letters, end_message, end_sampling
}

TEST(Server, streams_the_same_and_says_how_much_at_the_end) {
  TestServer server;
  std::string content, finish;
  Json usage;
  const Json body = chat({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  ASSERT_TRUE(server.client()
                  .post_stream("/v1/chat/completions", body,
                               [&](const Json& chunk) {
                                 if (chunk.contains("usage")) usage = chunk["usage"];
                                 for (const Json& c : chunk["choices"]) {
                                   content += c["delta"].value("content", "");
                                   if (c["finish_reason"].is_string()) finish = c["finish_reason"];
                                 }
                                 return true;
                               })
                  .ok());
  EXPECT_EQ(content, "abcdefghijklmnopqrstuvwxyz");
  EXPECT_EQ(finish, "stop");
  EXPECT_EQ(usage["completion_tokens"], 29);
}

TEST(Server, a_client_that_goes_away_aborts_its_stream) {
  TestServer server({.step_time = std::chrono::microseconds(200)});
  RawClient client(server.port());
  client.post("/v1/completions", with(kEndless, {{"stream", true}}));
  EXPECT_THAT(client.read_until("data:"), HasSubstr("200 OK"));
  EXPECT_EQ(server.stats().num_running, 1);
  client.close();
  EXPECT_TRUE(eventually([&] { return server.stats().num_running == 0; }));
  EXPECT_EQ(server.stats().num_finished_abort, 1);
}

TEST(Server, a_client_that_goes_away_aborts_its_whole_answer_too) {
  TestServer server({.step_time = std::chrono::microseconds(500)});
  RawClient client(server.port());
  client.post("/v1/completions", kEndless);
  EXPECT_TRUE(eventually([&] { return server.stats().num_running == 1; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return server.stats().num_finished_abort == 1; }));
}

TEST(Server, a_pipelined_request_does_not_hide_that_the_client_went_away) {
  TestServer server({.step_time = std::chrono::microseconds(500)});
  RawClient client(server.port());
  client.post("/v1/completions", kEndless);
  client.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(eventually([&] { return server.stats().num_running == 1; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return server.stats().num_finished_abort == 1; }));
}

TEST(Server, a_client_that_does_not_read_loses_its_request_and_hurts_nobody) {
  TestServer server;
  RawClient lazy(server.port(), 4096);
  const Json fat = {{"prompt", Json::array()},
                    {"max_tokens", 4000},
                    {"ignore_eos", true},
                    {"stream", true},
                    {"logprobs", 20},
                    {"n", 8},
                    {"seed", 1}};
  lazy.post("/v1/completions", with(fat, {{"prompt", "a"}}));
  EXPECT_TRUE(eventually([&] { return server.stats().num_running > 0; }));
  EXPECT_EQ(server.post("/v1/completions", {{"prompt", "ab"}, {"max_tokens", 3}}).status, 200);
  EXPECT_TRUE(eventually([&] { return server.stats().num_finished_abort > 0 && server.stats().num_running == 0; }));
}

TEST(Server, a_full_queue_is_a_503_that_says_when_to_come_again) {
  TestServer server({.step_time = std::chrono::microseconds(2000), .max_waiting_requests = 1, .max_num_seqs = 1});
  RawClient running(server.port()), waiting(server.port());
  running.post("/v1/completions", kEndless);
  EXPECT_TRUE(eventually([&] { return server.stats().num_running == 1; }));
  waiting.post("/v1/completions", kEndless);
  EXPECT_TRUE(eventually([&] { return server.stats().num_waiting == 1; }));
  const HttpAnswer answer = server.post("/v1/completions", kEndless);
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.headers, ::testing::Contains(std::pair<std::string, std::string>("retry-after", "1")));
  EXPECT_EQ((*parse_json(answer.body))["error"]["type"], "ServiceUnavailable");
}

TEST(Server, drains_finish_what_runs_and_refuse_the_rest) {
  TestServer server({.step_time = std::chrono::microseconds(3000)});
  RawClient running(server.port()), idle(server.port());
  running.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 60}, {"ignore_eos", true}, {"stream", true}});
  EXPECT_THAT(running.read_until("data:"), HasSubstr("200 OK"));
  std::thread drain([&] { server.server().drain(); });
  EXPECT_EQ(idle.read_all(), "");  // closed at once
  EXPECT_TRUE(eventually([&] { return !RawClient(server.port()).connected(); }));
  const std::string rest = running.read_all();
  EXPECT_THAT(rest, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_THAT(rest, HasSubstr("[DONE]"));
  running.close();
  drain.join();
}

TEST(Server, keys_guard_what_costs_something) {
  TestServer server({.api_keys = {"one", "two"}});
  struct Case {
    const char *method, *path, *key;
    int status;
  };
  const Case cases[] = {{"GET", "/v1/models", "", 401},      {"GET", "/v1/models", "three", 401},
                        {"GET", "/v1/models", "two", 200},   {"GET", "/v1/models", "one", 200},
                        {"POST", "/tokenize", "", 401},      {"GET", "/health", "", 200},
                        {"GET", "/metrics", "", 200},        {"POST", "/v1/chat/completions", "on", 401},
                        {"GET", "/v1/models", "onetwo", 401}};
  for (const Case& c : cases) {
    const HttpAnswer answer = *server.client(c.key).send(c.method, c.path);
    EXPECT_EQ(answer.status, c.status) << c.path << " with key " << c.key;
    if (c.status == 401) {
      EXPECT_EQ(answer.body, R"({"error":"Unauthorized"})");
    }
  }
}

TEST(Server, one_connection_carries_many_requests) {
  TestServer server;
  HttpClient client = server.client();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.send("GET", "/health")->status, 200);
    EXPECT_EQ(client.send("POST", "/v1/nothing", "{}")->status, 404);
    EXPECT_EQ(
        client.post("/v1/completions", {{"prompt", "w"}, {"max_tokens", 3}, {"temperature", 0}}).status().message(),
        "");
  }
  RawClient pipelined(server.port());
  pipelined.send("GET /health HTTP/1.1\r\n\r\nGET /version HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(pipelined.read_all(), HasSubstr("version"));
}

TEST(Server, what_is_no_proper_request_gets_its_code_and_ends_only_its_connection) {
  TestServer server({.http = {.max_body_bytes = 10'000, .max_head_bytes = 4096, .max_headers = 20}});
  std::string headers;
  for (int i = 0; i < 30; ++i) headers += fmt::format("X{}: y\r\n", i);
  const std::string post = "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n";
  struct Case {
    std::string bytes, status;
  };
  const Case cases[] = {
      {"\x01\x02\x03\r\n\r\n", "400"},
      {"GET /health HTTP/1.1\r\n\r\n\x01\x02\x03\r\n\r\n", "400"},
      {"GET /health HTTP/1.1\r\nX: " + std::string(10'000, 'a') + "\r\n\r\n", "431"},
      {"GET /health HTTP/1.1\r\n" + headers + "\r\n", "431"},
      {post + "Content-Length: 200000000\r\n\r\n{", "413"},
      {post + "Content-Length: -5\r\n\r\n", "400"},
      {post + "Content-Length: 99999999999999999999999\r\n\r\n", "400"},
      {post + "Transfer-Encoding: chunked\r\n\r\n4e20\r\n" + std::string(20'000, ' ') + "\r\n0\r\n\r\n", "413"},
      {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "400"},
      {post + "Transfer-Encoding: gzip\r\n\r\n{}", "400"},
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "400"},
      {"GET http://x/nothing HTTP/1.1\r\n\r\n", "404"},
      {"GET /v1/completions HTTP/1.1\r\nConnection: close\r\n\r\n", "405"},
      {"POST /v1/completions HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", "415"},
  };
  for (const Case& c : cases) {
    RawClient client(server.port());
    client.send(c.bytes);
    const std::string answer = client.read_until("}}");
    EXPECT_THAT(answer, HasSubstr("HTTP/1.1 " + c.status)) << c.bytes.substr(0, 100);
    EXPECT_THAT(answer, Not(HasSubstr("HTTP/1.1 5")));
  }
  EXPECT_EQ(server.get("/health").status, 200);
}

TEST(Server, a_wrong_method_is_told_the_right_ones) {
  TestServer server;
  struct Case {
    const char *method, *path, *allow;
  };
  const Case cases[] = {
      {"GET", "/v1/chat/completions", "POST"}, {"DELETE", "/v1/models", "GET"}, {"PUT", "/v1/models/some/name", "GET"},
      {"DELETE", "/ping", "GET, POST"},        {"POST", "/health", "GET"},      {"OPTIONS", "/v1/completions", "POST"}};
  for (const Case& c : cases) {
    const HttpAnswer answer = *server.client().send(c.method, c.path);
    EXPECT_EQ(answer.status, 405) << c.path;
    EXPECT_THAT(answer.headers, ::testing::Contains(std::pair<std::string, std::string>("allow", c.allow))) << c.path;
  }
}

TEST(Server, a_body_of_unknown_length_is_never_read_as_the_next_request) {
  TestServer server;
  RawClient client(server.port());
  client.send("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nGET /version HTTP/1.1\r\n\r\n");
  const std::string answer = client.read_all();
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 400"));
  EXPECT_THAT(answer, Not(HasSubstr("HTTP/1.1 200")));
}

TEST(Server, reads_the_address_as_proxies_send_it) {
  TestServer server;
  RawClient client(server.port());
  client.send("GET http://any.host/version?x=1 HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.read_all(), HasSubstr("\"version\""));
}

TEST(Server, browsers_may_send_the_headers_they_ask_for) {
  TestServer server;
  RawClient client(server.port());
  client.send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nOrigin: http://page\r\nAccess-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization,x-stainless-lang\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.read_all(), HasSubstr("Access-Control-Allow-Headers: authorization,x-stainless-lang\r\n"));
}

TEST(Server, bodies_of_all_clients_together_are_bounded) {
  TestServer server({.http = {.max_body_bytes = 100'000, .max_bodies_bytes = 50'000}});
  for (int i = 0; i < 3; ++i) {  // what a request held is given back, whatever became of it
    EXPECT_EQ(server.post("/tokenize", {{"prompt", std::string(90'000, 'a')}}).status, 503);
    EXPECT_EQ(server.post("/tokenize", {{"prompt", std::string(40'000, 'a')}}).status, 200);
    EXPECT_EQ(server.client().send("POST", "/tokenize", std::string(40'000, '['))->status, 400);
  }
}

TEST(ByteBudget, is_shared_and_given_back) {
  ByteBudget budget(100);
  ByteBudget::Lease one(budget);
  EXPECT_TRUE(one.grow_to(60));
  {
    ByteBudget::Lease two(budget);
    EXPECT_TRUE(two.grow_to(40));
    EXPECT_FALSE(two.grow_to(41));
    EXPECT_FALSE(one.grow_to(61));
  }
  EXPECT_TRUE(one.grow_to(100));
  one.give_back();
  ByteBudget::Lease three(budget);
  EXPECT_TRUE(three.grow_to(100));
}

TEST(Server, waits_for_bodies_that_ask_to_be_invited) {
  TestServer server;
  RawClient client(server.port());
  client.send(
      "POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 14\r\nExpect: "
      "100-continue\r\n\r\n");
  EXPECT_THAT(client.read_until("\r\n\r\n"), HasSubstr("100 Continue"));
  client.send(R"({"prompt":"a"})");
  EXPECT_THAT(client.read_until("}"), HasSubstr("\"count\":1"));
}

TEST(Server, usage_comes_with_every_chunk_if_asked) {
  TestServer server;
  std::vector<int64_t> counts;
  const Json body = {{"prompt", "a"},
                     {"max_tokens", 3},
                     {"temperature", 0},
                     {"stream", true},
                     {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}};
  ASSERT_TRUE(server.client()
                  .post_stream("/v1/completions", body,
                               [&](const Json& chunk) {
                                 counts.push_back(chunk["usage"]["completion_tokens"]);
                                 return true;
                               })
                  .ok());
  EXPECT_THAT(counts, ::testing::ElementsAre(1, 2, 3, 3));
}

TEST(Server, a_chunk_holds_as_many_tokens_as_asked) {
  TestServer server;
  std::vector<std::string> texts;
  const Json body = {{"prompt", "a"}, {"max_tokens", 8}, {"temperature", 0}, {"stream", true}, {"stream_interval", 3}};
  ASSERT_TRUE(server.client()
                  .post_stream("/v1/completions", body,
                               [&](const Json& chunk) {
                                 texts.push_back(chunk["choices"][0]["text"]);
                                 return true;
                               })
                  .ok());
  EXPECT_THAT(texts, ::testing::ElementsAre("b", "cde", "fgh", "i"));  // the first token at once
}

TEST(Server, stop_strings_end_the_text_and_the_work) {
  TestServer server({.step_time = std::chrono::microseconds(500)});
  const HttpAnswer answer = server.post(
      "/v1/completions",
      {{"prompt", "a"}, {"max_tokens", 4000}, {"ignore_eos", true}, {"temperature", 0}, {"stop", {"zz", "fg"}}});
  const Json json = *parse_json(answer.body);
  EXPECT_EQ(json["choices"][0]["text"], "bcde");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["choices"][0]["stop_reason"], "fg");
  EXPECT_EQ(json["usage"]["completion_tokens"], 6);
  EXPECT_TRUE(eventually([&] { return server.stats().num_running == 0; }));
  EXPECT_LT(server.stats().num_generation_tokens, 4000);
}

TEST(Server, a_choice_that_met_its_stop_string_gives_up_its_seat) {
  TestServer server({.step_time = std::chrono::microseconds(1000)});
  // Half of the choices say b and stop there; the others say y to the end.
  const auto b = testing::ScriptNetwork::byte_id('b'), y = testing::ScriptNetwork::byte_id('y');
  const Json body = {{"prompt", "a"},     {"n", 8},
                     {"seed", 3},         {"allowed_token_ids", {b, y}},
                     {"max_tokens", 300}, {"logit_bias", {{std::to_string(y), 8}}},
                     {"stop", "b"}};
  HttpAnswer answer;
  std::thread asking([&] { answer = server.post("/v1/completions", body); });
  EXPECT_TRUE(eventually([&] { return server.stats().num_running > 0 && server.stats().num_running < 8; }));
  asking.join();
  const Json json = *parse_json(answer.body);
  int64_t stopped = 0;
  for (const Json& choice : json["choices"]) stopped += choice["stop_reason"] == "b";
  EXPECT_GT(stopped, 0);
  EXPECT_LT(stopped, 8);
  EXPECT_EQ(json["usage"]["completion_tokens"], stopped + (8 - stopped) * 300);
  EXPECT_LT(server.stats().num_generation_tokens, 8 * 300);
  EXPECT_TRUE(eventually([&] { return server.stats().num_running == 0; }));
  EXPECT_THAT(server.get("/metrics").body, HasSubstr("finished_reason=\"length\",model_name=\"script\"} 1"));
}

TEST(Server, a_stop_token_is_named_and_the_end_of_turn_is_not) {
  TestServer server;
  const Json stop = *parse_json(
      server
          .post("/v1/completions",
                {{"prompt", "a"}, {"temperature", 0}, {"stop_token_ids", {testing::ScriptNetwork::byte_id('d')}}})
          .body);
  EXPECT_EQ(stop["choices"][0]["stop_reason"], testing::ScriptNetwork::byte_id('d'));
  const Json eos = *parse_json(server.post("/v1/completions", {{"prompt", "z"}, {"temperature", 0}}).body);
  EXPECT_EQ(eos["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(eos["choices"][0]["stop_reason"], nullptr);
}

TEST(Server, several_prompts_and_choices_are_counted_through) {
  TestServer server;
  const Json json =
      *parse_json(server
                      .post("/v1/completions",
                            {{"prompt", {"a", "k"}}, {"n", 2}, {"seed", 5}, {"max_tokens", 2}, {"temperature", 0.2}})
                      .body);
  ASSERT_EQ(json["choices"].size(), 4u);
  const char* texts[] = {"bc", "bc", "lm", "lm"};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], texts[i]);
  }
  EXPECT_EQ(json["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(json["usage"]["completion_tokens"], 8);
}

TEST(Server, scores_a_prompt_without_going_on_with_it) {
  TestServer server;
  const Json json = *parse_json(
      server.post("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}}).body);
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], "abc");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({"a", "b", "c"}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"][0], nullptr);
  EXPECT_GT(choice["logprobs"]["token_logprobs"][1].get<double>(), -0.2);
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
}

TEST(Server, ids_of_requests_are_taken_over) {
  TestServer server({.change = [](ServerConfig& c) { c.api.request_id_headers = true; }});
  HttpClient client =
      *HttpClient::open(fmt::format("http://127.0.0.1:{}", server.port()), {.headers = {{"X-Request-Id", "mine-1"}}});
  const HttpAnswer answer = *client.send("POST", "/v1/chat/completions", chat().dump());
  EXPECT_EQ((*parse_json(answer.body))["id"], "chatcmpl-mine-1");
  EXPECT_THAT(answer.headers, ::testing::Contains(std::pair<std::string, std::string>("x-request-id", "mine-1")));
}

TEST(Server, browsers_of_other_origins_are_let_in) {
  TestServer server({.api_keys = {"secret"}});
  RawClient client(server.port());
  client.send("OPTIONS /v1/chat/completions HTTP/1.1\r\nOrigin: http://a\r\nConnection: close\r\n\r\n");
  const std::string answer = client.read_all();
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("Access-Control-Allow-Origin: *"));
  EXPECT_THAT(answer, HasSubstr("Access-Control-Allow-Methods:"));
}

TEST(Server, models_are_listed_and_found_by_name) {
  TestServer server;
  const Json list = *parse_json(server.get("/v1/models").body);
  EXPECT_EQ(list["data"][0]["id"], "script");
  EXPECT_EQ(list["data"][0]["max_model_len"], 4096);
  EXPECT_EQ((*parse_json(server.get("/v1/models/other%2Fname").body))["id"], "other/name");
  EXPECT_EQ((*parse_json(server.get("/v1/models/other/name").body))["id"], "other/name");
  EXPECT_EQ(server.get("/v1/models/none").status, 404);
  EXPECT_EQ(server.get("/ping").status, 200);
  EXPECT_THAT(server.get("/version").body, HasSubstr("version"));
}

TEST(Server, listens_on_a_unix_socket) {
  const std::string path = fmt::format("/tmp/nib-server-test-{}.sock", ::getpid());
  TestServer server({.change = [&](ServerConfig& c) { c.http.unix_socket = path; }});
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::string request = "GET /health HTTP/1.1\r\nConnection: close\r\n\r\n";
  ASSERT_EQ(::send(fd, request.data(), request.size(), 0), std::ssize(request));
  char answer[64] = {};
  EXPECT_GT(::recv(fd, answer, sizeof answer - 1, 0), 0);
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200 OK"));
  ::close(fd);
  ::unlink(path.c_str());
}

TEST(Server, an_address_in_use_is_named) {
  TestServer server;
  const HttpServerConfig taken = {.host = "127.0.0.1", .port = server.port()};
  EXPECT_THAT(HttpServer::try_address(taken).message(), HasSubstr(std::to_string(server.port())));
  EXPECT_THAT(HttpServer::try_address({.host = "no.such.host.invalid"}).message(), HasSubstr("no.such.host.invalid"));
}

TEST(Server, metrics_count_what_happened) {
  TestServer server;
  EXPECT_EQ(server.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 3}, {"temperature", 0}}).status, 200);
  const std::string text = server.get("/metrics").body;
  for (const char* line : {
           "vllm:prompt_tokens_total{engine=\"0\",model_name=\"script\"} 1",
           "vllm:generation_tokens_total{engine=\"0\",model_name=\"script\"} 3",
           "vllm:num_requests_running{",
           // the prompt's one row and the two of its sampled tokens that go on
           "vllm:iteration_tokens_total_count{engine=\"0\",model_name=\"script\"} 3",
           "vllm:iteration_tokens_total_sum{engine=\"0\",model_name=\"script\"} 3",
           "vllm:iteration_tokens_total_bucket{engine=\"0\",model_name=\"script\",le=\"+Inf\"} 3",
           "vllm:request_success_total{",
           "vllm:time_to_first_token_seconds_count{",
           "vllm:e2e_request_latency_seconds_bucket{",
           "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"2xx\"} 1",
       })
    EXPECT_THAT(text, HasSubstr(line));
}

}  // namespace
}  // namespace nib
