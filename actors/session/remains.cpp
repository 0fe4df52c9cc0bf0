#include "actors/session/remains.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <utility>

#include "actors/roles/rank_supervisor.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/step_count.hpp"

namespace troupe::actors {

namespace {

/// States that were dealt over ranks alike have the same.
std::uint64_t layout_of(const TrainingPlan& plan) {
  const auto& o = plan.options;
  return core::hash64(fmt::format("{} {} {} {} {} {} {}", plan.world.value, core::name_of(o.strategy),
                                  o.optimizer_instances, o.tensor_parallel, o.context_parallel,
                                  o.pipeline_parallel, o.expert_parallel));
}

std::string text_of_words(std::span<const std::int64_t> words) {
  std::string text;
  for (const auto word : words) text += core::hex64(static_cast<std::uint64_t>(word));
  return text;
}

core::Result<std::vector<std::int64_t>> words_of(const std::string& text) {
  constexpr std::size_t kDigits = 16;
  std::vector<std::int64_t> words;
  for (std::size_t at = 0; at + kDigits <= text.size(); at += kDigits) {
    std::uint64_t word = 0;
    const auto* end = text.data() + at + kDigits;
    const auto [parsed, error] = std::from_chars(text.data() + at, end, word, kDigits);
    if (error != std::errc{} || parsed != end) break;
    words.push_back(static_cast<std::int64_t>(word));
  }
  if (words.size() * kDigits == text.size() && words.size() > 2) return words;
  return core::fail(core::Errc::corrupt, "what was decided on the last step arrived altered");
}

/// What Remains::decision() says, read with what any data plane of the job has. Errc::corrupt.
core::Result<messages::StepDecided> parse_decision(const std::string& text, core::Step step,
                                                   const StepVerdict& own, double clip_norm) {
  const auto words = TRY(words_of(text));
  const auto rate = std::bit_cast<double>(words[0]);
  const auto scale = std::bit_cast<double>(words[1]);
  const auto verdict = own.verdict_of(std::span(words).subspan(2));
  return decision_on({step, rate, scale, clip_norm, verdict}, "a rank refused it, or ranks differed");
}

}  // namespace

StepOutcome outcome_of(const messages::StepDecided& decided) {
  StepOutcome outcome;
  outcome.step = decided.step;
  outcome.committed = decided.commit;
  outcome.reason = decided.reason;
  outcome.loss = decided.verdict.loss;
  outcome.weight = decided.verdict.weight;
  outcome.gradient_norm = decided.verdict.gradient_norm;
  outcome.clip_factor = decided.clip_factor;
  outcome.usual_norm = decided.usual_norm;
  outcome.loss_scale = decided.loss_scale;
  outcome.nonfinite_gradients = decided.verdict.nonfinite_gradients;
  outcome.wishes = decided.verdict.wishes;
  return outcome;
}

core::Result<std::unique_ptr<Remains>> Remains::take(Parts parts, std::chrono::nanoseconds deadline) {
  const auto begun = parts.begun;
  std::unique_ptr<Remains> remains(new Remains(std::move(parts), deadline));
  const auto rest = TRY(remains->data().retire(deadline));
  TRY(remains->take(rest, begun));
  return remains;
}

core::Result<void> Remains::take(const StepVerdict::Rest& rest, std::span<const messages::StepBegan> begun) {
  auto& progress = parts_.progress;
  memory_ = parts_.data->tensors().pieces_of(parts_.state, {});
  survivor_ = {parts_.origin, layout_of(*parts_.plan),
               progress.over, false,
               false,         core::layout_hash(parts_.state.structure)};
  const auto begun_as = [&](core::Step step) {
    return std::find_if(begun.begin(), begun.end(), [&](const auto& each) { return each.step == step; });
  };
  if (const auto decided = begun_as(rest.decided); decided != begun.end()) {
    words_ = {std::bit_cast<std::int64_t>(decided->learning_rate),
              std::bit_cast<std::int64_t>(decided->loss_scale)};
    words_.insert(words_.end(), rest.words.begin(), rest.words.end());
    survivor_.knows_last_decision = core::steps_through(rest.decided) == progress.over;
  }
  const auto last = begun_as(rest.step);
  if (last == begun.end()) return {};
  const bool is_decided = rest.decided == rest.step;
  // Otherwise nothing of the step that was begun has changed the state.
  if (!rest.is_reduced) {
    if (!is_decided) return {};
    return core::fail(core::Errc::internal, "step {} was decided without its gradients", rest.step.value);
  }
  next_ = *last;
  if (is_decided) return finish(words_);
  survivor_.may_finish_next = core::steps_before(rest.step) == progress.over;
  return {};
}

std::string Remains::decision() const {
  return text_of_words(words_);
}

core::Result<void> Remains::finish(const std::string& decision) {
  return finish(TRY(words_of(decision)));
}

core::Result<void> Remains::finish(std::vector<std::int64_t> words) {
  words_ = std::move(words);
  const auto decided =
      TRY(parse_decision(decision(), next_.step, parts_.data->verdict(), parts_.plan->options.clip_norm));
  TRY(parts_.data->updates().end_step(decided, deadline_));
  survivor_.may_finish_next = false;
  survivor_.knows_last_decision = true;
  auto& progress = parts_.progress;
  if (core::steps_through(next_.step) == progress.over) return {};
  // The trainer has not been told of it.
  progress.over = survivor_.over = core::steps_through(next_.step);
  progress.last = outcome_of(decided);
  progress.optimizer_steps.value += decided.commit ? 1 : 0;
  const auto nonfinite = decided.verdict.nonfinite_gradients;
  if (decided.commit || nonfinite > 0) parts_.scaler.update(nonfinite == 0);
  if (parts_.scaler.is_dynamic()) progress.loss_scaling = parts_.scaler.state();
  return {};
}

}  // namespace troupe::actors
