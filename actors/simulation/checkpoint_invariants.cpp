#include "actors/simulation/checkpoint_invariants.hpp"

#include <fmt/format.h>

#include "actors/roles/machine.hpp"

namespace troupe::actors {

using messages::Role;

namespace {

/// Other roles also hold buckets and write chunks, and count their own saves.
bool is_ours(Role role) {
  return role == Role::trainer || role == Role::parameter_shard || role == Role::checkpoint_writer ||
         role == Role::checkpoint_coordinator;
}

}  // namespace

void CheckpointInvariants::on_message(const messages::Envelope& envelope) {
  const auto& to = envelope.to;
  const auto rank = envelope.from.rank;
  if (!is_ours(envelope.from.role) || !is_ours(to.role)) return;
  dispatch(
      envelope.body,
      Overloaded{[&](const messages::SaveBegan& m) { on(rank, m, to); },
                 [&](const messages::BucketStaged& m) { on(rank, m, to); },
                 [&](const messages::SaveAnnounced& m) { all_[m.sequence].announced.insert(rank); },
                 [&](const messages::ChunkStaged& m) {
                   auto& buffer = buffers_[{rank, m.credit}];
                   if (buffer.use == Buffer::Use::staging) buffer.use = Buffer::Use::staged;
                 },
                 [&](const messages::ChunkWritten& m) { on(rank, m); },
                 [&](const messages::FilesDurable& m) { on(rank, m, to); },
                 [&](const messages::SaveCommitDone& m) { all_[m.sequence].committed = !m.failure.failed; },
                 [&](const messages::SaveOver& m) { on(rank, m, to); }});
}

void CheckpointInvariants::on_work(const messages::Address& who, const Work& work) {
  const auto rank = who.rank;
  if (const auto* step = work_if<StepShard>(work)) on(rank, *step);
  const auto* checkpoint = std::get_if<CheckpointWork>(&work);
  if (checkpoint == nullptr || !is_ours(who.role)) return;
  auto handle = Overloaded{[&](const StageChunk& w) { on(rank, w); },
                           [&](const WriteChunk& w) { on(rank, w); },
                           [&](const FinishFiles& w) { on(rank, w); },
                           [&](const CloseSave& w) { part(rank, w.sequence).closed = true; },
                           [&](const CommitSave& w) { on(w); },
                           [](const auto&) {}};
  std::visit(handle, *checkpoint);
}

void CheckpointInvariants::on(core::Rank rank, const messages::SaveBegan& begun,
                              const messages::Address& to) {
  if (to.role == Role::parameter_shard) part(rank, begun.sequence).held[{to.index}] = begun.step;
}

void CheckpointInvariants::on(core::Rank rank, const messages::BucketStaged& staged,
                              const messages::Address& to) {
  auto& ours = part(rank, staged.sequence);
  if (to.role == Role::parameter_shard) ours.held.erase({to.index});
  if (ours.released.insert({to.role, to.index}).second) return;
  violate_(fmt::format("CK-2: rank {} released {} {} twice in save {}", rank.value,
                       messages::name_of(to.role), to.index, staged.sequence));
}

void CheckpointInvariants::on(core::Rank rank, const StepShard& work) {
  for (const auto& [sequence, save] : all_) {
    const auto ours = save.parts.find(rank);
    if (ours == save.parts.end()) continue;
    const auto held = ours->second.held.find(work.bucket);
    if (held == ours->second.held.end() || held->second >= work.step) continue;
    violate_(fmt::format("CK-6: rank {} applies step {} to bucket {}, of which save {} wants the state of {}",
                         rank.value, work.step.value, work.bucket.value, sequence, held->second.value));
  }
}

void CheckpointInvariants::on(core::Rank rank, const StageChunk& work) {
  auto& buffer = buffers_[{rank, work.credit}];
  // What was staged for a save that has ended will not be written.
  // A writer that takes another's place sends each buffer once behind all that used it.
  if (work.sequence == 0) return;
  const bool is_free = buffer.use == Buffer::Use::free ||
                       (buffer.use == Buffer::Use::staged && part(rank, buffer.sequence).closed);
  if (!is_free) {
    violate_(fmt::format("CK-3: rank {} stages chunk {} of save {} into buffer {}, which save {} still uses",
                         rank.value, work.chunk, work.sequence, work.credit, buffer.sequence));
  }
  buffer = {Buffer::Use::staging, work.sequence};
  part(rank, work.sequence).asked += 1;
}

void CheckpointInvariants::on(core::Rank rank, const WriteChunk& work) {
  if (work.sequence == 0) return;
  auto& buffer = buffers_[{rank, work.credit}];
  if (buffer.use != Buffer::Use::staged || buffer.sequence != work.sequence) {
    violate_(fmt::format("CK-3: rank {} writes chunk {} of save {} from buffer {}, which does not hold it",
                         rank.value, work.chunk, work.sequence, work.credit));
  }
  buffer.use = Buffer::Use::writing;
}

void CheckpointInvariants::on(core::Rank rank, const messages::ChunkWritten& written) {
  buffers_[{rank, written.credit}].use = Buffer::Use::free;
  if (written.sequence != 0 && !written.failure.failed) part(rank, written.sequence).written += 1;
}

void CheckpointInvariants::on(core::Rank rank, const FinishFiles& work) {
  auto& ours = part(rank, work.sequence);
  ours.finishing = true;
  if (ours.written == ours.asked) return;
  violate_(fmt::format("CK-4: rank {} makes save {} durable after {} of {} chunks", rank.value, work.sequence,
                       ours.written, ours.asked));
}

void CheckpointInvariants::on(core::Rank rank, const messages::FilesDurable& durable,
                              const messages::Address& to) {
  auto& ours = part(rank, durable.sequence);
  if (to.role == Role::checkpoint_writer) {
    ours.durable = ours.finishing && !durable.failure.failed;
    return;
  }
  if (!ours.durable) {
    violate_(fmt::format("CK-4: rank {} says that its files of save {} are durable, and they are not",
                         rank.value, durable.sequence));
  }
  all_[durable.sequence].durable.insert(rank);
}

void CheckpointInvariants::on(const CommitSave& work) {
  const auto& save = all_[work.sequence];
  if (save.durable == save.announced) return;
  violate_(fmt::format("CK-1: save {} is committed with {} of {} ranks durable", work.sequence,
                       save.durable.size(), save.announced.size()));
}

void CheckpointInvariants::on(core::Rank rank, const messages::SaveOver& over, const messages::Address& to) {
  if (to.role != Role::trainer) return;
  auto& save = all_[over.sequence];
  auto& ours = save.parts[rank];
  if (!ours.held.empty()) {
    violate_(fmt::format("CK-2: save {} has ended on rank {}, and {} buckets are not released", over.sequence,
                         rank.value, ours.held.size()));
  }
  if (!over.failure.failed && !save.committed)
    violate_(fmt::format("CK-1: save {} is called committed, and the disk did not say so", over.sequence));
  if (std::exchange(ours.told, true))
    violate_(fmt::format("CK-5: the trainer of rank {} hears twice of save {}", rank.value, over.sequence));
  if (!save.over) {
    save.over = over;
    saves_.push_back(over);
  } else if (!(*save.over == over)) {
    violate_(fmt::format("CK-5: rank {} hears another end of save {} than other ranks", rank.value,
                         over.sequence));
  }
}

}  // namespace troupe::actors
