#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/result.hpp"

namespace troupe::apps::gpt {

/// Byte-pair encoding of words: among all neighbours that a merge joins, those of the earliest merge are
/// joined, leftmost first, until none is left.
class BytePairs {
 public:
  struct Description {
    std::vector<std::pair<std::string, std::int32_t>> vocabulary;  ///< in byte letters
    std::vector<std::pair<std::string, std::string>> merges;       ///< likewise, the earliest first
    bool ignore_merges = false;                                    ///< words in the vocabulary stay whole
  };
  /// Errc::corrupt if a byte has no token, two tokens have the same number, or a merge joins what is not in
  /// the vocabulary.
  static core::Result<BytePairs> create(const Description& description);

  /// Adds the tokens of a word, which may be any bytes.
  void encode(std::string_view word, std::vector<std::int32_t>& tokens);

  /// The bytes of a token; empty for a number that no token has.
  std::string_view bytes_of(std::int32_t token) const;

 private:
  struct Merge {
    std::int32_t rank = 0;
    std::int32_t joined = 0;
  };

  std::vector<std::int32_t> merged(std::string_view word) const;
  const Merge* merge_of(std::int32_t left, std::int32_t right) const;

  std::array<std::int32_t, 256> byte_tokens_{};
  std::unordered_map<std::string, std::int32_t> whole_words_;  // only with ignore_merges
  std::unordered_map<std::uint64_t, Merge> merges_;            // by left and right token
  std::unordered_map<std::int32_t, std::string> bytes_;
  std::unordered_map<std::string, std::vector<std::int32_t>> known_;  // words seen before
};

}  // namespace troupe::apps::gpt
