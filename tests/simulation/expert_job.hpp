#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "actors/planes/step/device_memory.hpp"
#include "actors/session/trainer_group.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors::experts {

using core::DType;
using core::Numerics;
using core::Strategy;

constexpr std::size_t kWidth = 6;
constexpr std::size_t kTokens = 6;
constexpr int kExperts = 24;
constexpr int kLayers = 3;
constexpr int kLanes = 16;

/// ep data-parallel ranks share the experts, tp neighbours the elements of everything, and cp of the
/// data-parallel ranks each lane, of which each has tokens of its own. Each expert may be in several parts,
/// on so many of these ranks: then it is ep times parts of them that share all experts.
struct Spread {
  int ranks = 1;
  int ep = 1;
  Strategy strategy = Strategy::zero1;
  Numerics numerics = Numerics::ordered;
  int instances = 1;
  int lanes = kLanes;
  int tp = 1;
  core::DType wire = core::DType::f32;
  int cp = 1;
  int parts = 1;

  int members() const { return ep * parts; }
  std::size_t width() const { return kWidth / static_cast<std::size_t>(tp); }
  std::size_t offset(core::Rank rank) const { return static_cast<std::size_t>(rank.value % tp) * width(); }
  /// In the expert-parallel group.
  int place(core::Rank rank) const { return rank.value / tp % members(); }
  std::size_t part_width() const { return width() / static_cast<std::size_t>(parts); }
  /// The first element of an expert that the rank has, among those of its width().
  std::size_t first_of_part(core::Rank rank) const {
    return static_cast<std::size_t>(place(rank) % parts) * part_width();
  }

  std::string name() const {
    return fmt::format("{}On{}ep{}{}{}{}{}", core::name_of(strategy), ranks, ep,
                       instances > 1 ? "Copies" : "", tp > 1 ? fmt::format("tp{}", tp) : "",
                       cp > 1 ? fmt::format("cp{}", cp) : "",
                       parts > 1 ? fmt::format("etp{}", tp * parts) : "");
  }

  friend std::ostream& operator<<(std::ostream& out, const Spread& of) { return out << of.name(); }
};

inline std::string expert_name(int layer, int expert) {
  return fmt::format("layer.{}.expert.{}", layer, expert);
}

using Vector = std::vector<float>;

/// Tokens of kWidth elements, of which a rank has width_ from offset_ on. A layer multiplies all by its
/// `dense`, then each by the weights of its expert;
/// all elementwise. The loss is the sum of what comes out. A layer's dense weights and experts are a unit.
class Trainer {
 public:
  Trainer(Session& session, const Spread& spread)
      : session_(session),
        own_(kExperts / spread.ep),
        place_(spread.place(session.rank()) / spread.parts),
        members_(spread.members()),
        parts_(spread.parts),
        part_width_(spread.part_width()),
        first_of_part_(spread.first_of_part(session.rank())),
        pieces_(spread.cp),
        piece_(session.rank().value / spread.tp % spread.cp),
        width_(spread.width()),
        offset_(spread.offset(session.rank())) {}

  static std::vector<core::ParameterSpec> specs(const Spread& spread, core::Rank rank) {
    std::vector<core::ParameterSpec> specs;
    const int own = kExperts / spread.ep;
    const auto add = [&](int layer, std::string name, std::size_t width, std::size_t offset) {
      specs.push_back({std::move(name), {static_cast<std::int64_t>(width)}});
      specs.back().unit = core::UnitIndex{static_cast<std::uint32_t>(layer)};
      if (width == kWidth) return;
      specs.back().global_shape = {static_cast<std::int64_t>(kWidth)};
      specs.back().offset = {static_cast<std::int64_t>(offset)};
    };
    for (int layer = 0; layer < kLayers; ++layer) {
      add(layer, fmt::format("layer.{}.dense", layer), spread.width(), spread.offset(rank));
      for (int e = 0; e < own; ++e) {
        add(layer, expert_name(layer, spread.place(rank) / spread.parts * own + e), spread.part_width(),
            spread.offset(rank) + spread.first_of_part(rank));
        specs.back().is_expert = true;
      }
    }
    return specs;
  }

  core::Result<StepOutcome> step() {
    TRY(session_.begin_step(0.01));
    for (const core::Lane lane : session_.lanes()) TRY(play(lane));
    return session_.finish_step();
  }

