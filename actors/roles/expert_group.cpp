#include "actors/roles/expert_group.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "core/enum_names.hpp"
#include "core/errors.hpp"
#include "core/experts/balance.hpp"

namespace troupe::actors {

using core::Errc;
using messages::RowsGo;

namespace {

using RowCounts = std::vector<std::int64_t>;

void add_counts(RowCounts& to, const RowCounts& more) {
  CHECK(to.size() == more.size(), "counts of a layer are those of all its experts");
  std::transform(to.begin(), to.end(), more.begin(), to.begin(), std::plus<>());
}

std::int64_t sum_of(const RowCounts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

}  // namespace

ExpertGroupMachine::ExpertGroupMachine(ExpertGroupConfig config)
    : config_(std::move(config)),
      owners_(config_.spread.owners()),
      chosen_(config_.spread.experts, 0),
      dropped_(config_.spread.experts, 0),
      bias_(config_.bias_rate > 0 ? config_.spread.experts : 0, 0.0F),
      all_chosen_(config_.spread.experts, 0),
      all_dropped_(config_.spread.experts, 0) {
  CHECK(config_.members.size() == owners_.ranks, "experts are shared by the members of the group");
  CHECK(config_.place < config_.members.size(), "a rank is a member of its group");
}

void ExpertGroupMachine::receive(const messages::Envelope& envelope, Outbox& outbox) {
  dispatch(envelope.body, Overloaded{[&](const messages::StepBegan& m) { on(m); },
                                     [&](const messages::RowsCounted& m) { on(m, outbox); },
                                     [&](const messages::CountsKnown& m) { on(m, outbox); },
                                     [&](const messages::RowsWanted& m) { on(m, outbox); },
                                     [&](const messages::RowsArrived& m) { on(m); },
                                     [&](const messages::LoadCounted& m) { on(m); },
                                     [&](const messages::LoadSummed& m) {
                                       if (m.step == step_) summed_ = m;
                                     },
                                     [&](const messages::StepDecided& m) { on(m, outbox); },
                                     [&](const messages::ExpertsRestored& m) { on(m, outbox); },
                                     [&](const messages::StepFailed& m) { fail(m.failure); }});
}

void ExpertGroupMachine::on(const messages::StepBegan& begun) {
  if (state_ == State::failed || begun.step <= step_) return;
  step_ = begun.step;
  exchanges_.clear();
  std::fill(chosen_.begin(), chosen_.end(), 0);
  std::fill(dropped_.begin(), dropped_.end(), 0);
  summed_ = {};
  refusal_.clear();
  state_ = State::idle;
}

/// An exchange outside of a step ends when the next one begins.
void ExpertGroupMachine::on(const messages::RowsCounted& counted, Outbox& outbox) {
  if (state_ == State::failed) return refuse(counted.exchange, failure_.code, failure_.message, outbox);
  if (counted.exchange <= last_) return;
  std::erase_if(exchanges_, [&](const auto& one) {
    return !is_training(one.second) && one.first + config_.pieces <= counted.exchange;
  });
  if (exchanges_.size() >= config_.most_exchanges) {
    return refuse(counted.exchange, Errc::invalid_argument,
                  fmt::format("layer {} has {} exchanges of rows in this step, and room for {}; give "
                              "ExpertLayerOptions::exchanges as many as the lanes and microbatches of a step",
                              config_.layer, exchanges_.size(), config_.most_exchanges),
                  outbox);
  }
  const bool is_negative =
      std::any_of(counted.counts.begin(), counted.counts.end(), [](std::int64_t count) { return count < 0; });
  if (counted.counts.size() != owners_.experts || is_negative || counted.dropped < 0 ||
      sum_of(counted.counts) + counted.dropped != counted.chosen) {
    return refuse(
        counted.exchange, Errc::invalid_argument,
        fmt::format("layer {} has {} experts, found {} counts of {} rows and {} dropped ones for {} "
                    "choices; count each choice once",
                    config_.layer, owners_.experts, counted.counts.size(), sum_of(counted.counts),
                    counted.dropped, counted.chosen),
        outbox);
  }
  last_ = current_ = counted.exchange;
  exchanges_[counted.exchange].lane = counted.lane;
  state_ = State::counting;
  outbox.perform(GatherCounts{config_.layer, counted.exchange, counted.lane, counted.counts});
}

/// Every member computes this of every member alike, so that all go on alike.
std::string ExpertGroupMachine::overflow(const std::vector<RowCounts>& counts) const {
  for (std::size_t to = 0; to < config_.members.size(); ++to) {
    std::int64_t rows = 0;
    for (const RowCounts& of_rank : counts) {
      const auto first = of_rank.begin() + static_cast<std::ptrdiff_t>(owners_.first(to));
      rows +=
          std::accumulate(first, first + static_cast<std::ptrdiff_t>(owners_.per_rank()), std::int64_t{0});
    }
    if (rows <= config_.most_rows) continue;
    return fmt::format(
        "{} rows would come to the experts of layer {} on rank {}, which has room for {}; "
        "give it more rows, or a capacity that drops some",
        rows, config_.layer, config_.members[to].value, config_.most_rows);
  }
  return {};
}

void ExpertGroupMachine::on(const messages::CountsKnown& known, Outbox& outbox) {
  const auto found = exchanges_.find(known.exchange);
  if (state_ == State::failed || found == exchanges_.end() || found->second.place != Place::counting) return;
  if (known.counts.empty()) {
    exchanges_.erase(found);
    state_ = State::idle;
    return;
  }
  Exchange& exchange = found->second;
  auto counts = known.counts;
  if (const auto too_many = overflow(counts); !too_many.empty()) {
    if (!is_training(exchange)) {
      exchanges_.erase(found);
      state_ = State::idle;
      return refuse(known.exchange, Errc::out_of_memory, too_many, outbox);
    }
    // All members go on with no rows, and no rank commits the step.
    if (refusal_.empty()) refusal_ = too_many;
    for (auto& of_rank : counts) std::fill(of_rank.begin(), of_rank.end(), 0);
  }
  auto plan = core::plan_exchange(owners_, config_.place, counts, config_.most_rows);
  if (!plan) {
    exchanges_.erase(found);
    return refuse(known.exchange, plan.error().code, plan.error().message, outbox);
  }
  exchange.sent = plan->sent;
  exchange.received = plan->received;
  exchange.place = Place::planned;
  outbox.perform(HandOutPlan{config_.layer, known.exchange, *std::move(plan)});
}

void ExpertGroupMachine::on(const messages::RowsWanted& wanted, Outbox& outbox) {
  if (state_ == State::failed) return refuse(wanted.exchange, failure_.code, failure_.message, outbox);
  const auto found = exchanges_.find(wanted.exchange);
  const bool is_out = wanted.go == RowsGo::out;
  const auto may_move = [&](Place place) {
    return is_out ? place == Place::planned || place == Place::back : place == Place::out;
  };
  const char* why = nullptr;
  if (found == exchanges_.end()) {
    why = "it is not open; its counts come first, in the same step";
  } else if (!may_move(found->second.place)) {
    why = is_out ? "they are not here; let those that went out come back first"
                 : "they are not with their experts; let them go out first";
  } else if (!is_planned(wanted, found->second)) {
    why = "other rows than were counted are to move; move as many as the plan of the exchange says";
  }
  if (why != nullptr) {
    return refuse(wanted.exchange, Errc::invalid_argument,
                  fmt::format("rows of exchange {} of layer {} cannot go {}: {}", wanted.exchange,
                              config_.layer, is_out ? "out" : "back", why),
                  outbox);
  }
  found->second.place = is_out ? Place::leaving : Place::returning;
  state_ = is_out ? State::exchanging : State::combining;
  current_ = wanted.exchange;
  outbox.perform(MoveRows{config_.layer, wanted.exchange, step_, wanted.go});
}

std::int64_t ExpertGroupMachine::of_others(const RowCounts& rows) const {
  return rows.empty() ? 0 : sum_of(rows) - rows[config_.place];
}

bool ExpertGroupMachine::is_planned(const messages::RowsWanted& wanted, const Exchange& exchange) const {
  const bool is_out = wanted.go == RowsGo::out;
  const auto fits = [&](const RowCounts& moved, const RowCounts& planned) {
    if (moved.size() != planned.size()) return false;
    for (std::size_t member = 0; member < moved.size(); ++member) {
      if (member != config_.place && moved[member] != planned[member]) return false;
    }
    return true;
  };
  return fits(wanted.sent, is_out ? exchange.sent : exchange.received) &&
         fits(wanted.taken, is_out ? exchange.received : exchange.sent);
}

void ExpertGroupMachine::on(const messages::RowsArrived& arrived) {
  const auto found = exchanges_.find(arrived.exchange);
  if (state_ == State::failed || found == exchanges_.end()) return;
  Exchange& exchange = found->second;
  const bool is_out = arrived.go == RowsGo::out;
  if (exchange.place != (is_out ? Place::leaving : Place::returning)) return;
  if (!arrived.moved) {
    exchange.place = !is_out ? Place::out : exchange.has_returned ? Place::back : Place::planned;
    state_ = is_out ? State::idle : State::computing;
    return;
  }
  const auto sent = of_others(exchange.sent), received = of_others(exchange.received);
  CHECK(arrived.sent == (is_out ? sent : received) && arrived.taken == (is_out ? received : sent),
        "as many rows move as were counted");
  exchange.place = is_out ? Place::out : Place::back;
  state_ = is_out ? State::computing : State::idle;
  if (is_out) return;
  // Those of forward first, then the gradients.
  if (std::exchange(exchange.has_returned, true)) exchanges_.erase(found);
}

void ExpertGroupMachine::on(const messages::LoadCounted& counted) {
  if (state_ == State::failed || counted.step != step_) return;
  add_counts(chosen_, counted.chosen);
  add_counts(dropped_, counted.dropped);
}

/// In a step that is not committed tokens count as load, but move no bias.
void ExpertGroupMachine::on(const messages::StepDecided& decided, Outbox& outbox) {
  if (state_ == State::failed || decided.step != step_ || decided.step <= decided_) return;
  decided_ = decided.step;
  exchanges_.clear();
  state_ = State::idle;
  if (summed_.step != step_ || summed_.chosen.empty()) return;
  add_counts(all_chosen_, summed_.chosen);
  add_counts(all_dropped_, summed_.dropped);
  const bool moves = decided.commit && config_.bias_rate > 0;
  if (moves) core::update_expert_bias(bias_, summed_.chosen, config_.bias_rate);
  keep(decided.step, moves, outbox);
}

void ExpertGroupMachine::on(const messages::ExpertsRestored& restored, Outbox& outbox) {
  if (!restored.bias.empty() && !bias_.empty()) bias_ = restored.bias;
  CHECK(restored.chosen.size() == all_chosen_.size() && restored.dropped.size() == all_dropped_.size(),
        "what is restored belongs to this layer");
  all_chosen_ = restored.chosen;
  all_dropped_ = restored.dropped;
  keep({-1}, false, outbox);
}

void ExpertGroupMachine::fail(const messages::Failure& failure) {
  if (state_ == State::failed) return;
  state_ = State::failed;
  failure_ = failure;
  exchanges_.clear();
}

void ExpertGroupMachine::refuse(std::uint64_t exchange, Errc code, std::string reason, Outbox& outbox) const {
  outbox.perform(RefuseRows{config_.layer, exchange, {true, code, std::move(reason)}});
}

void ExpertGroupMachine::keep(core::Step step, bool moved, Outbox& outbox) const {
  outbox.perform(KeepExpertState{config_.layer, step, moved, bias_, all_chosen_, all_dropped_});
}

std::string ExpertGroupMachine::unreturned() const {
  for (const auto& [number, exchange] : exchanges_) {
    if (!is_training(exchange) || exchange.has_returned) continue;
    const auto lane = exchange.lane.value < 0 ? "" : fmt::format(" in lane {}", exchange.lane.value);
    return fmt::format("rows of exchange {} of layer {}{} have not come back", number, config_.layer, lane);
  }
  return {};
}

std::string_view ExpertGroupMachine::state() const {
  static constexpr auto kNames =
      core::enum_names<State>("idle", "counting", "exchanging", "computing", "combining", "failed");
  return kNames[state_];
}

std::string ExpertGroupMachine::waiting_for() const {
  const auto others = [&] {
    std::vector<std::int32_t> ranks;
    for (const auto member : config_.members) {
      if (member != config_.rank) ranks.push_back(member.value);
    }
    return ranks.empty() ? std::string("itself") : fmt::format("ranks {}", fmt::join(ranks, ", "));
  };
  const auto found = exchanges_.find(current_);
  if (found == exchanges_.end()) return {};
  switch (found->second.place) {
    case Place::counting:
      return fmt::format("the counts of exchange {} from {}", current_, others());
    case Place::leaving:
    case Place::returning:
      return fmt::format("the rows of exchange {} from {}", current_, others());
    case Place::out:
      return fmt::format("the trainer to compute with the {} rows of exchange {}",
                         sum_of(found->second.received), current_);
    case Place::planned:
    case Place::back:
      break;
  }
  return {};
}

}  // namespace troupe::actors
