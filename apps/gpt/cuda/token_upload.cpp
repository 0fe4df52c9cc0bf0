#include "apps/gpt/cuda/token_upload.hpp"

#include <algorithm>
#include <chrono>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

namespace {

// Passes of several microbatches may come before it.
constexpr auto kDeadline = std::chrono::minutes(10);

}  // namespace

TokenUpload::TokenUpload(const ModelConfig& config, BatchShape shape, std::int32_t* words, std::size_t first)
    : config_(config),
      shape_(shape),
      words_(words),
      first_token_(static_cast<std::int64_t>(first)),
      place_(place_tokens(words, config, shape)),
      first_(config.vocabulary + 1) {}

core::Result<TokenUpload> TokenUpload::create(gpu::Device& device, const ModelConfig& config,
                                              BatchShape shape, std::int32_t* words, std::size_t first) {
  TokenUpload upload(config, shape, words, first);
  for (Slot& slot : upload.slots_) {
    slot.memory = TRY(device.allocate_staging(token_words(config, shape) * sizeof(std::int32_t)));
    slot.sent = TRY(device.create_event());
  }
  return upload;
}

core::Result<void> TokenUpload::send(std::span<const std::int32_t> tokens,
                                     std::span<const std::int32_t> targets, gpu::StreamView stream) {
  Slot& slot = slots_[next_++ % slots_.size()];
  TRY(slot.sent->wait(kDeadline));
  const auto words = slot.memory.view().as<std::int32_t>();
  const CudaTokens to = place_tokens(words.data(), config_, shape_);
  const auto counted = [this](std::int32_t token) { return here(token); };
  std::transform(tokens.begin(), tokens.end(), to.tokens, counted);
  std::size_t count = tokens.size();
  if (!targets.empty()) {
    std::transform(targets.begin(), targets.end(), to.targets,
                   [&](std::int32_t target) { return target == kNoTarget ? target : counted(target); });
    sort_rows({to.tokens, count}, to);
    learned_ = loss_divisor(targets, {});
    count = words.size();
  }
  const std::size_t bytes = count * sizeof(std::int32_t);
  gpu::copy(slot.memory.view().subview(0, bytes), {reinterpret_cast<std::byte*>(words_), bytes}, stream);
  stream->record(slot.sent.get());
  return {};
}

std::int32_t TokenUpload::here(std::int32_t token) const {
  const auto place = token - first_token_;
  const bool is_here = place >= 0 && place < static_cast<std::int64_t>(config_.vocabulary);
  return is_here ? static_cast<std::int32_t>(place) : cuda::kElsewhere;
}

void TokenUpload::sort_rows(std::span<const std::int32_t> tokens, const CudaTokens& to) {
  std::fill(first_.begin(), first_.end(), 0);
  for (const std::int32_t token : tokens) {
    if (token != cuda::kElsewhere) first_[static_cast<std::size_t>(token) + 1] += 1;
  }
  std::int32_t segments = 0;
  std::int32_t kinds = 0;
  for (std::size_t token = 0; token < config_.vocabulary; ++token) {
    const std::int32_t rows = first_[token + 1];
    first_[token + 1] += first_[token];
    if (rows == 0) continue;
    to.kinds[kinds] = static_cast<std::int32_t>(token);
    to.first_segment[kinds++] = segments;
    for (std::int32_t row = 0; row < rows; row += static_cast<std::int32_t>(cuda::kSegmentRows)) {
      to.segments[segments++] = first_[token] + row;
    }
  }
  to.first_segment[kinds] = segments;
  to.segments[segments] = first_.back();
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    if (tokens[row] == cuda::kElsewhere) continue;
    to.order[first_[static_cast<std::size_t>(tokens[row])]++] = static_cast<std::int32_t>(row);
  }
  order_ = {place_.order,
            place_.segments,
            place_.kinds,
            place_.first_segment,
            static_cast<std::size_t>(segments),
            static_cast<std::size_t>(kinds)};
}

std::size_t segments_at_most(const ModelConfig& config, BatchShape shape) {
  return std::min(shape.rows(), config.vocabulary) + shape.rows() / cuda::kSegmentRows;
}

std::size_t token_words(const ModelConfig& config, BatchShape shape) {
  return 5 * shape.rows() + segments_at_most(config, shape) + 2;
}

CudaTokens place_tokens(std::int32_t* words, const ModelConfig& config, BatchShape shape) {
  const std::size_t N = shape.rows();
  const std::size_t segments = segments_at_most(config, shape) + 1;
  return {.tokens = words,
          .targets = words + N,
          .order = words + 2 * N,
          .segments = words + 3 * N,
          .kinds = words + 3 * N + segments,
          .first_segment = words + 4 * N + segments};
}

}  // namespace troupe::apps::gpt
