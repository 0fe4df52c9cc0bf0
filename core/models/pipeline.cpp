#include "core/models/pipeline.hpp"

#include <cstdlib>
#include <string>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

std::string suggestion(std::int64_t layers, std::int64_t stages) {
  const auto shards = pipeline_shards(layers, stages);
  if (!shards || stages < 2) return "no split of them fits";
  auto text = fmt::format("num_layers_in_first_pipeline_stage={}", shards->front());
  if (stages > 2) text += fmt::format(" and num_layers_in_last_pipeline_stage={}", shards->back());
  return text + " would do";
}

/// "61 = 4 * 15 + 1"
std::string sum(std::int64_t layers, std::int64_t places) {
  if (places < 1) return fmt::format("{} places", places);
  return fmt::format("{} = {} * {} + {}", layers, places, layers / places, layers % places);
}

Result<std::vector<std::vector<LayerChunk>>> place_unevenly(const TransformerConfig& config) {
  const auto stages = config.pipeline_model_parallel_size;
  const auto first = config.num_layers_in_first_pipeline_stage;
  const auto last = config.num_layers_in_last_pipeline_stage;
  if (config.virtual_pipeline_model_parallel_size.value_or(1) > 1)
    return fail(Errc::invalid_argument, "stages of different numbers of layers take no virtual pipeline");
  const auto middle = stages - (first ? 1 : 0) - (last ? 1 : 0);
  const auto rest = config.num_layers - first.value_or(0) - last.value_or(0);
  if (middle < 0 || rest < 0 || (middle == 0 ? rest != 0 : rest % middle != 0))
    return fail(
        Errc::invalid_argument,
        "{} layers do not fit into {} stages with {} in the first, {} in the last: {} are left for {} "
        "between them",
        config.num_layers, stages, first.value_or(0), last.value_or(0), rest, middle);
  std::vector<std::vector<LayerChunk>> chunks;
  std::int64_t next = 0;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    std::int64_t count = middle == 0 ? 0 : rest / middle;
    if (stage == 0 && first) count = *first;
    if (stage == stages - 1 && last) count = *last;
    chunks.push_back({{next, count}});
    next += count;
  }
  return chunks;
}

}  // namespace

Result<std::vector<std::vector<LayerChunk>>> place_layers(const TransformerConfig& config) {
  const auto stages = config.pipeline_model_parallel_size;
  if (config.num_layers_in_first_pipeline_stage || config.num_layers_in_last_pipeline_stage)
    return place_unevenly(config);
  const auto virtuals = config.virtual_pipeline_model_parallel_size.value_or(1);
  const auto layers = config.num_layers;
  if (stages < 1 || virtuals < 1 || stages > layers || virtuals > layers || layers % (stages * virtuals) != 0)
    return fail(Errc::invalid_argument, "{} layers do not divide into {} stages of {} chunks ({}); {}",
                layers, stages, virtuals, sum(layers, stages * virtuals), suggestion(layers, stages));
  const auto count = layers / (stages * virtuals);
  std::vector<std::vector<LayerChunk>> chunks(static_cast<std::size_t>(stages));
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    for (std::int64_t chunk = 0; chunk < virtuals; ++chunk)
      chunks[static_cast<std::size_t>(stage)].push_back({chunk * (layers / virtuals) + stage * count, count});
  }
  return chunks;
}

Result<std::vector<std::int64_t>> pipeline_shards(std::int64_t layers, std::int64_t stages) {
  if (stages < 1 || layers < stages)
    return fail(Errc::invalid_argument, "{} layers cannot be in {} pipeline stages", layers, stages);
  if (stages == 1) return std::vector<std::int64_t>{layers};
  if (stages == 2) return std::vector<std::int64_t>{layers / 2, layers - layers / 2};
  std::vector<std::int64_t> best;
  for (std::int64_t middle = 1; middle * (stages - 2) < layers; ++middle) {
    const auto rest = layers - middle * (stages - 2);
    const auto first = rest / 2;
    const auto last = rest - first;
    if (first < 1 || first > middle || last > middle) continue;
    if (!best.empty() && std::llabs(best.front() - best[1]) <= std::llabs(first - middle)) continue;
    best.assign(static_cast<std::size_t>(stages), middle);
    best.front() = first;
    best.back() = last;
  }
  if (best.empty())
    return fail(Errc::invalid_argument,
                "{} layers have no split into {} stages with equal ones in the middle", layers, stages);
  return best;
}

MeshPlace place_of(Rank rank, const MeshSizes& sizes) {
  MeshPlace place;
  int rest = rank.value;
  place.tp = rest % sizes.tp;
  rest /= sizes.tp;
  place.cp = rest % sizes.cp;
  rest /= sizes.cp;
  place.dp = rest % sizes.dp;
  place.pp = rest / sizes.dp;
  return place;
}

Rank rank_of(const MeshPlace& place, const MeshSizes& sizes) {
  return Rank{((place.pp * sizes.dp + place.dp) * sizes.cp + place.cp) * sizes.tp + place.tp};
}

}  // namespace troupe::core
