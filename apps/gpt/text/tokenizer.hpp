#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpt/text/added_tokens.hpp"
#include "apps/gpt/text/byte_pairs.hpp"
#include "apps/gpt/text/normalizer.hpp"
#include "apps/gpt/text/word_split.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// How tokens become text again, where they are not bytes.
struct TokenDecoder {
  std::string blank;                ///< stands for a blank; empty: none does
  bool drops_first_blanks = false;  ///< those of a text's first token
  bool falls_back = false;          ///< <0x00> to <0xFF> are bytes
  std::size_t stripped = 0;         ///< this many blanks at the beginning of a text are left out
};

/// The contents of a tokenizer.json, as far as they matter here.
struct TokenizerParts {
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<WordStep> splits;
  BytePairs::Description pairs;
  std::vector<std::int32_t> before, after;  ///< special tokens around a text
  TokenDecoder decoder;
};

/// Reads BPE, of bytes or of characters. Errc::corrupt for what is not a tokenizer.json; Errc::unavailable
/// names an unknown model, normalizer, pre-tokenizer, post-processor or decoder.
core::Result<TokenizerParts> read_tokenizer_json(std::string_view text);

/// BPE as computed by Hugging Face's tokenizers. One thread at a time.
class Tokenizer {
 public:
  /// From the text of a tokenizer.json; errors as read_tokenizer_json() and BytePairs::create().
  static core::Result<Tokenizer> create(std::string_view json);

  /// The tokens of UTF-8 text, without special tokens around them, but with those that the text spells out. A
  /// text that `continues` another gets no blank before it. Errc::unavailable, with the place in the text,
  /// for what the vocabulary has no token for.
  core::Result<std::vector<std::int32_t>> encode(std::string_view text, bool continues = false);

  /// Special tokens that go before and after a text.
  std::span<const std::int32_t> before() const { return before_; }
  std::span<const std::int32_t> after() const { return after_; }

  struct DecodeOptions {
    bool with_special = true;
    bool continues = false;  ///< the tokens of a text that continues another
  };
  /// The bytes that tokens stand for; numbers without a token are skipped. Tokens cut off in the middle of a
  /// character do not give valid UTF-8.
  std::string decode(std::span<const std::int32_t> tokens, const DecodeOptions& options) const;
  std::string decode(std::span<const std::int32_t> tokens) const { return decode(tokens, {true, false}); }

  std::optional<std::int32_t> token_of(std::string_view added_text) const;
  /// The vocabulary's spelling; empty for a number that no token has.
  std::string_view name_of(std::int32_t token) const;

 private:
  Tokenizer(TokenizerParts parts, BytePairs pairs);

  using Tokens = std::vector<std::int32_t>;
  core::Result<void> find_added();
  core::Result<void> encode_plain(std::string_view text, Place place, Tokens& tokens);
  core::Result<void> encode_words(std::u16string_view text, Place place, Tokens& tokens);
  std::string decoded(std::string_view token, bool is_first) const;

  std::vector<AddedToken> added_;
  std::map<std::int32_t, const AddedToken*> added_by_number_;
  AddedTokenFinder before_normalizer_, after_normalizer_;
  bool has_normalised_tokens_ = false;
  std::vector<NormalizerStep> normalizer_;
  std::vector<WordStep> splits_;
  std::vector<std::int32_t> before_, after_;
  TokenDecoder decoder_;
  bool is_of_bytes_;
  BytePairs pairs_;
};

}  // namespace troupe::apps::gpt
