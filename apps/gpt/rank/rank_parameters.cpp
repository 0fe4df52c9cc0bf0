#include <set>
#include <utility>

#include "apps/gpt/model/narrow_values.hpp"
#include "apps/gpt/model/optimizer.hpp"
#include "apps/gpt/rank/rank_model.hpp"
#include "core/convert.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/layout/buffers.hpp"

// The part of RankModel about the parameters of all stages.

namespace troupe::apps::gpt {

using core::Result;

std::vector<core::ParameterSpec> session_parameters(const ParameterTable& table, core::DType dtype,
                                                    const core::TrainingOptions& training,
                                                    std::optional<core::DType> gather_dtype) {
  std::set<std::size_t> routing;
  for (const auto& block : table.blocks) {
    if (!block.experts) continue;
    routing.insert(block.experts->router);
    if (block.experts->shared_gate) routing.insert(*block.experts->shared_gate);
  }
  std::vector<core::ParameterSpec> specs;
  for (const auto& spec : table.specs) {
    const std::size_t index = specs.size();
    const bool whole =
        core::is_whole_parameter({.dimensions = spec.shape.size(),
                                  .embedding_or_output = index == table.embedding || index == table.head});
    core::ParameterSpec parameter;
    parameter.name = spec.name;
    for (std::size_t extent : spec.shape) parameter.shape.push_back(static_cast<std::int64_t>(extent));
    parameter.dtype = dtype;
    parameter.weight_decay = spec.weight_decay;
    if (spec.unit) parameter.unit = core::UnitIndex{static_cast<std::uint32_t>(*spec.unit)};
    parameter.is_expert = spec.is_expert;
    if (whole && !routing.contains(index)) parameter.gather_dtype = gather_dtype;
    if (!training.groups.empty()) parameter.group = whole ? kMatrices : kOthers;
    specs.push_back(std::move(parameter));
  }
  return specs;
}

std::vector<core::ParameterSpec> session_parameters(const SharedTable& table, const TrainerOptions& options) {
  auto specs = session_parameters(table.part(), options.arithmetic.dtype, options.session.training,
                                  options.gather_dtype);
  table.declare(specs);
  return specs;
}

int RankModel::stage_of(std::size_t place) const {
  for (int stage = 0; stage < cut_.stages; ++stage) {
    const auto cut = cut_model(options_.model, options_.pipeline, cut_.stages, stage);
    for (const ModelPart part : cut->parts) {
      const auto [begin, end] = parameters_of(all_model_, all_table_, part);
      if (place >= begin && place < end) return stage;
    }
  }
  CHECK(false, "every parameter is in a stage");
}

Result<std::uint64_t> RankModel::parameter_hash() {
  std::uint64_t hash = 0;
  const std::size_t count = all_table_.specs.size();
  for (std::size_t place = 0; place < count; ++place) {
    const int stage = stage_of(place);
    if (stage == cut_.stage) {
      hash = core::hash64(TRY(whole_parameter(place)), hash);
    }
    if (place + 1 < count && stage_of(place + 1) == stage) continue;
    TRY(broadcast(std::as_writable_bytes(std::span(&hash, 1)), stage));
  }
  return hash;
}

Result<void> RankModel::read_parameter(std::size_t place, core::ElementRange range, std::span<float> values) {
  const auto whole = TRY(take_parameter(place));
  const auto dtype = model_->dtype();
  core::convert_elements(dtype, whole.data() + static_cast<std::size_t>(range.start) * core::size_of(dtype),
                         core::DType::f32, std::as_writable_bytes(values).data(), values.size());
  return {};
}

Result<std::span<const std::byte>> RankModel::take_parameter(std::size_t place) {
  if (taken_ == place) return whole_;
  if (all_parameters_.index(place)) {
    whole_ = TRY(whole_parameter(place));
  } else {
    const auto dtype = model_->dtype();
    read_.resize(all_table_.specs[place].elements() * core::size_of(dtype));
    const auto buffer = TRY(memory_.allocate(read_.size()));
    TRY(stages_->wait(TRY(stages_->receive(buffer.view(), dtype, stage_of(place)))));
    TRY(memory_.read(buffer.view(), read_));
    whole_ = read_;
  }
  taken_ = place;
  return whole_;
}

/// For a parameter of this stage.
Result<std::span<const std::byte>> RankModel::whole_parameter(std::size_t place) {
  taken_.reset();
  if (!is_on_host() && !peers_) return values_on_device(place);
  const auto dtype = model_->dtype();
  const auto read = [&](std::size_t own) -> Result<std::span<const float>> {
    if (!is_on_host()) {
      wide_ = floats_of(dtype, TRY(values_on_device(own)));
      return std::span<const float>(wide_);
    }
    TRY(before_use(own));
    return share_->whole(own, TRY(parameter_memory(own)).as<float>());
  };
  const auto values = TRY(peers_ ? peers_->whole(place, read) : read(place));
  if (is_on_host()) return std::as_bytes(values);
  read_ = elements_of(dtype, values);
  return std::span<const std::byte>(read_);
}

Result<std::span<const std::byte>> RankModel::values_on_device(std::size_t place) {
  TRY(before_use(place));
  return share_->whole_on_host(place, {TRY(parameter_memory(place)), model_->dtype()}, memory_);
}

Result<void> RankModel::hand_over_parameters() {
  const bool gives = is_cut() && stages_->members().front().value == 0 && !cut_.is_first();
  for (const std::size_t place : all_parameters_.places()) {
    if (is_on_host() || peers_ || share_->is_shared()) {
      const auto values = TRY(whole_parameter(place));
      if (gives) TRY(hand_over(values));
      continue;
    }
    TRY(before_use(place));
    if (gives) TRY(stages_->wait(TRY(stages_->send(TRY(parameter_memory(place)), model_->dtype(), 0))));
  }
  return {};
}

Result<void> RankModel::hand_over(std::span<const std::byte> values) {
  if (is_on_host()) return stages_->wait(TRY(stages_->send(gpu::view_of(values), model_->dtype(), 0)));
  const auto there = TRY(memory_.allocate(values.size()));
  TRY(memory_.write(values, there.view()));
  TRY(stages_->wait(TRY(stages_->send(there.view(), model_->dtype(), 0))));
  return memory_.settle();  // before the memory is freed
}

}  // namespace troupe::apps::gpt
