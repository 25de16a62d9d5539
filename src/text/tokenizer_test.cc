#include "text/tokenizer.h"

#include <gmock/gmock.h>

#include <fstream>
#include <random>

#include "base/file.h"
#include "text/detokenizer.h"
#include "text/small_tokenizer.h"

namespace nib {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using enum Tokenizer::Special;
using TokenizerPtr = std::shared_ptr<const Tokenizer>;
namespace fs = std::filesystem;

constexpr TokenId byte_id(uint8_t byte) { return 275 - byte; }

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / fmt::format("nib_text_{}", std::random_device{}())) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path write(const fs::path& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(Tokenizer, MergesWithinPiecesOnly) {
  const TokenizerPtr t = small_tokenizer();
  EXPECT_EQ(t->decode(t->encode("hello hello", kText), false), "hello hello");
  EXPECT_EQ(t->encode("hello hello", kText).size(), 2u);
  EXPECT_EQ(t->bytes(t->encode("hello hello", kText)[1]), " hello");
}

TEST(Tokenizer, SpellingsOfControlTokensAreTextUnlessAllowed) {
  const TokenizerPtr t = small_tokenizer();
  const std::string text = "a<|end_message|>b";
  for (TokenId id : t->encode(text, kText)) EXPECT_FALSE(t->is_special(id));
  EXPECT_EQ(t->decode(t->encode(text, kText), false), text);
  EXPECT_THAT(t->encode(text, kRecognise), ElementsAre(byte_id('a'), E, byte_id('b')));
  EXPECT_EQ(t->decode(t->encode(text, kRecognise), /*skip_special=*/true), "ab");
  EXPECT_EQ(t->decode(t->encode(text, kRecognise), /*skip_special=*/false), text);
}

TEST(Tokenizer, AControlTokenThatTextCouldBecomeIsRefused) {
  for (const auto& [id, spelling] : {std::pair(300, "hello"), std::pair(282, "aaaa")}) {  // merges lead to both
    Json json = small_tokenizer_json();
    json["added_tokens"].push_back({{"id", id}, {"content", spelling}});
    EXPECT_THAT(Tokenizer::parse(json.dump()).status().message(), HasSubstr("names a special token")) << spelling;
  }
  Json json = small_tokenizer_json();
  json["model"]["vocab"]["xyz"] = 300;  // no merge leads here, but a whole piece would
  json["added_tokens"].push_back({{"id", 300}, {"content", "xyz"}});
  const TokenizerPtr t = *Tokenizer::parse(json.dump());
  EXPECT_THAT(t->encode("xyz", kText), ElementsAre(byte_id('x'), byte_id('y'), byte_id('z')));
  EXPECT_THAT(t->encode("xyz", kRecognise), ElementsAre(300));
}

TEST(Tokenizer, TheLongestOfSeveralControlTokensWins) {
  Json json = small_tokenizer_json();
  json["added_tokens"].push_back({{"id", 300}, {"content", "<|end"}});
  json["added_tokens"].push_back({{"id", 301}, {"content", "<|end_message|>!"}});
  const TokenizerPtr t = *Tokenizer::parse(json.dump());
  EXPECT_THAT(t->encode("<|end_message|>!<|end_message|>.<|end", kRecognise), ElementsAre(301, E, byte_id('.'), 300));
  EXPECT_EQ(t->size(), 302);
}

TEST(Tokenizer, APieceInTheVocabularyIsOneToken) {
  Json json = small_tokenizer_json();
  json["model"]["vocab"]["xyz"] = 300;  // no merge leads there
  EXPECT_THAT((*Tokenizer::parse(json.dump()))->encode("xyz", kText), ElementsAre(300));
}

TEST(Tokenizer, InvalidUtf8CountsAsReplacementCharacters) {
  const TokenizerPtr t = small_tokenizer();
  EXPECT_EQ(t->encode("a\xFF"
                      "b\xE4\xBD",
                      kText),
            t->encode("a\uFFFDb\uFFFD", kText));
  EXPECT_EQ(t->decode(std::vector<TokenId>{byte_id(0xE4), byte_id('x')}, false), "\uFFFDx");
}

TEST(Tokenizer, UnknownIdsHaveNoBytes) {
  const TokenizerPtr t = small_tokenizer();
  for (TokenId id : {-1, 17, 100000}) {
    EXPECT_EQ(t->bytes(id), "");
    EXPECT_FALSE(t->is_special(id));
  }
  EXPECT_EQ(t->special("<|no_such_token|>"), std::nullopt);
  EXPECT_EQ(t->special("<|message_model|>"), M);
}

TEST(Tokenizer, BothSpellingsOfMergesAreRead) {
  Json json = small_tokenizer_json();
  for (Json& merge : json["model"]["merges"]) {
    const std::string pair = merge;
    merge = {pair.substr(0, pair.find(' ')), pair.substr(pair.find(' ') + 1)};
  }
  const TokenizerPtr pairs = *Tokenizer::parse(json.dump());
  EXPECT_EQ(pairs->encode("hello hello planned", kText), small_tokenizer()->encode("hello hello planned", kText));
}

TEST(Tokenizer, EveryWrongFileIsRefusedInOneSentence) {
  struct Case {
    const char *path, *value, *want;
  };
  const Case cases[] = {
      {"/model/type", R"("Unigram")", "only BPE is supported"},
      {"/model/vocab", "{}", "\"model\" has no \"vocab\""},
      {"/model/vocab/a", "-3", "token \"a\" has the id -3"},
      {"/model/vocab/a", "9000000000", "ids are integers from 0"},
      {"/model/vocab/a", "275", "two tokens have the id 275"},
      {"/model/vocab/\u4e2d", "400", "not spelled in the byte-level alphabet"},
      {"/model/merges", "7", "\"model\" has no \"merges\""},
      {"/model/merges/0", R"("hello")", "merge 0 is no pair of tokens"},
      {"/model/merges/1", R"("q q")", "merge 1 names a token that is not in the vocabulary"},
      {"/normalizer", R"({"type":"NFC"})", "has a normalizer"},
      {"/pre_tokenizer", R"({"type":"Whitespace"})", "only Split and ByteLevel are"},
      {"/pre_tokenizer/pretokenizers/0/behavior", R"("Removed")", "behaviour Isolated"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("(")", "no valid regular expression"},
      {"/pre_tokenizer/pretokenizers/1/use_regex", "true", "two split patterns"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", "true", "adds a space"},
      {"/added_tokens", "{}", "is no list"},
      {"/added_tokens/0/content", R"("")", "has no \"content\""},
      {"/added_tokens/0/id", "2000000000", "ids are integers from 0"},
      {"/added_tokens/0/id", "210", "has the id 210 of another token"},
  };
  for (const Case& c : cases) {
    Json json = small_tokenizer_json();
    json["added_tokens"].push_back({{"id", 299}, {"content", "<|x|>"}});
    json[Json::json_pointer(c.path)] = Json::parse(c.value);
    const auto t = Tokenizer::parse(json.dump());
    ASSERT_FALSE(t.ok()) << c.path;
    EXPECT_THAT(t.status().message(), HasSubstr(c.want)) << c.path;
  }
  EXPECT_THAT(Tokenizer::parse("{").status().message(), HasSubstr("invalid JSON"));
  EXPECT_THAT(Tokenizer::parse("\"\\ud800\"").status().message(), HasSubstr("invalid JSON"));
  EXPECT_FALSE(Tokenizer::parse(std::string(100000, '[')).ok());
  EXPECT_FALSE(Tokenizer::parse("[]").ok());
}

std::string base64(std::string_view bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (i + j < bytes.size() ? uint8_t(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j) out += i + j > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * j) & 63];
  }
  return out;
}

std::string small_rank_file() {
  std::string lines;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte) lines += fmt::format("{} {}\n", base64(std::string(1, char(byte))), rank++);
  for (const char* token : {"ab", "bc", "abc", " d", "<|end_message|>"})
    lines += fmt::format("{} {}\n", base64(token), rank++);
  return lines;
}

