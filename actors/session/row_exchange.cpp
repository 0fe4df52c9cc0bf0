#include "actors/session/row_exchange.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/errors.hpp"
#include "gpu/kernels.hpp"
#include "gpu/order/task_order.hpp"

namespace troupe::actors {

using core::DType;
using core::Result;
using Counts = TrainerGroup::Counts;

Result<std::vector<std::vector<std::int64_t>>> RowExchange::gather(const std::vector<std::int64_t>& own,
                                                                   const std::string& what) {
  if (group_ == nullptr) return std::vector<std::vector<std::int64_t>>{own};
  std::vector<std::int64_t> all(own.size() * static_cast<std::size_t>(group_->size()));
  sequencer_.describe_next(*group_, what);
  if (in_.world.device().is_host_memory()) {
    TRY(gather(gpu::view_of(std::span(own)), gpu::view_of(std::span(all)), own.size()));
  } else {
    TRY(gather_on_device(own, all));
  }
  TRY(unless_failed());
  std::vector<std::vector<std::int64_t>> counts;
  for (auto next = all.begin(); next != all.end(); next += static_cast<std::ptrdiff_t>(own.size()))
    counts.emplace_back(next, next + static_cast<std::ptrdiff_t>(own.size()));
  return counts;
}

Result<void> RowExchange::gather(gpu::ConstBufferView own, gpu::BufferView all, std::size_t counts) {
  const auto ranks = static_cast<std::size_t>(group_->size());
  return group_->wait(TRY(group_->all_gather(own, all, DType::i64, Counts(ranks, counts))));
}

Result<void> RowExchange::gather_on_device(const std::vector<std::int64_t>& own,
                                           std::vector<std::int64_t>& all) {
  const std::size_t bytes = own.size() * sizeof(std::int64_t),
                    needed = bytes + all.size() * sizeof(std::int64_t);
  if (counts_.view().bytes < needed) {
    counts_ = TRY(in_.world.device().allocate(needed));
    staging_ = TRY(in_.world.device().allocate_staging(needed));
  }
  const auto pinned = staging_.view(), there = counts_.view();
  const auto on = TRY(stream());
  gpu::declare(in_.world.device(), "counts of rows", {}, {pinned.subview(0, bytes)});
  std::copy(own.begin(), own.end(), pinned.as<std::int64_t>().begin());
  gpu::copy(pinned.subview(0, bytes), there.subview(0, bytes), on);
  if (in_.data.marks().compute() == nullptr) TRY(settle());
  TRY(gather(there.subview(0, bytes), there.subview(bytes, needed - bytes), own.size()));
  gpu::copy(there.subview(bytes, needed - bytes), pinned.subview(bytes, needed - bytes), on);
  TRY(settle());
  gpu::declare(in_.world.device(), "counts of rows", {pinned.subview(bytes, needed - bytes)}, {});
  const auto found = pinned.subview(bytes, needed - bytes).as<std::int64_t>();
  std::copy(found.begin(), found.end(), all.begin());
  return {};
}

/// The trainer's, or one of the exchange's own.
Result<gpu::StreamView> RowExchange::stream() {
  if (const auto compute = in_.data.marks().compute(); compute != nullptr) return compute;
  if (!own_) own_ = TRY(in_.world.device().create_stream({"experts", 0}));
  return own_.get();
}

Result<void> RowExchange::settle() {
  const auto on = TRY(stream());
  if (!settled_) settled_ = TRY(in_.world.device().create_event());
  on->record(settled_.get());
  return settled_->wait(3 * in_.options.step_deadline);
}

Result<void> RowExchange::begin(gpu::ConstBufferView input, gpu::BufferView output, const core::RowMove& move,
                                std::size_t row_bytes, const std::string& what) {
  if (group_ == nullptr) return copy_here(input, output);
  const auto bytes_of = [&](const std::vector<std::int64_t>& rows) {
    Counts counts;
    for (const auto count : rows) counts.push_back(static_cast<std::size_t>(count) * row_bytes);
    return counts;
  };
  TrainerGroup::Rows rows;
  if (move.input || move.output) rows = {row_bytes, move.input, move.output};
  sequencer_.describe_next(*group_, what);
  posted_ = TRY(group_->all_to_all(input, bytes_of(move.sent), output, bytes_of(move.taken), DType::u8,
                                   std::move(rows)));
  return {};
}

/// Rows that stay on their rank are in the same order on both sides.
Result<void> RowExchange::copy_here(gpu::ConstBufferView input, gpu::BufferView output) {
  if (input.data == output.data || input.bytes == 0) return {};
  if (in_.world.device().is_host_memory()) {
    std::memcpy(output.data, input.data, input.bytes);
    return {};
  }
  gpu::copy(input, output, TRY(stream()));
  return in_.data.marks().compute() == nullptr ? settle() : Result<void>{};
}

/// What has arrived in a session that failed meanwhile is not handed out.
Result<void> RowExchange::wait() {
  if (group_ != nullptr) TRY(group_->wait(posted_));
  return unless_failed();
}

Result<void> RowExchange::unless_failed() const {
  if (auto failure = in_.inbox.failure()) return tl::unexpected(*std::move(failure));
  return {};
}

}  // namespace troupe::actors
