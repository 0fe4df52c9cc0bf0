#include "actors/simulation/tiny_trainer.hpp"

#include <fmt/format.h>

#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/session/trainer_group.hpp"
#include "actors/simulation/invariants.hpp"
#include "core/dtype.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/indices.hpp"
#include "core/random.hpp"

namespace troupe::actors {

TinyPlace TinyPlace::of(core::Rank rank, core::WorldSize world, const core::TrainingOptions& training) {
  return {rank.value / (world.value / training.pipeline_parallel), rank.value % training.expert_parallel};
}

std::vector<core::ParameterSpec> tiny_parameters(const TinyTrainerOptions& options, const TinyPlace& place) {
  std::vector<core::ParameterSpec> specs;
  const auto& training = options.session.training;
  const int ranks = training.expert_parallel, layers = options.layers / training.pipeline_parallel;
  const int first = place.stage * layers;
  specs.reserve(2 * static_cast<std::size_t>(layers));
  for (int layer = 0; layer < layers; ++layer) {
    specs.push_back({fmt::format("layer{}.weight", first + layer), {options.width}});
    specs.back().unit = core::UnitIndex{static_cast<std::uint32_t>(layer)};
    if (options.gather_dtype) {
      specs.back().dtype = core::DType::bf16;
      specs.back().gather_dtype = options.gather_dtype;
    }
    if (options.rows > 0) specs.back().shape = {options.rows, options.width / options.rows};
    // Where ranks share the biases each has one in each of the first units.
    const int owned = layer * ranks + place.expert;
    if (owned >= layers) continue;
    specs.push_back({fmt::format("layer{}.bias", first + owned), {options.width / 3 + 1}});
    specs.back().unit = core::UnitIndex{static_cast<std::uint32_t>(layer)};
    specs.back().weight_decay = false;
    specs.back().group = options.bias_group;
    specs.back().is_expert = ranks > 1;
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
    parameters_of_.resize(layers());
    for (const auto p : parameters()) parameters_of_[unit_of(p)].push_back(p);
    const auto& backward = order().backward;
    backward_ = backward.empty() ? std::vector(forward_.rbegin(), forward_.rend()) : layers_of(backward);
    if (witness_ != nullptr) witness_->joined(session_.rank(), session_.plan(), !options.learned.empty());
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
    TRY(hear_of_sources(session_.lanes().front()));
    TRY(backward(0));
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
      TRY(hear_of_sources(lane));
      place_.round += 1;
      double loss = 0;
      for (int m = 0; m < session_.training().microbatches; ++m) {
        TRY(session_.begin_microbatch(m));
        loss += TRY(forward());
        TRY(backward(m));
      }
      std::vector<PieceLoss> losses;
      for (int own = 0; own < session_.training().own_pieces(); ++own) {
        const double weight = weight_of({lane, first_piece(session_.rank()) + own});
        losses.push_back(options_.weighs ? PieceLoss{loss * weight, weight} : PieceLoss{loss});
      }
      TRY(session_.end_lane(losses));
    }
    if (witness_ != nullptr) witness_->finishes(session_.rank(), place_.step);
    auto outcome = TRY(session_.finish_step());
    if (witness_ != nullptr) witness_->step_over(session_.rank(), place_.step);
    return outcome;
  }

  core::Result<std::uint64_t> state_hash() {
    std::map<std::string, std::vector<float>> own;
    TRY(session_.begin_evaluation());
    for (const auto p : parameters()) {
      TRY(session_.before_use(p));
      own[session_.parameters()[p.value].name] = TRY(parameter(p));
    }
    TRY(session_.end_evaluation());
    std::uint64_t hash = 0;
    for (int layer = 0; layer < options_.layers; ++layer) {
      for (const bool is_bias : {false, true}) {
        auto& values = own[fmt::format("layer{}.{}", layer, is_bias ? "bias" : "weight")];
        values.resize(static_cast<std::size_t>(is_bias ? options_.width / 3 + 1 : options_.width));
        if (is_bias) TRY(share("ep", values, layer % static_cast<int>(layers()) % expert_ranks()));
        TRY(share("pp", values, layer / static_cast<int>(layers())));
        hash = core::hash64(std::as_bytes(std::span(values)), hash);
      }
    }
    return hash;
  }

 private:
  const core::DeclaredOrder& order() const {
    return options_.learned.empty() ? options_.session.order : options_.learned;
  }

  core::IndexRange<core::ParameterIndex> parameters() const {
    return core::indices<core::ParameterIndex>(session_.parameters().size());
  }

  // This asks for memory rather than a span: the emulated GPU's memory is also the host's, though a session
  // does not say so.
  core::Result<std::vector<float>> parameter(core::ParameterIndex p) {
    const auto memory = TRY(session_.parameter_memory(p));
    if (session_.parameters()[p.value].dtype == core::DType::f32) {
      const auto stored = memory.as<float>();
      return std::vector<float>(stored.begin(), stored.end());
    }
    std::vector<float> values;
    for (const std::uint16_t bits : memory.as<std::uint16_t>()) values.push_back(core::bf16_to_float(bits));
    return values;
  }

  /// Layers of this rank's stage.
  std::size_t layers() const {
    return static_cast<std::size_t>(options_.layers / session_.training().pipeline_parallel);
  }
  int expert_ranks() const { return session_.training().expert_parallel; }
  std::size_t unit_of(core::ParameterIndex p) const { return session_.parameters()[p.value].unit->value; }