 private:
  core::ParameterIndex dense(int layer) const { return {static_cast<std::uint32_t>(layer * (own_ + 1))}; }
  core::ParameterIndex expert(int layer, int own) const {
    return {static_cast<std::uint32_t>(layer * (own_ + 1) + 1 + own)};
  }
  /// A piece of a lane, numbered among all of them.
  int piece_of(core::Lane lane) const { return lane.value * pieces_ + piece_; }
  /// Some experts have several tokens of a piece, some none; in the last layer expert 3 has all of them.
  static int chosen(int layer, int piece, std::size_t token) {
    if (layer == kLayers - 1) return 3;
    return (static_cast<int>(token) * static_cast<int>(token) + 5 * piece + layer) % kExperts;
  }

  core::Result<std::span<float>> read(core::ParameterIndex parameter) {
    TRY(session_.before_use(parameter));
    return session_.parameter(parameter);
  }

  /// What all sources play in this round, in their order.
  core::Result<std::vector<int>> pieces_of_sources(core::Lane lane) {
    const std::vector<std::int64_t> own{piece_of(lane)};
    std::vector<std::int64_t> all(static_cast<std::size_t>(members_), own[0]);
    if (members_ > 1) {
      auto& group = *TRY(session_.group("ep"));
      TRY(group.wait(TRY(group.all_gather(gpu::view_of(std::span(own)), gpu::view_of(std::span(all)),
                                          DType::i64, TrainerGroup::Counts(all.size(), 1)))));
    }
    return std::vector<int>(all.begin(), all.end());
  }

  core::Result<Vector> gathered(const Vector& own) {
    if (members_ == 1) return own;
    Vector all(own.size() * static_cast<std::size_t>(members_));
    auto& group = *TRY(session_.group("ep"));
    TRY(group.wait(
        TRY(group.all_gather(gpu::view_of(std::span(own)), gpu::view_of(std::span(all)), DType::f32,
                             TrainerGroup::Counts(static_cast<std::size_t>(members_), own.size())))));
    return all;
  }

  /// Rows that owners computed for all sources go back: of each token its owner's.
  core::Result<Vector> returned(int layer, core::Lane lane, Vector computed) {
    if (members_ == 1) return computed;
    const std::size_t size = kTokens * width_;
    Vector taken(computed.size());
    auto& group = *TRY(session_.group("ep"));
    const TrainerGroup::Counts counts(static_cast<std::size_t>(members_), size);
    TRY(group.wait(TRY(group.all_to_all(gpu::view_of(std::span(std::as_const(computed))), counts,
                                        gpu::view_of(std::span(taken)), counts, DType::f32))));
    Vector own(size);
    for (std::size_t i = 0; i < size; ++i) {
      const auto owner = static_cast<std::size_t>(chosen(layer, piece_of(lane), i / width_) / own_ * parts_) +
                         i % width_ / part_width_;
      own[i] = taken[owner * size + i];
    }
    return own;
  }

  template <class Visit>
  void for_own_tokens(int layer, const std::vector<int>& pieces, const Visit& visit) {
    for (std::size_t source = 0; source < pieces.size(); ++source) {
      for (std::size_t token = 0; token < kTokens; ++token) {
        const int expert = chosen(layer, pieces[source], token) - place_ * own_;
        if (expert < 0 || expert >= own_) continue;
        const std::size_t first = (source * kTokens + token) * width_ + first_of_part_;
        for (std::size_t i = 0; i < part_width_; ++i) visit(static_cast<int>(source), expert, first + i, i);
      }
    }
  }

