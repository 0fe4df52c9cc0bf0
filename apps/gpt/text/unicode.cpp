#include "apps/gpt/text/unicode.hpp"

#include <unicode/unorm2.h>
#include <unicode/uregex.h>
#include <unicode/ustring.h>

#include <limits>

#include "core/errors.hpp"
#include "core/number.hpp"
#include "core/utf8.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

// For one match, in ICU's units of about a millisecond each: the time of an expression may grow with a power
// of a word's length.
constexpr std::int32_t kMatchSteps = 5000;
constexpr std::size_t kMostUnits = std::numeric_limits<std::int32_t>::max() / 4;

Result<void> check_length(std::size_t units) {
  if (units <= kMostUnits) return {};
  return fail(Errc::invalid_argument, "a text has {} bytes, at most {} are taken; split it", units,
              kMostUnits);
}

// Escapes that Oniguruma and ICU interpret alike; \h, for example, is a hexadecimal digit in one and a blank
// in the other.
constexpr std::string_view kSharedEscapes = "sSpPdDrnt";

Result<void> check_shared(std::string_view expression) {
  bool in_class = false;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\' && i + 1 < expression.size()) {
      const char escaped = expression[++i];
      const bool is_letter = (escaped | 0x20) >= 'a' && (escaped | 0x20) <= 'z';
      const bool is_digit = escaped >= '0' && escaped <= '9';
      if (is_digit || (is_letter && kSharedEscapes.find(escaped) == std::string_view::npos))
        return fail(Errc::unavailable, "the regular expression {} has \\{}, which is not taken",
                    core::beginning_of(expression), escaped);
    } else if (c == '[' && !in_class) {
      in_class = true;
      if (i + 1 < expression.size() && expression[i + 1] == '^') ++i;
    } else if (c == ']') {
      in_class = false;
    } else if (in_class && (c == '[' || c == '&' || c == '-')) {
      const bool is_range = c == '-' && expression[i - 1] != '[' && i + 1 < expression.size() &&
                            expression[i + 1] != '-' && expression[i + 1] != '[';
      if (!is_range)
        return fail(Errc::unavailable, "the regular expression {} has a '{}' in a class, which is not taken",
                    core::beginning_of(expression), c);
    } else if (!in_class && (c == '^' || c == '$' || c == '.')) {
      return fail(Errc::unavailable, "the regular expression {} has a '{}', which is not taken",
                  core::beginning_of(expression), c);
    }
  }
  return {};
}

}  // namespace

Result<std::u16string> utf16_of(std::string_view utf8) {
  TRY(check_length(utf8.size()));
  if (!core::is_utf8(utf8))
    return fail(Errc::invalid_argument, "expected UTF-8, found {}", core::quoted_excerpt(utf8));
  std::u16string text(utf8.size(), u'\0');
  std::int32_t length = 0;
  UErrorCode status = U_ZERO_ERROR;
  u_strFromUTF8(text.data(), static_cast<std::int32_t>(text.size()), &length, utf8.data(),
                static_cast<std::int32_t>(utf8.size()), &status);
  if (U_FAILURE(status))
    return fail(Errc::invalid_argument, "ICU cannot read a text: {}", u_errorName(status));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

std::string utf8_of(std::u16string_view text) {
  std::string utf8(text.size() * 3, '\0');
  std::int32_t length = 0;
  UErrorCode status = U_ZERO_ERROR;
  u_strToUTF8(utf8.data(), static_cast<std::int32_t>(utf8.size()), &length, text.data(),
              static_cast<std::int32_t>(text.size()), &status);
  CHECK(U_SUCCESS(status), "text that was UTF-8 is UTF-8 again");
  utf8.resize(static_cast<std::size_t>(length));
  return utf8;
}

void Pattern::Close::operator()(URegularExpression* expression) const {
  uregex_close(expression);
}

Result<Pattern> Pattern::open(std::string_view expression, unsigned flags) {
  const auto text = TRY(utf16_of(expression));
  UErrorCode status = U_ZERO_ERROR;
  UParseError where{};
  Handle handle(uregex_open(text.data(), static_cast<std::int32_t>(text.size()), flags, &where, &status));
  if (U_FAILURE(status))
    return fail(Errc::unavailable, "the regular expression {} is not taken: ICU says {} at place {}",
                core::beginning_of(expression), u_errorName(status), where.offset);
  uregex_setTimeLimit(handle.get(), kMatchSteps, &status);
  CHECK(U_SUCCESS(status), "any positive limit is taken");
  return Pattern(std::move(handle));
}

Result<Pattern> Pattern::compile(std::string_view expression) {
  TRY(check_shared(expression));
  return open(expression, 0);
}

Result<Pattern> Pattern::literal(std::string_view text) {
  if (text.empty()) return fail(Errc::unavailable, "an empty text is nothing to split at");
  return open(text, UREGEX_LITERAL);
}

Result<std::vector<TextRange>> Pattern::matches(std::u16string_view text) const {
  UErrorCode status = U_ZERO_ERROR;
  uregex_setText(expression_.get(), text.data(), static_cast<std::int32_t>(text.size()), &status);
  std::vector<TextRange> found;
  while (uregex_findNext(expression_.get(), &status) && U_SUCCESS(status)) {
    const auto start = uregex_start(expression_.get(), 0, &status);
    const auto end = uregex_end(expression_.get(), 0, &status);
    if (start < end) found.push_back({static_cast<std::size_t>(start), static_cast<std::size_t>(end)});
  }
  if (U_FAILURE(status))
    return fail(Errc::unavailable, "ICU cannot split a text into words: {}", u_errorName(status));
  return found;
}

Result<NormalForm> NormalForm::named(std::string_view name) {
  UErrorCode status = U_ZERO_ERROR;
  const UNormalizer2* normalizer = nullptr;
  if (name == "NFC") normalizer = unorm2_getNFCInstance(&status);
  if (name == "NFD") normalizer = unorm2_getNFDInstance(&status);
  if (name == "NFKC") normalizer = unorm2_getNFKCInstance(&status);
  if (name == "NFKD") normalizer = unorm2_getNFKDInstance(&status);
  if (U_FAILURE(status)) return fail(Errc::unavailable, "ICU has no {}: {}", name, u_errorName(status));
  if (normalizer == nullptr)
    return fail(Errc::unavailable, "expected NFC, NFD, NFKC or NFKD, found {}", core::quoted_excerpt(name));
  return NormalForm(normalizer);
}

Result<std::u16string> NormalForm::apply(std::u16string_view text) const {
  TRY(check_length(text.size()));
  UErrorCode status = U_ZERO_ERROR;
  const auto length = static_cast<std::int32_t>(text.size());
  // Most texts are already in their normal form.
  if (unorm2_spanQuickCheckYes(normalizer_, text.data(), length, &status) == length && U_SUCCESS(status))
    return std::u16string(text);
  status = U_ZERO_ERROR;
  const auto needed = unorm2_normalize(normalizer_, text.data(), length, nullptr, 0, &status);
  std::u16string normal(static_cast<std::size_t>(needed), u'\0');
  status = U_ZERO_ERROR;
  unorm2_normalize(normalizer_, text.data(), length, normal.data(), needed, &status);
  if (U_FAILURE(status)) return fail(Errc::invalid_argument, "ICU cannot normalise: {}", u_errorName(status));
  return normal;
}

}  // namespace troupe::apps::gpt
