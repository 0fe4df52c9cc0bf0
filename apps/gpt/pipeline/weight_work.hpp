#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "apps/gpt/pass.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

/// The weights' half of a backward, put off: what is left to add to gradients, in order, and copies of what
/// it needs that does not stay.
template <class T>
class WeightWork {
 public:
  using Work = std::function<core::Result<void>(const Pass<T>&)>;

  /// `memory` is for the copies; `unused` for gradients that a layer computes together with those that are
  /// wanted, as large as the largest of them.
  WeightWork(std::span<T> memory, std::span<T> unused) : memory_(memory), unused_(unused) {}

  void begin() {
    used_ = 0;
    works_.clear();
  }
  /// A copy, until the next begin().
  const T* keep(const T* values, std::size_t count) {
    CHECK(count <= memory_.size() - used_, "copies for the weights' backward fit in their memory");
    T* copy = memory_.data() + used_;
    used_ += count;
    std::copy_n(values, count, copy);
    return copy;
  }
  T* unused(std::size_t count) const {
    CHECK(count <= unused_.size(), "gradients that nobody wants fit in their memory");
    std::fill_n(unused_.data(), count, T{0});
    return unused_.data();
  }
  void add(Work work) { works_.push_back(std::move(work)); }

  core::Result<void> run(const Pass<T>& pass) {
    for (const Work& work : works_) TRY(work(pass));
    return {};
  }

 private:
  std::span<T> memory_;
  std::span<T> unused_;
  std::size_t used_ = 0;
  std::vector<Work> works_;
};

/// `rows` as the weights' half of the pass's backward will find them, where it is put off: where they are if
/// those are `own`, which stay, or else a copy.
template <class T>
const T* kept_for_weights(const Pass<T>& pass, const T* rows, const T* own, std::size_t elements) {
  return pass.later == nullptr || rows == own ? rows : pass.later->keep(rows, elements);
}

}  // namespace troupe::apps::gpt
