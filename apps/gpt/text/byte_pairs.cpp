#include "apps/gpt/text/byte_pairs.hpp"

#include <fmt/format.h>

#include <algorithm>
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

// Two limits on the runs that are remembered.
constexpr std::size_t kMostKnownRuns = 1 << 17;
constexpr std::size_t kLongestKnownRun = 64;

constexpr std::int32_t kNone = -1;

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

bool continues(char byte) {
  return (byte & 0xc0) == 0x80;
}

std::string_view first_character(std::string_view text) {
  std::size_t size = 1;
  while (size < text.size() && continues(text[size])) ++size;
  return text.substr(0, size);
}

std::string_view last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && continues(text[at])) --at;
  return text.substr(at);
}

// At most four bytes.
std::uint32_t number_of(std::string_view character) {
  std::uint32_t number = 0;
  for (const char byte : character.substr(0, 4)) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

std::string fallback_of(int byte) {
  return fmt::format("<0x{:02X}>", byte);
}

}  // namespace

Result<BytePairs> BytePairs::create(const Description& description) {
  BytePairs pairs;
  pairs.is_of_bytes_ = description.is_of_bytes;
  pairs.fuses_unknown_ = description.fuses_unknown;
  pairs.unknown_ = description.unknown;
  Tokens tokens;
  for (const auto& [text, token] : description.vocabulary) {
    tokens[text] = token;
    // Tokens that are not letters are added tokens, which are found before words are.
    const auto bytes = description.is_of_bytes ? bytes_of_letters(text) : std::optional(text);
    if (!pairs.texts_.try_emplace(token, bytes ? *bytes : text).second)
      return fail(Errc::corrupt, "two tokens of the vocabulary have the number {}", token);
    if (description.ignore_merges && bytes) pairs.whole_words_[*bytes] = token;
  }
  TRY(pairs.find_symbols(description, tokens));
  TRY(pairs.add_merges(description, tokens));
  return pairs;
}

Result<void> BytePairs::find_symbols(const Description& description, const Tokens& tokens) {
  const auto token_of = [&](std::string_view text) {
    const auto found = tokens.find(text);
    return found == tokens.end() ? kNone : found->second;
  };
  if (unknown_) unknown_token_ = token_of(*unknown_);
  byte_tokens_.fill(kNone);
  for (int byte = 0; byte < 256; ++byte) {
    auto& token = byte_tokens_[static_cast<std::size_t>(byte)];
    if (description.is_of_bytes) token = token_of(letter_of(static_cast<unsigned char>(byte)));
    if (!description.is_of_bytes && description.falls_back) token = token_of(fallback_of(byte));
    if (description.is_of_bytes && description.falls_back && token == kNone)
      return fail(Errc::unavailable,
                  "a vocabulary of bytes without the byte {:#04x} that falls back to bytes is not taken",
                  byte);
  }
  if (description.is_of_bytes) return {};
  for (const auto& [text, token] : description.vocabulary) {
    if (!text.empty() && first_character(text).size() == text.size())
      character_tokens_[number_of(text)] = token;
  }
  return {};
}

Result<void> BytePairs::add_merges(const Description& description, const Tokens& tokens) {
  std::unordered_set<std::int32_t> beginnings;  // symbols that are not one character
  if (unknown_token_ != kNone) beginnings.insert(unknown_token_);
  if (!description.is_of_bytes) beginnings.insert(byte_tokens_.begin(), byte_tokens_.end());
  std::int32_t rank = 0;
  for (const auto& [left, right] : description.merges) {
    const auto from = tokens.find(left), to = tokens.find(right);
    const std::string joined = left + right;
    const auto result = tokens.find(joined);
    if (from == tokens.end() || to == tokens.end() || result == tokens.end())
      return fail(Errc::corrupt, "merge {} joins {} and {}, but the vocabulary does not have all three", rank,
                  core::quoted_excerpt(left), core::quoted_excerpt(right));
    merges_[pair_of(from->second, to->second)] = {rank++, result->second};
    if (left.empty() || right.empty() || beginnings.contains(from->second) ||
        beginnings.contains(to->second)) {
      has_borders_ = false;
      continue;
    }
    const auto before = tokens.find(last_character(left)), after = tokens.find(first_character(right));
    // Without these symbols, what the merge joins never comes about.
    if (before != tokens.end() && after != tokens.end())
      borders_.insert(pair_of(before->second, after->second));
  }
  return {};
}

