#include "apps/gpt/text/added_tokens.hpp"

#include <algorithm>

#include "apps/gpt/text/unicode.hpp"

namespace troupe::apps::gpt {

void AddedTokenFinder::add(std::string_view text, const AddedToken& token) {
  std::size_t node = 0;
  for (const char byte : text) {
    const auto [place, is_new] = nodes_[node].next.try_emplace(byte, nodes_.size());
    node = place->second;
    if (is_new) nodes_.emplace_back();
  }
  if (node != 0 && nodes_[node].token == nullptr) nodes_[node].token = &token;
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, std::size_t& at) const {
  const AddedToken* found = nullptr;
  std::size_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto next = nodes_[node].next.find(text[i]);
    if (next == nodes_[node].next.end()) break;
    node = next->second;
    if (nodes_[node].token == nullptr) continue;
    found = nodes_[node].token;
    at = i + 1;
  }
  return found;
}

std::vector<AddedTokenFinder::Part> AddedTokenFinder::parts_of(std::string_view text) const {
  if (text.empty()) return {{}};
  std::vector<Part> parts;
  std::size_t done = 0;
  std::size_t blanks_end = 0;  // of the blanks that a token took last, which are not counted again
  for (std::size_t at = 0; at < text.size();) {
    std::size_t begin = at, end = at;
    const AddedToken* token = longest_at(text, end);
    if (token == nullptr) {
      ++at;
      continue;
    }
    at = end;
    if (token->is_single_word &&
        (ends_with_word(text.substr(0, begin)) || begins_with_word(text.substr(end))))
      continue;
    if (token->takes_blanks_before)
      begin = begin > done ? begin - blanks_at_end(text.substr(done, begin - done)) : done;
    if (token->takes_blanks_after)
      end = blanks_end = end < blanks_end ? blanks_end : end + blanks_at_start(text.substr(end));
    if (done < begin) parts.push_back({nullptr, done, begin});
    parts.push_back({token, begin, end});
    done = end;
  }
  if (done != text.size()) parts.push_back({nullptr, done, text.size()});
  return parts;
}

}  // namespace troupe::apps::gpt
