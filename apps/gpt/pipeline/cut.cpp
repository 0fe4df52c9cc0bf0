#include "apps/gpt/pipeline/cut.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

core::Result<StageCut> cut_model(const ModelConfig& config, PipelineOptions options, int stages, int stage) {
  const auto places = static_cast<std::size_t>(stages) * static_cast<std::size_t>(options.chunks);
  if (places > config.layers) {
    return core::fail(
        core::Errc::invalid_argument,
        "expected {} layers or more, one for each chunk of {} stages, but the model has {}; use "
        "fewer stages or chunks, or a deeper model",
        places, stages, config.layers);
  }
  const std::size_t each = config.layers / places, longer = config.layers % places;
  const auto first_of = [&](std::size_t place) { return place * each + std::min(place, longer); };
  StageCut cut{stages, stage, {}};
  for (int chunk = 0; chunk < options.chunks; ++chunk) {
    const auto place = static_cast<std::size_t>(chunk * stages + stage);
    cut.parts.push_back({first_of(place), first_of(place + 1)});
  }
  return cut;
}

StageCut uncut(const ModelConfig& config) {
  return {1, 0, {whole_model(config)}};
}

TableRange parameters_of(const ModelConfig& config, const ParameterTable& table, ModelPart part) {
  const auto first_of = [&](std::size_t layer) { return table.blocks[layer].attention_norm.weight; };
  return {.begin = part.has_begin() ? 0 : first_of(part.first),
          .end = part.has_end(config) ? table.specs.size() : first_of(part.end)};
}

}  // namespace troupe::apps::gpt
