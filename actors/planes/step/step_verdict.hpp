#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "actors/planes/step/step_context.hpp"
#include "actors/roles/work.hpp"
#include "messages/step.hpp"

namespace troupe::actors {

/// The words that this rank contributes to the verdict of each step, and those that all ranks get. Thread
/// safe.
class StepVerdict {
 public:
  /// How far the last step has come.
  struct Rest {
    core::Step step{-1};              ///< whose verdict was launched last
    bool is_reduced = false;          ///< all of its gradients are reduced on this rank
    core::Step decided{-1};           ///< whose verdict arrived last: this one, or the one before
    std::vector<std::int64_t> words;  ///< of that verdict, common to all ranks
  };

  /// `in` must outlive it.
  explicit StepVerdict(const StepContext& in) : in_(in) {}

  /// What the words of a verdict say.
  messages::Verdict verdict_of(std::span<const std::int64_t> words) const;
  /// What the supervisor has requested.
  void keep(const PrepareVerdict& work);
  /// How this rank's tokens of the step went to experts, as the verdict's words behind verdict_words().
  /// Called before the message that backward has ended is posted.
  void set_expert_counts(std::vector<std::int64_t> counts);
  /// The sums of all ranks, once the step is decided.
  std::vector<std::int64_t> expert_counts() const;

  /// Writes this rank's words to where they are reduced. Every reduction of the step was launched before, so
  /// the stream has measured every bucket.
  void write(gpu::StreamView stream);
  /// Brings the words of all ranks to the host.
  void bring(core::Step step, gpu::StreamView stream);
  /// They are there.
  messages::Verdict arrived(core::Step step);
  /// A reduction of the step's gradients has failed on this rank.
  void reduction_failed(core::Step step);
  Rest rest() const;

 private:
  const StepContext& in_;
  mutable std::mutex mutex_;  // guards all below
  PrepareVerdict requested_;
  std::vector<std::int64_t> own_expert_counts_;
  core::Step launched_{-1};
  core::Step reduction_failed_{-1};  ///< the last one
  core::Step arrived_{-1};
  std::vector<std::int64_t> words_;  ///< of that verdict
};

}  // namespace troupe::actors
