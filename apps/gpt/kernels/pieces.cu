#include "apps/gpt/kernels/element.cuh"
#include "apps/gpt/kernels/kernels.hpp"
#include "apps/gpt/kernels/launch.hpp"
#include "apps/gpt/kernels/reduce.cuh"

namespace troupe::apps::gpt::cuda {
namespace {

constexpr unsigned kThreads = 256;
// A warp has a row.
constexpr unsigned kRowsOfBlock = kThreads / kWarp;

// The place by position of a row, numbered by member, sequence and the member's own row.
__device__ inline std::size_t place_by_position(const PieceRows& rows, std::size_t row) {
  const std::size_t piece = rows.length / 2, own = row % rows.length;
  const std::size_t sequence = row / rows.length % rows.batch, member = row / rows.length / rows.batch;
  const std::size_t of_piece = own < piece ? member : 2 * rows.members - 1 - member;
  return (sequence * 2 * rows.members + of_piece) * piece + own % piece;
}

template <class E, int W, bool kToPositions>
__global__ void move_rows_kernel(PieceRows rows, const E* from, E* to) {
  const std::size_t row = std::size_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWarp, C = rows.width;
  if (row >= rows.members * rows.batch * rows.length) return;
  const std::size_t place = place_by_position(rows, row);
  const E* source = from + (kToPositions ? row : place) * C;
  E* destination = to + (kToPositions ? place : row) * C;
  for (std::size_t c = std::size_t{threadIdx.x % kWarp} * W; c < C; c += kWarp * W)
    store<E, W>(load<E, W>(source + c), destination + c);
}

template <bool kToPositions, class E>
cudaError_t move_rows(const PieceRows& rows, const E* from, E* to, cudaStream_t stream) {
  const LaunchShape shape{blocks_for(rows.members * rows.batch * rows.length, kRowsOfBlock), kThreads};
  constexpr int W = kWide<E>;
  if (rows.width % W == 0) return launch(move_rows_kernel<E, W, kToPositions>, shape, stream, rows, from, to);
  return launch(move_rows_kernel<E, 1, kToPositions>, shape, stream, rows, from, to);
}

}  // namespace

template <class E>
cudaError_t rows_by_position(const PieceRows& rows, const E* by_member, E* by_position, cudaStream_t stream) {
  return move_rows<true>(rows, by_member, by_position, stream);
}

template <class E>
cudaError_t rows_by_member(const PieceRows& rows, const E* by_position, E* by_member, cudaStream_t stream) {
  return move_rows<false>(rows, by_position, by_member, stream);
}

template cudaError_t rows_by_position<float>(const PieceRows&, const float*, float*, cudaStream_t);
template cudaError_t rows_by_position<Bf16>(const PieceRows&, const Bf16*, Bf16*, cudaStream_t);
template cudaError_t rows_by_member<float>(const PieceRows&, const float*, float*, cudaStream_t);
template cudaError_t rows_by_member<Bf16>(const PieceRows&, const Bf16*, Bf16*, cudaStream_t);

}  // namespace troupe::apps::gpt::cuda
