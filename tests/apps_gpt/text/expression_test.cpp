#include "apps/gpt/text/expression.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "apps/gpt/text/unicode.hpp"

namespace troupe::apps::gpt {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> found(const std::string& expression, const std::string& text) {
  const auto units = utf16_of(text).value();
  const auto matches = Expression::compile(expression).value().matches(units).value();
  std::vector<std::string> parts;
  for (const auto& [start, end] : matches)
    parts.push_back(utf8_of(std::u16string_view(units).substr(start, end - start)));
  return parts;
}

std::string refusal(const std::string& expression) {
  const auto compiled = Expression::compile(expression);
  return compiled ? "taken" : compiled.error().message;
}

// The matches are those of tokenizers 0.23.
TEST(Expression, MatchesAsInTokenizers) {
  EXPECT_THAT(found(R"(a+?)", "aaab"), ElementsAre("a", "a", "a"));
  EXPECT_THAT(found(R"(a++a)", "aaab"), ElementsAre());
  EXPECT_THAT(found(R"((?>a+)a)", "aaa"), ElementsAre());
  EXPECT_THAT(found(R"((?:a|ab)(?:c|bcd))", "abcd"), ElementsAre("abcd"));
  EXPECT_THAT(found(R"((a|b)+)", "abab c"), ElementsAre("abab"));
  EXPECT_THAT(found(R"((?<!\S)b|(?<=a)b)", "ab b"), ElementsAre("b", "b"));
  EXPECT_THAT(found(R"(\p{N}{2,3}|\p{^L}{1})", "1234 5"), ElementsAre("123", "4", " ", "5"));
  EXPECT_THAT(found(R"([^\S\r\n]+(?!\S))", "a  b  \n"), ElementsAre(" ", "  "));
  EXPECT_THAT(found(R"((?i:'s|k))", "'S K \u212a '\u017f"), ElementsAre("'S", "K", "\u212a", "'\u017f"));
  EXPECT_THAT(found(R"((?i:ss))", "\u00df SS \u1e9e"), ElementsAre("\u00df", "SS", "\u1e9e"));
  EXPECT_THAT(found(R"([!-/\]\\^-]+)", "a!^]-\\b"), ElementsAre("!^]-\\"));
  EXPECT_THAT(found(R"([a-c-e]+)", "a-ed"), ElementsAre("a-e"));
  EXPECT_THAT(found(R"([a-z&&[^x]]+)", "abxcd"), ElementsAre("ab", "cd"));
  EXPECT_THAT(found(R"([[:alpha:]]+)", "a\u00e91 b"), ElementsAre("a\u00e9", "b"));
  EXPECT_THAT(found(R"(.)", "a\n\U0001f600"), ElementsAre("a", "\U0001f600"));
  EXPECT_THAT(found(R"(\h+)", "xdeadz AF"), ElementsAre("dead", "AF"));
  EXPECT_THAT(found(R"(\b\w)", "ab cd-e"), ElementsAre("a", "c", "e"));
  EXPECT_THAT(found(R"((\p{L})\1)", "abbcddd"), ElementsAre("bb", "dd"));
  EXPECT_THAT(found(R"(^x|x$)", "xx\nx"), ElementsAre("x", "x", "x"));
  EXPECT_THAT(found(R"((?:a*)*b)", "aab b"), ElementsAre("aab", "b"));
}

TEST(Expression, FindsEmptyMatchesOnlyWhereNoneEnds) {
  EXPECT_THAT(found("x*", "axxb"), ElementsAre("", "xx", ""));
  EXPECT_THAT(found("(?=(?:\\p{N}{3})+(?!\\p{N}))", "1234567 12"), ElementsAre("", ""));
  EXPECT_THAT(found("x*", "\U0001f600"), ElementsAre("", ""));
}

TEST(Expression, SaysWhatIsWrongWithIt) {
  EXPECT_THAT(refusal("x)"),
              HasSubstr("the regular expression x) is not taken: unmatched close parenthesis"));
  EXPECT_THAT(refusal("(x"), HasSubstr("end pattern with unmatched parenthesis"));
  EXPECT_THAT(refusal("[z-a]"), HasSubstr("empty range in char class"));
  EXPECT_THAT(refusal("[]"), HasSubstr("empty char-class"));
  EXPECT_THAT(refusal("a\\"), HasSubstr("end pattern at escape"));
  EXPECT_THAT(refusal("\\p{Letters}"), HasSubstr("invalid character property name"));
  EXPECT_THAT(refusal("a\xff"), HasSubstr("UTF-8"));
  EXPECT_THAT(refusal(std::string(100'000, '(')), HasSubstr("is not taken"));
}

class HostileExpression : public testing::TestWithParam<const char*> {};

TEST_P(HostileExpression, EndsInASentenceSoon) {
  const std::u16string text(1'000'000, u'a');
  const auto begin = std::chrono::steady_clock::now();

  const auto matches = Expression::compile(GetParam()).value().matches(text);

  ASSERT_FALSE(matches);
  EXPECT_THAT(matches.error().message, HasSubstr("limit"));
  EXPECT_THAT(matches.error().message, HasSubstr("in a text of 1000000 characters"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

INSTANTIATE_TEST_SUITE_P(Each, HostileExpression,
                         testing::Values("a+(?:b|c)", "(?:a+(?:b|c))?a", "(?:a|a)*c|a"));

TEST(Expression, MatchesAMillionLettersAtOnce) {
  const std::u16string text(1'000'000, u'a');

  EXPECT_THAT(Expression::compile("\\p{L}+").value().matches(text).value(),
              ElementsAre(TextRange{0, 1'000'000}));
}

}  // namespace
}  // namespace troupe::apps::gpt
