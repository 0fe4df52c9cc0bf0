#include "apps/gpt/text/expression.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "apps/gpt/text/unicode.hpp"

namespace troupe::apps::gpt {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> found(const std::string& expression, const std::string& text) {
  const auto units = utf16_of(text).value();
  const auto matches = matches_of(compile_expression(expression).value(), units).value();
  std::vector<std::string> parts;
  for (const auto& [start, end] : matches)
    parts.push_back(utf8_of(std::u16string_view(units).substr(start, end - start)));
  return parts;
}

std::string refusal(const std::string& expression) {
  const auto compiled = compile_expression(expression);
  return compiled ? "taken" : compiled.error().message;
}

// The matches are those of Oniguruma in tokenizers 0.23.
TEST(Expression, MatchesAsOnigurumaDoes) {
  EXPECT_THAT(found(R"(a+?)", "aaab"), ElementsAre("a", "a", "a"));
  EXPECT_THAT(found(R"(a++a)", "aaab"), ElementsAre());
  EXPECT_THAT(found(R"((?>a+)a)", "aaa"), ElementsAre());
  EXPECT_THAT(found(R"((?:a|ab)(?:c|bcd))", "abcd"), ElementsAre("abcd"));
  EXPECT_THAT(found(R"((a|b)+)", "abab c"), ElementsAre("abab"));
  EXPECT_THAT(found(R"((?<!\S)b|(?<=a)b)", "ab b"), ElementsAre("b", "b"));
  EXPECT_THAT(found(R"(\p{N}{2,3}|\p{^L}{1})", "1234 5"), ElementsAre("123", "4", " ", "5"));
  EXPECT_THAT(found(R"([^\S\r\n]+(?!\S))", "a  b  \n"), ElementsAre(" ", "  "));
  EXPECT_THAT(found(R"((?i:'s|k))", "'S K \u212a '\u017f"), ElementsAre("'S", "K", "\u212a", "'\u017f"));
  EXPECT_THAT(found(R"([!-/\]\\^-]+)", "a!^]-\\b"), ElementsAre("!^]-\\"));
  EXPECT_THAT(found(R"(.)", "a\n\U0001f600"), ElementsAre("a", "\U0001f600"));
}

TEST(Expression, FindsEmptyMatchesOnlyWhereNoneEnds) {
  EXPECT_THAT(found("x*", "axxb"), ElementsAre("", "xx", ""));
  EXPECT_THAT(found("(?=(?:\\p{N}{3})+(?!\\p{N}))", "1234567 12"), ElementsAre("", ""));
}

TEST(Expression, NamesWhatIsNotTaken) {
  EXPECT_THAT(refusal(R"(\h+)"), HasSubstr("the regular expression \\h+ has \\h, which is not taken"));
  EXPECT_THAT(refusal(R"(\b)"), HasSubstr("\\b"));
  EXPECT_THAT(refusal(R"(a{1}?)"), HasSubstr("a repetition of a repetition"));
  EXPECT_THAT(refusal(R"((a)\1)"), HasSubstr("\\1"));
  EXPECT_THAT(refusal("[a-z&&[^x]]"), HasSubstr("a '&&' in a set"));
  EXPECT_THAT(refusal("[[:alpha:]]"), HasSubstr("a '[' in a set"));
  EXPECT_THAT(refusal("[a-c-e]"), HasSubstr("a '-' in a set"));
  EXPECT_THAT(refusal("[z-a]"), HasSubstr("a range in a set"));
  EXPECT_THAT(refusal("[]"), HasSubstr("without characters"));
  EXPECT_THAT(refusal("x$"), HasSubstr("a '$'"));
  EXPECT_THAT(refusal("^x"), HasSubstr("a '^'"));
  EXPECT_THAT(refusal("(x"), HasSubstr("a '(' without ')'"));
  EXPECT_THAT(refusal("x)"), HasSubstr("a ')' without '('"));
  EXPECT_THAT(refusal("(?<=ab)c"), HasSubstr("a look behind at more than one character"));
  EXPECT_THAT(refusal("(?<name>a)"), HasSubstr("a group of another kind"));
  EXPECT_THAT(refusal("a(?i)b"), HasSubstr("a (?i) that does not begin a group"));
  EXPECT_THAT(refusal("(?i:ss)"), HasSubstr("also one character"));
  EXPECT_THAT(refusal("a{1,2}+"), HasSubstr("a repetition of a repetition"));
  EXPECT_THAT(refusal("(?:a*)*"), HasSubstr("endless repetition"));
  EXPECT_THAT(refusal("a{2000}"), HasSubstr("more than 1000 repetitions"));
  EXPECT_THAT(refusal("(?:(?:ab){900}){900}"), HasSubstr("repeats too much"));
  EXPECT_THAT(refusal("\\p{Punct}"), HasSubstr("neither a general category nor a script"));
  EXPECT_THAT(refusal("a\\"), HasSubstr("a '\\' at its end"));
  EXPECT_THAT(refusal(std::string(100, '(')), HasSubstr("more than 50 groups"));
}

TEST(Expression, RefusesATextForWhichItTakesTooLong) {
  const auto expression = compile_expression("a+b").value();

  const auto matches = matches_of(expression, std::u16string(1'000'000, u'a'));

  ASSERT_FALSE(matches);
  EXPECT_THAT(matches.error().message, HasSubstr("takes too long for a text of 1000000 characters"));
}

}  // namespace
}  // namespace troupe::apps::gpt
