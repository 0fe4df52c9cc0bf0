#include "actors/planes/step/state_memory.hpp"

namespace troupe::actors {

std::vector<gpu::BufferView> memory_of(const RankState& state, const DataPlane& data,
                                       std::span<const TrainerTensor> tensors) {
  std::vector<gpu::BufferView> memory;
  memory.reserve(state.pieces.size());
  for (std::size_t i = 0; i < state.pieces.size(); ++i) {
    const auto& piece = state.pieces[i];
    const auto& stored = state.structure.pieces[i];
    const auto width = core::size_of(state.structure.tensors[stored.tensor].dtype);
    const auto whole = piece.kind == StateKind::trainer ? tensors[piece.tensor].memory
                                                        : data.state(piece.kind, piece.bucket);
    memory.push_back(whole.subview(static_cast<std::size_t>(piece.first) * width,
                                   static_cast<std::size_t>(stored.box.elements()) * width));
  }
  return memory;
}

std::vector<std::span<std::byte>> spans_of(std::span<const gpu::BufferView> views) {
  std::vector<std::span<std::byte>> spans;
  spans.reserve(views.size());
  for (const auto view : views) spans.emplace_back(view.data, view.bytes);
  return spans;
}

}  // namespace troupe::actors
