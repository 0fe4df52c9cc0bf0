#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "apps/gpt/model/group.hpp"

namespace troupe::apps::gpt {

/// Lets several threads act for one member of a group: they request the same operations in the same order,
/// each with its own memory. The thread that started them forwards the requests to the group, thread 0's
/// first.
template <class T>
class GroupRelay {
 public:
  /// The group must outlive the relay.
  GroupRelay(TensorGroup<T>& group, std::size_t threads) : group_(group), asked_(threads), answers_(threads) {
    for (std::size_t i = 0; i < threads; ++i) members_.push_back(std::make_unique<Member>(*this, i));
  }

  /// The group as a thread sees it.
  TensorGroup<T>& member(std::size_t thread) { return *members_[thread]; }
  /// A thread requests nothing more until the next serve().
  void leave() {
    const std::lock_guard lock(mutex_);
    ++left_;
    changed_.notify_all();
  }
  /// Forwards the threads' requests to the group, until all threads have left.
  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return waiting_ + left_ == asked_.size(); });
      if (waiting_ == 0) break;
      // All who could change requests wait for their answers or have left, so no lock is held while an
      // operation waits for other ranks.
      lock.unlock();
      core::Result<void> first;  // failure
      for (std::size_t i = 0; i < asked_.size(); ++i) {
        if (!asked_[i]) continue;
        answers_[i] = asked_[i]();
        if (!answers_[i] && first) first = answers_[i];
      }
      lock.lock();
      // A thread that continued alone would wait for those that could not.
      if (!first) std::fill(answers_.begin(), answers_.end(), first);
      std::fill(asked_.begin(), asked_.end(), nullptr);
      waiting_ = 0;
      changed_.notify_all();
    }
    left_ = 0;
  }

 private:
  using Call = std::function<core::Result<void>()>;

  class Member final : public TensorGroup<T> {
   public:
    using Counts = typename TensorGroup<T>::Counts;
    Member(GroupRelay& relay, std::size_t thread) : relay_(relay), thread_(thread) {}

    std::size_t size() const override { return relay_.group_.size(); }
    std::size_t index() const override { return relay_.group_.index(); }
    core::Result<void> sum(std::span<T> values) override {
      return relay_.ask(thread_, [&] { return relay_.group_.sum(values); });
    }
    core::Result<void> max(std::span<T> values) override {
      return relay_.ask(thread_, [&] { return relay_.group_.max(values); });
    }
    core::Result<void> gather(std::span<const T> own, std::span<T> all, const Counts& counts) override {
      return relay_.ask(thread_, [&] { return relay_.group_.gather(own, all, counts); });
    }
    core::Result<void> scatter_sum(std::span<const T> all, std::span<T> own, const Counts& counts) override {
      return relay_.ask(thread_, [&] { return relay_.group_.scatter_sum(all, own, counts); });
    }

   private:
    GroupRelay& relay_;
    std::size_t thread_;
  };

  core::Result<void> ask(std::size_t thread, Call call) {
    std::unique_lock lock(mutex_);
    asked_[thread] = std::move(call);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !asked_[thread]; });
    return answers_[thread];
  }

  TensorGroup<T>& group_;
  std::vector<std::unique_ptr<Member>> members_;
  std::mutex mutex_;  // guards what follows, but for requests and answers while serve() has them carried out
  std::condition_variable changed_;
  std::vector<Call> asked_;  // by thread; null: it requests nothing
  std::vector<core::Result<void>> answers_;
  std::size_t waiting_ = 0, left_ = 0;
};

}  // namespace troupe::apps::gpt
