#pragma once

#include <cstddef>
#include <initializer_list>
#include <utility>
#include <vector>

#include "core/indices.hpp"

namespace troupe::core {

/// A vector whose positions are named by an `Index`.
template <ListIndex Index, class T>
class List {
  using Items = std::vector<T>;

 public:
  using value_type = T;

  List() = default;
  List(std::initializer_list<T> items) : items_(items) {}
  explicit List(Items items) : items_(std::move(items)) {}
  explicit List(std::size_t count) : items_(count) {}
  List(std::size_t count, const T& each) : items_(count, each) {}

  decltype(auto) operator[](Index index) { return items_[place_of(index)]; }
  decltype(auto) operator[](Index index) const { return items_[place_of(index)]; }
  decltype(auto) at(Index index) { return items_.at(place_of(index)); }
  decltype(auto) at(Index index) const { return items_.at(place_of(index)); }

  std::size_t size() const { return items_.size(); }
  bool empty() const { return items_.empty(); }
  IndexRange<Index> indices() const { return core::indices<Index>(items_.size()); }
  /// The index after the last one.
  Index end_index() const { return index_at<Index>(items_.size()); }

  auto begin() { return items_.begin(); }
  auto end() { return items_.end(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }
  decltype(auto) front() { return items_.front(); }
  decltype(auto) front() const { return items_.front(); }
  decltype(auto) back() { return items_.back(); }
  decltype(auto) back() const { return items_.back(); }

  Items& items() { return items_; }
  const Items& items() const { return items_; }

  void push_back(T item) { items_.push_back(std::move(item)); }
  template <class... Arguments>
  decltype(auto) emplace_back(Arguments&&... arguments) {
    return items_.emplace_back(std::forward<Arguments>(arguments)...);
  }
  void reserve(std::size_t count) { items_.reserve(count); }
  void resize(std::size_t count) { items_.resize(count); }
  void resize(std::size_t count, const T& each) { items_.resize(count, each); }
  void assign(std::size_t count, const T& each) { items_.assign(count, each); }
  void clear() { items_.clear(); }
  void erase(Index index) { items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(place_of(index))); }

  friend bool operator==(const List&, const List&) = default;

 private:
  Items items_;
};

}  // namespace troupe::core
