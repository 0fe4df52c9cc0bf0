#include "actors/planes/step/step_verdict.hpp"

#include <algorithm>
#include <utility>

#include "actors/planes/step/verdict.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"
#include "gpu/order/task_order.hpp"

namespace troupe::actors {

messages::Verdict StepVerdict::verdict_of(std::span<const std::int64_t> words) const {
  const auto& o = in_.tensors.plan.options;
  return read_verdict(words.first(verdict_words()), {o.lanes, o.microbatches, o.average, o.loss_divisor});
}

void StepVerdict::keep(const PrepareVerdict& work) {
  std::lock_guard lock(mutex_);
  requested_ = work;
}

void StepVerdict::set_expert_counts(std::vector<std::int64_t> counts) {
  std::lock_guard lock(mutex_);
  own_expert_counts_ = std::move(counts);
}

std::vector<std::int64_t> StepVerdict::expert_counts() const {
  std::lock_guard lock(mutex_);
  const auto counts = std::span(words_).subspan(std::min(words_.size(), verdict_words()));
  return {counts.begin(), counts.end()};
}

void StepVerdict::write(gpu::StreamView stream) {
  const auto& arena = in_.tensors.arena;
  {
    // The previous step's verdict was read before this one was requested, so nothing is copying these words.
    std::lock_guard lock(mutex_);
    gpu::declare(in_.device, "words of the verdict", {}, {arena.own_verdict()});
    const auto words = arena.own_verdict().as<std::int64_t>();
    write_verdict(requested_.losses, requested_.refuse, requested_.wishes, requested_.alike,
                  words.first(verdict_words()));
    const auto counts = words.subspan(verdict_words());
    CHECK(own_expert_counts_.size() == counts.size(), "a step counts where its tokens go");
    std::copy(own_expert_counts_.begin(), own_expert_counts_.end(), counts.begin());
  }
  gpu::copy(arena.own_verdict(), arena.verdict(), stream);
  gpu::add_square_sums(arena.squares(), squares_of_verdict(arena.verdict()), stream);
}

void StepVerdict::bring(core::Step step, gpu::StreamView stream) {
  gpu::copy(in_.tensors.arena.verdict(), in_.tensors.arena.common_verdict(), stream);
  std::lock_guard lock(mutex_);
  launched_ = step;
}

messages::Verdict StepVerdict::arrived(core::Step step) {
  const auto memory = in_.tensors.arena.common_verdict();
  gpu::declare(in_.device, "the verdict", {memory}, {});
  const auto words = memory.as<std::int64_t>();
  std::lock_guard lock(mutex_);
  arrived_ = step;
  words_.assign(words.begin(), words.end());
  return verdict_of(words_);
}

void StepVerdict::reduction_failed(core::Step step) {
  std::lock_guard lock(mutex_);
  reduction_failed_ = step;
}

StepVerdict::Rest StepVerdict::rest() const {
  std::lock_guard lock(mutex_);
  return {launched_, launched_.value >= 0 && reduction_failed_ != launched_, arrived_, words_};
}

}  // namespace troupe::actors