const BytePairs::Merge* BytePairs::merge_of(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(pair_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

Result<void> BytePairs::encode(std::string_view word, std::vector<std::int32_t>& tokens) {
  if (!whole_words_.empty()) {
    if (const auto whole = whole_words_.find(std::string(word)); whole != whole_words_.end()) {
      tokens.push_back(whole->second);
      return {};
    }
  }
  TRY(split(word));
  // No merge reaches over a place between two symbols that none joins, so the runs are independent.
  const Symbols symbols(symbols_);
  std::size_t begin = 0;
  for (std::size_t at = 1; at <= symbols.size(); ++at) {
    if (at < symbols.size() && (!has_borders_ || borders_.contains(pair_of(symbols[at - 1], symbols[at]))))
      continue;
    encode_run(symbols.subspan(begin, at - begin), tokens);
    begin = at;
  }
  return {};
}

Result<void> BytePairs::split(std::string_view word) {
  symbols_.clear();
  bool is_after_unknown = false;
  for (std::size_t at = 0; at < word.size();) {
    const auto symbol = is_of_bytes_ ? word.substr(at, 1) : first_character(word.substr(at));
    at += symbol.size();
    std::int32_t token = kNone;
    if (is_of_bytes_) {
      token = byte_tokens_[static_cast<unsigned char>(symbol.front())];
    } else if (const auto found = character_tokens_.find(number_of(symbol));
               found != character_tokens_.end()) {
      token = found->second;
    }
    if (token == kNone) {
      TRY(split_unknown(symbol, is_after_unknown));
      continue;
    }
    if (is_after_unknown) symbols_.push_back(unknown_token_);
    is_after_unknown = false;
    symbols_.push_back(token);
  }
  if (is_after_unknown) symbols_.push_back(unknown_token_);
  return {};
}

// An unknown token is added only before the next known character: tokens of bytes come before it. That is
// what tokenizers does.
Result<void> BytePairs::split_unknown(std::string_view symbol, bool& is_after_unknown) {
  const auto byte_token = [&](char byte) { return byte_tokens_[static_cast<unsigned char>(byte)]; };
  const bool falls_back = !is_of_bytes_ && std::all_of(symbol.begin(), symbol.end(),
                                                       [&](char byte) { return byte_token(byte) != kNone; });
  if (falls_back) {
    for (const char byte : symbol) symbols_.push_back(byte_token(byte));
    return {};
  }
  if (unknown_token_ != kNone) {
    if (is_after_unknown && !fuses_unknown_) symbols_.push_back(unknown_token_);
    is_after_unknown = true;
    return {};
  }
  missing_ = symbol;
  std::string bytes;
  for (const char byte : symbol)
    bytes += fmt::format("{}{:#04x}", bytes.empty() ? "" : " ", static_cast<unsigned char>(byte));
  const auto what = fmt::format("the byte{} {}", symbol.size() > 1 ? "s" : "", bytes);
  if (unknown_)
    return fail(Errc::unavailable, "the vocabulary has no token for {}, nor its unknown token {}", what,
                core::quoted_excerpt(*unknown_));
  return fail(Errc::unavailable, "the vocabulary has no token for {}, and no unknown token", what);
}

void BytePairs::encode_run(Symbols run, std::vector<std::int32_t>& tokens) {
  if (run.size() == 1) {
    tokens.push_back(run.front());
    return;
  }
  if (run.size() > kLongestKnownRun) {
    const auto found = merged(run);
    tokens.insert(tokens.end(), found.begin(), found.end());
    return;
  }
  const std::string key(reinterpret_cast<const char*>(run.data()), run.size_bytes());
  auto known = known_.find(key);
  if (known == known_.end()) {
    auto found = merged(run);
    if (known_.size() >= kMostKnownRuns) known_.clear();
    known = known_.emplace(key, std::move(found)).first;
  }
  tokens.insert(tokens.end(), known->second.begin(), known->second.end());
}

std::vector<std::int32_t> BytePairs::merged(Symbols run) const {
  // A list; one that was joined to its left neighbour is no longer in it. Texts are shorter than 2^32.
  struct Symbol {
    std::int32_t token;
    std::uint32_t previous, next;
  };
  const auto none = static_cast<std::uint32_t>(run.size());
  std::vector<Symbol> symbols;
  symbols.reserve(run.size());
  for (std::uint32_t i = 0; i < none; ++i) symbols.push_back({run[i], i == 0 ? none : i - 1, i + 1});

  using Candidate = std::tuple<std::int32_t, std::uint32_t, std::int32_t>;  // rank, left place, joined
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](std::uint32_t left) {
    if (left == none || symbols[left].next == none) return;
    if (const Merge* merge = merge_of(symbols[left].token, symbols[symbols[left].next].token))
      candidates.emplace(merge->rank, left, merge->joined);
  };
  for (std::uint32_t i = 0; i < none; ++i) consider(i);
  while (!candidates.empty()) {
    const auto [rank, left, joined] = candidates.top();
    candidates.pop();
    if (symbols[left].token == kNone || symbols[left].next == none) continue;
    const std::uint32_t right = symbols[left].next;
    const Merge* merge = merge_of(symbols[left].token, symbols[right].token);
    if (merge == nullptr || merge->joined != joined) continue;  // either was joined to another since
    symbols[left].token = joined;
    symbols[left].next = symbols[right].next;
    symbols[right].token = kNone;
    if (symbols[left].next != none) symbols[symbols[left].next].previous = left;
    consider(symbols[left].previous);
    consider(left);
  }
  std::vector<std::int32_t> tokens;
  for (const Symbol& symbol : symbols) {
    if (symbol.token != kNone) tokens.push_back(symbol.token);
  }
  return tokens;
}

std::string_view BytePairs::text_of(std::int32_t token) const {
  const auto found = texts_.find(token);
  return found == texts_.end() ? std::string_view{} : found->second;
}

}  // namespace troupe::apps::gpt
