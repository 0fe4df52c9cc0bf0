#include "apps/gpt/text/tokenizer.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

Result<Tokenizer> Tokenizer::create(std::string_view json) {
  auto parts = TRY(read_tokenizer_json(json));
  auto pairs = TRY(BytePairs::create(parts.pairs));
  return Tokenizer(std::move(parts), std::move(pairs));
}

// Pointers into added_ stay valid when the tokenizer is moved: moving a vector does not move its elements.
Tokenizer::Tokenizer(TokenizerParts parts, BytePairs pairs)
    : added_(std::move(parts.added)),
      normal_forms_(std::move(parts.normal_forms)),
      splits_(std::move(parts.splits)),
      before_(std::move(parts.before)),
      after_(std::move(parts.after)),
      pairs_(std::move(pairs)) {
  for (const AddedToken& added : added_) {
    added_by_number_[added.token] = &added;
    if (added.text.empty()) continue;
    (added.is_normalised ? after_normal_forms_ : before_normal_forms_)[added.text.front()].push_back(&added);
  }
  for (Finder* finder : {&before_normal_forms_, &after_normal_forms_}) {
    for (auto& [first, tokens] : *finder)
      std::stable_sort(tokens.begin(), tokens.end(),
                       [](const auto* a, const auto* b) { return a->text.size() > b->text.size(); });
  }
}

/// Adds the added tokens in `text`, leftmost and longest first, and calls rest() for the text between them.
template <class Rest>
Result<void> Tokenizer::find_added(const Finder& finder, std::string_view text, Tokens& tokens,
                                   const Rest& rest) const {
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size() && !finder.empty();) {
    const auto candidates = finder.find(text[at]);
    const AddedToken* found = nullptr;
    if (candidates != finder.end()) {
      for (const AddedToken* added : candidates->second) {
        if (!text.substr(at).starts_with(added->text)) continue;
        found = added;
        break;
      }
    }
    if (found == nullptr) {
      ++at;
      continue;
    }
    if (at > begin) TRY(rest(text.substr(begin, at - begin)));
    tokens.push_back(found->token);
    begin = at += found->text.size();
  }
  if (begin < text.size()) TRY(rest(text.substr(begin)));
  return {};
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text) {
  Tokens tokens;
  const auto plain = [&](std::string_view part) { return encode_plain(part, tokens); };
  TRY(find_added(before_normal_forms_, text, tokens, plain));
  return tokens;
}

Result<void> Tokenizer::encode_plain(std::string_view text, Tokens& tokens) {
  std::u16string units = TRY(utf16_of(text));
  for (const NormalForm& form : normal_forms_) units = TRY(form.apply(units));
  if (after_normal_forms_.empty()) return encode_words(units, 0, tokens);
  return find_added(after_normal_forms_, utf8_of(units), tokens, [&](std::string_view part) -> Result<void> {
    return encode_words(TRY(utf16_of(part)), 0, tokens);
  });
}

Result<void> Tokenizer::encode_words(std::u16string_view text, std::size_t split, Tokens& tokens) {
  if (split == splits_.size()) {
    pairs_.encode(utf8_of(text), tokens);
    return {};
  }
  const WordSplit& step = splits_[split];
  std::u16string longer;
  if (step.adds_prefix_space && !text.starts_with(u' ')) {
    longer.append(u" ").append(text);
    text = longer;
  }
  if (!step.pattern) return encode_words(text, split + 1, tokens);
  std::size_t begin = 0;
  for (const TextRange& match : TRY(step.pattern->matches(text))) {
    if (match.start > begin) TRY(encode_words(text.substr(begin, match.start - begin), split + 1, tokens));
    if (!step.drops_matches)
      TRY(encode_words(text.substr(match.start, match.end - match.start), split + 1, tokens));
    begin = match.end;
  }
  if (begin < text.size()) TRY(encode_words(text.substr(begin), split + 1, tokens));
  return {};
}

std::string Tokenizer::decode(std::span<const std::int32_t> tokens, bool with_special) const {
  std::string bytes;
  for (const std::int32_t token : tokens) {
    const auto added = added_by_number_.find(token);
    if (added == added_by_number_.end()) {
      bytes += pairs_.bytes_of(token);
    } else if (with_special || !added->second->is_special) {
      bytes += added->second->text;
    }
  }
  return bytes;
}

std::optional<std::int32_t> Tokenizer::token_of(std::string_view added_text) const {
  for (const AddedToken& added : added_) {
    if (added.text == added_text) return added.token;
  }
  return {};
}

}  // namespace troupe::apps::gpt
