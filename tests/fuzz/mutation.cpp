#include "tests/fuzz/mutation.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace troupe::fuzz {

Mutator::Mutator(std::vector<std::string> corpus, std::uint64_t seed, std::size_t max_bytes)
    : corpus_(std::move(corpus)), state_(seed), max_bytes_(max_bytes) {}

/// SplitMix64.
std::uint64_t Mutator::draw() {
  std::uint64_t value = state_ += 0x9e37'79b9'7f4a'7c15;
  value = (value ^ (value >> 30)) * 0xbf58'476d'1ce4'e5b9;
  value = (value ^ (value >> 27)) * 0x94d0'49bb'1331'11eb;
  return value ^ (value >> 31);
}

const std::string& Mutator::next() {
  mutant_ = corpus_[below(corpus_.size())];
  for (std::size_t changes = 1 + below(4); changes > 0; --changes) change();
  if (mutant_.size() > max_bytes_) mutant_.resize(max_bytes_);
  return mutant_;
}

void Mutator::change() {
  const std::size_t at = below(mutant_.size());
  const std::size_t length = std::min(1 + below(16), mutant_.size() - at);
  switch (below(8)) {
    case 0:
      if (!mutant_.empty()) mutant_[at] = static_cast<char>(mutant_[at] ^ (1U << below(8)));
      return;
    case 1:
      if (!mutant_.empty()) mutant_[at] = static_cast<char>(draw());
      return;
    case 2:
      mutant_.insert(at, 1, static_cast<char>(draw()));
      return;
    case 3:
      mutant_.erase(at, length);
      return;
    case 4:
      mutant_.insert(below(mutant_.size() + 1), mutant_.substr(at, length));
      return;
    case 5:
      mutant_.resize(at);
      return;
    case 6:
      return overwrite_number();
    default:
      return splice();
  }
}

/// Limits of integers, where the sizes and places of a format may be.
void Mutator::overwrite_number() {
  constexpr std::array<std::uint64_t, 9> kNumbers{
      0, 1, 0x7f, 0xff, 0xffff, 0x7fff'ffff, 0xffff'ffff, 0x7fff'ffff'ffff'ffff, 0xffff'ffff'ffff'ffff};
  const std::uint64_t number = kNumbers[below(kNumbers.size())];
  const std::size_t bytes = std::size_t{1} << below(4);
  if (mutant_.size() < bytes) return;
  const std::size_t at = below(mutant_.size() - bytes + 1);
  for (std::size_t i = 0; i < bytes; ++i) mutant_[at + i] = static_cast<char>(number >> (8 * i));
}

/// A piece of another input in the place of a piece of this one.
void Mutator::splice() {
  const std::string& other = corpus_[below(corpus_.size())];
  const std::size_t from = below(other.size());
  const std::size_t at = below(mutant_.size());
  mutant_.replace(at, below(64), other, from, below(64));
}

}  // namespace troupe::fuzz
