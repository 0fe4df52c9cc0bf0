#include "apps/gpt/stage/piece_stage.hpp"

#include <deque>
#include <utility>

#include "apps/gpt/model/expert_peers.hpp"
#include "core/disregard.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

using Stages = std::vector<std::unique_ptr<TrainableStage>>;

/// What each of them has, one after another.
template <class Get>
auto of_each(const Stages& stages, const Get& get) {
  decltype(get(*stages.front())) all;
  for (const auto& stage : stages) {
    for (const auto& one : get(*stage)) all.push_back(one);
  }
  return all;
}

}  // namespace

/// What members ask of the rank's peers. They meet for it, and it is asked for one after another: so all
/// ranks ask in one order.
class PieceStage::Peers {
 public:
  explicit Peers(InStep& members) : members_(members) {
    for (std::size_t i = 0; i < members.members(); ++i) each_.emplace_back(*this, i);
  }

  ExpertPeers* of(std::size_t member, ExpertPeers* rank) {
    rank_ = rank;
    return rank == nullptr ? nullptr : &each_[member];
  }

 private:
  class Member final : public ExpertPeers {
   public:
    Member(Peers& all, std::size_t own) : all_(all), own_(own) {}

    Result<PlannedRows> plan(std::size_t layer, const core::Dispatch& dispatch) override {
      TRY(in_turn([&dispatch, layer, this]() -> Result<void> {
        planned_ = TRY(all_.rank_->plan(layer, dispatch));
        return {};
      }));
      return std::move(planned_);
    }
    Result<void> begin_exchange(const RowsOfExchange& rows, std::span<const std::byte> input,
                                std::span<std::byte> output, const core::RowMove& move,
                                std::size_t row_bytes) override {
      return in_turn([=, &move, this]() -> Result<void> {
        if (own_ > 0) TRY(all_.rank_->wait());
        return all_.rank_->begin_exchange(rows, input, output, move, row_bytes);
      });
    }
    Result<void> wait() override {
      return all_.members_.meet([this] { return all_.rank_->wait(); });
    }
    void* gradient(std::size_t parameter, std::size_t source) override {
      return all_.rank_->gradient(parameter, source * all_.each_.size() + own_);
    }

   private:
    Result<void> in_turn(InStep::Work own) {
      asked_ = std::move(own);
      return all_.members_.meet([this]() -> Result<void> {
        for (const auto& member : all_.each_) TRY(member.asked_());
        return {};
      });
    }

    Peers& all_;
    std::size_t own_;
    InStep::Work asked_;
    PlannedRows planned_;
  };

  InStep& members_;
  ExpertPeers* rank_ = nullptr;
  std::deque<Member> each_;
};

PieceStage::PieceStage(InStep& members, std::vector<std::unique_ptr<TrainableStage>> stages)
    : members_(members), stages_(std::move(stages)), peers_(std::make_unique<Peers>(members)) {
  CHECK(stages_.size() == members_.members(), "each member has a stage");
}

PieceStage::~PieceStage() = default;

StepHooks PieceStage::hooks_of(std::size_t member, const StepHooks& own) {
  StepHooks hooks = own;
  hooks.peers = peers_->of(member, own.peers);
  if (own.before_use) {
    hooks.before_use = [this, &own](std::size_t parameter) {
      return members_.meet([&] { return own.before_use(parameter); });
    };
  }
  if (own.begin_backward) {
    hooks.begin_backward = [this, &own] { return members_.meet(own.begin_backward); };
  }
  if (own.gradient_ready) {
    hooks.gradient_ready = [this, &own](std::size_t parameter) {
      const auto met = members_.meet([&]() -> Result<void> {
        own.gradient_ready(parameter);
        return {};
      });
      core::disregard(met, "the members' run ends with their first failure");
    };
  }
  return hooks;
}

Result<void> PieceStage::run(const StagePass& pass, const Body& body) {
  return members_.run([&](std::size_t member) {
    const StepHooks hooks = hooks_of(member, pass.hooks);
    const std::size_t count = pass.parameters.size();
    const auto gradients =
        pass.gradients.empty() ? pass.gradients : pass.gradients.subspan(member * count, count);
    return body(*stages_[member], {pass.parameters, gradients, hooks});
  });
}

StageRows PieceStage::input(int slot) {
  return of_each(stages_, [&](auto& stage) { return stage.input(slot); });
}

StageRows PieceStage::output(int chunk, int slot) {
  return of_each(stages_, [&](auto& stage) { return stage.output(chunk, slot); });
}

StageRows PieceStage::gradient(int slot) {
  return of_each(stages_, [&](auto& stage) { return stage.gradient(slot); });
}

std::vector<HeadFactors> PieceStage::head_factors(int chunk, int slot) {
  return of_each(stages_, [&](auto& stage) { return stage.head_factors(chunk, slot); });
}

Result<void> PieceStage::forward(int chunk, PassSlots slots, const StagePass& pass, StageText text) {
  return run(pass, [&](auto& stage, const auto& own) { return stage.forward(chunk, slots, own, text); });
}

Result<void> PieceStage::loss(int chunk, int slot, const StagePass& pass, StageText text) {
  return run(pass, [&](auto& stage, const auto& own) { return stage.loss(chunk, slot, own, text); });
}

Result<std::vector<StageLoss>> PieceStage::take_losses(std::size_t count) {
  std::vector<StageLoss> losses;
  for (std::size_t i = 0; i < count; ++i) {
    for (const auto& stage : stages_) losses.push_back(TRY(stage->take_losses(1)).front());
  }
  return losses;
}

Result<void> PieceStage::backward(int chunk, int slot, const StagePass& pass, StageText text) {
  return run(pass, [&](auto& stage, const auto& own) { return stage.backward(chunk, slot, own, text); });
}

Result<void> PieceStage::backward_weight(int slot, const StagePass& pass) {
  return run(pass, [&](auto& stage, const auto& own) { return stage.backward_weight(slot, own); });
}

Result<void> PieceStage::forward_sequence(int chunk, const StagePass& pass, TokenSpan tokens) {
  return run(pass, [&](auto& stage, const auto& own) { return stage.forward_sequence(chunk, own, tokens); });
}

Result<std::span<const float>> PieceStage::logits_of(int chunk, std::size_t token, const StagePass& pass) {
  std::span<const float> logits;  // the same at all members
  TRY(run(pass, [&](auto& stage, const auto& own) -> Result<void> {
    logits = TRY(stage.logits_of(chunk, token, own));
    return {};
  }));
  return logits;
}

}  // namespace troupe::apps::gpt
