#include "actors/roles/gradient_bucket.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/enum_names.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

using messages::Role;

GradientBucketMachine::GradientBucketMachine(GradientBucketConfig config)
    : config_(std::move(config)),
      counts_(config_.parameters.size(), 0),
      expected_(config_.parameters.size(), 0) {
  CHECK(config_.parameters.size() == config_.names.size(), "every parameter of a bucket has a name");
  CHECK(!config_.rounds.empty(), "a rank plays at least one lane");
  CHECK(!config_.rounds.back().entries.empty(), "some collective brings the reduced gradient");
  for (const auto& round : config_.rounds) entries_ += round.entries.size();
}

void GradientBucketMachine::receive(const messages::Envelope& envelope, Outbox& outbox) {
  dispatch(envelope.body, Overloaded{[&](const messages::StepBegan& m) { on(m); },
                                     [&](const messages::GradientReady& m) { on(m, outbox); },
                                     [&](const messages::LaneEnded& m) { on(m, outbox); },
                                     [&](const messages::ShardStepped& m) { on(m, outbox); },
                                     [&](const messages::CollectiveDone& m) { on(m, outbox); }});
}

void GradientBucketMachine::on(const messages::StepBegan& begun) {
  if (begun.step <= step_) return;
  step_ = begun.step;
  state_ = State::counting;
  round_ = 0;
  lane_complete_ = false;
  entries_done_ = 0;
  refusal_.clear();
  begin_lane();
}

/// A parameter that is not learned is awaited as if it came once, until the lane's end.
void GradientBucketMachine::begin_lane() {
  std::fill(counts_.begin(), counts_.end(), 0);
  outstanding_ = 0;
  for (const auto expected : expected_) outstanding_ += std::max(expected, 1u);
}

bool GradientBucketMachine::is_current(core::Step step, core::Lane lane) const {
  return step == step_ && round_ < config_.rounds.size() && lane == config_.rounds[round_].lane;
}

void GradientBucketMachine::on(const messages::GradientReady& ready, Outbox& outbox) {
  if (!is_current(ready.step, ready.lane)) return;
  const auto& own = config_.parameters;
  const auto found = std::find(own.begin(), own.end(), ready.parameter);
  if (found == own.end()) return;
  const auto index = static_cast<std::size_t>(found - own.begin());
  counts_[index] += 1;
  const auto expected = expected_[index];
  if (expected == 0) return;
  if (counts_[index] > expected) {
    refuse(
        fmt::format("parameter {} gave {} gradients in lane {}; in the first lane that used it, it gave {}",
                    config_.names[index], counts_[index], ready.lane.value, expected));
    return;
  }
  outstanding_ -= 1;
  if (outstanding_ == 0 && config_.overlap) complete_lane(outbox);
}

void GradientBucketMachine::on(const messages::LaneEnded& ended, Outbox& outbox) {
  if (!is_current(ended.step, ended.lane)) return;
  if (ended.lane.value >= 0) learn_or_check();
  if (!lane_complete_) complete_lane(outbox);
  lane_complete_ = false;
  round_ += 1;
  begin_lane();
  if (round_ < config_.rounds.size()) return;
  outbox.send(peer(Role::rank_supervisor), messages::BucketReady{step_, config_.bucket, refusal_});
}

void GradientBucketMachine::learn_or_check() {
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    const auto wanted = std::max(expected_[i], 1u);
    if (expected_[i] == 0) expected_[i] = counts_[i];
    if (counts_[i] >= wanted || config_.unused == core::UnusedParameters::zeros) continue;
    refuse(
        fmt::format("parameter {} gave {} of {} gradients in lane {}: it was not used in this step's loss; "
                    "declare unused parameters as zeros if that is meant",
                    config_.names[i], counts_[i], wanted, config_.rounds[round_].lane.value));
  }
}

void GradientBucketMachine::complete_lane(Outbox& outbox) {
  lane_complete_ = true;
  due_.push_back(round_);
  prepare_due(outbox);
}

void GradientBucketMachine::on(const messages::ShardStepped& stepped, Outbox& outbox) {
  if (stepped.step != not_cleared_) return;
  not_cleared_.reset();
  prepare_due(outbox);
}

void GradientBucketMachine::prepare_due(Outbox& outbox) {
  if (not_cleared_) return;
  for (const auto number : std::exchange(due_, {})) {
    const auto& round = config_.rounds[number];
    const bool last = number + 1 == config_.rounds.size();
    outbox.perform(PrepareBucket{step_, config_.bucket, round.lane, last});
    for (auto entry : round.entries)
      outbox.send(peer(Role::conductor), messages::CollectiveReady{step_, entry});
    if (!last) continue;
    not_cleared_ = step_;
    state_ = State::ready;
  }
}

void GradientBucketMachine::on(const messages::CollectiveDone& done, Outbox& outbox) {
  if (done.step != step_ || state_ == State::reduced || done.failure.failed) return;
  entries_done_ += 1;
  if (entries_done_ < entries_) return;
  state_ = State::reduced;
  outbox.send(peer(Role::rank_supervisor), messages::BucketReduced{step_, config_.bucket});
}

void GradientBucketMachine::refuse(std::string reason) {
  if (refusal_.empty()) refusal_ = std::move(reason);
}

std::string_view GradientBucketMachine::state() const {
  static constexpr auto kNames = core::enum_names<State>("idle", "counting", "ready", "reduced");
  return kNames[state_];
}

std::string GradientBucketMachine::waiting_for() const {
  if (state_ == State::ready) return fmt::format("the reduction of step {}", step_.value);
  if (state_ != State::counting) return {};
  if (!due_.empty()) return fmt::format("the update of step {}", not_cleared_->value);
  std::string missing;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] >= std::max(expected_[i], 1u)) continue;
    missing += missing.empty() ? "" : ", ";
    missing += config_.names[i];
  }
  return missing.empty() ? fmt::format("the end of the lane of step {}", step_.value)
                         : fmt::format("gradients of step {}: {}", step_.value, missing);
}

}  // namespace troupe::actors
