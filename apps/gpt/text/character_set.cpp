#include "apps/gpt/text/character_set.hpp"

#include <unicode/uchar.h>
#include <unicode/uset.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

void CharacterSet::Close::operator()(USet* set) const {
  uset_close(set);
}

CharacterSet::CharacterSet() : set_(uset_openEmpty()) {}

void CharacterSet::add(char32_t first, char32_t last) {
  uset_addRange(set_.get(), static_cast<UChar32>(first), static_cast<UChar32>(last));
}

void CharacterSet::add_pattern(std::u16string_view pattern, bool is_negated) {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<USet, Close> set(
      uset_openPattern(pattern.data(), static_cast<std::int32_t>(pattern.size()), &status));
  CHECK(U_SUCCESS(status), "patterns are written here and known to ICU");
  if (is_negated) uset_complement(set.get());
  uset_addAll(set_.get(), set.get());
}

void CharacterSet::add_class(char letter) {
  const bool is_negated = letter >= 'A' && letter <= 'Z';
  switch (letter | 0x20) {
    case 's':
      return add_pattern(u"[\\p{White_Space}]", is_negated);
    case 'd':
      return add_pattern(u"[\\p{Nd}]", is_negated);
    default:
      // The last ones are numbers of Latin-1, which Oniguruma counts too.
      return add_pattern(u"[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\u00B2\\u00B3\\u00B9\\u00BC-\\u00BE]",
                         is_negated);
  }
}

Result<void> CharacterSet::add_property(std::string_view name, bool is_negated) {
  std::string key;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-')
      key.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  const bool is_ascii =
      std::all_of(key.begin(), key.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)); });
  // Oniguruma counts a few symbols as punctuation by this name.
  const bool is_other = key == "punct";
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<USet, Close> set(uset_openEmpty());
  for (const auto property : {UCHAR_GENERAL_CATEGORY_MASK, UCHAR_SCRIPT}) {
    if (!is_ascii || is_other) break;
    const auto value = u_getPropertyValueEnum(property, key.c_str());
    if (value == UCHAR_INVALID_CODE) continue;
    uset_applyIntPropertyValue(set.get(), property, value, &status);
    CHECK(U_SUCCESS(status), "ICU named the value itself");
    if (is_negated) uset_complement(set.get());
    uset_addAll(set_.get(), set.get());
    return {};
  }
  return fail(Errc::unavailable, "the property {} is neither a general category nor a script",
              core::quoted_excerpt(name));
}

void CharacterSet::add_cases() {
  uset_closeOver(set_.get(), USET_CASE_INSENSITIVE);
}

void CharacterSet::invert() {
  uset_complement(set_.get());
}

void CharacterSet::freeze() {
  uset_freeze(set_.get());
  for (std::size_t i = 0; i < ascii_.size(); ++i)
    ascii_[i] = uset_contains(set_.get(), static_cast<UChar32>(i)) != 0;
}

bool CharacterSet::contains_other(char32_t character) const {
  return uset_contains(set_.get(), static_cast<UChar32>(character)) != 0;
}

}  // namespace troupe::apps::gpt
