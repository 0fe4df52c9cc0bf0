#include "actors/simulation/tiny_trainer.hpp"

#include <fmt/format.h>

#include <array>
#include <numeric>
#include <utility>

#include "actors/simulation/invariants.hpp"
#include "core/dtype.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/indices.hpp"
#include "core/random.hpp"

namespace troupe::actors {

std::vector<core::ParameterSpec> tiny_parameters(const TinyTrainerOptions& options) {
  std::vector<core::ParameterSpec> specs;
  for (int layer = 0; layer < options.layers; ++layer) {
    specs.push_back({fmt::format("layer{}.weight", layer), {options.width}});
    specs.back().unit = core::UnitIndex{static_cast<std::uint32_t>(layer)};
    if (options.gather_dtype) {
      specs.back().dtype = core::DType::bf16;
      specs.back().gather_dtype = options.gather_dtype;
    }
    if (options.rows > 0) specs.back().shape = {options.rows, options.width / options.rows};
    specs.push_back({fmt::format("layer{}.bias", layer), {options.width / 3 + 1}});
    specs.back().unit = core::UnitIndex{static_cast<std::uint32_t>(layer)};
    specs.back().weight_decay = false;
    specs.back().group = options.bias_group;
  }
  return specs;
}

namespace {

/// Distance between the data of two pieces of a lane; more than a lane has microbatches.
constexpr int kPieces = 1 << 16;

class TinyTrainer {
 public:
  TinyTrainer(Session& session, const TinyTrainerOptions& options,
              const std::function<void(std::chrono::nanoseconds)>& compute)
      : session_(session),
        options_(options),
        compute_(compute),
        witness_(session.units() > 0 ? options.witness : nullptr),
        forward_(layers_of(order().forward)) {
    const auto& backward = order().backward;
    backward_ = backward.empty() ? std::vector(forward_.rbegin(), forward_.rend()) : layers_of(backward);
    if (witness_ != nullptr) witness_->joined(session_.rank(), session_.plan());
  }

  core::Result<void> initialise() {
    for (const auto p : parameters()) {
      core::CounterRandom random(options_.seed, session_.parameters()[p.value].name);
      TRY(session_.write_parameter(p, [&](std::int64_t first, std::span<float> values) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = random.uniform(static_cast<std::size_t>(first) + i) - 0.5F;
        }
      }));
    }
    return {};
  }

  core::Result<void> learn_order() {
    const auto witness = std::exchange(witness_, nullptr);
    TRY(session_.begin_learning());
    TRY(forward());
    TRY(backward(session_.lanes().front(), 0));
    const auto learned = TRY(session_.end_learning());
    witness_ = witness;
    if (witness_ != nullptr) witness_->learned(session_.rank());
    if (session_.units() == 0 ||
        (layers_of(learned.forward) == forward_ && layers_of(learned.backward) == backward_))
      return {};
    return core::fail(core::Errc::internal, "the session has learned another order than layers are used in");
  }

  core::Result<StepOutcome> step() {
    TRY(session_.begin_step(0.01));
    place_ = {.step = session_.next_step(), .round = -1};
    for (core::Lane lane : session_.lanes()) {
      TRY(session_.begin_lane(lane));
      place_.round += 1;
      double loss = 0;
      for (int m = 0; m < session_.training().microbatches; ++m) {
        TRY(session_.begin_microbatch(m));
        loss += TRY(forward());
        TRY(backward(lane, m));
      }
      const double weight = weight_of(lane);
      TRY(options_.weighs ? session_.end_lane(loss * weight, weight) : session_.end_lane(loss));
    }
    if (witness_ != nullptr) witness_->finishes(session_.rank(), place_.step);
    auto outcome = TRY(session_.finish_step());
    if (witness_ != nullptr) witness_->step_over(session_.rank(), place_.step);
    return outcome;
  }

  core::Result<std::uint64_t> state_hash() {
    TRY(session_.begin_evaluation());
    std::uint64_t hash = 0;
    for (const auto p : parameters()) {
      TRY(session_.before_use(p));
      const auto values = TRY(parameter(p));
      hash = core::hash64(std::as_bytes(std::span(values)), hash);
    }
    TRY(session_.end_evaluation());
    return hash;
  }

 private:
  const core::DeclaredOrder& order() const {
    return options_.learned.empty() ? options_.session.order : options_.learned;
  }

  core::IndexRange<core::ParameterIndex> parameters() const {
    return core::indices<core::ParameterIndex>(session_.parameters().size());
  }

  // As memory rather than a span: the emulated GPU's memory is also the host's, though a session does not say
  // so.
  core::Result<std::vector<float>> parameter(core::ParameterIndex p) {
    const auto memory = TRY(session_.parameter_memory(p));
    std::vector<float> values;
    if (session_.parameters()[p.value].dtype == core::DType::f32) {
      for (const float value : memory.as<float>()) values.push_back(value);
    } else {
      for (const std::uint16_t bits : memory.as<std::uint16_t>()) values.push_back(core::bf16_to_float(bits));
    }
    return values;
  }
  core::Result<std::span<float>> gradient(core::ParameterIndex p) {
    return TRY(session_.gradient_memory(p)).as<float>();
  }

  /// A layer's weight and its bias.
  static std::array<core::ParameterIndex, 2> parameters_of(std::uint32_t layer) {
    return {core::ParameterIndex{2 * layer}, core::ParameterIndex{2 * layer + 1}};
  }

