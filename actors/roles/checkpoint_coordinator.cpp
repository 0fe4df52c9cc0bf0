#include "actors/roles/checkpoint_coordinator.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/checkpoint/values_text.hpp"
#include "core/enum_names.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/step_count.hpp"

namespace troupe::actors {

using core::Errc;
using messages::Role;

namespace {

/// A rank's list of pieces and its hashes each fit into one message.
constexpr std::size_t kMaxPieces = 100'000;
constexpr std::uint32_t kMaxParts = 4096;

}  // namespace

CheckpointCoordinatorMachine::CheckpointCoordinatorMachine(CheckpointCoordinatorConfig config)
    : config_(config) {}

void CheckpointCoordinatorMachine::receive(const messages::Envelope& envelope, Outbox& outbox) {
  dispatch(envelope.body, Overloaded{[&](const messages::SaveAnnounced& m) { on(m, outbox); },
                                     [&](const messages::StructurePart& m) { on(m, outbox); },
                                     [&](const messages::SaveDirectoryMade& m) { on(m, outbox); },
                                     [&](const messages::FilesDurable& m) { on(m, outbox); },
                                     [&](const messages::SaveFailed& m) {
                                       const bool counts = m.sequence == sequence_ && state_ != State::idle &&
                                                           state_ != State::committing && is_member(m.rank);
                                       if (counts) finish_for(m.rank, m.failure, outbox);
                                     },
                                     [&](const messages::SaveCommitDone& m) { on(m, outbox); }});
}

void CheckpointCoordinatorMachine::on(const messages::SaveAnnounced& announced, Outbox& outbox) {
  if (!is_member(announced.rank)) return;
  auto& last = last_announced_[announced.rank];
  if (announced.sequence <= last) return;
  last = announced.sequence;
  auto& save = saves_[announced.sequence];
  save.announced[announced.rank] = announced;
  const bool busy = state_ != State::idle && announced.sequence != sequence_;
  if (busy && config_.when_busy == core::WhenBusy::refuse && !save.over) {
    messages::Failure failure{
        true, Errc::unavailable,
        fmt::format("save {} was refused: save {} is not over", announced.sequence, sequence_)};
    save.over = messages::SaveOver{announced.sequence, announced.step, {}, 0, {}, failure};
    for (const auto& [rank, earlier] : save.announced) {
      if (rank != announced.rank) tell(rank, *save.over, outbox);
    }
  }
  if (save.over) {
    tell(announced.rank, *save.over, outbox);
    if (save.announced.size() == static_cast<std::size_t>(config_.world.value))
      saves_.erase(announced.sequence);
    return;
  }
  if (busy) return;
  if (state_ == State::idle) {
    begin_next(outbox);
  } else {
    plan_when_ready(outbox);
  }
}

void CheckpointCoordinatorMachine::begin_next(Outbox& outbox) {
  const auto next = std::find_if(saves_.begin(), saves_.end(),
                                 [](const auto& save) { return !save.second.over.has_value(); });
  if (next == saves_.end()) return;
  sequence_ = next->first;
  step_ = next->second.announced.begin()->second.step;
  directory_.clear();
  durable_.clear();
  state_ = State::gathering;
  outbox.arm(kDeadline, config_.deadline);
  plan_when_ready(outbox);
}

void CheckpointCoordinatorMachine::plan_when_ready(Outbox& outbox) {
  if (state_ != State::gathering || !missing().empty()) return;
  step_ = active().announced.begin()->second.step;
  bool known = true;
  for (const auto& [rank, announced] : active().announced) {
    if (announced.step != step_) {
      finish({true, Errc::mismatch,
              fmt::format("rank {} saves after step {}, rank 0 after step {}", rank.value,
                          announced.step.value, step_.value)},
             outbox);
      return;
    }
    const auto hash = announced.structure_hash;
    if (structures_.contains(hash)) continue;
    known = false;
    if (arriving_.try_emplace(hash, Parts{rank}).second) tell(rank, messages::StructureWanted{hash}, outbox);
  }
  if (!known) return;
  if (auto planned = plan(); !planned) {
    finish(messages::failure_of(planned), outbox);
    return;
  }
  state_ = State::preparing;
  const auto id = core::hash64(fmt::format("{} {}", sequence_, step_.value), config_.save_seed);
  directory_ = fmt::format("{}.tmp-{}", core::checkpoint_name(core::steps_through(step_)), core::hex64(id));
  outbox.perform(MakeSaveDirectory{sequence_, directory_});
}

core::Result<void> CheckpointCoordinatorMachine::plan() {
  std::vector<std::uint64_t> hashes;
  std::vector<const core::SaveStructure*> structures;
  for (const auto& [rank, announced] : active().announced) {
    hashes.push_back(announced.structure_hash);
    structures.push_back(structures_.at(announced.structure_hash).get());
  }
  if (hashes == planned_hashes_) return {};
  planned_hashes_.clear();
  plan_ = TRY(core::plan_save(structures));
  for (std::size_t rank = 0; rank < plan_.assigned.size(); ++rank) {
    if (plan_.assigned[rank].size() > kMaxPieces)
      return core::fail(Errc::invalid_argument,
                        "rank {} would write {} pieces, more than {}; use larger tensors", rank,
                        plan_.assigned[rank].size(), kMaxPieces);
  }
  planned_hashes_ = std::move(hashes);
  std::erase_if(structures_, [this](const auto& entry) {
    return std::find(planned_hashes_.begin(), planned_hashes_.end(), entry.first) == planned_hashes_.end();
  });
  return {};
}

void CheckpointCoordinatorMachine::on(const messages::StructurePart& part, Outbox& outbox) {
  const auto found = arriving_.find(part.structure_hash);
  if (found == arriving_.end() || part.part >= part.parts || part.parts > kMaxParts) return;
  auto& arriving = found->second;
  if (arriving.next == 0) arriving.parts = part.parts;
  if (part.part != arriving.next || part.parts != arriving.parts) return;
  arriving.text += part.text;
  if (++arriving.next < arriving.parts) {
    return tell(arriving.from, messages::StructureWanted{part.structure_hash, arriving.next}, outbox);
  }
  const std::string text = std::move(arriving.text);
  arriving_.erase(found);
  auto structure = core::parse_structure(text);
  if (core::hash64(text) != part.structure_hash || !structure) {
    if (state_ != State::gathering) return;
    finish({true, Errc::corrupt,
            "what a rank could write arrived altered: " +
                (structure ? std::string("its hash differs") : structure.error().message)},
           outbox);
    return;
  }
  structures_[part.structure_hash] = std::make_shared<const core::SaveStructure>(std::move(*structure));
  plan_when_ready(outbox);
}

void CheckpointCoordinatorMachine::on(const messages::SaveDirectoryMade& made, Outbox& outbox) {
  if (state_ != State::preparing || made.sequence != sequence_) return;
  if (made.failure.failed) {
    finish(made.failure, outbox);
    return;
  }
  state_ = State::writing;
  outbox.arm(kDeadline, config_.deadline);
  for (const auto& [rank, announced] : active().announced) {
    tell(rank,
         messages::SavePlanned{sequence_, directory_, plan_.assigned[static_cast<std::size_t>(rank.value)]},
         outbox);
  }
}

void CheckpointCoordinatorMachine::on(const messages::FilesDurable& durable, Outbox& outbox) {
  if (state_ != State::writing || durable.sequence != sequence_ || !is_member(durable.rank)) return;
  if (durable.failure.failed) {
    finish_for(durable.rank, durable.failure, outbox);
    return;
  }
  const auto expected = plan_.assigned[static_cast<std::size_t>(durable.rank.value)].size();
  if (durable.hashes.size() != expected) {
    finish({true, Errc::internal,
            fmt::format("rank {} wrote {} shards, {} were planned", durable.rank.value, durable.hashes.size(),
                        expected)},
           outbox);
    return;
  }
  durable_[durable.rank] = {durable.hashes};
  if (durable_.size() == static_cast<std::size_t>(config_.world.value)) commit(outbox);
}

core::Result<std::string> CheckpointCoordinatorMachine::manifest() const {
  std::vector<const core::SaveStructure*> structures;
  std::vector<core::WrittenShards> written;
  for (const auto& [rank, announced] : active().announced) {
    structures.push_back(structures_.at(announced.structure_hash).get());
    written.push_back(durable_.at(rank));
  }
  auto manifest = core::manifest_of(structures, plan_, written);
  manifest.step = core::steps_through(step_);
  manifest.save = directory_.substr(directory_.rfind('-') + 1);
  for (const auto& [rank, announced] : active().announced) {
    for (auto& object : TRY(core::parse_objects(announced.objects)))
      manifest.objects.push_back(std::move(object));
    if (rank.value != 0) continue;
    manifest.common = TRY(core::parse_value(announced.common));
    manifest.topology = TRY(core::parse_value(announced.topology));
  }
  // Ranks may pass the same object, which none of them can see.
  TRY(core::check_objects(manifest.objects));
  return core::to_text(manifest);
}

void CheckpointCoordinatorMachine::commit(Outbox& outbox) {
  auto text = manifest();
  if (!text) {
    finish(messages::failure_of(text.error()), outbox);
    return;
  }
  state_ = State::committing;
  outbox.arm(kDeadline, config_.deadline);
  outbox.perform(CommitSave{sequence_, directory_, core::steps_through(step_), std::move(*text)});
}

void CheckpointCoordinatorMachine::on(const messages::SaveCommitDone& done, Outbox& outbox) {
  if (state_ == State::committing && done.sequence == sequence_) finish(done.failure, outbox);
}

std::string CheckpointCoordinatorMachine::common_warning() const {
  const auto& announced = active().announced;
  std::vector<int> differing;
  for (const auto& [rank, other] : announced) {
    if (other.common_hash != announced.begin()->second.common_hash) differing.push_back(rank.value);
  }
  if (differing.empty()) return {};
  return fmt::format("the common state of rank {} differs from rank 0's, which is the one that was saved",
                     fmt::join(differing, ", "));
}

void CheckpointCoordinatorMachine::finish_for(core::Rank rank, messages::Failure failure, Outbox& outbox) {
  failure.message = fmt::format("rank {}: {}", rank.value, failure.message);
  finish(std::move(failure), outbox);
}

void CheckpointCoordinatorMachine::finish(messages::Failure failure, Outbox& outbox) {
  const bool committed = !failure.failed;
  messages::SaveOver over{sequence_, step_, {}, 0, {}, std::move(failure)};
  if (committed) {
    over.directory = core::checkpoint_name(core::steps_through(step_));
    over.bytes = plan_.bytes;
    over.warning = common_warning();
  }
  // If a commit that reported failure did happen after all, nothing of this name is left to discard.
  if (!committed && !directory_.empty()) outbox.perform(DiscardSave{directory_});
  for (const auto& [rank, announced] : active().announced) tell(rank, over, outbox);
  outbox.cancel(kDeadline);
  state_ = State::idle;
  arriving_.clear();
  if (missing().empty()) {
    saves_.erase(sequence_);
  } else {
    saves_[sequence_].over = std::move(over);
  }
  begin_next(outbox);
}

void CheckpointCoordinatorMachine::timer(TimerId, Outbox& outbox) {
  if (state_ == State::idle) return;
  finish({true, Errc::timeout,
          fmt::format("save {} after step {} did not end within {} s: it still waits for {}", sequence_,
                      step_.value, std::chrono::duration_cast<std::chrono::seconds>(config_.deadline).count(),
                      waiting_for())},
         outbox);
}

void CheckpointCoordinatorMachine::tell(core::Rank rank, messages::Message message, Outbox& outbox) const {
  outbox.send({rank, Role::checkpoint_writer, 0}, std::move(message));
}

std::vector<core::Rank> CheckpointCoordinatorMachine::missing() const {
  std::vector<core::Rank> ranks;
  for (std::int32_t rank = 0; rank < config_.world.value; ++rank) {
    if (!active().announced.contains({rank})) ranks.push_back({rank});
  }
  return ranks;
}

std::string_view CheckpointCoordinatorMachine::state() const {
  static constexpr auto kNames =
      core::enum_names<State>("idle", "gathering", "preparing", "writing", "committing");
  return kNames[state_];
}

std::string CheckpointCoordinatorMachine::waiting_for() const {
  std::vector<int> ranks;
  switch (state_) {
    case State::idle:
      return {};
    case State::gathering:
      for (auto rank : missing()) ranks.push_back(rank.value);
      return ranks.empty() ? std::string("what the ranks could write")
                           : fmt::format("rank {} to take part", fmt::join(ranks, ", "));
    case State::preparing:
      return "the directory " + directory_;
    case State::writing:
      for (std::int32_t rank = 0; rank < config_.world.value; ++rank) {
        if (!durable_.contains({rank})) ranks.push_back(rank);
      }
      return fmt::format("rank {} to write", fmt::join(ranks, ", "));
    case State::committing:
      return "the disk to commit " + directory_;
  }
  return {};
}

}  // namespace troupe::actors