TEST(Tokenizer, RankFilesMergeByRank) {
  Folder folder;
  const TokenizerPtr t = *Tokenizer::load(folder.write("x.tiktoken", small_rank_file()));
  EXPECT_THAT(t->encode("abc abcx d", kText), ElementsAre(258, ' ', 258, 'x', 259));
}

TEST(Tokenizer, ARankFileAloneHasTheControlTokensSpelledSo) {
  Folder folder;
  folder.write("tiktoken/tokenizer.model", small_rank_file());
  const TokenizerPtr t = *Tokenizer::load(folder.path());
  EXPECT_EQ(t->special("<|end_message|>"), 260);
  EXPECT_THAT(t->encode("<|end_message|>", kText), testing::Not(testing::Contains(260)));
}

TEST(Tokenizer, TheListBesideARankFileSaysWhatIsSpecial) {
  for (const char* list :
       {R"({"300":"<|x|>"})", R"({"<|x|>":300})", R"({"added_tokens_decoder":{"300":{"content":"<|x|>"}}})"}) {
    Folder folder;
    folder.write("tokenizer_config.json", list);
    folder.write("tiktoken/tokenizer.model", small_rank_file());
    const TokenizerPtr t = *Tokenizer::load(folder.path());
    EXPECT_THAT(t->encode("<|x|>", kRecognise), ElementsAre(300)) << list;
    EXPECT_EQ(t->special("<|end_message|>"), std::nullopt);
  }
}

