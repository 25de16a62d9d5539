#include "text/chat_format.h"

#include <gmock/gmock.h>

#include "text/small_tokenizer.h"

namespace nib {
namespace {

using testing::ElementsAre;

TEST(ChatFormat, FindsControlTokensBySpelling) {
  const ChatFormat f = *ChatFormat::resolve(*small_tokenizer(), /*vision=*/true);
  EXPECT_EQ(f.message_model, M);
  EXPECT_EQ(f.content_xml, XML);
  EXPECT_EQ(f.content_image, IMAGE);
  EXPECT_EQ(f.image_placeholder, PATCH);
  EXPECT_THAT(f.stop_ids, ElementsAre(S, EOT));
}

TEST(ChatFormat, NamesTheRequiredTokenThatIsMissing) {
  for (Control control : {E, X, T, J, M, USER, SYSTEM, TOOL, XML, S, IMAGE, PATCH}) {
    const std::string spelling = small_control_tokens()[control];
    const auto format = ChatFormat::resolve(**Tokenizer::parse(small_tokenizer_json(spelling).dump()), /*vision=*/true);
    ASSERT_FALSE(format.ok()) << spelling;
    EXPECT_THAT(format.status().message(), testing::HasSubstr(spelling));
  }
}

TEST(ChatFormat, OnlyEyesNeedImageTokens) {
  for (Control control : {IMAGE, PATCH, EOT, TOOL_TEXT, TOOL_ERROR}) {
    const Json json = small_tokenizer_json(small_control_tokens()[control]);
    EXPECT_TRUE(ChatFormat::resolve(**Tokenizer::parse(json.dump()), /*vision=*/false).ok());
  }
}

TEST(ChatFormat, TheDeclarationKindHasASecondSpelling) {
  Json json = small_tokenizer_json("<|content_xml|>");
  json["added_tokens"].push_back({{"id", 300}, {"content", "<|unused_200024|>"}});
  EXPECT_EQ(ChatFormat::resolve(**Tokenizer::parse(json.dump()), false)->content_xml, 300);
}

}  // namespace
}  // namespace nib
