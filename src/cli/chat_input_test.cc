#include "cli/chat_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::cli {
namespace {

using ::testing::HasSubstr;
using Kind = ChatInput::Kind;

TEST(ParseChatInput, LeavesTextsAsTheyAre) {
  for (const char* text :
       {"Hello", " /reset", "a /reset", "a\n/reset\n", "  two  spaces  ", "\\"}) {
    const ChatInput input = ParseChatInput(text);
    EXPECT_EQ(input.kind, Kind::kText) << text;
    EXPECT_EQ(input.text, text);
  }
  for (const char* nothing : {"", " ", "\t \n"}) {
    EXPECT_EQ(ParseChatInput(nothing).kind, Kind::kNothing);
  }
}

TEST(ParseChatInput, KnowsTheCommandsAndTheirWords) {
  EXPECT_EQ(ParseChatInput("/help").kind, Kind::kHelp);
  EXPECT_EQ(ParseChatInput("/reset ").kind, Kind::kReset);
  EXPECT_EQ(ParseChatInput("/regen\n").kind, Kind::kRegenerate);
  EXPECT_EQ(ParseChatInput("/quit").kind, Kind::kQuit);
  EXPECT_EQ(ParseChatInput("/exit").kind, Kind::kQuit);
  EXPECT_EQ(ParseChatInput("/system").kind, Kind::kSystem);
  EXPECT_EQ(ParseChatInput("/system").text, "");
  EXPECT_EQ(ParseChatInput("/system  Be brief. ").text, "Be brief.");
  EXPECT_EQ(ParseChatInput("/system Be brief.\nAnd kind.").text, "Be brief.\nAnd kind.");
  const ChatInput save = ParseChatInput("/save my talk.json");
  EXPECT_EQ(save.kind, Kind::kSave);
  EXPECT_EQ(save.text, "my talk.json");
}

TEST(ParseChatInput, RefusesWhatIsNoCommandAndSaysWhichWasMeant) {
  const ChatInput mistyped = ParseChatInput("/rest");
  EXPECT_EQ(mistyped.kind, Kind::kRefused);
  EXPECT_THAT(mistyped.text, HasSubstr("\"/rest\"; did you mean /reset?"));
  EXPECT_THAT(mistyped.text, HasSubstr("//"));
  for (const char* line : {"/", "/usr/bin is what?", "/Help", "/xyzzy", "/ help", "/reset now",
                           "/save", "/save  ", "/help me", "/quit?"}) {
    EXPECT_EQ(ParseChatInput(line).kind, Kind::kRefused) << line;
  }
}

TEST(ParseChatInput, HasAWayToSendATextThatBeginsWithASlash) {
  EXPECT_EQ(ParseChatInput("//reset").kind, Kind::kText);
  EXPECT_EQ(ParseChatInput("//reset").text, "/reset");
  EXPECT_EQ(ParseChatInput("// ").text, "/ ");
  for (const char* source :
       {"// A comment\nint x;", "/* A comment\n*/", "/reset\nwas said", "///\n//"}) {
    EXPECT_EQ(ParseChatInput(source).kind, Kind::kText) << source;
    EXPECT_EQ(ParseChatInput(source).text, source);
  }
}

}  // namespace
}  // namespace convene::cli
