#include "apps/gpt/cuda/expert_desk.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

constexpr auto kDeadline = std::chrono::minutes(10);

template <class Number>
std::int32_t narrow(Number place) {
  return static_cast<std::int32_t>(place);
}

// Hands out consecutive pieces of pinned memory, and copies each to its destination.
class Sender {
 public:
  Sender(gpu::BufferView memory, gpu::StreamView stream) : memory_(memory), stream_(stream) {}

  template <class To, class From, class Convert>
  void send(std::span<const From> values, To* to, const Convert& convert) {
    const std::size_t bytes = values.size() * sizeof(To);
    if (bytes == 0) return;
    const auto piece = memory_.subview(used_, bytes);
    std::transform(values.begin(), values.end(), piece.template as<To>().begin(), convert);
    gpu::copy(piece, {reinterpret_cast<std::byte*>(to), bytes}, stream_);
    used_ += (bytes + 15) / 16 * 16;
  }

 private:
  gpu::BufferView memory_;
  gpu::StreamView stream_;
  std::size_t used_ = 0;
};

}  // namespace

Result<ExpertDesk> ExpertDesk::create(gpu::Device& device, const ExpertConfig& config, std::size_t layers,
                                      std::size_t rows, std::size_t members) {
  ExpertDesk desk(config);
  const std::size_t sent = rows * (3 * config.sent() + config.choices) + config.count;
  desk.down_ = TRY(device.allocate_staging(members * rows * config.count * sizeof(float)));
  desk.up_ = TRY(device.allocate_staging(sent * sizeof(std::int32_t) + 128));
  if (config.ranks > 1 && config.grouped)
    desk.groups_ = TRY(device.allocate_staging(2 * (config.most_rows(rows) * sizeof(std::int32_t) + 16)));
  desk.losses_ = TRY(device.allocate_staging(layers * sizeof(double)));
  desk.copied_ = TRY(device.create_event());
  return desk;
}

Result<void> ExpertDesk::fetch(const float* from, std::span<float> to, gpu::StreamView stream) {
  const auto memory = down_.view().subview(0, to.size_bytes());
  gpu::copy({reinterpret_cast<const std::byte*>(from), to.size_bytes()}, memory, stream);
  stream->record(copied_.get());
  TRY(copied_->wait(kDeadline));
  std::memcpy(to.data(), memory.data, to.size_bytes());
  return {};
}

Result<void> ExpertDesk::choose(std::size_t layer, ExpertRoutes& routes, const ExpertShape& shape,
                                const float* logits, const StepHooks& hooks,
                                const ExpertChoices<float>& memory, gpu::StreamView stream) {
  const std::size_t E = config_.count;
  auto& own = logits_;
  own.resize(shape.rows * E);
  weights_.resize(shape.rows * config_.sent());
  if (shape.member.members == 1) {
    TRY(fetch(logits, own, stream));
  } else {
    all_logits_.resize(shape.rows * shape.member.members * E);
    TRY(fetch(logits, all_logits_, stream));
    const std::size_t length = shape.rows / shape.sequences * shape.member.members;
    auto place = own.begin();
    for (const std::size_t row : SequencePart({shape.sequences, length}, shape.member).own_rows())
      place = std::copy_n(all_logits_.begin() + static_cast<std::ptrdiff_t>(row * E), E, place);
  }
  TRY(choose_experts<float>(shape, on_host(layer, routes), all_logits_.data(), hooks));
  send_choices(routes, memory, stream);
  return {};
}

void ExpertDesk::send_choices(const ExpertRoutes& routes, const ExpertChoices<float>& memory,
                              gpu::StreamView stream) {
  using Numbers = std::span<const std::int64_t>;
  Sender sender(up_.view(), stream);
  sender.send(Numbers(routes.dispatch.choice_of_slot), memory.choice_of_slot, narrow<std::int64_t>);
  sender.send(Numbers(routes.dispatch.slot_of_choice), memory.slot_of_choice, narrow<std::int64_t>);
  sender.send(std::span<const float>(weights_), memory.weights, [](float weight) { return weight; });
  sender.send(std::span<const std::int32_t>(routes.experts), memory.experts, narrow<std::int32_t>);
  sender.send(Numbers(routes.load.counts), memory.counts, narrow<std::int64_t>);
}

// They have memory of their own, because what choose() sends may still be in flight.
void ExpertDesk::send_groups(const core::ExpertExchange& exchange, const ExpertChoices<float>& memory,
                             gpu::StreamView stream) {
  const std::vector<std::int64_t>& places = *exchange.grouped;
  std::vector<std::int64_t> rows(places.size());
  for (std::size_t row = 0; row < places.size(); ++row)
    rows[static_cast<std::size_t>(places[row])] = static_cast<std::int64_t>(row);
  Sender sender(groups_.view(), stream);
  sender.send(std::span<const std::int64_t>(places), memory.product_of_row, narrow<std::int64_t>);
  sender.send(std::span<const std::int64_t>(rows), memory.row_of_product, narrow<std::int64_t>);
}

void ExpertDesk::send_losses(std::span<const ExpertRoutes> layers, gpu::BufferView losses,
                             gpu::StreamView stream) {
  const auto pinned = losses_.view().subview(0, losses.bytes);
  const auto values = pinned.as<double>();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = layers[i].loss;
  gpu::copy(pinned, losses, stream);
}

}  // namespace troupe::apps::gpt
