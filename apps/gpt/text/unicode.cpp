#include "apps/gpt/text/unicode.hpp"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/ustring.h>
#include <unicode/utf16.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/number.hpp"
#include "core/utf8.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

constexpr std::size_t kMostUnits = std::numeric_limits<std::int32_t>::max() / 4;

Result<void> check_length(std::size_t units) {
  if (units <= kMostUnits) return {};
  return fail(Errc::invalid_argument, "a text has {} bytes, at most {} are taken; split it", units,
              kMostUnits);
}

// What \w matches in Rust's regular expressions: alphabetic, marks, digits, connectors and joiners.
bool is_of_word(UChar32 character) {
  constexpr std::uint32_t kCategories = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return u_isUAlphabetic(character) != 0 || (U_GET_GC_MASK(character) & kCategories) != 0 ||
         u_hasBinaryProperty(character, UCHAR_JOIN_CONTROL) != 0;
}

struct Character {
  UChar32 character = 0;  // negative if it is not UTF-8
  std::size_t bytes = 0;
};

Character first_of(std::string_view text) {
  text = text.substr(0, U8_MAX_LENGTH);
  std::int32_t at = 0;
  UChar32 character = 0;
  U8_NEXT(text.data(), at, static_cast<std::int32_t>(text.size()), character);
  return {character, static_cast<std::size_t>(at)};
}

Character last_of(std::string_view text) {
  if (text.size() > U8_MAX_LENGTH) text = text.substr(text.size() - U8_MAX_LENGTH);
  auto at = static_cast<std::int32_t>(text.size());
  UChar32 character = 0;
  U8_PREV(text.data(), 0, at, character);
  return {character, text.size() - static_cast<std::size_t>(at)};
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

Result<std::u32string> utf32_of(std::string_view utf8) {
  const auto text = TRY(utf16_of(utf8));
  std::u32string characters;
  for (std::size_t at = 0; at < text.size();) {
    UChar32 character = 0;
    U16_NEXT(text.data(), at, text.size(), character);
    characters.push_back(static_cast<char32_t>(character));
  }
  return characters;
}

std::size_t blanks_at_start(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto [character, bytes] = first_of(text.substr(at));
    if (u_isUWhiteSpace(character) == 0) break;
    at += bytes;
  }
  return at;
}

std::size_t blanks_at_end(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    const auto [character, bytes] = last_of(text.substr(0, end));
    if (u_isUWhiteSpace(character) == 0) break;
    end -= bytes;
  }
  return text.size() - end;
}

bool begins_with_word(std::string_view text) {
  return !text.empty() && is_of_word(first_of(text).character);
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_of_word(last_of(text).character);
}

namespace {

// ICU moves marks one by one to their place in a run, which takes the square of its length.
constexpr std::size_t kManyMarks = 32;

class MarkSorter {
 public:
  explicit MarkSorter(const UNormalizer2* decomposition) : decomposition_(decomposition) {}

  /// An equivalent text, in which long runs of marks are in their order.
  std::u16string sorted(std::u16string_view text) {
    for (std::size_t at = 0; at < text.size();) {
      UChar32 character = 0;
      U16_NEXT(text.data(), at, text.size(), character);
      if (u_getCombiningClass(character) != 0) {
        run_.push_back(character);
      } else if (!add_marks_of(character)) {
        end_run();
        append(character);
      }
    }
    end_run();
    return std::move(sorted_);
  }

 private:
  /// A few characters are no marks, but become nothing else.
  bool add_marks_of(UChar32 character) {
    if (character < 0x300) return false;
    UErrorCode status = U_ZERO_ERROR;
    std::array<UChar, 32> parts{};
    const auto size = unorm2_getDecomposition(decomposition_, character, parts.data(), parts.size(), &status);
    if (size <= 0 || U_FAILURE(status)) return false;
    UChar32 part = 0;
    std::int32_t at = 0;
    U16_NEXT(parts.data(), at, size, part);
    if (u_getCombiningClass(part) == 0) return false;
    run_.push_back(part);
    while (at < size) {
      U16_NEXT(parts.data(), at, size, part);
      run_.push_back(part);
    }
    return true;
  }

  void append(UChar32 character) {
    std::array<UChar, 2> units{};
    std::size_t count = 0;
    U16_APPEND_UNSAFE(units.data(), count, character);
    sorted_.append(units.data(), count);
  }

  void end_run() {
    if (run_.size() > kManyMarks)
      std::stable_sort(run_.begin(), run_.end(),
                       [](UChar32 a, UChar32 b) { return u_getCombiningClass(a) < u_getCombiningClass(b); });
    for (const UChar32 mark : run_) append(mark);
    run_.clear();
  }

  const UNormalizer2* decomposition_;
  std::u16string sorted_;
  std::vector<UChar32> run_;
};

}  // namespace

Result<NormalForm> NormalForm::named(std::string_view name) {
  UErrorCode status = U_ZERO_ERROR;
  const UNormalizer2* normalizer = nullptr;
  if (name == "NFC") normalizer = unorm2_getNFCInstance(&status);
  if (name == "NFD") normalizer = unorm2_getNFDInstance(&status);
  if (name == "NFKC") normalizer = unorm2_getNFKCInstance(&status);
  if (name == "NFKD") normalizer = unorm2_getNFKDInstance(&status);
  const auto* decomposition =
      name.starts_with("NFK") ? unorm2_getNFKDInstance(&status) : unorm2_getNFDInstance(&status);
  if (U_FAILURE(status)) return fail(Errc::unavailable, "ICU has no {}: {}", name, u_errorName(status));
  if (normalizer == nullptr)
    return fail(Errc::unavailable, "expected NFC, NFD, NFKC or NFKD, found {}", core::quoted_excerpt(name));
  return NormalForm(normalizer, decomposition);
}

Result<std::u16string> NormalForm::apply(std::u16string_view given) const {
  TRY(check_length(given.size()));
  UErrorCode status = U_ZERO_ERROR;
  const auto given_length = static_cast<std::int32_t>(given.size());
  // Most texts are already in their normal form.
  if (unorm2_spanQuickCheckYes(normalizer_, given.data(), given_length, &status) == given_length &&
      U_SUCCESS(status))
    return std::u16string(given);
  const auto text = MarkSorter(decomposition_).sorted(given);
  TRY(check_length(text.size()));
  const auto length = static_cast<std::int32_t>(text.size());
  status = U_ZERO_ERROR;
  const auto needed = unorm2_normalize(normalizer_, text.data(), length, nullptr, 0, &status);
  std::u16string normal(static_cast<std::size_t>(needed), u'\0');
  status = U_ZERO_ERROR;
  unorm2_normalize(normalizer_, text.data(), length, normal.data(), needed, &status);
  if (U_FAILURE(status)) return fail(Errc::invalid_argument, "ICU cannot normalise: {}", u_errorName(status));
  return normal;
}

}  // namespace troupe::apps::gpt
