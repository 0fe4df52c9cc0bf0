#include "apps/gpt/cuda/loss_queue.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

constexpr auto kLossDeadline = std::chrono::minutes(10);

}  // namespace

Result<LossQueue> LossQueue::create(gpu::Device& device, std::size_t layers) {
  LossQueue queue(layers);
  queue.memory_ = TRY(device.allocate_staging(kMostLosses * (1 + layers) * sizeof(double)));
  for (std::size_t i = 0; i < kMostLosses; ++i) queue.copied_.push_back(TRY(device.create_event()));
  return queue;
}

gpu::BufferView LossQueue::pinned(std::size_t number) const {
  const std::size_t bytes = (1 + layers_) * sizeof(double);
  return memory_.view().subview(number % kMostLosses * bytes, bytes);
}

Result<std::size_t> LossQueue::next_place() {
  if (pushed_ == read_ + kMostLosses) TRY(wait_for(1));
  return pushed_ % kMostLosses;
}

void LossQueue::push(gpu::ConstBufferView words, std::vector<double> routes, gpu::ConstBufferView earlier,
                     gpu::StreamView stream) {
  const auto to = pinned(pushed_);
  gpu::copy(words, to.subview(0, words.bytes), stream);
  if (earlier.bytes > 0) gpu::copy(earlier, to.subview(words.bytes, earlier.bytes), stream);
  stream->record(copied_[pushed_ % kMostLosses].get());
  pushed_ += 1;
  losses_.push_back({0, std::move(routes)});
  earlier_.push_back(earlier.bytes / sizeof(double));
}

Result<void> LossQueue::wait_for(std::size_t count) {
  for (; count > 0; --count) {
    TRY(copied_[read_ % kMostLosses]->wait(kLossDeadline));
    const auto found = pinned(read_++).as<double>();
    StageLoss& loss = losses_[losses_.size() - earlier_.size()];
    loss.words = found[0];
    std::copy_n(found.begin() + 1, earlier_.front(), loss.routes.begin());
    earlier_.pop_front();
  }
  return {};
}

Result<std::vector<StageLoss>> LossQueue::take(std::size_t count) {
  CHECK(count <= losses_.size(), "losses are computed before they are taken");
  const std::size_t read = losses_.size() - earlier_.size();
  if (count > read) TRY(wait_for(count - read));
  const auto end = losses_.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<StageLoss> taken(losses_.begin(), end);
  losses_.erase(losses_.begin(), end);
  return taken;
}

}  // namespace troupe::apps::gpt
