#include "actors/roles/checkpoint_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "core/enum_names.hpp"
#include "core/hash.hpp"
#include "core/indices.hpp"

namespace troupe::actors {

using messages::Role;

namespace {

/// A message takes a megabyte at most.
constexpr std::size_t kPartBytes = std::size_t{256} << 10;

}  // namespace

CheckpointWriterMachine::CheckpointWriterMachine(CheckpointWriterConfig config)
    : config_(std::move(config)),
      structure_text_(core::to_text(config_.structure)),
      structure_hash_(core::hash64(structure_text_)) {
  for (std::uint32_t credit = 0; credit < config_.staging.size(); ++credit) free_credits_.insert(credit);
}

void CheckpointWriterMachine::receive(const messages::Envelope& envelope, Outbox& outbox) {
  dispatch(envelope.body, Overloaded{[&](const messages::SaveBegan& m) { on(m, outbox); },
                                     [&](const messages::BucketHeld& m) { on(m, outbox); },
                                     [&](const messages::StructureWanted& m) { on(m, outbox); },
                                     [&](const messages::SavePlanned& m) { on(m, outbox); },
                                     [&](const messages::ChunkStaged& m) { on(m, outbox); },
                                     [&](const messages::ChunkWritten& m) { on(m, outbox); },
                                     [&](const messages::FilesDurable& m) { on(m, outbox); },
                                     [&](const messages::SaveOver& m) { on(m, outbox); }});
  watch(outbox);
}

void CheckpointWriterMachine::on(const messages::SaveBegan& begun, Outbox& outbox) {
  if (begun.sequence <= last_begun_) return;
  Save save;
  save.sequence = begun.sequence;
  save.buckets.resize(buckets());
  for (const auto& held : early_) {
    if (held.sequence == begun.sequence) save.buckets[held.bucket].held = true;
  }
  announce(begun, outbox);
  saves_.push_back(std::move(save));
  last_begun_ = begun.sequence;
  std::erase_if(early_, [&](const auto& held) { return held.sequence <= begun.sequence; });
}

void CheckpointWriterMachine::announce(const messages::SaveBegan& begun, Outbox& outbox) const {
  const bool first = config_.rank.value == 0;
  outbox.send(coordinator(),
              messages::SaveAnnounced{begun.sequence, config_.rank, begun.step, structure_hash_,
                                      core::hash64(begun.common), first ? begun.topology : "",
                                      first ? begun.common : "", begun.objects});
}

void CheckpointWriterMachine::on(const messages::StructureWanted& wanted, Outbox& outbox) {
  const auto parts = static_cast<std::uint32_t>((structure_text_.size() + kPartBytes - 1) / kPartBytes);
  if (wanted.structure_hash != structure_hash_ || wanted.part >= parts) return;
  outbox.send(coordinator(),
              messages::StructurePart{structure_hash_, wanted.part, parts,
                                      structure_text_.substr(wanted.part * kPartBytes, kPartBytes)});
}

void CheckpointWriterMachine::on(const messages::BucketHeld& held, Outbox& outbox) {
  if (held.bucket.value >= buckets()) return;
  if (held.sequence > last_begun_) early_.push_back(held);
  Save* save = find(held.sequence);
  if (save == nullptr) return;
  save->buckets[held.bucket].held = true;
  advance(outbox);
}

void CheckpointWriterMachine::on(const messages::SavePlanned& planned, Outbox& outbox) {
  Save* save = find(planned.sequence);
  if (save == nullptr || save->planned) return;
  save->planned = true;
  if (save->state == State::failed) {
    // The coordinator was still busy with another save when this one failed here.
    outbox.send(coordinator(), messages::SaveFailed{save->sequence, config_.rank, save->failure});
    return;
  }
  if (!is_of_structure(planned.pieces)) {
    fail(*save,
         {true, core::Errc::mismatch,
          fmt::format("the plan names pieces that this rank does not have; it has {}, each may come once",
                      config_.structure.pieces.size())},
         outbox);
    return;
  }
  save->directory = planned.directory;
  save->pieces = planned.pieces;
  const auto files = core::plan_files(config_.structure, save->pieces, config_.rank);
  save->chunks = chunks_of(config_.structure, files, config_.bucket_of, config_.chunk_bytes);
  for (const auto& chunk : save->chunks) save->buckets[chunk.bucket].chunks_to_stage += 1;
  advance(outbox);
}

bool CheckpointWriterMachine::is_of_structure(std::span<const std::uint32_t> pieces) const {
  const bool ascend =
      std::adjacent_find(pieces.begin(), pieces.end(), std::greater_equal<>()) == pieces.end();
  return ascend && (pieces.empty() || pieces.back() < config_.structure.pieces.size());
}

void CheckpointWriterMachine::advance(Outbox& outbox) {
  if (!draining_.empty() || saves_.empty() || !saves_.front().planned || saves_.front().over) return;
  Save& save = saves_.front();
  if (save.state == State::accepted) {
    save.state = State::staging;
    outbox.perform(OpenSave{save.sequence, save.directory, save.pieces});
    for (const auto bucket : core::indices<core::BucketIndex>(buckets())) {
      if (save.buckets[bucket].chunks_to_stage == 0) release(save, bucket, outbox);
    }
  }
  if (save.state == State::staging) {
    stage_chunks(save, outbox);
    if (save.staged == save.chunks.size()) save.state = State::staged;
  }
  if (save.state == State::staged && save.written == save.chunks.size()) {
    save.state = State::written;
    outbox.perform(FinishFiles{save.sequence});
  }
}

void CheckpointWriterMachine::stage_chunks(Save& save, Outbox& outbox) {
  while (save.asked < save.chunks.size()) {
    // In order, so that they reach the files in order.
    const auto& chunk = save.chunks[save.asked];
    if (!save.buckets[chunk.bucket].held) return;
    const auto credit = take_credit(chunk.bytes);
    if (!credit) return;
    outbox.perform(StageChunk{save.sequence, save.asked, *credit});
    save.copying.insert(save.asked);
    save.asked += 1;
  }
}

std::optional<std::uint32_t> CheckpointWriterMachine::take_credit(std::uint64_t bytes) {
  const auto found = std::find_if(free_credits_.begin(), free_credits_.end(),
                                  [&](std::uint32_t credit) { return config_.staging[credit] >= bytes; });
  if (found == free_credits_.end()) return std::nullopt;
  const auto credit = *found;
  free_credits_.erase(found);
  return credit;
}

void CheckpointWriterMachine::on(const messages::ChunkStaged& staged, Outbox& outbox) {
  if (!draining_.empty()) {
    if (staged.sequence == kNoSave) outbox.perform(WriteChunk{kNoSave, 0, staged.credit});
    return;
  }
  Save* save = find(staged.sequence);
  if (save != nullptr) save->copying.erase(staged.chunk);
  if (save == nullptr || save->over || save->state != State::staging) {
    free_credits_.insert(staged.credit);
    if (save != nullptr) release_all(*save, outbox);
    end(outbox);
  } else {
    const auto bucket = save->chunks[staged.chunk].bucket;
    save->staged += 1;
    save->buckets[bucket].chunks_to_stage -= 1;
    if (save->buckets[bucket].chunks_to_stage == 0) release(*save, bucket, outbox);
    outbox.perform(WriteChunk{staged.sequence, staged.chunk, staged.credit});
  }
  advance(outbox);
}

void CheckpointWriterMachine::on(const messages::ChunkWritten& written, Outbox& outbox) {
  if (!draining_.empty()) {
    if (written.sequence == kNoSave) drained(written.credit, outbox);
    return;
  }
  free_credits_.insert(written.credit);
  Save* save = current(written.sequence);
  if (save != nullptr && (save->state == State::staging || save->state == State::staged)) {
    if (written.failure.failed) {
      fail(*save, written.failure, outbox);
    } else {
      save->written += 1;
    }
  }
  advance(outbox);
}

void CheckpointWriterMachine::on(const messages::FilesDurable& durable, Outbox& outbox) {
  Save* save = current(durable.sequence);
  if (save == nullptr || save->state != State::written) return;
  if (durable.failure.failed) {
    fail(*save, durable.failure, outbox);
    return;
  }
  save->state = State::durable;
  outbox.send(coordinator(), messages::FilesDurable{durable.sequence, config_.rank, durable.hashes, {}});
}

void CheckpointWriterMachine::fail(Save& save, messages::Failure failure, Outbox& outbox) {
  save.state = State::failed;
  outbox.perform(CloseSave{save.sequence});
  release_all(save, outbox);
  save.failure = std::move(failure);
  outbox.send(coordinator(), messages::SaveFailed{save.sequence, config_.rank, save.failure});
}

void CheckpointWriterMachine::watch(Outbox& outbox) {
  if (config_.hold_deadline.count() == 0) return;
  const auto holds = [](const Save& save) {
    return !save.over && (save.state == State::accepted || save.state == State::staging);
  };
  const auto oldest = std::find_if(saves_.begin(), saves_.end(), holds);
  const auto sequence = oldest == saves_.end() ? 0 : oldest->sequence;
  if (std::exchange(watched_, sequence) == sequence) return;
  if (sequence != 0) {
    outbox.arm(kHold, config_.hold_deadline);
  } else {
    outbox.cancel(kHold);
  }
}

void CheckpointWriterMachine::timer(TimerId, Outbox& outbox) {
  Save* save = find(std::exchange(watched_, 0));
  if (save != nullptr && !save->over && (save->state == State::accepted || save->state == State::staging)) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(config_.hold_deadline).count();
    fail(
        *save,
        {true, core::Errc::timeout,
         fmt::format("the save has held up training for {} s and is given up: {} of {} chunks are staged, {} "
                     "written; the disk is too slow, or there is too little memory for staging",
                     seconds, save->staged, save->chunks.size(), save->written)},
        outbox);
    advance(outbox);
  }
  watch(outbox);
}

