#include "apps/gpt/text/tokenizer.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

Result<Tokenizer> Tokenizer::create(std::string_view json) {
  auto parts = TRY(read_tokenizer_json(json));
  auto pairs = TRY(BytePairs::create(parts.pairs));
  Tokenizer tokenizer(std::move(parts), std::move(pairs));
  TRY(tokenizer.find_added());
  return tokenizer;
}

Tokenizer::Tokenizer(TokenizerParts parts, BytePairs pairs)
    : added_(std::move(parts.added)),
      normalizer_(std::move(parts.normalizer)),
      splits_(std::move(parts.splits)),
      before_(std::move(parts.before)),
      after_(std::move(parts.after)),
      decoder_(std::move(parts.decoder)),
      is_of_bytes_(parts.pairs.is_of_bytes),
      pairs_(std::move(pairs)) {}

// Pointers into added_ stay valid when the tokenizer is moved: moving a vector does not move its elements.
Result<void> Tokenizer::find_added() {
  // If two are the same once they are normalised, the tokenizers library finds the special one.
  for (const bool is_special : {true, false}) {
    for (AddedToken& added : added_) {
      if (added.is_special != is_special) continue;
      added_by_number_[added.token] = &added;
      added.shown = added.text;
      if (!added.is_normalised) {
        before_normalizer_.add(added.text, added);
        continue;
      }
      const auto normal = TRY(normalise(normalizer_, TRY(utf16_of(added.text)), Place::inner));
      if (normal.empty() && !added.text.empty())
        return fail(Errc::unavailable,
                    "tokenizer.json: nothing is left of the added token {} by its normalizer",
                    core::quoted_excerpt(added.text));
      added.shown = utf8_of(normal);
      after_normalizer_.add(added.shown, added);
      has_normalised_tokens_ = true;
    }
  }
  return {};
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text, bool continues) {
  Tokens tokens;
  const Place start = continues ? Place::continued : Place::first;
  for (const auto& [token, begin, end] : before_normalizer_.parts_of(text)) {
    if (token != nullptr) {
      tokens.push_back(token->token);
      continue;
    }
    const auto part = text.substr(begin, end - begin);
    const auto encoded = encode_plain(part, begin == 0 ? start : Place::inner, tokens);
    if (encoded) continue;
    const auto missing = pairs_.missing();
    const std::size_t place = missing.empty() ? std::string_view::npos : part.find(missing);
    if (place == std::string_view::npos) return tl::unexpected(encoded.error());
    return fail(encoded.error().code, "{}; it is at offset {} of the text", encoded.error().message,
                begin + place);
  }
  return tokens;
}

Result<void> Tokenizer::encode_plain(std::string_view text, Place place, Tokens& tokens) {
  const std::u16string units = TRY(normalise(normalizer_, TRY(utf16_of(text)), place));
  if (!has_normalised_tokens_) return encode_words(units, place, tokens);
  const auto normal = utf8_of(units);
  for (const auto& [token, begin, end] : after_normalizer_.parts_of(normal)) {
    if (token != nullptr) {
      tokens.push_back(token->token);
      continue;
    }
    const auto part = TRY(utf16_of(std::string_view(normal).substr(begin, end - begin)));
    TRY(encode_words(part, begin == 0 ? place : Place::inner, tokens));
  }
  return {};
}

Result<void> Tokenizer::encode_words(std::u16string_view text, Place place, Tokens& tokens) {
  return split_words(splits_, text, place,
                     [&](std::u16string_view word) { return pairs_.encode(utf8_of(word), tokens); });
}

std::string Tokenizer::decode(std::span<const std::int32_t> tokens, const DecodeOptions& options) const {
  std::string text;
  bool is_first = !options.continues;
  for (const std::int32_t token : tokens) {
    const auto found = added_by_number_.find(token);
    const AddedToken* added = found == added_by_number_.end() ? nullptr : found->second;
    if (added != nullptr && added->is_special && !options.with_special) continue;
    const std::string_view own = added != nullptr ? added->shown : pairs_.text_of(token);
    text += is_of_bytes_ ? std::string(own) : decoded(own, is_first);
    is_first = false;
  }
  if (is_of_bytes_ || options.continues) return text;
  const std::size_t blanks = std::min(text.find_first_not_of(' '), text.size());
  return text.substr(std::min(blanks, decoder_.stripped));
}

std::string Tokenizer::decoded(std::string_view token, bool is_first) const {
  const bool is_byte =
      decoder_.falls_back && token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
  if (is_byte) {
    int byte = 0;
    const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
    if (error == std::errc{} && end == token.data() + 5) return std::string(1, static_cast<char>(byte));
  }
  std::string text(token);
  if (decoder_.blank.empty()) return text;
  const std::string_view by = is_first && decoder_.drops_first_blanks ? "" : " ";
  for (std::size_t at = text.find(decoder_.blank); at != std::string::npos;
       at = text.find(decoder_.blank, at + by.size()))
    text.replace(at, decoder_.blank.size(), by);
  return text;
}

std::optional<std::int32_t> Tokenizer::token_of(std::string_view added_text) const {
  for (const AddedToken& added : added_) {
    if (added.text == added_text) return added.token;
  }
  return {};
}

std::string_view Tokenizer::name_of(std::int32_t token) const {
  const auto found = added_by_number_.find(token);
  return found == added_by_number_.end() ? pairs_.text_of(token) : found->second->text;
}

}  // namespace troupe::apps::gpt
