#include "apps/gpt/text/expression.hpp"

// ICU has a UChar of its own.
#define ONIG_ESCAPE_UCHAR_COLLISION
#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "core/errors.hpp"
#include "core/utf8.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

const OnigEncoding kEncoding = ONIG_ENCODING_UTF16_LE;

/// What a search is given at first, which few searches exceed: how often it may go back to a choice, and how
/// many choices it may keep at a time, each of about 40 bytes.
constexpr unsigned long kFewRetries = 256;
constexpr unsigned long kFewChoices = 4096;
/// Then it gets this many times as many, until all searches of a text have had this many per character.
constexpr unsigned long kGrowth = 16;
constexpr std::size_t kMorePerCharacter = 50;
constexpr std::size_t kLeastText = 200'000;
constexpr unsigned long kMostChoices = 1UL << 24U;

const OnigUChar* bytes_of(const char16_t* text) {
  return reinterpret_cast<const OnigUChar*>(text);
}

std::string message_of(int code, OnigErrorInfo* about = nullptr) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
  const int length = onig_error_code_to_str(text.data(), code, about);
  return {text.begin(), text.begin() + length};
}

class Search {
 public:
  Search(OnigRegex compiled, std::u16string_view text)
      : compiled_(compiled), text_(text), left_((text.size() + kLeastText) * kMorePerCharacter) {}
  ~Search() {
    onig_region_free(region_, 1);
    onig_free_match_param(limits_);
  }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  /// The first match that begins at `start` or later.
  Result<std::optional<TextRange>> from(std::size_t start) {
    unsigned long retries = kFewRetries;
    unsigned long choices = kFewChoices;
    for (;;) {
      const int found = run(start, retries, choices);
      if (found == ONIG_MISMATCH) return std::nullopt;
      if (found >= 0) return TextRange{units(region_->beg[0]), units(region_->end[0])};
      unsigned long more = 0;
      if (found == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER || found == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER)
        retries += more = std::min(retries * (kGrowth - 1), left_);
      if (found == ONIGERR_MATCH_STACK_LIMIT_OVER)
        choices += more = std::min({choices * (kGrowth - 1), kMostChoices - choices, left_});
      if (more == 0)
        return fail(Errc::unavailable, "{} in a text of {} characters, of which it has done {}",
                    message_of(found), text_.size(), start);
      left_ -= more;
    }
  }

  std::size_t after(std::size_t at) const {
    return at + units(onig_enc_len(kEncoding, bytes_of(text_.data() + at), nullptr));
  }

 private:
  static std::size_t units(int bytes) { return static_cast<std::size_t>(bytes) / sizeof(char16_t); }

  int run(std::size_t start, unsigned long retries, unsigned long choices) {
    onig_initialize_match_param(limits_);
    onig_set_retry_limit_in_match_of_match_param(limits_, retries);
    onig_set_retry_limit_in_search_of_match_param(limits_, retries);
    onig_set_match_stack_limit_size_of_match_param(limits_, static_cast<unsigned>(choices));
    const auto* const begin = bytes_of(text_.data());
    const auto* const end = bytes_of(text_.data() + text_.size());
    return onig_search_with_param(compiled_, begin, end, bytes_of(text_.data() + start), end, region_,
                                  ONIG_OPTION_NONE, limits_);
  }

  OnigRegex compiled_;
  std::u16string_view text_;
  std::size_t left_;
  OnigRegion* region_ = onig_region_new();
  OnigMatchParam* limits_ = onig_new_match_param();
};

}  // namespace

Result<Expression> Expression::compile(std::string_view expression) {
  static const int ready = [] {
    OnigEncoding encodings[] = {kEncoding};
    return onig_initialize(encodings, 1);
  }();
  const auto text = TRY(utf16_of(expression));
  OnigRegex compiled = nullptr;
  OnigErrorInfo about{};
  const int code = ready != ONIG_NORMAL
                       ? ready
                       : onig_new(&compiled, bytes_of(text.data()), bytes_of(text.data() + text.size()),
                                  ONIG_OPTION_NONE, kEncoding, ONIG_SYNTAX_ONIGURUMA, &about);
  if (code != ONIG_NORMAL)
    return fail(Errc::unavailable, "the regular expression {} is not taken: {}",
                core::beginning_of(expression, 200), message_of(code, &about));
  Expression result;
  result.compiled_.reset(compiled, onig_free);
  return result;
}

Result<std::vector<TextRange>> Expression::matches(std::u16string_view text) const {
  Search search(compiled_.get(), text);
  std::vector<TextRange> found;
  for (std::size_t at = 0; at <= text.size();) {
    const auto match = TRY(search.from(at));
    if (!match) break;
    const auto [start, end] = *match;
    if (start == end && !found.empty() && found.back().end == end) {
      if (at == text.size()) break;
      at = search.after(at);
      continue;
    }
    found.push_back(*match);
    at = end;
  }
  return found;
}

}  // namespace troupe::apps::gpt