void CheckpointWriterMachine::release(Save& save, core::BucketIndex bucket, Outbox& outbox) {
  if (save.buckets[bucket].released) return;
  const auto holder =
      bucket.value < config_.buckets ? peer(Role::parameter_shard, bucket.value) : peer(Role::trainer);
  outbox.send(holder, messages::BucketStaged{save.sequence});
  save.buckets[bucket].released = true;
}

void CheckpointWriterMachine::release_all(Save& save, Outbox& outbox) {
  if (!draining_.empty()) return;
  std::set<std::uint32_t> copied;
  for (const auto chunk : save.copying) copied.insert(save.chunks[chunk].bucket.value);
  for (const auto bucket : core::indices<core::BucketIndex>(buckets())) {
    if (!copied.contains(bucket.value)) release(save, bucket, outbox);
  }
}

void CheckpointWriterMachine::on(const messages::SaveOver& over, Outbox& outbox) {
  const auto save = std::find_if(saves_.begin(), saves_.end(),
                                 [&](const Save& candidate) { return candidate.sequence == over.sequence; });
  if (save == saves_.end() || save->over) return;
  save->over = over;
  release_all(*save, outbox);
  const bool open = save->state != State::accepted && save->state != State::failed;
  if (open) outbox.perform(CloseSave{save->sequence});
  end(outbox);
  advance(outbox);
}

