#include "core/models/rank_tensors.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

Result<void> check_axes(const ModelConfig& model, const ModelAxes& axes) {
  const auto& config = model.transformer;
  const auto tp = axes.tensor_parallel, ep = axes.expert_parallel;
  if (axes.sequence_parallel && tp == 1) {
    return fail(Errc::invalid_argument,
                "sequence parallelism is between tensor-parallel ranks, and there is one; use two or more");
  }
  const auto groups = config.num_query_groups.value_or(config.num_attention_heads);
  for (const auto& [name, heads] :
       {std::pair("heads", config.num_attention_heads), {"heads with keys of their own", groups}}) {
    if (heads % tp == 0) continue;
    return fail(Errc::invalid_argument, "{} tensor-parallel ranks do not divide {} {}", tp, heads, name);
  }
  if (ep > 1 && config.num_moe_experts.value_or(0) == 0)
    return fail(Errc::invalid_argument, "{} expert-parallel ranks, and the model has no experts", ep);
  if (ep > 1 && config.num_moe_experts.value_or(0) % ep != 0) {
    return fail(Errc::invalid_argument, "{} expert-parallel ranks do not divide {} experts", ep,
                config.num_moe_experts.value_or(0));
  }
  const auto etp = axes.expert_tensor_parallel;
  if (etp > 0 && config.num_moe_experts.value_or(0) == 0)
    return fail(Errc::invalid_argument, "experts are cut over {} ranks, and the model has no experts", etp);
  if (etp % tp != 0) {
    return fail(
        Errc::invalid_argument,
        "each expert is cut over {} ranks and each layer over {} tensor-parallel ones; cut experts over a "
        "multiple of these",
        etp, tp);
  }
  if (axes.stages * axes.chunks > config.num_layers) {
    return fail(Errc::invalid_argument, "{} stages of {} chunks need as many layers, and the model has {}",
                axes.stages, axes.chunks, config.num_layers);
  }
  return {};
}

/// Whether a chunk has a tensor of its layers, or of what comes before and after all layers.
bool is_in(const UnitTensor& tensor, const LayerChunk& chunk, std::int64_t layers) {
  const auto end = chunk.first + chunk.count;
  switch (tensor.stage) {
    case WeightStage::first:
      return chunk.first == 0;
    case WeightStage::last:
      return end == layers;
    case WeightStage::layer:
      return chunk.first <= tensor.layer && tensor.layer < end;
  }
  CHECK(false, "every place is handled");
}

/// Empty where another expert-parallel rank has it.
Result<std::optional<RankTensor>> part_of(const UnitTensor& whole, const ModelConfig& model,
                                          const ModelAxes& axes) {
  RankTensor part{whole, whole.shape};
  if (axes.expert_parallel > 1) {
    const auto kept = model.transformer.num_moe_experts.value_or(0) / axes.expert_parallel;
    if (whole.expert >= kept) return std::optional<RankTensor>{};
    if (whole.has_all_experts) part.shape[0] /= axes.expert_parallel;
  }
  const bool is_expert = whole.expert >= 0 || whole.has_all_experts;
  const auto tp = axes.tensor_parallel;
  const auto cuts = is_expert ? tp * axes.expert_parts() : tp;
  if (!whole.split || cuts == 1) return std::optional(std::move(part));
  auto& extent = part.shape[*whole.split];
  if (extent % cuts != 0) {
    return fail(Errc::invalid_argument, "{} {} ranks do not divide the {} of {}", cuts,
                cuts == tp ? "tensor-parallel" : "expert-tensor-parallel", extent, whole.name);
  }
  extent /= cuts;
  return std::optional(std::move(part));
}

}  // namespace

LayerChunk layers_of_place(std::int64_t layers, std::int64_t places, std::int64_t place) {
  const auto each = layers / places, longer = layers % places;
  return {place * each + std::min(place, longer), each + (place < longer ? 1 : 0)};
}

Result<StageTensors> stage_tensors(const ModelConfig& model, const std::vector<UnitTensor>& tensors,
                                   const ModelAxes& axes, std::int64_t stage) {
  TRY(check_axes(model, axes));
  const auto layers = model.transformer.num_layers;
  StageTensors found;
  std::optional<std::int64_t> last;  // unit of the whole model
  int units = 0;
  for (std::int64_t chunk = 0; chunk < axes.chunks; ++chunk) {
    found.layers.push_back(layers_of_place(layers, axes.stages * axes.chunks, chunk * axes.stages + stage));
    const int first = units;
    last.reset();
    for (const auto& tensor : tensors) {
      if (!is_in(tensor, found.layers.back(), layers)) continue;
      auto part = TRY(part_of(tensor, model, axes));
      if (!part) continue;
      if (axes.stages > 1) {
        if (!tensor.unit || tensor.unit != last) ++units;
        last = tensor.unit;
        part->whole.unit = units - 1;
      } else if (tensor.unit) {
        units = std::max(units, static_cast<int>(*tensor.unit) + 1);
      }
      found.tensors.push_back(*std::move(part));
    }
    found.units.emplace_back(first, units);
  }
  return found;
}

}  // namespace troupe::core