TEST(Tokenizer, WrongRankFilesNameTheLine) {
  struct Case {
    const char *text, *want;
  };
  const Case cases[] = {{"YQ==\n", "line 1 is no"},
                        {"YQ== 0\n!!! 1\n", "line 2 is no"},
                        {"YQ== x\n", "line 1 is no"},
                        {"YQ== -1\n", "line 1 is no"},
                        {"YQ== 99999999\n", "line 1 is no"},
                        {" 0\n", "line 1 is no"},
                        {"YQ== 0\nYg== 0\n", "twice"},
                        {"", "holds no token"},
                        {"YQ== 0\n", "byte 0x00"}};
  Folder folder;
  for (const Case& c : cases) {
    const auto t = Tokenizer::load(folder.write("x.tiktoken", c.text));
    ASSERT_FALSE(t.ok()) << c.text;
    EXPECT_THAT(t.status().message(), HasSubstr(c.want)) << c.text;
    EXPECT_THAT(t.status().message(), HasSubstr("x.tiktoken"));
  }
}

TEST(Tokenizer, AFolderWithoutATokenizerIsRefused) {
  Folder folder;
  EXPECT_THAT(Tokenizer::load(folder.path()).status().message(), HasSubstr("holds neither tokenizer.json nor"));
  EXPECT_THAT(Tokenizer::load(folder.path() / "nothing").status().message(), HasSubstr("cannot open"));
}

TEST(Detokenizer, HoldsBackAnIncompleteCharacter) {
  const TokenizerPtr t = small_tokenizer();
  Detokenizer d(*t, /*skip_special=*/true);
  EXPECT_EQ(d.push(byte_id(0xE4)), "");
  EXPECT_EQ(d.push(E), "");
  EXPECT_EQ(d.push(byte_id(0xBD)), "");
  EXPECT_EQ(d.push(byte_id(0xA0)), "\u4f60");
  EXPECT_EQ(d.push(byte_id(0xE4)), "");
  EXPECT_EQ(d.finish(), "\uFFFD");
}

// The real tokenizer is built by `make tokenizer`, not committed.
class RealTokenizer : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path folder = fs::path(NIB_SOURCE_DIR) / "build/inkling-tokenizer";
    ASSERT_TRUE(fs::exists(folder)) << "run `make tokenizer` first";
    tokenizer_ = *Tokenizer::load(folder);
  }
  TokenizerPtr tokenizer_;
};

TEST_F(RealTokenizer, GivesTheReferenceIds) {
  for (const char* name : {"prose", "templated"}) {
    const std::string path = fmt::format("{}/tests/data/tokenizer/{}", NIB_SOURCE_DIR, name);
    const std::vector<TokenId> want = *parse_json(*read_file(path + ".ids.json"));
    const std::string text = *read_file(path + ".txt");
    std::vector<TokenId> ids = tokenizer_->encode(text, kText);
    EXPECT_EQ(tokenizer_->decode(ids, false), text);
    ASSERT_GE(ids.size(), want.size());
    ids.resize(want.size());
    EXPECT_EQ(ids, want);
  }
}

TEST_F(RealTokenizer, EncodesHostileTextInLinearTime) {
  std::mt19937 random(3);
  std::string noise(1 << 20, 0), letters(1 << 20, 0);
  for (char& c : noise) c = char(random());
  for (char& c : letters) c = char('a' + random() % 26);
  const std::string texts[] = {std::string(1 << 20, ' '), std::string(1 << 20, 'a'), std::string(1 << 20, 'Q'),
                               letters};
  for (const std::string& text : texts) EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text, kText), false), text);
  EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(noise, kText), false), repair_utf8(noise));
}

}  // namespace
}  // namespace nib