void CheckpointWriterMachine::end(Outbox& outbox) {
  if (!draining_.empty()) return;
  const auto save = std::find_if(saves_.begin(), saves_.end(), [](const Save& candidate) {
    return candidate.over && candidate.copying.empty();
  });
  if (save == saves_.end()) return;
  const auto over = *std::move(save->over);
  last_ = !over.failure.failed           ? State::committed
          : save->state == State::failed ? State::failed
                                         : State::aborted;
  saves_.erase(save);
  if (config_.tells_trainer) outbox.send(peer(Role::trainer), over);
}

CheckpointWriterMachine::Save* CheckpointWriterMachine::current(std::uint64_t sequence) {
  const bool is_current = !saves_.empty() && saves_.front().sequence == sequence && !saves_.front().over;
  return is_current ? &saves_.front() : nullptr;
}

CheckpointWriterMachine::Save* CheckpointWriterMachine::find(std::uint64_t sequence) {
  const auto save = std::find_if(saves_.begin(), saves_.end(),
                                 [&](const Save& candidate) { return candidate.sequence == sequence; });
  return save == saves_.end() ? nullptr : &*save;
}

std::string_view CheckpointWriterMachine::state() const {
  static constexpr auto kNames = core::enum_names<State>("idle", "accepted", "staging", "staged", "written",
                                                         "durable", "committed", "failed", "aborted");
  return kNames[saves_.empty() ? last_ : saves_.front().state];
}

std::string CheckpointWriterMachine::waiting_for() const {
  if (saves_.empty()) return {};
  const Save& save = saves_.front();
  switch (save.state) {
    case State::accepted:
      return fmt::format("the plan of save {}", save.sequence);
    case State::staging:
    case State::staged:
      return fmt::format("save {}: {} of {} chunks are staged, {} written", save.sequence, save.staged,
                         save.chunks.size(), save.written);
    case State::written:
      return fmt::format("save {}: the disk to make its files durable", save.sequence);
    case State::durable:
    case State::failed:
      return fmt::format("the coordinator's word on save {}", save.sequence);
    default:
      return {};
  }
}

}  // namespace troupe::actors
