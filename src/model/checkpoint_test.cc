// Headers from files that nobody trusts, indexes, and the hub cache.
#include "model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "model/testing/make_checkpoint.h"

namespace nib {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

void write(const fs::path& file, std::string_view bytes) {
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << bytes;
}

std::string parse_error(const std::string& header, int64_t data_bytes) {
  const auto t = parse_safetensors_header(header, 8 + static_cast<int64_t>(header.size()), data_bytes, "f");
  return t.ok() ? "reads" : t.status().message();
}

std::string open_error(const fs::path& folder) {
  const Result<Checkpoint> c = Checkpoint::open(folder);
  return c.ok() ? "opens" : c.status().message();
}

TEST(SafetensorsHeader, EveryLieIsFound) {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  struct Case {
    std::string header;
    const char* want;
  };
  const Case cases[] = {
      {"{" + a + "}", "reads"},
      {R"({"__metadata__":{"format":"pt"}})", "reads"},
      {R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "reads"},
      {R"({"e":{"dtype":"F32","shape":[0,7],"data_offsets":[8,8]}})", "reads"},
      {"{" + a + "," + a + "}", "f: a is listed twice in the header"},
      {"{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[7,11]}})", "f: the bytes of a and b overlap"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", "reads"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[9,17]}})", "f: a takes bytes 9 to 17 of 16; the file is"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "f: a takes bytes 8 to 0"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "f: a is F32 [3] but holds 8 bytes"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", "but holds 0 bytes"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "but holds 0 bytes"},
      {R"({"a":{"dtype":"Q4","shape":[2],"data_offsets":[0,8]}})", "f: a has the unknown dtype Q4"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "lacks a valid dtype, shape or data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "lacks a valid"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,1e3]}})", "lacks a valid"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})", "lacks a valid"},
      {R"({"a":7})", "lacks a valid"},
      {"[]", "f: the header is not a JSON object"},
      {"{\"a\":", "f: its header is wrong: invalid JSON"},
      {std::string(100000, '['), "f: its header is wrong: JSON is nested 100000 levels deep"},
      {"{\"\xff\":1}", "invalid JSON"},
  };
  for (const Case& c : cases) EXPECT_THAT(parse_error(c.header, 16), HasSubstr(c.want)) << c.header.substr(0, 80);
}

TEST(Checkpoint, ABrokenFileIsNamed) {
  struct Case {
    std::string bytes;
    const char* want;
  };
  const auto length = [](uint64_t n) { return std::string(reinterpret_cast<const char*>(&n), sizeof n); };
  const Case cases[] = {
      {"", "model.safetensors: 0 bytes are no safetensors file"},
      {"1234567", "7 bytes are no safetensors file"},
      {length(100) + "{}", "a header of 100 bytes does not fit the file of 10 bytes"},
      {length(UINT64_MAX) + "{}", "does not fit the file"},
      {length(2) + "{}", "opens"},
      {length(54) + R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})" + "1234567",
       "a takes bytes 0 to 8 of 7; the file is truncated"},
      {length(54) + R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})" + "123456789",
       "model.safetensors: its tensors end at byte 70, but the file is 71 bytes long"},
      {length(2) + "{}" + "more", "its tensors end at byte 10, but the file is 14 bytes long"},
  };
  for (const Case& c : cases) {
    TempFolder temp;
    write(temp.path() / "model.safetensors", c.bytes);
    EXPECT_THAT(open_error(temp.path()), HasSubstr(c.want));
  }
}

TEST(Checkpoint, IndexAndShardsMustAgree) {
  const auto broken = [](const std::function<void(const fs::path&)>& change) {
    TempFolder temp;
    EXPECT_TRUE(make_tiny_checkpoint({.num_shards = 3}, temp.path()).ok());
    EXPECT_EQ(open_error(temp.path()), "opens");
    change(temp.path());
    return open_error(temp.path());
  };
  const auto edit_index = [&](const std::function<void(Json&)>& edit) {
    return broken([&](const fs::path& folder) {
      const fs::path file = folder / "model.safetensors.index.json";
      Json index = *read_json_file(file);
      edit(index);
      std::ofstream(file) << index;
    });
  };
  const std::string norm = "model.llm.norm.weight";
  EXPECT_THAT(broken([](const fs::path& f) { fs::remove(f / "model-00002-of-00003.safetensors"); }),
              HasSubstr("model-00002-of-00003.safetensors: model.safetensors.index.json names it but it is missing"));
  EXPECT_THAT(broken([](const fs::path& f) { fs::resize_file(f / "model-00002-of-00003.safetensors", 20000); }),
              HasSubstr("model-00002-of-00003.safetensors: "));
  EXPECT_THAT(broken([](const fs::path& f) {
                fs::copy_file(f / "model-00001-of-00003.safetensors", f / "model-00002-of-00003.safetensors",
                              fs::copy_options::overwrite_existing);
              }),
              HasSubstr("is in both model-00001-of-00003.safetensors and model-00002-of-00003.safetensors"));
  EXPECT_THAT(edit_index([&](Json& j) { j["weight_map"].erase(norm); }),
              HasSubstr("but not in model.safetensors.index.json"));
  EXPECT_THAT(edit_index([&](Json& j) { j["weight_map"]["ghost"] = j["weight_map"][norm]; }),
              HasSubstr("ghost is not in model-"));
  EXPECT_THAT(edit_index([&](Json& j) { j["weight_map"][norm] = "../secret.safetensors"; }),
              HasSubstr("which is not a file of this folder"));
  EXPECT_THAT(edit_index([&](Json& j) { j["weight_map"][norm] = 7; }), HasSubstr("is not a string"));
  EXPECT_THAT(edit_index([&](Json& j) { j.erase("weight_map"); }), HasSubstr("has no object \"weight_map\""));
}

TEST(Checkpoint, WritesWhatItReads) {
  TempFolder temp;
  const std::vector<OutTensor> tensors = {{"bytes", DType::kU8, {3}, {std::byte{1}, std::byte{2}, std::byte{3}}},
                                          {"scalar", DType::kF32, {}, std::vector<std::byte>(4)}};
  const fs::path file = temp.path() / "x.safetensors";
  ASSERT_TRUE(write_safetensors(file, tensors).ok());
  const Result<Checkpoint> c = Checkpoint::open_file(file);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->data(*c->find("bytes"))[2], std::byte{3});
  EXPECT_TRUE(c->find("scalar")->shape.empty());
  EXPECT_EQ(c->find("scalar")->offset % 8, 0);  // wide elements come first, after a padded header
  EXPECT_THAT(write_safetensors(temp.path() / "no" / "x", tensors).message(), HasSubstr("cannot be written"));
}

TEST(FindModel, TakesAFolderOrAHubIdInTheCache) {
  TempFolder temp;
  const fs::path repo = temp.path() / "hub/models--org--name";
  write(repo / "refs/main", "abc123");
  fs::create_directories(repo / "snapshots/abc123");
  struct Case {
    std::string model, want;
  };
  const Case cases[] = {
      {temp.path().string(), temp.path().string()},
      {"org/name", (repo / "snapshots/abc123").string()},
      {"org/other", "org/other: neither a folder nor in the Hugging Face cache; run `hf download org/other`"},
      {"no-such-folder", "no-such-folder: no such folder"},
      {"./a/b", "./a/b: no such folder"},
      {"../b", "../b: no such folder"},
  };
  for (const Case& c : cases) {
    const Result<fs::path> found = find_model(c.model, temp.path());
    EXPECT_THAT(found.ok() ? found->string() : found.status().message(), HasSubstr(c.want)) << c.model;
  }
}

}  // namespace
}  // namespace nib
