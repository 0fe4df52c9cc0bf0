#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/result.hpp"

struct USet;

namespace troupe::apps::gpt {

/// A set of characters.
class CharacterSet {
 public:
  CharacterSet();

  void add(char32_t first, char32_t last);
  /// What \s, \d, \w and their capitals stand for in Oniguruma.
  void add_class(char letter);
  /// A general category or script. Errc::unavailable for another property.
  core::Result<void> add_property(std::string_view name, bool is_negated);
  /// Adds all characters that differ from one in it by case only.
  void add_cases();
  void invert();
  /// After all changes: makes contains() fast.
  void freeze();

  bool contains(char32_t character) const {
    if (character < ascii_.size()) return ascii_[character];
    return contains_other(character);
  }

 private:
  struct Close {
    void operator()(USet* set) const;
  };

  bool contains_other(char32_t character) const;
  void add_pattern(std::u16string_view pattern, bool is_negated);

  std::unique_ptr<USet, Close> set_;
  std::array<bool, 128> ascii_{};
};

}  // namespace troupe::apps::gpt
