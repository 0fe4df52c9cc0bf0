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
      group_(share.size, share.index, options.session.training.numerics),
      device_group_(share.size, share.index, options.session.training.numerics) {}

Result<void> TensorRank::open(actors::Session& session) {
  if (!is_shared()) return {};
  auto& group = *TRY(session.group("tp"));
  if (is_on_gpu_) {
    device_group_.open(group, TRY(session.compute_stream()));
  } else {
    group_.open(group);
  }
  return {};
}

// The result still lacks the parts of an expert that other groups of ranks have.
Result<std::span<const float>> TensorRank::whole(std::size_t parameter, std::span<const float> part) {
  const SharedParameter shared = table_.at(parameter);
  if (!shared.axis) return part;
  const std::size_t size = group_.size();
  gathered_.resize(part.size() * size);
  whole_.resize(shared.whole->elements());
  if (size == 1) {
    std::copy(part.begin(), part.end(), gathered_.begin());
  } else {
    TRY(group_.gather(part, gathered_, SessionTensorGroup::Counts(size, part.size())));
  }
  const auto [first, end] = table_.members_of(parameter);
  for (std::size_t i = first; i < end; ++i)
    copy_from_part(table_.layout(parameter, i), gathered_.data() + i * part.size(), whole_.data());
  return std::span<const float>(whole_);
}

Result<std::span<const std::byte>> TensorRank::whole_on_host(std::size_t parameter, gpu::ConstElements part,
                                                             const StageMemory& memory) {
  const SharedParameter shared = table_.at(parameter);
  const std::size_t size = shared.axis ? device_group_.size() : 1, bytes = part.view.bytes;
  gathered_bytes_.resize(size * bytes);
  if (!shared.axis) {
    TRY(memory.read(part.view, gathered_bytes_));
    return std::span<const std::byte>(gathered_bytes_);
  }
  const auto all = TRY(memory.allocate(size * bytes));
  TRY(device_group_.gather(part, {all.view(), part.dtype}, DeviceTensorGroup::Counts(size, part.count())));
  TRY(memory.read(all.view(), gathered_bytes_));
  whole_bytes_.resize(size * bytes);
  for (std::size_t i = 0; i < size; ++i) {
    const auto layout = table_.layout(parameter, i).of(core::size_of(part.dtype));
    copy_from_part(layout, gathered_bytes_.data() + i * bytes, whole_bytes_.data());
  }
  return std::span<const std::byte>(whole_bytes_);
}

}  // namespace troupe::apps::gpt
