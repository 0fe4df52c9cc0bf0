#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/roles/chunks.hpp"
#include "actors/roles/machine.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "core/list.hpp"
#include "messages/checkpoint.hpp"

namespace troupe::actors {

struct CheckpointWriterConfig {
  core::Rank rank{};
  std::uint32_t buckets = 0;                 ///< each held by its ParameterShard
  bool trainer_holds = false;                ///< one more bucket, held by the trainer: its own tensors
  core::SaveStructure structure;             ///< what this rank could write
  std::vector<core::BucketIndex> bucket_of;  ///< per piece
  std::uint64_t chunk_bytes = 0;
  /// Sizes of the chunks that staging buffers are for, the smallest first; the last buffer holds any chunk.
  /// Each buffer is a credit.
  std::vector<std::uint64_t> staging;
  /// The role that decides what is written and where.
  messages::Address coordinator{core::Rank{0}, messages::Role::checkpoint_coordinator, 0};
  /// A save that holds up updates for longer fails, so that an unresponsive disk does not end the job; 0: as
  /// long as it takes.
  std::chrono::nanoseconds hold_deadline{};
  bool tells_trainer = true;  ///< about the end of saves; otherwise the coordinator does
};

/// One rank's part in saves: accepted -> staging -> staged -> written -> durable -> committed, and from every
/// state -> failed (here) or aborted (elsewhere). Saves are processed one at a time, in order; the others
/// wait as accepted.
///
/// CK-2: a bucket is released exactly once per save, when all of it is staged, or when the save has ended and
/// no chunk of it is being copied; until then no update touches it. CK-3: there are never more chunks in
/// flight than credits. CK-4: a rank says that its files are durable only after every chunk is written and
/// synced.
class CheckpointWriterMachine final : public Machine {
 public:
  explicit CheckpointWriterMachine(CheckpointWriterConfig config);

  void receive(const messages::Envelope& envelope, Outbox& outbox) override;
  void timer(TimerId id, Outbox& outbox) override;
  /// One that has failed every save that was not over, and begins the next when nothing is being copied or
  /// written any more.
  std::unique_ptr<Machine> successor(const messages::Failure& why, const messages::Envelope* heard,
                                     Outbox& outbox) const override;
  std::string_view state() const override;
  std::string waiting_for() const override;
  const CheckpointWriterConfig& config() const { return config_; }

 private:
  enum class State : std::uint8_t {
    idle,
    accepted,
    staging,
    staged,
    written,
    durable,
    committed,
    failed,
    aborted
  };
  static constexpr TimerId kHold = 0;
  static constexpr std::uint64_t kNoSave = 0;  ///< saves are counted from 1
  struct Bucket {
    bool held = false;
    bool released = false;
    std::uint32_t chunks_to_stage = 0;
  };
  struct Save {
    std::uint64_t sequence = 0;
    State state = State::accepted;
    bool planned = false;
    std::string directory;
    std::vector<std::uint32_t> pieces;
    std::vector<SaveChunk> chunks;
    core::List<core::BucketIndex, Bucket> buckets;
    std::uint32_t asked = 0;  ///< chunks whose staging was requested
    std::uint32_t staged = 0;
    std::uint32_t written = 0;
    std::set<std::uint32_t> copying;  ///< chunks; they are not waited for by what ends a save
    messages::Failure failure;        ///< if it failed
    std::optional<messages::SaveOver> over;
  };

  void on(const messages::SaveBegan& begun, Outbox& outbox);
  void on(const messages::BucketHeld& held, Outbox& outbox);
  void on(const messages::StructureWanted& wanted, Outbox& outbox);
  void on(const messages::SavePlanned& planned, Outbox& outbox);
  void on(const messages::ChunkStaged& staged, Outbox& outbox);
  void on(const messages::ChunkWritten& written, Outbox& outbox);
  void on(const messages::FilesDurable& durable, Outbox& outbox);
  void on(const messages::SaveOver& over, Outbox& outbox);
  bool is_of_structure(std::span<const std::uint32_t> pieces) const;
  void advance(Outbox& outbox);
  std::uint32_t buckets() const { return config_.buckets + (config_.trainer_holds ? 1 : 0); }
  /// Watches the oldest save that holds buckets.
  void watch(Outbox& outbox);
  void stage_chunks(Save& save, Outbox& outbox);
  /// The smallest free staging buffer that holds this many bytes.
  std::optional<std::uint32_t> take_credit(std::uint64_t bytes);
  void announce(const messages::SaveBegan& begun, Outbox& outbox) const;
  void take_over(const Save& save, const messages::Failure& why, Outbox& outbox);
  void recover(const messages::Envelope& heard, const messages::Failure& why, Outbox& outbox);
  /// Each credit goes once through the plane, in the name of no save, behind everything that used it.
  void drain(Outbox& outbox);
  void drained(std::uint32_t credit, Outbox& outbox);
  void release(Save& save, core::BucketIndex bucket, Outbox& outbox);
  /// All buckets of a save that has ended, but those of which a chunk is still being copied.
  void release_all(Save& save, Outbox& outbox);
  /// Once a save has ended and nothing of it is being copied.
  void end(Outbox& outbox);
  void fail(Save& save, messages::Failure failure, Outbox& outbox);
  /// The save in progress, if it has this sequence.
  Save* current(std::uint64_t sequence);
  Save* find(std::uint64_t sequence);
  messages::Address peer(messages::Role role, std::uint32_t index = 0) const {
    return {config_.rank, role, index};
  }
  const messages::Address& coordinator() const { return config_.coordinator; }

  CheckpointWriterConfig config_;
  std::string structure_text_;
  std::uint64_t structure_hash_ = 0;
  std::deque<Save> saves_;  ///< the first is worked on; as many as the trainer began before their buckets
                            ///< hold it up
  std::uint64_t last_begun_ = 0;
  std::vector<messages::BucketHeld> early_;  ///< of a save whose SaveBegan has not arrived here yet
  std::set<std::uint32_t> free_credits_;
  std::set<std::uint32_t> draining_;  ///< credits, of a successor
  std::uint64_t watched_ = 0;         ///< the save that the timer is for; 0: none
  State last_ = State::idle;          ///< how the last save ended
};

}  // namespace troupe::actors
