#include "apps/gpt/cuda/cuda_places.hpp"

#include <algorithm>
#include <utility>

#include "apps/gpt/cuda/cuda_weight_work.hpp"
#include "apps/gpt/model/rows.hpp"

namespace troupe::apps::gpt {

template <class E>
CudaPlaces<E> place_stage(ByteCarver& carver, const ModelConfig& config, const StageCut& cut,
                          const StageShape& shape) {
  const std::size_t N = shape.batch.rows(), C = config.width;
  const auto [members, member, sequence] = shape.share;
  const std::size_t rows = sequence ? most_own_rows(N, members) : N;
  const ActivationExtents extents{.stream_rows = rows};
  CudaPlaces<E> places{carve_shared<E>(carver, config, shape.batch), {}, nullptr, {}, {}, nullptr};
  if (members > 1) {
    places.tensor = carve_cuda_tensor<E>(carver, members, sequence, N, config);
    // As on the host: unused between passes, and within a pass used as in a whole model.
    places.tensor->partial = reinterpret_cast<std::byte*>(places.shared.gradients.normed);
    places.all_logits = carver.take<float>(members, config.vocabulary);
  }
  if (shape.context_parallel > 1)
    places.sequences = carve_cuda_context<E>(carver, shape.context_parallel, N, config);
  std::size_t largest = 0, kept = 0;
  bool has_text = false;
  for (const ModelPart part : cut.parts) {
    ByteCarver plan(nullptr);
    carve_part<E>(plan, config, shape.batch, shape.keep, part, extents);
    largest = std::max(largest, plan.bytes());
    if (shape.is_split) kept = std::max(kept, kept_bytes<E>(config, N, rows, part, sequence));
    has_text = has_text || reads_text(config, part);
  }
  if (shape.slots.input > shape.slots.activations)
    places.input = carver.take<E>(stream_elements<E>(config, rows));
  for (int index = 0; index < shape.slots.activations; ++index) {
    CudaSlot<E> slot;
    auto* memory = carver.take<std::byte>(largest);
    for (const ModelPart part : cut.parts) {
      ByteCarver own(memory);
      slot.chunks.push_back(carve_part<E>(own, config, shape.batch, shape.keep, part, extents));
      for (auto& block : slot.chunks.back().blocks) {
        const auto& scratch = places.shared.gradients.experts;
        block.experts.gathered = scratch.gathered;
        block.experts.returned = scratch.rows;
        block.experts.moved = scratch.moved;
      }
    }
    slot.gradient = carver.take<E>(rows, C);
    if (shape.is_split) slot.kept = {carver.take<std::byte>(kept), kept};
    if (has_text) slot.words = carver.take<std::int32_t>(token_words(config, shape.batch));
    places.slots.push_back(std::move(slot));
  }
  return places;
}

template CudaPlaces<float> place_stage<float>(ByteCarver&, const ModelConfig&, const StageCut&,
                                              const StageShape&);
template CudaPlaces<Bf16> place_stage<Bf16>(ByteCarver&, const ModelConfig&, const StageCut&,
                                            const StageShape&);

}  // namespace troupe::apps::gpt
