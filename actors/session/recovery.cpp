#include "actors/session/recovery.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "actors/session/held_boxes.hpp"
#include "actors/session/joint_load.hpp"
#include "actors/session/last_step.hpp"
#include "core/checkpoint/values_text.hpp"
#include "core/errors.hpp"
#include "core/step_count.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;

namespace {

constexpr const char* kPrefix = "memory/";

}  // namespace

Recovery::Recovery(const SessionContext& context, Remains* remains, HostExchange* hosts,
                   std::vector<gpu::BufferView>& memory)
    : in_(context), remains_(remains), hosts_(hosts), memory_(memory) {}

Result<std::optional<LoadedState>> Recovery::run() {
  TRY(hear_reports());
  if (!TRY(choose())) return std::optional<LoadedState>{};
  TRY(finish_step());
  TRY(share_progress());
  TRY(take_memory());
  TRY(exchange());
  // What ranks keep of parameters whose optimizer steps are made elsewhere.
  if (in_.data.updates().rounds_parameters()) {
    in_.data.updates().round_parameters();
    TRY(in_.inbox.wait_gathered(in_.options.checkpoint.deadline));
  }
  in_.data.launches().gather_parameters();
  TRY(in_.inbox.wait_gathered(in_.options.checkpoint.deadline));
  TRY(go_on_after(in_, loaded_));
  return std::optional(loaded_);
}

Result<void> Recovery::hear_reports() {
  core::SurvivorReport own;
  own.wants = core::layout_hash(in_.state.structure);
  if (remains_ != nullptr) {
    own.has = remains_->survivor();
    own.stays = own.has->structure == own.wants && in_.data.rests_like(remains_->data());
  }
  const auto all = TRY(in_.ask(fmt::format("{}reports", kPrefix), core::to_text(own),
                               [](const auto& words) { return fmt::format("{}", fmt::join(words, "\n")); }));
  for (std::size_t begin = 0; begin <= all.size();) {
    const auto end = std::min(all.find('\n', begin), all.size());
    reports_.push_back(TRY(core::parse_survivor_report(std::string_view(all).substr(begin, end - begin))));
    begin = end + 1;
  }
  if (reports_.size() == static_cast<std::size_t>(in_.world.world_size().value)) return {};
  return core::fail(Errc::corrupt, "expected what {} ranks have in memory, found {}",
                    in_.world.world_size().value, reports_.size());
}

/// What each rank has and wants, which the first that knows it tells the others.
Result<void> Recovery::hear_structures() {
  const auto key = [](std::uint64_t hash) { return fmt::format("{}structure/{}", kPrefix, hash); };
  std::map<std::uint64_t, const core::SaveStructure*> own{
      {core::layout_hash(in_.state.structure), &in_.state.structure}};
  if (remains_ != nullptr) own.emplace(remains_->survivor().structure, &remains_->state().structure);
  std::map<std::uint64_t, std::int32_t> tellers;
  for (std::size_t rank = 0; rank < reports_.size(); ++rank) {
    tellers.try_emplace(reports_[rank].wants, static_cast<std::int32_t>(rank));
    if (reports_[rank].has)
      tellers.try_emplace(reports_[rank].has->structure, static_cast<std::int32_t>(rank));
  }
  for (const auto& [hash, teller] : tellers) {
    if (teller == in_.rank().value) TRY(in_.rendezvous.set(key(hash), core::to_text(*own.at(hash))));
  }
  for (const auto& [hash, teller] : tellers) {
    const auto known = own.find(hash);
    structures_.emplace(hash, known != own.end() ? *known->second
                                                 : TRY(core::parse_structure(TRY(in_.rendezvous.get(
                                                       key(hash), in_.options.checkpoint.deadline)))));
  }
  return {};
}

/// All ranks choose alike, since all know the same.
Result<bool> Recovery::choose() {
  const auto steps = core::common_steps(reports_);
  if (steps.empty()) return false;
  TRY(hear_structures());
  std::string why;
  for (const auto& step : steps) {
    std::vector<core::SurvivalPart> parts(reports_.size());
    for (std::size_t rank = 0; rank < reports_.size(); ++rank) {
      const auto& report = reports_[rank];
      const bool holds = std::find(step.holders.begin(), step.holders.end(),
                                   core::Rank{static_cast<std::int32_t>(rank)}) != step.holders.end();
      if (holds) parts[rank].has = {&structures_.at(report.has->structure)};
      if (!holds || !report.stays) parts[rank].wants = &structures_.at(report.wants);
    }
    auto survival = core::plan_survival(parts);
    if (survival) {
      survival_ = *std::move(survival);
      step_ = step;
      return true;
    }
    if (why.empty()) why = survival.error().message;
  }
  if (in_.is_first_rank()) {
    in_.world.log(Subsystem::session)
        .info("what ranks have in memory, up to {} steps, is not enough to go on from: {}",
              steps.front().over.value, why);
  }
  return false;
}

