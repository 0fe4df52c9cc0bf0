#include "apps/gpt/model/narrow_values.hpp"
#include "apps/gpt/rank/pipeline_trainer.hpp"
#include "core/convert.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"

// The part of PipelineTrainer about the parameters of all stages.

namespace troupe::apps::gpt {

using core::Result;

int PipelineTrainer::stage_of(std::size_t place) const {
  for (int stage = 0; stage < cut_.stages; ++stage) {
    const auto cut = cut_model(options_.model, options_.pipeline, cut_.stages, stage);
    for (const ModelPart part : cut->parts) {
      const auto [begin, end] = parameters_of(all_model_, all_table_, part);
      if (place >= begin && place < end) return stage;
    }
  }
  CHECK(false, "every parameter is in a stage");
}

Result<std::uint64_t> PipelineTrainer::parameter_hash() {
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

Result<void> PipelineTrainer::read_parameter(std::size_t place, core::ElementRange range,
                                             std::span<float> values) {
  const auto whole = TRY(take_parameter(place));
  const auto dtype = model_->dtype();
  core::convert_elements(dtype, whole.data() + static_cast<std::size_t>(range.start) * core::size_of(dtype),
                         core::DType::f32, std::as_writable_bytes(values).data(), values.size());
  return {};
}

Result<std::span<const std::byte>> PipelineTrainer::take_parameter(std::size_t place) {
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
Result<std::span<const std::byte>> PipelineTrainer::whole_parameter(std::size_t place) {
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

Result<std::span<const std::byte>> PipelineTrainer::values_on_device(std::size_t place) {
  TRY(before_use(place));
  return share_->whole_on_host(place, {TRY(parameter_memory(place)), model_->dtype()}, memory_);
}

Result<void> PipelineTrainer::hand_over_parameters() {
  const bool gives = stages_->members().front().value == 0 && !cut_.is_first();
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

Result<void> PipelineTrainer::hand_over(std::span<const std::byte> values) {
  if (is_on_host()) return stages_->wait(TRY(stages_->send(gpu::view_of(values), model_->dtype(), 0)));
  const auto there = TRY(memory_.allocate(values.size()));
  TRY(memory_.write(values, there.view()));
  TRY(stages_->wait(TRY(stages_->send(there.view(), model_->dtype(), 0))));
  return memory_.settle();  // before the memory is freed
}

}  // namespace troupe::apps::gpt
