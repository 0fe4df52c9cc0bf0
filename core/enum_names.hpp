#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "core/indices.hpp"

namespace troupe::core {

/// Whether the value is one of its enumeration's. GCC and Clang write one that is not as "(Enum)7".
template <auto value>
consteval bool is_enumerator() {
  constexpr std::string_view text = __PRETTY_FUNCTION__;
  constexpr auto number = text.substr(text.rfind(')') + 1);
  return number.find_first_not_of("-0123456789]") != number.npos;
}

/// How many values an enumeration has that counts from 0 without a gap.
template <class Enum, std::size_t least = 0>
consteval std::size_t enum_count() {
  if constexpr (is_enumerator<static_cast<Enum>(least)>()) {
    return enum_count<Enum, least + 1>();
  } else {
    return least;
  }
}

/// The names of the values of such an enumeration, all of them.
template <class Enum>
class EnumNames {
  static constexpr std::size_t count = enum_count<Enum>();

 public:
  template <class... Names>
  constexpr explicit EnumNames(Names... names) : names_{std::string_view(names)...} {
    static_assert(sizeof...(Names) == count, "every value has a name");
  }

  /// "unknown" for a value that is not one of the enumeration's.
  constexpr std::string_view operator[](Enum value) const {
    return place_of(value) < count ? names_[place_of(value)] : "unknown";
  }
  constexpr std::optional<Enum> find(std::string_view name) const {
    for (std::size_t place = 0; place < count; ++place) {
      if (names_[place] == name) return index_at<Enum>(place);
    }
    return std::nullopt;
  }
  constexpr auto begin() const { return names_.begin(); }
  constexpr auto end() const { return names_.end(); }

 private:
  std::array<std::string_view, count> names_;
};

/// `constexpr auto kNames = enum_names<Colour>("red", "green");`
template <class Enum, class... Names>
constexpr EnumNames<Enum> enum_names(Names... names) {
  return EnumNames<Enum>(names...);
}

}  // namespace troupe::core
