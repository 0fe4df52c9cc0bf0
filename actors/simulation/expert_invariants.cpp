#include "actors/simulation/expert_invariants.hpp"

#include <fmt/format.h>

#include <numeric>

#include "actors/roles/machine.hpp"

namespace troupe::actors {

using messages::RowsGo;

std::string ExpertInvariants::name_of(const Group& group) {
  return fmt::format("layer {} of rank {}", group.second, group.first.value);
}

void ExpertInvariants::heard(const messages::Envelope& envelope) {
  const Group group{envelope.to.rank, envelope.to.index};
  dispatch(envelope.body, Overloaded{[&](const messages::StepBegan& m) { on(group, m); },
                                     [&](const messages::RowsCounted& m) { on(group, m); },
                                     [&](const messages::CountsKnown& m) {
                                       layers_[group].exchanges[m.exchange].is_known = !m.counts.empty();
                                     },
                                     [&](const messages::RowsArrived& m) {
                                       if (m.moved) hand_out(group, "is handed rows");
                                     },
                                     [&](const messages::StepDecided& m) { on(group, m); }});
}

void ExpertInvariants::asked(const messages::Address& who, const Work& work) {
  const Group group{who.rank, who.index};
  if (const auto* move = work_if<MoveRows>(work)) on(group, *move);
  if (work_if<HandOutPlan>(work) != nullptr) hand_out(group, "plans an exchange");
  if (const auto* state = work_if<KeepExpertState>(work)) on(group, *state);
}

void ExpertInvariants::hand_out(const Group& group, const char* what) {
  if (!failed_.contains(group.first)) return;
  violate_(fmt::format("EG-4: {} {} after its step failed", name_of(group), what));
}

void ExpertInvariants::on(const Group& group, const messages::StepBegan& begun) {
  auto& layer = layers_[group];
  if (layer.decided.commit && layer.decided.step == layer.begun && layer.has_bias &&
      layer.moved != layer.decided.step) {
    violate_(fmt::format("EG-3: {} did not move its biases in step {}, which is committed", name_of(group),
                         layer.decided.step.value));
  }
  layer.begun = begun.step;
  layer.exchanges.clear();
}

void ExpertInvariants::on(const Group& group, const messages::RowsCounted& counted) {
  auto& exchange = layers_[group].exchanges[counted.exchange];
  exchange = {counted.step, counted.lane.value != -1};
  const auto rows = std::accumulate(counted.counts.begin(), counted.counts.end(), std::int64_t{0});
  if (rows + counted.dropped == counted.chosen) return;
  violate_(fmt::format("EG-1: {} counts {} rows and {} dropped ones of {} choices", name_of(group), rows,
                       counted.dropped, counted.chosen));
}

void ExpertInvariants::on(const Group& group, const MoveRows& move) {
  hand_out(group, "moves rows");
  auto& exchange = layers_[group].exchanges[move.exchange];
  const bool is_out = move.go == RowsGo::out;
  if (!exchange.is_known) {
    violate_(fmt::format("EG-2: {} moves rows of exchange {} before their counts are known", name_of(group),
                         move.exchange));
  }
  (is_out ? exchange.out : exchange.back) += 1;
  if (exchange.back > exchange.out) {
    violate_(fmt::format("EG-2: rows of exchange {} come back to {} that did not go out", move.exchange,
                         name_of(group)));
  }
  // Once in forward, and once more as gradients.
  if (exchange.back > 2 || exchange.out > 2) {
    violate_(fmt::format("EG-1: rows of exchange {} of {} go {} again", move.exchange, name_of(group),
                         is_out ? "out" : "back"));
  }
}

void ExpertInvariants::on(const Group& group, const messages::StepDecided& decided) {
  auto& layer = layers_[group];
  layer.decided = decided;
  for (const auto& [number, exchange] : layer.exchanges) {
    if (!exchange.trains || exchange.step != decided.step || exchange.back > 0) continue;
    violate_(fmt::format("EG-1: step {} is decided, and rows of exchange {} of {} have not come back",
                         decided.step.value, number, name_of(group)));
  }
}

void ExpertInvariants::on(const Group& group, const KeepExpertState& state) {
  auto& layer = layers_[group];
  layer.has_bias = !state.bias.empty();
  if (state.step.value < 0) return;
  const auto [first, is_first] =
      biases_.try_emplace({group.second, state.step}, std::pair{group.first, state.bias});
  if (!is_first && first->second.second != state.bias) {
    violate_(fmt::format("EG-3: after step {} {} has other biases than rank {}", state.step.value,
                         name_of(group), first->second.first.value));
  }
  if (!state.moved) return;
  const bool is_committed = layer.decided.step == state.step && layer.decided.commit;
  if (!is_committed || layer.moved == state.step) {
    violate_(fmt::format("EG-3: {} moves its biases in step {}, which {}", name_of(group), state.step.value,
                         is_committed ? "has moved them" : "is not committed"));
  }
  layer.moved = state.step;
}

}  // namespace troupe::actors
