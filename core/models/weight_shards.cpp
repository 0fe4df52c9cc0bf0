#include <array>
#include <tuple>

#include "core/errors.hpp"
#include "core/models/pipeline.hpp"
#include "core/models/weight_map.hpp"

namespace troupe::core {

namespace {

/// One of `count` equal parts.
struct Part {
  std::int64_t index = 0;
  std::int64_t count = 1;
};

/// The pieces of a part, and its shape.
struct Cut {
  Shape shape;
  std::vector<TensorPiece> pieces;
};

Cut cut(std::size_t input, const Shape& whole, WeightSplit split, Part part) {
  if (split == WeightSplit::copy || part.count == 1)
    return {whole, {{input, Box::whole(whole), Shape(whole.size(), 0)}}};
  const std::size_t axis = split == WeightSplit::columns ? 1 : 0;
  const std::int64_t halves = split == WeightSplit::gate_up ? 2 : 1;
  Cut result{whole, {}};
  const auto size = whole[axis] / part.count / halves;
  result.shape[axis] = size * halves;
  for (std::int64_t half = 0; half < halves; ++half) {
    auto box = Box::whole(whole);
    Shape to(whole.size(), 0);
    box.offset[axis] = half * (whole[axis] / halves) + part.index * size;
    box.extent[axis] = size;
    to[axis] = half * size;
    result.pieces.push_back({input, std::move(box), std::move(to)});
  }
  return result;
}

Result<void> check_divides(const PlannedTensor& tensor, WeightSplit split, std::int64_t parts) {
  if (split == WeightSplit::copy) return {};
  const auto size =
      tensor.shape[split == WeightSplit::columns ? 1 : 0] / (split == WeightSplit::gate_up ? 2 : 1);
  if (size % parts == 0) return {};
  return fail(Errc::invalid_argument, "tensor '{}': {} {} do not divide into {} tensor parallel parts",
              tensor.name, size, split == WeightSplit::columns ? "columns" : "rows", parts);
}

/// The place of a layer.
struct Home {
  std::int64_t stage = 0;
  std::int64_t chunk = 0;
  std::int64_t number = 0;  ///< of the layer in its chunk
};

std::vector<Home> homes_of(const std::vector<std::vector<LayerChunk>>& chunks, std::int64_t layers) {
  std::vector<Home> homes(static_cast<std::size_t>(layers));
  for (std::size_t stage = 0; stage < chunks.size(); ++stage) {
    for (std::size_t chunk = 0; chunk < chunks[stage].size(); ++chunk) {
      const auto& [first, count] = chunks[stage][chunk];
      for (std::int64_t i = 0; i < count; ++i)
        homes[static_cast<std::size_t>(first + i)] = {static_cast<std::int64_t>(stage),
                                                      static_cast<std::int64_t>(chunk), i};
    }
  }
  return homes;
}

}  // namespace

Result<WeightPlan> plan_shards(const WeightMap& map, const TransformerConfig& config) {
  const auto homes = homes_of(TRY(place_layers(config)), config.num_layers);
  const auto stages = config.pipeline_model_parallel_size;
  const auto chunks = config.virtual_pipeline_model_parallel_size.value_or(1);
  const auto experts = config.num_moe_experts.value_or(1);
  const auto ep = config.expert_model_parallel_size;
  if (experts % ep != 0)
    return fail(Errc::invalid_argument, "{} experts do not divide into {} expert parallel parts", experts,
                ep);
  WeightPlan plan;
  for (std::size_t i = 0; i < map.weights.size(); ++i) {
    const auto& weight = map.weights[i];
    const auto& whole = map.plan.outputs[i].tensor;
    plan.inputs.push_back(whole);
    const bool is_expert = weight.expert >= 0;
    const auto parts = is_expert ? *config.expert_tensor_parallel_size : config.tensor_model_parallel_size;
    TRY(check_divides(whole, weight.split, parts));
    Home home;
    if (weight.stage == WeightStage::last) home = {stages - 1, chunks - 1, 0};
    if (weight.stage == WeightStage::layer) home = homes[static_cast<std::size_t>(weight.layer)];
    const auto local = experts / ep;
    auto name = weight.name(home.number, is_expert ? weight.expert % local : 0);
    if (chunks > 1) name = fmt::format("model{}.{}", home.chunk, name);
    for (std::int64_t part = 0; part < parts; ++part) {
      auto made = cut(i, whole.shape, weight.split, {part, parts});
      auto file = is_expert ? fmt::format("pp{:03}_ep{:03}_etp{:02}.safetensors", home.stage,
                                          weight.expert / local, part)
                            : fmt::format("pp{:03}_tp{:02}.safetensors", home.stage, part);
      plan.outputs.push_back({{std::move(file), name, std::move(made.shape)}, std::move(made.pieces)});
    }
  }
  return plan;
}

}  // namespace troupe::core