  std::vector<std::uint32_t> layers_of(const std::vector<core::UnitIndex>& declared) const {
    std::vector<std::uint32_t> layers;
    for (const auto unit : declared) layers.push_back(unit.value);
    if (!layers.empty()) return layers;
    layers.resize(static_cast<std::size_t>(options_.layers));
    std::iota(layers.begin(), layers.end(), 0U);
    return layers;
  }

  /// Layers do not read from each other, and their losses are ordered by their numbers.
  core::Result<double> forward() {
    std::vector<double> squares(session_.parameters().size());
    for (const auto layer : forward_) {
      for (const auto p : parameters_of(layer)) {
        TRY(use(core::Phase::forward, p));
        for (float value : TRY(parameter(p))) squares[p.value] += static_cast<double>(value) * value;
      }
      compute_(options_.layer_time);
    }
    leave();
    return std::accumulate(squares.begin(), squares.end(), 0.0);
  }

  core::Result<void> backward(core::Lane lane, int microbatch) {
    TRY(session_.begin_backward());
    for (const auto layer : backward_) {
      const auto [weight, bias] = parameters_of(layer);
      for (const auto p : {bias, weight}) TRY(add_gradient(p, lane, microbatch));
    }
    leave();
    return {};
  }

  core::Result<void> add_gradient(core::ParameterIndex p, core::Lane lane, int microbatch) {
    TRY(use(core::Phase::backward, p));
    if (p.value % 2 == 1) compute_(options_.layer_time);
    const auto values = TRY(parameter(p));
    auto gradients = TRY(gradient(p));
    core::CounterRandom noise(options_.seed + static_cast<std::uint64_t>(microbatch + kPieces * piece()),
                              session_.parameters()[p.value].name, session_.next_step(), lane);
    const auto weight = static_cast<float>(weight_of(lane));
    float mean = 0;
    for (float value : values) mean += value / static_cast<float>(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      gradients[i] += (0.3F * values[i] + 0.1F * mean + noise.uniform(i) - 0.5F) * weight;
    }
    return session_.gradient_ready(p);
  }

  /// The rank's, of each of its lanes.
  int piece() const { return session_.rank().value % session_.training().context_parallel; }

  /// The weight of this rank's piece: 1 unless lanes have weights of their own.
  double weight_of(core::Lane lane) const {
    if (!options_.weighs) return 1;
    const core::CounterRandom random(options_.seed + static_cast<std::uint64_t>(piece()), "weights",
                                     session_.next_step(), lane);
    return static_cast<double>(random.bits(0) % 60 / 4);
  }

  /// A unit is in use until the trainer turns to another one.
  core::Result<void> use(core::Phase phase, core::ParameterIndex p) {
    const auto unit = static_cast<int>(session_.parameters()[p.value].unit->value);
    if (is_using_ && place_.unit == unit) return session_.before_use(p);
    leave();
    TRY(session_.before_use(p));
    place_.phase = phase;
    place_.unit = unit;
    is_using_ = true;
    if (witness_ != nullptr) witness_->uses(session_.rank(), place_);
    return {};
  }

  void leave() {
    if (is_using_ && witness_ != nullptr) witness_->leaves(session_.rank(), place_);
    is_using_ = false;
  }

  Session& session_;
  const TinyTrainerOptions& options_;
  const std::function<void(std::chrono::nanoseconds)>& compute_;
  CreditInvariants* witness_;
  std::vector<std::uint32_t> forward_, backward_;  ///< layers in the order of their use
  TrainerPlace place_;
  bool is_using_ = false;
};

}  // namespace

core::Result<TinyTrainerResult> train_tiny(RankWorld& world, const TinyTrainerOptions& options,
                                           const std::function<void(std::chrono::nanoseconds)>& compute) {
  auto session = TRY(Session::join(world, options.session, tiny_parameters(options)));
  TinyTrainer trainer(*session, options, compute);
  TinyTrainerResult result;
  if (options.restore) result.restored = TRY(session->restore());
  if (!result.restored) TRY(trainer.initialise());
  if (!options.learned.empty()) TRY(trainer.learn_order());
  auto take_saves = [&] {
    for (auto& save : session->take_saves()) result.saves.push_back(std::move(save));
    for (auto& save : session->take_local_saves()) result.local_saves.push_back(std::move(save));
  };
  while (session->next_step().value < options.steps) {
    result.outcomes.push_back(TRY(trainer.step()));
    const auto done = session->next_step().value;
    if (options.save_every > 0 && done % options.save_every == 0) {
      TRY(session->save(core::Value::Map{{"done", done}}));
    }
    if (options.local_every > 0 && done % options.local_every == 0) {
      TRY(session->save_local(core::Value::Map{{"done", done}}));
    }
    take_saves();
  }
  result.state_hash = TRY(trainer.state_hash());
  TRY(session->wait_saves());
  TRY(session->wait_local_saves());
  take_saves();
  TRY(session->leave());
  result.trace = session->take_trace();
  return result;
}

core::Result<TinyTrainerResult> simulate_tiny_rank(SimulatedRank& rank, TinyTrainerOptions options) {
  options.witness = &rank.monitor().credits();
  return train_tiny(rank, options, [&rank](std::chrono::nanoseconds time) { rank.compute(time); });
}

}  // namespace troupe::actors