  /// What one rank of a group has, on all of it.
  core::Result<void> share(const char* name, std::vector<float>& values, int owner) {
    const bool is_alone =
        std::string_view(name) == "ep" ? expert_ranks() == 1 : session_.training().pipeline_parallel == 1;
    if (is_alone) return {};
    auto& group = *TRY(session_.group(name));
    return group.wait(TRY(group.broadcast(gpu::view_of(std::span(values)), core::DType::f32, owner)));
  }

  /// A piece of a lane: what a gradient's data are.
  struct Source {
    core::Lane lane;
    int piece;
  };

  /// The first of a rank's pieces of each of its lanes.
  int first_piece(core::Rank rank) const {
    return rank.value % session_.training().context_parallel * session_.training().own_pieces();
  }

  void add_sources(std::vector<Source>& sources, core::Rank rank, core::Lane lane) const {
    for (int own = 0; own < session_.training().own_pieces(); ++own)
      sources.push_back({lane, first_piece(rank) + own});
  }

  /// What this rank computes of a lane, and what all ranks do for whose data it has gradients of biases.
  core::Result<void> hear_of_sources(core::Lane lane) {
    own_sources_.clear();
    add_sources(own_sources_, session_.rank(), lane);
    if (expert_ranks() == 1) return {};
    const std::vector<std::int64_t> own{lane.value};
    std::vector<std::int64_t> all(static_cast<std::size_t>(expert_ranks()));
    auto& group = *TRY(session_.group("ep"));
    TRY(group.wait(TRY(group.all_gather(gpu::view_of(std::span(own)), gpu::view_of(std::span(all)),
                                        core::DType::i64, TrainerGroup::Counts(all.size(), 1)))));
    sources_.clear();
    for (std::size_t i = 0; i < all.size(); ++i)
      add_sources(sources_, group.members()[i], {static_cast<std::int32_t>(all[i])});
    return {};
  }

  std::vector<std::uint32_t> layers_of(const std::vector<core::UnitIndex>& declared) const {
    std::vector<std::uint32_t> layers;
    for (const auto unit : declared) layers.push_back(unit.value);
    if (!layers.empty()) return layers;
    layers.resize(this->layers());
    std::iota(layers.begin(), layers.end(), 0U);
    return layers;
  }

  /// Layers do not read from each other, and their losses are ordered by their numbers.
  core::Result<double> forward() {
    std::vector<double> squares(session_.parameters().size());
    for (const auto layer : forward_) {
      for (const auto p : parameters_of_[layer]) {
        TRY(use(core::Phase::forward, p));
        for (float value : TRY(parameter(p))) squares[p.value] += static_cast<double>(value) * value;
      }
      compute_(options_.layer_time);
    }
    leave();
    return std::accumulate(squares.begin(), squares.end(), 0.0);
  }

  core::Result<void> backward(int microbatch) {
    TRY(session_.begin_backward());
    for (const auto layer : backward_) {
      const auto& own = parameters_of_[layer];
      for (auto p = own.rbegin(); p != own.rend(); ++p) TRY(add_gradients(*p, microbatch));
    }
    leave();
    return {};
  }

  core::Result<void> add_gradients(core::ParameterIndex p, int microbatch) {
    const auto& spec = session_.parameters()[p.value];
    TRY(use(core::Phase::backward, p));
    if (p == parameters_of_[unit_of(p)].back()) compute_(options_.layer_time);
    const auto values = TRY(parameter(p));
    float mean = 0;
    for (float value : values) mean += value / static_cast<float>(values.size());
    const auto& sources = spec.is_expert ? sources_ : own_sources_;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const auto& source = sources[i];
      const auto gradients = TRY(session_.gradient_memory(p, static_cast<int>(i))).as<float>();
      core::CounterRandom noise(
          options_.seed + static_cast<std::uint64_t>(microbatch + kPieces * source.piece), spec.name,
          session_.next_step(), source.lane);
      const auto weight = static_cast<float>(weight_of(source));
      for (std::size_t e = 0; e < values.size(); ++e)
        gradients[e] += (0.3F * values[e] + 0.1F * mean + noise.uniform(e) - 0.5F) * weight;
    }
    return session_.gradient_ready(p);
  }

  /// 1 unless lanes have weights of their own.
  double weight_of(const Source& source) const {
    if (!options_.weighs) return 1;
    const core::CounterRandom random(options_.seed + static_cast<std::uint64_t>(source.piece), "weights",
                                     session_.next_step(), source.lane);
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
  std::vector<std::uint32_t> forward_, backward_;                 ///< layers in the order of their use
  std::vector<std::vector<core::ParameterIndex>> parameters_of_;  ///< each layer: its weight, and a bias
  std::vector<Source> own_sources_, sources_;  ///< of all parameters but biases that ranks share; of these
  TrainerPlace place_;
  bool is_using_ = false;
};

}  // namespace

core::Result<TinyTrainerResult> train_tiny(RankWorld& world, const TinyTrainerOptions& options,
                                           const std::function<void(std::chrono::nanoseconds)>& compute) {
  const auto place = TinyPlace::of(world.rank(), world.world_size(), options.session.training);
  auto session = TRY(Session::join(world, options.session, tiny_parameters(options, place)));
  TinyTrainer trainer(*session, options, compute);
  TinyTrainerResult result;
  if (options.recovers) result.restored = TRY(session->recover());
  if (!result.restored && options.restore) result.restored = TRY(session->restore());
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
