#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/result.hpp"

namespace troupe::apps::gpt {

/// A token that is searched for in the text before everything else.
struct AddedToken {
  std::int32_t token = 0;
  std::string text;
  bool is_special = false;      ///< not text: begins, ends or separates texts
  bool is_normalised = false;   ///< searched for after the text is normalised; otherwise before
  bool is_single_word = false;  ///< found only where no character of a word is beside it
  bool takes_blanks_before = false, takes_blanks_after = false;
  std::string shown = {};  ///< what it becomes again
};

/// Finds added tokens in texts: the leftmost, and the longest of those at a place.
class AddedTokenFinder {
 public:
  /// A part of a text: the token that it is, blanks that it takes included, or null for what lies between.
  /// A token may take blanks that are part of the next one; then both have them.
  struct Part {
    const AddedToken* token = nullptr;
    std::size_t begin = 0, end = 0;
  };

  /// `text` is what is searched for; of two tokens with the same text the first is found. The token must
  /// outlive the finder.
  void add(std::string_view text, const AddedToken& token);
  /// All of a text. An empty text has one empty part.
  std::vector<Part> parts_of(std::string_view text) const;

 private:
  // A node of the trie of all texts; the first is its root.
  struct Node {
    const AddedToken* token = nullptr;
    std::unordered_map<char, std::size_t> next;
  };

  /// The longest token at a place; null if there is none.
  const AddedToken* longest_at(std::string_view text, std::size_t& end) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
};

}  // namespace troupe::apps::gpt
