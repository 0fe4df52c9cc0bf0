#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::fuzz {

/// Inputs that are nearly right: parts of a corpus with a few changes, the same for the same seed.
class Mutator {
 public:
  /// No mutant is longer than `max_bytes`.
  Mutator(std::vector<std::string> corpus, std::uint64_t seed, std::size_t max_bytes);

  const std::string& next();

 private:
  std::uint64_t draw();
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : static_cast<std::size_t>(draw() % limit); }
  void change();
  void overwrite_number();
  void splice();

  std::vector<std::string> corpus_;
  std::uint64_t state_;
  std::size_t max_bytes_;
  std::string mutant_;
};

}  // namespace troupe::fuzz
