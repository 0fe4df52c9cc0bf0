#include "apps/gpt/stage/host_stage.hpp"

#include <unistd.h>

#include <deque>
#include <new>
#include <utility>

#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/stage/engine_stage.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

class HostStage final : public EngineStage<HostEngine<float>> {
 public:
  using Text = HostEngine<float>::Text;

  HostStage(const ModelConfig& config, const StageCut& cut, const StageShape& shape, StageGroups groups,
            std::unique_ptr<std::byte[]> memory)
      : memory_(std::move(memory)) {
    Carver carver(memory_.get(), HostEngine<float>::kAlign);
    HostEngine<float> engine(rotary_of<float>(config, shape.batch.length, member_of(groups.sequences)));
    core_.emplace(config, cut, shape, place_stage<HostEngine<float>>(carver, config, cut, shape),
                  std::move(engine), std::pair(groups.layers, groups.sequences));
  }

  core::DType dtype() const override { return core::DType::f32; }

  Result<void> forward(int chunk, PassSlots slots, const StagePass& pass, StageText text) override {
    if (core_->part(chunk).has_begin()) {
      CHECK(text.tokens.size() == core_->shape().batch.rows(), "tokens have the shape given to create()");
      TRY(check_tokens(text.tokens, core_->vocabulary()));
    }
    return core_->forward(chunk, slots, own(pass), as_read(text));
  }
  Result<void> loss(int chunk, int slot, const StagePass& pass, StageText text) override {
    CHECK(text.targets.size() == core_->shape().batch.rows(), "targets have the shape given to create()");
    TRY(check_targets(text.targets, core_->vocabulary()));
    StageLoss loss;
    TRY(core_->loss(chunk, slot, own(pass), as_read(text), &loss.words));
    losses_.push_back(std::move(loss));
    return {};
  }
  Result<std::vector<StageLoss>> take_losses(std::size_t count) override {
    CHECK(count <= losses_.size(), "losses are computed before they are taken");
    const auto end = losses_.begin() + static_cast<std::ptrdiff_t>(count);
    std::vector<StageLoss> taken(losses_.begin(), end);
    losses_.erase(losses_.begin(), end);
    return taken;
  }
  Result<void> backward(int chunk, int slot, const StagePass& pass, StageText text) override {
    return core_->backward(chunk, slot, own(pass), as_read(text));
  }

  Result<void> forward_sequence(int chunk, const StagePass& pass, TokenSpan tokens) override {
    if (core_->part(chunk).has_begin()) TRY(check_tokens(tokens, core_->vocabulary()));
    return core_->forward_sequence(chunk, own(pass), {tokens, {}}, tokens.size());
  }
  Result<std::span<const float>> logits_of(int chunk, std::size_t token, const StagePass& pass) override {
    const float* found = TRY(core_->own_logits_of(chunk, token, own(pass)));
    return core_->engine().all_logits(core_->context(chunk, {}).block, found, whole_logits_);
  }

 private:
  static Text as_read(StageText text) { return {text.tokens, text.targets}; }

  std::unique_ptr<std::byte[]> memory_;
  std::deque<StageLoss> losses_;
  std::vector<float> whole_logits_;  ///< (V) of all members
};

}  // namespace

std::size_t physical_memory_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t host_stage_bytes(const ModelConfig& config, const StageCut& cut, const StageShape& shape) {
  Carver plan(nullptr, HostEngine<float>::kAlign);
  place_stage<HostEngine<float>>(plan, config_of_share(config, shape.share.size), cut, shape);
  return plan.bytes();
}

Result<std::unique_ptr<TrainableStage>> create_host_stage(const ModelConfig& config, const StageCut& cut,
                                                          const StageShape& shape, StageGroups groups) {
  CHECK((shape.share.size > 1) == (groups.layers != nullptr), "members of a group have a share");
  CHECK((shape.context_parallel > 1) == (groups.sequences != nullptr), "members of a group share sequences");
  TRY(validate(config));
  TRY(check_shape(config, shape.batch));
  TRY(check_keep(config, shape.keep));
  TRY(check_split(shape.is_split, shape.keep));
  const std::size_t wanted = host_stage_bytes(config, cut, shape), machine_bytes = physical_memory_bytes();
  std::unique_ptr<std::byte[]> memory;
  if (wanted <= machine_bytes) memory.reset(new (std::nothrow) std::byte[wanted]());
  if (!memory && cut.stages == 1) {
    return fail(
        Errc::out_of_memory,
        "the activations of {} sequences of {} tokens need {} MiB, this machine has {} MiB; use a smaller "
        "microbatch, a shorter context, --recompute or a smaller model",
        shape.batch.batch, shape.batch.length, wanted >> 20, machine_bytes >> 20);
  }
  if (!memory) {
    return fail(Errc::out_of_memory,
                "the activations of {} microbatches of {} sequences of {} tokens need {} MiB in stage {}, "
                "this machine has {} MiB; use a smaller microbatch, a shorter context, --recompute, another "
                "schedule or a smaller model",
                shape.slots.activations, shape.batch.batch, shape.batch.length, wanted >> 20, cut.stage,
                machine_bytes >> 20);
  }
  TRY(prepare_blas());
  return std::make_unique<HostStage>(config_of_share(config, shape.share.size), cut, shape, groups,
                                     std::move(memory));
}

}  // namespace troupe::apps::gpt
