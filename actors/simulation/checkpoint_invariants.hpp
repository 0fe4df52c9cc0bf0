#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/roles/work.hpp"
#include "core/ids.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

/// Checks the saves of one epoch against CK-1 to CK-6 of docs/architecture.md, by the messages that are
/// posted and the work that is requested.
class CheckpointInvariants {
 public:
  /// `violate` takes a whole sentence that begins with the invariant's name.
  explicit CheckpointInvariants(std::function<void(std::string)> violate) : violate_(std::move(violate)) {}

  void on_message(const messages::Envelope& envelope);
  void on_work(const messages::Address& who, const Work& work);

  /// How saves ended, as the first trainer was told, in the order in which it was told.
  const std::vector<messages::SaveOver>& saves() const { return saves_; }

 private:
  /// One rank's part in a save.
  struct Part {
    std::map<core::BucketIndex, core::Step> held;  ///< buckets that no later step may change
    std::set<std::pair<messages::Role, std::uint32_t>> released;
    std::uint32_t asked = 0;
    std::uint32_t written = 0;
    bool closed = false;
    bool finishing = false;  ///< its files are being made durable
    bool durable = false;    ///< its files are durable
    bool told = false;       ///< its trainer knows the outcome
  };
  struct Save {
    std::map<core::Rank, Part> parts;
    std::set<core::Rank> announced;
    std::set<core::Rank> durable;
    bool committed = false;
    std::optional<messages::SaveOver> over;
  };
  /// What a staging buffer is used for.
  struct Buffer {
    enum class Use : std::uint8_t { free, staging, staged, writing };
    Use use = Use::free;
    std::uint64_t sequence = 0;
  };

  void on(core::Rank rank, const messages::SaveBegan& begun, const messages::Address& to);
  void on(core::Rank rank, const messages::BucketStaged& staged, const messages::Address& to);
  void on(core::Rank rank, const messages::ChunkWritten& written);
  void on(core::Rank rank, const messages::FilesDurable& durable, const messages::Address& to);
  void on(core::Rank rank, const messages::SaveOver& over, const messages::Address& to);
  void on(core::Rank rank, const StageChunk& work);
  void on(core::Rank rank, const WriteChunk& work);
  void on(core::Rank rank, const FinishFiles& work);
  void on(const CommitSave& work);
  void on(core::Rank rank, const StepShard& work);
  Part& part(core::Rank rank, std::uint64_t sequence) { return all_[sequence].parts[rank]; }

  std::function<void(std::string)> violate_;
  std::map<std::uint64_t, Save> all_;
  std::map<std::pair<core::Rank, std::uint32_t>, Buffer> buffers_;
  std::vector<messages::SaveOver> saves_;
};

}  // namespace troupe::actors
