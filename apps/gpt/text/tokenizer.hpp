#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpt/text/byte_pairs.hpp"
#include "apps/gpt/text/unicode.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// A token that is searched for in the text before everything else.
struct AddedToken {
  std::int32_t token = 0;
  std::string text;
  bool is_special = false;     ///< not text: begins, ends or separates texts
  bool is_normalised = false;  ///< searched for after the text is normalised; otherwise before
};

/// A step that splits text into words.
struct WordSplit {
  /// Null: only the prefix below.
  std::optional<Pattern> pattern;
  bool drops_matches = false;      ///< matches are removed; otherwise they are words too
  bool adds_prefix_space = false;  ///< before splitting: a space before text without one
};

/// The contents of a tokenizer.json, as far as they matter here.
struct TokenizerParts {
  std::vector<AddedToken> added;
  std::vector<NormalForm> normal_forms;
  std::vector<WordSplit> splits;
  BytePairs::Description pairs;
  std::vector<std::int32_t> before, after;  ///< special tokens around a text
};

/// Reads byte-level BPE. Errc::corrupt for what is not a tokenizer.json; Errc::unavailable names an unknown
/// model, normalizer, pre-tokenizer, post-processor or decoder.
core::Result<TokenizerParts> read_tokenizer_json(std::string_view text);

/// Byte-level BPE as computed by Hugging Face's tokenizers. One thread at a time.
class Tokenizer {
 public:
  /// From the text of a tokenizer.json; errors as read_tokenizer_json() and BytePairs::create().
  static core::Result<Tokenizer> create(std::string_view json);

  /// The tokens of UTF-8 text, without special tokens around them, but with those that the text spells out.
  core::Result<std::vector<std::int32_t>> encode(std::string_view text);

  /// Special tokens that go before and after a text.
  std::span<const std::int32_t> before() const { return before_; }
  std::span<const std::int32_t> after() const { return after_; }

  /// The bytes that tokens stand for; numbers without a token are skipped. Tokens cut off in the middle of a
  /// character do not give valid UTF-8.
  std::string decode(std::span<const std::int32_t> tokens, bool with_special = true) const;

  std::optional<std::int32_t> token_of(std::string_view added_text) const;

 private:
  Tokenizer(TokenizerParts parts, BytePairs pairs);

  using Tokens = std::vector<std::int32_t>;
  /// Longest first, by first byte.
  using Finder = std::map<char, std::vector<const AddedToken*>>;
  template <class Rest>
  core::Result<void> find_added(const Finder& finder, std::string_view text, Tokens& tokens,
                                const Rest& rest) const;
  core::Result<void> encode_plain(std::string_view text, Tokens& tokens);
  core::Result<void> encode_words(std::u16string_view text, std::size_t split, Tokens& tokens);

  std::vector<AddedToken> added_;
  std::map<std::int32_t, const AddedToken*> added_by_number_;
  Finder before_normal_forms_, after_normal_forms_;
  std::vector<NormalForm> normal_forms_;
  std::vector<WordSplit> splits_;
  std::vector<std::int32_t> before_, after_;
  BytePairs pairs_;
};

}  // namespace troupe::apps::gpt
