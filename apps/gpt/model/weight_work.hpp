#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/pass.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

/// The weights' half of a backward, deferred: what remains to be added to gradients, in order. P is Pass, or
/// a GPU's pass.
template <class P>
class PutOffWork {
 public:
  using Work = std::function<core::Result<void>(const P&)>;

  void add(Work work) { works_.push_back(std::move(work)); }

  core::Result<void> run(const P& pass) const {
    for (const Work& work : works_) TRY(work(pass));
    return {};
  }

 protected:
  void clear() { works_.clear(); }

 private:
  std::vector<Work> works_;
};

/// For a pass on the host, with copies of the data it needs that would not stay.
template <class T>
class WeightWork : public PutOffWork<Pass<T>> {
 public:
  /// `memory` is for the copies; `unused` is for gradients that a layer computes along with those that are
  /// wanted, as large as the largest of them.
  WeightWork(std::span<T> memory, std::span<T> unused) : memory_(memory), unused_(unused) {}

  void begin() {
    used_ = 0;
    this->clear();
  }
  /// A copy, valid until the next begin().
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

 private:
  std::span<T> memory_;
  std::span<T> unused_;
  std::size_t used_ = 0;
};

/// `rows` as the weights' half of the pass's backward will find them, if it is deferred: a copy, unless they
/// are `own`, which stay.
template <class P, class T>
const T* kept_for_weights(const P& pass, const T* rows, std::size_t elements,
                          const std::type_identity_t<T>* own = nullptr) {
  return pass.later == nullptr || rows == own ? rows : pass.later->keep(rows, elements);
}

/// Adds to a parameter's gradient, which is then complete, by `add(pass)`, after pass.use(); if the weights'
/// half of backward is deferred, later and with the pass of that time. What `add` refers to must still exist
/// then.
template <class P, class Add>
void add_to_gradient(const P& pass, std::size_t parameter, Add add) {
  if (pass.later == nullptr) {
    add(pass);
    return pass.ready(parameter);
  }
  pass.later->add([=](const P& at) -> core::Result<void> {
    TRY(at.use(parameter));
    add(at);
    at.ready(parameter);
    return {};
  });
}

/// The same for a parameter whose values the other half does not read.
template <class P, class Add>
core::Result<void> use_and_add_to_gradient(const P& pass, std::size_t parameter, Add add) {
  if (pass.later == nullptr) TRY(pass.use(parameter));
  add_to_gradient(pass, parameter, std::move(add));
  return {};
}

/// Errc::unavailable for split backwards of recomputed activations.
core::Result<void> check_split(bool is_split, Keep keep);

}  // namespace troupe::apps::gpt