  core::Result<void> play(core::Lane lane) {
    TRY(session_.begin_lane(lane));
    const auto pieces = TRY(pieces_of_sources(lane));
    Vector h(kTokens * width_);
    for (std::size_t i = 0; i < h.size(); ++i) {
      const auto element = i / width_ * kWidth + offset_ + i % width_;
      h[i] = 0.25F +
             static_cast<float>((13 * static_cast<std::size_t>(piece_of(lane)) + 5 * element) % 11) / 16.0F;
    }
    std::vector<Vector> inputs, expert_inputs;
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto weights = TRY(read(dense(layer)));
      inputs.push_back(h);
      for (std::size_t i = 0; i < h.size(); ++i) h[i] *= weights[i % width_];
      expert_inputs.push_back(TRY(gathered(h)));
      Vector computed(expert_inputs.back().size());
      std::vector<std::span<float>> experts;
      for (int e = 0; e < own_; ++e) experts.push_back(TRY(read(expert(layer, e))));
      for_own_tokens(layer, pieces, [&](int, int e, std::size_t at, std::size_t i) {
        computed[at] = expert_inputs.back()[at] * experts[static_cast<std::size_t>(e)][i];
      });
      h = TRY(returned(layer, lane, std::move(computed)));
    }
    double loss = 0;
    for (const float value : h) loss += value;
    TRY(session_.begin_backward());
    Vector d(h.size(), 1);
    for (int layer = kLayers; layer-- > 0;) {
      const auto& x = expert_inputs[static_cast<std::size_t>(layer)];
      const auto all = TRY(gathered(d));
      Vector computed(all.size());
      std::vector<std::span<float>> experts, gradients;
      for (int e = 0; e < own_; ++e) {
        experts.push_back(TRY(read(expert(layer, e))));
        for (int source = 0; source < members_; ++source)
          gradients.push_back(TRY(session_.gradient(expert(layer, e), source)));
      }
      for_own_tokens(layer, pieces, [&](int source, int e, std::size_t at, std::size_t i) {
        gradients[static_cast<std::size_t>(e * members_ + source)][i] += all[at] * x[at];
        computed[at] = all[at] * experts[static_cast<std::size_t>(e)][i];
      });
      for (int e = 0; e < own_; ++e) TRY(session_.gradient_ready(expert(layer, e)));
      d = TRY(returned(layer, lane, std::move(computed)));
      const auto weights = TRY(read(dense(layer)));
      const auto to = TRY(session_.gradient(dense(layer)));
      for (std::size_t i = 0; i < d.size(); ++i) {
        to[i % width_] += d[i] * inputs[static_cast<std::size_t>(layer)][i];
        d[i] *= weights[i % width_];
      }
      TRY(session_.gradient_ready(dense(layer)));
    }
    return session_.end_lane(loss);
  }

  Session& session_;
  int own_;
  int place_;
  int members_;
  int parts_;
  std::size_t part_width_;
  std::size_t first_of_part_;
  int pieces_;
  int piece_;
  std::size_t width_;
  std::size_t offset_;
};

/// What a rank ends with; elements of parameters that others have are NaN.
struct Trained {
  std::map<std::string, Vector> parameters;
  std::vector<double> norms;
  std::vector<double> losses;
  DeviceMemory planned;
  DeviceMemory taken;
};

inline core::Result<std::map<std::string, Vector>> values_of(Session& session) {
  std::map<std::string, Vector> all;
  TRY(session.begin_evaluation());
  for (const auto index : core::indices<core::ParameterIndex>(session.parameters().size())) {
    TRY(session.before_use(index));
    const auto values = TRY(session.parameter(index));
    const auto& spec = session.parameters()[index.value];
    auto& whole = all[spec.name];
    whole.assign(kWidth, std::numeric_limits<float>::quiet_NaN());
    std::copy(values.begin(), values.end(), whole.begin() + (spec.offset.empty() ? 0 : spec.offset[0]));
  }
  TRY(session.end_evaluation());
  return all;
}

inline SessionOptions options_of(const Spread& spread) {
  SessionOptions options;
  options.training.strategy = spread.strategy;
  options.training.numerics = spread.numerics;
  options.training.expert_parallel = spread.ep;
  options.training.tensor_parallel = spread.tp;
  if (spread.parts > 1) options.training.expert_tensor_parallel = spread.tp * spread.parts;
  options.training.context_parallel = spread.cp;
  options.training.optimizer_instances = spread.instances;
  options.training.lanes = spread.lanes;
  options.training.wire_dtype = spread.wire;
  options.training.bucket_elements = 20;
  options.training.clip_norm = 0.5;
  return options;
}

inline core::Result<Trained> train(SimulatedRank& rank, const Spread& spread, int until,
                                   const std::function<void()>& compute = {}) {
  auto session = TRY(Session::join(rank, options_of(spread), Trainer::specs(spread, rank.rank())));
  for (const auto index : core::indices<core::ParameterIndex>(session->parameters().size())) {
    TRY(session->write_parameter(index, [&](std::int64_t first, std::span<float> values) {
      const auto& spec = session->parameters()[index.value];
      const auto hash = std::hash<std::string>{}(spec.name);
      const auto begin = static_cast<std::size_t>(first + (spec.offset.empty() ? 0 : spec.offset[0]));
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = 0.5F + static_cast<float>((hash + 7919 * (begin + i)) % 1000) / 1000.0F;
    }));
  }
  if (rank.storage() != nullptr) TRY(session->restore());
  Trained trained;
  Trainer trainer(*session, spread);
  while (session->next_step().value < until) {
    if (compute) compute();
    const auto outcome = TRY(trainer.step());
    CHECK(outcome.committed, "nothing refuses a step here");
    trained.norms.push_back(outcome.gradient_norm);
    trained.losses.push_back(outcome.loss);
    if (rank.storage() != nullptr) TRY(session->save());
  }
  trained.parameters = TRY(values_of(*session));
  trained.planned = session->planned_memory();
  trained.taken = session->device_memory();
  TRY(session->leave());
  return trained;
}

