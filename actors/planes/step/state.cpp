#include "actors/planes/step/state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/errors.hpp"
#include "core/indices.hpp"

namespace troupe::actors {

bool is_optimizer_state(StateKind kind) {
  return kind == StateKind::first_state || kind == StateKind::second_state;
}

std::string state_key(StateKind kind, const TrainingBuffer& buffer, const std::string& parameter) {
  switch (kind) {
    case StateKind::master:
      return "optimizer.state.fp32_param." + parameter;
    case StateKind::first_state:
    case StateKind::second_state:
      return fmt::format("optimizer.state.{}.{}", buffer.states[kind == StateKind::first_state ? 0 : 1],
                         parameter);
    case StateKind::parameter:
    case StateKind::trainer:
      break;
  }
  return parameter;
}

std::vector<StateKind> state_kinds(const TrainingBuffer& buffer) {
  std::vector<StateKind> kinds{StateKind::parameter};
  if (!buffer.trainable) return kinds;
  if (buffer.dtype != core::DType::f32) kinds.push_back(StateKind::master);
  CHECK(buffer.states.size() <= 2, "there is a StateKind for each state of an optimizer");
  if (!buffer.states.empty()) kinds.push_back(StateKind::first_state);
  if (buffer.states.size() > 1) kinds.push_back(StateKind::second_state);
  return kinds;
}

std::vector<core::BucketIndex> RankState::buckets() const {
  std::vector<core::BucketIndex> found;
  for (const auto& piece : pieces) found.push_back(piece.bucket);
  return found;
}

namespace {

/// All keys of a parameter and its optimizer's states.
core::KeySet keys_of(const TrainingPlan& plan, core::ParameterIndex parameter) {
  core::KeySet keys;
  const auto parts = plan.specs[parameter].stored_parts();
  const auto& buffer = plan.buffers[plan.parameters[parameter].buffer];
  for (auto kind : state_kinds(buffer)) {
    for (const auto& part : *parts) keys.insert(state_key(kind, buffer, part.key));
  }
  return keys;
}

/// Adds the boxes of `parts`, which follow each other in one stored tensor, then in the next ones.
class StateBuilder {
 public:
  void add(const std::vector<core::FlatPart>& parts, StatePiece place, std::uint32_t home) {
    const auto first = place.first;
    for (const auto& part : parts) {
      const auto& tensor = part.tensor;
      place.first = first + part.start;
      state_.structure.pieces.push_back({index_of(tensor, home), tensor.box()});
      state_.pieces.push_back(place);
    }
  }
  RankState take() { return std::move(state_); }

 private:
  std::uint32_t index_of(const core::ShardedTensor& tensor, std::uint32_t home) {
    auto& tensors = state_.structure.tensors;
    const auto [found, is_new] = indices_.try_emplace(tensor.key, static_cast<std::uint32_t>(tensors.size()));
    if (is_new) tensors.push_back({tensor.key, tensor.dtype, tensor.global_shape, home});
    return found->second;
  }

  RankState state_;
  std::unordered_map<std::string, std::uint32_t> indices_;  ///< of keys
};

/// What is stored of elements [range.start, range.end) of the tensor that `parts` form.
std::vector<core::FlatPart> flat_parts(std::span<const core::ShardedTensor> parts, core::ElementRange range,
                                       const std::string& prefix, core::DType dtype) {
  auto flat = core::from_flat_range(parts, range, prefix, dtype, {0});
  CHECK(flat.has_value(), "what can be stored was checked before");
  return *std::move(flat);
}

}  // namespace

std::uint32_t home_of(const core::ParameterSpec& spec, const TrainingPlan& plan, core::Rank rank) {
  const int ranks = plan.options.expert_ranks() * plan.options.expert_columns();
  const bool is_spread = spec.is_expert && ranks > 1;
  if (spec.is_copy || (plan.options.pipeline_parallel == 1 && !is_spread)) return 0;
  // Ranks that have parts of the same experts are one home.
  const int parts = plan.options.expert_parts();
  const auto part = is_spread ? plan.part_of_model(rank) / parts * parts : plan.pipeline_stage(rank) * ranks;
  return static_cast<std::uint32_t>(part) + 1;
}

RankState state_of(const TrainingPlan& plan, core::Rank rank, std::span<const TrainerTensor> tensors) {
  StateBuilder builder;
  for (std::uint32_t t = 0; t < tensors.size(); ++t) {
    const auto parts = core::stacked_parts(tensors[t].tensor, tensors[t].stacking);
    CHECK(parts.has_value(), "what can be stored was checked before");
    std::vector<core::FlatPart> flat;
    std::int64_t start = 0;
    for (const auto& part : *parts) {
      flat.push_back({part, start});
      start += core::elements_of(part.local_shape);
    }
    builder.add(flat, {StateKind::trainer, plan.buckets.end_index(), t, 0},
                core::SaveStructure::Tensor::kOfTrainers);
  }
  for (std::size_t b = plan.buckets.size(); b-- > 0;) {
    const auto bucket = core::index_at<core::BucketIndex>(b);
    const auto& place = plan.buckets[bucket];
    const auto held = plan.held(core::TensorRole::optimizer, bucket, rank);
    for (auto parameter : place.parameters) {
      const auto& whole = plan.parameters[parameter].range;
      const core::ElementRange part{std::max(whole.start, held.start), std::min(whole.end, held.end)};
      if (part.size() <= 0) continue;
      const auto& spec = plan.specs[parameter];
      const auto parts = spec.stored_parts();
      const core::ElementRange range{part.start - whole.start, part.end - whole.start};
      const auto& buffer = plan.buffers[place.buffer];
      for (auto kind : state_kinds(buffer)) {
        const auto dtype = kind == StateKind::parameter ? spec.dtype : core::DType::f32;
        const auto prefix = state_key(kind, buffer, "");
        builder.add(flat_parts(*parts, range, prefix, dtype),
                    {kind, bucket, parameter.value, part.start - held.start}, home_of(spec, plan, rank));
      }
    }
  }
  return builder.take();
}

core::Result<void> check_keys(const TrainingPlan& plan, std::span<const TrainerTensor> tensors) {
  core::KeySet taken;
  for (const auto p : plan.specs.indices()) {
    for (const auto& key : keys_of(plan, p)) {
      TRY(core::check_key(key));
      if (!taken.insert(key).second) {
        return core::fail(core::Errc::invalid_argument,
                          "parameter {} would be stored as '{}', as another one is; give it another name",
                          plan.specs[p].name, key);
      }
    }
  }
  for (const auto& own : tensors) {
    const auto parts = TRY(core::stacked_parts(own.tensor, own.stacking));
    if (static_cast<std::int64_t>(own.memory.bytes) != own.tensor.bytes()) {
      return core::fail(core::Errc::invalid_argument, "{} takes {} bytes, its memory has {}",
                        core::to_string(own.tensor), own.tensor.bytes(), own.memory.bytes);
    }
    core::KeySet keys;
    for (const auto& part : parts) keys.insert(part.key);
    for (const auto& key : keys) {
      TRY(core::check_key(key));
      if (!taken.insert(key).second) {
        return core::fail(core::Errc::invalid_argument,
                          "two tensors would be stored as '{}'; give the trainer's own another key", key);
      }
    }
  }
  return {};
}

core::KeySet state_keys(const TrainingPlan& plan) {
  core::KeySet keys;
  for (const auto p : plan.specs.indices()) keys.merge(keys_of(plan, p));
  return keys;
}

}  // namespace troupe::actors
