#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/result.hpp"

namespace troupe::apps::gpt {

/// Byte-pair encoding of words: among all neighbours that a merge joins, those of the earliest merge are
/// joined, leftmost first, until none is left. It begins from the bytes of a word, or from its characters.
class BytePairs {
 public:
  struct Description {
    std::vector<std::pair<std::string, std::int32_t>> vocabulary;
    std::vector<std::pair<std::string, std::string>> merges;  ///< the earliest first
    bool ignore_merges = false;                               ///< words in the vocabulary stay whole
    bool is_of_bytes = false;                                 ///< vocabulary and merges are in byte letters
    bool falls_back = false;  ///< a character that has no token becomes the tokens <0x00> to <0xFF>
    std::optional<std::string> unknown = {};  ///< the token of what else has none
    bool fuses_unknown = false;               ///< of which several in a row become one
  };
  /// Errc::corrupt if two tokens have the same number, or a merge joins what is not in the vocabulary.
  /// Errc::unavailable for bytes that fall back to tokens of bytes.
  static core::Result<BytePairs> create(const Description& description);

  /// Adds the tokens of a word: any bytes, or UTF-8 if it begins from characters. Errc::unavailable if it
  /// needs a token that the vocabulary lacks; see missing().
  core::Result<void> encode(std::string_view word, std::vector<std::int32_t>& tokens);
  /// The byte or character that the last word lacked.
  const std::string& missing() const { return missing_; }

  /// What a token stands for: bytes, or the text in the vocabulary; empty for a number that no token has.
  std::string_view text_of(std::int32_t token) const;

 private:
  struct Merge {
    std::int32_t rank = 0;
    std::int32_t joined = 0;
  };
  using Symbols = std::span<const std::int32_t>;
  using Tokens = std::unordered_map<std::string_view, std::int32_t>;

  core::Result<void> find_symbols(const Description& description, const Tokens& tokens);
  core::Result<void> add_merges(const Description& description, const Tokens& tokens);
  core::Result<void> split(std::string_view word);
  core::Result<void> split_unknown(std::string_view symbol, bool& is_after_unknown);
  std::vector<std::int32_t> merged(Symbols symbols) const;
  void encode_run(Symbols run, std::vector<std::int32_t>& tokens);
  const Merge* merge_of(std::int32_t left, std::int32_t right) const;

  bool is_of_bytes_ = false;
  bool fuses_unknown_ = false;
  std::optional<std::string> unknown_;
  std::int32_t unknown_token_ = -1;
  std::array<std::int32_t, 256> byte_tokens_{};                       // -1: none
  std::unordered_map<std::uint32_t, std::int32_t> character_tokens_;  // by their UTF-8
  std::unordered_map<std::string, std::int32_t> whole_words_;         // only with ignore_merges
  std::unordered_map<std::uint64_t, Merge> merges_;                   // by left and right token
  std::unordered_set<std::uint64_t> borders_;  // symbols between which a merge may join, if any do
  bool has_borders_ = true;
  std::unordered_map<std::int32_t, std::string> texts_;
  std::vector<std::int32_t> symbols_;  // of the word
  std::string missing_;
  std::unordered_map<std::string, std::vector<std::int32_t>> known_;  // runs seen before
};

}  // namespace troupe::apps::gpt
