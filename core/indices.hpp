#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "core/ids.hpp"

namespace troupe::core {

/// What names a position in a list: a number with a meaning (core/ids.hpp), an enumerator, or a plain number;
/// all count from 0.
template <class Index>
concept ListIndex = std::integral<Index> || std::is_enum_v<Index> || requires(Index index) {
  index.value;
};

/// The index of this position in a list.
template <ListIndex Index>
constexpr Index index_at(std::size_t place) {
  if constexpr (std::integral<Index> || std::is_enum_v<Index>) {
    return static_cast<Index>(place);
  } else {
    return {static_cast<decltype(Index::value)>(place)};
  }
}

/// The position in a list that has this index.
template <ListIndex Index>
constexpr std::size_t place_of(Index index) {
  if constexpr (std::integral<Index> || std::is_enum_v<Index>) {
    return static_cast<std::size_t>(index);
  } else {
    return static_cast<std::size_t>(index.value);
  }
}

/// What indices() returns.
template <class Index>
class IndexRange {
 public:
  constexpr explicit IndexRange(std::size_t count) : count_(count) {}

  struct Iterator {
    std::size_t place = 0;

    constexpr Index operator*() const { return index_at<Index>(place); }
    constexpr Iterator& operator++() {
      ++place;
      return *this;
    }
    friend constexpr bool operator==(const Iterator&, const Iterator&) = default;
  };
  constexpr Iterator begin() const { return {}; }
  constexpr Iterator end() const { return {count_}; }

 private:
  std::size_t count_;
};

/// All indices of a list: `for (const auto bucket : indices<BucketIndex>(buckets.size()))`.
template <class Index>
constexpr IndexRange<Index> indices(std::size_t count) {
  return IndexRange<Index>(count);
}

}  // namespace troupe::core