inline JobOutcome<Trained> run(const Spread& spread, int until, Storage* storage = nullptr,
                               bool in_launch_order = false) {
  SimulationOptions simulation;
  simulation.ranks = {spread.ranks};
  simulation.fabric.in_launch_order = in_launch_order;
  simulation.storage = storage;
  return simulate_job<Trained>(simulation, [&](SimulatedRank& rank) { return train(rank, spread, until); });
}

/// What all ranks together hold; what two of them hold otherwise is a failure, as is what none has.
inline std::map<std::string, Vector> whole(const std::vector<Trained>& ranks) {
  std::map<std::string, Vector> all;
  for (const auto& rank : ranks) {
    for (const auto& [name, values] : rank.parameters) {
      auto& known = all.try_emplace(name, values).first->second;
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (std::isnan(values[i])) continue;
        if (std::isnan(known[i])) known[i] = values[i];
        EXPECT_EQ(known[i], values[i]) << name << " " << i;
      }
    }
  }
  for (const auto& [name, values] : all) {
    for (const float value : values) EXPECT_FALSE(std::isnan(value)) << name;
  }
  return all;
}

inline std::vector<Spread> spreads() {
  std::vector<Spread> all;
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    for (const auto& [ranks, ep] :
         {std::pair{2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}, {8, 1}, {8, 2}, {8, 4}, {8, 8}}) {
      all.push_back({ranks, ep, strategy});
    }
  }
  for (const auto strategy : {Strategy::zero1, Strategy::hsdp, Strategy::hfsdp}) {
    for (const auto& [ranks, ep] : {std::pair{4, 2}, {8, 2}, {8, 4}}) {
      all.push_back({ranks, ep, strategy, Numerics::ordered, 2});
    }
  }
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    for (const auto& [ranks, ep, tp] :
         {std::tuple{2, 1, 2}, {4, 2, 2}, {8, 2, 2}, {8, 4, 2}, {6, 2, 3}, {12, 2, 3}}) {
      all.push_back({ranks, ep, strategy, Numerics::ordered, 1, kLanes, tp});
    }
  }
  all.push_back({8, 2, Strategy::hsdp, Numerics::ordered, 2, kLanes, 2});
  return all;
}

/// Those whose ranks share lanes too: experts over some of the ranks of a lane, all, or those of several.
inline std::vector<Spread> spreads_of_pieces() {
  std::vector<Spread> all;
  const auto add = [&](Strategy strategy, int ranks, int ep, int cp, int tp = 1, int instances = 1) {
    all.push_back({ranks, ep, strategy, Numerics::ordered, instances, kLanes, tp, core::DType::f32, cp});
  };
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    for (const auto& [ranks, ep, cp] : {std::tuple{2, 2, 2},
                                        {4, 2, 2},
                                        {4, 4, 2},
                                        {4, 2, 4},
                                        {8, 4, 2},
                                        {8, 8, 2},
                                        {8, 2, 4},
                                        {8, 8, 4},
                                        {3, 3, 3},
                                        {6, 3, 3}}) {
      add(strategy, ranks, ep, cp);
    }
    add(strategy, 8, 2, 2, 2);
    add(strategy, 8, 4, 2, 2);
  }
  for (const auto strategy : {Strategy::zero1, Strategy::hsdp, Strategy::hfsdp}) {
    add(strategy, 4, 2, 2, 1, 2);
    add(strategy, 8, 4, 2, 1, 2);
    add(strategy, 8, 2, 4, 1, 2);
  }
  return all;
}

/// Experts that are cut over more ranks than layers are.
inline std::vector<Spread> spreads_of_parts() {
  std::vector<Spread> all;
  const auto add = [&](Strategy strategy, int ranks, int ep, int parts, int tp = 1, int cp = 1,
                       int instances = 1) {
    all.push_back(
        {ranks, ep, strategy, Numerics::ordered, instances, kLanes, tp, core::DType::f32, cp, parts});
  };
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    for (const auto& [ranks, ep, parts] : {std::tuple{2, 1, 2}, {4, 1, 2}, {4, 2, 2}, {8, 2, 2}, {8, 4, 2}})
      add(strategy, ranks, ep, parts);
    add(strategy, 6, 1, 2, 3);
    add(strategy, 4, 1, 2, 1, 2);
    add(strategy, 8, 2, 2, 1, 2);
  }
  for (const auto strategy : {Strategy::zero1, Strategy::hsdp, Strategy::hfsdp})
    add(strategy, 8, 2, 2, 1, 1, 2);
  return all;
}

}  // namespace troupe::actors::experts
