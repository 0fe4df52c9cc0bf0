#include "apps/gpt/text/byte_pairs.hpp"

#include <queue>
#include <tuple>

#include "apps/gpt/text/byte_letters.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

// Two limits on the words that are remembered.
constexpr std::size_t kMostKnownWords = 1 << 17;
constexpr std::size_t kLongestKnownWord = 64;

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

}  // namespace

Result<BytePairs> BytePairs::create(const Description& description) {
  BytePairs pairs;
  std::unordered_map<std::string_view, std::int32_t> tokens;
  for (const auto& [letters, token] : description.vocabulary) {
    tokens[letters] = token;
    // Tokens that are not letters are added tokens, which are found before words are.
    auto bytes = bytes_of_letters(letters);
    if (!pairs.bytes_.try_emplace(token, bytes ? *bytes : letters).second)
      return fail(Errc::corrupt, "two tokens of the vocabulary have the number {}", token);
    if (description.ignore_merges && bytes) pairs.whole_words_[*bytes] = token;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = tokens.find(letter_of(static_cast<unsigned char>(byte)));
    if (found == tokens.end())
      return fail(Errc::corrupt, "the vocabulary has no token for the byte {:#04x}; it is not one of bytes",
                  byte);
    pairs.byte_tokens_[static_cast<std::size_t>(byte)] = found->second;
  }
  std::int32_t rank = 0;
  for (const auto& [left, right] : description.merges) {
    const auto from = tokens.find(left), to = tokens.find(right);
    const std::string joined = left + right;
    const auto result = tokens.find(joined);
    if (from == tokens.end() || to == tokens.end() || result == tokens.end())
      return fail(Errc::corrupt, "merge {} joins {} and {}, but the vocabulary does not have all three", rank,
                  core::quoted_excerpt(left), core::quoted_excerpt(right));
    pairs.merges_[pair_of(from->second, to->second)] = {rank++, result->second};
  }
  return pairs;
}

const BytePairs::Merge* BytePairs::merge_of(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(pair_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairs::encode(std::string_view word, std::vector<std::int32_t>& tokens) {
  const std::string key(word);
  if (const auto whole = whole_words_.find(key); whole != whole_words_.end()) {
    tokens.push_back(whole->second);
    return;
  }
  auto known = known_.find(key);
  if (known == known_.end()) {
    auto found = merged(word);
    if (word.size() > kLongestKnownWord) {
      tokens.insert(tokens.end(), found.begin(), found.end());
      return;
    }
    if (known_.size() >= kMostKnownWords) known_.clear();
    known = known_.emplace(key, std::move(found)).first;
  }
  tokens.insert(tokens.end(), known->second.begin(), known->second.end());
}

std::vector<std::int32_t> BytePairs::merged(std::string_view word) const {
  // A list of symbols; one that was joined to its left neighbour is no longer in it.
  struct Symbol {
    std::int32_t token;
    std::size_t previous, next;
    bool is_gone = false;
  };
  const std::size_t none = word.size();
  std::vector<Symbol> symbols;
  for (std::size_t i = 0; i < word.size(); ++i)
    symbols.push_back({byte_tokens_[static_cast<unsigned char>(word[i])], i == 0 ? none : i - 1, i + 1});

  using Candidate = std::tuple<std::int32_t, std::size_t, std::int32_t>;  // rank, left place, joined
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](std::size_t left) {
    if (left == none || symbols[left].next == none) return;
    if (const Merge* merge = merge_of(symbols[left].token, symbols[symbols[left].next].token))
      candidates.emplace(merge->rank, left, merge->joined);
  };
  for (std::size_t i = 0; i < word.size(); ++i) consider(i);
  while (!candidates.empty()) {
    const auto [rank, left, joined] = candidates.top();
    candidates.pop();
    if (symbols[left].is_gone || symbols[left].next == none) continue;
    const std::size_t right = symbols[left].next;
    const Merge* merge = merge_of(symbols[left].token, symbols[right].token);
    if (merge == nullptr || merge->joined != joined) continue;  // either was joined to another since
    symbols[left].token = joined;
    symbols[left].next = symbols[right].next;
    symbols[right].is_gone = true;
    if (symbols[left].next != none) symbols[symbols[left].next].previous = left;
    consider(symbols[left].previous);
    consider(left);
  }
  std::vector<std::int32_t> tokens;
  for (const Symbol& symbol : symbols) {
    if (!symbol.is_gone) tokens.push_back(symbol.token);
  }
  return tokens;
}

std::string_view BytePairs::bytes_of(std::int32_t token) const {
  const auto found = bytes_.find(token);
  return found == bytes_.end() ? std::string_view{} : found->second;
}

}  // namespace troupe::apps::gpt