bool Recovery::is_holder() const {
  return std::find(step_.holders.begin(), step_.holders.end(), in_.rank()) != step_.holders.end();
}

/// The step is finished by those who were not told what was decided on it.
Result<void> Recovery::finish_step() {
  if (!step_.decided_by) return {};
  const auto key = fmt::format("{}decision", kPrefix);
  if (*step_.decided_by == in_.rank()) TRY(in_.rendezvous.set(key, remains_->decision()));
  const bool finishes =
      std::find(step_.finishing.begin(), step_.finishing.end(), in_.rank()) != step_.finishing.end();
  if (!finishes) return {};
  return remains_->finish(TRY(in_.rendezvous.get(key, in_.options.checkpoint.deadline)));
}

/// One that has made the step tells the rest of the state, which is the same on all ranks.
Result<void> Recovery::share_progress() {
  const auto key = fmt::format("{}progress", kPrefix);
  if (step_.holders.front() == in_.rank()) {
    TRY(in_.rendezvous.set(key, TRY(core::value_text(Saves::values_of(remains_->progress(), {})))));
  }
  const auto values = TRY(core::parse_value(TRY(in_.rendezvous.get(key, in_.options.checkpoint.deadline))));
  const auto* over = values.find("step");
  const auto* trained = values.find("optimizer_steps");
  if (over == nullptr || trained == nullptr || over->as_int() != step_.over.value || !trained->as_int())
    return core::fail(Errc::corrupt, "the progress of rank {} arrived altered", step_.holders.front().value);
  loaded_.optimizer_steps = {*trained->as_int()};
  loaded_.steps_missed =
      TRY(core::steps_missed_in(values.find(core::kStepsMissedKey), loaded_.optimizer_steps));
  loaded_.loss_scaling = TRY(loss_scaling_of(values.find("loss_scaling")));
  loaded_.restored.step = core::next_step(step_.over);
  loaded_.restored.last = TRY(last_step_of(values.find(kLastStepKey), step_.over));
  loaded_.restored.is_in_memory = true;
  loaded_.restored.name = fmt::format("the memory of {} of {} ranks", step_.holders.size(), reports_.size());
  progress_ = {step_.over, loaded_.optimizer_steps, loaded_.steps_missed, loaded_.loss_scaling,
               loaded_.restored.last};
  return {};
}

Result<void> Recovery::take_memory() {
  if (!stays()) return {};
  CHECK(in_.data.take_memory(remains_->data()), "memory that stays is divided as before");
  has_taken_memory_ = true;
  const auto taken = in_.data.tensors().pieces_of(in_.state, {});
  std::copy(taken.begin(), taken.end(), memory_.begin());
  // A step that was not decided may have left some.
  return in_.data.sums().clear_all(in_.options.step_deadline);
}

Result<void> Recovery::exchange() {
  const bool is_on_host = in_.world.device().is_host_memory();
  HeldBoxes held(is_on_host ? LoadExchange::Source::lasting : LoadExchange::Source::device);
  if (is_holder()) held.add(remains_->state().structure, spans_of(stays() ? memory_ : remains_->memory()));
  LoadExchange::Wanted wanted;
  if (!stays()) wanted = {core::targets_of(in_.state.structure), spans_of(memory_)};
  std::unique_ptr<UploadPool> uploads;
  if (const auto& checkpoint = in_.options.checkpoint; !is_on_host) {
    constexpr std::size_t kThreads = 1;
    uploads = TRY(
        UploadPool::create(in_.world.device(), checkpoint.load.staging_bytes, kThreads, checkpoint.deadline));
  }
  JointLoad load({in_.world, in_.inbox, in_.rendezvous, in_.data.launches(), hosts_,
                  in_.options.checkpoint.load, in_.options.checkpoint.deadline, true},
                 kPrefix);
  return load.share(*survival_, std::move(wanted), held, uploads.get());
}

}  // namespace troupe::actors
