#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/planes/checkpoint/reader.hpp"
#include "actors/planes/checkpoint/scatter.hpp"
#include "actors/world/storage.hpp"
#include "core/checkpoint/shared_load.hpp"
#include "core/ids.hpp"
#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// One rank's part in a load in which each shard is read by one rank: first read(), then, when every rank has
/// read its part, rounds of an all-to-all that bring all of it to the ranks that want it. Has no stream and
/// does not block.
class LoadExchange {
 public:
  /// What this rank wants: the plan's common targets, then its own. As in read_tensors().
  struct Wanted {
    std::vector<core::LoadTarget> targets;
    std::vector<std::span<std::byte>> memory;
  };

  /// `manifest` must outlive it. The plan, the number of ranks and `exchange_bytes` are the same on all
  /// ranks.
  static core::Result<LoadExchange> create(const core::Manifest& manifest, core::SharedLoadPlan plan,
                                           core::Rank rank, core::WorldSize world, Wanted wanted,
                                           std::uint64_t exchange_bytes);

  /// Reads what the plan assigns to this rank, and checks it against its hashes. Fills the targets that this
  /// covers. Errors are those of read_tensors(). `options.uploads` must outlive the exchange.
  core::Result<void> read(Storage& storage, std::string_view name, const ReadOptions& options);

  /// Instead of read(), for shards that are in memory: where this one is on this rank, or empty. What this
  /// rank wants and has itself is copied; all of it must stay until the last pack(). `uploads` are as in
  /// ReadOptions, and must outlive the exchange; what it gives is their device's memory, or the host's.
  using MemoryOf = std::function<std::span<const std::byte>(const core::ManifestShard&)>;
  enum class Source : std::uint8_t {
    host,     ///< memory of the host
    lasting,  ///< the same; it, and what this rank wants, outlast a round that is cut off, so none is copied
    device,
  };
  core::Result<void> take_from(const MemoryOf& memory_of, UploadPool* uploads = nullptr,
                               Source source = Source::host);

  std::uint64_t rounds() const { return rounds_; }
  /// Bytes that this rank sends to, or receives from, each rank in a round.
  std::vector<std::size_t> sent(std::uint64_t round) const { return counts(outgoing_, round); }
  std::vector<std::size_t> received(std::uint64_t round) const { return counts(incoming_, round); }
  /// The most that is sent or received in a round.
  std::size_t round_bytes() const { return window_ * streams_at_once_; }

  /// The bytes of the next round, in the order of ranks: packed into `bytes`, or where they are, if that is
  /// one range of this rank's memory. After read() or take_from(). Fails only if what take_from() was given
  /// is not the host's memory.
  core::Result<std::span<const std::byte>> pack(std::span<std::byte> bytes);
  /// Where what arrives in a round is wanted, if that is one range of the host's memory; otherwise empty.
  std::span<std::byte> place_of(std::uint64_t round) const;
  /// Takes what has arrived in the next round, in place_of() or elsewhere. Fails only if the targets' memory
  /// is not the host's.
  core::Result<void> unpack(std::span<const std::byte> bytes);

 private:
  /// A range of a shard in transit. Each begins at a multiple of kAlignment in its stream, so that the end of
  /// a round cuts no element.
  struct Piece {
    std::size_t read = 0;  ///< index in plan_.reads
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  /// Everything that goes from one rank to another, and how far it has gone.
  struct Stream {
    std::vector<Piece> pieces;
    std::vector<std::uint64_t> starts;  ///< of the pieces in the stream
    std::uint64_t bytes = 0;
    std::uint64_t first_round = 0;
    std::size_t next = 0;
    std::uint64_t at = 0;  ///< in the next piece

    void add(const Piece& piece);
  };
  /// Bytes of a stream.
  struct Section {
    std::uint64_t begin = 0;
    std::uint64_t size = 0;
  };

  LoadExchange() = default;
  core::Result<void> plan_own(const core::Manifest& manifest);
  void plan_streams();
  /// Bytes by who gives and who takes.
  using Pairs = std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t>;
  void plan_rounds(const std::vector<std::uint64_t>& to_all, const Pairs& to_one);
  Section section(const Stream& stream, std::uint64_t round) const;
  /// The only piece that a round moves, and its range, if it is all that it moves.
  std::optional<Piece> only_piece(const std::vector<Stream>& streams, std::uint64_t round) const;
  core::Result<void> take_whole(std::span<const std::byte> shard, ShardScatter& scatter);
  std::vector<std::size_t> counts(const std::vector<Stream>& streams, std::uint64_t round) const;
  /// Calls visit(piece, first byte in the shard, place in the round, count) for the ranges of a round.
  template <class Visit>
  void walk(std::vector<Stream>& streams, std::uint64_t round, std::size_t bytes, const Visit& visit) const;

  const core::Manifest* manifest_ = nullptr;
  core::SharedLoadPlan plan_;
  std::uint32_t rank_ = 0;
  std::uint32_t world_ = 1;
  Wanted wanted_;
  UploadPool* uploads_ = nullptr;  ///< as in ReadOptions
  bool gives_uploaded_ = false;    ///< sources_ are memory of their device
  bool is_direct_ = false;         ///< Source::lasting
  core::LoadPlan own_;
  std::unordered_map<const core::ManifestShard*, std::size_t> own_reads_;  ///< index in own_.reads
  std::vector<Stream> outgoing_;                                           ///< per rank
  std::vector<Stream> incoming_;
  std::uint64_t rounds_ = 0;
  std::uint64_t packed_ = 0;         ///< rounds
  std::uint64_t unpacked_ = 0;       ///< rounds
  std::uint64_t window_ = 0;         ///< bytes of a stream in a round
  std::size_t streams_at_once_ = 0;  ///< the most that a rank sends or receives in a round
  /// Shards that this rank reads for others: where they are, and the memory of those that no target holds.
  std::unordered_map<std::size_t, std::span<const std::byte>> sources_;
  std::vector<std::vector<std::byte>> kept_;
  std::deque<core::LoadRead> unwanted_;  ///< read only for others
  std::unordered_map<std::size_t, ShardScatter> arriving_;
  std::unordered_map<std::size_t, std::span<std::byte>> places_;  ///< of those that arrive and stay together
};

}  // namespace troupe::actors
