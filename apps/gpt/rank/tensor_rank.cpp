#include "apps/gpt/rank/tensor_rank.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

// The ranks of a group are numbered consecutively.
TensorShare share_of(const TrainerOptions& options, core::Rank rank) {
  const auto& training = options.session.training;
  const auto size = static_cast<std::size_t>(training.tensor_parallel);
  return {size, static_cast<std::size_t>(rank.value) % size, options.tensor.sequence_parallel,
          static_cast<std::size_t>(slices_of(training, options.tensor)) / size};
}

Result<std::unique_ptr<TensorRank>> TensorRank::create(const TrainerOptions& options, core::Rank rank,
                                                       gpu::DeviceKind device) {
  const int size = options.session.training.tensor_parallel;
  if (size < 1) return fail(Errc::invalid_argument, "tensor_parallel must be 1 or more, found {}", size);
  TRY(check_tensor_options(options.session.training, options.tensor, false));
  const TensorShare share = share_of(options, rank);
  if (share.slices > 1 && device == gpu::DeviceKind::cuda) {
    return fail(Errc::unavailable,
                "on a GPU a rank computes one slice of each layer, found --tensor-slices {} for {} of them; "
                "use --device host, or leave --tensor-slices out",
                share.size * share.slices, share.size);
  }
  if (share.is_sliced())
    TRY(check_shared_model(options.model, options.microbatch, options.arithmetic, share, device));
  return std::unique_ptr<TensorRank>(new TensorRank(options, share, device));
}

TensorRank::TensorRank(const TrainerOptions& options, const TensorShare& share, gpu::DeviceKind device)
    : table_(options.model, share),
      is_on_gpu_(device == gpu::DeviceKind::cuda),
      device_group_(share.size, share.index, options.session.training.numerics) {}

Result<void> TensorRank::open(actors::Session& session) {
  if (!is_shared()) return {};
  device_group_.open(*TRY(session.group("tp")), is_on_gpu_ ? TRY(session.compute_stream()) : nullptr);
  return {};
}

// The result still lacks the parts of an expert that other groups of ranks have.
Result<std::span<const std::byte>> TensorRank::whole(std::size_t parameter, gpu::ConstElements part,
                                                     const StageMemory& memory) {
  const SharedParameter shared = table_.at(parameter);
  const std::size_t size = shared.axis ? device_group_.size() : 1, bytes = part.view.bytes;
  gathered_.resize(size * bytes);
  if (size == 1) {
    TRY(memory.read(part.view, gathered_));
  } else {
    const auto all = TRY(memory.allocate(size * bytes));
    TRY(device_group_.gather(part, {all.view(), part.dtype}, DeviceTensorGroup::Counts(size, part.count())));
    TRY(memory.read(all.view(), gathered_));
  }
  if (!shared.axis) return std::span<const std::byte>(gathered_);
  const std::size_t element_bytes = core::size_of(part.dtype);
  whole_.resize(shared.whole->elements() * element_bytes);
  const auto [first, end] = table_.members_of(parameter);
  for (std::size_t i = first; i < end; ++i)
    copy_from_part(table_.layout(parameter, i).of(element_bytes), gathered_.data() + i * bytes,
                   whole_.data());
  return std::span<const std::byte>(whole_);
}

}  // namespace troupe::apps::gpt
