#include "actors/roles/rank_supervisor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <span>
#include <utility>

#include "actors/roles/plan_search.hpp"
#include "core/enum_names.hpp"
#include "core/hash.hpp"

namespace troupe::actors {

using messages::Role;

namespace {

/// Why the lanes' weights give no average; empty if they do.
std::string reason_of_weights(const messages::Verdict& verdict) {
  if (verdict.unweighted_lanes > 0) {
    return fmt::format(
        "{} of the step's lanes ended without a weight, the others with one; give end_lane() a weight in "
        "every lane of a step, or in none",
        verdict.unweighted_lanes);
  }
  if (verdict.weight == 0) return "no lane of the step has a target: their weights are all 0";
  // What gradients are multiplied by is an f32.
  if (!std::isfinite(static_cast<float>(verdict.gradient_factor))) {
    return fmt::format("the weights of the step's lanes add up to {}, which is too little to divide by",
                       verdict.weight);
  }
  return {};
}

/// What is longer than this is cut when other ranks are told.
constexpr std::size_t kMostRefusalBytes = 2048;

std::uint64_t hash_of(const std::vector<std::string>& lines, const messages::CallCounts& calls) {
  auto hash = core::hash64(std::as_bytes(std::span(calls)));
  for (const auto& line : lines) hash = core::hash64(line, hash);
  return hash;
}

}  // namespace

RankSupervisorMachine::RankSupervisorMachine(RankSupervisorConfig config)
    : config_(std::move(config)), large_gradients_(config_.large_gradient_factor) {
  for (auto bucket = config_.buckets; config_.forward.size() < config_.buckets;) {
    config_.forward.push_back({--bucket});
  }
}

void RankSupervisorMachine::start(Outbox& outbox) {
  if (config_.failure.failed) outbox.send(coordinator(), messages::RankFailed{config_.rank, config_.failure});
  outbox.send(coordinator(), messages::Join{config_.rank, config_.world, config_.plan_hash,
                                            config_.configuration, config_.stage});
  outbox.arm(kJoinTimer, config_.join_deadline);
}

void RankSupervisorMachine::receive(const messages::Envelope& envelope, Outbox& outbox) {
  if (state_ == State::left) return;
  if (state_ == State::fenced) {
    if (!untold_) return;
    dispatch(envelope.body,
             Overloaded{[&](const messages::Fence& order) { tell_trainer(order.failure, outbox); },
                        [&](const messages::PeerLost& lost) {
                          if (lost.rank == coordinator().rank) tell_trainer(*untold_, outbox);
                        }});
    return;
  }
  on_membership(envelope.body, outbox);
  if (state_ == State::running) on_step(envelope.body, outbox);
}

void RankSupervisorMachine::on_membership(const messages::Message& message, Outbox& outbox) {
  dispatch(message, Overloaded{
                        [&](const messages::PlanPartWanted& wanted) {
                          if (wanted.block == 1) {
                            outbox.send(coordinator(), plan_lines(config_.rank, *config_.plan_lines, wanted));
                          } else {
                            outbox.send(coordinator(),
                                        plan_hashes(config_.rank, *config_.plan_lines, wanted));
                          }
                        },
                        [&](const messages::Welcome& welcome) {
                          if (state_ != State::joining) return;
                          state_ = State::running;
                          outbox.cancel(kJoinTimer);
                          outbox.send(peer(Role::trainer), welcome);
                        },
                        [&](const messages::Refused& refused) { fence(refused.failure, false, outbox); },
                        [&](const messages::Fence& order) { fence(order.failure, false, outbox); },
                        [&](const messages::PeerLost& lost) {
                          // Only the coordinator's connection is this rank's own business; the Fence reports
                          // the others.
                          if (lost.rank == coordinator().rank) fence(lost.failure, false, outbox);
                        },
                        [&](const messages::CollectiveFailed& failed) {
                          if (state_ != State::leaving) fence(failed.failure, true, outbox);
                        },
                        [&](const messages::RankFailed& failed) { fence(failed.failure, true, outbox); },
                        [&](const messages::Leave&) {
                          state_ = State::leaving;
                          outbox.send(coordinator(), messages::Leave{config_.rank});
                        },
                        [&](const messages::Farewell& farewell) {
                          state_ = State::left;
                          outbox.send(peer(Role::trainer), farewell);
                        },
                    });
}

void RankSupervisorMachine::timer(TimerId id, Outbox& outbox) {
  if (id == kFenceTimer) {
    if (untold_) tell_trainer(*untold_, outbox);
    return;
  }
  if (state_ != State::joining) return;
  fence({true, core::Errc::timeout,
         fmt::format("the job did not form within {} s; see rank 0's log for the ranks that are missing",
                     std::chrono::duration_cast<std::chrono::seconds>(config_.join_deadline).count())},
        true, outbox);
}

std::unique_ptr<Machine> RankSupervisorMachine::successor(const messages::Failure& why,
                                                          const messages::Envelope*, Outbox& outbox) const {
  auto next = std::make_unique<RankSupervisorMachine>(config_);
  next->state_ = state_;
  next->step_ = step_;
  if (state_ == State::left) return next;
  if (state_ == State::joining && !config_.failure.failed) {
    // All ranks are told together, once they have come.
    next->config_.failure = why;
    next->start(outbox);
    return next;
  }
  if (state_ == State::fenced) {
    // What it threw at may be the end of the collectives, which is not asked for twice.
    next->tell_trainer(untold_.value_or(why), outbox);
    return next;
  }
  next->fence(why, true, outbox);
  return next;
}

void RankSupervisorMachine::on_step(const messages::Message& message, Outbox& outbox) {
  dispatch(message, Overloaded{
                        [&](const messages::OrderLearned& learned) { config_.forward = learned.updates; },
                        [&](const messages::StepBegan& begun) { begin(begun); },
                        [&](const messages::BackwardFinished& finished) {
                          if (finished.step != step_ || backward_finished_) return;
                          backward_finished_ = true;
                          losses_ = finished.losses;
                          wishes_ = finished.wishes;
                          alike_ = finished.alike;
                          calls_ = finished.calls;
                          if (refusal_.empty()) refusal_ = finished.refusal;
                          prepare_verdict_when_ready(outbox);
                        },
                        [&](const messages::BucketReady& ready) {
                          if (ready.step != step_) return;
                          buckets_ready_ += 1;
                          if (refusal_.empty()) refusal_ = ready.refusal;
                          prepare_verdict_when_ready(outbox);
                        },
                        [&](const messages::BucketReduced& reduced) {
                          if (reduced.step != step_) return;
                          buckets_reduced_ += 1;
                          decide_when_ready(outbox);
                        },
                        [&](const messages::VerdictArrived& arrived) {
                          if (arrived.step != step_ || phase_ != Phase::verdict) return;
                          verdict_arrived_ = true;
                          verdict_ = arrived.verdict;
                          decide_when_ready(outbox);
                        },
                        [&](const messages::StepReason& told) {
                          if (told.step == step_ && phase_ == Phase::accounts) decide(told.reason, outbox);
                        },
                        [&](const messages::ShardUpdated& updated) {
                          if (updated.step != updating_) return;
                          shards_updated_ += 1;
                          if (shards_updated_ < config_.buckets) return;
                          outbox.send(peer(Role::trainer), messages::StepCommitted{updating_, commits_});
                        },
                    });
}

void RankSupervisorMachine::begin(const messages::StepBegan& begun) {
  if (begun.step <= step_) return;
  step_ = begun.step;
  learning_rate_ = begun.learning_rate;
  loss_scale_ = begun.loss_scale;
  phase_ = Phase::backward;
  buckets_ready_ = buckets_reduced_ = 0;
  backward_finished_ = verdict_arrived_ = false;
  refusal_.clear();
}

void RankSupervisorMachine::prepare_verdict_when_ready(Outbox& outbox) {
  if (phase_ != Phase::backward || !backward_finished_ || buckets_ready_ < trained_buckets()) return;
  phase_ = Phase::verdict;
  outbox.perform(PrepareVerdict{step_, losses_, !refusal_.empty(), wishes_, hash_of(alike_, calls_)});
  outbox.send(peer(Role::conductor), messages::CollectiveReady{step_, config_.verdict_entry});
}

void RankSupervisorMachine::decide_when_ready(Outbox& outbox) {
  if (phase_ != Phase::verdict || !verdict_arrived_ || buckets_reduced_ < trained_buckets()) return;
  if (verdict_.refusing == 0 && !verdict_.differs) return decide({}, outbox);
  phase_ = Phase::accounts;
  outbox.send(coordinator(), messages::StepAccount{config_.rank, step_, refusal_.substr(0, kMostRefusalBytes),
                                                   alike_, calls_});
}

void RankSupervisorMachine::decide(std::string reason, Outbox& outbox) {
  phase_ = Phase::idle;
  updating_ = step_;
  shards_updated_ = 0;
  auto decided =
      decision_on({step_, learning_rate_, loss_scale_, config_.clip_norm, verdict_}, std::move(reason));
  if (verdict_.nonfinite_gradients == 0)
    decided.usual_norm = large_gradients_.exceeded_by(decided.verdict.gradient_norm);
  commits_ = decided.commit;
  outbox.send(peer(Role::conductor), decided);
  // What is read first is updated first.
  for (const auto bucket : config_.forward) outbox.send(peer(Role::parameter_shard, bucket.value), decided);
  outbox.send(peer(Role::trainer), std::move(decided));
}

messages::StepDecided decision_on(const StepFacts& facts, std::string reason) {
  const auto& verdict = facts.verdict;
  messages::StepDecided decided{facts.step, true, {}, 1.0, facts.learning_rate, verdict, facts.loss_scale};
  auto& norm = decided.verdict.gradient_norm;
  norm = norm / facts.loss_scale * verdict.gradient_factor;
  if (verdict.refusing > 0 || verdict.differs) {
    decided.commit = false;
    decided.reason = std::move(reason);
    if (verdict.differs) decided.learning_rate = 0;  // the same on all ranks
  } else if (verdict.nonfinite_gradients > 0) {
    decided.commit = false;
    decided.reason =
        fmt::format("{} gradient elements are NaN or Inf{}", verdict.nonfinite_gradients,
                    facts.loss_scale == 1 ? "" : fmt::format(" at a loss scale of {}", facts.loss_scale));
  } else if (auto why = reason_of_weights(verdict); !why.empty()) {
    decided.commit = false;
    decided.reason = std::move(why);
  }
  if (facts.clip_norm > 0 && norm > facts.clip_norm) decided.clip_factor = facts.clip_norm / (norm + 1e-6);
  return decided;
}

void RankSupervisorMachine::fence(messages::Failure reason, bool tell_coordinator, Outbox& outbox) {
  bool was_member = state_ != State::joining;
  state_ = State::fenced;
  outbox.perform(AbortCollectives{reason});
  outbox.send(peer(Role::conductor), messages::Fence{config_.rank, reason});
  if (tell_coordinator) outbox.send(coordinator(), messages::RankFailed{config_.rank, reason});
  untold_ = std::move(reason);
  if (tell_coordinator && was_member) {
    outbox.arm(kFenceTimer, std::chrono::seconds(1));
  } else {
    tell_trainer(*untold_, outbox);
  }
}

void RankSupervisorMachine::tell_trainer(messages::Failure reason, Outbox& outbox) {
  untold_.reset();
  outbox.cancel(kFenceTimer);
  outbox.send(peer(Role::trainer), messages::StepFailed{step_, std::move(reason)});
}

std::string_view RankSupervisorMachine::state() const {
  static constexpr auto kNames = core::enum_names<State>("joining", "running", "fenced", "leaving", "left");
  return kNames[state_];
}

std::string RankSupervisorMachine::waiting_for() const {
  if (state_ == State::joining) return "the coordinator's welcome";
  if (untold_) return "the coordinator to say who failed first";
  if (state_ == State::leaving) return "the other ranks to finish";
  if (state_ != State::running) return {};
  switch (phase_) {
    case Phase::idle:
      return "the trainer's next step";
    case Phase::backward:
      return fmt::format("backward of step {}: {} of {} buckets are ready, the trainer has {}", step_.value,
                         buckets_ready_, trained_buckets(), backward_finished_ ? "finished" : "not finished");
    case Phase::verdict:
      return fmt::format("the verdict of step {}: {} of {} buckets are reduced, the verdict has {}",
                         step_.value, buckets_reduced_, trained_buckets(),
                         verdict_arrived_ ? "arrived" : "not arrived");
    case Phase::accounts:
      return fmt::format("the coordinator to say why step {} is not committed", step_.value);
  }
  return {};
}

}  // namespace troupe::actors
