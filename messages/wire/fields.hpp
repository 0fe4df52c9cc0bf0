#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace troupe::messages::wire {

/// Stands for a value of any type where only its presence matters.
struct AnyField {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor): it must convert by itself
};

template <class Aggregate, std::size_t... I>
constexpr bool takes_fields(std::index_sequence<I...>) {
  return requires {
    Aggregate{(static_cast<void>(I), AnyField{})...};
  };
}

/// The number of members of a plain struct.
template <class Aggregate, std::size_t Count = 8>
constexpr std::size_t field_count() {
  static_assert(std::is_aggregate_v<Aggregate>, "a message is a plain struct");
  static_assert(!takes_fields<Aggregate>(std::make_index_sequence<9>{}), "fields() reads at most 8 members");
  if constexpr (Count == 0 || takes_fields<Aggregate>(std::make_index_sequence<Count>{})) {
    return Count;
  } else {
    return field_count<Aggregate, Count - 1>();
  }
}

/// References to the members of a plain struct, in order of declaration.
template <class Aggregate>
constexpr auto fields(Aggregate& value) {
  constexpr std::size_t kCount = field_count<std::remove_const_t<Aggregate>>();
  if constexpr (kCount == 0) {
    return std::tie();
  } else if constexpr (kCount == 1) {
    auto& [a] = value;
    return std::tie(a);
  } else if constexpr (kCount == 2) {
    auto& [a, b] = value;
    return std::tie(a, b);
  } else if constexpr (kCount == 3) {
    auto& [a, b, c] = value;
    return std::tie(a, b, c);
  } else if constexpr (kCount == 4) {
    auto& [a, b, c, d] = value;
    return std::tie(a, b, c, d);
  } else if constexpr (kCount == 5) {
    auto& [a, b, c, d, e] = value;
    return std::tie(a, b, c, d, e);
  } else if constexpr (kCount == 6) {
    auto& [a, b, c, d, e, f] = value;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (kCount == 7) {
    auto& [a, b, c, d, e, f, g] = value;
    return std::tie(a, b, c, d, e, f, g);
  } else {
    auto& [a, b, c, d, e, f, g, h] = value;
    return std::tie(a, b, c, d, e, f, g, h);
  }
}

}  // namespace troupe::messages::wire
